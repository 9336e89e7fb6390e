"""17-19: one writer, whoever stands still or starts beside it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from stage import Command, Stage, Trap, finish, standing, terminate, wait_until, wake

from mirrorlake.lease import read_holder
from rows.common import EQUAL, row


@row("17", "SIGSTOP of a runner, a second starts, SIGCONT", "kill -STOP / -CONT", "the second is refused (5); " + EQUAL)
def stopped_runner(stage: Stage) -> None:
    topic = stage.topic("stopped")
    flow = stage.flow(topic)
    runner = flow.start()
    try:
        stage.caught_up(flow)
        runner.send_signal(signal.SIGSTOP)
        stage.more(topic, 500)
        code, said = finish(flow.start("--once"))
        assert code == 5, f"{code}: {said[-800:]}"
        runner.send_signal(signal.SIGCONT)
        stage.caught_up(flow)
    finally:
        runner.send_signal(signal.SIGCONT)
        code, said = terminate(runner)
    assert code == 0, said[-1500:]
    stage.expect_same(flow)


def _stopped_at(failpoint: str) -> Callable[[Stage], str | None]:
    def run(stage: Stage) -> str:
        flow = stage.begun("standing")
        trap = Trap(flow, failpoint)
        runner = flow.start("--once", environment=trap.environment)
        try:
            wait_until(lambda: standing(runner.pid), "a process that stands still", 120)
            trap.expect_met()
            stopped = standing(runner.pid)
            code, said = finish(flow.start("--once"))
            assert (code, f"process {runner.pid}" in said) == (5, True), f"{code}: {said[-800:]}"
        finally:
            code, said = _finish_awake(runner)
        assert code == 0, said[-1500:]
        stage.expect_same(flow)
        return f"{len(stopped)} processes stood still"

    return run


def _finish_awake(runner: Command) -> tuple[int, str]:
    """Every process that meets the failpoint stops: each is sent on, until the runner has ended."""

    def ended() -> bool:
        wake(standing(runner.pid))
        return runner.process.poll() is not None

    with contextlib.suppress(AssertionError):  # `finish` says what hung
        wait_until(ended, "the runner's end", 120)
    return finish(runner, 5)


for _number, _what, _failpoint in (
    ("17b", "workers stopped in the middle of sending", "batch-sent:1:stop"),
    ("17c", "runner stopped with all sent and the ledger not told", "settled:1:stop"),
):
    row(
        _number, f"{_what}, a second starts, SIGCONT", f"failpoint {_failpoint}", "the second is refused (5); " + EQUAL
    )(_stopped_at(_failpoint))


@row(
    "17d",
    "runner killed while its workers stand still in the middle of sending",
    "failpoint batch-sent:1:stop, SIGKILL to the runner; SIGCONT when a second has begun",
)
def stopped_workers_outlive_their_runner(stage: Stage) -> None:
    flow = stage.begun("orphans")
    trap = Trap(flow, "batch-sent:1:stop")
    runner = flow.start("--once", environment=trap.environment)
    wait_until(lambda: standing(runner.pid), "a process that stands still", 120)
    trap.expect_met()
    stopped = standing(runner.pid)
    os.kill(runner.pid, signal.SIGKILL)
    finish(runner)
    second = flow.start("--once")
    try:
        wait_until(lambda: read_holder(flow.root, flow.name).get("pid") == second.pid, "the second's turn")
        time.sleep(3)
    finally:
        wake(stopped)
        code, said = finish(second)
    assert code == 0, said[-1500:]
    stage.expect_same(flow)


@row("18", "two runners at once on one folder", "both started together", "one ends with 5 before it produces; " + EQUAL)
def two_runners(stage: Stage) -> str:
    flow = stage.begun("two")
    runners = [flow.start("--once"), flow.start("--once")]
    codes = sorted(finish(runner)[0] for runner in runners)
    assert codes == [0, 5], codes
    stage.expect_same(flow)
    versions = sorted(int(path.stem) for path in (flow.root / "tables/ops/ledger/_delta_log").glob("*[0-9].json"))
    assert versions == list(range(len(versions))), "a commit of the ledger was written over or lost"
    return f"exit codes {codes}"
