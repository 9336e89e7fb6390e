"""A batch of Spark's Kafka source as bronze rows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from mirrorlake.bronze import shape_bronze
from mirrorlake.records import BRONZE

from .frames import CLICKS_ID, NOON, ORDERS_ID, kafka_frame, kafka_row

IDS = {"orders": ORDERS_ID, "clicks": CLICKS_ID}


def types(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def test_columns_are_those_of_the_bronze_table(spark: SparkSession) -> None:
    shaped = shape_bronze(kafka_frame(spark, [kafka_row(0)]), IDS, 7)
    assert types(shaped) == types(spark.createDataFrame([], from_arrow_schema(BRONZE)))


def test_one_topic_has_its_id(spark: SparkSession) -> None:
    shaped = shape_bronze(kafka_frame(spark, [kafka_row(0), kafka_row(1)]), {"orders": ORDERS_ID}, 0)
    expected = spark.createDataFrame([("orders", 0, ORDERS_ID), ("orders", 1, ORDERS_ID)],
                                     "topic string, offset bigint, topic_id string")  # fmt: skip
    assert_df_equality(shaped.select("topic", "offset", "topic_id"), expected, ignore_nullable=True)


def test_each_of_many_topics_has_its_own_id(spark: SparkSession) -> None:
    rows = [kafka_row(0), kafka_row(0, "clicks"), kafka_row(1), kafka_row(1, "clicks", 5)]
    shaped = shape_bronze(kafka_frame(spark, rows), IDS, 0)
    expected = spark.createDataFrame(
        [("orders", 0, ORDERS_ID), ("clicks", 0, CLICKS_ID), ("orders", 0, ORDERS_ID), ("clicks", 5, CLICKS_ID)],
        "topic string, partition int, topic_id string",
    )
    assert_df_equality(shaped.select("topic", "partition", "topic_id"), expected, ignore_nullable=True)


@pytest.mark.parametrize("ids", [{}, {"orders": ORDERS_ID}, {"orders": ORDERS_ID, "x": CLICKS_ID}], ids=len)
def test_a_batch_with_a_topic_of_unknown_id_fails(spark: SparkSession, ids: dict[str, str]) -> None:
    shaped = shape_bronze(kafka_frame(spark, [kafka_row(0, "clicks")]), ids, 0)
    with pytest.raises(PySparkException, match="the id of topic clicks is not known"):
        shaped.collect()


def test_a_topic_of_a_cluster_without_ids_has_an_empty_one(spark: SparkSession) -> None:
    assert shape_bronze(kafka_frame(spark, [kafka_row(0)]), {"orders": ""}, 0).first()["topic_id"] == ""


def test_time_and_its_type_are_kept(spark: SparkSession) -> None:
    early = NOON - timedelta(days=20_000)
    rows = [
        kafka_row(0, timestampType=0, timestamp=early),
        kafka_row(1, timestampType=1, timestamp=NOON + timedelta(milliseconds=1)),
    ]
    shaped = shape_bronze(kafka_frame(spark, rows), IDS, 0)
    expected = spark.createDataFrame(
        [(0, early, 0), (1, NOON + timedelta(milliseconds=1), 1)],
        "offset bigint, timestamp timestamp, timestamp_type int",
    )
    assert_df_equality(shaped.select("offset", "timestamp", "timestamp_type"), expected, ignore_nullable=True)


def test_nulls_stay_nulls_and_empty_stays_empty(spark: SparkSession) -> None:
    rows = [
        kafka_row(0, headers=None, key=None, value=None),
        kafka_row(1, headers=[], key=b"", value=b""),
        kafka_row(2, headers=[("a", None), ("a", b""), ("größe", b"\xff")]),
    ]
    source = kafka_frame(spark, rows)
    columns = ("offset", "key", "value", "headers")
    assert_df_equality(shape_bronze(source, IDS, 0).select(*columns), source.select(*columns), ignore_nullable=True)


def test_a_batch_has_one_number_and_one_time(spark: SparkSession) -> None:
    shaped = shape_bronze(kafka_frame(spark, [kafka_row(0), kafka_row(1), kafka_row(0, "clicks")]), IDS, 2**40)
    marks = {(row["batch"], row["ingested_at"]) for row in shaped.collect()}
    assert len(marks) == 1
    assert marks.pop()[0] == 2**40
