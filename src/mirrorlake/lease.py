"""One writer for a flow.

On one machine the operating system's locks are the fence: they are given up by the kernel at the instant the
holder dies, and a folder gives Delta none. The runner holds `leases/<flow>.lock`; every process that produces
holds a shared lock on `locks/<flow>@<target>.lock`, so that a new runner outlives the rest of a killed one.

On an object store the lease is a row that one commit can win, and signs of life after it. No two runners' clocks are
compared: who holds it counts from before his last sign, who wants it from when he has seen that one, so the first has
ended before the second begins. What the first has begun ends in time too: his workers know until when they may send.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from mirrorlake.config import Storage
from mirrorlake.errors import DataAtRisk, LeaseHeld, StateMismatch, StorageUnreachable
from mirrorlake.records import LEASES
from mirrorlake.tables import FolderTables, Tables


@dataclass
class Lease:
    """The right to write a flow; `epoch` grows with every holder and goes into ledger and headers."""

    flow: str
    epoch: int

    def require_valid(self) -> None:
        """Before anything is sent. A lock is ours for as long as we live."""

    def sends_until(self) -> float | None:
        """When whoever sends must have handed over all; None where a lock tells the next runner of him."""
        return None


def hold_flow(
    storage: Storage, root: Path, tables: Tables, flow: str, say: Callable[[str], None] = lambda _text: None
) -> contextlib.AbstractContextManager[Lease]:
    """Hold the flow where its storage is: in a table of the catalog, or by a lock of this machine."""
    if not storage.catalog:
        return hold(root, flow, f"{storage.ops_schema}.ledger")
    owner = f"process {os.getpid()} on {socket.gethostname()}, run {uuid.uuid4()}"
    return hold_in_table(tables, f"{storage.ops_schema}.leases", flow, owner, say)


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
def hold(root: Path, flow: str, ledger: str = "ops.ledger") -> Iterator[Lease]:
    """Hold the flow, or say who does."""
    with _open(_lock_path(root, flow)) as file:
        if not _lock_within(file, fcntl.LOCK_EX, _LOOK_SECONDS):
            raise _held(root, flow)
        yield _new_epoch(_lock_path(root, flow).with_suffix(".json"), flow, _ledger_epoch(root, ledger, flow))


def _held(root: Path, flow: str) -> LeaseHeld:
    holder = read_holder(root, flow)
    return LeaseHeld(
        f"flow {flow} is run by another runner: {_describe(holder)}",
        "stop that one first (SIGTERM), or run other flows with --flow; `mirrorlake status` shows what runs",
    )


def _describe(holder: dict[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    return f"process {holder.get('pid')} on {holder.get('host')}, since {since}, epoch {holder.get('epoch')}"


def _ledger_epoch(root: Path, ledger: str, flow: str) -> int:
    """The newest that was ever written down: the file may be lost, and a lower epoch sorts before older rows."""
    tables = FolderTables(root)
    epochs = tables.read(ledger, ["epoch"], flow=flow)["epoch"].to_pylist() if tables.exists(ledger) else []
    return max(epochs, default=0)


def _new_epoch(path: Path, flow: str, known: int) -> Lease:
    epoch = max(_read_json(path).get("epoch", 0), known) + 1
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

LEASE_SECONDS = float(os.environ.get("MIRRORLAKE_LEASE_SECONDS", "60"))
"""How long a lease may go without a sign before somebody else takes it. The variable is for tests: all who want a lease
must agree on it."""
SIGNS = 4
"""So many in this time; without three of them its holder begins nothing more."""
SENDING = 1 / 2
"""Of this time, counted from a sign: so long records may be handed to a producer."""
EXPIRY = 1 / 3
"""Of this time: what a producer could not send within it, it never sends, not even after it stood still for long. The
rest is for clocks that differ and for bytes on their way."""


@contextlib.contextmanager
def hold_in_table(
    tables: Tables,
    name: str,
    flow: str,
    owner: str,
    say: Callable[[str], None] = lambda _text: None,
    seconds: float = LEASE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[TableLease]:
    """Hold the flow by a Delta commit that only one can win; kept alive by a thread, given up by an empty owner."""
    before = _await_silence(tables, name, flow, say, seconds, clock, sleep)
    lease = TableLease(flow, before.epoch + 1, tables, name, owner, seconds, clock)
    lease.claim()
    try:
        with _beating(lease):
            if read_signs(tables, name, flow).count > before.count + 1:
                # A last sign came while we claimed: whoever gave it may send until he sees us.
                sleep(seconds)
            yield lease
    except BaseException:
        # What ended us says more than a storage that is gone.
        with contextlib.suppress(Exception):
            lease.give_up()
        raise
    lease.give_up()


@dataclass(frozen=True)
class Signs:
    """What the table says of a flow's lease. It is counted, not dated: clocks of other machines may be wrong."""

    epoch: int = 0
    owner: str = ""
    """Empty where it was given up."""
    count: int = 0


def read_signs(tables: Tables, name: str, flow: str) -> Signs:
    rows = tables.read(name, ["epoch", "owner"], flow=flow).to_pylist()
    epoch = max((row["epoch"] for row in rows), default=0)
    owners = {row["owner"] for row in rows if row["epoch"] == epoch}
    return Signs(epoch, "" if "" in owners else "".join(owners), len(rows))


def _await_silence(
    tables: Tables,
    name: str,
    flow: str,
    say: Callable[[str], None],
    seconds: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Signs:
    """The lease as it was left. One that was not given up may be a crashed runner's: it is, if it gives no sign."""
    seen = read_signs(tables, name, flow)
    if not seen.owner:
        return seen
    say(f"flow {flow}: {seen.owner} has not given up the lease: waiting {seconds:.0f} s for a sign that it lives")
    until = clock() + seconds
    while clock() < until:
        sleep(seconds / 30)
        if (now := read_signs(tables, name, flow)).count != seen.count:
            return _given_up(flow, now, seconds)
    say(f"flow {flow}: it gave none: taking the lease over")
    return seen


def _given_up(flow: str, seen: Signs, seconds: float) -> Signs:
    if seen.owner:
        raise LeaseHeld(
            f"flow {flow} is run by another runner: {seen.owner}, epoch {seen.epoch}",
            f"stop that one first; if it crashed, its lease ends {seconds:.0f} s after its last sign of life",
        )
    return seen


@dataclass
class TableLease(Lease):
    """A lease that lives in a table, and ends by itself."""

    tables: Tables
    name: str
    owner: str
    seconds: float = LEASE_SECONDS
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """The clock that other machines have too."""
    _signed_at: float = field(default=float("-inf"), init=False)
    _overtaken: bool = field(default=False, init=False)
    _trouble: str = field(default="", init=False)
    """Why the last sign could not be given."""

    def claim(self) -> None:
        """Two may write the same epoch, but one write counts: Delta takes a transaction id and version once."""
        begun, txn_app_id = self.clock(), f"mirrorlake:lease:{self.flow}"
        self.tables.append_once(self.name, self._row(self.owner), txn_app_id, self.epoch)
        self._renew(begun)

    def beat(self) -> None:
        """A sign of life. It counts from before it was written, and only if nobody took the lease until after it."""
        begun = self.clock()
        self.tables.append(self.name, self._row(self.owner))
        self._renew(begun)

    def give_up(self) -> None:
        self._check()
        self.tables.append(self.name, self._row(""))

    def beat_until(self, over: threading.Event) -> None:
        """A storage that is away for a moment is tried again; for how long, the lease itself says."""
        while not over.wait(self.seconds / SIGNS) and not self._overtaken:
            try:
                self.beat()
            except Exception as error:
                self._trouble = str(error).partition("\n")[0]

    def require_valid(self) -> None:
        if self._overtaken:
            raise self._lost()
        if self.clock() - self._signed_at > self.seconds * (SIGNS - 1) / SIGNS:
            raise StorageUnreachable(
                f"flow {self.flow}: the lease could not be renewed in time: {self._trouble or 'no answer'}",
                f"is {self.name} there, and may we write? run again: it recovers and goes on",
            )

    def sends_until(self) -> float:
        """By the clock of this machine, which those of the workers may differ from a little: see `produce.Term`."""
        return self.wall() + self.seconds * SENDING - (self.clock() - self._signed_at)

    def _renew(self, begun: float) -> None:
        self._check()
        self._signed_at = begun

    def _check(self) -> None:
        """Are we still the newest holder?"""
        newest = read_signs(self.tables, self.name, self.flow)
        self._overtaken = (newest.epoch, newest.owner) != (self.epoch, self.owner)
        if self._overtaken:
            raise self._lost()

    def _lost(self) -> LeaseHeld:
        return LeaseHeld(f"flow {self.flow}: another runner took the lease", "this runner must end")

    def _row(self, owner: str) -> pa.Table:
        row = {"flow": self.flow, "epoch": self.epoch, "owner": owner, "at": datetime.now(timezone.utc)}
        return pa.Table.from_pylist([row], schema=LEASES)


@contextlib.contextmanager
def _beating(lease: TableLease) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=lease.beat_until, args=(over,), name=f"lease of {lease.flow}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(lease.seconds)
