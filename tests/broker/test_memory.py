"""Batches are bounded by bytes as well as by records: large records pass in a small heap."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from harness import Command, Flow, Record, Records, as_record, by_partition, finish, wait_until

from mirrorlake.bench.processes import tree
from mirrorlake.records import TopicPartition

TOPIC = "large-records"
PARTITIONS, RECORDS, BYTES = 2, 2000, 900_000
HEAP = "640m"


@pytest.fixture(scope="module")
def sent(records: Records) -> Iterator[dict[int, list[Record]]]:
    """1.8 GB of records on the source, none of which compresses, and what they are, without their bytes."""
    noise, shrunk = os.urandom(BYTES), []

    def make() -> Iterator[Record]:
        for n in range(RECORDS):
            made = Record(noise[n:] + noise[:n], b"%d" % n, (("n", b"%d" % n),), 1_700_000_000_000 + n, n % PARTITIONS)
            shrunk.append(without_bytes(made))
            yield made

    records.create("source", TOPIC, PARTITIONS)
    records.send("source", TOPIC, make(), **{"message.max.bytes": 1_000_000})
    assert digests(records, "source", TOPIC) == by_partition(shrunk)
    yield by_partition(shrunk)
    records.cluster("source").delete_topic(TOPIC)


def without_bytes(record: Record) -> Record:
    """Its value as a digest: we need not hold all of them either."""
    return replace(record, value=hashlib.sha256(record.value or b"").digest())


def digests(records: Records, name: str, topic: str) -> dict[int, list[Record]]:
    cluster = records.cluster(name)
    ends = cluster.log_ends(TopicPartition(topic, number) for number in range(PARTITIONS))
    return {
        at.partition: [without_bytes(as_record(message)) for message in cluster.read_range(at, 0, end)]
        for at, end in ends.items()
    }


@pytest.mark.parametrize(
    ("reader", "start", "before"),
    [
        pytest.param("workers", "earliest", 0, id="Python workers read"),
        pytest.param("spark", "2023-11-14T22:13:21Z", RECORDS // 2, id="Spark reads the second half"),
    ],
)
def test_thousands_of_large_records_pass_in_a_heap_and_in_workers_that_could_not_hold_them(
    make_flow: Callable[..., Flow],
    records: Records,
    sent: dict[int, list[Record]],
    reader: str,
    start: str,
    before: int,
) -> None:
    """More than the heap in each, and more than all Python processes hold together; a batch is of 256 MiB."""
    flow = make_flow([TOPIC], ingest={"reader": reader}, start=start)
    flow.runner["driver_memory"] = HEAP
    peak, code, said = watched(flow.start("--once"), 240)
    assert code == 0, said
    assert f"-Xmx{HEAP}" in peak.heaps
    assert 0 < peak.python_bytes < RECORDS * BYTES
    left = {number: held[before // PARTITIONS :] for number, held in sent.items()}
    assert digests(records, "target", f"source.{TOPIC}") == left
    forget(flow, records)


def forget(flow: Flow, records: Records) -> None:
    """Some GB of disk, and a name that the next reader wants."""
    target = records.cluster("target")
    target.delete_topic(f"source.{TOPIC}")
    wait_until(lambda: not target.describe([f"source.{TOPIC}"]), "the topic to go")
    del records.clients["target"]  # it would look for the leaders of before
    shutil.rmtree(flow.root / "tables")


@dataclass
class Peak:
    """The most that the processes of a command held."""

    python_bytes: int = 0
    """Of all its Python processes together; a page that several share counts once."""
    heaps: frozenset[str] = frozenset()

    def look(self, pids: set[int]) -> None:
        commands = {pid: words for pid in pids if (words := command_line(pid))}
        java = {pid for pid, words in commands.items() if words[0].endswith("java")}
        self.python_bytes = max(self.python_bytes, sum(memory_bytes(pid) for pid in commands.keys() - java))
        self.heaps |= {word for pid in java for word in commands[pid] if word.startswith("-Xmx")}


def watched(command: Command, timeout_seconds: float) -> tuple[Peak, int, str]:
    """Wait for a command, and see what it holds meanwhile."""
    peak, deadline = Peak(), time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        try:
            command.process.wait(0.3)
            break
        except subprocess.TimeoutExpired:
            peak.look(tree([command.pid]))
    return peak, *finish(command, 1)


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def memory_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
