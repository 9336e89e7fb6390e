"""Bronze rows, an errand and a cluster made of lists, for tests without brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from mirrorlake.kafka import TopicInfo
from mirrorlake.produce import Errand
from mirrorlake.records import BRONZE, SourcePartition, TopicPartition

Headers = list[tuple[str, bytes | None]]
EPOCH_START = datetime(1970, 1, 1, tzinfo=timezone.utc)
NOON_MS = 1_767_268_800_000
TOPIC_ID = "7b1c2d3e-0000-4000-8000-00000000000a"
OTHER_ID = "7b1c2d3e-0000-4000-8000-00000000000b"
SOURCE = SourcePartition("orders", TOPIC_ID, 0)
TARGET = TopicPartition("src.orders", 0)


def bronze_row(offset: int, source: SourcePartition = SOURCE, **fields: Any) -> dict[str, Any]:
    """A row; `headers` as pairs, `at_ms` for the timestamp."""
    at_ms, headers = fields.pop("at_ms", NOON_MS), fields.pop("headers", None)
    listed = None if headers is None else [{"key": name, "value": value} for name, value in headers]
    row = {
        "topic": source.topic,
        "partition": source.partition,
        "offset": offset,
        "timestamp": EPOCH_START + timedelta(milliseconds=at_ms),
        "timestamp_type": 0,
        "key": b"k%d" % offset,
        "value": b"v%d" % offset,
        "headers": listed,
        "topic_id": source.topic_id,
        "ingested_at": EPOCH_START + timedelta(milliseconds=NOON_MS),
        "batch": 0,
    }
    return {**row, **fields}


def bronze_table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=BRONZE)


def bronze_batch(rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=BRONZE)


def errand(**fields: Any) -> Errand:
    usual: dict[str, Any] = {
        "flow": "f",
        "target": "dr",
        "epoch": 1,
        "producer_config": {},
        "client_config": {},
        "lock": None,
        "provenance": True,
        "source_cluster_id": "cluster-a",
        "target_cluster_id": "cluster-b",
        "max_hops": 1,
        "max_record_bytes": 1_000_000,
        "dead_letters": False,
        "delivery_timeout_seconds": 1.0,
    }
    return Errand(**{**usual, **fields})


@dataclass(frozen=True)
class FakeMessage:
    at: int
    key_bytes: bytes | None
    value_bytes: bytes | None
    listed: Headers = field(default_factory=list)

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.key_bytes

    def value(self) -> bytes | None:
        return self.value_bytes

    def headers(self) -> Headers | None:
        return self.listed or None  # as confluent-kafka does


class FakeCluster:
    """Logs as lists of messages. What is asked has the names of kafka.Cluster."""

    alias = "dr"

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[FakeMessage]] = {}
        self.ends: dict[TopicPartition, int] = {}

    def append(self, at: TopicPartition, key: bytes | None, value: bytes | None, headers: Sequence[Any] = ()) -> int:
        offset = self.ends.get(at, 0)
        self.logs.setdefault(at, []).append(FakeMessage(offset, key, value, [*headers]))
        self.ends[at] = offset + 1
        return offset

    def expire(self, at: TopicPartition, before: int) -> None:
        self.logs[at] = [message for message in self.logs[at] if message.at >= before]

    def compact_away(self, at: TopicPartition, offsets: Iterable[int]) -> None:
        gone = set(offsets)
        self.logs[at] = [message for message in self.logs[at] if message.at not in gone]

    def read_range(self, at: TopicPartition, first: int, end: int, committed: bool = False) -> Iterator[Any]:
        yield from (message for message in self.logs.get(at, []) if first <= message.at < end)

    def log_ends(self, partitions: Iterable[TopicPartition], committed: bool = False) -> dict[TopicPartition, int]:
        return {at: self.ends.get(at, 0) for at in partitions}

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        return {topic: TopicInfo(topic, "target-id", 1, 1) for topic in topics}

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: next((m.at for m in self.logs.get(at, [])), self.ends.get(at, 0)) for at in partitions}
