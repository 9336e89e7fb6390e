"""Promise E: two runners of one flow cannot both write."""

from __future__ import annotations

import signal
from collections.abc import Callable

from harness import Flow, Records, finish, wait_until


def test_a_second_runner_is_refused_with_a_clear_message(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(10))
    flow = make_flow([topic])
    first = flow.start()
    try:
        wait_until(lambda: records.arrived("target", f"source.{topic}", 10), "the first runner", 120)
        code, said = finish(flow.start("--once"))
        assert code == 5, said
        assert f"process {first.pid}" in said
        assert "Traceback" not in said
    finally:
        first.send_signal(signal.SIGTERM)
        assert finish(first)[0] == 0
