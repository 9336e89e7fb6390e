"""A start begins with the classes that an earlier Java kept."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from harness import Flow, Records, finish, wait_until

from mirrorlake.bench.processes import tree
from mirrorlake.world import kept_classes


def test_the_java_of_a_run_maps_the_archive(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(5))
    flow = make_flow([topic])
    assert finish(flow.command("lab", "classes"))[0] == 0
    running = flow.start()
    wait_until(lambda: records.arrived("target", f"source.{topic}", 5), "the records")
    mapped = [pid for pid in tree([running.pid]) if str(kept_classes()) in Path(f"/proc/{pid}/maps").read_text()]
    running.send_signal(signal.SIGTERM)
    assert finish(running)[0] == 0
    assert len(mapped) == 1
