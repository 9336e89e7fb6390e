"""Named places where a test lets a process die, stop or fail: in the real code path, at no cost when unset.

`MIRRORLAKE_FAIL=<point>:<nth>:<action>` with the actions `kill` (SIGKILL to this process), `kill-driver` (to the
runner), `stop` (SIGSTOP) and `raise`. The nth hit is counted in each process.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

POINTS = (
    "batch-begun",  # ingest: Spark has written its offset log, nothing is read yet
    "file-written",  # task of ingest: a file is whole, the driver is not told yet
    "bronze-committed",  # ingest: the batch is in bronze, Spark does not know it yet
    "baseline-committed",  # fan-out: the ledger knows where we begin, nothing is sent yet
    "batch-sent",  # task: a batch of a slice is handed to the producer
    "all-sent",  # task: everything is handed over, nothing is known to be acknowledged
    "acknowledged",  # task: everything is acknowledged, the log end is not looked at yet
    "proven",  # task: the runs are known, the driver is not told yet
    "settled",  # driver: the runs are known here, the ledger is not told yet
    "ledger-before-commit",
    "ledger-after-commit",
    "tail-read",  # recovery: the target's tail is matched, nothing of it is written down yet
)


class Failpoint(Exception):
    """Raised on purpose."""


@dataclass
class _Armed:
    point: str
    countdown: int
    action: str


def _arm(text: str) -> _Armed | None:
    if not text:
        return None
    point, nth, action = text.split(":")
    if point not in POINTS:
        raise ValueError(f"MIRRORLAKE_FAIL: there is no point {point}; there are {', '.join(POINTS)}")
    return _Armed(point, int(nth), action)


_armed = _arm(os.environ.get("MIRRORLAKE_FAIL", ""))


def hit(point: str) -> None:
    if _armed is not None and _armed.point == point:
        _armed.countdown -= 1
        if _armed.countdown == 0:
            _act(_armed)


def _act(armed: _Armed) -> None:
    if armed.action == "raise":
        raise Failpoint(f"failpoint {armed.point}")
    victim = int(os.environ["MIRRORLAKE_DRIVER_PID"]) if armed.action == "kill-driver" else os.getpid()
    os.kill(victim, signal.SIGSTOP if armed.action == "stop" else signal.SIGKILL)
