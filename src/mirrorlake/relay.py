"""One bronze table and its targets, running: one ingest query, one fan-out query for each target."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from mirrorlake import deletion
from mirrorlake.account import Account, Outbox
from mirrorlake.admission import note_begun, refuse_lost_ledger, refuse_move, refuse_renaming
from mirrorlake.beginnings import Beginnings
from mirrorlake.config import Flow, Target
from mirrorlake.control import Pauses
from mirrorlake.doubts import Doubts
from mirrorlake.errors import StateMismatch, Transient, UsageFault
from mirrorlake.fanout import Clock, FanOut, Fence, Pace, start_fanout
from mirrorlake.inlet import Inlet
from mirrorlake.kafka import Cluster, TopicInfo
from mirrorlake.lag import as_known, bronze_ends, sample_rows, source_ends, target_positions
from mirrorlake.ledger import Book, LedgerWriter
from mirrorlake.missing import Missing, Places
from mirrorlake.records import BRONZE, SourcePartition
from mirrorlake.strand import Strand, make_errand, record_limit
from mirrorlake.streams import StreamId, claim, current, ending, next_generation, refuse_foreign
from mirrorlake.tables import bronze_properties
from mirrorlake.targets import (
    Looker,
    TargetPlan,
    Wish,
    make_what_can_be,
    make_wish,
    needs,
    plan_target,
    require_makeable,
)
from mirrorlake.topics import RelaySpec, require_topics, spec_topics
from mirrorlake.world import World, cores

ANEW_SECONDS = 60.0
"""A query that ends so soon after its checkpoint began anew ends for another reason."""


@dataclass
class Relay:
    """The running queries of one bronze table."""

    strand: Strand
    ledger: LedgerWriter
    pauses: Pauses
    once: bool = False
    stopped_cleanly: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    fan_outs: dict[str, FanOut] = field(default_factory=dict)
    fan_out_queries: dict[str, Any] = field(default_factory=dict)
    dead: dict[str, Exception] = field(default_factory=dict)
    """Target -> what stopped all of it; the others go on."""
    _books: dict[str, Book] = field(default_factory=dict)
    """Target -> what the ledger said of it when we looked: nobody else writes there while we hold the flow."""
    _plans: dict[str, TargetPlan] = field(default_factory=dict)
    _begun_anew: dict[str, float] = field(default_factory=dict)
    """Target -> when the checkpoint of its query was last given up for a new one."""
    _source_ends: dict[SourcePartition, int] = field(default_factory=dict)
    """As of the newest sample of lag."""

    def __post_init__(self) -> None:
        self.inlet = Inlet(self.strand, self.wake, self.once)

    @property
    def world(self) -> World:
        return self.strand.world

    @property
    def flow(self) -> Flow:
        return self.strand.flow

    @property
    def spec(self) -> RelaySpec:
        return self.strand.spec

    @property
    def source(self) -> Cluster:
        return self.strand.source

    @property
    def topics(self) -> list[str]:
        """The source's, as of the last look."""
        return sorted(self.strand.topics)

    def sibling(self, spec: RelaySpec) -> Relay:
        """Another table of the same flow."""
        strand = Strand(self.world, self.flow, spec, self.strand.lease)
        return Relay(strand, self.ledger, self.pauses, stopping=self.stopping)

    # --- preparing ---

    def look(self) -> None:
        """Everything that can be refused is refused here, for all tables before anything is made for one of them."""
        self.strand.look()
        require_topics(self.spec, self.flow.source, {*self.strand.topics, *self._outlived()})
        stream = self.inlet.current_stream()
        refuse_foreign(stream, self.world.checkpoints, self.inlet.source_facts())
        self._books = {target.cluster: self._looked_up(target) for target in self.flow.targets}
        refuse_move(self.strand, stream, self._books, self.inlet.first_positions)
        self._plans = {}
        for target in self.strand.present_targets():
            with self._unless_away(target):
                self._plans[target.cluster] = self._plan(target)

    @contextlib.contextmanager
    def _unless_away(self, target: Target) -> Iterator[None]:
        """A target that went away since it was reached comes later, as one does that never was there."""
        try:
            yield
        except Transient:
            if self.once:
                raise
            self.world.cluster_ids.pop(target.cluster, None)

    def _outlived(self) -> set[str]:
        """Listed topics that the source has no more and that bronze holds, where the flow goes on after a loss."""
        missing = {topic for topic in self.spec.topics if topic not in self.strand.topics}
        if not missing or self.flow.on_source_loss == "stop" or not self.world.tables.exists(self.spec.table):
            return set()
        return missing & {source.topic for source in self.strand.bronze_ends()}

    def _looked_up(self, target: Target) -> Book:
        entries = self.strand.entries(target.cluster)
        refuse_lost_ledger(self.strand, target.cluster, entries)
        book = self.strand.book(target.cluster, entries)
        refuse_renaming(self.strand, target, book)
        return book

    def _plan(self, target: Target) -> TargetPlan:
        plan = self._compare(target)[1]
        if target.missing_topics == "stop":
            require_makeable(plan)
        return plan

    def _compare(self, target: Target, held: Mapping[str, int] | None = None) -> tuple[Wish, TargetPlan]:
        """What the target should have, and what it takes to get there; `held`: topics in bronze, and their partitions.

        The source may have them no more, or with fewer partitions: what is in bronze reaches the target all the same,
        unless the flow has left them out since.
        """
        cluster, topics, counts = self.world.clusters[target.cluster], dict(self.strand.topics), held or {}
        for topic in spec_topics(self.spec, counts):
            known = topics.get(topic, TopicInfo(topic, "", 0, 0))
            topics[topic] = replace(known, partitions=max(known.partitions, counts[topic]))
        wish = make_wish(self.world.config, self.flow, target, topics)
        return wish, plan_target(wish, Looker(self.source, cluster, wish)(topics))

    def prepare(self) -> None:
        """Make topics and tables, find out where ingest stands, and what the source dropped meanwhile."""
        if self.spec.heartbeats:
            self.look()  # the first beat makes its topic, after all else was looked at
        for target in self.strand.present_targets():
            with self._unless_away(target):
                make_what_can_be(self.world.clusters[target.cluster], target, self._plans[target.cluster])
        storage = self.world.config.storage
        self.world.tables.ensure(self.spec.table, BRONZE, bronze_properties(storage.deleted_file_retention_hours))
        self.inlet.prepare()

    # --- topics on the targets ---

    def ensure_targets(self, target: Target, held: Mapping[str, int] | None = None) -> Places:
        """Make and grow the target's topics, as far as we may."""
        cluster, (wish, plan) = self.world.clusters[target.cluster], self._compare(target, held)
        make_what_can_be(cluster, target, plan)
        infos, needed = cluster.describe(wish.names.values()), needs(plan)
        return Places(
            {topic: infos[name] for topic, name in wish.names.items() if name in infos and name not in needed},
            {topic: needed[name] for topic, name in wish.names.items() if name in needed},
        )

    def look_again(self) -> None:
        """For topics and partitions of the source."""
        self.strand.look()
        self.inlet.follow_topics()

    def look_at(self, target: Target) -> None:
        """Look again at a target's topics and partitions: it grows before records go there."""
        fan_out = self.fan_outs.get(target.cluster) if target.cluster not in self.dead else None
        try:
            places = self.ensure_targets(target)
        except UsageFault:
            # A new topic whose name this target cannot have: its fan-out stops for it, and the others go on.
            places = Places({})
        made = {topic.name: topic for topic in places.ready.values()}
        if fan_out and (not made or fan_out.doubts.arise_from(made)):
            self._deliver_soon(fan_out)
        elif fan_out and target.on_source_deleted == "delete":
            wanted = {*made, *(need.topic for need in places.needed.values())}
            deletion.follow(self.strand, target, fan_out, wanted)

    # --- the second leg ---

    def make_fan_out(self, target: Target) -> FanOut:
        strand, name = self.strand, target.cluster
        account = self._account(target)
        beginnings = self._beginnings(target, account)
        self.fan_outs[name] = FanOut(
            account,
            beginnings,
            Doubts(
                account,
                history=partial(strand.entries, name),
                begin=beginnings,
                stopped_cleanly=self.stopped_cleanly,
                recreate=target.on_topic_deleted == "recreate",
                stopping=self.stopping,
            ),
            self._pace(target),
            Fence(strand.lease.require_valid, strand.lease.sends_until),
            refused_seconds=self.world.config.runner.refused_seconds,
            stopping=self.stopping,
        )
        if account.book.positions:
            note_begun(strand, name)  # a kill may have come between the first baseline and the note
        return self.fan_outs[name]

    def _account(self, target: Target) -> Account:
        strand, world, flow = self.strand, self.world, self.flow
        cluster, writings, epoch = world.clusters[target.cluster], strand.writings, strand.lease.epoch
        # A monitor wants the newest beat: those of another replicator before us do no harm.
        existing = "append" if self.spec.heartbeats and flow.provenance else target.existing_records
        return Account(
            make_errand(world.config, world.root, flow, target, self.spec.table, world.cluster_ids, epoch),
            strand.bronze(),
            cluster,
            self.ledger,
            self._books[target.cluster],
            Outbox(writings.finding, writings.dead_letters, writings.listed),
            limit_of=partial(record_limit, world.config, cluster),
            existing_records=existing,
        )

    def _beginnings(self, target: Target, account: Account) -> Beginnings:
        return Beginnings(
            account,
            target_topics=partial(self.ensure_targets, target),
            paused=partial(self._paused, target.cluster),
            takes=partial(self.strand.takes, target.cluster),
            begun=partial(note_begun, self.strand, target.cluster),
            latest=self._latest,
            fold_partitions=target.partitions == "modulo",
            missing=Missing(target.cluster, target.missing_topics),
        )

    def _pace(self, target: Target) -> Pace:
        world, budget_bytes = self.world, self.flow.fanout.max_bytes_per_round
        rate = target.rate_limit_records_per_second
        return Pace(budget_bytes, rate, cores(world.config), world.turns[target.cluster])

    def _paused(self, target: str, topic: str) -> bool:
        return any(pause.covers(target, topic) for pause in self.pauses())

    def _latest(self, source: SourcePartition) -> int:
        at = source.at
        return self.source.log_ends([at])[at]

    def late_targets(self) -> list[Target]:
        """Targets that were away when we started, and still have no fan-out."""
        return [target for target in self.flow.targets if target.cluster not in self.fan_outs]

    def make_fan_outs(self) -> list[FanOut]:
        """For all targets that are there and have none yet."""
        return [self.make_fan_out(t) for t in self.strand.present_targets() if t.cluster not in self.fan_outs]

    def start_fan_outs(self) -> None:
        """Catch up in a thread of its own, then follow the table: a dead target holds back nobody."""
        for fan_out in self.make_fan_outs():
            stream = self._claim_fan_out(fan_out.target)
            threading.Thread(target=self._catch_up_and_follow, args=(fan_out, stream), daemon=True).start()

    def _claim_fan_out(self, target: str) -> StreamId:
        stream = current(self.world.checkpoints, self.flow.name, "fanout", f"{self.spec.table}.{target}")
        try:
            return self._claimed(stream, target)
        except StateMismatch:
            return self._claimed(next_generation(stream), target)

    def _claimed(self, stream: StreamId, target: str) -> StreamId:
        claim(stream, self.world.checkpoints, {"flow": self.flow.name, "target": target})
        return stream

    def _catch_up_and_follow(self, fan_out: FanOut, stream: StreamId) -> None:
        """The query would look every few seconds; we have just looked, and Java is busy with its start."""
        self._deliver(fan_out)
        target = fan_out.target
        if target in self.dead or self.stopping.wait(self._trigger_seconds()):
            return
        try:
            self._follow(fan_out, stream)
        except Exception as error:
            self._follow_anew(target, error)
        if self.stopping.is_set() and target in self.fan_out_queries:
            self.fan_out_queries[target].stop()  # whoever stopped us did not see it

    def _follow_anew(self, target: str, failure: Exception) -> None:
        """With a new checkpoint: the ledger says what was sent, so one that is damaged is no reason to stop."""
        begun, self._begun_anew[target] = self._begun_anew.get(target, float("-inf")), time.monotonic()
        if self._begun_anew[target] - begun < ANEW_SECONDS:
            self.dead.setdefault(target, failure)
            return
        try:
            damaged = current(self.world.checkpoints, self.flow.name, "fanout", f"{self.spec.table}.{target}")
            self._follow(self.fan_outs[target], self._claimed(next_generation(damaged), target))
        except Exception as error:
            self.dead.setdefault(target, error)

    def _follow(self, fan_out: FanOut, stream: StreamId) -> None:
        """From the version that was looked at first, so that no commit falls between."""
        target = fan_out.target
        folder = self.world.tables.folder(self.spec.table)
        clock = Clock(
            self.world.tables.identifier(self.spec.table),
            str(folder) if folder else None,
            str(stream.checkpoint(self.world.checkpoints)),
            stream.name,
            fan_out.account.bronze.followed_from,
            self._trigger_seconds(),
        )
        failed = partial(self.dead.__setitem__, target)
        self.fan_out_queries[target] = start_fanout(self.world.spark, clock, fan_out, failed)

    def _trigger_seconds(self) -> float:
        """Ingest wakes who reads files; then the query is for what it missed, and each of its batches costs a job."""
        asked, folder = self.flow.fanout.trigger_seconds, self.world.tables.folder(self.spec.table)
        if asked is not None:
            return asked
        return 0 if folder is None or self.flow.fanout.reader == "spark" else 60

    # --- waking ---

    def kick(self) -> list[threading.Thread]:
        """Look without waiting for a commit: after a pause."""
        return [self._deliver_soon(fan_out) for target, fan_out in self.fan_outs.items() if target not in self.dead]

    def look_for_topics(self) -> None:
        """Those that targets lack: nothing else would wake a target that has all the rest."""
        for target, fan_out in list(self.fan_outs.items()):
            if fan_out.missing.needed and target not in self.dead:
                self._deliver_soon(fan_out)

    def wake(self) -> None:
        """Ingest has committed. The queries over the table would see it too, a moment later."""
        for target, fan_out in list(self.fan_outs.items()):
            if target not in self.dead:
                self._deliver_soon(fan_out)

    def _deliver_soon(self, fan_out: FanOut) -> threading.Thread:
        thread = threading.Thread(target=self._deliver, args=(fan_out,), daemon=True)
        thread.start()
        return thread

    def _deliver(self, fan_out: FanOut) -> None:
        try:
            fan_out.deliver()
        except Exception as error:
            self.dead[fan_out.target] = error

    # --- watching ---

    def faults(self) -> list[tuple[str, Exception]]:
        """(Target, what stopped it), or one of its partitions: the others go on."""
        going = [(target, fan_out) for target, fan_out in list(self.fan_outs.items()) if target not in self.dead]
        halted = [(target, fault) for target, each in going for fault in list(each.account.halted.values())]
        return [*self.dead.items(), *halted]

    def find_failures(self) -> None:
        """Queries that ended without telling us."""
        self.inlet.find_failure()
        for target, query in list(self.fan_out_queries.items()):
            failure = ending(query) if target not in self.dead and not self.stopping.is_set() else None
            if failure is not None:
                self._follow_anew(target, failure)

    def lag_samples(self, at: datetime) -> pa.Table:
        ingested = self.inlet.positions()
        targets = {t.cluster: self._target_positions(t.cluster, ingested) for t in self.flow.targets}
        topics = as_known(self.source.describe(self.strand.topics).values(), self.inlet.made.topic_ids)
        committed = self.flow.isolation == "read_committed"
        rows = sample_rows(self.flow.name, self.source, topics, ingested, targets, committed, at, self.strand.takes)
        self._source_ends = source_ends(rows)
        self.inlet.note_ends(self._source_ends, ingested)
        return rows

    def behind(self, target: str) -> int:
        """Records that the target has yet to get: those in bronze, and those that ingest had not read at the newest
        sample and has not read since."""
        account = self.fan_outs[target].account
        held, positions = bronze_ends(account.bronze.segments()), account.book.positions
        reached = {source: position.next_offset for source, position in positions.items()}
        unread = (
            end - max(each.get(source, 0) for each in (held, reached, self.inlet.positions()))
            for source, end in self._source_ends.items()
            if self.strand.takes(target, source.topic)
        )
        return account.behind() + sum(count for count in unread if count > 0)

    def complete(self, target: str) -> dict[SourcePartition, int]:
        """Source partition -> everything before this offset is on the target; nothing before ingest has begun."""
        fan_out = self.fan_outs.get(target)
        if self.inlet.ingest is None or fan_out is None:
            return {}
        ingested = self.inlet.positions()
        # A batch is in the table before its position is in the checkpoint, so this version has all of it.
        has_all = fan_out.delivered_version >= self.strand.bronze_version()
        account = fan_out.account
        return target_positions(account.book, bronze_ends(account.bronze.segments()) if has_all else None, ingested)

    def _target_positions(self, target: str, ingested: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        """A target that is away is sampled too: its lag grows."""
        fan_out = self.fan_outs.get(target)
        ends = bronze_ends(fan_out.account.bronze.segments()) if fan_out else None
        return target_positions(self._books[target], ends, ingested)

    def is_certain(self) -> bool:
        """Is it known of each target what it has? Of one that we never met, if the runner before us knew."""
        met = all(fan_out.certain for fan_out in self.fan_outs.values())
        return met and (self.stopped_cleanly or not self.late_targets())

    def stop(self) -> bool:
        """Let running rounds end, then stop the queries; false where a round did not end in time."""
        self.stopping.set()
        ended = [fan_out.await_end(timeout_seconds=30) for fan_out in self.fan_outs.values()]
        for query in [self.inlet.query, *list(self.fan_out_queries.values())]:
            # Where Spark itself is gone there is nothing to stop, and the ledger must still be closed.
            with contextlib.suppress(Exception):
                query and query.stop()
        return all(ended)
