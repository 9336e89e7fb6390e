"""How far behind: samples of source ends and positions, and SQL views over them.

Source ends are sampled apart from ingest, so the lag is right also when ingest is dead. Seconds behind are counted
from the first sample that saw the source beyond the target's position: they depend on no record's timestamp.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from mirrorlake.kafka import Cluster, TopicInfo
from mirrorlake.ledger import Book
from mirrorlake.records import LAG_SAMPLES, KnownEnd, SourcePartition, TopicPartition, age, is_elder, known_id
from mirrorlake.tables import Segment


def bronze_ends(segments: Iterable[Segment]) -> dict[SourcePartition, int]:
    """The offset after the last record that bronze holds."""
    ends: dict[SourcePartition, int] = {}
    for segment in segments:
        ends[segment.source] = max(ends.get(segment.source, 0), segment.last_offset + 1)
    return ends


def target_positions(
    book: Book,
    ends: Mapping[SourcePartition, int] | None,
    ingested: Mapping[SourcePartition, int],
) -> dict[SourcePartition, int]:
    """Where a target stands at the source: with all of bronze, where ingest stands, since markers are no records.

    Where bronze's ends are not known (None), nobody can say that it has all. Of a log that was cut, the earlier branch
    goes first.
    """
    parts: dict[TopicPartition, list[SourcePartition]] = defaultdict(list)
    for part in {*book.positions, *(ends or ())}:
        parts[part.at].append(part)
    return {
        source: _position([p for p in parts[source.at] if p == source or is_elder(p, source)], book, ends, ingested_to)
        for source, ingested_to in ingested.items()
    }


def _position(
    log: Sequence[SourcePartition], book: Book, ends: Mapping[SourcePartition, int] | None, ingested_to: int
) -> int:
    """`log`: the parts of one log that bronze or the target knows of."""
    reached = {part: book.positions[part].next_offset if part in book.positions else 0 for part in log}
    if ends is None:
        return reached[max(log, key=age)] if log else 0
    return min((reached[part] for part in log if reached[part] < ends.get(part, 0)), default=ingested_to)


def ingest_positions(
    positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]
) -> dict[SourcePartition, int]:
    """Where ingest stands, by incarnation of the topic."""
    return {SourcePartition(at.topic, topic_ids.get(at.topic, ""), at.partition): p for at, p in positions.items()}


def as_known(topics: Iterable[TopicInfo], topic_ids: Mapping[str, str]) -> list[TopicInfo]:
    """Topics as their cluster describes them, under the ids by which ingest knows them."""
    return [replace(topic, id=known_id(topic_ids.get(topic.name), topic.id)) for topic in topics]


def sample_rows(
    flow: str,
    source: Cluster,
    topics: Iterable[TopicInfo],
    ingested: Mapping[SourcePartition, int],
    targets: Mapping[str, Mapping[SourcePartition, int]],
    committed: bool,
    at: datetime,
    takes: Callable[[str, str], bool] = lambda _target, _topic: True,
) -> pa.Table:
    """One sample of the source's ends, of ingest and of each target, for the topics as they are now.

    Who stands in an earlier incarnation of a topic has nothing of this one. All rows of a sample carry one time. A
    target is not behind with a topic that it does not take.
    """
    asked = [SourcePartition(topic.name, topic.id, number) for topic in topics for number in range(topic.partitions)]
    places = {held: TopicPartition(held.topic, held.partition) for held in asked}
    starts, ends = source.log_starts(places.values()), source.log_ends(places.values(), committed)
    sides = {("bronze", ""): ingested, **{("target", name): held for name, held in targets.items()}}
    rows = [
        _row(flow, "source", source.alias, held, at, log_start=starts[tp], log_end=ends[tp])
        for held, tp in places.items()
    ]
    rows += [
        _row(flow, side, cluster, held, at, position=positions.get(held, starts[tp]))
        for (side, cluster), positions in sides.items()
        for held, tp in places.items()
        if side == "bronze" or takes(cluster, held.topic)
    ]
    return pa.Table.from_pylist(rows, schema=LAG_SAMPLES)


def source_ends(samples: pa.Table) -> dict[SourcePartition, int]:
    """Where the source ended, from one sample."""
    rows = samples.filter(pc.equal(samples["side"], "source")).to_pylist()
    return {SourcePartition(row["topic"], row["topic_id"], row["partition"]): row["log_end"] for row in rows}


SAMPLED_ENDS = ["topic", "topic_id", "partition", "log_start", "log_end", "at"]


def known_ends(samples: pa.Table) -> dict[SourcePartition, KnownEnd]:
    """Where each incarnation of a topic ended at the newest sample that saw it; of `SAMPLED_ENDS`."""
    grouped = samples.sort_by("at").group_by(SAMPLED_ENDS[:3], use_threads=False)
    newest = grouped.aggregate([(name, "last") for name in SAMPLED_ENDS[3:]]).to_pylist()
    return {
        SourcePartition(row["topic"], row["topic_id"] or "", row["partition"]): KnownEnd(
            row["log_end_last"], row["at_last"], row["log_start_last"]
        )
        for row in newest
    }


def _row(flow: str, side: str, cluster: str, held: SourcePartition, at: datetime, **offsets: int) -> dict[str, object]:
    return {"flow": flow, "side": side, "cluster": cluster, **held._asdict(), **offsets, "at": at}


_RUN = """flow, target, kind, source_topic, source_topic_id, source_partition,
  target_topic, target_topic_id, target_partition"""


def views(ops: str) -> dict[str, str]:
    """The SQL of the views, by name; `ops` is the schema they read."""
    return {
        "replication_lag": f"""
WITH newest AS (
  SELECT s.* FROM {ops}.lag_samples s
  JOIN (SELECT flow, max(at) AS at FROM {ops}.lag_samples GROUP BY flow) last ON last.flow = s.flow AND last.at = s.at
), source AS (SELECT * FROM newest WHERE side = 'source'),
bronze AS (SELECT * FROM newest WHERE side = 'bronze'),
target AS (SELECT * FROM newest WHERE side = 'target'),
behind AS (
  SELECT t.flow, t.cluster, t.topic, t.partition, min(seen.at) AS since
  FROM target t JOIN {ops}.lag_samples seen
    ON seen.side = 'source' AND seen.flow = t.flow AND seen.topic = t.topic AND seen.topic_id <=> t.topic_id
   AND seen.partition = t.partition AND seen.log_end > t.position
  GROUP BY t.flow, t.cluster, t.topic, t.partition
)
SELECT t.flow, t.cluster AS target, t.topic, t.partition,
       s.log_end AS source_end, b.position AS bronze_position, t.position AS target_position,
       greatest(s.log_end - b.position, 0) AS ingest_lag_records,
       greatest(s.log_end - t.position, 0) AS lag_records,
       CASE WHEN s.log_end > t.position
            THEN (unix_micros(s.at) - unix_micros(least(behind.since, s.at))) / 1e6 ELSE 0D END AS lag_seconds,
       s.at AS sampled_at
FROM target t
JOIN source s ON s.flow = t.flow AND s.topic = t.topic AND s.partition = t.partition
JOIN bronze b ON b.flow = t.flow AND b.topic = t.topic AND b.partition = t.partition
LEFT JOIN behind ON behind.flow = t.flow AND behind.cluster = t.cluster AND behind.topic = t.topic
  AND behind.partition = t.partition""",
        # A run ends where offsets do, whichever commits and epochs its rows came with.
        "offset_map": f"""
WITH steps AS (
  SELECT *, source_first = lag(source_last) OVER here + 1
       AND target_first = lag(target_first + count) OVER here AS goes_on
  FROM {ops}.ledger WHERE kind IN ('relay', 'repair', 'replay', 'adopted')
  WINDOW here AS (PARTITION BY {_RUN} ORDER BY target_first, source_first)
), numbered AS (
  SELECT *, sum(CASE WHEN goes_on THEN 0 ELSE 1 END) OVER here AS run FROM steps
  WINDOW here AS (PARTITION BY {_RUN} ORDER BY target_first, source_first)
)
SELECT flow, target, kind, source_topic, source_topic_id, source_partition,
       min(source_first) AS source_first, max(source_last) AS source_last,
       target_topic, target_topic_id, target_partition,
       min(target_first) AS target_first, max(target_first + count) - 1 AS target_last,
       sum(count) AS count, max(at) AS at
FROM numbered GROUP BY {_RUN}, run""",
        "throughput": f"""
SELECT flow, target, at AS minute, sum(records) AS records FROM {ops}.deliveries GROUP BY flow, target, at""",
        "flow_health": f"""
WITH lag AS (
  SELECT flow, target, sum(lag_records) AS lag_records, max(lag_seconds) AS lag_seconds, max(sampled_at) AS sampled_at
  FROM {ops}.replication_lag GROUP BY flow, target
), delivered AS (
  SELECT flow, target, max(at) AS last_delivery FROM {ops}.ledger WHERE kind = 'relay' GROUP BY flow, target
), troubles AS (
  SELECT flow, count(*) AS incidents FROM {ops}.incidents WHERE at > current_timestamp() - INTERVAL 1 DAY GROUP BY flow
)
SELECT lag.flow, lag.target, lag.lag_records, lag.lag_seconds, lag.sampled_at, delivered.last_delivery,
       coalesce(troubles.incidents, 0) AS incidents_last_day
FROM lag LEFT JOIN delivered ON delivered.flow = lag.flow AND delivered.target = lag.target
LEFT JOIN troubles ON troubles.flow = lag.flow""",
    }
