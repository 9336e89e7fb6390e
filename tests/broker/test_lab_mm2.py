"""The real MirrorMaker 2 in the lab: it relays, it stops, it says why it cannot start, and it leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Record, Records, flat, wait_until

from mirrorlake import jars
from mirrorlake.errors import Unreachable
from mirrorlake.lab import Lab, Mm2, mm2_properties

SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FAST = {"plugin.discovery": "service_load"}  # else it looks into every class of every jar


@pytest.fixture(scope="module")
def mm2_jars() -> tuple[Path, ...]:
    return jars.resolve(jars.MM2, print)


def test_mm2_relays_a_topic_and_goes(
    lab: Lab, records: Records, topic: str, tmp_path: Path, mm2_jars: tuple[Path, ...]
) -> None:
    sent = [Record(b"v%d" % n, headers=(("n", b"%d" % n),)) for n in range(100)]
    records.create("source", topic)
    records.send("source", topic, sent)
    clusters = {name: lab.cluster(name) for name in ("source", "target")}
    settings = {**FAST, "topics": topic, "source->target.sync.topic.acls.enabled": "false"}
    properties = mm2_properties(clusters, [("source", "target")], settings)
    with Mm2(mm2_jars, properties, tmp_path / "mm2", jvm=SMALL_JVM) as mm2:
        process = mm2.process
        wait_until(lambda: records.arrived("target", f"source.{topic}", len(sent)), "all records at the target")
    assert process is not None
    assert not process.alive()
    assert "Kafka MirrorMaker stopped" in mm2.log
    assert flat(records.read("target", f"source.{topic}")) == sent


def test_mm2_that_cannot_start_says_why(tmp_path: Path, mm2_jars: tuple[Path, ...]) -> None:
    with (
        pytest.raises(Unreachable, match=r"died at start(?s:.*)bootstrap.servers"),
        Mm2(mm2_jars, {**FAST, "clusters": "a, b", "a->b.enabled": "true"}, tmp_path, jvm=SMALL_JVM),
    ):
        pass
