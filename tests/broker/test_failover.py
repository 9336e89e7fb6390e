"""Promise G, and the lab's scenario: consumers stop here, start there, and go on at the next record; then home again.

One data set, with transactions and gaps in between, relayed once; twenty groups that die at random places.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from harness import Records, example, wait_until
from pyspark.sql import SparkSession
from test_groups import commit, committed
from typer.testing import CliRunner

from mirrorlake import jars
from mirrorlake.cli import app
from mirrorlake.config import load, with_root
from mirrorlake.kafka import QUIET
from mirrorlake.lab import Lab
from mirrorlake.records import TopicPartition
from mirrorlake.runner import Run
from mirrorlake.tables import FolderTables

TOPIC = "failover"
PARTITIONS = 2
GROUPS = [f"drill-{number}" for number in range(20)]
Read = tuple[int, bytes | None]


@dataclass
class Drill:
    """`conf/active-passive.yml`: a flow in each direction, the same topic name on both, as applications want it."""

    path: Path
    lab: Lab
    spark: SparkSession
    records: Records
    read: dict[str, list[Read]] = field(default_factory=dict)
    """Group -> (partition, value) of what its consumers processed, in order, on either side."""
    trace: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def root(self) -> Path:
        return self.path.parent / "state"

    def run(self, *flows: str) -> None:
        Run(with_root(load(self.path), self.root).select(flows), once=True, spark=self.spark)()

    def command(self, *arguments: str) -> Any:
        return CliRunner().invoke(
            app, [*arguments, "-c", str(self.path), "--root", str(self.root)], catch_exceptions=True
        )

    def consume(self, cluster: str, group: str, count: int | None) -> None:
        """A member of the group that processes so many records (all: None), commits, and dies."""
        settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
                    "enable.partition.eof": True, "isolation.level": "read_committed", **QUIET}  # fmt: skip
        consumer = Consumer({**self.lab.cluster(cluster).client_config(), **settings})
        consumer.subscribe([TOPIC])
        done, ended, ends = 0, set[int](), self._ends(cluster)
        while len(ended) < PARTITIONS and (count is None or done < count):
            message = consumer.poll(20)
            assert message is not None, f"{group} heard nothing on {cluster}; {self.trace[group]}"
            self.trace[group].append(f"{cluster}[{message.partition()}] {message.offset()} {message.error() or ''}")
            if message.error() is not None:
                # An end of a log that grew since is none; other events are news, such as a broker that was slow.
                end = (
                    message.error().code() == KafkaError._PARTITION_EOF
                    and message.offset() >= ends[message.partition()]
                )
                ended |= {message.partition()} if end else set()
                continue
            self.read.setdefault(group, []).append((message.partition(), message.value()))
            consumer.commit(message, asynchronous=False)
            done += 1
        consumer.close()

    def _ends(self, cluster: str) -> dict[int, int]:
        places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return {at.partition: end for at, end in self.records.cluster(cluster).log_ends(places).items()}

    def consume_all(self, cluster: str, counts: dict[str, int | None]) -> None:
        with ThreadPoolExecutor(5) as pool:
            list(pool.map(lambda group: self.consume(cluster, group, counts[group]), counts))

    def whole(self, cluster: str) -> list[Read]:
        """All committed records of the topic."""
        found = self.records.read(cluster, TOPIC)
        return [(number, record.value) for number, held in found.items() for record in held]


def produce(records: Records, cluster: str, name: str, sizes: list[int], aborts: set[int]) -> None:
    producer = Producer({**records.lab.cluster(cluster).client_config(), "transactional.id": name, **QUIET})
    producer.init_transactions(30)
    for number, size in enumerate(sizes):
        producer.begin_transaction()
        for n in range(size):
            producer.produce(TOPIC, f"{name}-{number}-{n}", f"key-{n}", n % PARTITIONS, timestamp=1_700_000_000_000)
        producer.flush()
        producer.abort_transaction(30) if number in aborts else producer.commit_transaction(30)


def compacted(records: Records) -> bool:
    at = TopicPartition(TOPIC, 0)
    offsets = [message.offset() for message in records.cluster("source").read_range(at, 0, 60, committed=True)]
    return len(offsets) < 40


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory, lab: Lab, spark: SparkSession, records: Records) -> Drill:
    compact = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.001"}
    path = example(tmp_path_factory.mktemp("failover"), lab, "active-passive.yml", TOPIC)
    made = Drill(path, lab, spark, records)
    records.cluster("source").create_topic(TOPIC, PARTITIONS, 1, {**compact, "max.compaction.lag.ms": "1000"})
    records.cluster("target").create_topic(TOPIC, PARTITIONS, 1, {})
    wait_until(lambda: records.arrived("source", TOPIC, 0) and records.arrived("target", TOPIC, 0), "leaders")
    # The same few keys again and again: of the first ones compaction leaves little.
    produce(records, "source", "eu", [20] * 8 + [60, 31, 40, 17], aborts={9})
    wait_until(lambda: compacted(records), "compaction", 60)
    return made


def fix_offsets(records: Records) -> None:
    """No more compaction while we compare: what is read must stay."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])
    records.cluster("source").admin.incremental_alter_configs([resource])[resource].result()


def test_twenty_groups_fail_over_and_home_again_and_each_record_is_read_once(drill: Drill) -> None:
    fix_offsets(drill.records)
    everything = drill.whole("source")
    chance = random.Random(7)  # noqa: S311
    deaths = {group: chance.randrange(1, len(everything)) for group in GROUPS}
    drill.consume_all("source", deaths)
    drill.run("out")
    refuse_nothing(drill.command("groups", "--flow", "out", "--json"), "stands there already")
    # There: strictly the next records, to the end; then some that are written there during the outage.
    drill.consume_all("target", dict.fromkeys(GROUPS))
    for group in GROUPS:
        assert_read_once(drill.read[group], everything)
    produce(drill.records, "target", "us", [40], set())
    drill.consume_all("target", {group: chance.randrange(1, 40) for group in GROUPS})
    # Home again: what was written there flows back, and no copy of a copy.
    drill.run("home")
    drill.run("out")
    everything = drill.whole("source")
    assert sorted(everything) == sorted(drill.whole("target"))
    moved = drill.command("failover", "--target", "us", "--flow", "out", "--back", "--apply", "--json")
    assert moved.exit_code == 0, moved.output
    drill.consume_all("source", dict.fromkeys(GROUPS))
    for group in GROUPS:
        lines = [line for line in json.loads(moved.stdout)[0]["groups"] if line["group"] == group]
        assert_read_once(drill.read[group], everything, f"{lines} {drill.trace[group]}")
    the_real_client_agrees(drill)


def refuse_nothing(result: Any, reason: str) -> None:
    assert result.exit_code == 0, result.output
    lines = [line for line in json.loads(result.stdout) if line["group"] in GROUPS]
    assert {line["group"] for line in lines} == set(GROUPS)
    assert {line["reason"] for line in lines} == {reason}


def assert_read_once(read: list[Read], everything: list[Read], said: str = "") -> None:
    """0 repeated, 0 skipped, in order."""
    for number in range(PARTITIONS):
        assert [r for r in read if r[0] == number] == [r for r in everything if r[0] == number], said


def the_real_client_agrees(drill: Drill) -> None:
    """MM2's own RemoteClusterUtils, asked of our target."""
    program = Path(__file__).parent / "java" / "RemoteClusters.java"
    classes = jars.class_path(jars.resolve(jars.MM2, lambda _: None))
    servers = drill.lab.cluster("target").bootstrap_servers
    command = [str(jars.java()), "-XX:TieredStopAtLevel=1", "-cp", classes, str(program), servers, "eu", GROUPS[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    rows = FolderTables(drill.root).read("ops.group_checkpoints", group_id=GROUPS[0], flow="out").to_pylist()
    newest = {row["partition"]: row["target_offset"] for row in sorted(rows, key=lambda row: row["at"])}
    assert answers["offsets"] == "{" + ", ".join(f"{TOPIC}-{n}={offset}" for n, offset in sorted(newest.items())) + "}"
    assert answers["hops"] == "1"
    assert answers["upstream"] == "[eu]"
    assert "eu.heartbeats" in answers["heartbeats"]
    assert "eu.checkpoints.internal" in answers["checkpoints"]


def test_active_active_a_group_that_reads_both_sides_stands_in_both(
    tmp_path: Path, lab: Lab, spark: SparkSession, records: Records, topic: str
) -> None:
    """`conf/active-active.yml`: what began there is read from its original there, what began here from its copy."""
    config = with_root(load(example(tmp_path, lab, "active-active.yml", topic)), tmp_path / "state")
    for cluster in ("source", "target"):
        records.create(cluster, topic)
        records.send(cluster, topic, records.numbered(10))
    Run(config, once=True, spark=spark)()
    group, (own, copy) = f"{topic}.shop", (topic, f"us.{topic}")
    commit(records, "source", group, own, 7)
    commit(records, "source", group, copy, 4)
    Run(config, once=True, spark=spark)()
    found = {at.topic: held.offset for at, held in committed(records, "target", group).items()}
    assert found == {f"eu.{topic}": 7, topic: 4}
