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
from datetime import datetime, timedelta, timezone
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
from mirrorlake.errors import StateMismatch, StorageUnreachable
from mirrorlake.ledger import (
    ADOPTED,
    BASELINE,
    END,
    RELAY,
    REPAIR,
    REPLAY,
    SKIP,
    Book,
    Entry,
    LedgerWriter,
    compact,
    entry_from_row,
    fold,
    joined,
    merged,
    read,
    relay_entries,
)
from mirrorlake.offsets import OffsetMaps
from mirrorlake.records import LEDGER, Run, SourcePartition, TopicPartition
from mirrorlake.recovery import DEAD_LETTER, set_aside
from mirrorlake.tables import FORMAT_PROPERTY, FORMAT_VERSION, FolderTables, Txn

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


def assert_same_answers(rows: Sequence[Entry], fewer: Sequence[Entry], until: int = 120) -> None:
    assert fold(fewer) == fold(rows)
    assert set_aside(fewer) == set_aside(rows)
    assert sum(row.count for row in fewer) == sum(row.count for row in rows)
    whole, short = OffsetMaps(rows), OffsetMaps(fewer)
    for source in {row.source for row in rows}:
        one, two = whole.of(source), short.of(source)
        assert (one is None) == (two is None)
        for offset in range(until) if one and two else ():
            assert (one.target, one.target_topic_id, one.runs) == (two.target, two.target_topic_id, two.runs)
            assert one.to_target(offset) == two.to_target(offset)
            assert one.to_source(offset) == two.to_source(offset)
            assert one.read_again(offset) == two.read_again(offset)


@given(commits())
def test_merged_rows_say_what_the_rows_said(rows: list[Entry]) -> None:
    assert_same_answers(rows, merged(rows))


@given(commits())
def test_a_row_ends_only_where_offsets_do(rows: list[Entry]) -> None:
    assert merged(merged(rows)) == merged(rows)
    relayed = [row for row in merged(rows) if row.kind == RELAY]
    for one, two in pairwise(sorted(relayed, key=lambda row: (row.source, row.source_first))):
        assert one.target_first is not None
        ends = (one.source, one.epoch, one.source_last + 1, one.target_first + one.count)
        assert ends != (two.source, two.epoch, two.source_first, two.target_first)


def test_skips_for_one_reason_are_one_row_however_many_there_are() -> None:
    loop = [entry(SKIP, n, n, 5, reason="loop", target_first=None) for n in range(4)]
    other = entry(SKIP, 4, 4, 5, reason="hops", target_first=None)
    for fewer in (merged([*loop, other]), as_read(joined(as_table([(NOON, [*loop, other])])))):
        assert [(row.source_first, row.source_last, row.count, row.reason) for row in fewer] == [
            (0, 3, 4, "loop"),
            (4, 4, 1, "hops"),
        ]


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


# --- joining what many commits wrote ---

Commit = tuple[datetime, list[Entry]]


@st.composite
def anything(draw: st.DrawFn) -> list[Entry]:
    """Rows that no flow would write, close to each other."""
    few = st.integers(0, 4)
    kinds = st.sampled_from([RELAY, RELAY, RELAY, SKIP, REPAIR, REPLAY, BASELINE, ADOPTED, END])

    def row(kind: str, first: int, count: int, shift: int, epoch: int) -> Entry:
        reason = DEAD_LETTER if kind == SKIP else ""
        return entry(kind, first, first + count - 1, first + count + shift // 4, 1 + epoch // 3, reason=reason)

    rows = st.builds(row, kinds, few, st.integers(1, 3), few, few)
    return draw(st.lists(rows, max_size=8))


@st.composite
def in_commits(draw: st.DrawFn, rows: st.SearchStrategy[list[Entry]]) -> list[Commit]:
    """Some rows to each commit, seconds or days after the one before; each commit merged for itself, or not."""
    left, found, at = draw(rows), list[Commit](), NOON - timedelta(days=3)
    while left:
        count, each = draw(st.integers(1, 3)), draw(st.sampled_from([merged, list]))
        at += timedelta(seconds=draw(st.integers(1, 90)), hours=draw(st.sampled_from([0, 0, 0, 20])))
        found.append((at, each(left[:count])))
        left = left[count:]
    return found


def as_table(commits: Sequence[Commit]) -> pa.Table:
    """As delta-rs gives it: the newest commit first."""
    rows = [each.row(at) for at, entries in reversed(commits) for each in entries]
    return pa.Table.from_pylist(rows, schema=LEDGER)


def as_read(table: pa.Table) -> list[Entry]:
    return [entry_from_row(row) for row in table.sort_by("at").to_pylist()]


@given(in_commits(commits() | anything()))
def test_rows_joined_across_commits_say_what_they_said(written: list[Commit]) -> None:
    table = as_table(written)
    fewer = joined(table)
    assert fewer.schema == table.schema
    assert_same_answers(as_read(table), as_read(fewer))
    assert joined(fewer) == fewer


@given(in_commits(commits()), st.data())
def test_whichever_files_are_joined_the_answers_stay(written: list[Commit], data: st.DataObject) -> None:
    """Full ones stay as they are, and others are appended meanwhile."""
    chosen = [data.draw(st.booleans()) for _ in written]
    small = as_table([each for each, mine in zip(written, chosen, strict=True) if mine])
    rest = as_table([each for each, mine in zip(written, chosen, strict=True) if not mine])
    assert_same_answers(as_read(as_table(written)), as_read(pa.concat_tables([rest, joined(small)])))


def trickle(at: datetime, count: int, first: int = 0) -> list[Commit]:
    """A record a second, each in a commit of its own."""
    return [
        (at + timedelta(seconds=number), [entry(first=number, last=number, end=number + 1)])
        for number in range(first, first + count)
    ]


def test_a_trickle_of_days_is_one_row() -> None:
    table = joined(as_table(trickle(NOON - timedelta(days=3), 7200) + trickle(NOON, 100, 7200)))
    (row,) = table.to_pylist()
    assert (row["source_first"], row["source_last"], row["count"]) == (0, 7299, 7300)
    assert row["at"] == NOON + timedelta(seconds=7299), "when its newest record was written down"


BETWEEN = [
    entry(SKIP, 5, 9, 10, reason=DEAD_LETTER), entry(REPAIR, 10, 12, 30), entry(REPLAY, 3, 4, 40), entry(END, 10, 9, 10)
]  # fmt: skip


@pytest.mark.parametrize("other", BETWEEN, ids=lambda other: other.kind)
def test_nothing_is_joined_across_a_row_between(other: Entry) -> None:
    one, two = entry(last=9, end=10), entry(first=10, last=19, end=20)
    table = as_table([(NOON, [one]), (NOON + timedelta(seconds=1), [other]), (NOON + timedelta(seconds=2), [two])])
    assert joined(table).num_rows == 3


@pytest.mark.parametrize(("epoch", "rows"), [(1, 2), (2, 3)])
def test_a_baseline_comes_first_in_its_epoch_whenever_it_was_written(epoch: int, rows: int) -> None:
    one, two = entry(last=9, end=10), entry(first=10, last=19, end=20, epoch=epoch)
    anew = baseline(10, 10, epoch)
    table = as_table([(NOON, [one]), (NOON + timedelta(seconds=1), [anew]), (NOON + timedelta(seconds=2), [two])])
    assert joined(table).num_rows == rows
    assert_same_answers(as_read(table), as_read(joined(table)))


@pytest.mark.parametrize(
    "other",
    [{"epoch": 2}, {"target": "hubs"}, {"flow": "g"}, {"target_topic_id": "made anew"}, {"kind": REPAIR},
     {"source": SOURCE._replace(topic_id="id-2")}, {"target_partition": TARGET._replace(partition=1)},
     {"source_first": 11}, {"target_first": 11}, {"reason": "recovered"}],
    ids=str,
)  # fmt: skip
def test_what_differs_is_not_joined(other: dict[str, Any]) -> None:
    one, two = entry(last=9, end=10), entry(first=10, last=19, end=20)
    assert joined(as_table([(NOON, [one, two])])).num_rows == 1
    assert joined(as_table([(NOON, [one, replace(two, **other)])])).num_rows == 2


# --- writing ---


class NotedTables:
    """Keeps what is appended; can be slow, and can fail."""

    def __init__(self) -> None:
        self.commits: list[pa.Table] = []
        self.numbers: list[Txn | None] = []
        self.fault: Exception | None = None
        self.open = threading.Event()
        self.open.set()

    def append(self, name: str, rows: pa.Table, once: Txn | None = None) -> None:
        self.open.wait(5)
        if self.fault:
            raise self.fault
        self.commits.append(rows)
        self.numbers.append(once)

    def folder(self, name: str) -> Path | None:
        return None

    @property
    def firsts(self) -> list[int]:
        return [first for commit in self.commits for first in commit["source_first"].to_pylist()]


@pytest.fixture
def tables() -> NotedTables:
    return NotedTables()


def test_each_commit_has_a_number_of_its_own_so_that_storage_takes_it_once(tables: NotedTables) -> None:
    for _ in range(2):
        writer = writer_for(tables)
        for number in range(2):
            writer.add([entry(first=number, last=number)])
            writer.flush()
        writer.close()
    ids, versions = zip(*(number for number in tables.numbers if number), strict=True)
    assert versions == (0, 1, 0, 1)
    assert (len(set(ids)), ids[0], ids[2]) == (2, ids[1], ids[3])


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


def written_one_by_one(root: Path, count: int, epoch: int = 1, steps: int = 0) -> FolderTables:
    """Rows that go on where the one before them ended, if the target's log makes steps."""
    tables = FolderTables(root)
    tables.ensure("ops.ledger", LEDGER, {})
    writer = writer_for(tables)
    for number in range(count):
        writer.add([entry(first=number, last=number, end=10 + steps * number, epoch=epoch)])
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
    assert len(tried) == 1 + 3  # a look at the start
    assert len(read(tables, "ops.ledger", "f", "dr")) == 9


@pytest.mark.usefixtures("often")
def test_only_one_compacts_at_a_time(tmp_path: Path) -> None:
    tables = written_one_by_one(tmp_path, 1)
    with (folder_of(tmp_path) / "_compacting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        written_one_by_one(tmp_path, 9)
    assert len(DeltaTable(tables.folder("ops.ledger")).file_uris()) == 10


def folder_of(root: Path) -> Path:
    return root / "tables" / "ops" / "ledger"


def in_files(root: Path, commits: Sequence[Commit]) -> FolderTables:
    tables = FolderTables(root)
    tables.ensure("ops.ledger", LEDGER, {"delta.checkpointInterval": "10"})
    for each in commits:
        tables.append("ops.ledger", as_table([each]))
    return tables


def ledger_of(tables: FolderTables) -> DeltaTable:
    return DeltaTable(tables.folder("ops.ledger"))


def spans_of(tables: FolderTables) -> list[tuple[int, int]]:
    return sorted((row.source_first, row.source_last) for row in read(tables, "ops.ledger", "f", "dr"))


def test_rows_of_many_commits_become_one_and_the_table_stays_what_it_was(tmp_path: Path) -> None:
    tables = in_files(tmp_path, trickle(NOON - timedelta(days=1), 20))
    before = ledger_of(tables)
    assert compact(folder_of(tmp_path))
    after = ledger_of(tables)
    assert spans_of(tables) == [(0, 19)]
    assert len(after.file_uris()) == 1
    assert after.version() == before.version() + 1
    assert after.metadata().configuration == before.metadata().configuration
    assert after.schema() == before.schema()


def test_a_folder_may_look_like_a_column(tmp_path: Path) -> None:
    root = tmp_path / "target=elsewhere"
    tables = in_files(root, trickle(NOON, 3))
    assert compact(folder_of(root))
    assert spans_of(tables) == [(0, 2)]


def test_where_there_is_nothing_to_join_nothing_is_written(tmp_path: Path) -> None:
    tables = in_files(tmp_path, trickle(NOON, 1))
    assert compact(folder_of(tmp_path))
    assert ledger_of(tables).version() == 1


def test_a_full_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = [(NOON, [row for _, rows in trickle(NOON, 5, first) for row in rows]) for first in (0, 5)]
    tables = in_files(tmp_path, commits)
    for full_bytes, version, spans in [(1, 2, [(n, n) for n in range(10)]), (1 << 20, 3, [(0, 9)])]:
        monkeypatch.setattr(ledger_module, "_FULL_BYTES", full_bytes)
        assert compact(folder_of(tmp_path))
        assert (ledger_of(tables).version(), spans_of(tables)) == (version, spans)


def appends(tables: FolderTables) -> None:
    tables.append("ops.ledger", as_table(trickle(NOON, 1, first=20)))


@pytest.mark.parametrize("late", [False, True], ids=["before the last look", "after it"])
def test_what_is_appended_during_a_compaction_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    tables, looks = in_files(tmp_path, trickle(NOON, 20)), list[int]()
    look = ledger_module._files

    def meets_an_append(table: DeltaTable) -> list[dict[str, Any]]:
        found = look(table)
        looks.append(1)
        if len(looks) == 1 + late:
            appends(tables)
        return found

    monkeypatch.setattr(ledger_module, "_files", meets_an_append)
    assert compact(folder_of(tmp_path))
    assert spans_of(tables) == [(0, 19), (20, 20)]
    assert len(looks) == 2 + late


def test_a_compaction_whose_files_are_gone_leaves_the_rows_to_who_was_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of somebody who does not know the lock."""
    tables, swap = in_files(tmp_path, trickle(NOON, 20)), ledger_module._replace_files

    def comes_second(*given: Any) -> bool:
        DeltaTable(tables.folder("ops.ledger")).optimize.compact()
        return swap(*given)

    monkeypatch.setattr(ledger_module, "_replace_files", comes_second)
    assert not compact(folder_of(tmp_path))
    assert spans_of(tables) == [(n, n) for n in range(20)]


def test_a_compaction_that_is_killed_leaves_all_as_it_was(tmp_path: Path) -> None:
    tables = in_files(tmp_path, trickle(NOON, 20))
    code = (
        "import os, sys; from pathlib import Path\n"
        "from mirrorlake import ledger\n"
        "ledger._replace_files = lambda *_: os._exit(9)\n"
        "ledger.compact(Path(sys.argv[1]))\n"
    )
    folder = folder_of(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code, str(folder)], env=environment).returncode == 9
    assert (ledger_of(tables).version(), spans_of(tables)) == (20, [(n, n) for n in range(20)])
    assert compact(folder)
    assert spans_of(tables) == [(0, 19)]


def test_a_ledger_of_a_newer_format_is_not_compacted(tmp_path: Path) -> None:
    tables = in_files(tmp_path, trickle(NOON, 3))
    newer = {FORMAT_PROPERTY: str(FORMAT_VERSION + 1)}
    ledger_of(tables).alter.set_table_properties(newer, raise_if_not_exists=False)
    version = ledger_of(tables).version()
    with pytest.raises(StateMismatch):
        compact(folder_of(tmp_path))
    writer = writer_for(tables)
    assert not writer._compact()
    writer.add([entry()])
    with pytest.raises(StateMismatch, match=f"format {FORMAT_VERSION + 1}"):
        writer.close()
    assert ledger_of(tables).version() == version


@pytest.mark.usefixtures("often")
def test_processes_that_commit_once_each_compact_all_the_same(tmp_path: Path) -> None:
    for _ in range(12):
        tables = written_one_by_one(tmp_path, 1)
    assert len(ledger_of(tables).file_uris()) <= 4


@pytest.mark.parametrize("steps", [0, 1], ids=["nothing goes on", "all goes on"])
def test_processes_that_append_and_compact_at_once_leave_every_offset_once(tmp_path: Path, steps: int) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from mirrorlake import ledger; from mirrorlake.tables import FolderTables\n"
        "import test_ledger\n"
        "ledger.COMPACT_EVERY = ledger.COMPACT_SOON = 2\n"
        "test_ledger.written_one_by_one(Path(sys.argv[1]), 20, *map(int, sys.argv[2:]))\n"
    )
    FolderTables(tmp_path).ensure("ops.ledger", LEDGER, {})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(epoch), str(steps)], env=environment) for epoch in (1, 2, 3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    rows = read(FolderTables(tmp_path), "ops.ledger", "f", "dr")
    assert (len(rows) < 60) == bool(steps)
    offsets = [(row.epoch, offset) for row in rows for offset in range(row.source_first, row.source_last + 1)]
    assert sorted(offsets) == [(epoch, offset) for epoch in (1, 2, 3) for offset in range(20)]
