"""One writer for a flow.

On one machine the operating system's locks are the fence: they are given up by the kernel at the instant the
holder dies, and a folder gives Delta none. The runner holds `leases/<flow>.lock`; every process that produces
holds a shared lock on `locks/<flow>@<target>.lock`, so that a new runner outlives the rest of a killed one.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from mirrorlake.errors import DataAtRisk, LeaseHeld, StateMismatch, StorageUnreachable
from mirrorlake.records import LEASES
from mirrorlake.tables import Tables


@dataclass(frozen=True)
class Lease:
    """The right to write a flow; `epoch` grows with every holder and goes into ledger and headers."""

    flow: str
    epoch: int


def _lock_path(root: Path, flow: str) -> Path:
    return root / "leases" / f"{flow}.lock"


def producer_lock_path(root: Path, flow: str, target: str, table: str) -> Path:
    """The lock of all who send a bronze table to a target."""
    return root / "locks" / f"{flow}@{target}@{table}.lock"


def producer_locks(root: Path, flow: str, target: str) -> list[Path]:
    """The locks of all tables that a flow has ever sent to a target."""
    return sorted((root / "locks").glob(f"{glob.escape(flow)}@{glob.escape(target)}@*.lock"))


def _open(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")
    except OSError as error:
        raise StorageUnreachable(
            f"{path} cannot be written: {error.strerror}", "choose another --root, or mend its permissions"
        ) from error


def _try_lock(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Whoever asks `is_held` has the lock for an instant: a runner that starts then is not refused.
_LOOK_SECONDS = 0.5


def _lock_within(file: IO[str], how: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _try_lock(file, how):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def hold(root: Path, flow: str) -> Iterator[Lease]:
    """Hold the flow, or say who does."""
    with _open(_lock_path(root, flow)) as file:
        if not _lock_within(file, fcntl.LOCK_EX, _LOOK_SECONDS):
            raise _held(root, flow)
        yield _new_epoch(_lock_path(root, flow).with_suffix(".json"), flow)


def _held(root: Path, flow: str) -> LeaseHeld:
    holder = read_holder(root, flow)
    return LeaseHeld(
        f"flow {flow} is run by another runner: {_describe(holder)}",
        "stop that one first (SIGTERM), or run other flows with --flow; `mirrorlake status` shows what runs",
    )


def _describe(holder: dict[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    return f"process {holder.get('pid')} on {holder.get('host')}, since {since}, epoch {holder.get('epoch')}"


def _new_epoch(path: Path, flow: str) -> Lease:
    epoch = _read_json(path).get("epoch", 0) + 1
    holder = {"epoch": epoch, "pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    replaced = path.with_suffix(".tmp")
    with replaced.open("w") as file:
        file.write(json.dumps(holder))
        file.flush()
        os.fsync(file.fileno())
    replaced.replace(path)
    return Lease(flow, epoch)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise StateMismatch(
            f"{path} is damaged: it should hold the flow's epoch",
            'write {"epoch": N} into it, with N at least the largest epoch in the ledger',
        ) from None
    return found


def read_holder(root: Path, flow: str) -> dict[str, Any]:
    """Who held the flow last; see `is_held` for whether it still does."""
    return _read_json(_lock_path(root, flow).with_suffix(".json"))


def is_held(root: Path, flow: str) -> bool:
    path = _lock_path(root, flow)
    if not path.exists():
        return False
    with _open(path) as file:
        return not _try_lock(file, fcntl.LOCK_SH)


def await_no_producers(path: Path, timeout_seconds: float) -> None:
    """Wait until no process of an earlier runner can still produce."""
    with _open(path) as file:
        if not _lock_within(file, fcntl.LOCK_EX, timeout_seconds):
            raise DataAtRisk(
                f"a process of an earlier runner still holds {path} after {timeout_seconds:.0f} s",
                f"find it with `fuser {path}` and stop it: it may still be sending records",
            )


@contextlib.contextmanager
def producing(path: Path, flow: str = "", epoch: int = 0) -> Iterator[None]:
    """Around all sending of a process: a shared lock, from before the first record to after the last acknowledgement.

    With an epoch: a process that the remains of an older runner start late is refused. A new runner writes
    its epoch before it waits for this lock, so either it sees the lock or the process sees the epoch.
    """
    with _open(path) as file:
        # A recovery of our own takes the lock for an instant; another runner keeps it.
        if not _lock_within(file, fcntl.LOCK_SH, 1.0):
            raise DataAtRisk(f"{path} is held: another runner is recovering this target", "stop one of the two")
        newest = read_holder(path.parent.parent, flow).get("epoch", epoch) if epoch else epoch
        if newest > epoch:
            raise LeaseHeld(f"flow {flow}: epoch {epoch} is over, epoch {newest} runs", "this runner must end")
        yield


@contextlib.contextmanager
def exclusive(path: Path, timeout_seconds: float = 60) -> Iterator[None]:
    """A short critical section between processes of one machine."""
    with _open(path) as file:
        if not _lock_within(file, fcntl.LOCK_EX, timeout_seconds):
            raise LeaseHeld(f"{path} stayed locked for {timeout_seconds:.0f} s", f"see `fuser {path}`")
        yield


# --- where there is no machine to share a lock on ---

LEASE_SECONDS = 60.0


@contextlib.contextmanager
def hold_in_table(
    tables: Tables, name: str, flow: str, owner: str, seconds: float = LEASE_SECONDS
) -> Iterator[TableLease]:
    """Hold the flow by a Delta commit that only one can win; kept alive by heartbeats, given up by an empty owner."""
    newest = _newest(tables, name, flow)
    if newest and newest["owner"] and _age_seconds(newest) < seconds:
        raise LeaseHeld(
            f"flow {flow} is run by another runner: {newest['owner']}, epoch {newest['epoch']}",
            f"stop that one first; if it crashed, its lease ends {seconds:.0f} s after its last sign of life",
        )
    lease = TableLease(flow, (newest["epoch"] if newest else 0) + 1, tables, name, owner)
    lease.claim()
    try:
        yield lease
    finally:
        lease.beat(owner="")


@dataclass(frozen=True)
class TableLease(Lease):
    """A lease that lives in a table; whoever holds it calls `beat` well before it ends."""

    tables: Tables
    name: str
    owner: str

    def claim(self) -> None:
        """Two may write the same epoch, but one write counts: Delta takes a transaction id and version once."""
        self.tables.append_once(self.name, self._row(self.owner), f"mirrorlake:lease:{self.flow}", self.epoch)
        self.check()

    def beat(self, owner: str | None = None) -> None:
        self.check()
        self.tables.append(self.name, self._row(self.owner if owner is None else owner))

    def check(self) -> None:
        """Are we still the newest holder?"""
        newest = _newest(self.tables, self.name, self.flow)
        if newest is None or (newest["epoch"], newest["owner"]) != (self.epoch, self.owner):
            raise LeaseHeld(f"flow {self.flow}: another runner took the lease", "this runner must end")

    def _row(self, owner: str) -> pa.Table:
        row = {"flow": self.flow, "epoch": self.epoch, "owner": owner, "at": datetime.now(timezone.utc)}
        return pa.Table.from_pylist([row], schema=LEASES)


def _newest(tables: Tables, name: str, flow: str) -> dict[str, Any] | None:
    rows = tables.read(name, flow=flow).to_pylist()
    newest: dict[str, Any] | None = max(rows, key=lambda row: (row["epoch"], row["at"]), default=None)
    return newest


def _age_seconds(row: dict[str, Any]) -> float:
    return float((datetime.now(timezone.utc) - row["at"]).total_seconds())
