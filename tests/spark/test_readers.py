"""Two readers of one bronze table: the files themselves, and Spark. They must not differ."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mirrorlake.readers import SOURCE_COLUMNS, BronzeInCatalog, BronzeInFolder, by_source
from mirrorlake.records import SourcePartition
from mirrorlake.tables import RECORD_COLUMNS, FolderTables, Segment

from .frames import CLICKS_ID, ORDERS_ID, TABLE, commit, make_bronze

ORDERS = SourcePartition("orders", ORDERS_ID, 0)
ORDERS_1 = SourcePartition("orders", ORDERS_ID, 1)
ANEW = SourcePartition("orders", CLICKS_ID, 0)  # the topic was deleted and made anew: offsets begin at 0 again
CLICKS = SourcePartition("clicks", CLICKS_ID, 0)

BATCHES: tuple[dict[SourcePartition, Iterable[int]], ...] = (
    {ORDERS: range(0, 50), ORDERS_1: range(0, 10), CLICKS: [0, 1, 5, 8]},
    {ORDERS: range(50, 60), ORDERS_1: [10, 12, 20]},
    {ANEW: range(0, 30), CLICKS: [9]},
    {ORDERS: [61, 70, 71, 72]},
)
HELD = {
    ORDERS: [*range(60), 61, 70, 71, 72],
    ORDERS_1: [*range(10), 10, 12, 20],
    ANEW: [*range(30)],
    CLICKS: [0, 1, 5, 8, 9],
}


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FolderTables:
    tables = FolderTables(tmp_path_factory.mktemp("template"))
    make_bronze(tables)
    for number, batch in enumerate(BATCHES):
        commit(spark, tables, number, batch)
    return tables


@pytest.fixture
def bronze(template: FolderTables, tables: FolderTables) -> FolderTables:
    """A copy that a test may change."""
    shutil.copytree(template.root, tables.root, dirs_exist_ok=True)
    return tables


def in_folder(spark: SparkSession, tables: FolderTables) -> BronzeInFolder:
    folder = tables.folder(TABLE)
    assert folder is not None
    return BronzeInFolder(spark, folder)


def in_catalog(spark: SparkSession, tables: FolderTables) -> BronzeInCatalog:
    return BronzeInCatalog(spark, tables.identifier(TABLE))


def rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def ranges(segments: Iterable[Segment]) -> dict[SourcePartition, tuple[int, int, int]]:
    found: dict[SourcePartition, list[Segment]] = {}
    for segment in segments:
        found.setdefault(segment.source, []).append(segment)
    return {
        source: (min(s.first_offset for s in held), max(s.last_offset for s in held), sum(s.records for s in held))
        for source, held in found.items()
    }


def check_readers(files: BronzeInFolder, catalog: BronzeInCatalog) -> None:
    expected = {source: (held[0], held[-1], len(held)) for source, held in HELD.items()}
    assert ranges(files.segments()) == expected
    assert ranges(catalog.segments()) == expected
    for source, held in HELD.items():
        for first, until in ((0, 1000), (held[2], held[-1])):
            by_files, by_spark = rows(files.read(source, first, until)), rows(catalog.read(source, first, until))
            assert [row["offset"] for row in by_files] == [offset for offset in held if first <= offset < until]
            assert by_files == by_spark
            assert all(list(row) == RECORD_COLUMNS for row in by_files)


def test_both_readers_give_the_same_records_in_order(spark: SparkSession, bronze: FolderTables) -> None:
    check_readers(in_folder(spark, bronze), in_catalog(spark, bronze))


@pytest.mark.parametrize("optimize", ["OPTIMIZE {}", "OPTIMIZE {} ZORDER BY (`timestamp`)"], ids=["compact", "zorder"])
def test_both_readers_agree_after_compaction(spark: SparkSession, bronze: FolderTables, optimize: str) -> None:
    before_files, before_spark = in_folder(spark, bronze), in_catalog(spark, bronze)
    spark.sql(optimize.format(bronze.identifier(TABLE)))
    assert before_files.refresh() == before_spark.refresh()
    assert len({segment.path for segment in before_files.segments()}) == 1
    check_readers(before_files, before_spark)
    assert ranges(in_folder(spark, bronze).segments()) == ranges(in_catalog(spark, bronze).segments())


def test_a_version_is_pinned_until_the_next_look(spark: SparkSession, bronze: FolderTables) -> None:
    catalog = in_catalog(spark, bronze)
    version = catalog.refresh()
    commit(spark, bronze, 9, {ANEW: [30, 31]})
    assert rows(catalog.read(ANEW, 30, 40)) == []
    assert catalog.refresh() == version + 1
    assert [row["offset"] for row in rows(catalog.read(ANEW, 30, 40))] == [30, 31]


def test_a_commit_of_the_stream_adds_its_ranges(spark: SparkSession, bronze: FolderTables) -> None:
    catalog = in_catalog(spark, bronze)
    commit(spark, bronze, 9, {ANEW: [30, 35], CLICKS: [20]})
    catalog.see(spark.table(bronze.identifier(TABLE)).where("batch = 9"))
    assert ranges(catalog.segments())[ANEW] == (0, 35, 32)
    assert ranges(catalog.segments())[CLICKS] == (0, 20, 6)


def test_an_empty_table_has_no_segments(spark: SparkSession, tables: FolderTables) -> None:
    make_bronze(tables)
    assert in_folder(spark, tables).segments() == in_catalog(spark, tables).segments() == []


# --- sorted rows, cut by source ---


@pytest.mark.parametrize("rows_per_batch", [1, 7, 10_000])
def test_sorted_rows_are_cut_where_the_source_changes(
    spark: SparkSession, bronze: FolderTables, rows_per_batch: int
) -> None:
    frame = spark.table(bronze.identifier(TABLE)).coalesce(1).sortWithinPartitions(*SOURCE_COLUMNS, "offset")
    table = frame.select(*SOURCE_COLUMNS, *RECORD_COLUMNS).toArrow()
    cut = list(by_source(table.combine_chunks().to_batches(rows_per_batch)))
    assert [source for source, _ in cut] == sorted(HELD)
    assert {source: [row["offset"] for row in rows(held)] for source, held in cut} == HELD
    assert {tuple(batch.schema.names) for _, held in cut for batch in held} == {tuple(RECORD_COLUMNS)}


def test_nothing_is_cut_from_nothing() -> None:
    assert list(by_source([])) == []
