"""What a tree of processes uses, as Linux counts it in /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mirrorlake.errors import UsageFault

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Since the processes started; what children that ended had used is in their parents' figures."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    """Proportional: a page that several share counts once."""
    written_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.cpu_seconds + other.cpu_seconds,
            self.memory_bytes + other.memory_bytes,
            self.written_bytes + other.written_bytes,
        )


def require_proc() -> None:
    if not (PROC / "self" / "smaps_rollup").exists():
        raise UsageFault("the benchmark reads CPU and memory from /proc, which is not here", "run it on Linux")


def usage_of(roots: Iterable[int]) -> Usage:
    """All processes below `roots`, themselves included. Memory is dear to ask for: the kernel walks every page."""
    return sum((_usage(pid) for pid in tree(roots)), Usage())


def cpu_seconds_of(roots: Iterable[int]) -> float:
    return sum(_cpu_seconds(pid) for pid in tree(roots))


def tree(roots: Iterable[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid in (int(path.name) for path in PROC.glob("[0-9]*")):
        if (stat := _stat(pid)) is not None:
            children.setdefault(int(stat[1]), []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str] | None:
    """The words after the command, which may hold anything: state, parent, … ; None where the process is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _usage(pid: int) -> Usage:
    memory_bytes = _field(pid, "smaps_rollup", "Pss:") << 10
    return Usage(_cpu_seconds(pid), memory_bytes, _field(pid, "io", "write_bytes:"))


def _cpu_seconds(pid: int) -> float:
    """Words 11 to 14: own time in user and kernel mode, then that of children that ended."""
    stat = _stat(pid)
    return sum(int(word) for word in stat[11:15]) / TICKS_PER_SECOND if stat else 0.0


def _field(pid: int, file: str, name: str) -> int:
    try:
        text = (PROC / str(pid) / file).read_text()
    except (OSError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name)), 0)
