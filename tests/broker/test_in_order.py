"""Promise B: within a partition, always in order: after compaction of the table, a restart, a new target."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake import DeltaTable
from harness import Flow, Records, by_partition
from pyspark.sql import SparkSession


def table_of(flow: Flow) -> str:
    return str(next((flow.root / "tables" / "bronze").iterdir()))


@pytest.mark.parametrize("reader", ["files", "spark"])
def test_a_new_target_gets_a_compacted_table_in_order(
    make_flow: Callable[..., Flow], records: Records, topic: str, spark: SparkSession, reader: str
) -> None:
    """Several commits, then OPTIMIZE, then a target that was not there before."""
    sent = records.numbered(900, 3)
    records.create("source", topic, 3)
    flow = make_flow([topic], ["target"], fanout={"reader": reader})
    for begin in (0, 300, 600):
        records.send("source", topic, sent[begin : begin + 300])
        flow.run_once()
    spark.sql(f"OPTIMIZE delta.`{table_of(flow)}`")
    assert len(DeltaTable(table_of(flow)).file_uris()) < 9
    flow.targets.append("hubs")
    records.send("source", topic, records.numbered(30, 3, first=900))
    flow.run_once()
    for target in flow.targets:
        assert records.read(target, f"source.{topic}") == by_partition(records.numbered(930, 3))
    assert flow.audit().ok


def test_several_ingest_commits_in_one_fan_out_round(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    sent = records.numbered(1000, 2)
    records.create("source", topic, 2)
    records.send("source", topic, sent)
    flow = make_flow([topic], ingest={"max_records_per_batch": 90})
    flow.run_once()
    assert len(DeltaTable(table_of(flow)).file_uris()) > 10
    assert records.read("target", f"source.{topic}") == by_partition(sent)
    assert {row["kind"] for row in flow.rows("ops.ledger")} == {"baseline", "relay"}
