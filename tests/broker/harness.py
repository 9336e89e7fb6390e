"""What broker tests share: producing awkward records, reading every field back, running a flow, and the checker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from pyspark.sql import SparkSession

from mirrorlake import inspection
from mirrorlake.audit import Report
from mirrorlake.config import Config, load
from mirrorlake.consumers import Consumers
from mirrorlake.errors import Transient
from mirrorlake.kafka import Cluster
from mirrorlake.lab import Lab
from mirrorlake.provenance import HEADER
from mirrorlake.records import TopicPartition
from mirrorlake.runner import Run
from mirrorlake.tables import FolderTables
from mirrorlake.world import connect

Header = tuple[str, bytes | None]
LOCAL = {19092: "source", 29092: "target"}
"""The ports of the examples, and the clusters that stand for them here."""


@dataclass(frozen=True)
class Record:
    """Every field of a record that a relay has to keep."""

    value: bytes | None = b"v"
    key: bytes | None = b"k"
    headers: tuple[Header, ...] = ()
    timestamp_ms: int = 1_700_000_000_000
    partition: int = 0

    def without_timestamp(self) -> Record:
        return replace(self, timestamp_ms=0)


@dataclass(frozen=True)
class Records:
    """Writes to and reads from the lab's clusters, as any client would."""

    lab: Lab
    clients: dict[str, Cluster] = field(default_factory=dict)
    askers: dict[str, Consumers] = field(default_factory=dict)

    def cluster(self, name: str) -> Cluster:
        if name not in self.clients:
            self.clients[name] = Cluster(name, self.lab.cluster(name).client_config())
        return self.clients[name]

    def consumers(self, name: str) -> Consumers:
        """The groups of a cluster; kept, since each begins with a process of its own."""
        if name not in self.askers:
            self.askers[name] = Consumers(self.cluster(name))
        return self.askers[name]

    def arrived(self, name: str, topic: str, wanted: int) -> bool:
        """Has the cluster at least so many records of the topic? A topic without leaders yet has none."""
        cluster = self.cluster(name)
        if topic not in (there := cluster.describe([topic])):
            return False
        try:
            ends = cluster.log_ends(TopicPartition(topic, number) for number in range(there[topic].partitions))
        except Transient:
            return False
        return sum(ends.values()) >= wanted

    def create(self, name: str, topic: str, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.cluster(name).create_topic(topic, partitions, 1, settings)
        wait_until(lambda: topic in self.cluster(name).describe([topic]), f"topic {topic}")

    def send(self, name: str, topic: str, records: Iterable[Record], **producer: Any) -> None:
        # Idempotent: others send a request that a new topic refused again after those behind it.
        ours = {"linger.ms": 5, "enable.idempotence": True}
        sender = Producer({**self.lab.cluster(name).client_config(), **ours, **producer})
        failures: list[Any] = []
        for record in records:
            while True:
                try:
                    sender.produce(
                        topic, record.value, record.key, record.partition,
                        timestamp=record.timestamp_ms, headers=list(record.headers),
                        on_delivery=lambda error, _m: failures.append(error) if error else None,
                    )  # fmt: skip
                    break
                except BufferError:
                    sender.poll(0.05)
        sender.flush(60)
        assert not failures, failures[0]

    def numbered(self, count: int, partitions: int = 1, first: int = 0) -> list[Record]:
        return [
            Record(b"value-%d" % n, b"key-%d" % n, (("n", b"%d" % n),), 1_700_000_000_000 + n, n % partitions)
            for n in range(first, first + count)
        ]

    def read(self, name: str, topic: str, committed: bool = True) -> dict[int, list[Record]]:
        """All records by partition, without our header, in offset order."""
        cluster = self.cluster(name)
        partitions = cluster.describe([topic])[topic].partitions
        return {number: self._read(cluster, TopicPartition(topic, number), committed) for number in range(partitions)}

    def _read(self, cluster: Cluster, at: TopicPartition, committed: bool) -> list[Record]:
        start, end = cluster.log_starts([at])[at], cluster.log_ends([at])[at]
        return [as_record(message) for message in cluster.read_range(at, start, end, committed)]


def drop_before(records: Records, topic: str, offset: int, partition: int = 0) -> None:
    admin = records.cluster("source").admin
    for future in admin.delete_records([Place(topic, partition, offset)]).values():
        future.result()


def as_record(message: Any) -> Record:
    headers = tuple((key, value) for key, value in message.headers() or () if key != HEADER)
    return Record(message.value(), message.key(), headers, message.timestamp()[1], message.partition())


@dataclass
class Flow:
    """One flow from `source`, its configuration file and its storage root."""

    folder: Path
    lab: Lab
    spark: SparkSession
    topics: list[str]
    targets: list[str]
    options: dict[str, Any]
    name: str = "flow"
    runner: dict[str, Any] = field(default_factory=dict)
    _commands: int = 0

    @property
    def root(self) -> Path:
        return self.folder / "state"

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.yml"

    def write(self) -> Path:
        options = {key: value for key, value in self.options.items() if key != "target"}
        targets = [{"cluster": alias, **self.options.get("target", {})} for alias in self.targets]
        flow = {"source": "source", "topics": self.topics, "targets": targets, **options}
        aliases = {flow["source"], *self.targets}
        clusters = {alias: self.lab.cluster(alias).cluster_yaml() for alias in sorted(aliases)}
        content = {
            "storage": {"root": str(self.root)},
            "clusters": clusters,
            "flows": {self.name: flow},
            "runner": {
                "refresh_topics_seconds": 1,
                "lag_sample_seconds": 1,
                "ledger_commit_seconds": 0.2,
                **self.runner,
            },
        }
        self.path.write_text(yaml.safe_dump(content))
        return self.path

    def config(self) -> Config:
        return load(self.write())

    def run_once(self) -> None:
        Run(self.config(), once=True, spark=self.spark)()

    def audit(self) -> Report:
        config = self.config()
        flow = config.flow(self.name)
        return inspection.run_audit(config, flow, connect(config, [flow]), FolderTables(self.root))

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = FolderTables(self.root).read(table).to_pylist()
        return found

    def command(self, *arguments: str, environment: dict[str, str] | None = None) -> Command:
        """`mirrorlake` as a user starts it, in a process of its own."""
        self._commands += 1
        return run_command(self.folder / f"output-{self._commands}.txt", *arguments, environment=environment)

    def start(self, *arguments: str, environment: dict[str, str] | None = None) -> Command:
        return self.command("run", "-c", str(self.write()), *arguments, environment=environment)


def example(folder: Path, lab: Lab, name: str, topic: str) -> Path:
    """A file of `conf/` as it stands, but for addresses and the topic."""
    text = (Path(__file__).parents[2] / "conf" / name).read_text()
    addresses = {f"localhost:{port}": lab.cluster(alias).bootstrap_servers for port, alias in LOCAL.items()}
    for written, meant in {**addresses, "my-topic": topic}.items():
        assert written in text
        text = text.replace(written, meant)
    path = folder / name
    path.write_text(text)
    return path


@dataclass(frozen=True)
class Command:
    """A running command. Its output goes to a file: a pipe would stay open while a killed runner's remains live."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)


def run_command(
    output: Path, *arguments: str, environment: dict[str, str] | None = None, errors: Path | None = None
) -> Command:
    """What it says on stderr goes to `errors`, or where that is not asked for between the rest."""
    with output.open("w") as file, errors.open("w") if errors else contextlib.nullcontext() as other:
        process = subprocess.Popen(
            [sys.executable, "-m", "mirrorlake.cli", *arguments],
            stdout=file,
            stderr=other or subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    return Command(process, output)


def finish(command: Command, timeout_seconds: float = 120) -> tuple[int, str]:
    """Wait for a command; what it said comes with its exit code."""
    try:
        code = command.process.wait(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(command.pid, signal.SIGKILL)
        command.process.wait()
        raise AssertionError(
            f"still running after {timeout_seconds} s:\n{command.output.read_text()[-3000:]}"
        ) from None
    return code, command.output.read_text()


def wait_until(condition: Callable[[], object], what: str, timeout_seconds: float = 60) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_seconds} s for {what}"
        time.sleep(0.05)


def flat(by_partition: dict[int, list[Record]]) -> list[Record]:
    return [record for number in sorted(by_partition) for record in by_partition[number]]


def count(by_partition: dict[int, list[Record]]) -> int:
    return sum(len(held) for held in by_partition.values())


def by_partition(records: Sequence[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found
