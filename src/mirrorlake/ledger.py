"""What reached which target, as runs of (source offsets -> target offsets): the authority on delivery."""

from __future__ import annotations

import contextlib
import fcntl
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from mirrorlake.commits import ATTEMPTS, add_action
from mirrorlake.errors import MirrorlakeError, StorageUnreachable
from mirrorlake.failpoints import hit
from mirrorlake.records import LEDGER, Run, SourcePartition, TopicPartition
from mirrorlake.tables import CatalogTables, Tables, check_format

BASELINE, RELAY, SKIP, REPAIR, REPLAY = "baseline", "relay", "skip", "repair", "replay"
END = "end"
"""The target topic was deleted after its source: there is nothing to go on with."""
ADOPTED = "adopted"
"""Copied by another replicator before us, and found on both sides: good for translation, no work of ours."""
_MOVES_POSITION = frozenset({BASELINE, RELAY, SKIP})
_JOINABLE = (RELAY, REPAIR, SKIP)
"""Kinds of which a row may go on where the one before it ended."""
# Every commit leaves a small file, and an append costs more the more there are. The first time comes early, for
# processes that do not live long, and so does the next one where it failed.
COMPACT_EVERY, COMPACT_SOON = 500, 50
# Larger files stay as they are, so that compaction does not write the whole ledger again: some 250,000 rows.
_FULL_BYTES = 4 << 20


@dataclass(frozen=True)
class Entry:
    """One row of the ledger."""

    flow: str
    target: str
    kind: str
    epoch: int
    source: SourcePartition
    source_first: int
    source_last: int
    target_partition: TopicPartition
    target_topic_id: str
    target_first: int | None
    count: int
    target_end: int
    reason: str = ""

    def row(self, at: datetime) -> dict[str, object]:
        return {
            "flow": self.flow,
            "target": self.target,
            "kind": self.kind,
            "epoch": self.epoch,
            "source_topic": self.source.topic,
            "source_topic_id": self.source.topic_id,
            "source_partition": self.source.partition,
            "source_first": self.source_first,
            "source_last": self.source_last,
            "target_topic": self.target_partition.topic,
            "target_topic_id": self.target_topic_id,
            "target_partition": self.target_partition.partition,
            "target_first": self.target_first,
            "count": self.count,
            "target_end": self.target_end,
            "reason": self.reason,
            "at": at,
        }


def entry_from_row(row: dict[str, object]) -> Entry:
    values = {
        name: row[name]
        for name in ("flow", "target", "kind", "epoch", "source_first", "source_last", "target_topic_id",
                     "target_first", "count", "target_end", "reason")
    }  # fmt: skip
    source = SourcePartition(
        str(row["source_topic"]), str(row["source_topic_id"] or ""), int(str(row["source_partition"]))
    )
    target = TopicPartition(str(row["target_topic"]), int(str(row["target_partition"])))
    return Entry(source=source, target_partition=target, **values)  # type: ignore[arg-type]


@dataclass
class Position:
    """Where one source partition stands on one target."""

    next_offset: int
    target_partition: TopicPartition
    target_topic_id: str
    target_end: int


@dataclass
class Book:
    """The ledger of one flow and target, folded to what matters for going on."""

    positions: dict[SourcePartition, Position] = field(default_factory=dict)
    ended: set[SourcePartition] = field(default_factory=set)

    def apply(self, entry: Entry) -> None:
        kept = self.positions.get(entry.source)
        if entry.kind == END:
            self.positions.pop(entry.source, None)
            self.ended.add(entry.source)
        elif entry.kind not in _MOVES_POSITION:
            # A replay or a repair moves the target's end where it went to, which may be another topic.
            if kept and kept.target_partition == entry.target_partition:
                kept.target_end = max(kept.target_end, entry.target_end)
        elif kept is None or entry.kind == BASELINE:
            self.positions[entry.source] = _from_entry(entry)
            self.ended.discard(entry.source)
        else:
            kept.next_offset = max(kept.next_offset, entry.source_last + 1)
            kept.target_end = max(kept.target_end, entry.target_end)


def _from_entry(entry: Entry) -> Position:
    return Position(entry.source_last + 1, entry.target_partition, entry.target_topic_id, entry.target_end)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Rows as they were meant: a baseline replaces only what an earlier epoch left."""
    return sorted(entries, key=lambda e: (e.epoch, e.kind != BASELINE, e.source_first))


def fold(entries: Iterable[Entry]) -> Book:
    """Entries in any order."""
    book = Book()
    for entry in in_order(entries):
        book.apply(entry)
    return book


def relay_entries(template: Entry, runs: Sequence[Run], target_end: int) -> list[Entry]:
    """A row for each run; the template carries who and where."""
    return [
        replace(
            template,
            source_first=run.source_first,
            source_last=run.source_last,
            target_first=run.target_first,
            count=run.count,
            target_end=target_end,
        )
        for run in runs
    ]


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Entries that go on where the one before them of their partition ended, as one."""
    found: list[Entry] = []
    last: dict[tuple[str, str, SourcePartition], int] = {}
    for entry in entries:
        key = (entry.flow, entry.target, entry.source)
        if key in last and _goes_on(found[last[key]], entry):
            found[last[key]] = _joined(found[last[key]], entry)
        else:
            last[key] = len(found)
            found.append(entry)
    return found


def _goes_on(one: Entry, two: Entry) -> bool:
    if one.kind not in _JOINABLE or one.source_last + 1 != two.source_first:
        return False
    if one.kind != SKIP and (one.target_first or 0) + one.count != two.target_first:
        return False
    same = ("kind", "epoch", "target_partition", "target_topic_id", "reason")
    return all(getattr(one, name) == getattr(two, name) for name in same)


def _joined(one: Entry, two: Entry) -> Entry:
    end = max(one.target_end, two.target_end)
    return replace(one, source_last=two.source_last, count=one.count + two.count, target_end=end)


def read(tables: Tables, name: str, flow: str, target: str) -> list[Entry]:
    """In the order in which they were written, whichever files they are in by now."""
    rows = tables.read(name, flow=flow, target=target).sort_by("at").to_pylist()
    return [entry_from_row(row) for row in rows]


# --- compacting ---

_PARTITION = ("flow", "target", "source_topic", "source_topic_id", "source_partition")
_SAME = (*_PARTITION, "epoch", "kind", "target_topic", "target_topic_id", "target_partition", "reason")
_JOINED_BY = {"source_last": "max", "count": "sum", "target_end": "max", "at": "max"}


def joined(rows: pa.Table) -> pa.Table:
    """Rows that go on where the one before them ended, as one, whichever commits they came with.

    Arrow does it, since there may be very many. No other row may lie between in the order in which they are folded, so
    that readers meet the same offsets in the same order.
    """
    if not rows.num_rows:
        return rows
    ordered = _as_folded(rows.append_column("place", pa.array(range(rows.num_rows))))
    begin = _begin(ordered)
    numbered = ordered.select(list(_JOINED_BY)).append_column("run", pc.cumulative_sum(pc.cast(begin, pa.int64())))
    runs, found = numbered.group_by("run", use_threads=False).aggregate(list(_JOINED_BY.items())), ordered.filter(begin)
    for name, way in _JOINED_BY.items():
        found = found.set_column(found.column_names.index(name), rows.schema.field(name), runs[f"{name}_{way}"])
    return found.sort_by("place").select(rows.column_names)


def _as_folded(rows: pa.Table) -> pa.Table:
    """What `read` and `in_order` do, for all flows, targets and partitions at once."""
    keyed = rows.append_column("later", pc.not_equal(rows["kind"], BASELINE))
    order = (*_PARTITION, "epoch", "later", "source_first", "at", "place")
    return keyed.sort_by([(name, "ascending") for name in order])


def _begin(rows: pa.Table) -> pa.ChunkedArray:
    """Of each row, whether it does not go on with the one before it."""
    one, two = rows.slice(0, rows.num_rows - 1), rows.slice(1)
    alike = [pc.equal(one[name], two[name]) for name in _SAME]
    follows = pc.fill_null(pc.equal(pc.add(one["target_first"], one["count"]), two["target_first"]), False)
    goes_on = [
        pc.is_in(two["kind"], pa.array(_JOINABLE)),
        pc.equal(pc.add(one["source_last"], 1), two["source_first"]),
        pc.or_(follows, pc.equal(two["kind"], SKIP)),
    ]
    begins = pc.invert(pc.fill_null(reduce(pc.and_, alike + goes_on), False))
    return pa.chunked_array([pa.array([True]), *begins.chunks])


def compact(folder: Path) -> bool:
    """Join small files and what goes on in their rows. False where another writer was in the way: nothing is done then.

    The caller holds the lock.
    """
    table = DeltaTable(folder)
    check_format(folder.name, table.metadata().configuration)
    small = _small(_files(table))
    return len(small) < 2 or _rewrite(table, folder, small)


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    found = pa.table(table.get_add_actions(flatten=True))
    return list(found.select(["path", "size_bytes"]).to_pylist())


def _small(files: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [file for file in files if file["size_bytes"] < _FULL_BYTES]


def _rewrite(table: DeltaTable, folder: Path, files: Sequence[dict[str, Any]]) -> bool:
    paths = [str(folder / unquote(file["path"])) for file in files]
    rows = joined(pq.read_table(paths, schema=pa.schema(table.schema().to_arrow()), partitioning=None))
    path = folder / f"part-{uuid.uuid4().hex}.parquet"
    # What a killed process leaves belongs to no version: VACUUM removes it.
    pq.write_table(rows, path, compression="zstd")
    add = replace(add_action(folder, path, pq.read_metadata(path), rows.column_names), data_change=False)
    hit("ledger-rewritten")
    return _replace_files(table, files, add)


def _replace_files(table: DeltaTable, files: Sequence[dict[str, Any]], add: AddAction) -> bool:
    """In one commit. What others append meanwhile stays; where one of the files is gone, its rows are elsewhere now."""
    now_ms, old = int(time.time() * 1000), {file["path"]: file["size_bytes"] for file in files}
    removes = [RemoveAction(path, False, now_ms, size, {}) for path, size in old.items()]
    # delta-rs would try again by itself, without noticing that the files are gone.
    strictly = CommitProperties(max_commit_retries=0)
    for _ in range(ATTEMPTS):
        table.update_incremental()
        if not old.keys() <= {file["path"] for file in _files(table)}:
            return False
        with contextlib.suppress(CommitFailedError):
            table.create_write_transaction([*removes, add], "append", table.schema(), commit_properties=strictly)
            return True
    return False


class LedgerWriter:
    """Commits entries off the hot path: several batches share a commit; `flush` waits for what was given."""

    def __init__(
        self, tables: Tables, name: str, commit_seconds: float, clock: Callable[[], datetime] | None = None
    ) -> None:
        self._tables = tables
        self._name = name
        self._commit_seconds = commit_seconds
        self._clock = clock or (lambda: datetime.now(timezone.utc))
        self._queue: queue.Queue[Sequence[Entry] | threading.Event | None] = queue.Queue()
        self._failure: Exception | None = None
        self.listeners: list[Callable[[Sequence[Entry]], None]] = []
        """Told what was committed."""
        self._id, self._commits = f"mirrorlake:ledger:{uuid.uuid4().hex}", 0
        self._flows: set[str] = set()
        self._closed = False
        self._giving = threading.Lock()
        self._commits_until_compaction = COMPACT_SOON - self._small_files()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    def add(self, entries: Sequence[Entry]) -> None:
        self._raise_failure()
        if entries and not self._give(entries):
            raise RuntimeError("the ledger is closed: entries would be lost")

    def flush(self) -> None:
        written = threading.Event()
        if self._give(written):
            written.wait()
        self._raise_failure()

    def close(self) -> None:
        """Write what was given, and end; a failure is said here too."""
        with self._giving:
            if not self._closed:
                self._queue.put(None)
            self._closed = True
        self._thread.join()
        self._raise_failure()

    def _give(self, item: Sequence[Entry] | threading.Event) -> bool:
        with self._giving:
            if not self._closed:
                self._queue.put(item)
            return not self._closed

    def _raise_failure(self) -> None:
        if self._failure:
            raise self._failure

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            gathered = [first, *self._gather(first)]
            entries = [e for each in gathered if not isinstance(each, threading.Event) for e in each]
            written = self._commit(entries)
            for waiting in gathered:
                if isinstance(waiting, threading.Event):
                    waiting.set()
            # Last, so that nobody waits for it whose entries are written.
            self._commits_until_compaction -= written
            if self._commits_until_compaction <= 0:
                self._commits_until_compaction = COMPACT_EVERY if self._compact() else COMPACT_SOON

    def _gather(self, first: Sequence[Entry] | threading.Event) -> list[Sequence[Entry] | threading.Event]:
        """What arrives until the commit is due; somebody waiting makes it due at once."""
        gathered: list[Sequence[Entry] | threading.Event] = []
        due = time.monotonic() + (0 if isinstance(first, threading.Event) else self._commit_seconds)
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                return gathered
            if item is None:
                self._queue.put(None)
                return gathered
            gathered.append(item)
            if isinstance(item, threading.Event):
                due = 0

    def _commit(self, entries: Sequence[Entry]) -> bool:
        if not entries or self._failure:
            return False
        at = self._clock()
        try:
            rows = [entry.row(at) for entry in merged(entries)]
            hit("ledger-before-commit")
            # Under a number of its own: a client that tries again, because it heard no answer, commits it once.
            self._tables.append(self._name, pa.Table.from_pylist(rows, schema=LEDGER), (self._id, self._commits))
            self._commits += 1
            hit("ledger-after-commit")
            self._flows |= {entry.flow for entry in entries}
            for listener in self.listeners:
                listener(entries)
        except Exception as error:
            # Kept for the next caller: a ledger that cannot be written stops the flow.
            self._failure = self._unwritten(error)
            self._failure.__cause__ = error
        return self._failure is None

    def _small_files(self) -> int:
        """Those that are there count too: nobody may live long enough for so many commits of his own."""
        folder = self._tables.folder(self._name)
        try:
            return len(_small(_files(DeltaTable(folder)))) if folder else 0
        except (DeltaError, OSError):  # no table yet, or none that can be read, which the first commit will say
            return 0

    def _compact(self) -> bool:
        """Join rows and small files, unless another process does it right now.

        Appends may come meanwhile. Two compactions that meet might both succeed, and every row be there twice then:
        hence the lock.
        """
        folder = self._tables.folder(self._name)
        try:
            if folder is None:
                return self._join_in_catalog()
            with (folder / "_compacting").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return compact(folder)
        except Exception:
            # Whatever it was, all rows are as they were: nothing to stop a flow for.
            return False

    def _join_in_catalog(self) -> bool:
        """Only Spark may write there. Of the flows that we hold: nobody else writes rows of those."""
        tables = self._tables
        return isinstance(tables, CatalogTables) and all(
            tables.rewrite(self._name, flow, self._clock(), joined) for flow in self._flows
        )

    def _unwritten(self, error: Exception) -> MirrorlakeError:
        if isinstance(error, MirrorlakeError):
            return error
        return StorageUnreachable(
            f"the ledger {self._name} cannot be written: {error}",
            "is there room, and may we write? run again: it reads back what was sent, and goes on",
        )
