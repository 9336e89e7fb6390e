"""What a target misses, sent again from bronze.

Three causes, two cures. A topic that was made anew or that lost its end gets a new baseline, and the relay fills it
from there. Records in the middle (dead letters whose cause is gone, holes that an audit found) are sent after what is
there: late, but in their order.

Each is written down as soon as it is there. What a killed process sent and did not write down is looked for first, so
that it is not sent again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

from mirrorlake.account import Account, Outbox
from mirrorlake.audit import MISSING_ON_TARGET, TargetSide, audit_target
from mirrorlake.clusters import limits
from mirrorlake.config import Config, Flow, Target
from mirrorlake.doubts import Doubts
from mirrorlake.errors import Undeliverable, from_text
from mirrorlake.failpoints import hit
from mirrorlake.inspection import Stored, stored_relays
from mirrorlake.kafka import Cluster, TopicInfo
from mirrorlake.lease import Lease, await_no_producers, hold_flow, producer_locks
from mirrorlake.ledger import (
    BASELINE,
    REPAIR,
    SKIP,
    Book,
    Entry,
    LedgerWriter,
    Position,
    relay_entries,
)
from mirrorlake.offsets import OffsetMaps
from mirrorlake.produce import Errand, Outcome, Slice, deliver
from mirrorlake.readers import Bronze
from mirrorlake.records import Run, SourcePartition, TopicPartition, spans
from mirrorlake.recovery import DEAD_LETTER, MISSING, set_aside
from mirrorlake.strand import make_errand, record_limit
from mirrorlake.tables import Tables, ensure_ops
from mirrorlake.targets import Looker, Wish, make_topics, plan_target
from mirrorlake.world import Say, World, reach, silent, storage_root
from mirrorlake.writings import Writings

LOST_END = "the log lost its end"


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
    refills, sound = _sort_out(stored, target, cluster)
    resends = _resends(stored, target, cluster, sound) + _resends_after(stored, target, cluster, refills)
    return RepairPlan(stored.flow.name, target, refills, resends)


def _sort_out(stored: Stored, target: str, cluster: Cluster) -> tuple[list[Refill], dict[SourcePartition, Position]]:
    """What has to begin anew, and the positions of the rest."""
    book, entries = stored.book(target), stored.entries[target]
    topics = cluster.describe({p.target_partition.topic for p in book.positions.values()})
    ends = _ends(cluster, topics, book.positions.values())
    refills = [
        refill
        for source, position in book.positions.items()
        if (refill := _refill(stored, source, position, topics, ends, entries))
    ]
    refilled = {refill.source for refill in refills}
    return refills, {source: position for source, position in book.positions.items() if source not in refilled}


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
    if (end := ends.get(at, 0)) < position.target_end:
        runs = OffsetMaps(entries).runs(source)
        return Refill(source, at, first_lost(runs, end, position.next_offset), LOST_END)
    return None


def first_lost(runs: Sequence[Run], target_end: int, next_offset: int) -> int:
    """Where the relay goes on: after the last source offset that still stands, if younger ones stood behind it.

    An older one that a repair had sent late may be lost too: that is missing in the middle.
    """
    standing = [min(run.source_last, run.source_first + target_end - run.target_first - 1) for run in runs]
    last = max((end for end, run in zip(standing, runs, strict=True) if end >= run.source_first), default=-1)
    lost = (max(run.source_first, last + 1) for run in runs if run.source_last > last)
    return min(lost, default=next_offset)


def lost_repairs(runs: Sequence[Run], target_end: int, next_offset: int) -> list[tuple[int, int]]:
    """(First, count) of source offsets before that place which stood behind the log's end now, and nowhere else."""
    lost = {n for run in runs for n in _sources(run, target_end, run.target_end) if n < next_offset}
    standing = [_sources(run, run.target_first, target_end) for run in runs]
    return spans(sorted(n for n in lost if not any(n in kept for kept in standing)))


def _sources(run: Run, target_first: int, target_end: int) -> range:
    """The source offsets of a run that stand in [first, end) of the target."""
    shift = run.source_first - run.target_first
    return range(max(run.target_first, target_first) + shift, min(run.target_end, target_end) + shift)


def _resends(
    stored: Stored, target: str, cluster: Cluster, positions: Mapping[SourcePartition, Position]
) -> list[Resend]:
    return [
        Resend(source, position.target_partition, *span)
        for source, position in sorted(positions.items())
        for span in sorted(_missing(stored, target, cluster, source, position))
    ]


def _resends_after(stored: Stored, target: str, cluster: Cluster, refills: Iterable[Refill]) -> list[Resend]:
    """Of logs that lost their end: what a repair had sent there, and is older than where the relay goes on."""
    cut = [refill for refill in refills if refill.why == LOST_END]
    maps, ends = OffsetMaps(stored.entries[target]), cluster.log_ends({refill.target for refill in cut})
    return [
        Resend(refill.source, refill.target, first, first + count - 1, MISSING)
        for refill in cut
        for first, count in lost_repairs(maps.runs(refill.source), ends[refill.target], refill.next_offset)
    ]


def _missing(
    stored: Stored, target: str, cluster: Cluster, source: SourcePartition, position: Position
) -> Iterator[tuple[int, int, str]]:
    """(first offset, last offset, why) of what an audit misses, and of what was set aside."""
    mine = [entry for entry in stored.entries[target] if entry.source == source]
    aside = set_aside(mine)
    for why in (DEAD_LETTER, MISSING):
        offsets = [offset for offset, reason in aside.items() if reason == why]
        yield from ((first, first + count - 1, why) for first, count in spans(offsets))
    for finding in audit_target(stored.flow.name, source, target, TargetSide(cluster, mine, position), stored.files):
        if finding.kind == MISSING_ON_TARGET:
            yield from ((*span, MISSING) for span in _between(finding.first_offset, finding.last_offset, aside))


def _between(first: int, last: int, but: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The spans of [first, last] without some offsets, which are in order."""
    for offset in (*(n for n in but if first <= n <= last), last + 1):
        if first < offset:
            yield first, offset - 1
        first = offset + 1


# --- applying ---


def make_repairs(
    config: Config, flow: Flow, target: Target, clusters: Mapping[str, Cluster], tables: Tables
) -> list[tuple[Stored, RepairPlan]]:
    return [
        (stored, plan_repair(stored, target.cluster, clusters[target.cluster]))
        for stored in stored_relays(config, tables, flow, clusters[flow.source])
    ]


def apply_repairs(
    config: Config,
    flow: Flow,
    target: Target,
    clusters: Mapping[str, Cluster],
    tables: Tables,
    say: Say = silent,
) -> list[RepairPlan]:
    """Hold the flow, recover, look again, then mend. The runner must be stopped: there is one writer."""
    root, ledger = storage_root(config), f"{config.storage.ops_schema}.ledger"
    ensure_ops(tables, config.storage.ops_schema)
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(hold_flow(config.storage, root, tables, flow.name, say))
        for lock in producer_locks(root, flow.name, target.cluster):
            await_no_producers(lock, 60)
        writer = stack.enter_context(contextlib.closing(LedgerWriter(tables, ledger, commit_seconds=0)))
        mender = Mender(config, flow, target, clusters, tables, reach(clusters), lease, writer)
        for stored in stored_relays(config, tables, flow, clusters[flow.source]):
            mender.recover(stored)
        plans = make_repairs(config, flow, target, clusters, tables)
        for stored, plan in plans:
            mender.mend(stored, plan)
    return [plan for _, plan in plans]


@dataclass(frozen=True)
class Mender:
    """One target of a flow that we hold."""

    config: Config
    flow: Flow
    target: Target
    clusters: Mapping[str, Cluster]
    tables: Tables
    ids: dict[str, str]
    lease: Lease
    ledger: LedgerWriter

    @property
    def cluster(self) -> Cluster:
        return self.clusters[self.target.cluster]

    def _errand(self, stored: Stored) -> Errand:
        root, table = storage_root(self.config), stored.spec.table
        return make_errand(self.config, root, self.flow, self.target, table, self.ids, self.lease.epoch)

    def _write(self, entries: Sequence[Entry]) -> None:
        self.lease.require_valid()
        self.ledger.add(entries)
        self.ledger.flush()

    # --- after a killed process ---

    def recover(self, stored: Stored) -> None:
        """What was sent and not written down, by a run or by a repair."""
        positions = _sort_out(stored, self.target.cluster, self.cluster)[1]
        history = partial(stored.entries.__getitem__, self.target.cluster)
        Doubts(self._account(stored, Book(positions)), history, mends=True).settle()

    def _account(self, stored: Stored, book: Book) -> Account:
        """As a run would begin. It is only looked at, and for that it is read."""
        spark = getattr(self.tables, "spark", None)  # a folder is read without
        world = World(self.config, storage_root(self.config), spark, self.tables, self.clusters, self.ids, {})
        writings = Writings(world, self.flow.name)
        return Account(
            self._errand(stored),
            cast(Bronze, stored.files),
            self.cluster,
            self.ledger,
            book,
            Outbox(writings.finding, writings.dead_letters),
            limit_of=partial(record_limit, self.config, self.cluster),
            existing_records=self.target.existing_records,
        )

    # --- mending ---

    def mend(self, stored: Stored, plan: RepairPlan) -> None:
        self._ensure_topics(plan)
        self._write([self._baseline(refill) for refill in plan.refills])
        positions = stored.book(self.target.cluster).positions
        for resend in plan.resends:
            self._resend(stored, resend, positions[resend.source])

    def _ensure_topics(self, plan: RepairPlan) -> None:
        source, names = self.clusters[self.flow.source], {r.source.topic: r.target.topic for r in plan.refills}
        wish = Wish(self.target, limits(self.config.clusters[self.target.cluster]), source.alias, names)
        look = Looker(source, self.cluster, wish)(source.describe(names))
        make_topics(self.cluster, self.target, plan_target(wish, look))

    def _baseline(self, refill: Refill) -> Entry:
        topic = self.cluster.describe([refill.target.topic])[refill.target.topic]
        end = self.cluster.log_ends([refill.target])[refill.target]
        return Entry(
            self.flow.name, self.target.cluster, BASELINE, self.lease.epoch, refill.source, refill.next_offset,
            refill.next_offset - 1, refill.target, topic.id, None, 0, end, f"repair: {refill.why}",
        )  # fmt: skip

    def _resend(self, stored: Stored, resend: Resend, position: Position) -> None:
        """What went out is written down, also where a record after it is refused.

        What only an audit knows to be missing is set aside first: should we be killed, the next one who meets it on the
        target knows it for a repair.
        """
        if resend.why == MISSING:
            self._write([self._set_aside(resend, position)])
            hit("hole-noted")
        limit, first = record_limit(self.config, self.cluster, resend.target.topic), resend.first
        while first <= resend.last:
            outcome = self._send(stored, replace(resend, first=first), limit)
            hit("repair-sent")
            self._write(self._entries(resend.source, position, outcome.runs, outcome.target_end, resend.why))
            _refuse_again(resend, outcome, limit)
            # A lease that ends soon ends a turn before its time.
            first = resend.last + 1 if outcome.until is None else outcome.until

    def _send(self, stored: Stored, resend: Resend, limit: int) -> Outcome:
        self.lease.require_valid()
        limits, until = {resend.source.topic: limit}, self.lease.sends_until()
        errand = replace(self._errand(stored), limits=limits, dead_letters=False, lease_ends_at=until)
        end = self.cluster.log_ends([resend.target])[resend.target]
        # With provenance it is read back; without it, a sole writer's log end proves it.
        slice_ = Slice(resend.source, resend.first, resend.last + 1, resend.target, end, shared=errand.provenance)
        (outcome,) = deliver(errand, [(slice_, partial(stored.files.read, resend.source, slice_.first, slice_.until))])
        if outcome.error:
            raise from_text(outcome.error)
        return outcome

    def _set_aside(self, resend: Resend, position: Position) -> Entry:
        return Entry(
            self.flow.name, self.target.cluster, SKIP, self.lease.epoch, resend.source, resend.first, resend.last,
            position.target_partition, position.target_topic_id, None, resend.last - resend.first + 1,
            position.target_end, MISSING,
        )  # fmt: skip

    def _entries(
        self, source: SourcePartition, position: Position, runs: Sequence[Run], target_end: int, why: str
    ) -> list[Entry]:
        template = Entry(
            self.flow.name, self.target.cluster, REPAIR, self.lease.epoch, source, 0, 0, position.target_partition,
            position.target_topic_id, None, 0, target_end, why,
        )  # fmt: skip
        return relay_entries(template, runs, target_end)


def _refuse_again(resend: Resend, outcome: Outcome, limit: int) -> None:
    if outcome.refused:
        offset, size, reason = outcome.refused[0]
        raise Undeliverable(
            f"{resend.source} offset {offset} ({size} bytes) is still {reason} ({limit} bytes)",
            f"raise max.message.bytes of {resend.target.topic} first",
        )
