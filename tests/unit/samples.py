"""Bronze rows, an errand and a cluster made of lists, for tests without brokers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, KafkaError

from mirrorlake.kafka import TopicInfo
from mirrorlake.produce import Errand, Sender
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
    stamped: tuple[int, int] = (TIMESTAMP_NOT_AVAILABLE, -1)

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.key_bytes

    def value(self) -> bytes | None:
        return self.value_bytes

    def headers(self) -> Headers | None:
        return self.listed or None  # as confluent-kafka does

    def timestamp(self) -> tuple[int, int]:
        return self.stamped


class FakeCluster:
    """Logs as lists of messages. What is asked has the names of kafka.Cluster."""

    alias = "dr"

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[FakeMessage]] = {}
        self.ends: dict[TopicPartition, int] = {}

    def append(
        self,
        at: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Any] = (),
        stamped: tuple[int, int] = (TIMESTAMP_NOT_AVAILABLE, -1),
    ) -> int:
        offset = self.ends.get(at, 0)
        self.logs.setdefault(at, []).append(FakeMessage(offset, key, value, [*headers], stamped))
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

    def describe_patiently(self, topics: Iterable[str], _patience_seconds: float) -> dict[str, TopicInfo]:
        return self.describe(topics)

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        return {topic: TopicInfo(topic, "target-id", 1, 1) for topic in topics}

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: next((m.at for m in self.logs.get(at, [])), self.ends.get(at, 0)) for at in partitions}


class ListProducer:
    """Sends to a cluster made of lists when flushed; a value in `refused` is refused, and what waits behind it too."""

    def __init__(
        self, cluster: FakeCluster, refused: Container[bytes | None], on_delivery: Callable[..., None]
    ) -> None:
        self._cluster, self._refused, self._on_delivery = cluster, refused, on_delivery
        self._waiting: list[tuple[TopicPartition, Any, Any, int, Any]] = []

    def produce(self, topic: str, value: Any, key: Any, partition: int, timestamp: int, headers: Any) -> None:
        self._waiting.append((TopicPartition(topic, partition), key, value, timestamp, headers))

    def flush(self, _seconds: float) -> int:
        while self._waiting:
            at, key, value, timestamp_ms, headers = self._waiting[0]
            if value in self._refused:
                self._on_delivery(KafkaError(KafkaError.INVALID_TIMESTAMP), self)
                return len(self._waiting)
            self._cluster.append(at, key, value, headers, (TIMESTAMP_CREATE_TIME, timestamp_ms))
            del self._waiting[0]
        return 0

    def poll(self, _seconds: float) -> int:
        return 0

    def topic(self) -> str:
        return self._waiting[0][0].topic

    def purge(self, **_: bool) -> None:
        self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)


class ListSender(Sender):
    """The real one, over a cluster made of lists."""

    def __init__(self, cluster: FakeCluster, refused: Container[bytes | None] = ()) -> None:
        producer: Any = ListProducer(cluster, refused, self._on_delivery)
        as_cluster: Any = cluster
        self.cluster, self.producer = as_cluster, producer
        self.failure, self.failed_topic, self._cut, self.met = None, "", False, set()
        self._waiting_bytes = 0
