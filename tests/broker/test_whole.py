"""Promise A: the target's record equals the source's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from harness import Flow, Record, Records, by_partition, wait_until
from pyspark.sql import SparkSession

from mirrorlake.lab import ClusterSpec, Lab
from mirrorlake.records import TopicPartition

BIG = bytes(range(256)) * 3600  # 900 kB

AWKWARD = {
    "a null key": Record(key=None),
    "an empty key": Record(key=b""),
    "a null value, a tombstone": Record(value=None),
    "an empty value": Record(value=b""),
    "null key and null value": Record(key=None, value=None),
    "no headers": Record(headers=()),
    "repeated header names in order": Record(headers=(("a", b"1"), ("b", b"2"), ("a", b"3"))),
    "a null header value beside an empty one": Record(headers=(("none", None), ("empty", b""))),
    "a header name beyond ASCII": Record(headers=(("größe", b"1"),)),
    "a value of 900 kB": Record(value=BIG),
    "bytes that are no text": Record(value=b"\x00\xff\xfe", key=b"\x80"),
    "a timestamp in the past": Record(timestamp_ms=1),
    "a timestamp of 1999": Record(timestamp_ms=915_148_800_000),
}


@pytest.mark.parametrize("targets", [["target", "hubs"]], ids=["two targets"])
def test_awkward_records_arrive_whole(
    make_flow: Callable[..., Flow], records: Records, topic: str, targets: list[str]
) -> None:
    sent = list(AWKWARD.values())
    records.create("source", topic, 3, max_message_bytes="2000000")
    placed = [Record(r.value, r.key, r.headers, r.timestamp_ms, n % 3) for n, r in enumerate(sent)]
    records.send("source", topic, placed, **{"message.max.bytes": 2_000_000})
    flow = make_flow([topic], targets)
    flow.run_once()
    for target in targets:
        assert records.read(target, f"source.{topic}") == by_partition(placed)
    assert flow.audit().ok


def test_both_readers_leave_the_same_bronze(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    """Python workers and Spark's Kafka source, where only Spark may write, are one reader to whoever comes after."""
    records.create("source", topic, 2, max_message_bytes="2000000")
    placed = [Record(r.value, r.key, r.headers, r.timestamp_ms, n % 2) for n, r in enumerate(AWKWARD.values())]
    records.send("source", topic, placed, **{"message.max.bytes": 2_000_000})
    bronze = {}
    for reader in ("workers", "spark"):
        flow = replace(
            make_flow([topic], ingest={"reader": reader}, target={"existing_records": "append"}), name=reader
        )
        flow.folder /= reader
        flow.folder.mkdir()
        flow.run_once()
        rows = flow.rows(f"bronze.source__{topic.replace('-', '__h')}")
        bronze[reader] = sorted(
            ({**row, "ingested_at": None} for row in rows), key=lambda r: (r["partition"], r["offset"])
        )
    assert bronze["workers"] == bronze["spark"]
    assert len(bronze["workers"]) == len(AWKWARD)


@pytest.mark.parametrize("name", ["dots.and.more", "dashes-and-more", "under_scores_", "CamelCase", "a"])
def test_topic_names_of_every_kind(make_flow: Callable[..., Flow], records: Records, topic: str, name: str) -> None:
    records.create("source", name)
    records.send("source", name, records.numbered(10))
    make_flow([name]).run_once()
    assert records.read("target", f"source.{name}")[0] == records.numbered(10)


@pytest.mark.parametrize("partitions", [1, 16])
def test_partitions_are_kept(make_flow: Callable[..., Flow], records: Records, topic: str, partitions: int) -> None:
    sent = records.numbered(400, partitions)
    records.create("source", topic, partitions)
    records.send("source", topic, sent)
    flow = make_flow([topic])
    flow.run_once()
    assert records.read("target", f"source.{topic}") == by_partition(sent)


def test_log_append_time_is_carried_as_the_record_time(
    make_flow: Callable[..., Flow], records: Records, topic: str, spark: SparkSession
) -> None:
    records.create("source", topic, message_timestamp_type="LogAppendTime")
    records.send("source", topic, records.numbered(5))
    flow = make_flow([topic])
    flow.run_once()
    assert records.read("target", f"source.{topic}") == records.read("source", topic)
    types = {row["timestamp_type"] for row in flow.rows(f"bronze.source__{topic.replace('-', '__h')}")}
    assert types == {1}


def test_timestamps_near_zero_are_kept(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    """0 itself cannot be sent with librdkafka, here as in the relay; that it is listed is a unit test's business."""
    records.create("source", topic)
    records.send("source", topic, [Record(timestamp_ms=1), Record(timestamp_ms=2)])
    flow = make_flow([topic])
    flow.run_once()
    assert [r.timestamp_ms for r in records.read("target", f"source.{topic}")[0]] == [1, 2]
    assert not flow.rows("ops.incidents")


@pytest.fixture
def compacting(lab: Lab, records: Records) -> Iterator[str]:
    """A cluster whose cleaner looks twice a second, not four times a minute."""
    fast = {"log.retention.ms": "-1", "log.cleaner.backoff.ms": "500", "log.initial.task.delay.ms": "1000"}
    name = "compacting"
    lab.up([ClusterSpec(name, config=fast)])
    yield name
    records.clients.pop(name).close()
    lab.down([name])


def test_a_compacted_topic_with_gaps(
    make_flow: Callable[..., Flow], records: Records, topic: str, compacting: str
) -> None:
    records.create(
        compacting, topic, cleanup_policy="compact", segment_ms="1", min_cleanable_dirty_ratio="0.001",
        delete_retention_ms="600000", max_compaction_lag_ms="1000",
    )  # fmt: skip
    left: dict[bytes, Record] = {}
    # Gaps of one, two and many: of the first version every other key is left, and so on. The last rolls the segment.
    for version, keys in enumerate([range(40), range(0, 40, 2), range(0, 40, 6), range(40, 41)]):
        at_ms = 1_700_000_000_000 + 1000 * version
        written = [Record(None if key == 6 else b"%d" % version, b"k%d" % key, (), at_ms) for key in keys]
        records.send(compacting, topic, written)
        for record in written:
            left.pop(record.key or b"", None)
            left[record.key or b""] = record
    wait_until(lambda: records.read(compacting, topic)[0] == list(left.values()), "the cleaner")
    place = TopicPartition(topic, 0)
    assert len(left) < records.cluster(compacting).log_ends([place])[place]
    flow = make_flow([topic], source=compacting)
    flow.run_once()
    assert records.read("target", f"{compacting}.{topic}") == {0: list(left.values())}
    assert flow.audit().ok
    assert not flow.rows("ops.incidents")


def test_provenance_can_be_turned_off(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    sent = records.numbered(50)
    records.create("source", topic)
    records.send("source", topic, sent)
    flow = make_flow([topic], provenance=False, target={"sole_writer": True})
    flow.run_once()
    cluster = records.cluster("target")
    messages = list(cluster.read_range(TopicPartition(f"source.{topic}", 0), 0, 50))
    assert [len(message.headers()) for message in messages] == [1] * 50
    assert flow.audit().ok
