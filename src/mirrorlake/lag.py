"""How far behind: samples of source ends and positions, and SQL views over them.

Source ends are sampled apart from ingest, so the lag is right also when ingest is dead. Seconds behind are counted
from the first sample that saw the source beyond the target's position: they depend on no record's timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import pyarrow as pa

from mirrorlake.kafka import Cluster
from mirrorlake.ledger import Book
from mirrorlake.records import LAG_SAMPLES, SourcePartition, TopicPartition
from mirrorlake.tables import Segment


def bronze_ends(segments: Iterable[Segment]) -> dict[SourcePartition, int]:
    """The offset after the last record that bronze holds."""
    ends: dict[SourcePartition, int] = {}
    for segment in segments:
        ends[segment.source] = max(ends.get(segment.source, 0), segment.last_offset + 1)
    return ends


def target_positions(
    book: Book,
    ends: Mapping[SourcePartition, int],
    ingested: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, str],
) -> dict[TopicPartition, int]:
    """Where a target stands at the source: with all of bronze, where ingest stands, since markers are no records."""
    positions = {}
    for at, ingest_position in ingested.items():
        source = SourcePartition(at.topic, topic_ids.get(at.topic, ""), at.partition)
        held = book.positions.get(source)
        has_all = source not in ends or (held is not None and held.next_offset >= ends[source])
        positions[at] = ingest_position if has_all else held.next_offset if held else 0
    return positions


def sample_rows(
    flow: str,
    source: Cluster,
    partitions: Iterable[TopicPartition],
    ingested: Mapping[TopicPartition, int],
    targets: Mapping[str, Mapping[TopicPartition, int]],
    committed: bool,
    at: datetime,
) -> pa.Table:
    """One sample of the source's ends, of ingest and of each target."""
    asked = sorted(set(partitions) | set(ingested))
    starts, ends = source.log_starts(asked), source.log_ends(asked, committed)
    rows = [_row(flow, "source", source.alias, tp, at, starts[tp], ends[tp], None) for tp in asked]
    rows += [_row(flow, "bronze", "", tp, at, None, None, ingested.get(tp, starts[tp])) for tp in asked]
    for target, positions in targets.items():
        rows += [_row(flow, "target", target, tp, at, None, None, positions.get(tp, starts[tp])) for tp in asked]
    return pa.Table.from_pylist(rows, schema=LAG_SAMPLES)


def _row(
    flow: str, side: str, cluster: str, at: TopicPartition, when: datetime,
    log_start: int | None, log_end: int | None, position: int | None,
) -> dict[str, object]:  # fmt: skip
    return {
        "flow": flow,
        "side": side,
        "cluster": cluster,
        "topic": at.topic,
        "partition": at.partition,
        "log_start": log_start,
        "log_end": log_end,
        "position": position,
        "at": when,
    }


def views(ops: str) -> dict[str, str]:
    """The SQL of the views, by name; `ops` is the schema they read."""
    return {
        "replication_lag": f"""
WITH newest AS (
  SELECT *, row_number() OVER (PARTITION BY flow, side, cluster, topic, partition ORDER BY at DESC) AS age
  FROM {ops}.lag_samples
), source AS (SELECT * FROM newest WHERE side = 'source' AND age = 1),
bronze AS (SELECT * FROM newest WHERE side = 'bronze' AND age = 1),
target AS (SELECT * FROM newest WHERE side = 'target' AND age = 1),
behind AS (
  SELECT t.flow, t.cluster, t.topic, t.partition, min(seen.at) AS since
  FROM target t JOIN {ops}.lag_samples seen
    ON seen.side = 'source' AND seen.flow = t.flow AND seen.topic = t.topic
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
        "offset_map": f"""
SELECT flow, target, kind, source_topic, source_topic_id, source_partition, source_first, source_last,
       target_topic, target_topic_id, target_partition, target_first, target_first + count - 1 AS target_last, count, at
FROM {ops}.ledger WHERE kind IN ('relay', 'repair', 'replay')""",
        "throughput": f"""
SELECT flow, target, date_trunc('MINUTE', at) AS minute, sum(count) AS records
FROM {ops}.ledger WHERE kind = 'relay' GROUP BY flow, target, date_trunc('MINUTE', at)""",
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
