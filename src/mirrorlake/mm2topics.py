"""MM2's own topics for offsets, so that `RemoteClusterUtils` and tools made for MM2 read ours as they read MM2's.

Checkpoints: key (group, topic on the target, partition), value (version 0, source offset, target offset, metadata).
Offset syncs: key (topic on the source, partition), value (source offset, target offset). Numbers are big-endian, a text
is its length in two bytes, then UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Producer

from mirrorlake.clusters import librdkafka_common, limits, resolved
from mirrorlake.config import Config, Flow, Target
from mirrorlake.errors import ClusterUnreachable
from mirrorlake.kafka import QUIET, Cluster, NewTopicSpec
from mirrorlake.records import TopicPartition

_VERSION = 0
_LENGTH = struct.Struct(">h")
_PARTITION = struct.Struct(">i")
_OFFSETS = struct.Struct(">qq")
FLUSH_SECONDS = 30.0

Message = tuple[bytes, bytes]


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = _LENGTH.unpack_from(data, at)
    begin = at + _LENGTH.size
    return data[begin : begin + size].decode(), begin + size


@dataclass(frozen=True)
class Checkpoint:
    group: str
    target: TopicPartition
    source_offset: int
    target_offset: int
    metadata: str = ""

    def encode(self) -> Message:
        key = _text(self.group) + _text(self.target.topic) + _PARTITION.pack(self.target.partition)
        offsets = _OFFSETS.pack(self.source_offset, self.target_offset)
        return key, _LENGTH.pack(_VERSION) + offsets + _text(self.metadata)


def decode_checkpoint(key: bytes, value: bytes) -> Checkpoint:
    group, at = _read_text(key, 0)
    topic, at = _read_text(key, at)
    (partition,) = _PARTITION.unpack_from(key, at)
    source_offset, target_offset = _OFFSETS.unpack_from(value, _LENGTH.size)
    metadata, _ = _read_text(value, _LENGTH.size + _OFFSETS.size)
    return Checkpoint(group, TopicPartition(topic, partition), source_offset, target_offset, metadata)


@dataclass(frozen=True)
class OffsetSync:
    source: TopicPartition
    source_offset: int
    target_offset: int

    def encode(self) -> Message:
        key = _text(self.source.topic) + _PARTITION.pack(self.source.partition)
        return key, _OFFSETS.pack(self.source_offset, self.target_offset)


def checkpoints_topic(source: str, separator: str = ".") -> str:
    return separator.join((source, "checkpoints", "internal"))


def offset_syncs_topic(other: str, separator: str = ".") -> str:
    return separator.join(("mm2-offset-syncs", other, "internal"))


# --- writing ---


@dataclass
class Mm2Topics:
    """The topics that one flow and target ask for; each is made when there is first something to write."""

    config: Config
    flow: Flow
    target: Target
    clusters: Mapping[str, Cluster]
    _producers: dict[str, Producer] = field(default_factory=dict)
    _known: set[tuple[str, str]] = field(default_factory=set)

    @property
    def wants_checkpoints(self) -> bool:
        asked = self.target.groups.mm2_checkpoints
        return self.config.clusters[self.target.cluster].kind != "event_hubs" if asked is None else asked

    def write_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        if self.wants_checkpoints:
            topic = checkpoints_topic(self.flow.source, self.target.separator)
            self._write(self.target.cluster, topic, [each.encode() for each in checkpoints])

    def write_offset_syncs(self, syncs: Sequence[OffsetSync]) -> None:
        where = self.target.groups.mm2_offset_syncs
        ends = (self.flow.source, self.target.cluster)
        if where != "none":
            alias, other = ends if where == "source" else ends[::-1]
            topic = offset_syncs_topic(other, self.target.separator)
            self._write(alias, topic, [each.encode() for each in syncs])

    def _write(self, alias: str, topic: str, messages: Sequence[Message]) -> None:
        if not messages or not self._is_there(alias, topic):
            return
        producer, failed = self._producer(alias), list[str]()
        for key, value in messages:
            producer.produce(topic, value, key, 0, on_delivery=lambda e, _m: failed.append(e.str()) if e else None)
            producer.poll(0)
        if producer.flush(FLUSH_SECONDS) or failed:
            raise ClusterUnreachable(f"cluster {alias}: {topic} was not written: {failed[0] if failed else 'too slow'}")

    def _is_there(self, alias: str, topic: str) -> bool:
        cluster = self.clusters[alias]
        if (alias, topic) not in self._known and not cluster.describe([topic]):
            if not limits(self.config.clusters[alias]).can_create_topics:
                return False
            factor = self.target.replication_factor
            cluster.create_topics([NewTopicSpec(topic, 1, factor, {"cleanup.policy": "compact"})])
        self._known.add((alias, topic))
        return True

    def _producer(self, alias: str) -> Producer:
        if alias not in self._producers:
            settings = {**librdkafka_common(alias, self.config.clusters[alias]), "enable.idempotence": "true"}
            self._producers[alias] = Producer({**resolved(settings), **QUIET})
        return self._producers[alias]
