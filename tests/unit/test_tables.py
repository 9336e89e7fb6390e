"""Tables in a folder, the files that hold which offsets, and reading them in order."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import OTHER_ID, SOURCE, TOPIC_ID, bronze_row, bronze_table

from mirrorlake import tables as tables_module
from mirrorlake.errors import StateMismatch, StorageUnreachable
from mirrorlake.records import BRONZE, INCIDENTS, OPS_TABLES, SourcePartition
from mirrorlake.tables import (
    FORMAT_PROPERTY,
    FORMAT_VERSION,
    BronzeFiles,
    FolderTables,
    Segment,
    bronze_properties,
    ensure_ops,
    read_ordered,
)

PLAIN = pa.schema([("who", pa.string()), ("number", pa.int64())])


def plain(*numbers: int, who: str = "a") -> pa.Table:
    return pa.Table.from_pylist([{"who": who, "number": number} for number in numbers], schema=PLAIN)


# --- a folder of tables ---


def test_a_table_is_made_once_and_keeps_its_rows(tmp_path: Path) -> None:
    tables = FolderTables(tmp_path)
    assert not tables.exists("ops.x")
    tables.ensure("ops.x", PLAIN, {})
    assert tables.exists("ops.x")
    tables.append("ops.x", plain(1, 2))
    tables.ensure("ops.x", PLAIN, {})
    assert sorted(tables.read("ops.x")["number"].to_pylist()) == [1, 2]
    assert tables.folder("ops.x") == tmp_path / "tables" / "ops" / "x"
    assert tables.identifier("ops.x") == f"delta.`{tmp_path}/tables/ops/x`"


def test_rows_are_read_by_column_and_value(tmp_path: Path) -> None:
    tables = FolderTables(tmp_path)
    tables.ensure("ops.x", PLAIN, {})
    tables.append("ops.x", plain(1, who="a"))
    tables.append("ops.x", plain(2, who="b"))
    assert tables.read("ops.x", ["number"], who="b").to_pylist() == [{"number": 2}]
    assert tables.read("ops.x", who="it's not there").num_rows == 0


def test_a_missing_table_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(StorageUnreachable, match=r"no table ops\.x"):
        FolderTables(tmp_path).read("ops.x")


def test_a_root_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("a file, no folder")
    with pytest.raises(StorageUnreachable, match="cannot be written"):
        FolderTables(tmp_path).ensure("ops.x", PLAIN, {})


def test_a_table_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    tables = FolderTables(tmp_path)
    newer = {FORMAT_PROPERTY: str(FORMAT_VERSION + 1)}
    DeltaTable.create(tmp_path / "tables" / "ops" / "x", PLAIN, configuration=newer, raise_if_key_not_exists=False)
    with pytest.raises(StateMismatch, match=f"format {FORMAT_VERSION + 1}"):
        tables.ensure("ops.x", PLAIN, {})


def never_written(_folder: Path) -> list[Path]:
    raise AssertionError("nothing may be written for a table that is not ours to write")


@pytest.mark.parametrize(
    "use",
    [
        lambda tables: tables.append("ops.x", plain(1)),
        lambda tables: tables.append_once("ops.x", plain(1), "app", 1),
        lambda tables: tables.append_files(never_written, "ops.x", "app", 1),
        lambda tables: tables.read("ops.x"),
    ],
    ids=["append", "append_once", "append_files", "read"],
)
def test_a_table_that_became_newer_is_left_as_it_is(tmp_path: Path, use: Callable[[FolderTables], Any]) -> None:
    tables = FolderTables(tmp_path)
    tables.ensure("ops.x", PLAIN, {})
    table = DeltaTable(tmp_path / "tables" / "ops" / "x")
    table.alter.set_table_properties({FORMAT_PROPERTY: str(FORMAT_VERSION + 1)}, raise_if_not_exists=False)
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(StateMismatch, match=f"format {FORMAT_VERSION + 1}, .* knows {FORMAT_VERSION}"):
        use(tables)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_an_append_to_a_table_that_is_not_there_makes_none(tmp_path: Path) -> None:
    with pytest.raises(StorageUnreachable, match=r"no table ops\.x"):
        FolderTables(tmp_path).append("ops.x", plain(1))
    assert not FolderTables(tmp_path).exists("ops.x")


def test_a_table_of_an_older_format_gets_what_it_lacks_and_keeps_its_rows(tmp_path: Path) -> None:
    tables, wider = FolderTables(tmp_path), pa.schema([*PLAIN, ("since_two", pa.string())])
    older = {FORMAT_PROPERTY: "1"}
    DeltaTable.create(tmp_path / "tables" / "ops" / "x", PLAIN, configuration=older, raise_if_key_not_exists=False)
    tables.append("ops.x", plain(1))
    for _ in range(2):
        tables.ensure("ops.x", wider, {})
    row = {"who": "b", "number": 2, "since_two": "new"}
    tables.append("ops.x", pa.Table.from_pylist([row], schema=wider))
    rows = sorted(tables.read("ops.x").to_pylist(), key=lambda row: row["number"])
    assert rows == [{"who": "a", "number": 1, "since_two": None}, row]
    kept = DeltaTable(tmp_path / "tables" / "ops" / "x").metadata().configuration
    assert kept[FORMAT_PROPERTY] == str(FORMAT_VERSION)


def test_all_ops_tables_are_made_and_take_their_own_schema(tmp_path: Path) -> None:
    tables = FolderTables(tmp_path)
    ensure_ops(tables, "ops")
    assert all(tables.exists(f"ops.{name}") for name in OPS_TABLES)
    tables.append("ops.incidents", INCIDENTS.empty_table())
    assert tables.read("ops.incidents").schema.names == INCIDENTS.names


def test_bronze_keeps_its_files_as_long_as_asked_and_no_deletion_vectors(tmp_path: Path) -> None:
    tables = FolderTables(tmp_path)
    tables.ensure("bronze.t", BRONZE, bronze_properties(168))
    kept = DeltaTable(tmp_path / "tables" / "bronze" / "t").metadata().configuration
    assert kept["delta.deletedFileRetentionDuration"] == "interval 168 hours"
    assert kept["delta.enableDeletionVectors"] == "false"
    assert kept[FORMAT_PROPERTY] == str(FORMAT_VERSION)


def test_a_changed_retention_reaches_a_table_that_is_there(tmp_path: Path) -> None:
    tables = FolderTables(tmp_path)
    for hours in (168, 24, 24):
        tables.ensure("bronze.t", BRONZE, bronze_properties(hours))
    table = DeltaTable(tmp_path / "tables" / "bronze" / "t")
    assert table.metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 24 hours"
    assert table.version() == 1


def test_a_transaction_version_of_nobody_is_none(tmp_path: Path) -> None:
    tables = FolderTables(tmp_path)
    tables.ensure("ops.x", PLAIN, {})
    assert tables.txn_version("ops.x", "nobody") is None


def test_appends_of_several_processes_at_once_all_land(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import pyarrow as pa\n"
        "from mirrorlake.tables import FolderTables\n"
        "schema = pa.schema([('who', pa.string()), ('number', pa.int64())])\n"
        f"tables = FolderTables(Path({str(tmp_path)!r})); tables.ensure('ops.x', schema, {{}})\n"
        "for n in range(8):\n"
        "    row = {'who': sys.argv[1], 'number': n}\n"
        "    tables.append('ops.x', pa.Table.from_pylist([row], schema=schema))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    rows = FolderTables(tmp_path).read("ops.x").to_pylist()
    assert sorted((row["who"], row["number"]) for row in rows) == [(n, i) for n in "abc" for i in range(8)]


# --- which files hold which offsets ---

CLICKS = SourcePartition("clicks", OTHER_ID, 3)


@pytest.fixture
def bronze(tmp_path: Path) -> Path:
    FolderTables(tmp_path).ensure("bronze.t", BRONZE, {})
    return tmp_path / "tables" / "bronze" / "t"


def commit(folder: Path, offsets: Iterable[int], source: SourcePartition = SOURCE) -> None:
    write_deltalake(folder, bronze_table(bronze_row(offset, source) for offset in offsets), mode="append")


def held(segments: Iterable[Segment]) -> list[tuple[SourcePartition, int, int, int, bool]]:
    return sorted((s.source, s.first_offset, s.last_offset, s.records, s.alone) for s in segments)


def test_an_empty_table_holds_nothing(bronze: Path) -> None:
    assert BronzeFiles(bronze).segments() == []


def test_a_file_of_one_partition_is_known_by_its_statistics(bronze: Path) -> None:
    commit(bronze, [5, 6, 9])
    (segment,) = BronzeFiles(bronze).segments()
    assert held([segment]) == [(SOURCE, 5, 9, 3, True)]
    assert segment.bytes == Path(segment.path).stat().st_size


@pytest.mark.parametrize(
    "other",
    [SOURCE._replace(topic="clicks"), SOURCE._replace(topic_id=OTHER_ID), SOURCE._replace(partition=1)],
    ids=["topics", "incarnations of a topic", "partitions"],
)
def test_a_file_of_two(bronze: Path, other: SourcePartition) -> None:
    rows = [bronze_row(1), bronze_row(2), *(bronze_row(offset, other) for offset in (7, 9))]
    write_deltalake(bronze, bronze_table(rows), mode="append")
    segments = BronzeFiles(bronze).segments()
    assert held(segments) == sorted([(SOURCE, 1, 2, 2, False), (other, 7, 9, 2, False)])
    assert len({segment.path for segment in segments}) == 1
    assert offsets_of(segments, other) == [7, 9]


def test_refresh_sees_new_versions_and_reads_nothing_twice(bronze: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = BronzeFiles(bronze)
    commit(bronze, [1, 2])
    version = files.refresh()
    looked: list[str] = []
    whole = files._segments_of
    monkeypatch.setattr(files, "_segments_of", lambda row: looked.append(row["path"]) or whole(row))
    assert files.refresh() == version
    assert looked == []
    commit(bronze, [3])
    assert files.refresh() == version + 1
    assert len(looked) == 1
    assert held(files.segments()) == [(SOURCE, 1, 2, 2, True), (SOURCE, 3, 3, 1, True)]


def test_after_a_rewrite_the_new_files_stand_for_the_old(bronze: Path) -> None:
    for begin in (0, 10, 20):
        commit(bronze, range(begin, begin + 10))
        commit(bronze, range(begin, begin + 5), CLICKS)
    files = BronzeFiles(bronze)
    DeltaTable(bronze).optimize.compact()
    files.refresh()
    assert held(files.segments()) == sorted([(SOURCE, 0, 29, 30, False), (CLICKS, 0, 24, 15, False)])
    assert offsets_of(files.segments(), SOURCE) == list(range(30))
    assert offsets_of(files.segments(), CLICKS) == [*range(5), *range(10, 15), *range(20, 25)]


def test_what_was_delivered_is_forgotten_but_for_the_last(bronze: Path) -> None:
    for begin in (0, 10, 20):
        commit(bronze, range(begin, begin + 10))
    commit(bronze, range(5), CLICKS)
    files = BronzeFiles(bronze)
    files.forget({SOURCE: 15})
    assert held(files.segments()) == sorted(
        [(SOURCE, 10, 19, 10, True), (SOURCE, 20, 29, 10, True), (CLICKS, 0, 4, 5, True)]
    )
    files.forget({SOURCE: 30, CLICKS: 5})
    assert held(files.segments()) == sorted([(SOURCE, 20, 29, 10, True), (CLICKS, 0, 4, 5, True)])
    commit(bronze, [30])
    files.refresh()
    files.forget({SOURCE: 30, CLICKS: 5})
    assert held(files.segments()) == sorted([(SOURCE, 30, 30, 1, True), (CLICKS, 0, 4, 5, True)])


def test_where_the_log_was_cleaned_the_whole_table_is_looked_at(bronze: Path) -> None:
    files = BronzeFiles(bronze)
    commit(bronze, [1, 2])
    commit(bronze, [3])
    DeltaTable(bronze).create_checkpoint()
    (bronze / "_delta_log" / f"{1:020}.json").unlink()
    assert files.refresh() == 2
    assert held(files.segments()) == [(SOURCE, 1, 2, 2, True), (SOURCE, 3, 3, 1, True)]


def indexing(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every DeltaTable that is opened from now on."""
    opened: list[Any] = []
    monkeypatch.setattr(tables_module, "DeltaTable", lambda folder: opened.append(folder) or DeltaTable(folder))
    return opened


def test_new_entries_are_followed_without_opening_the_table(bronze: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for begin in (0, 10):
        commit(bronze, range(begin, begin + 10))
    files = BronzeFiles(bronze)
    opened = indexing(monkeypatch)
    assert files.refresh() == 2
    DeltaTable(bronze).optimize.compact()
    commit(bronze, [20])
    assert files.refresh() == DeltaTable(bronze).version() == 4
    DeltaTable(bronze).create_checkpoint()
    assert files.refresh() == 4
    assert held(files.segments()) == [(SOURCE, 0, 19, 20, True), (SOURCE, 20, 20, 1, True)]
    assert opened == []


def test_a_file_that_was_vacuumed_before_anybody_looked_is_passed_over(bronze: Path) -> None:
    """Compacted files hold several partitions, so they are opened."""
    files = BronzeFiles(bronze)
    for begin in (0, 10, 20):
        commit(bronze, range(begin, begin + 10))
        commit(bronze, range(begin, begin + 10), CLICKS)
        DeltaTable(bronze).optimize.compact()
        DeltaTable(bronze).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert files.refresh() == DeltaTable(bronze).version()
    assert offsets_of(files.segments(), SOURCE) == offsets_of(files.segments(), CLICKS) == list(range(30))


@pytest.mark.parametrize("far", [False, True], ids=["other properties", "more versions than are followed"])
def test_what_is_not_worth_following_is_looked_at_anew(
    bronze: Path, monkeypatch: pytest.MonkeyPatch, far: bool
) -> None:
    monkeypatch.setattr(BronzeFiles, "_MOST_FOLLOWED", 1 if far else 300)
    files = BronzeFiles(bronze)
    opened = indexing(monkeypatch)
    if not far:
        DeltaTable(bronze).alter.set_table_properties({"delta.appendOnly": "false"})
    commit(bronze, [1, 2])
    commit(bronze, [3])
    assert files.refresh() == DeltaTable(bronze).version()
    assert opened == [bronze]
    assert files.refresh() == DeltaTable(bronze).version()
    assert opened == [bronze]
    assert held(files.segments()) == [(SOURCE, 1, 2, 2, True), (SOURCE, 3, 3, 1, True)]


def test_a_checkpoint_that_is_just_being_written_is_left_for_the_next_look(bronze: Path) -> None:
    files = BronzeFiles(bronze)
    (bronze / "_delta_log" / "_last_checkpoint").write_text("")
    assert files.refresh() == 0


# --- in order ---


def offsets_of(
    segments: Sequence[Segment], source: SourcePartition = SOURCE, first: int = 0, until: int = 2**62
) -> list[int]:
    mine = [segment for segment in segments if segment.source == source]
    return [offset for batch in read_ordered(mine, first, until) for offset in batch["offset"].to_pylist()]


def write_file(path: Path, offsets: Sequence[int], strangers: Sequence[int] = (), **options: Any) -> Segment:
    """A Parquet file with these offsets in this order, and perhaps those of another partition between."""
    rows = [bronze_row(offset) for offset in offsets]
    for offset in strangers:
        rows.insert(len(rows) // 2, bronze_row(offset, CLICKS))
    pq.write_table(bronze_table(rows), path, **options)
    return Segment(str(path), SOURCE, min(offsets), max(offsets), len(offsets), 100, alone=not strangers)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows at a time, as of very large records."""
    monkeypatch.setattr(tables_module, "_rows_per_batch", lambda _metadata: 3)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    "order",
    [
        [*range(10, 20), *range(10)],
        [*range(6, 9), *range(3, 6), *range(3)],
        [3, 4, 5, 0, 1, 2, 6, 7, 8],
        [0, 1, 2, 6, 7, 8, 3, 4, 5],
        [10, 20, 30, 1, 2, 3],
        [0, 1, 2, 50, 60, 70, 10, 20, 30],
        list(range(20))[::-1],
    ],
    ids=str,
)
@pytest.mark.parametrize("strangers", [(), (0, 1, 2, 3)], ids=["alone", "with another partition"])
def test_a_file_that_compaction_joined_backwards_is_read_in_order(
    tmp_path: Path, order: list[int], strangers: tuple[int, ...]
) -> None:
    segment = write_file(tmp_path / "f", order, strangers, row_group_size=6)
    assert offsets_of([segment]) == sorted(order)
    middle = sorted(order)[len(order) // 2]
    assert offsets_of([segment], first=middle) == [offset for offset in sorted(order) if offset >= middle]


def test_a_large_file_joined_backwards_is_read_in_order(tmp_path: Path) -> None:
    rows = pa.concat_tables([offsets_only(range(20000, 40000)), offsets_only(range(20000))])
    pq.write_table(rows, tmp_path / "f")
    segment = Segment(str(tmp_path / "f"), SOURCE, 0, 39999, 40000, 100, alone=True)
    assert offsets_of([segment]) == list(range(40000))


def offsets_only(offsets: range) -> pa.Table:
    columns = {"offset": pa.array(offsets, pa.int64()), "topic": pa.array(["orders"] * len(offsets))}
    columns |= {
        "topic_id": pa.array([TOPIC_ID] * len(offsets)),
        "partition": pa.array([0] * len(offsets), pa.int32()),
    }
    missing = (name for name in BRONZE.names if name not in columns)
    columns |= {name: pa.nulls(len(offsets), BRONZE.field(name).type) for name in missing}
    return pa.table(columns).select(BRONZE.names).cast(BRONZE)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    offsets=st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    first=st.integers(0, 60),
    length=st.integers(0, 60),
    rows_per_batch=st.integers(1, 7),
    jumbled=st.booleans(),
    seed=st.integers(0, 99),
)
def test_whatever_the_files_every_offset_in_the_range_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    offsets: list[int],
    cuts: list[int],
    first: int,
    length: int,
    rows_per_batch: int,
    jumbled: bool,
    seed: int,
) -> None:
    monkeypatch.setattr(tables_module, "_rows_per_batch", lambda _metadata: rows_per_batch)
    folder = tmp_path_factory.mktemp("files")
    dealt = offsets if jumbled else sorted(offsets)
    ends = sorted({0, len(dealt), *(cut for cut in cuts if cut < len(dealt))})
    parts = [dealt[a:b] for a, b in pairwise(ends)]
    segments = [
        write_file(folder / str(n), part, (1, 2) if n % 2 else (), row_group_size=5) for n, part in enumerate(parts)
    ]
    random.Random(seed).shuffle(segments)  # noqa: S311
    batches = list(read_ordered(segments, first, first + length))
    wanted = [offset for offset in sorted(offsets) if first <= offset < first + length]
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == wanted
    assert all(0 < batch.num_rows <= rows_per_batch for batch in batches)


@pytest.mark.parametrize("distinct", [True, False], ids=["of distinct content", "all alike, so that Parquet keeps one"])
def test_batches_stay_small_when_records_are_large(tmp_path: Path, distinct: bool) -> None:
    value = random.Random(0).randbytes(900_000)  # noqa: S311
    rows = [bronze_row(n, value=bytes([n]) + value if distinct else value) for n in range(60)]
    pq.write_table(bronze_table(rows), tmp_path / "f")
    segment = Segment(str(tmp_path / "f"), SOURCE, 0, 59, 60, 1, alone=True)
    batches = list(read_ordered([segment], 0, 60))
    assert sum(batch.num_rows for batch in batches) == 60
    assert max(batch.nbytes for batch in batches) < 20_000_000


def test_a_batch_holds_what_is_sent_and_nothing_else(tmp_path: Path) -> None:
    row = bronze_row(0, key=None, value=b"", headers=[("a", None), ("a", b"")])
    pq.write_table(bronze_table([row]), tmp_path / "f")
    segment = Segment(str(tmp_path / "f"), SOURCE, 0, 0, 1, 1, alone=True)
    (batch,) = read_ordered([segment], 0, 1)
    assert batch.to_pylist() == [{name: row[name] for name in ("offset", "timestamp", "key", "value", "headers")}]
