"""Taking over from the real MM2, killed under load: nothing again, nothing missing, what MM2 doubled is listed."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Flow, Record, Records, flat, wait_until
from typer.testing import CliRunner

from mirrorlake import jars
from mirrorlake.cli import app
from mirrorlake.consumers import Consumers
from mirrorlake.lab import Lab, Mm2, mm2_properties
from mirrorlake.records import TopicPartition

SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def numbered(first: int, count: int) -> list[Record]:
    return [
        Record(b"v%d" % n, b"k%d" % n, (("n", b"%d" % n),), 1_700_000_000_000 + n, n % 2)
        for n in range(first, first + count)
    ]


@pytest.fixture
def mm2(lab: Lab, tmp_path: Path, topic: str) -> Mm2:
    clusters = {name: lab.cluster(name) for name in ("source", "target")}
    settings = {
        "plugin.discovery": "service_load", "topics": topic, "offset.flush.interval.ms": "2000",
        "source->target.sync.topic.acls.enabled": "false", "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
    }  # fmt: skip
    properties = mm2_properties(clusters, [("source", "target")], settings)
    return Mm2(jars.resolve(jars.MM2, print), properties, tmp_path / "mm2", jvm=SMALL_JVM)


def killed_under_load(mm2: Mm2, records: Records, topic: str, first: int, until: int, noted: bool) -> None:
    """Records keep coming; MM2 dies once so many have arrived, and where asked for once it has noted some."""
    stop = threading.Event()

    def load() -> None:
        batches = iter(range(first, first + 200_000, 200))
        while not stop.is_set():
            records.send("source", topic, numbered(next(batches), 200))
            stop.wait(0.1)

    mm2.start()
    loading = threading.Thread(target=load)
    loading.start()
    try:
        wait_until(lambda: records.arrived("target", f"source.{topic}", until), "MM2 at work", 120)
        if noted:
            wait_until(lambda: has_noted(records, topic), "MM2's notes", 90)
        mm2.kill()
    finally:
        stop.set()
        loading.join()


def has_noted(records: Records, topic: str) -> bool:
    """Whether MM2 has written down how far it is in this topic; it does so for its heartbeats too."""
    notes = "mm2-offsets.source.internal"
    if not records.arrived("target", notes, 1):
        return False
    return any(topic.encode() in (note.key or b"") for held in records.read("target", notes).values() for note in held)


def test_mm2_killed_under_load_is_taken_over_at_the_next_record(
    make_flow: Callable[..., Flow], records: Records, topic: str, mm2: Mm2
) -> None:
    records.create("source", topic, 2)
    records.send("source", topic, numbered(0, 400))
    killed_under_load(mm2, records, topic, 400, until=3000, noted=False)
    # Started again, it sends what it had not noted once more; and dies again.
    produced, arrived = count_of(records.read("source", topic)), log_size(records, f"source.{topic}")
    killed_under_load(mm2, records, topic, produced, until=arrived + 2000, noted=True)
    groups = Consumers(records.cluster("target"))
    wait_until(lambda: groups.groups().get("source-mm2", "EMPTY") == "EMPTY", "MM2's group to be empty", 90)
    flow = make_flow([topic])
    before, there = records.read("source", topic), flat(records.read("target", f"source.{topic}"))
    assert there, "MM2 copied something"
    left_twice = sum(count - 1 for count in Counter(there).values())
    assert left_twice, "MM2 sent records twice"
    command = ["adopt", "-c", str(flow.write()), "--target", "target", "--json"]
    planned = CliRunner().invoke(app, command)
    assert planned.exit_code == 0, planned.output
    done = CliRunner().invoke(app, [*command, "--apply"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert sum(one["copied"] for one in plan) == len(set(there))
    assert any(one["noted"] for one in plan)
    assert any(one["next_offset"] > (one["noted"] or 0) for one in plan), "MM2's notes are behind its work"
    flow.run_once()
    after = records.read("target", f"source.{topic}")
    assert count_of(after) == sum(len(held) for held in before.values()) + left_twice, "nothing again"
    for number, held in before.items():
        assert first_landings(after[number]) == held, "nothing missing, in order"
    listed = [row for row in flow.rows("ops.incidents") if row["kind"] == "duplicate"]
    assert sum(row["last_offset"] - row["first_offset"] + 1 for row in listed) == left_twice, "each was sent twice"
    assert flow.audit().ok


def log_size(records: Records, topic: str) -> int:
    places = [TopicPartition(topic, number) for number in range(2)]
    return sum(records.cluster("target").log_ends(places).values())


def count_of(by_partition: dict[int, list[Record]]) -> int:
    return sum(len(held) for held in by_partition.values())


def first_landings(held: list[Record]) -> list[Record]:
    return list(dict.fromkeys(held))
