"""Broker processes that outlive the command which started them, and are never mistaken for others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.05

# Processes that this one started must be reaped by it, else they stay as zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Process:
    """A process id together with its start, since ids are used again."""

    pid: int
    started: str

    @classmethod
    def start(cls, command: list[str], output: Path, record: Path) -> Process:
        """Start in a session of its own, which Ctrl-C in the terminal does not reach, and write down who."""
        with output.open("ab") as out:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        _children[child.pid] = child
        process = cls(child.pid, _started(child.pid) or "gone")
        record.write_text(json.dumps({"pid": process.pid, "started": process.started}))
        return process

    @classmethod
    def recorded(cls, record: Path) -> Process | None:
        """The process that a record speaks of, where it still runs."""
        try:
            process = cls(**json.loads(record.read_text()))
        except (FileNotFoundError, ValueError):
            return None
        return process if process.alive() else None

    def alive(self) -> bool:
        if child := _children.get(self.pid):
            child.poll()
        return _started(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        if self.alive():
            os.kill(self.pid, number)


def stop(processes: Iterable[Process], grace_seconds: float) -> None:
    """Ask all to end at once, wait, and end those that do not."""
    pending = list(processes)
    for process in pending:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a paused one would never hear of it
    if not wait_until(lambda: not any(p.alive() for p in pending), grace_seconds):
        kill(pending)


def kill(processes: Iterable[Process]) -> None:
    pending = list(processes)
    for process in pending:
        process.signal(signal.SIGKILL)
    wait_until(lambda: not any(p.alive() for p in pending), timeout_seconds=10)


def wait_until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return holds


def _started(pid: int) -> str | None:
    """When a process started, in whatever words the system has; None where it is gone or a zombie."""
    try:
        # After the command in parentheses, which may hold anything: the state is word 1, the start word 20.
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if words[0] in "ZX" else words[19]
    except FileNotFoundError:
        return None if Path("/proc/self").exists() else _started_by_ps(pid)
    except ProcessLookupError:
        return None


def _started_by_ps(pid: int) -> str | None:
    """The same where there is no /proc (macOS)."""
    said = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = said.stdout.strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None
