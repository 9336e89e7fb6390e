"""Two readers of one bronze table: the files themselves, and Spark. They must not differ."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mirrorlake.bronze import shape_bronze
from mirrorlake.produce import Outcome, Slice
from mirrorlake.readers import SOURCE_COLUMNS, BronzeInCatalog, BronzeInFolder, _without_records, by_source
from mirrorlake.records import SourcePartition, TopicPartition
from mirrorlake.tables import RECORD_COLUMNS, FolderTables, Segment

from .frames import CLICKS_ID, ORDERS_ID, TABLE, commit, kafka_frame, kafka_row, make_bronze

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
    catalog.see(spark.table(bronze.identifier(TABLE)).where("batch = 9"))
    assert rows(catalog.read(ANEW, 30, 40)) == []
    assert catalog.refresh() == version + 1
    assert [row["offset"] for row in rows(catalog.read(ANEW, 30, 40))] == [30, 31]


def test_a_commit_of_the_stream_counts_from_the_version_that_has_it(spark: SparkSession, bronze: FolderTables) -> None:
    """Seen between two looks it must wait: a round would plan what the pinned version has not, and pass it over."""
    catalog = in_catalog(spark, bronze)
    catalog.refresh()
    commit(spark, bronze, 9, {ANEW: [30, 35], CLICKS: [20]})
    catalog.see(spark.table(bronze.identifier(TABLE)).where("batch = 9"))
    assert ranges(catalog.segments())[ANEW] == (0, 29, 30)
    catalog.refresh()
    assert ranges(catalog.segments())[ANEW] == (0, 35, 32)
    assert ranges(catalog.segments())[CLICKS] == (0, 20, 6)


def test_the_stream_from_followed_from_leaves_nothing_out_and_counts_nothing_twice(
    spark: SparkSession, bronze: FolderTables, tmp_path: Path
) -> None:
    catalog = in_catalog(spark, bronze)
    commit(spark, bronze, 9, {ANEW: [30, 31], ORDERS: [80]})

    def follow(starting_version: int, checkpoint: str) -> None:
        stream = spark.readStream.format("delta").option("startingVersion", starting_version)
        (
            stream.load(str(bronze.folder(TABLE)))
            .writeStream.foreachBatch(lambda frame, _: catalog.see(frame))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        catalog.refresh()

    follow(catalog.followed_from, "first")
    followed = ranges(catalog.segments())
    assert followed == ranges(in_folder(spark, bronze).segments())
    follow(1, "again")  # a checkpoint that stands further back shows commits again
    assert ranges(catalog.segments()) == followed


def test_what_is_kept_does_not_grow_with_commits(spark: SparkSession, bronze: FolderTables) -> None:
    catalog = in_catalog(spark, bronze)
    for number in range(3):
        commit(spark, bronze, 10 + number, {ORDERS: [100 + number]})
        catalog.see(spark.table(bronze.identifier(TABLE)).where(f"batch = {10 + number}"))
    catalog.refresh()
    assert len(catalog.segments()) == len(HELD)


def test_records_are_read_some_at_a_time(
    spark: SparkSession, bronze: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = in_catalog(spark, bronze)
    orders = next(segment for segment in catalog.segments() if segment.source == ORDERS)
    monkeypatch.setattr(BronzeInCatalog, "_READ_BYTES", orders.bytes // 4)
    batches = list(catalog.read(ORDERS, 0, 1000))
    assert [row["offset"] for row in rows(batches)] == HELD[ORDERS]
    assert len(batches) >= 4
    assert rows(catalog.read(ORDERS._replace(partition=7), 0, 1000)) == []


def test_the_size_of_records_is_the_newest_where_they_grew(spark: SparkSession, bronze: FolderTables) -> None:
    catalog = in_catalog(spark, bronze)
    before = sum(segment.bytes for segment in catalog.segments())
    large = [kafka_row(100, value=random.Random(0).randbytes(500_000))]  # noqa: S311
    shaped = shape_bronze(kafka_frame(spark, large), {"orders": ORDERS_ID}, 10)
    shaped.write.format("delta").mode("append").save(str(bronze.folder(TABLE)))  # as in a catalog, Spark commits
    catalog.refresh()
    assert sum(segment.bytes for segment in catalog.segments()) > 100 * before


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
    batches = table.combine_chunks().to_batches(rows_per_batch)
    cut = [(source, list(pieces)) for source, pieces in by_source(batches)]
    assert [source for source, _ in cut] == sorted(HELD)
    assert {source: [row["offset"] for row in rows(held)] for source, held in cut} == HELD
    assert {tuple(batch.schema.names) for _, held in cut for batch in held} == {tuple(RECORD_COLUMNS)}


def test_nothing_is_cut_from_nothing() -> None:
    assert list(by_source([])) == []


def one_row(source: SourcePartition, offset: int) -> pa.RecordBatch:
    values = {**dict(zip(SOURCE_COLUMNS, source, strict=True)), **dict.fromkeys(RECORD_COLUMNS), "offset": offset}
    return pa.RecordBatch.from_pylist([values])


def test_rows_are_handed_over_as_they_come_and_what_nobody_takes_is_passed_over() -> None:
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number, source in enumerate((ORDERS, ORDERS, ORDERS, ORDERS_1)):
            taken.append(number)
            yield one_row(source, number)

    found = by_source(batches())
    source, pieces = next(found)
    assert (source, rows([next(pieces)])[0]["offset"], taken) == (ORDERS, 0, [0])
    source, pieces = next(found)
    assert (source, rows(pieces)[0]["offset"]) == (ORDERS_1, 3)


def test_a_slice_without_records_is_done() -> None:
    """It lies in a gap that compaction left; without an outcome its target would look at it for ever."""
    there, gap = (Slice(source, 5, 9, TopicPartition("copy", 0), 77, shared=False) for source in (ORDERS, ORDERS_1))
    assert _without_records([there, gap], [Outcome(ORDERS)]) == [Outcome(ORDERS_1, target_end=77)]
