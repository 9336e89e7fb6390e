"""The same Delta tables by delta-rs and by Spark, in a folder and in a catalog."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from mirrorlake import tables as tables_module
from mirrorlake.bronze import shape_bronze
from mirrorlake.errors import StateMismatch
from mirrorlake.ledger import RELAY, Entry, compact, joined
from mirrorlake.records import BRONZE, INCIDENTS, LEDGER, OPS_TABLES, SourcePartition, TopicPartition
from mirrorlake.tables import (
    FORMAT_PROPERTY,
    FORMAT_VERSION,
    BronzeFiles,
    CatalogTables,
    FolderTables,
    Segment,
    bronze_properties,
    ensure_ops,
)

from .frames import CLICKS_ID, NOON, ORDERS_ID, TABLE, commit, headers, kafka_frame, kafka_row, make_bronze

PLAIN = pa.schema([("who", pa.string()), ("number", pa.int64())])


def plain(*numbers: int, who: str = "a") -> pa.Table:
    return pa.Table.from_pylist([{"who": who, "number": number} for number in numbers], schema=PLAIN)


# --- a folder, from both sides ---


def test_spark_reads_what_delta_rs_wrote(spark: SparkSession, tables: FolderTables) -> None:
    tables.ensure("ops.x", PLAIN, {"delta.checkpointInterval": "10"})
    for number in range(12):  # beyond a checkpoint
        tables.append("ops.x", plain(number))
    expected = spark.createDataFrame(plain(*range(12)))
    read = spark.table(tables.identifier("ops.x"))
    assert_df_equality(read, expected, ignore_row_order=True, ignore_nullable=True)


def test_spark_reads_every_type_of_the_ops_tables(spark: SparkSession, tables: FolderTables) -> None:
    ensure_ops(tables, "ops")
    row = {"flow": "f", "kind": "retention", "partition": 3, "first_offset": 2**40, "at": NOON}
    tables.append("ops.incidents", pa.Table.from_pylist([row], schema=INCIDENTS))
    found = spark.table(tables.identifier("ops.incidents")).toArrow().to_pylist()
    assert found == [{**dict.fromkeys(INCIDENTS.names), **row}]
    for name, schema in OPS_TABLES.items():
        assert spark.table(tables.identifier(f"ops.{name}")).columns == schema.names


def test_spark_reads_a_ledger_that_was_compacted(spark: SparkSession, tables: FolderTables) -> None:
    ensure_ops(tables, "ops")
    run = {"flow": "f", "target": "dr", "kind": RELAY, "epoch": 1, "source_topic": "orders", "source_topic_id": "id",
           "source_partition": 0, "target_topic": "orders", "target_topic_id": "id", "target_partition": 0,
           "count": 10, "reason": ""}  # fmt: skip
    for first in range(0, 120, 10):  # beyond a checkpoint
        offsets = {"source_first": first, "source_last": first + 9, "target_first": first, "target_end": first + 10}
        tables.append("ops.ledger", pa.Table.from_pylist([{**run, **offsets, "at": NOON}], schema=LEDGER))
    folder = tables.folder("ops.ledger")
    assert folder
    assert compact(folder)
    whole = {**run, "source_first": 0, "source_last": 119, "target_first": 0, "target_end": 120, "count": 120}
    found = spark.table(tables.identifier("ops.ledger"))
    assert found.toArrow().to_pylist() == [{**whole, "at": NOON}]
    assert found.where("flow = 'f' AND target_end > 100").count() == 1


def test_delta_rs_reads_what_spark_wrote(spark: SparkSession, tables: FolderTables) -> None:
    make_bronze(tables)
    rows = [kafka_row(offset, headers=headers(offset)) for offset in range(6)]
    tables.append_frame(shape_bronze(kafka_frame(spark, rows), {"orders": ORDERS_ID}, 4), TABLE, "ingest", 4)
    read = tables.read(TABLE)
    assert read.schema.names == BRONZE.names
    kept = [{**row, "headers": [tuple(h.values()) for h in row["headers"]] if row["headers"] is not None else None}
            for row in read.to_pylist()]  # fmt: skip
    fields = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
    assert [{name: row[name] for name in fields} for row in kept] == [
        {name: row[name] for name in fields} for row in rows
    ]
    assert {(row["batch"], row["topic_id"]) for row in kept} == {(4, ORDERS_ID)}


def test_both_append_to_one_table(spark: SparkSession, tables: FolderTables) -> None:
    tables.ensure("ops.x", PLAIN, {})
    tables.append("ops.x", plain(1))
    tables.append_frame(spark.createDataFrame(plain(2)), "ops.x", "app", 0)
    tables.append("ops.x", plain(3))
    expected = spark.createDataFrame(plain(1, 2, 3))
    read = spark.table(tables.identifier("ops.x"))
    assert_df_equality(read, expected, ignore_row_order=True, ignore_nullable=True)
    assert sorted(tables.read("ops.x")["number"].to_pylist()) == [1, 2, 3]


def test_a_frame_is_appended_once_for_an_id_and_version(spark: SparkSession, tables: FolderTables) -> None:
    tables.ensure("ops.x", PLAIN, {})
    frame = spark.createDataFrame(plain(1))
    appended = [("app", 0), ("app", 0), ("app", 1), ("app", 0), ("other", 1)]
    counts = []
    for app, version in appended:
        tables.append_frame(frame, "ops.x", app, version)
        counts.append(tables.read("ops.x").num_rows)
    assert counts == [1, 1, 2, 2, 3]
    assert tables.txn_version("ops.x", "app") == 1
    assert tables.txn_version("ops.x", "other") == 1


# --- a catalog ---


@pytest.fixture
def catalog(spark: SparkSession) -> CatalogTables:
    return CatalogTables(spark, "spark_catalog")


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    """A schema, as the bundle makes it before the job runs."""
    name = f"s_{uuid.uuid4().hex}"
    spark.sql(f"CREATE SCHEMA {name}")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


def test_a_catalog_table_is_made_once_and_keeps_its_rows(catalog: CatalogTables, schema: str) -> None:
    name = f"{schema}.x"
    assert not catalog.exists(name)
    catalog.ensure(name, PLAIN, {})
    assert catalog.exists(name)
    catalog.append(name, plain(1, 2))
    catalog.ensure(name, PLAIN, {})
    assert sorted(catalog.read(name)["number"].to_pylist()) == [1, 2]
    assert catalog.folder(name) is None
    assert catalog.identifier(name) == f"`spark_catalog`.`{schema}`.`x`"


def test_catalog_rows_are_read_by_column_and_value(catalog: CatalogTables, schema: str) -> None:
    name = f"{schema}.x"
    catalog.ensure(name, PLAIN, {})
    catalog.append(name, plain(1, who="a"))
    catalog.append(name, plain(2, who="b's"))
    assert catalog.read(name, ["number"], who="b's").to_pylist() == [{"number": 2}]


def test_a_catalog_appends_rows_once_for_an_id_and_version(catalog: CatalogTables, schema: str) -> None:
    name = f"{schema}.x"
    catalog.ensure(name, PLAIN, {})
    for number in (1, 2):
        catalog.append(name, plain(number), ("ledger", number))
    catalog.append(name, plain(2), ("ledger", 2))  # a client that heard no answer
    assert sorted(catalog.read(name)["number"].to_pylist()) == [1, 2]


def test_the_ledger_of_a_catalog_joins_the_rows_of_its_flow(catalog: CatalogTables, schema: str) -> None:
    """What other flows wrote stays, and what is younger than the one who joins."""
    name, seconds = f"{schema}.ledger", [NOON + timedelta(seconds=20 * n) for n in range(6)]
    catalog.ensure(name, LEDGER, {})
    rows = [each.row(at) for n, at in enumerate(seconds) for each in (entry("f", n), entry("g"))]
    catalog.append(name, pa.Table.from_pylist(rows, schema=LEDGER))
    for until, counts in [(seconds[5], [1, 5]), (NOON + timedelta(days=1), [6]), (NOON + timedelta(days=2), [6])]:
        assert catalog.rewrite(name, "f", until, joined)
        assert sorted(catalog.read(name, ["count"], flow="f")["count"].to_pylist()) == counts
    assert catalog.read(name, flow="g").num_rows == 6


def entry(flow: str, offset: int = 0) -> Entry:
    source, target = SourcePartition("orders", ORDERS_ID, 0), TopicPartition("copy", 0)
    return Entry(flow, "dr", RELAY, 1, source, offset, offset, target, CLICKS_ID, offset, 1, offset + 1)


def test_a_catalog_appends_a_frame_once_for_an_id_and_version(
    spark: SparkSession, catalog: CatalogTables, schema: str
) -> None:
    name = f"{schema}.x"
    catalog.ensure(name, PLAIN, {})
    frame = spark.createDataFrame(plain(1))
    for app, version in [("app", 0), ("app", 0), ("app", 1), ("other", 0)]:
        catalog.append_frame(frame, name, app, version)
    assert catalog.read(name).num_rows == 3


def test_a_catalog_takes_every_ops_table_and_gives_the_rows_back(catalog: CatalogTables, schema: str) -> None:
    ensure_ops(catalog, schema)
    row = {"flow": "f", "kind": "retention", "partition": 3, "first_offset": 2**40, "at": NOON}
    rows = pa.Table.from_pylist([row], schema=INCIDENTS)
    catalog.append(f"{schema}.incidents", rows)
    assert catalog.read(f"{schema}.incidents").to_pylist() == rows.to_pylist()
    for name, wanted in OPS_TABLES.items():
        assert catalog.read(f"{schema}.{name}").schema.names == wanted.names


def test_a_catalog_table_of_a_newer_format_is_refused(spark: SparkSession, catalog: CatalogTables, schema: str) -> None:
    newer = f"'{FORMAT_PROPERTY}' = '{FORMAT_VERSION + 1}'"
    spark.sql(f"CREATE TABLE {schema}.x (number BIGINT) USING delta TBLPROPERTIES ({newer})")
    with pytest.raises(StateMismatch, match=f"format {FORMAT_VERSION + 1}"):
        catalog.ensure(f"{schema}.x", PLAIN, {})
    for use in (
        lambda: catalog.append(f"{schema}.x", plain(1)),
        lambda: catalog.append_once(f"{schema}.x", plain(1), "app", 0),
        lambda: catalog.append_frame(spark.createDataFrame(plain(1)), f"{schema}.x", "app", 0),
        lambda: catalog.read(f"{schema}.x"),
    ):
        with pytest.raises(StateMismatch, match=f"format {FORMAT_VERSION + 1}"):
            use()
    assert spark.sql(f"DESCRIBE HISTORY {schema}.x").count() == 1


def test_a_catalog_table_of_an_older_format_gets_what_it_lacks(
    spark: SparkSession, catalog: CatalogTables, schema: str
) -> None:
    name, wider = f"{schema}.x", pa.schema([*PLAIN, ("since_two", pa.string())])
    spark.sql(f"CREATE TABLE {name} (who STRING, number BIGINT) USING delta TBLPROPERTIES ('{FORMAT_PROPERTY}' = '1')")
    catalog.append(name, plain(1))
    for _ in range(2):
        catalog.ensure(name, wider, {})
    row = {"who": "b", "number": 2, "since_two": "new"}
    catalog.append(name, pa.Table.from_pylist([row], schema=wider))
    rows = sorted(catalog.read(name).to_pylist(), key=lambda row: row["number"])
    assert rows == [{"who": "a", "number": 1, "since_two": None}, row]


def test_bronze_in_a_catalog(spark: SparkSession, catalog: CatalogTables, schema: str) -> None:
    name = f"{schema}.t"
    catalog.ensure(name, BRONZE, bronze_properties(24))
    rows = [kafka_row(offset, headers=headers(offset)) for offset in range(3)]
    shaped = shape_bronze(kafka_frame(spark, rows), {"orders": ORDERS_ID}, 0)
    catalog.append_frame(shaped, name, "ingest", 0)
    columns = [column for column in BRONZE.names if column != "ingested_at"]
    read = spark.table(catalog.identifier(name)).select(*columns)
    assert_df_equality(read, shaped.select(*columns), ignore_nullable=True)


def test_bronze_has_its_properties_in_both_homes(
    spark: SparkSession, catalog: CatalogTables, tables: FolderTables, schema: str
) -> None:
    wanted = bronze_properties(24)
    catalog.ensure(f"{schema}.t", BRONZE, wanted)
    tables.ensure(TABLE, BRONZE, wanted)
    for identifier in (catalog.identifier(f"{schema}.t"), tables.identifier(TABLE)):
        kept = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {identifier}").collect()}
        assert wanted.items() <= kept.items()
        assert kept[FORMAT_PROPERTY] == str(FORMAT_VERSION)


# --- which files hold which offsets, of files that Spark wrote ---

LONG = "x" * 248  # two topics that differ in the last of the 249 characters Kafka allows
SOURCES = (
    SourcePartition("orders", ORDERS_ID, 0),
    SourcePartition("orders", ORDERS_ID, 1),
    SourcePartition(f"{LONG}a", CLICKS_ID, 0),
    SourcePartition(f"{LONG}b", CLICKS_ID, 0),
)


def refuse_to_read(_path: str, _size_bytes: int) -> list[Segment]:
    raise AssertionError("the statistics should have been enough")


def test_statistics_tell_what_a_file_of_one_partition_holds(
    spark: SparkSession, tables: FolderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "_segments_by_reading", refuse_to_read)
    folder = tables.folder(make_bronze(tables))
    assert folder is not None
    commit(spark, tables, 0, {source: range(10) for source in SOURCES})
    files = BronzeFiles(folder)
    commit(spark, tables, 1, {source: [12, 15] for source in SOURCES})
    files.refresh()
    found = sorted((s.source, s.first_offset, s.last_offset, s.records, s.alone) for s in files.segments())
    assert found == sorted(held for s in SOURCES for held in ((s, 0, 9, 10, True), (s, 12, 15, 2, True)))
    assert all(Path(segment.path).stat().st_size == segment.bytes for segment in files.segments())


def test_a_file_of_many_partitions_is_read(spark: SparkSession, tables: FolderTables) -> None:
    folder = tables.folder(make_bronze(tables))
    assert folder is not None
    commit(spark, tables, 0, {source: range(10) for source in SOURCES})
    spark.sql(f"OPTIMIZE {tables.identifier(TABLE)}")
    files = BronzeFiles(folder)
    assert len({segment.path for segment in files.segments()}) == 1
    found = sorted((s.source, s.first_offset, s.last_offset, s.records, s.alone) for s in files.segments())
    assert found == sorted((s, 0, 9, 10, False) for s in SOURCES)


def test_files_are_compressed_as_the_table_says(spark: SparkSession, tables: FolderTables) -> None:
    folder = tables.folder(make_bronze(tables))
    assert folder is not None
    commit(spark, tables, 0, {SOURCES[0]: range(1000)})
    group = pq.ParquetFile(BronzeFiles(folder).segments()[0].path).metadata.row_group(0)
    assert {group.column(number).compression for number in range(group.num_columns)} == {"ZSTD"}
