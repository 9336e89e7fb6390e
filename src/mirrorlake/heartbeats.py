"""Heartbeats in MM2's format: a compacted topic on both ends, relayed like any other, so that monitors see the relay.

As MM2 does for A -> B, a beat `A -> B` goes to `heartbeats` on B, and a beat `B -> A` to `heartbeats` on A, which the
relay takes to `A.heartbeats` on B. That one proves that records pass.
"""

from __future__ import annotations

import itertools
import re
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Producer

from mirrorlake.clusters import librdkafka_common, limits, resolved
from mirrorlake.config import Config
from mirrorlake.errors import Transient, Unreachable
from mirrorlake.kafka import QUIET, Cluster, NewTopicSpec

TOPIC = "heartbeats"
_VERSION = 0
_VALUE = struct.Struct(">hq")
_LENGTH = struct.Struct(">h")


def encode_key(source: str, target: str) -> bytes:
    return b"".join(_LENGTH.pack(len(text)) + text for text in (source.encode(), target.encode()))


def encode_value(at_ms: int) -> bytes:
    return _VALUE.pack(_VERSION, at_ms)


def decode(key: bytes, value: bytes) -> tuple[str, str, int]:
    """Source, target and time of a beat; ValueError where it is none."""
    version, at_ms = _VALUE.unpack(value)
    (size,) = _LENGTH.unpack_from(key)
    source, rest = key[_LENGTH.size : _LENGTH.size + size], key[_LENGTH.size + size :]
    target = rest[_LENGTH.size :]
    if version != _VERSION or key != encode_key(source.decode(), target.decode()):
        raise ValueError("not a heartbeat of a version that we know")
    return source.decode(), target.decode(), at_ms


def family(aliases: Iterable[str], separators: Iterable[str]) -> str:
    """An expression for `heartbeats` and its copies, such as `a.heartbeats` and `b.a.heartbeats`."""
    pairs = itertools.product(aliases, sorted(set(separators)))
    hops = "|".join(re.escape(alias + separator) for alias, separator in pairs)
    return f"(?:{hops})*{TOPIC}"


@dataclass
class Heart:
    """Beats for one flow and target, wherever the topic is there or can be made."""

    config: Config
    clusters: Mapping[str, Cluster]
    source: str
    target: str
    replication_factor: int = -1
    clock: Callable[[], float] = time.time
    refused: dict[str, str] = field(default_factory=dict)
    """Alias -> why there are no beats on it."""
    _producers: dict[str, Producer | None] = field(default_factory=dict)
    """Alias -> its producer, None where there can be no topic."""

    def beat(self, present: Iterable[str]) -> None:
        """One beat at each end that is there."""
        at_ms = int(self.clock() * 1000)
        for here, there in ((self.source, self.target), (self.target, self.source)):
            producer = self._producer(here) if here in present else None
            if producer:
                producer.produce(TOPIC, encode_value(at_ms), encode_key(there, here), 0, timestamp=at_ms)
                producer.poll(0)

    def _producer(self, alias: str) -> Producer | None:
        if alias not in self._producers:
            there = self._ensure_topic(alias)
            # A beat that cannot be sent is late: no other must wait for it.
            settings = {**librdkafka_common(alias, self.config.clusters[alias]), "message.timeout.ms": "10000"}
            self._producers[alias] = Producer({**resolved(settings), **QUIET}) if there else None
        return self._producers[alias]

    def _ensure_topic(self, alias: str) -> bool:
        try:
            self._make_topic(alias)
        except Unreachable as fault:
            if isinstance(fault, Transient):
                raise
            self.refused[alias] = fault.what
        return alias not in self.refused

    def _make_topic(self, alias: str) -> None:
        cluster = self.clusters[alias]
        if cluster.describe([TOPIC]):
            return
        if limits(self.config.clusters[alias]).can_create_topics:
            cluster.create_topics([NewTopicSpec(TOPIC, 1, self.replication_factor, {"cleanup.policy": "compact"})])
        else:
            self.refused[alias] = f"make a topic named {TOPIC} there"

    def flush(self, timeout_seconds: float) -> None:
        for producer in self._producers.values():
            if producer:
                producer.flush(timeout_seconds)
