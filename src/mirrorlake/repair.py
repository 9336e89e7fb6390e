"""What a target misses, sent again from bronze.

Three causes, two cures. A topic that was made anew or that lost its end gets a new baseline, and the relay fills it
from there. Records in the middle (dead letters whose cause is gone, holes that an audit found) are sent after what is
there: late, but in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from mirrorlake.audit import MISSING_ON_TARGET, TargetSide, audit_target
from mirrorlake.clusters import limits
from mirrorlake.config import Config, Flow, Target
from mirrorlake.errors import Undeliverable, from_text
from mirrorlake.inspection import Stored, stored_relays
from mirrorlake.kafka import Cluster, TopicInfo
from mirrorlake.lease import await_no_producers, hold, producer_locks
from mirrorlake.ledger import BASELINE, REPAIR, SKIP, Entry, Position, relay_entries
from mirrorlake.produce import Errand, Outcome, Slice, deliver
from mirrorlake.records import LEDGER, SourcePartition, TopicPartition, spans
from mirrorlake.relay import make_errand, record_limit
from mirrorlake.tables import Tables
from mirrorlake.targets import Looker, Wish, make_topics, plan_target
from mirrorlake.world import now, reach, storage_root

DEAD_LETTER = "dead letter"


@dataclass(frozen=True)
class Refill:
    """The target's log is not the one we filled: go on from an offset in what is there now."""

    source: SourcePartition
    target: TopicPartition
    next_offset: int
    why: str


@dataclass(frozen=True)
class Resend:
    """Records that the target misses in the middle."""

    source: SourcePartition
    target: TopicPartition
    first: int
    last: int
    why: str


@dataclass(frozen=True)
class RepairPlan:
    flow: str
    target: str
    refills: Sequence[Refill]
    resends: Sequence[Resend]

    @property
    def empty(self) -> bool:
        return not self.refills and not self.resends

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# --- planning ---


def plan_repair(stored: Stored, target: str, cluster: Cluster) -> RepairPlan:
    """What the target misses now. Changes nothing."""
    book, entries = stored.book(target), stored.entries[target]
    topics = cluster.describe({p.target_partition.topic for p in book.positions.values()})
    ends = _ends(cluster, topics, book.positions.values())
    refills = [
        refill
        for source, position in book.positions.items()
        if (refill := _refill(stored, source, position, topics, ends, entries))
    ]
    refilled = {refill.source for refill in refills}
    sound = {source: position for source, position in book.positions.items() if source not in refilled}
    return RepairPlan(stored.flow.name, target, refills, _resends(stored, target, cluster, sound))


def _ends(
    cluster: Cluster, topics: Mapping[str, TopicInfo], positions: Iterable[Position]
) -> dict[TopicPartition, int]:
    there = {p.target_partition for p in positions if p.target_partition.topic in topics}
    return cluster.log_ends(at for at in there if at.partition < topics[at.topic].partitions)


def _refill(
    stored: Stored,
    source: SourcePartition,
    position: Position,
    topics: Mapping[str, TopicInfo],
    ends: Mapping[TopicPartition, int],
    entries: Sequence[Entry],
) -> Refill | None:
    at, topic = position.target_partition, topics.get(position.target_partition.topic)
    first = min((s.first_offset for s in stored.files.segments() if s.source == source), default=0)
    if topic is None:
        return Refill(source, at, first, "the topic is gone")
    if position.target_topic_id and topic.id and topic.id != position.target_topic_id:
        return Refill(source, at, first, "the topic was made anew")
    if ends.get(at, 0) < position.target_end:
        return Refill(source, at, first_lost(entries, source, ends.get(at, 0), first), "the log lost its end")
    return None


def first_lost(entries: Iterable[Entry], source: SourcePartition, target_end: int, default: int) -> int:
    """The first source offset that stood at or after the log's end now."""
    lost = [
        entry.source_first + max(0, target_end - entry.target_first)
        for entry in entries
        if entry.source == source and entry.target_first is not None and entry.target_first + entry.count > target_end
    ]
    return min(lost, default=default)


def _resends(
    stored: Stored, target: str, cluster: Cluster, positions: Mapping[SourcePartition, Position]
) -> list[Resend]:
    return [
        Resend(source, position.target_partition, *span)
        for source, position in sorted(positions.items())
        for span in sorted(_missing(stored, target, cluster, source, position))
    ]


def _missing(
    stored: Stored, target: str, cluster: Cluster, source: SourcePartition, position: Position
) -> Iterator[tuple[int, int, str]]:
    """(first offset, last offset, why) of what an audit misses, and of dead letters."""
    mine = [entry for entry in stored.entries[target] if entry.source == source]
    for finding in audit_target(stored.flow.name, source, target, TargetSide(cluster, mine, position), stored.files):
        if finding.kind == MISSING_ON_TARGET:
            yield finding.first_offset, finding.last_offset, "missing on the target"
    for first, count in spans(open_dead_letters(mine)):
        yield first, first + count - 1, DEAD_LETTER


def open_dead_letters(entries: Iterable[Entry]) -> list[int]:
    """Source offsets that were set aside and not sent since."""
    aside, sent = set[int](), set[int]()
    for entry in entries:
        offsets = range(entry.source_first, entry.source_last + 1)
        if entry.kind == SKIP and entry.reason.startswith(DEAD_LETTER):
            aside.update(offsets)
        elif entry.kind == REPAIR:
            sent.update(offsets)
    return sorted(aside - sent)


# --- applying ---


def make_repairs(
    config: Config, flow: Flow, target: Target, clusters: Mapping[str, Cluster], tables: Tables
) -> list[tuple[Stored, RepairPlan]]:
    return [
        (stored, plan_repair(stored, target.cluster, clusters[target.cluster]))
        for stored in stored_relays(config, tables, flow, clusters[flow.source])
    ]


def apply_repairs(
    config: Config, flow: Flow, target: Target, clusters: Mapping[str, Cluster], tables: Tables
) -> list[RepairPlan]:
    """Hold the flow, look again, then mend. The runner must be stopped: there is one writer."""
    root = storage_root(config)
    with hold(root, flow.name) as lease:
        for lock in producer_locks(root, flow.name, target.cluster):
            await_no_producers(lock, 60)
        ids = reach(clusters)
        plans = make_repairs(config, flow, target, clusters, tables)
        for stored, plan in plans:
            errand = make_errand(config, root, flow, target, stored.spec.table, ids, lease.epoch)
            _apply(config, stored, plan, target, clusters, tables, errand)
    return [plan for _, plan in plans]


def _apply(
    config: Config,
    stored: Stored,
    plan: RepairPlan,
    target: Target,
    clusters: Mapping[str, Cluster],
    tables: Tables,
    errand: Errand,
) -> None:
    cluster, ledger = clusters[target.cluster], f"{config.storage.ops_schema}.ledger"
    _ensure_topics(config, plan, target, clusters[stored.flow.source], cluster)
    entries = [_baseline(errand, refill, cluster) for refill in plan.refills]
    for resend in plan.resends:
        entries += _resend(config, stored, resend, cluster, errand)
    if entries:
        tables.append(ledger, pa.Table.from_pylist([entry.row(now()) for entry in entries], schema=LEDGER))


def _ensure_topics(config: Config, plan: RepairPlan, target: Target, source: Cluster, cluster: Cluster) -> None:
    names = {refill.source.topic: refill.target.topic for refill in plan.refills}
    wish = Wish(target, limits(config.clusters[target.cluster]), source.alias, names)
    make_topics(cluster, target, plan_target(wish, Looker(source, cluster, wish)(source.describe(names))))


def _baseline(errand: Errand, refill: Refill, cluster: Cluster) -> Entry:
    topic = cluster.describe([refill.target.topic])[refill.target.topic]
    end = cluster.log_ends([refill.target])[refill.target]
    return Entry(
        errand.flow, errand.target, BASELINE, errand.epoch, refill.source, refill.next_offset,
        refill.next_offset - 1, refill.target, topic.id, None, 0, end, f"repair: {refill.why}",
    )  # fmt: skip


def _resend(config: Config, stored: Stored, resend: Resend, cluster: Cluster, errand: Errand) -> list[Entry]:
    limit = record_limit(config, cluster, resend.target.topic)
    able = replace(errand, limits={resend.source.topic: limit}, dead_letters=False)
    end = cluster.log_ends([resend.target])[resend.target]
    # With provenance it is read back; without it, a sole writer's log end proves it.
    slice_ = Slice(resend.source, resend.first, resend.last + 1, resend.target, end, shared=errand.provenance)
    read = lambda: stored.files.read(resend.source, resend.first, resend.last + 1)  # noqa: E731
    (outcome,) = deliver(able, [(slice_, read)])
    if outcome.error:
        raise from_text(outcome.error)
    _refuse_again(resend, outcome, limit)
    topic_id = stored.book(errand.target).positions[resend.source].target_topic_id
    template = Entry(
        errand.flow, errand.target, REPAIR, errand.epoch, resend.source, 0, 0, resend.target, topic_id, None, 0,
        outcome.target_end, resend.why,
    )  # fmt: skip
    return relay_entries(template, outcome.runs, outcome.target_end)


def _refuse_again(resend: Resend, outcome: Outcome, limit: int) -> None:
    if outcome.refused:
        offset, size, reason = outcome.refused[0]
        raise Undeliverable(
            f"{resend.source} offset {offset} ({size} bytes) is still {reason} ({limit} bytes)",
            f"raise max.message.bytes of {resend.target.topic} first",
        )
