"""The benchmark's own way of running a contender, in small: launched, watched, checked, and cleaned up after."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlake.bench import contenders
from mirrorlake.bench import stage as stages
from mirrorlake.bench.measure import Runs
from mirrorlake.bench.records import check_copy, load
from mirrorlake.bench.scenarios import MM2_TUNED, Scenario
from mirrorlake.errors import TargetDiverged

RECORDS = 2_000
SCENARIO = Scenario("small", records=RECORDS, record_bytes=200, partitions=2)


def test_mm2_is_launched_measured_checked_and_forgotten(
    tmp_path: Path, small_brokers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "MM2_JVM", ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"))  # starts faster
    with stages.set_up(tmp_path, [SCENARIO]) as stage:
        runs = Runs(stage)
        runs.prepare(SCENARIO)
        figures = runs.measure(SCENARIO, MM2_TUNED)
        assert figures["compared"] >= RECORDS
        assert figures["source_bytes_per_record"] > 100
        assert 0 < figures["first_record_seconds"] <= figures["seconds"]
        assert min(figures["cpu_seconds_per_million"], figures["peak_memory_mib"]) > 0
        assert not [topic for topic in stage.client("dst1").topic_names() if topic.startswith("r1.")]
        a_copy_that_differs_is_found(stage)
        pids = stage.broker_pids()
    assert not [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and _is_java(pid)]


def a_copy_that_differs_is_found(stage: stages.Stage) -> None:
    """Other records at the same offsets, then too few."""
    source, target = stage.client("src"), stage.client("dst1")
    target.create_topic("other", 2, 1, {})
    load(stage.clusters["dst1"].inside(), "other", 2, RECORDS - 2, SCENARIO.record_bytes)
    with pytest.raises(TargetDiverged, match="ends at"):
        check_copy(source, SCENARIO.topic, target, "other", 2)
    load(stage.clusters["dst1"].inside(), "other", 2, 2, SCENARIO.record_bytes)
    with pytest.raises(TargetDiverged, match="differs from the source"):
        check_copy(source, SCENARIO.topic, target, "other", 2)


def _is_java(pid: int) -> bool:
    return b"kafka.Kafka" in Path(f"/proc/{pid}/cmdline").read_bytes()
