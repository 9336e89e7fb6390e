"""Promise F: aborted transactions never reach bronze; gaps from markers and compaction are no false alarms."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Producer
from harness import Flow, Record, Records
from pyspark.sql import SparkSession

from mirrorlake import inspection
from mirrorlake.lab import LabCluster


def send_transactions(source: LabCluster, topic: str) -> tuple[list[Record], list[Record]]:
    """Committed, aborted, committed, …: returns what a committed reader must see, and what any other does."""
    producer = Producer({**source.client_config(), "transactional.id": f"tx-{topic}", "linger.ms": 5})
    producer.init_transactions(20)
    committed: list[Record] = []
    written: list[Record] = []
    for number, commits in enumerate([True, False, True, False, True]):
        producer.begin_transaction()
        records = [record_of(number, n) for n in range(7)]
        for record in records:
            send(producer, topic, record)
        producer.flush()
        producer.commit_transaction(20) if commits else producer.abort_transaction(20)
        committed += records if commits else []
        written += records
    return committed, written


def record_of(transaction: int, n: int) -> Record:
    """Each field says where it belongs; a key, a value and a header are null now and then."""
    name = b"%d-%d" % (transaction, n)
    headers = (("transaction", b"%d" % transaction), ("null", None), ("n", b"%d" % n))[: n % 4]
    at_ms = 1_700_000_000_000 + 1000 * transaction + n
    return Record(None if n == 5 else b"value " + name, None if n == 3 else b"key " + name, headers, at_ms)


def send(producer: Producer, topic: str, record: Record) -> None:
    producer.produce(
        topic, record.value, record.key, record.partition,
        timestamp=record.timestamp_ms, headers=list(record.headers),
    )  # fmt: skip


def test_aborted_records_never_arrive(
    make_flow: Callable[..., Flow], records: Records, topic: str, source: LabCluster, spark: SparkSession
) -> None:
    records.create("source", topic)
    committed, _ = send_transactions(source, topic)
    flow = make_flow([topic])
    flow.run_once()
    assert records.read("target", f"source.{topic}") == {0: committed}
    assert flow.audit().ok
    assert not flow.rows("ops.incidents")
    assert [row["lag_records"] for row in inspection.read_lag(flow.config(), spark)] == [0]
    flow.run_once()
    assert records.read("target", f"source.{topic}") == {0: committed}


def test_an_open_transaction_is_waited_for(
    make_flow: Callable[..., Flow], records: Records, topic: str, source: LabCluster
) -> None:
    early, later = records.numbered(5), record_of(1, 2)
    records.create("source", topic)
    records.send("source", topic, early)
    producer = Producer({**source.client_config(), "transactional.id": f"open-{topic}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    send(producer, topic, later)
    producer.flush()
    flow = make_flow([topic])
    flow.run_once()
    assert records.read("target", f"source.{topic}") == {0: early}
    producer.commit_transaction(20)
    flow.run_once()
    assert records.read("target", f"source.{topic}") == {0: [*early, later]}


def test_uncommitted_records_are_taken_where_asked_for(
    make_flow: Callable[..., Flow], records: Records, topic: str, source: LabCluster
) -> None:
    records.create("source", topic)
    _, written = send_transactions(source, topic)
    make_flow([topic], isolation="read_uncommitted").run_once()
    assert records.read("target", f"source.{topic}") == {0: written}
