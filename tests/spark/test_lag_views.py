"""The views of mirrorlake.lag over ops tables that delta-rs wrote."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from mirrorlake.config import parse
from mirrorlake.inspection import register
from mirrorlake.records import DELIVERIES, INCIDENTS, LAG_SAMPLES, LEDGER
from mirrorlake.tables import FolderTables, ensure_ops

from .frames import CLICKS_ID, CONFIG, NOON, ORDERS_ID, local_frame


def second(number: float) -> datetime:
    return NOON + timedelta(seconds=number)


@dataclass
class Ops:
    """Ops tables below a folder, and their views, in a schema of their own."""

    spark: SparkSession
    tables: FolderTables
    schema: str

    def sample(
        self, at: datetime, end: int, bronze: int, targets: Mapping[str, int],
        topic: str = "orders", partition: int = 0, flow: str = "f", topic_id: str | None = ORDERS_ID,
    ) -> None:  # fmt: skip
        """One sample of one partition, as `lag.sample_rows` shapes it."""
        common = {"flow": flow, "topic": topic, "topic_id": topic_id, "partition": partition, "at": at}
        rows = [
            {**common, "side": "source", "cluster": "a", "log_start": 0, "log_end": end},
            {**common, "side": "bronze", "cluster": "", "position": bronze},
            *({**common, "side": "target", "cluster": name, "position": held} for name, held in targets.items()),
        ]
        self.tables.append(f"{self.schema}.lag_samples", pa.Table.from_pylist(rows, schema=LAG_SAMPLES))

    def ledger(self, kind: str, at: datetime, first: int, count: int, **fields: Any) -> None:
        row = {
            "flow": "f", "target": "b", "kind": kind, "epoch": 1, "source_topic": "orders",
            "source_topic_id": ORDERS_ID, "source_partition": 0, "source_first": first,
            "source_last": first + count - 1, "target_topic": "a.orders", "target_topic_id": CLICKS_ID,
            "target_partition": 0, "target_first": first + 100, "count": count, "target_end": first + count + 100,
            "at": at,
        }  # fmt: skip
        self.tables.append(f"{self.schema}.ledger", pa.Table.from_pylist([{**row, **fields}], schema=LEDGER))

    def deliveries(self, target: str, minute: datetime, records: int) -> None:
        row = {"flow": "f", "target": target, "records": records, "at": minute}
        self.tables.append(f"{self.schema}.deliveries", pa.Table.from_pylist([row], schema=DELIVERIES))

    def incident(self, at: datetime, flow: str = "f") -> None:
        row = {"flow": flow, "target": "b", "kind": "retention", "at": at}
        self.tables.append(f"{self.schema}.incidents", pa.Table.from_pylist([row], schema=INCIDENTS))

    def view(self, name: str, *columns: str) -> DataFrame:
        return self.spark.table(f"{self.schema}.{name}").select(*columns)

    def check(self, name: str, schema: str, *rows: tuple[Any, ...]) -> None:
        """The view has exactly these rows, in these columns."""
        columns = [part.split()[0] for part in schema.split(", ")]
        expected = local_frame(self.spark, [dict(zip(columns, row, strict=True)) for row in rows], schema)
        assert_df_equality(self.view(name, *columns), expected, ignore_nullable=True, ignore_row_order=True)


@pytest.fixture
def ops(spark: SparkSession, tables: FolderTables) -> Ops:
    schema = f"ops_{uuid.uuid4().hex}"
    ensure_ops(tables, schema)
    register(spark, parse(f"{CONFIG}\nstorage: {{root: '{tables.root}', ops_schema: {schema}}}", "ops"), tables)
    return Ops(spark, tables, schema)


RECORDS = "target string, partition int, ingest_lag_records bigint, lag_records bigint, lag_seconds double"


def test_without_samples_the_views_are_empty(ops: Ops) -> None:
    for name in ("replication_lag", "offset_map", "throughput", "flow_health"):
        assert ops.spark.table(f"{ops.schema}.{name}").count() == 0


def test_no_lag(ops: Ops) -> None:
    ops.sample(second(0), 10, 10, {"b": 10})
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 0, 0.0))


def test_an_empty_topic_has_no_lag(ops: Ops) -> None:
    ops.sample(second(0), 0, 0, {"b": 0})
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 0, 0.0))


def test_lag_in_records_is_counted_to_bronze_and_to_the_target(ops: Ops) -> None:
    ops.sample(second(0), 100, 70, {"b": 40})
    ops.check(
        "replication_lag",
        "flow string, target string, topic string, partition int, source_end bigint, bronze_position bigint, "
        "target_position bigint, ingest_lag_records bigint, lag_records bigint, sampled_at timestamp",
        ("f", "b", "orders", 0, 100, 70, 40, 30, 60, second(0)),
    )


def test_only_the_newest_sample_counts(ops: Ops) -> None:
    ops.sample(second(10), 30, 30, {"b": 30})
    ops.sample(second(0), 30, 20, {"b": 10})
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 0, 0.0))


def test_a_source_sampled_before_the_position_is_no_negative_lag(ops: Ops) -> None:
    ops.sample(second(0), 10, 12, {"b": 12})
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 0, 0.0))


def test_the_first_sample_that_sees_a_lag_says_no_seconds(ops: Ops) -> None:
    ops.sample(second(0), 10, 10, {"b": 10})
    ops.sample(second(10), 20, 10, {"b": 10})
    ops.check("replication_lag", RECORDS, ("b", 0, 10, 10, 0.0))


def test_seconds_are_counted_from_when_the_next_record_was_first_seen(ops: Ops) -> None:
    ops.sample(second(0), 10, 10, {"b": 10})
    ops.sample(second(10), 20, 20, {"b": 10})
    ops.sample(second(20), 30, 30, {"b": 10})
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 20, 10.0))
    ops.sample(second(32.5), 30, 30, {"b": 15})
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 15, 22.5))
    ops.sample(second(40), 30, 30, {"b": 20})
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 10, 20.0))
    ops.sample(second(50), 30, 30, {"b": 30})
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 0, 0.0))


def test_when_ingest_is_dead_the_lag_grows_with_the_source(ops: Ops) -> None:
    for number in range(4):
        ops.sample(second(10 * number), 100 * (number + 1), 100, {"b": 100})
    ops.check("replication_lag", RECORDS, ("b", 0, 300, 300, 20.0))


def test_each_target_has_its_own_lag(ops: Ops) -> None:
    ops.sample(second(0), 10, 10, {"b": 10, "c": 10})
    ops.sample(second(10), 20, 20, {"b": 20, "c": 10})
    ops.sample(second(20), 30, 30, {"b": 25, "c": 10})
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 5, 0.0), ("c", 0, 0, 20, 10.0))


def test_flows_topics_and_partitions_do_not_mix(ops: Ops) -> None:
    ops.sample(second(0), 99, 99, {"b": 99}, flow="g")
    for number in range(2):
        ops.sample(second(5 * number), 50, 50, {"b": 50}, topic="clicks", topic_id=CLICKS_ID)
        ops.sample(second(5 * number), 10, 10, {"b": 8}, partition=0)
        ops.sample(second(5 * number), 10, 10, {"b": 10}, partition=1)
    ops.check(
        "replication_lag", "flow string, topic string, partition int, lag_records bigint, lag_seconds double",
        ("g", "orders", 0, 0, 0.0), ("f", "clicks", 0, 0, 0.0), ("f", "orders", 0, 2, 5.0), ("f", "orders", 1, 0, 0.0),
    )  # fmt: skip


def test_a_topic_made_anew_counts_its_seconds_anew(ops: Ops) -> None:
    ops.sample(second(0), 100, 100, {"b": 100})
    ops.sample(second(10), 5, 0, {"b": 0}, topic_id=CLICKS_ID)
    ops.check("replication_lag", RECORDS, ("b", 0, 5, 5, 0.0))
    ops.sample(second(20), 5, 5, {"b": 0}, topic_id=CLICKS_ID)
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 5, 10.0))


def test_samples_from_before_topic_ids_were_kept_still_count(ops: Ops) -> None:
    for number in range(2):
        ops.sample(second(10 * number), 5, 5, {"b": 0}, topic_id=None)
    ops.check("replication_lag", RECORDS, ("b", 0, 0, 5, 10.0))


def test_a_removed_target_topic_or_partition_is_gone_with_the_next_sample(ops: Ops) -> None:
    ops.sample(second(0), 10, 10, {"b": 5, "c": 5})
    ops.sample(second(0), 10, 10, {"b": 5}, topic="clicks")
    ops.sample(second(0), 9, 9, {"b": 9}, flow="g")
    ops.sample(second(10), 10, 10, {"b": 5})
    ops.check(
        "replication_lag", "flow string, target string, topic string, lag_records bigint",
        ("f", "b", "orders", 5), ("g", "b", "orders", 0),
    )  # fmt: skip


HEALTH = (
    "flow string, target string, lag_records bigint, lag_seconds double, sampled_at timestamp, "
    "last_delivery timestamp, incidents_last_day bigint"
)


def test_health_sums_records_and_takes_the_worst_seconds(ops: Ops) -> None:
    for number in range(2):
        ops.sample(second(7 * number), 10, 10, {"b": 4, "c": 10}, partition=0)
        ops.sample(second(7 * number), 10, 10, {"b": 10 - number, "c": 10}, partition=1)
    ops.ledger("relay", second(3), 0, 4)
    ops.ledger("relay", second(5), 4, 4)
    ops.ledger("repair", second(9), 0, 4)
    ops.check(
        "flow_health", HEALTH, ("f", "b", 7, 7.0, second(7), second(5), 0), ("f", "c", 0, 0.0, second(7), None, 0)
    )


def test_health_counts_the_incidents_of_the_last_day(ops: Ops) -> None:
    now = datetime.now(timezone.utc)
    ops.sample(second(0), 1, 1, {"b": 1})
    ops.sample(second(0), 1, 1, {"b": 1}, flow="g")
    for hours in (1, 23, 25):
        ops.incident(now - timedelta(hours=hours))
    ops.check("flow_health", "flow string, incidents_last_day bigint", ("f", 2), ("g", 0))


def test_throughput_counts_what_was_delivered_in_each_minute(ops: Ops) -> None:
    """A minute may have been written down in parts."""
    for target, at, records in (("b", 0, 10), ("b", 0, 5), ("b", 60, 7), ("c", 60, 2)):
        ops.deliveries(target, second(at), records)
    ops.check(
        "throughput", "flow string, target string, minute timestamp, records bigint",
        ("f", "b", second(0), 15), ("f", "b", second(60), 7), ("f", "c", second(60), 2),
    )  # fmt: skip


def test_the_offset_map_has_the_runs_with_both_ends(ops: Ops) -> None:
    ops.ledger("baseline", second(0), 0, 0, target_first=None)
    ops.ledger("relay", second(1), 0, 10)
    ops.ledger("skip", second(2), 10, 1, target_first=None)
    ops.ledger("repair", second(3), 11, 1)
    ops.ledger("replay", second(4), 12, 2, source_partition=3)
    ops.check(
        "offset_map",
        "kind string, source_partition int, source_first bigint, source_last bigint, target_first bigint, "
        "target_last bigint, count bigint, at timestamp",
        ("relay", 0, 0, 9, 100, 109, 10, second(1)),
        ("repair", 0, 11, 11, 111, 111, 1, second(3)),
        ("replay", 3, 12, 13, 112, 113, 2, second(4)),
    )


def test_a_run_of_the_offset_map_ends_only_where_offsets_do(ops: Ops) -> None:
    """Not where commits, minutes, days or epochs do."""
    ops.ledger("relay", second(1), 0, 10)
    ops.ledger("relay", second(90), 10, 5)
    ops.ledger("relay", second(90_000), 15, 5, epoch=2)
    ops.ledger("relay", second(90_001), 22, 3, epoch=2)
    ops.ledger("relay", second(90_002), 25, 3, target_first=200)
    ops.check(
        "offset_map",
        "source_first bigint, source_last bigint, target_first bigint, target_last bigint, count bigint, at timestamp",
        (0, 19, 100, 119, 20, second(90_000)),
        (22, 24, 122, 124, 3, second(90_001)),
        (25, 27, 200, 202, 3, second(90_002)),
    )


def documented(heading: str, ops: Ops) -> str:
    """A query of docs/lag-in-sql.md, on these tables."""
    page = (Path(__file__).parents[2] / "docs" / "lag-in-sql.md").read_text()
    return page.partition(heading)[2].partition("```sql\n")[2].partition("```")[0].replace("ops.", f"{ops.schema}.")


def test_lag_over_time_is_one_sum_for_each_sample_flow_and_target(ops: Ops) -> None:
    begun = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(minutes=5)
    for number in range(2):
        at = begun + timedelta(minutes=number)
        ops.sample(at, 10, 10, {"b": 8})
        ops.sample(at, 10, 10, {"b": 7 + number}, topic="clicks", topic_id=CLICKS_ID)
        ops.sample(at, 99, 99, {"b": 0}, flow="g")
    rows = ops.spark.sql(documented("Lag over the last hour", ops)).collect()
    found = [(row["at"].timestamp() - begun.timestamp(), row["flow"], row["lag_records"]) for row in rows]
    assert found == [(0, "f", 5), (0, "g", 99), (60, "f", 4), (60, "g", 99)]


def test_an_offset_is_found_on_the_target(ops: Ops) -> None:
    """The query of docs/lag-in-sql.md."""
    ops.ledger("relay", second(1), 0, 10)
    ops.ledger("relay", second(2), 10, 5, target_first=200)
    found = ops.spark.sql(
        f"SELECT target_first + (12 - source_first) AS target_offset FROM {ops.schema}.offset_map "
        "WHERE source_topic = 'orders' AND source_partition = 0 AND 12 BETWEEN source_first AND source_last"
    )
    assert [row["target_offset"] for row in found.collect()] == [202]
