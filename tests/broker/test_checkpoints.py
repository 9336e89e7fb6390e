"""The checkpoint of a fan-out says when to look, and nothing else: one that is damaged or lost is begun anew."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Flow, Records, by_partition, wait_until

from mirrorlake.control import read_status
from mirrorlake.runner import Run

Damage = Callable[[Path], None]


def cut(*names: str) -> Damage:
    """Leave nothing of these files, nor of those in these folders."""

    def act(checkpoint: Path) -> None:
        found = [path for name in names for path in [checkpoint / name, *(checkpoint / name).glob("*")]]
        files = [path for path in found if path.is_file()]
        assert files, sorted(checkpoint.rglob("*"))
        for path in files:
            path.write_bytes(b"")

    return act


def remove(*names: str) -> Damage:
    def act(checkpoint: Path) -> None:
        for name in names:
            shutil.rmtree((checkpoint / name).resolve())

    return act


@contextlib.contextmanager
def running(flow: Flow) -> Iterator[None]:
    """It must end without a fault when asked to."""
    run, faults = Run(flow.config(), spark=flow.spark), list[Exception]()

    def work() -> None:
        try:
            run()
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        run.stopping.set()
        thread.join()
    assert not faults, faults


def streams(flow: Flow) -> Path:
    (folder,) = (flow.root / "checkpoints" / flow.name).glob("fanout.*.target")
    return folder


def committed(flow: Flow) -> set[str]:
    """Generations of the fan-out's checkpoint with a batch that ended, by their files that hold something."""
    return {path.parents[1].name for path in streams(flow).glob("g*/commits/[0-9]*") if path.stat().st_size}


@pytest.mark.parametrize(
    ("damage", "generation"),
    [
        (cut("offsets"), "g1"),
        (cut("commits"), "g1"),
        (cut("metadata"), "g1"),
        (cut("offsets", "commits", "metadata"), "g1"),
        (cut("../g0.json"), "g1"),
        (remove("offsets"), ""),
        (remove("."), "g0"),
        (remove(".."), "g0"),
    ],
    ids=[
        "offsets cut",
        "commits cut",
        "metadata cut",
        "all cut",
        "mark cut",
        "offsets lost",
        "all lost",
        "stream lost",
    ],
)
def test_a_damaged_or_lost_checkpoint_of_the_fan_out_is_begun_anew(
    make_flow: Callable[..., Flow], records: Records, topic: str, damage: Damage, generation: str
) -> None:
    sent = records.numbered(40, partitions=2)
    records.create("source", topic, partitions=2)
    flow, name = make_flow([topic], fanout={"trigger_seconds": 1}, heartbeats={"enabled": False}), f"source.{topic}"
    records.send("source", topic, sent[:10])
    with running(flow):
        wait_until(lambda: records.arrived("target", name, 10), "the first records", 120)
        wait_until(lambda: committed(flow) == {"g0"}, "the query over the table", 60)
    damage(streams(flow) / "g0")
    records.send("source", topic, sent[10:20])
    with running(flow):
        wait_until(lambda: records.arrived("target", name, 20), "what came meanwhile", 60)
        wait_until(lambda: committed(flow) >= {generation} - {""}, "a query over the table", 60)
        records.send("source", topic, sent[20:])
        wait_until(lambda: records.arrived("target", name, 40), "what comes now", 60)
        (shown,) = read_status(flow.root, flow.name)["targets"]
        assert "stopped" not in shown["waiting"]
    assert records.read("target", name) == by_partition(sent)
