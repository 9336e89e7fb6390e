"""The records of the benchmark: a key, two headers, and a value of which half is random and the rest compresses."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import random
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from mirrorlake.errors import DataAtRisk, TargetDiverged
from mirrorlake.kafka import Cluster
from mirrorlake.provenance import HEADER
from mirrorlake.records import TopicPartition as At

SAMPLE_RECORDS = 1000
BURSTS_PER_SECOND = 100
_NOISE_BYTES = 64 << 20  # far beyond a compressor's window: what comes back within it would not be random
_PRODUCER = {"acks": "all", "linger.ms": 20, "batch.size": 1_000_000, "compression.type": "lz4", "log_level": 2}
Clients = Mapping[str, str | bool]


@functools.cache
def _noise() -> bytes:
    return random.Random(1).randbytes(_NOISE_BYTES)  # noqa: S311


class Values:
    """Values of one size, cut from one block of noise: making them must not be what is measured."""

    def __init__(self, size: int) -> None:
        self._noise = _noise()
        self._random = size - size // 2
        self._rest = b'{"status": "shipped", "amount": 1}'.ljust(size // 2, b".")[: size // 2]

    def __call__(self, number: int, head: bytes = b"") -> bytes:
        # A prime step: the same cut comes back only after all others.
        begin = number * 7919 % (_NOISE_BYTES - self._random)
        return head + self._noise[begin : begin + self._random - len(head)] + self._rest


def produce(producer: Producer, topic: str, number: int, partition: int, value: bytes) -> None:
    headers = [("trace", b"%016d" % number), ("kind", b"order")]
    while True:
        try:
            producer.produce(topic, value, b"key-%d" % number, partition, headers=headers)
            return
        except BufferError:
            producer.poll(0.1)


def load(clients: Clients, topic: str, partitions: int, records: int, size: int) -> None:
    """Fill a topic, all partitions alike."""
    values = Values(size)
    producer = Producer({**clients, **_PRODUCER, "delivery.report.only.error": True})
    for number in range(records):
        produce(producer, topic, number, number % partitions, values(number))
    if producer.flush(120):
        raise DataAtRisk(f"the benchmark's topic {topic} could not be filled")


# --- the same data at the end ---


def check_copy(source: Cluster, topic: str, target: Cluster, copy: str, partitions: int) -> int:
    """Same ends, and the same records at the same offsets at begin, middle and end; how many were compared."""
    ends = source.log_ends([At(topic, n) for n in range(partitions)])
    copied = target.log_ends([At(copy, n) for n in range(partitions)])
    if list(ends.values()) != list(copied.values()):
        raise TargetDiverged(f"{copy} on {target.alias} ends at {list(copied.values())}, not {list(ends.values())}")
    compared = 0
    for (at, end), copy_at in zip(ends.items(), copied, strict=True):
        for first in sorted({0, end // 2, max(0, end - SAMPLE_RECORDS)}):
            until = min(end, first + SAMPLE_RECORDS)
            wanted, found = _fields(source, at, first, until), _fields(target, copy_at, first, until)
            if wanted != found:
                raise TargetDiverged(f"{copy_at} on {target.alias} differs from the source at offsets {first}-{until}")
            compared += len(wanted)
    return compared


def _fields(cluster: Cluster, at: At, first: int, until: int) -> list[Any]:
    return [
        (m.offset(), m.timestamp(), m.key(), m.value(), [h for h in m.headers() or () if h[0] != HEADER])
        for m in cluster.read_range(at, first, until)
    ]


# --- a steady pace ---


@contextlib.contextmanager
def feeding(clients: Clients, topic: str, partitions: int, size: int, per_second: int) -> Iterator[None]:
    """Records at a steady pace, from a process of their own; each value begins with the time it was sent."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=_feed, args=(dict(clients), topic, partitions, size, per_second, stop))
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(30)
        if process.is_alive():
            process.kill()


def _feed(clients: dict[str, str | bool], topic: str, partitions: int, size: int, per_second: int, stop: Any) -> None:
    values = Values(size)
    producer = Producer({**clients, **_PRODUCER, "linger.ms": 5, "delivery.report.only.error": True})
    begun, sent = time.monotonic(), 0
    while not stop.is_set():
        wanted = int((time.monotonic() - begun) * per_second)
        for number in range(sent, wanted):
            head = struct.pack(">q", time.time_ns())
            produce(producer, topic, number, number % partitions, values(number, head))
        sent = wanted
        producer.poll(0)
        time.sleep(1 / BURSTS_PER_SECOND)
    producer.flush(30)


class Arrivals:
    """Reads the tail of a copy, and says how old each record was when a consumer got it."""

    def __init__(self, clients: Clients, topic: str, partitions: int) -> None:
        tail = {"group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 10, "fetch.min.bytes": 1}
        self._consumer = Consumer({**clients, **tail, "log_level": 2})
        self.received = 0
        self._consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions)])

    def collect(self, done: Callable[[], bool], sent_after_ns: int) -> list[float]:
        """Until `done`: the ages in seconds of what was sent after a time."""
        ages: list[float] = []
        while not done():
            messages = self._consumer.consume(5000, timeout=0.01)
            now_ns = time.time_ns()
            sent = [struct.unpack(">q", m.value()[:8])[0] for m in messages if not m.error()]
            self.received += len(sent)
            ages += [(now_ns - at_ns) / 1e9 for at_ns in sent if at_ns >= sent_after_ns]
        return ages

    def close(self) -> None:
        self._consumer.close()
