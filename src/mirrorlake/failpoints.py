"""Named places where a test lets a process die, stop or fail: in the real code path, at no cost when unset.

`MIRRORLAKE_FAIL=<point>:<nth>:<action>` with the actions `kill` (SIGKILL to this process), `kill-driver` (to the
runner), `stop` (SIGSTOP) and `raise`. The nth hit is counted in each process. With `MIRRORLAKE_FAIL_MARK=<path>` a
process that acts first leaves its id there: without that file nothing happened, and a test that passed proved nothing.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

EVERY_RUN = (
    "batch-begun",  # ingest: Spark has written its offset log, nothing is read yet
    "topics-known",  # ingest: the topics of a batch are those that we know, nothing of it is read yet
    "row-group-written",  # task of ingest: a file has begun
    "file-written",  # task of ingest: a file is whole, the driver is not told yet
    "files-fetched",  # ingest: all files of a batch are whole, none of them is in the table
    "bronze-committed",  # ingest: the batch is in bronze, Spark does not know it yet
    "first-acknowledged",  # task: a partition has its first record, those behind it are not handed over yet
    "batch-sent",  # task: a batch of a slice is handed to the producer
    "all-sent",  # task: everything is handed over, nothing is known to be acknowledged
    "acknowledged",  # task: everything is acknowledged, the log end is not looked at yet
    "proven",  # task: the runs are known, the driver is not told yet
    "settled",  # driver: the runs are known here, the ledger is not told yet
    "ledger-before-commit",
    "ledger-after-commit",
)
"""Passed by every run that finds records: those that follow need a beginning, a loss or a fault."""
POINTS = (
    *EVERY_RUN,
    "topic-ids-noted",  # ingest: the ids are beside the checkpoint, nothing is read or begun with them yet
    "epochs-noted",  # ingest: leader epochs are beside the checkpoint, the batch is not in bronze yet
    "generation-claimed",  # ingest: the checkpoint after a loss is marked as ours, nothing of it is begun
    "incident-written",  # an incident is in its table; neither ledger nor checkpoint know of it
    "baseline-committed",  # fan-out: the ledger knows where we begin, nothing is sent yet
    "record-refused",  # fan-out: some record of a slice was refused, it is not known yet which
    "dead-letters-written",  # fan-out: they are in their table, the ledger is not told yet
    "tail-read",  # recovery: the target's tail is matched, nothing of it is written down yet
    "tail-noted",  # recovery: the ledger is told of the tail, and may not have written it down yet
    "ledger-rewritten",  # ledger: the file with joined rows is whole, the table still has the files of before
    "hole-noted",  # repair: the ledger knows that records are missing, they are not sent yet
    "repair-sent",  # repair: records are there, the ledger is not told yet
)
ACTIONS = ("kill", "kill-driver", "stop", "raise")


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
    if action not in ACTIONS:
        raise ValueError(f"MIRRORLAKE_FAIL: there is no action {action}; there are {', '.join(ACTIONS)}")
    return _Armed(point, int(nth), action)


_armed = _arm(os.environ.get("MIRRORLAKE_FAIL", ""))


def hit(point: str) -> None:
    if _armed is not None and _armed.point == point:
        _armed.countdown -= 1
        if _armed.countdown == 0:
            _act(_armed)


def _act(armed: _Armed) -> None:
    _leave_mark()
    if armed.action == "raise":
        raise Failpoint(f"failpoint {armed.point}")
    victim = int(os.environ["MIRRORLAKE_DRIVER_PID"]) if armed.action == "kill-driver" else os.getpid()
    os.kill(victim, signal.SIGSTOP if armed.action == "stop" else signal.SIGKILL)


def _leave_mark() -> None:
    if path := os.environ.get("MIRRORLAKE_FAIL_MARK"):
        with open(path, "a") as mark:
            mark.write(f"{os.getpid()}\n")
