"""The Spark session of the embedded default. On Databricks the runtime brings its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from mirrorlake.errors import UsageFault
from mirrorlake.jars import class_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

# Secrets never get here; should one, Spark's own pages and logs must not show it.
_REDACT = "(?i)secret|password|passwd|token|jaas|sasl|credential|connection.?string|access.?key|keystore|pem|sig="


def settings(jars: Iterable[Path], memory: str, cores: int, codec: str, logs: Path) -> dict[str, str]:
    """Spark settings for one small machine; `docs/decisions/0002-data-path.md` has what was measured."""
    return {
        "spark.master": f"local[{cores}]",
        "spark.app.name": "mirrorlake",
        # Not `spark.jars`, of which even a local session makes copies; and Java keeps only classes from its own path.
        "spark.driver.extraClassPath": class_path(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": _java_options(logs),
        "spark.python.daemon.module": "mirrorlake.daemon",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": _REDACT,
        "spark.sql.redaction.options.regex": _REDACT,
        "spark.scheduler.mode": "FAIR",
        "spark.speculation": "false",
        # A stage that runs again does not count as another attempt of its tasks, which may have sent records.
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.pollingDelay": "50ms",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.databricks.io.skipping.stringPrefixLength": "255",
        "spark.sql.parquet.compression.codec": codec,
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        **_parquet(),
        **_local_files(),
    }


def _local_files() -> dict[str, str]:
    """Spark's default checkpoint manager forks `chmod` and `readlink` for every file, without Hadoop's native library.

    The plainer one writes and renames. One writer is our lease's business, not the file manager's.
    """
    manager = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    return {
        "spark.sql.streaming.checkpointFileManagerClass": manager,
        # Bronze's files belong to the table by its log alone: no renames in two steps, no marks beside them.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }


def _java_options(logs: Path) -> str:
    # Only Kafka's own file provider may resolve references in client options, and it reads one folder of ours.
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    return " ".join(
        [
            "-XX:+UseParallelGC",
            # Spark matches a failed batch's whole traceback with one expression, which overflows a small stack.
            "-Xss8m",
            f"-Dlog4j2.configurationFile={logs / 'log4j2.properties'}",
            f"-Dorg.apache.kafka.automatic.config.providers={provider}",
        ]
    )


def _parquet() -> dict[str, str]:
    """Row groups and pages bounded by bytes: hundreds of records of 900 kB must not wait in memory for a check."""
    plain = {f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _UNIQUE}
    return {
        **plain,
        "spark.hadoop.parquet.block.size": str(32 << 20),
        # Of zstd's levels the fastest: the next ones cost more than the disk they save.
        "spark.hadoop.parquet.compression.codec.zstd.level": "1",
        "spark.hadoop.parquet.page.size.row.check.min": "4",
        "spark.hadoop.parquet.block.size.row.check.min": "4",
        "spark.hadoop.parquet.page.write-checksum.enabled": "false",
    }


_UNIQUE = ("key", "value", "headers.list.element.value", "offset")


def log4j(logs: Path, level: str = "warn") -> str:
    return f"""status = error
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {logs}/spark.log
appender.file.filePattern = {logs}/spark-%i.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


def on_workers(spark: SparkSession, tasks: Sequence[Task], work: Callable[[Task], Iterable[Result]]) -> list[Result]:
    """What `work` makes of each task, each in a Spark task of its own; the first that fails ends all.

    A job without SQL: in small batches the plan of a query would cost more than what it carries.
    """

    def run(numbers: Iterable[int]) -> Iterator[Result]:
        for number in numbers:
            yield from work(tasks[number])

    if not tasks:
        return []
    with _told_as_python():
        return list(spark.sparkContext.parallelize(range(len(tasks)), len(tasks)).mapPartitions(run).collect())


@contextlib.contextmanager
def _told_as_python() -> Iterator[None]:
    """What a task raised, with its traceback, as from SQL; of a worker that died, the sentence without Java's stack."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PythonException

    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception.getCause()
        if cause is not None and cause.getClass().getSimpleName() == "PythonException":
            raise PythonException(message=cause.getMessage()) from None
        raise RuntimeError(str(error.java_exception.getMessage()).partition("\n")[0]) from None


def warm_up(spark: SparkSession, tasks: int) -> None:
    """Start Python workers, and load what Java needs for their tasks, beside the first questions to the clusters.

    What goes wrong here goes wrong in the first batch too, which says so.
    """

    def work() -> None:
        with contextlib.suppress(Exception):
            on_workers(spark, range(tasks), lambda task: [task])

    Thread(target=work, daemon=True).start()


def start(options: Mapping[str, str], logs: Path, log_level: str = "warn") -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageFault("PySpark is not installed", "pip install 'mirrorlake[local]'") from None
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "log4j2.properties").write_text(log4j(logs, log_level))
    # Workers must be this interpreter, with our packages.
    os.environ["MIRRORLAKE_DRIVER_PID"] = str(os.getpid())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder
    for key, value in options.items():
        builder = builder.config(key, value)
    # In the main thread PySpark would take SIGINT for itself, and a stop while it starts would be a traceback.
    with ThreadPoolExecutor(1) as beside:
        spark = beside.submit(builder.getOrCreate).result()
    # It prints a traceback where Java is gone; who runs queries says that in a sentence.
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None
    return spark
