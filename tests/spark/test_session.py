"""The session of the embedded default: nothing secret in it, and memory bounded whatever the records' size."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import zipimport

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from mirrorlake.bronze import shape_bronze
from mirrorlake.session import on_workers
from mirrorlake.tables import BronzeFiles, FolderTables, read_ordered

from .frames import ORDERS_ID, TABLE, make_bronze

SECRET_LIKE = re.compile(r"(?i)secret|password|passwd|token|jaas|sasl|credential|access.?key")
MIB = 1 << 20
BIG_BYTES = 900_000
BIG_ROWS = 200


def test_no_setting_looks_like_a_secret(spark: SparkSession) -> None:
    kept = dict(spark.sparkContext.getConf().getAll())
    settings = {key: value for key, value in kept.items() if not re.search(r"redaction|\bjars?\b|ClassPath", key)}
    assert settings["spark.app.name"] == "mirrorlake"
    assert [key for key in settings if SECRET_LIKE.search(key)] == []
    said = {key: re.sub(r"-D[\w.]+=", "", value) for key, value in settings.items()}  # names of Java properties
    assert [key for key, value in said.items() if SECRET_LIKE.search(value)] == []


@pytest.mark.parametrize(
    "key",
    ["kafka.sasl.jaas.config", "kafka.ssl.keystore.key", "x.password", "x.clientSecret", "x.connectionString",
     "x.SharedAccessKey", "kafka.sasl.oauthbearer.token.endpoint.url"],
)  # fmt: skip
def test_what_looks_like_a_secret_is_not_shown(spark: SparkSession, key: str) -> None:
    spark.conf.set(key, "hunter2")
    try:
        shown = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    finally:
        spark.conf.unset(key)
    assert shown[key] == "*********(redacted)"


@pytest.mark.parametrize("setting", ["spark.redaction.regex", "spark.sql.redaction.options.regex"])
def test_both_redactions_know_kafkas_secrets(spark: SparkSession, setting: str) -> None:
    pattern = re.compile(spark.sparkContext.getConf().get(setting).replace("(?i)", ""), re.IGNORECASE)
    for name in (
        "sasl.jaas.config",
        "ssl.key.password",
        "ConnectionString",
        "SharedAccessKey",
        "sig=abc",
        "client.pem",
    ):
        assert pattern.search(name), name


def test_workers_are_this_interpreter(spark: SparkSession) -> None:
    assert on_workers(spark, [1], lambda _task: [sys.executable]) == [sys.executable]


def test_each_task_gives_its_results_and_they_come_in_order(spark: SparkSession) -> None:
    assert on_workers(spark, ["a", "b", "c"], lambda task: [task, task * 2]) == ["a", "aa", "b", "bb", "c", "cc"]
    assert on_workers(spark, [], lambda task: [task]) == []


def test_a_task_that_fails_says_what_it_met(spark: SparkSession) -> None:
    def work(task: int) -> list[int]:
        raise KeyError(f"task {task}")

    with pytest.raises(PythonException, match="KeyError: 'task 7'"):
        on_workers(spark, [7], work)


def test_a_worker_that_dies_is_one_sentence(spark: SparkSession) -> None:
    with pytest.raises(RuntimeError, match=r"Python worker exited unexpectedly[^\n]*$"):
        on_workers(spark, [7], lambda _task: os.kill(os.getpid(), signal.SIGKILL) or [])


def test_between_tasks_a_worker_neither_reads_zips_again_nor_searches_our_modules_for_garbage(
    spark: SparkSession,
) -> None:
    """Both cost a tenth of a second for each task, which is most of what a small batch takes."""

    def look(_task: int) -> list[tuple[str, int]]:
        return [(zipimport.zipimporter.invalidate_caches.__name__, gc.get_freeze_count())]

    [(forgets, frozen)] = on_workers(spark, [1], look)
    assert forgets == "keep_list"
    assert frozen > 50_000


# --- large records ---


def big_records(spark: SparkSession, value: str) -> DataFrame:
    frame = spark.range(0, BIG_ROWS, 1, 1).selectExpr(
        "CAST(id AS STRING) AS text", "id AS offset", "'orders' AS topic", "0 AS partition",
        "TIMESTAMP'2026-01-01 12:00:00' AS timestamp", "0 AS timestampType",
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers", f"CAST({value} AS BINARY) AS value",
    )  # fmt: skip
    return frame.selectExpr("*", "CAST(text AS BINARY) AS key").drop("text")


def written(spark: SparkSession, tables: FolderTables, value: str) -> BronzeFiles:
    folder = tables.folder(make_bronze(tables))
    assert folder is not None
    shaped = shape_bronze(big_records(spark, value), {"orders": ORDERS_ID}, 0)
    tables.append_frame(shaped, TABLE, "ingest", 0)
    return BronzeFiles(folder)


def test_large_records_get_small_row_groups(spark: SparkSession, tables: FolderTables) -> None:
    (segment,) = written(spark, tables, f"randstr({BIG_BYTES}, 7)").segments()
    metadata = pq.ParquetFile(segment.path).metadata
    assert metadata.num_rows == BIG_ROWS
    sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    assert sum(sizes) > BIG_ROWS * BIG_BYTES * 0.9
    assert max(sizes) < 64 * MIB


def test_large_records_are_read_in_small_batches(spark: SparkSession, tables: FolderTables) -> None:
    files = written(spark, tables, f"randstr({BIG_BYTES}, 7)")
    batches = [(batch.num_rows, batch.nbytes) for batch in read_ordered(files.segments(), 0, BIG_ROWS)]
    assert sum(rows for rows, _ in batches) == BIG_ROWS
    assert max(size for _, size in batches) < 32 * MIB


def test_values_get_no_dictionary(spark: SparkSession, tables: FolderTables) -> None:
    """Equal values would be stored once, and a file's size would say nothing of the memory its records need."""
    (segment,) = written(spark, tables, f"repeat('a', {BIG_BYTES})").segments()
    group = pq.ParquetFile(segment.path).metadata.row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    plain = {"key", "value", "offset", "headers.list.element.value"}
    assert {path for path in plain if columns[path].has_dictionary_page} == set()
    assert columns["topic"].has_dictionary_page


def test_a_worker_whose_java_hangs_up_at_once_says_nothing() -> None:
    """In a process of its own, since a worker takes the process's signals."""
    script = (
        "import socket; from mirrorlake.daemon import hung_up\n"
        "ours, javas = socket.socketpair(); javas.close()\n"
        "raise SystemExit(10 + hung_up(ours, False))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (11, "")
