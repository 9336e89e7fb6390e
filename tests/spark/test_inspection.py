"""Names in Spark for what storage holds: tables, and a view per topic of a shared table."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from mirrorlake.bronze import shape_bronze
from mirrorlake.config import Config, parse
from mirrorlake.inspection import register
from mirrorlake.records import BRONZE
from mirrorlake.tables import CatalogTables, FolderTables, bronze_properties
from mirrorlake.world import open_tables

from .frames import CONFIG, ORDERS_ID, kafka_frame, kafka_row


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    name = f"b_{uuid.uuid4().hex}"
    yield name
    spark.sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def shared(tables: FolderTables, schema: str) -> Config:
    """A flow of one pattern, whose topics share a table."""
    text = CONFIG.replace("topics: [t]", "patterns: ['ord.*']")
    storage = f"{{root: '{tables.root}', ops_schema: {schema}_ops, bronze: '{schema}.shared'}}"
    return parse(f"{text}\nstorage: {storage}", "shared")


def fill(spark: SparkSession, tables: FolderTables, name: str, offset: int) -> None:
    tables.ensure(name, BRONZE, bronze_properties(24))
    shaped = shape_bronze(kafka_frame(spark, [kafka_row(offset)]), {"orders": ORDERS_ID}, 0)
    tables.append_frame(shaped, name, "ingest", 0)


def test_a_topic_of_a_shared_table_has_a_view_until_it_has_a_table(
    spark: SparkSession, tables: FolderTables, schema: str
) -> None:
    config, own = shared(tables, schema), f"{schema}.a__orders"
    fill(spark, tables, f"{schema}.shared", 1)
    for _ in range(2):
        register(spark, config, tables)
        assert [row["offset"] for row in spark.table(own).collect()] == [1]
    fill(spark, tables, own, 2)
    for _ in range(2):
        register(spark, config, tables)
        assert [row["offset"] for row in spark.table(own).collect()] == [2]


def test_a_configured_catalog_is_never_replaced_by_a_folder(spark: SparkSession, tables: FolderTables) -> None:
    """`plan`, `audit` and `repair` have no session of their own to give."""
    config = parse(CONFIG + "storage: {catalog: spark_catalog, volume: /Volumes/main/ops/state}", "catalog")
    opened = open_tables(config, tables.root)
    assert isinstance(opened, CatalogTables)
    assert opened.spark.sparkContext is spark.sparkContext
