"""Which way records take to bronze and from there to Kafka, what ingest's codec costs, and what a small batch costs.

    python benchmarks/data_path.py [--records 300000] [--bytes 1000] [--rounds 3] [--json FILE]

Real brokers, and the relay's own ingest, sender and runner. docs/decisions/0002, 0003 and 0009 hold figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from mirrorlake import jars, session
from mirrorlake.bronze import Ingest, Reading, Workers, start_ingest
from mirrorlake.clusters import librdkafka_consumer, librdkafka_producer, spark_kafka_options
from mirrorlake.config import parse
from mirrorlake.kafka import READER_GROUP, Cluster
from mirrorlake.lab import ClusterSpec, Lab, LabCluster
from mirrorlake.ledger import Position
from mirrorlake.produce import Batches, Errand, Outcome, Slice, deliver, own_records
from mirrorlake.readers import OUTCOMES, BronzeInCatalog, BronzeInFolder, as_rows, outcomes_of, refuse_retries
from mirrorlake.records import BRONZE, OPS_TABLES, Run, SourcePartition, TopicPartition
from mirrorlake.rounds import Due, plan_round
from mirrorlake.runner import Run as Relaying
from mirrorlake.streams import StreamId
from mirrorlake.tables import BronzeFiles, FolderTables, Segment, bronze_properties
from mirrorlake.topics import RelaySpec

PARTITIONS = 4
CORES = 2
SAMPLE = 1000
TABLE = "bronze.src__orders"
NOISE = random.Random(1)  # noqa: S311
Figures = dict[str, Any]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the scene ---


@dataclass
class Scene:
    """Two brokers, a full source topic, one Spark session."""

    root: Path
    source_lab: LabCluster
    target_lab: LabCluster
    records: int
    size: int

    @cached_property
    def source(self) -> Cluster:
        return Cluster("src", self.source_lab.client_config())

    @cached_property
    def target(self) -> Cluster:
        return Cluster("dst", self.target_lab.client_config())

    @cached_property
    def config(self) -> Any:
        return configuration(self.root, self.source_lab, self.target_lab, "orders")

    @cached_property
    def spark(self) -> SparkSession:
        logs = self.root / "logs"
        settings = session.settings(jars.resolve(jars.SPARK, say), "4g", CORES, "zstd", logs)
        return session.start({**settings, "spark.sql.warehouse.dir": str(self.root / "warehouse")}, logs)

    @cached_property
    def keys(self) -> dict[int, int]:
        """For each Kafka partition an int that Spark's hash puts into the task of that number."""
        task = F.pmod(F.hash(F.col("id").cast("int")), F.lit(PARTITIONS))
        rows = self.spark.range(64).groupBy(task.alias("task")).agg(F.first("id").alias("key")).collect()
        return {row["task"]: row["key"] for row in rows}

    def load(self) -> None:
        """The source topic: half of each value is random, the rest compresses."""
        self.source.create_topic("orders", PARTITIONS, 1, {})
        producer = Producer(
            librdkafka_producer("src", self.config.clusters["src"])
            | {"delivery.report.only.error": True, "log_level": 2}
        )
        for number in range(self.records):
            produce_one(producer, "orders", number, self.size)
        producer.flush()

    def ingest(self, tables: FolderTables, max_records: int, by_workers: bool = False) -> tuple[float, int]:
        """All of the source topic into a new bronze table; seconds, and bytes on disk."""
        tables.ensure(TABLE, BRONZE, bronze_properties(168))
        leg = Ingest(RelaySpec("bench", TABLE, ("orders",)), StreamId("bench", "ingest", TABLE),
                     tables.root / "checkpoints" / "g0", tables, self.source)  # fmt: skip
        if by_workers:
            consumer = librdkafka_consumer("src", self.config.clusters["src"], "read_committed", READER_GROUP)
            leg.workers = Workers(tables, consumer, CORES)
        leg.checkpoint.parent.mkdir(parents=True)
        options = spark_kafka_options("src", self.config.clusters["src"])
        begun = time.monotonic()
        failures: list[Exception] = []
        reading = Reading(options, "read_committed", max_records, "earliest", 0, once=True)
        start_ingest(self.spark, leg, reading, failures.append).awaitTermination()
        assert not failures, failures
        took = time.monotonic() - begun
        found = BronzeFiles(tables.root / "tables" / "bronze" / "src__orders").segments()
        assert sum(segment.records for segment in found) == self.records
        return took, sum(segment.bytes for segment in found)


def produce_one(producer: Producer, topic: str, number: int, size: int) -> None:
    half = size // 2
    value = NOISE.randbytes(half) + b'{"status": "shipped", "amount": 1}'.ljust(size - half, b".")
    headers = [("trace", NOISE.randbytes(16)), ("kind", b"order")]
    while True:
        try:
            producer.produce(topic, value, b"key-%d" % number, number % PARTITIONS, headers=headers)
            return
        except BufferError:
            producer.poll(0.1)


def configuration(
    root: Path, source: LabCluster, target: LabCluster, topic: str, spark: Mapping[str, str] | None = None
) -> Any:
    flow = {"source": "src", "topics": [topic], "targets": [{"cluster": "dst", "replication_factor": 1}]}
    clusters = {"src": source.cluster_yaml(), "dst": target.cluster_yaml()}
    runner = {"spark": dict(spark or {})}
    return parse(
        json.dumps({"storage": {"root": str(root)}, "clusters": clusters, "flows": {"bench": flow}, "runner": runner}),
        "bench",
    )


# --- bronze -> Kafka ---


@dataclass
class Leg:
    """One way from bronze to a target topic; all have the same rows, producer settings and sender."""

    scene: Scene
    folder: Path
    segments: list[Segment]
    topic: str

    @cached_property
    def errand(self) -> Errand:
        settings = librdkafka_producer("dst", self.scene.config.clusters["dst"])
        client = self.scene.target_lab.client_config()
        return Errand("bench", "dst", 1, settings, client, None, True, "src", "dst", 1, 100 << 20, False, 120)

    def dues(self) -> list[Due]:
        by_source: dict[SourcePartition, list[Segment]] = {}
        for segment in sorted(self.segments, key=lambda s: (s.source, s.first_offset)):
            by_source.setdefault(segment.source, []).append(segment)
        return [
            Due(source, Position(0, TopicPartition(self.topic, source.partition), "", 0), False, tuple(held))
            for source, held in by_source.items()
        ]

    def bronze(self) -> DataFrame:
        return self.scene.spark.read.format("delta").load(str(self.folder))

    def send(self, frame: DataFrame) -> list[Outcome]:
        """`frame` holds each source partition in one task, in offset order."""
        slices = {due.source.partition: s for due in self.dues() for s in [plan_round([due], 1 << 60, 1)[0][0]]}
        work = sender(self.errand, slices)
        columns = frame.select("partition", "offset", "timestamp", "key", "value", "headers")
        return outcomes_of(columns.mapInArrow(work, OUTCOMES).collect())


def sender(errand: Errand, slices: Mapping[int, Slice]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def work(batches: Batches) -> Iterator[pa.RecordBatch]:
        refuse_retries()
        for partition, group in itertools.groupby(of_one_partition(batches), partition_of):
            yield as_rows(deliver(errand, [(slices[partition], partial(iter, group))]))

    return work


def partition_of(batch: pa.RecordBatch) -> int:
    return int(batch["partition"][0].as_py())


def of_one_partition(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        numbers = batch["partition"].to_numpy()
        cuts = [0, *((numbers[1:] != numbers[:-1]).nonzero()[0] + 1).tolist(), len(numbers)]
        yield from (batch.slice(a, b - a) for a, b in itertools.pairwise(cuts) if b > a)


def shuffled(leg: Leg) -> list[Outcome]:
    """(a) Shuffle and sort. The key is chosen by its hash, since hashing 0..3 puts several partitions into one task."""
    key = F.create_map(*[F.lit(n) for pair in leg.scene.keys.items() for n in pair])[F.col("partition")].cast("int")
    return leg.send(leg.bronze().repartition(PARTITIONS, key).sortWithinPartitions("partition", "offset"))


def placed(leg: Leg) -> list[Outcome]:
    """(b) No shuffle: one scan per file, in offset order, coalesced into one task per Kafka partition.

    A scan of many files would not do: Spark packs them into tasks by size, and so out of order.
    """
    schema = leg.bronze().schema
    read = leg.scene.spark.read.schema(schema).parquet
    tasks = [reduce(DataFrame.union, map(read, [s.path for s in due.segments])).coalesce(1) for due in leg.dues()]
    return leg.send(reduce(DataFrame.union, tasks))


def planned(leg: Leg) -> list[Outcome]:
    """(c) The relay's own: tasks get files and offset ranges, Python reads the Parquet."""
    return BronzeInFolder(leg.scene.spark, leg.folder).send(leg.errand, plan_round(leg.dues(), 1 << 60, CORES))


def governed(leg: Leg) -> list[Outcome]:
    """(g) The relay's own where only Spark may read: as (a), but hashed as it falls, and a partition gathered first."""
    bronze = BronzeInCatalog(leg.scene.spark, f"delta.`{leg.folder}`")
    return bronze.send(leg.errand, plan_round(leg.dues(), 1 << 60, CORES))


def spark_sink(leg: Leg) -> None:
    """(s) Spark's own sink: cannot set timestamps, says no offsets, keeps no order across files."""
    settings = {
        "acks": "all",
        "compression.type": "lz4",
        "linger.ms": "20",
        "batch.size": "1000000",
        "buffer.memory": "134217728",
    }
    options = {f"kafka.{key}": value for key, value in settings.items()}
    frame = leg.bronze().select(F.lit(leg.topic).alias("topic"), "partition", "key", "value", "headers")
    frame.write.format("kafka").options(**options, includeHeaders="true").option(
        "kafka.bootstrap.servers", leg.scene.target_lab.bootstrap_servers
    ).save()


WAYS: dict[str, Callable[[Leg], list[Outcome] | None]] = {
    "a shuffle, sort, mapInArrow": shuffled,
    "b files placed, mapInArrow": placed,
    "c plan of files, pyarrow": planned,
    "g Spark's reader of the relay": governed,
    "s Spark's Kafka sink": spark_sink,
}


def check(leg: Leg, outcomes: list[Outcome] | None) -> None:
    """All records are there; for our sender, each at the offset it had (a fresh topic begins at 0 too)."""
    at = [TopicPartition(leg.topic, partition) for partition in range(PARTITIONS)]
    ends = leg.scene.target.log_ends(at)
    assert sum(ends.values()) == leg.scene.records, ends
    if outcomes is None:
        return
    assert {o.error for o in outcomes} == {""}, outcomes
    assert {o.source.partition: o.runs for o in outcomes} == {p.partition: [Run(0, 0, ends[p])] for p in at}
    for outcome in outcomes:
        partition = at[outcome.source.partition]
        for first in (0, ends[partition] // 2, ends[partition] - SAMPLE):
            messages = leg.scene.target.read_range(partition, first, first + SAMPLE)
            pairs = list(own_records(leg.errand, outcome.source, messages))
            assert pairs == [(n, n) for n in range(first, first + SAMPLE)], f"{partition} is out of order near {first}"


def measure_fanout(scene: Scene, rounds: int) -> Figures:
    tables = FolderTables(scene.root / "fanout")
    scene.ingest(tables, -(-scene.records // 5))
    folder = tables.root / "tables" / "bronze" / "src__orders"
    segments = BronzeFiles(folder).segments()
    say(f"bronze: {len(segments)} files, {sum(s.bytes for s in segments) >> 20} MiB")
    assert len(scene.keys) == PARTITIONS
    rates: dict[str, list[int]] = {name: [] for name in WAYS}
    for number in range(rounds + 1):  # the first round warms the JVM and is not counted
        for name, way in WAYS.items():
            leg = Leg(scene, folder, segments, f"t-{uuid.uuid4().hex[:8]}")
            scene.target.create_topic(leg.topic, PARTITIONS, 1, {})
            begun = time.monotonic()
            outcomes = way(leg)
            rate = int(scene.records / (time.monotonic() - begun))
            check(leg, outcomes)
            scene.target.admin.delete_topics([leg.topic])[leg.topic].result()
            say(f"round {number} {name}: {rate:,} records/s")
            rates[name] += [rate] if number else []
    return compared(rates)


def compared(rates: Mapping[str, list[int]]) -> Figures:
    """Rates of rounds that alternated, with each one's ratio to the first."""
    medians = {name: statistics.median(found) for name, found in rates.items()}
    base = next(iter(medians.values()))
    return {
        name: {"records_per_second": found, "median": medians[name], "ratio": round(medians[name] / base, 2)}
        for name, found in rates.items()
    }


# --- Kafka -> bronze ---

CODEC = "spark.sql.parquet.compression.codec"
DICTIONARY = [f"parquet.enable.dictionary#{column}" for column in session._UNIQUE]  # noqa: SLF001


def measure_ingest(scene: Scene, rounds: int) -> Figures:
    ways = [(codec, dictionary) for dictionary in ("false", "true") for codec in ("zstd", "lz4_raw", "snappy")]
    rates: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for number in range(rounds + 1):
        for codec, dictionary in ways:
            name = f"{codec}, dictionary {'on' if dictionary == 'true' else 'off'}"
            for key, value in {CODEC: codec, **dict.fromkeys(DICTIONARY, dictionary)}.items():
                scene.spark.conf.set(key, value)
            with tempfile.TemporaryDirectory(dir=scene.root) as folder:
                took, sizes[name] = scene.ingest(FolderTables(Path(folder)), scene.records)
            say(f"round {number} ingest {name}: {scene.records / took:,.0f} records/s")
            rates.setdefault(name, []).extend([int(scene.records / took)] if number else [])
    return {name: {**row, "bytes": sizes[name]} for name, row in compared(rates).items()}


def measure_readers(scene: Scene, rounds: int) -> Figures:
    """Spark's Kafka source and Parquet writer, and Python workers with librdkafka and pyarrow, in turns."""
    rates: dict[str, list[int]] = {}
    cold: Figures = {}
    for number in range(rounds + 1):
        for name in ("spark", "workers"):
            with tempfile.TemporaryDirectory(dir=scene.root) as folder:
                took, _ = scene.ingest(FolderTables(Path(folder)), scene.records, by_workers=name == "workers")
            say(f"round {number} reader {name}: {scene.records / took:,.0f} records/s")
            rates.setdefault(name, []).extend([int(scene.records / took)] if number else [])
            cold.setdefault(name, int(scene.records / took))
    return {**compared(rates), "round 0": cold}


# --- small batches ---

STREAMING = "org.apache.spark.sql.execution.streaming"
PLAIN = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs",
    "spark.sql.streaming.checkpointFileManagerClass": f"{STREAMING}.FileContextBasedCheckpointFileManager",
}
RAW = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
MANAGER = {"spark.sql.streaming.checkpointFileManagerClass": f"{STREAMING}.FileSystemBasedCheckpointFileManager"}
NO_VERSION_CHECKSUM = {"spark.databricks.delta.writeChecksumFile.enabled": "false"}
SETTINGS: dict[str, dict[str, str]] = {
    "Spark's and Hadoop's defaults": PLAIN,
    "raw local file system": {**PLAIN, **RAW},
    "FileSystem-based checkpoint manager": {**PLAIN, **MANAGER},
    "both": {**RAW, **MANAGER},
    "both, and no version checksum": {**RAW, **MANAGER, **NO_VERSION_CHECKSUM},
    "the relay's own": {},
}
WARM_BATCHES = 30
MEASURED_BATCHES = 30


@dataclass
class Probe:
    """Watches a run from inside: the queries' own progress, and every process that the JVM starts (a JFR event)."""

    root: Path
    since: str = ""
    recording: Any = None
    versions: Counter[str] = field(default_factory=Counter)
    figures: Figures = field(default_factory=dict)

    def __call__(self, run: Relaying) -> None:
        spark = SparkSession(SparkContext._active_spark_context)  # noqa: SLF001
        done = [len(progress_of(query)) for query in spark.streams.active if ".ingest." in query.name]
        if done and done[0] >= WARM_BATCHES and self.recording is None:
            self._begin(spark)
        elif done and done[0] >= WARM_BATCHES + MEASURED_BATCHES and not self.figures:
            self.figures = self._figures(spark)
            run.stopping.set()

    def _begin(self, spark: SparkSession) -> None:
        self.since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        self.versions = self._versions()
        self.recording = spark._jvm.jdk.jfr.Recording()  # noqa: SLF001
        self.recording.enable("jdk.ProcessStart")
        self.recording.start()

    def _versions(self) -> Counter[str]:
        logs = (self.root / "tables").glob("*/*/_delta_log/*.json")
        return Counter(str(path.parts[-3]) for path in logs if path.stem.isdigit())

    def _figures(self, spark: SparkSession) -> Figures:
        self.recording.stop()
        commits = self._versions() - self.versions
        queries = {query.name.split(".")[1]: self._durations(query) for query in spark.streams.active}
        batches = max(commits[table] for table in commits if table not in OPS_TABLES)
        started = {name: round(count / batches, 1) for name, count in self._started(spark).items()}
        return {**queries, "commits": dict(commits), "started_per_ingest_batch": started}

    def _durations(self, query: Any) -> Figures:
        """Medians in ms; `addBatch` is the append, or for fan-out the round."""
        measured = [p["durationMs"] for p in progress_of(query) if p["timestamp"] >= self.since]
        names = sorted({name for durations in measured for name in durations})
        return {"batches": len(measured), **{n: statistics.median(d.get(n, 0) for d in measured) for n in names}}

    def _started(self, spark: SparkSession) -> Counter[str]:
        path = spark._jvm.java.io.File(str(self.root / "forks.jfr")).toPath()  # noqa: SLF001
        self.recording.dump(path)
        events = spark._jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(path)  # noqa: SLF001
        return Counter(event.getString("command").split()[0].rpartition("/")[2] for event in events)


def progress_of(query: Any) -> list[Figures]:
    """Of the batches that ran."""
    return [p for p in query.recentProgress if "addBatch" in p["durationMs"]]


def small_batches(name: str, root: Path, source: LabCluster, target: LabCluster) -> Figures:
    """The real runner with about 50 records/s. In a process for each of the settings: Hadoop keeps its file systems."""
    topic = f"few-{uuid.uuid4().hex[:8]}"
    cluster = Cluster("src", source.client_config())
    cluster.create_topic(topic, PARTITIONS, 1, {})
    run = Relaying(configuration(root, source, target, topic, SETTINGS[name]))
    probe = Probe(root)
    run.watch = lambda _lines: probe(run)
    stop = threading.Event()
    feeding = threading.Thread(target=feed, args=(source, topic, stop))
    feeding.start()
    try:
        run()
    finally:
        stop.set()
        feeding.join()
    return probe.figures


def feed(source: LabCluster, topic: str, stop: threading.Event) -> None:
    producer = Producer(source.client_config())
    for number in itertools.count():
        produce_one(producer, topic, number, 1000)
        producer.poll(0)
        if stop.wait(0.02):
            break
    producer.flush()


def measure_small(root: Path, rounds: int) -> Figures:
    found: Figures = {name: [] for name in SETTINGS}
    for _ in range(rounds):
        for name in SETTINGS:
            found[name].append(by_itself("--small", name, "--lab", str(root / "lab")))
            say(f"{name}: {json.dumps(found[name][-1])}")
    return found


# --- what a job costs that carries nothing ---

DAEMONS = ("pyspark.daemon", "mirrorlake.daemon")
JOBS = 60


def empty_jobs(daemon: str, root: Path) -> Figures:
    """Medians in ms, of jobs with a task for each core that do nothing, one after the other."""
    settings = session.settings(jars.resolve(jars.SPARK, say), "2g", CORES, "zstd", root / "logs")
    settings["spark.driver.extraJavaOptions"] += " -XX:TieredStopAtLevel=1"
    spark = session.start({**settings, "spark.python.daemon.module": daemon}, root / "logs")
    ways: dict[str, Callable[[], object]] = {
        "mapInArrow": lambda: (
            spark.range(0, CORES, 1, CORES).mapInArrow(lambda batches: batches, "id bigint").collect()
        ),
        "without SQL": lambda: session.on_workers(spark, range(CORES), lambda task: [task]),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(JOBS + JOBS // 2):
        for name, job in ways.items():
            begun = time.monotonic()
            job()
            times[name] += [(time.monotonic() - begun) * 1000] if number >= JOBS // 2 else []
    spark.stop()
    return {name: round(statistics.median(found)) for name, found in times.items()}


def measure_jobs(rounds: int) -> Figures:
    found: Figures = {name: [] for name in DAEMONS}
    for _ in range(rounds):
        for name in DAEMONS:
            found[name].append(by_itself("--daemon", name))
            say(f"{name}: {json.dumps(found[name][-1])}")
    return found


def by_itself(*given: str) -> Figures:
    """A part of this program in a process of its own."""
    said = subprocess.run([sys.executable, __file__, *given], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr[-3000:]
    figures: Figures = json.loads(said.stdout.splitlines()[-1])
    return figures


# --- the command ---


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--bytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default="fanout,ingest,readers,small,jobs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", help=argparse.SUPPRESS)
    parser.add_argument("--daemon", help=argparse.SUPPRESS)
    parser.add_argument("--lab", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(given: argparse.Namespace, root: Path) -> Figures:
    figures: Figures = {"command": sys.argv, "cores": os.cpu_count()}
    parts = given.parts.split(",")
    with Lab(root / "lab") as lab:
        clusters = lab.up([ClusterSpec("src"), ClusterSpec("dst")])
        scene = Scene(root, clusters["src"], clusters["dst"], given.records, given.bytes)
        if "jobs" in parts:
            figures["jobs"] = measure_jobs(given.rounds)
        if "small" in parts:
            figures["small"] = measure_small(root, 1)
        if {"fanout", "ingest", "readers"} & set(parts):
            scene.load()
            if "fanout" in parts:
                figures["fanout"] = measure_fanout(scene, given.rounds)
            if "readers" in parts:
                figures["readers"] = measure_readers(scene, given.rounds)
            if "ingest" in parts:
                figures["ingest"] = measure_ingest(scene, given.rounds)
            scene.spark.stop()
    return figures


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="data-path-") as folder:
        if given.small:
            lab = Lab(given.lab)
            print(json.dumps(small_batches(given.small, Path(folder), lab.cluster("src"), lab.cluster("dst"))))
            return
        if given.daemon:
            print(json.dumps(empty_jobs(given.daemon, Path(folder))))
            return
        figures = measure(given, Path(folder))
    text = json.dumps(figures, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
