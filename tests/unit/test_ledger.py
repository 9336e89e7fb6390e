"""The ledger: rows in any order fold to one position, and a writer that cannot write says so."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake import ledger as ledger_module
from mirrorlake.errors import StorageUnreachable
from mirrorlake.ledger import (
    BASELINE,
    RELAY,
    REPAIR,
    REPLAY,
    SKIP,
    Book,
    Entry,
    LedgerWriter,
    entry_from_row,
    fold,
    merged,
    read,
    relay_entries,
)
from mirrorlake.offsets import OffsetMaps
from mirrorlake.records import LEDGER, Run, SourcePartition, TopicPartition
from mirrorlake.tables import FolderTables

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
SOURCE = SourcePartition("orders", "id-1", 0)
TARGET = TopicPartition("src.orders", 0)


def entry(kind: str = RELAY, first: int = 0, last: int = 9, end: int = 10, epoch: int = 1, **fields: Any) -> Entry:
    base = Entry(
        flow="f",
        target="dr",
        kind=kind,
        epoch=epoch,
        source=SOURCE,
        source_first=first,
        source_last=last,
        target_partition=TARGET,
        target_topic_id="target-id",
        target_first=None if kind in (BASELINE, SKIP) else end - (last - first + 1),
        count=last - first + 1,
        target_end=end,
    )
    return replace(base, **fields)


def baseline(first: int = 0, end: int = 0, epoch: int = 1, **fields: Any) -> Entry:
    return entry(BASELINE, first, first - 1, end, epoch, **fields)


def position(entries: Sequence[Entry]) -> tuple[int, int]:
    kept = fold(entries).positions[SOURCE]
    return kept.next_offset, kept.target_end


# --- rows ---


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    number = st.integers(0, 2**62)
    return Entry(
        flow=draw(st.text(max_size=5)),
        target=draw(st.text(max_size=5)),
        kind=draw(st.sampled_from([BASELINE, RELAY, SKIP, REPAIR, REPLAY])),
        epoch=draw(number),
        source=SourcePartition(draw(st.text(max_size=5)), draw(st.sampled_from(["", "id"])), draw(st.integers(0, 99))),
        source_first=draw(number),
        source_last=draw(st.integers(-1, 2**62)),
        target_partition=TopicPartition(draw(st.text(max_size=5)), draw(st.integers(0, 99))),
        target_topic_id=draw(st.sampled_from(["", "id"])),
        target_first=draw(st.none() | number),
        count=draw(number),
        target_end=draw(number),
        reason=draw(st.text(max_size=20)),
    )


@given(entries())
def test_an_entry_survives_its_row(given_entry: Entry) -> None:
    rows = pa.Table.from_pylist([given_entry.row(NOON)], schema=LEDGER).to_pylist()
    assert [entry_from_row(row) for row in rows] == [given_entry]


def test_a_row_has_every_column_of_the_table() -> None:
    assert list(entry().row(NOON)) == LEDGER.names


def test_each_run_becomes_a_row() -> None:
    rows = relay_entries(entry(), [Run(0, 100, 5), Run(7, 105, 2)], target_end=107)
    assert [(e.source_first, e.source_last, e.target_first, e.count, e.target_end) for e in rows] == [
        (0, 4, 100, 5, 107),
        (7, 8, 105, 2, 107),
    ]


# --- folding ---


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Entry], tuple[int, int]]:
    """What a flow might have written over several epochs, and where it stands then."""
    rows: list[Entry] = []
    next_offset, end = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    rows.append(baseline(next_offset, end))
    epoch = 1
    for step in draw(st.lists(st.sampled_from([RELAY, SKIP, REPLAY, REPAIR, "restart", "anew"]), max_size=15)):
        count = draw(st.integers(1, 4))
        if step == "restart":
            epoch += 1
        elif step == "anew":
            epoch, end = epoch + 1, 0
            rows.append(baseline(next_offset, end, epoch))
        elif step in (REPLAY, REPAIR):
            end += count
            rows.append(entry(step, 0, count - 1, end, epoch))
        else:
            end += count if step == RELAY else 0
            rows.append(entry(step, next_offset, next_offset + count - 1, end, epoch))
            next_offset += count
    return rows, (next_offset, end)


@given(histories(), st.randoms())
def test_rows_in_any_order_fold_to_the_same_position(history: tuple[list[Entry], tuple[int, int]], random: Any) -> None:
    rows, stands = history
    random.shuffle(rows)
    assert position(rows) == stands


@given(histories())
def test_applied_one_by_one_they_come_to_the_same_and_never_go_back(
    history: tuple[list[Entry], tuple[int, int]],
) -> None:
    rows, stands = history
    book, seen = Book(), 0
    for row in rows:
        book.apply(row)
        assert book.positions[SOURCE].next_offset >= seen
        seen = book.positions[SOURCE].next_offset
    kept = book.positions[SOURCE]
    assert (kept.next_offset, kept.target_end) == stands


def test_a_baseline_of_a_later_epoch_replaces_what_was() -> None:
    anew = baseline(10, 0, epoch=2, target_topic_id="made anew")
    kept = fold([anew, baseline(), entry(last=9, end=10)]).positions[SOURCE]
    assert (kept.next_offset, kept.target_end, kept.target_topic_id) == (10, 0, "made anew")


def test_a_baseline_of_an_earlier_epoch_replaces_nothing() -> None:
    assert position([entry(first=5, last=9, end=5, epoch=2), baseline(5, 0, epoch=1)]) == (10, 5)


@pytest.mark.parametrize("kind", [REPLAY, REPAIR])
def test_a_replay_moves_the_log_but_not_the_position(kind: str) -> None:
    assert position([baseline(), entry(last=9, end=10), entry(kind, 0, 99, end=110)]) == (10, 110)


def test_a_replay_of_what_lies_before_the_baseline_still_moves_the_log() -> None:
    assert position([baseline(100, 50), entry(first=100, last=109, end=60), entry(REPLAY, 0, 9, end=70)]) == (
        110,
        70,
    )


def test_a_replay_into_another_topic_moves_nothing() -> None:
    elsewhere = entry(REPLAY, 0, 999, end=5000, target_partition=TopicPartition("copy", 0))
    assert position([baseline(), entry(last=9, end=10), elsewhere]) == (10, 10)


@pytest.mark.parametrize("kind", [REPLAY, REPAIR])
def test_a_replay_alone_is_no_beginning(kind: str) -> None:
    assert fold([entry(kind)]).positions == {}


def test_incarnations_of_a_topic_stand_apart() -> None:
    anew = SOURCE._replace(topic_id="id-2")
    book = fold([baseline(), entry(last=9, end=10), baseline(0, 10, source=anew)])
    assert book.positions[SOURCE].next_offset == 10
    assert book.positions[anew].next_offset == 0


# --- merging ---


@dataclass
class Told:
    """One partition as it goes on, and what its rows say."""

    partition: int
    rows: list[Entry]
    epoch: int = 1
    at: int = 5
    end: int = 9
    missing: list[tuple[int, int]] = field(default_factory=list)

    def tell(self, step: str, count: int) -> None:
        if step in (RELAY, REPLAY):
            self.end += count
            self.note(step, self.at if step == RELAY else 0, count)
        elif step == SKIP:
            self.note(SKIP, self.at, count)
        elif step == "gap":
            self.missing.append((self.at, count))
        elif step == REPAIR and self.missing:
            first, lost = self.missing.pop()
            self.end += lost
            self.note(REPAIR, first, lost)
        self.at += count if step in (RELAY, SKIP, "gap") else 0
        self.end += count if step == "foreign" else 0
        self.epoch += step == "restart"

    def note(self, kind: str, first: int, count: int) -> None:
        source, target = SOURCE._replace(partition=self.partition), TARGET._replace(partition=self.partition)
        row = entry(kind, first, first + count - 1, self.end, self.epoch, source=source, target_partition=target)
        self.rows.append(row)


@st.composite
def commits(draw: st.DrawFn) -> list[Entry]:
    """What several rounds of two partitions might give to one commit, from their baselines on."""
    rows: list[Entry] = []
    told = [Told(0, rows), Told(1, rows)]
    for each in told:
        each.note(BASELINE, each.at, 0)
    kinds = st.sampled_from([RELAY, RELAY, RELAY, SKIP, REPAIR, REPLAY, "gap", "foreign", "restart"])
    for number, step, count in draw(st.lists(st.tuples(st.integers(0, 1), kinds, st.integers(1, 4)), max_size=20)):
        told[number].tell(step, count)
    return rows


@given(commits())
def test_merged_rows_say_what_the_rows_said(rows: list[Entry]) -> None:
    fewer = merged(rows)
    assert fold(fewer) == fold(rows)
    assert sum(row.count for row in fewer) == sum(row.count for row in rows)
    whole, short = OffsetMaps(rows), OffsetMaps(fewer)
    for source in fold(rows).positions:
        one, two = whole.of(source), short.of(source)
        assert one
        assert two
        for offset in range(120):
            assert one.to_target(offset) == two.to_target(offset)
            assert one.to_source(offset) == two.to_source(offset)
            assert one.read_again(offset) == two.read_again(offset)


@given(commits())
def test_a_row_ends_only_where_offsets_do(rows: list[Entry]) -> None:
    assert merged(merged(rows)) == merged(rows)
    relayed = [row for row in merged(rows) if row.kind == RELAY]
    for one, two in pairwise(sorted(relayed, key=lambda row: (row.source, row.source_first))):
        assert one.target_first is not None
        ends = (one.source, one.epoch, one.source_last + 1, one.target_first + one.count)
        assert ends != (two.source, two.epoch, two.source_first, two.target_first)


@pytest.mark.parametrize(
    "other",
    [{"epoch": 2}, {"target": "hubs"}, {"flow": "g"}, {"target_topic_id": "made anew"}, {"kind": REPAIR},
     {"source": SOURCE._replace(topic_id="id-2")}, {"target_partition": TARGET._replace(partition=1)},
     {"source_first": 11}, {"target_first": 11}],
    ids=str,
)  # fmt: skip
def test_what_differs_is_not_merged(other: dict[str, Any]) -> None:
    one, two = entry(last=9, end=10), entry(first=10, last=19, end=20)
    assert [(row.source_first, row.source_last, row.target_end) for row in merged([one, two])] == [(0, 19, 20)]
    assert merged([one, replace(two, **other)]) == [one, replace(two, **other)]


# --- writing ---


class NotedTables:
    """Keeps what is appended; can be slow, and can fail."""

    def __init__(self) -> None:
        self.commits: list[pa.Table] = []
        self.fault: Exception | None = None
        self.open = threading.Event()
        self.open.set()

    def append(self, name: str, rows: pa.Table) -> None:
        self.open.wait(5)
        if self.fault:
            raise self.fault
        self.commits.append(rows)

    def folder(self, name: str) -> Path | None:
        return None

    @property
    def firsts(self) -> list[int]:
        return [first for commit in self.commits for first in commit["source_first"].to_pylist()]


@pytest.fixture
def tables() -> NotedTables:
    return NotedTables()


def writer_for(tables: Any, commit_seconds: float = 30.0) -> LedgerWriter:
    return LedgerWriter(tables, "ops.ledger", commit_seconds, lambda: NOON)


@pytest.fixture
def writer(tables: NotedTables) -> Iterator[LedgerWriter]:
    made = writer_for(tables)
    yield made
    tables.open.set()
    tables.fault = None
    made._failure = None
    made.close()


def test_several_adds_share_a_commit_and_keep_their_order(writer: LedgerWriter, tables: NotedTables) -> None:
    for number in range(20):
        writer.add([entry(first=number, last=number)])
    writer.flush()
    assert len(tables.commits) == 1
    assert tables.firsts == list(range(20))


def test_flush_waits_until_the_commit_is_done(writer: LedgerWriter, tables: NotedTables) -> None:
    tables.open.clear()
    writer.add([entry()])
    threading.Timer(0.1, tables.open.set).start()
    writer.flush()
    assert tables.firsts == [0]


def test_a_flush_of_nothing_writes_nothing(writer: LedgerWriter, tables: NotedTables) -> None:
    writer.add([])
    writer.flush()
    assert tables.commits == []


def test_a_steady_stream_of_adds_is_committed_all_the_same(tables: NotedTables) -> None:
    writer = writer_for(tables, commit_seconds=0.05)
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        writer.add([entry()])
        time.sleep(0.01)
    assert len(tables.commits) >= 3
    writer.close()


def test_without_a_flush_entries_are_committed_in_time(tables: NotedTables) -> None:
    writer = writer_for(tables, commit_seconds=0.01)
    writer.add([entry()])
    until = time.monotonic() + 5
    while not tables.commits and time.monotonic() < until:
        time.sleep(0.005)
    assert tables.firsts == [0]
    writer.close()


def test_a_table_that_fails_surfaces_at_flush_and_at_every_later_add(writer: LedgerWriter, tables: NotedTables) -> None:
    tables.fault = OSError("disk full")
    writer.add([entry()])
    with pytest.raises(StorageUnreachable, match=r"the ledger .* cannot be written: disk full"):
        writer.flush()
    tables.fault = None
    with pytest.raises(StorageUnreachable, match=r"the ledger .* cannot be written: disk full"):
        writer.add([entry()])
    with pytest.raises(StorageUnreachable, match=r"the ledger .* cannot be written: disk full"):
        writer.flush()
    # What came after the failure must not be written: it would hide what is missing.
    assert tables.commits == []


def test_close_writes_what_was_given_and_may_be_called_again(tables: NotedTables) -> None:
    writer = writer_for(tables)
    writer.add([entry()])
    writer.close()
    writer.close()
    assert tables.firsts == [0]


def test_close_says_a_failure_and_ends_the_thread(tables: NotedTables) -> None:
    tables.fault = OSError("disk full")
    writer = writer_for(tables)
    writer.add([entry()])
    with pytest.raises(StorageUnreachable, match=r"the ledger .* cannot be written: disk full"):
        writer.close()
    assert not writer._thread.is_alive()


def test_after_close_nothing_can_be_lost_and_nobody_waits(tables: NotedTables) -> None:
    writer = writer_for(tables)
    writer.close()
    writer.flush()
    with pytest.raises(RuntimeError, match="closed"):
        writer.add([entry()])


def test_adds_from_many_threads_all_arrive(tables: NotedTables) -> None:
    writer = writer_for(tables, commit_seconds=0.001)

    def give(begin: int) -> None:
        for number in range(begin, begin + 50):
            writer.add([entry(first=number, last=number)])

    threads = [threading.Thread(target=give, args=(begin,)) for begin in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert sorted(tables.firsts) == [*range(50), *range(100, 150), *range(200, 250)]


def test_what_is_written_to_a_folder_is_read_for_the_flow_and_target_asked(tmp_path: Path) -> None:
    tables = FolderTables(tmp_path)
    tables.ensure("ops.ledger", LEDGER, {})
    writer = writer_for(tables, commit_seconds=0.01)
    rows = [baseline(), entry(last=9, end=10), entry(SKIP, 10, 10, 10, reason="loop")]
    writer.add([*rows, entry(target="hubs"), entry(flow="g")])
    writer.close()
    assert sorted(read(tables, "ops.ledger", "f", "dr"), key=lambda e: e.source_last) == rows
    assert position(read(tables, "ops.ledger", "f", "dr")) == (11, 10)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "COMPACT_EVERY", 4)
    monkeypatch.setattr(ledger_module, "COMPACT_SOON", 3)


def written_one_by_one(root: Path, count: int, epoch: int = 1) -> FolderTables:
    tables = FolderTables(root)
    tables.ensure("ops.ledger", LEDGER, {})
    writer = writer_for(tables)
    for number in range(count):
        writer.add([entry(first=number, last=number, epoch=epoch)])
        writer.flush()
    writer.close()
    return tables


@pytest.mark.usefixtures("often")
def test_small_files_are_joined_now_and_then_and_no_row_is_lost(tmp_path: Path) -> None:
    tables = written_one_by_one(tmp_path, 12)
    assert len(DeltaTable(tables.folder("ops.ledger")).file_uris()) <= 4
    assert sorted(row.source_first for row in read(tables, "ops.ledger", "f", "dr")) == list(range(12))


@pytest.mark.usefixtures("often")
def test_a_compaction_that_meets_another_writer_fails_nothing_and_is_tried_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def meets_another(folder: Path) -> Any:
        tried.append(folder)
        raise CommitFailedError("somebody was first")

    monkeypatch.setattr(ledger_module, "DeltaTable", meets_another)
    tables = written_one_by_one(tmp_path, 9)
    assert len(tried) == 3
    assert len(read(tables, "ops.ledger", "f", "dr")) == 9


@pytest.mark.usefixtures("often")
def test_only_one_compacts_at_a_time(tmp_path: Path) -> None:
    tables = written_one_by_one(tmp_path, 1)
    with (tmp_path / "tables" / "ops" / "ledger" / "_compacting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        written_one_by_one(tmp_path, 9)
    assert len(DeltaTable(tables.folder("ops.ledger")).file_uris()) == 10


def test_processes_that_append_and_compact_at_once_leave_every_row_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from mirrorlake import ledger; from mirrorlake.tables import FolderTables\n"
        "import test_ledger\n"
        "ledger.COMPACT_EVERY = ledger.COMPACT_SOON = 2\n"
        "test_ledger.written_one_by_one(Path(sys.argv[1]), 20, int(sys.argv[2]))\n"
    )
    FolderTables(tmp_path).ensure("ops.ledger", LEDGER, {})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(epoch)], env=environment) for epoch in (1, 2, 3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    rows = read(FolderTables(tmp_path), "ops.ledger", "f", "dr")
    assert sorted((row.epoch, row.source_first) for row in rows) == [(e, n) for e in (1, 2, 3) for n in range(20)]
