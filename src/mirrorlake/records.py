"""The words: topic-partitions, runs of offsets, and the schemas of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class SourcePartition(NamedTuple):
    """A partition of one incarnation of a source topic."""

    topic: str
    topic_id: str
    partition: int

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


# --- logs that were cut ---
#
# A topic whose log was cut below what we had read goes on as a branch: its id with a number, `…#1`. Offsets come again
# then, and nothing but that number tells the new records from those that bronze holds under the same offsets.


def trunk(topic_id: str) -> str:
    """The id as the broker tells it."""
    return topic_id.partition("#")[0]


def branch(topic_id: str) -> int:
    return int(topic_id.partition("#")[2] or 0)


def next_branch(topic_id: str) -> str:
    return f"{trunk(topic_id)}#{branch(topic_id) + 1}"


def known_id(kept: str | None, told: str) -> str:
    """What we call a topic: by the id that its broker tells, with the branch that we know."""
    return kept if kept is not None and (not told or trunk(kept) == told) else told


def age(source: SourcePartition) -> tuple[bool, int]:
    """Later parts of one log are greater. Those from before its broker told ids come first."""
    return bool(trunk(source.topic_id)), branch(source.topic_id)


def is_same_log(one: SourcePartition, two: SourcePartition) -> bool:
    """Two parts of one log: before and after it was cut, or before and after its broker told ids."""
    ids = {trunk(one.topic_id), trunk(two.topic_id)} - {""}
    return (one.topic, one.partition) == (two.topic, two.partition) and len(ids) <= 1


def is_elder(one: SourcePartition, two: SourcePartition) -> bool:
    """Is the first an earlier part of the log of the second?"""
    return is_same_log(one, two) and age(one) < age(two)


@dataclass(frozen=True)
class KnownEnd:
    """Where a log ended when it was last looked at, and where it began."""

    offset: int
    at: datetime
    start: int = 0


@dataclass(frozen=True)
class Run:
    """Consecutive source offsets that stand at consecutive target offsets."""

    source_first: int
    target_first: int
    count: int

    @property
    def source_last(self) -> int:
        return self.source_first + self.count - 1

    @property
    def target_end(self) -> int:
        return self.target_first + self.count


def runs_from_pairs(pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """Fold (source offset, target offset) pairs, in order, into the fewest runs."""
    runs: list[list[int]] = []
    for source_offset, target_offset in pairs:
        if runs and runs[-1][0] + runs[-1][2] == source_offset and runs[-1][1] + runs[-1][2] == target_offset:
            runs[-1][2] += 1
        else:
            runs.append([source_offset, target_offset, 1])
    return [Run(*run) for run in runs]


def spans(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending offsets as (first, count) spans of consecutive numbers."""
    if not offsets:
        return []
    numbers = np.asarray(offsets)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(numbers) != 1) + 1))
    counts = np.diff(np.concatenate((starts, [len(numbers)])))
    return list(zip(numbers[starts].tolist(), counts.tolist(), strict=True))


_TIME = pa.timestamp("us", tz="UTC")

# What every bronze table holds. `headers` is null where a record has none: Spark's Kafka source says it so.
BRONZE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIME),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("topic_id", pa.string()),
        ("ingested_at", _TIME),
        ("batch", pa.int64()),
    ]
)

# A topic made anew counts its offsets from 0 again, so statistics need the topic id beside the offset.
BRONZE_STATISTICS = "topic,partition,offset,timestamp,topic_id"

LEDGER = pa.schema(
    [
        ("flow", pa.string()),
        ("target", pa.string()),
        ("kind", pa.string()),
        ("epoch", pa.int64()),
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("source_partition", pa.int32()),
        ("source_first", pa.int64()),
        ("source_last", pa.int64()),
        ("target_topic", pa.string()),
        ("target_topic_id", pa.string()),
        ("target_partition", pa.int32()),
        ("target_first", pa.int64()),
        ("count", pa.int64()),
        ("target_end", pa.int64()),
        ("reason", pa.string()),
        ("at", _TIME),
    ]
)

DEAD_LETTERS = pa.schema(
    [
        ("flow", pa.string()),
        ("target", pa.string()),
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("source_partition", pa.int32()),
        ("source_offset", pa.int64()),
        ("target_topic", pa.string()),
        ("reason", pa.string()),
        ("record_bytes", pa.int64()),
        ("epoch", pa.int64()),
        ("at", _TIME),
    ]
)

INCIDENTS = pa.schema(
    [
        ("flow", pa.string()),
        ("target", pa.string()),
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("detail", pa.string()),
        ("at", _TIME),
    ]
)

GROUP_CHECKPOINTS = pa.schema(
    [
        ("flow", pa.string()),
        ("target", pa.string()),
        ("group_id", pa.string()),
        ("source_topic", pa.string()),
        ("partition", pa.int32()),
        ("source_offset", pa.int64()),
        ("target_topic", pa.string()),
        ("target_offset", pa.int64()),
        ("decision", pa.string()),
        ("at", _TIME),
    ]
)

LAG_SAMPLES = pa.schema(
    [
        ("flow", pa.string()),
        ("side", pa.string()),
        ("cluster", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("log_start", pa.int64()),
        ("log_end", pa.int64()),
        ("position", pa.int64()),
        ("position_at", _TIME),
        ("at", _TIME),
        ("topic_id", pa.string()),  # since format 2; null in older rows
    ]
)

DELIVERIES = pa.schema(
    [
        ("flow", pa.string()),
        ("target", pa.string()),
        ("records", pa.int64()),
        ("at", _TIME),  # the minute
    ]
)

AUDITS = pa.schema(
    [
        ("flow", pa.string()),
        ("audit", pa.string()),
        ("target", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("finding", pa.string()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("records", pa.int64()),
        ("detail", pa.string()),
        ("at", _TIME),
    ]
)

LEASES = pa.schema(
    [
        ("flow", pa.string()),
        ("epoch", pa.int64()),
        ("owner", pa.string()),
        ("at", _TIME),
    ]
)

OPS_TABLES = {
    "ledger": LEDGER,
    "dead_letters": DEAD_LETTERS,
    "incidents": INCIDENTS,
    "group_checkpoints": GROUP_CHECKPOINTS,
    "lag_samples": LAG_SAMPLES,
    "deliveries": DELIVERIES,
    "audits": AUDITS,
    "leases": LEASES,
}
