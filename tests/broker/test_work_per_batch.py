"""A guard against collapse: ten times the records make the same number of commits, jobs and calls. Counts, no clock."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from harness import Flow, Records
from pyspark.sql import SparkSession

from mirrorlake.kafka import Cluster
from mirrorlake.lab import Lab

FEW, MANY, PARTITIONS = 1_000, 10_000, 4
RECORDS_PER_BATCH = 20  # far below what was seen; a producer that waits for each record has 1


@dataclass
class Work:
    """What has been done so far, by everybody in this process."""

    commits: dict[str, int]
    jobs: int
    shuffled_records: int
    kafka_calls: int

    def since(self, before: Work) -> Work:
        commits = {table: count - before.commits.get(table, 0) for table, count in self.commits.items()}
        return Work(
            commits,
            self.jobs - before.jobs,
            self.shuffled_records - before.shuffled_records,
            self.kafka_calls - before.kafka_calls,
        )


class Counter:
    """Counts the calls that the driver makes to clusters, and asks Spark and Delta for the rest."""

    def __init__(self, spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._spark, self._root, self._calls = spark, root, 0
        asked = Cluster._ask

        def counted(cluster: Cluster, what: str, call: Callable[[], Any]) -> Any:
            self._calls += 1
            return asked(cluster, what, call)

        monkeypatch.setattr(Cluster, "_ask", counted)

    def __call__(self) -> Work:
        store = self._spark.sparkContext._jsc.sc().statusStore()
        tables = [log.parent for log in self._root.glob("tables/*/*/_delta_log")]
        commits = {table.name: DeltaTable(str(table)).version() + 1 for table in tables}
        return Work(commits, store.jobsList(None).size(), self._shuffled(store), self._calls)

    def _shuffled(self, store: Any) -> int:
        gateway = self._spark.sparkContext._gateway
        none, empty = gateway.new_array(gateway.jvm.double, 0), gateway.jvm.java.util.ArrayList()
        stages = store.stageList(None, False, False, none, empty)
        return sum(stages.apply(number).shuffleWriteRecords() for number in range(stages.size()))


def test_ten_times_the_records_make_no_more_commits_jobs_and_calls(
    make_flow: Callable[..., Flow],
    records: Records,
    topic: str,
    spark: SparkSession,
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records.create("source", topic, PARTITIONS)
    flow = make_flow([topic])
    count = Counter(spark, flow.root, monkeypatch)
    flow.write()
    done, sent = [], 0
    # The first run makes tables and topics, and a restart looks for losses: two restarts are compared.
    for more in (FEW, FEW, MANY):
        records.send("source", topic, records.numbered(more, PARTITIONS, first=sent))
        flow.run_once()
        sent += more
        done.append(count())
    few, many = done[1].since(done[0]), done[2].since(done[1])
    assert records.arrived("target", f"source.{topic}", sent)
    assert many.jobs <= few.jobs
    assert many.kafka_calls <= few.kafka_calls * 1.5  # some calls repeat with time, none with records
    assert many.commits == few.commits
    assert sum(many.commits.values()) <= 6
    # Delta shuffles its own log's few actions; records never.
    assert many.shuffled_records < MANY / 10
    batches = sum(batches_in(log) for log in target_logs(lab, f"source.{topic}"))
    assert batches * RECORDS_PER_BATCH <= sent


def target_logs(lab: Lab, topic: str) -> list[Path]:
    return sorted(lab.cluster("target").folder.glob(f"broker-*/data/{topic}-[0-9]*/*.log"))


def batches_in(log: Path) -> int:
    """Kafka's log is batches, one after the other: offset (8 bytes), length of the rest (4 bytes), the rest."""
    data, at, count = log.read_bytes(), 0, 0
    while at + 12 <= len(data):
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
        count += 1
    return count
