"""Promise F: aborted transactions never reach bronze; gaps from markers and compaction are no false alarms."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Producer
from harness import Flow, Records
from pyspark.sql import SparkSession

from mirrorlake import inspection
from mirrorlake.lab import LabCluster


def send_transactions(source: LabCluster, topic: str) -> list[bytes]:
    """Committed, aborted, committed: returns what a committed reader must see."""
    producer = Producer({**source.client_config(), "transactional.id": f"tx-{topic}", "linger.ms": 5})
    producer.init_transactions(20)
    seen = []
    for number, commits in enumerate([True, False, True, False, True]):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, n) for n in range(7)]
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush()
        producer.commit_transaction(20) if commits else producer.abort_transaction(20)
        seen += values if commits else []
    return seen


def test_aborted_records_never_arrive(
    make_flow: Callable[..., Flow], records: Records, topic: str, source: LabCluster, spark: SparkSession
) -> None:
    records.create("source", topic)
    seen = send_transactions(source, topic)
    flow = make_flow([topic])
    flow.run_once()
    assert [record.value for record in records.read("target", f"source.{topic}")[0]] == seen
    assert flow.audit().ok
    assert not flow.rows("ops.incidents")
    assert [row["lag_records"] for row in inspection.read_lag(flow.config(), spark)] == [0]
    flow.run_once()
    assert [record.value for record in records.read("target", f"source.{topic}")[0]] == seen


def test_an_open_transaction_is_waited_for(
    make_flow: Callable[..., Flow], records: Records, topic: str, source: LabCluster
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(5))
    producer = Producer({**source.client_config(), "transactional.id": f"open-{topic}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"later", partition=0)
    producer.flush()
    flow = make_flow([topic])
    flow.run_once()
    assert len(records.read("target", f"source.{topic}")[0]) == 5
    producer.commit_transaction(20)
    flow.run_once()
    assert records.read("target", f"source.{topic}")[0][-1].value == b"later"


def test_uncommitted_records_are_taken_where_asked_for(
    make_flow: Callable[..., Flow], records: Records, topic: str, source: LabCluster
) -> None:
    records.create("source", topic)
    send_transactions(source, topic)
    make_flow([topic], isolation="read_uncommitted").run_once()
    assert len(records.read("target", f"source.{topic}")[0]) == 35
