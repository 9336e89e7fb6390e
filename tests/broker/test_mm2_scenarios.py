"""Consumer groups beside a relay that runs: MM2's own scenarios under their names, all in one run of two flows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer
from harness import Records, flat, wait_until
from pyspark.sql import SparkSession
from test_groups import commit, committed, in_transactions, read_topic
from typer.testing import CliRunner

from mirrorlake.cli import app
from mirrorlake.config import load
from mirrorlake.groups import read_tag
from mirrorlake.kafka import QUIET
from mirrorlake.lease import is_held
from mirrorlake.mm2topics import decode_checkpoint
from mirrorlake.runner import Run
from mirrorlake.tables import FolderTables

PRIMARY, BACKUP = "source", "target"
FAMILIES = ("scene_a", "scene_b")


@dataclass
class Mirror:
    """From `primary` to `backup`: two flows with a family of topics each, and groups in step every second."""

    folder: Path
    records: Records
    spark: SparkSession
    _stopping: threading.Event = field(default_factory=threading.Event)
    _running: Future[None] | None = None

    @property
    def path(self) -> Path:
        return self.folder / "mirror.yml"

    @property
    def root(self) -> Path:
        return self.folder / "state"

    def write(self) -> None:
        groups = {"include": [r"scene\..*"], "sync": True, "sync_seconds": 1}
        target = {"cluster": "backup", "groups": groups}
        flows = {name: {"source": "primary", "patterns": [f"{name}-.*"], "targets": [target]} for name in FAMILIES}
        names = {"primary": PRIMARY, "backup": BACKUP}
        clusters = {alias: self.records.lab.cluster(name).cluster_yaml() for alias, name in names.items()}
        runner = {"refresh_topics_seconds": 1, "ledger_commit_seconds": 0.2}
        content = {"storage": {"root": str(self.root)}, "clusters": clusters, "flows": flows, "runner": runner}
        self.path.write_text(yaml.safe_dump(content))

    def start(self) -> None:
        run = Run(load(self.path), spark=self.spark)
        self._stopping = run.stopping
        self._running = ThreadPoolExecutor(1).submit(run)

    def stop(self) -> None:
        self._stopping.set()
        assert self._running is not None
        self._running.result(60)

    def await_relayed(self, topic: str) -> None:
        """Until the ledger has all records of a topic: on the target they are a moment before that."""
        sent = len(flat(self.records.read(PRIMARY, topic)))

        def known() -> int:
            rows = FolderTables(self.root).read("ops.ledger", source_topic=topic, kind="relay")
            return sum(rows["count"].to_pylist())

        wait_until(lambda: known() == sent, f"{sent} records of {topic} in the ledger")

    def checkpoints(self, group: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            FolderTables(self.root).read("ops.group_checkpoints", group_id=group).sort_by("at").to_pylist()
        )
        return rows


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory, records: Records, spark: SparkSession) -> Iterator[Mirror]:
    made = Mirror(tmp_path_factory.mktemp("mirror"), records, spark)
    for family in FAMILIES:
        records.create(PRIMARY, f"{family}-first")
        records.send(PRIMARY, f"{family}-first", records.numbered(1))
    made.write()
    made.start()
    try:
        for family in FAMILIES:
            copy = f"primary.{family}-first"
            wait_until(lambda copy=copy: records.arrived(BACKUP, copy, 1), copy, 120)  # type: ignore[misc]
        yield made
    finally:
        made.stop()


@pytest.fixture
def group(topic: str) -> str:
    return f"scene.{topic}"


def fill(records: Records, name: str, count: int, partitions: int = 1, empty: int = 0) -> str:
    """A topic that the relay meets while it runs, with some partitions that stay empty; its name."""
    records.create(PRIMARY, name, partitions + empty)
    records.send(PRIMARY, name, records.numbered(count, partitions))
    return name


def consume(records: Records, cluster: str, group: str, topic: str, count: int) -> list[bytes | None]:
    """A member of the group that processes so many records, commits, and goes."""
    settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", **QUIET}
    consumer = Consumer({**records.lab.cluster(cluster).client_config(), **settings})
    consumer.subscribe([topic])
    read = list[bytes | None]()
    while len(read) < count:
        message = consumer.poll(20)
        assert message is not None, f"{group} heard nothing on {cluster} after {len(read)} records"
        assert message.error() is None, message.error()
        read.append(message.value())
        consumer.commit(message, asynchronous=False)
    consumer.close()
    return read


def places(records: Records, cluster: str, group: str, topic: str) -> dict[int, int]:
    return {at.partition: c.offset for at, c in committed(records, cluster, group).items() if at.topic == topic}


def await_sync(records: Records, group: str, topic: str) -> None:
    """Until the group's commits there say that they were translated from those here."""

    def translated() -> dict[int, int]:
        held = committed(records, BACKUP, group)
        tags = {at: tag for at, commit in held.items() if (tag := read_tag(commit.metadata))}
        return {at.partition: tag.source_offset for at, tag in tags.items() if at.topic == f"primary.{topic}"}

    wait_until(lambda: translated() == places(records, PRIMARY, group, topic), f"{group} in step", 30)


def test_each_family_of_topics_has_its_own_table_checkpoint_and_lease(mirror: Mirror) -> None:
    tables = FolderTables(mirror.root)
    for family in FAMILIES:
        held = tables.read(f"bronze.{family}")
        assert all(topic.startswith(family) for topic in held["topic"].to_pylist())
        assert (mirror.root / "checkpoints" / family).is_dir()
        assert is_held(mirror.root, family)


@pytest.mark.parametrize("transactions", [False, True], ids=["plain", "transactions"])
def test_one_way_replication_with_auto_offset_sync(
    mirror: Mirror, records: Records, topic: str, group: str, transactions: bool
) -> None:
    """A consumer dies midway and goes on at the next record there; so it does with a topic that appears later."""
    families = FAMILIES[:1] if transactions else FAMILIES
    for family in families:
        name = fill(records, f"{family}-{topic}", 20, 2)
        if transactions:
            in_transactions(records, name, [3, 4, 2], abort=1)
        mirror.await_relayed(name)
        everything = sorted(record.value or b"" for record in flat(records.read(PRIMARY, name)))
        read = consume(records, PRIMARY, group, name, 13)
        await_sync(records, group, name)
        read += consume(records, BACKUP, group, f"primary.{name}", len(everything) - 13)
        assert sorted(value or b"" for value in read) == everything, "0 repeated, 0 skipped"
    rows = [row for row in mirror.checkpoints(group) if row["target_offset"] is not None]
    assert {(row["flow"], row["source_topic"]) for row in rows} == {(f, f"{f}-{topic}") for f in families}
    assert any(row["decision"].startswith("written") for row in rows)
    for first, second in pairwise(sorted(rows, key=lambda row: (row["source_topic"], row["partition"]))):
        if (first["source_topic"], first["partition"]) == (second["source_topic"], second["partition"]):
            assert first["target_offset"] <= second["target_offset"], "checkpoints never go back"
    assert not [name for name in records.cluster(PRIMARY).topic_names() if name.startswith("backup.")]


def test_one_way_replication_with_frequent_offset_syncs(
    mirror: Mirror, records: Records, topic: str, group: str
) -> None:
    """Whatever a group commits, it stands there exactly."""
    name = fill(records, f"scene_a-{topic}", 20)
    mirror.await_relayed(name)
    for offset in (1, 19):
        commit(records, PRIMARY, group, name, offset)
        await_sync(records, group, name)
        assert places(records, BACKUP, group, f"primary.{name}") == {0: offset}


def test_replication_with_empty_partition(mirror: Mirror, records: Records, topic: str, group: str) -> None:
    name = fill(records, f"scene_a-{topic}", 20, 2, empty=1)
    commit(records, PRIMARY, group, name, 10, 4, 0)
    wait_until(lambda: places(records, BACKUP, group, f"primary.{name}") == {0: 10, 1: 4, 2: 0}, "all partitions")
    drill = ["failover", "-c", str(mirror.path), "--target", "backup", "--flow", "scene_a", "--group", group]
    result = CliRunner().invoke(app, drill)
    assert result.exit_code == 0, result.output


def test_replication_without_offset_sync_will_not_create_offset_syncs_topic(
    mirror: Mirror, records: Records, topic: str, group: str
) -> None:
    name = fill(records, f"scene_a-{topic}", 5)
    mirror.await_relayed(name)
    commit(records, PRIMARY, group, name, 3)
    await_sync(records, group, name)
    assert "primary.checkpoints.internal" in records.cluster(BACKUP).topic_names()
    syncs = {f"mm2-offset-syncs.{alias}.internal" for alias in ("primary", "backup")}
    for cluster in (PRIMARY, BACKUP):
        assert not syncs & set(records.cluster(cluster).topic_names())


def test_offset_translation_behind_replication_flow(mirror: Mirror, records: Records, topic: str, group: str) -> None:
    """Far behind the end it is exact too. A checkpoint goes back with its group; what is committed there does not."""
    name = fill(records, f"scene_b-{topic}", 1000)
    mirror.await_relayed(name)
    commit(records, PRIMARY, group, name, 900)
    await_sync(records, group, name)
    commit(records, PRIMARY, group, name, 100)
    wait_until(
        lambda: [one["source_offset"] for one in mirror.checkpoints(group)][-1:] == [100], "the checkpoint to go back"
    )
    last = mirror.checkpoints(group)[-1]
    assert last["decision"] == "keep: the group went back from 900 to 100; groups.rewind is off"
    assert last["target_offset"] == 100
    assert places(records, BACKUP, group, f"primary.{name}") == {0: 900}

    def in_mm2s_topic() -> list[int]:
        found = [decode_checkpoint(m.key(), m.value()) for m in read_topic(records, "primary.checkpoints.internal")]
        return [checkpoint.target_offset for checkpoint in found if checkpoint.group == group]

    wait_until(lambda: in_mm2s_topic()[-1] == 100, "MM2's checkpoint")
    assert in_mm2s_topic()[0] == 900


def test_restart_replication(mirror: Mirror, records: Records, topic: str, group: str) -> None:
    name = fill(records, f"scene_a-{topic}", 10)
    mirror.await_relayed(name)
    commit(records, PRIMARY, group, name, 7)
    await_sync(records, group, name)
    mirror.stop()
    records.send(PRIMARY, name, records.numbered(10, first=10))
    commit(records, PRIMARY, group, name, 18)
    mirror.start()
    wait_until(lambda: places(records, BACKUP, group, f"primary.{name}") == {0: 18}, "the group in step")
    offsets = [row["target_offset"] for row in mirror.checkpoints(group)]
    assert offsets == sorted(offsets), "checkpoints never go back"
