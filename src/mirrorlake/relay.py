"""One bronze table and its targets, running: one ingest query, one fan-out query for each target."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from mirrorlake.bronze import (
    Ingest,
    Reading,
    Workers,
    batch_size,
    last_batch,
    next_bound,
    parse_offsets,
    read_leader_epochs,
    read_plan,
    read_positions,
    read_topic_ids,
    records_per_batch,
    sample_record_bytes,
    start_ingest,
    starting_offsets,
    write_leader_epochs,
    write_topic_ids,
)
from mirrorlake.clusters import librdkafka_admin, librdkafka_consumer, librdkafka_producer, limits
from mirrorlake.config import Config, Flow, Target
from mirrorlake.control import Pauses, write_json
from mirrorlake.deletion import Doomed, is_due, notice, read_doomed, write_doomed
from mirrorlake.errors import AccessRefused, SourceLoss, StateMismatch, TopicMissing, UsageFault
from mirrorlake.fanout import MISSING_SECONDS, Clock, FanOut, Outbox, start_fanout
from mirrorlake.kafka import READER_GROUP, Cluster, TopicInfo, is_same_topic
from mirrorlake.lag import bronze_ends, ingest_positions, sample_rows, source_ends, target_positions
from mirrorlake.lease import Lease, producer_lock_path
from mirrorlake.ledger import Book, LedgerWriter, fold, read
from mirrorlake.produce import Errand
from mirrorlake.readers import Bronze, BronzeInCatalog, BronzeInFolder
from mirrorlake.records import BRONZE, DEAD_LETTERS, INCIDENTS, SourcePartition, TopicPartition
from mirrorlake.streams import StreamId, claim, current, next_generation, refuse_foreign
from mirrorlake.tables import FolderTables, bronze_properties
from mirrorlake.targets import Looker, TargetPlan, make_topics, make_wish, plan_target, require_makeable
from mirrorlake.topics import RelaySpec, name_on, require_topics, spec_topics, topics_now
from mirrorlake.world import World, cores, now


class Writings:
    """Incidents and dead letters of one flow, as rows."""

    def __init__(self, world: World, flow: str) -> None:
        self._world = world
        self._flow = flow

    def incident(self, kind: str, target: str, source: SourcePartition, first: int, last: int, detail: str) -> None:
        row = {
            "flow": self._flow, "target": target, "kind": kind, "topic": source.topic, "topic_id": source.topic_id,
            "partition": source.partition, "first_offset": first, "last_offset": last, "detail": detail, "at": now(),
        }  # fmt: skip
        self._world.tables.append(self._world.ops("incidents"), pa.Table.from_pylist([row], schema=INCIDENTS))

    def dead_letters(
        self,
        errand: Errand,
        source: SourcePartition,
        target_topic: str,
        refused: Iterable[tuple[int, int, str]],
    ) -> None:
        rows = [
            {
                "flow": self._flow, "target": errand.target, "source_topic": source.topic,
                "source_topic_id": source.topic_id, "source_partition": source.partition, "source_offset": offset,
                "target_topic": target_topic, "reason": reason, "record_bytes": size, "epoch": errand.epoch,
                "at": now(),
            }
            for offset, size, reason in refused
        ]  # fmt: skip
        self._world.tables.append(self._world.ops("dead_letters"), pa.Table.from_pylist(rows, schema=DEAD_LETTERS))


@dataclass
class Relay:
    """The running queries of one bronze table."""

    world: World
    flow: Flow
    spec: RelaySpec
    lease: Lease
    ledger: LedgerWriter
    pauses: Pauses
    once: bool = False
    stopped_cleanly: bool = False
    ingest: Ingest | None = None
    ingest_query: Any = None
    fan_outs: dict[str, FanOut] = field(default_factory=dict)
    fan_out_queries: dict[str, Any] = field(default_factory=dict)
    ingest_failure: Exception | None = None
    dead: dict[str, Exception] = field(default_factory=dict)
    """Target -> what stopped it; the others go on."""
    stopping: threading.Event = field(default_factory=threading.Event)

    # --- preparing ---

    def look(self) -> None:
        """Everything that can be refused is refused here, for all tables before anything is made for one of them."""
        self._topics = self.source.describe(self.source_topics())
        require_topics(self.spec, self.flow.source, self._topics)
        stream = current(self.world.checkpoints, self.flow.name, "ingest", self.spec.table)
        refuse_foreign(stream, self.world.checkpoints, self._source_facts())
        books = {target.cluster: self._book(target) for target in self.flow.targets}
        for target in self.flow.targets:
            self._refuse_renaming(target, books[target.cluster])
        self._refuse_move(stream, books)
        self._plans = {target.cluster: self._plan(target) for target in self.present_targets()}

    def prepare(self) -> None:
        """Make topics and tables, find out where ingest stands, and what the source dropped meanwhile."""
        if self.spec.heartbeats:
            self.look()  # the first beat makes its topic, after all else was looked at
        for target in self.present_targets():
            # Of a target that may wait for its operator its fan-out makes them: it says so, and tries again.
            if target.cluster in self._plans and not self._plans[target.cluster].refusals:
                make_topics(self.world.clusters[target.cluster], target, self._plans[target.cluster])
        storage = self.world.config.storage
        properties = bronze_properties(storage.deleted_file_retention_hours)
        self.world.tables.ensure(self.spec.table, BRONZE, properties)
        self.ingest = self._make_ingest()
        self.ingest.read = self._bronze_positions()
        if not read_positions(self.ingest.checkpoint):
            self._seed = dict(self.ingest.read)
        self._follow_table()
        self.meet_losses()

    def _plan(self, target: Target) -> TargetPlan:
        cluster = self.world.clusters[target.cluster]
        wish = make_wish(self.world.config, self.flow, target, self._topics)
        plan = plan_target(wish, Looker(self.source, cluster, wish)(self._topics))
        with contextlib.suppress(TopicMissing) if target.missing_topics == "wait" else contextlib.nullcontext():
            require_makeable(plan)
        return plan

    def _refuse_renaming(self, target: Target, book: Book) -> None:
        """Where a topic went to it stays: half of its records under another name would be no copy of it."""
        for source, position in book.positions.items():
            name, kept = name_on(self.world.config, self.flow, target, source.topic), position.target_partition.topic
            if name != kept:
                raise StateMismatch(
                    f"flow {self.flow.name}, target {target.cluster}: topic {source.topic} goes to {kept}, and the "
                    f"configuration now calls it {name}",
                    "take naming and separator back; or give the cluster another alias as a target, which is then "
                    "filled from bronze under the new names",
                )

    def _refuse_move(self, stream: StreamId, books: Mapping[str, Book]) -> None:
        """A topic that goes to another table from now on: what targets have yet to get must be at the source still."""
        begun = read_positions(stream.checkpoint(self.world.checkpoints))
        waiting = {
            (source, target): position.next_offset
            for target, book in books.items()
            for source, position in book.positions.items()
            if TopicPartition(source.topic, source.partition) not in begun and self._is_now(source)
        }
        if not waiting:
            return
        held = self._bronze_ends() if self.world.tables.exists(self.spec.table) else {}
        new = {TopicPartition(s.topic, s.partition) for s, _ in waiting if s not in held}
        firsts = self.source.log_starts(new) | self._first_positions()
        for (source, target), offset in waiting.items():
            first = firsts.get(TopicPartition(source.topic, source.partition), 0)
            if source not in held and first > offset:
                raise StateMismatch(
                    f"flow {self.flow.name}: {target} has {source} up to offset {offset}, and the table "
                    f"{self.spec.table} would begin at {first}: what lies between is in the table of before only",
                    "go on with the table of before (bronze, topics or patterns of the flow) until `mirrorlake lag` "
                    "shows that the target has all of it",
                )

    def _is_now(self, source: SourcePartition) -> bool:
        """Is this the topic as the source has it now, not one of its name that is gone?"""
        topic = self._topics.get(source.topic)
        return topic is not None and is_same_topic(source.topic_id, topic.id)

    @property
    def source(self) -> Cluster:
        return self.world.clusters[self.flow.source]

    @property
    def topics(self) -> list[str]:
        """The source's, as of the last look."""
        return sorted(self._topics)

    def source_topics(self) -> list[str]:
        return topics_now(self.spec, self.source)

    def ensure_targets(self, target: Target) -> dict[str, TopicInfo]:
        """Make and grow the target's topics; source topic -> target topic."""
        cluster = self.world.clusters[target.cluster]
        wish = make_wish(self.world.config, self.flow, target, self._topics)
        make_topics(cluster, target, plan_target(wish, Looker(self.source, cluster, wish)(self._topics)))
        infos = cluster.describe(wish.names.values())
        return {topic: infos[name] for topic, name in wish.names.items() if name in infos}

    def refresh(self) -> None:
        """Look again for topics and partitions; targets grow before records go to them."""
        self._topics = self.source.describe(self.source_topics())
        for target in self.present_targets():
            self._look_at(target)

    def _look_at(self, target: Target) -> None:
        fan_out = self.fan_outs.get(target.cluster) if target.cluster not in self.dead else None
        try:
            made = {topic.name: topic for topic in self.ensure_targets(target).values()}
        except (UsageFault, TopicMissing):
            # A new topic that this target cannot have: its fan-out stops for it, and the others go on.
            made = {}
        if fan_out and (not made or fan_out.doubt(made)):
            self._deliver_soon(fan_out)
        elif fan_out and target.on_source_deleted == "delete":
            self._follow_deletions(target, fan_out, made)

    def _follow_deletions(self, target: Target, fan_out: FanOut, made: Iterable[str]) -> None:
        """A target topic goes after its source topic, when the time of grace is over and all of it was delivered."""
        place = (self.world.root, self.flow.name, target.cluster, self.spec.table)
        filled = {p.target_partition.topic: p.target_topic_id for p in list(fan_out.book.positions.values())}
        before, at = read_doomed(*place), now().timestamp()
        doomed = notice(filled, made, before, at)
        grace = target.delete_after_seconds
        kept = [each for each in doomed if not (is_due(each, at, grace) and self._delete(each, fan_out))]
        if kept != before:
            write_doomed(*place, kept)

    def _delete(self, doomed: Doomed, fan_out: FanOut) -> bool:
        """True when nothing is left to delete. The ledger hears first: a crash between leaves a topic too many."""
        cluster = fan_out.cluster
        found = cluster.describe([doomed.topic])
        if doomed.topic in found and found[doomed.topic].id != doomed.topic_id:
            return True
        if not fan_out.end(doomed.topic):
            return False
        if doomed.topic in found:
            cluster.delete_topic(doomed.topic)
            gone = SourcePartition(doomed.topic, doomed.topic_id, -1)
            detail = "its source topic was deleted, and the time of grace is over"
            Writings(self.world, self.flow.name).incident("target_topic_deleted", cluster.alias, gone, -1, -1, detail)
        return True

    def sibling(self, spec: RelaySpec) -> Relay:
        """Another table of the same flow."""
        return Relay(self.world, self.flow, spec, self.lease, self.ledger, self.pauses, stopping=self.stopping)

    # --- the first leg ---

    def _make_ingest(self) -> Ingest:
        stream = self._stream()
        checkpoint = stream.checkpoint(self.world.checkpoints)
        claim(stream, self.world.checkpoints, self._source_facts())
        self._check_batches(stream, checkpoint)
        return self._ingest(stream, checkpoint, read_topic_ids(checkpoint))

    def _check_batches(self, stream: StreamId, checkpoint: Path) -> None:
        """What the checkpoint calls done must be in the table, and the other way round: or records are passed over.

        The table may be ahead by the batch that a crash cut off between its two commits, which then runs again.
        """
        done, written = last_batch(checkpoint), self.world.tables.txn_version(self.spec.table, stream.txn_app_id)
        if done is None or self.world.tables.folder(self.spec.table) is None:
            return  # a catalog does not tell
        planned = (checkpoint / "offsets" / str(done + 1)).exists()
        if written not in ((done, done + 1) if planned else (done,)):
            raise StateMismatch(
                f"flow {self.flow.name}: the checkpoint of {self.spec.table} has done batch {done}, the table ends "
                f"with {'none of its batches' if written is None else f'batch {written}'}: was one of them put back, "
                "or removed?",
                f"move the folder {checkpoint} away: ingest then goes on where the table ends",
            )

    def _ingest(self, stream: StreamId, checkpoint: Path, topic_ids: dict[str, str]) -> Ingest:
        codec, tables = self.world.config.storage.codec, self.world.tables
        workers = self._workers()
        return Ingest(
            self.spec, stream, checkpoint, tables, self.source, topic_ids, codec, self.wake, workers,
            leader_epochs=read_leader_epochs(checkpoint),
        )  # fmt: skip

    def _workers(self) -> Workers | None:
        """Where Python may write files, unless the flow asks for Spark's reader."""
        world, alias = self.world, self.flow.source
        if not isinstance(world.tables, FolderTables) or self.flow.ingest.reader == "spark":
            return None
        config = librdkafka_consumer(alias, world.config.clusters[alias], self.flow.isolation, READER_GROUP)
        return Workers(world.tables, config, cores(world.config))

    def _source_facts(self) -> dict[str, str]:
        """What a checkpoint belongs to: the same alias may one day mean another cluster."""
        source = self.flow.source
        return {"flow": self.flow.name, "source": source, "source_cluster_id": self.world.cluster_ids[source]}

    def _stream(self) -> StreamId:
        """The newest generation; a later one where its checkpoint is gone although its writes may be in the table."""
        stream = current(self.world.checkpoints, self.flow.name, "ingest", self.spec.table)
        if read_positions(stream.checkpoint(self.world.checkpoints)):
            return stream
        if self.world.tables.folder(self.spec.table) is None:
            # A catalog does not tell which transactions a table has seen; one of this epoch it cannot have.
            return replace(stream, generation=max(stream.generation, self.lease.epoch))
        while self.world.tables.txn_version(self.spec.table, stream.txn_app_id) is not None:
            stream = next_generation(stream)
        return stream

    def _follow_table(self) -> None:
        """Topics may have left a shared table, which Spark would call a loss. And the table may hold more than the
        checkpoint ever planned, of topics that came back or under another checkpoint: it would be read again."""
        assert self.ingest is not None  # noqa: S101
        begun, planned = read_positions(self.ingest.checkpoint), read_plan(self.ingest.checkpoint)
        if not begun:
            return
        left = {at for at in begun if not spec_topics(self.spec, [at.topic])}
        if left or any(end > planned.get(at, 0) for at, end in self.ingest.read.items()):
            self._begin_generation(left)

    def meet_losses(self) -> None:
        """Never silent: what the source dropped unread is an incident; the flow's policy says whether to go on."""
        assert self.ingest is not None  # noqa: S101
        losses = self.ingest.losses(self._seed or {})
        if not losses:
            return
        writings = Writings(self.world, self.flow.name)
        for loss in losses:
            source = SourcePartition(loss.topic, loss.topic_id, loss.partition)
            writings.incident(loss.kind, "", source, loss.first, loss.last, f"policy {self.flow.on_source_loss}")
        passable = all(loss.can_be_passed for loss in losses)
        if self.flow.on_source_loss == "stop" or not passable:
            said = "; ".join(str(loss) for loss in losses[:5])
            raise SourceLoss(
                f"flow {self.flow.name}: {self.flow.source} dropped records before they were read: {said}",
                "ops.incidents has the exact ranges; " + (GO_ON if passable else BEGIN_ANEW),
            )
        gone = {TopicPartition(loss.topic, loss.partition) for loss in losses}
        # Right after what is in the incident: should the source drop more meanwhile, that is another incident.
        after = {TopicPartition(n.topic, n.partition): n.last + 1 for n in losses if n.kind == "retention"}
        self._begin_generation(gone, after)

    def _begin_generation(self, gone: set[TopicPartition], after: Mapping[TopicPartition, int] | None = None) -> None:
        """Going on after a loss is a new checkpoint with a new transaction id, seeded from where we stand.

        Bronze may be ahead of the checkpoint, by a batch that was not called done.
        """
        assert self.ingest is not None  # noqa: S101
        begun = {at: p for at, p in self.ingest.positions(self._seed or {}).items() if at not in gone}
        held, ids, epochs = self._bronze_positions(), self.ingest.topic_ids, self.ingest.leader_epochs
        known = {at.topic: ids[at.topic] for at in begun if at.topic in ids}
        self._seed = furthest(begun, held, after or {})
        stream = next_generation(self.ingest.stream)
        checkpoint = stream.checkpoint(self.world.checkpoints)
        claim(stream, self.world.checkpoints, self._source_facts())
        write_topic_ids(checkpoint, known)
        write_leader_epochs(checkpoint, {at: epoch for at, epoch in epochs.items() if at in begun})
        self.ingest = self._ingest(stream, checkpoint, known)
        self.ingest.read = held

    _has_ingested: bool = False
    _seed: dict[TopicPartition, int] | None = None
    _bound: int = 0
    _topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    _away: dict[str, Book] = field(default_factory=dict)
    _plans: dict[str, TargetPlan] = field(default_factory=dict)
    _taken: dict[tuple[str, str], bool] = field(default_factory=dict)
    """(Target, topic) -> whether it takes it: asked for every record's topic in every round."""
    _source_ends: dict[SourcePartition, int] = field(default_factory=dict)
    """As of the newest sample of lag."""

    def source_partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic.name, partition)
            for topic in self._topics.values()
            for partition in range(topic.partitions)
        ]

    def _starting_offsets(self) -> str:
        """Where a new checkpoint begins: where we stood before a loss, else bronze's own end, else the flow's start."""
        assert self.ingest is not None  # noqa: S101
        if read_positions(self.ingest.checkpoint):
            return "earliest"  # nobody asks: the checkpoint says
        if not self._seed and self.flow.start == "earliest":
            return "earliest"
        begin = self._first_positions() | (self._seed or {})
        return starting_offsets({at: begin.get(at, EARLIEST) for at in self.source_partitions()})

    def _first_positions(self) -> dict[TopicPartition, int]:
        """The flow's start, looked up once and kept: a restart before the first record must not begin later."""
        if self.flow.start == "earliest":
            return {}
        path = self.world.root / "starts" / f"{self.flow.name}.{self.spec.table}.json"
        if not path.exists():
            write_json(path, json.loads(starting_offsets(self._look_up_start())))
        return parse_offsets(path.read_text())

    def _look_up_start(self) -> dict[TopicPartition, int]:
        partitions = self.source_partitions()
        if isinstance(self.flow.start, datetime):
            return self.source.offsets_at(partitions, int(self.flow.start.timestamp() * 1000))
        return self.source.log_ends(partitions)

    def _bronze_positions(self) -> dict[TopicPartition, int]:
        """Where bronze ends, for the topics as they are now."""
        positions: dict[TopicPartition, int] = {}
        for source, end in self._bronze_ends().items():
            at = TopicPartition(source.topic, source.partition)
            if self._is_now(source):
                positions[at] = max(end, positions.get(at, 0))
        return positions

    def _bronze_ends(self) -> dict[SourcePartition, int]:
        return bronze_ends(self._bronze().segments())

    def start_ingest(self, bound: int | None = None) -> None:
        """`bound` is the most records of a batch; without one, a few of the newest records say how large they are."""
        assert self.ingest is not None  # noqa: S101
        settings = self.flow.ingest
        self._bound = bound or self._sampled_bound()
        reading = Reading(
            self.world.source_options[self.flow.source],
            self.flow.isolation,
            self._bound,
            self._starting_offsets(),
            settings.trigger_seconds,
            self.once,
        )
        # Forgotten only now: what is asked before may be refused, and then the old failure still stands.
        self.ingest_failure = None
        self.ingest_query = start_ingest(self.world.spark, self.ingest, reading, self._ingest_failed)

    def _sampled_bound(self) -> int:
        average = sample_record_bytes(self.source, self.source_partitions())
        return records_per_batch(self.flow.ingest.max_records_per_batch, self.flow.ingest.max_bytes_per_batch, average)

    def rebound_ingest(self) -> int | None:
        """Start ingest again where its records are of another size now; returns the new bound."""
        assert self.ingest is not None  # noqa: S101
        settings, query = self.flow.ingest, self.ingest_query
        batch = (self.ingest.newest or batch_size(query)) if query.isActive else None
        if batch is None:
            return None
        bound = next_bound(self._bound, batch, settings.max_records_per_batch, settings.max_bytes_per_batch)
        if bound == self._bound:
            return None
        self.ingest_query.stop()  # an interrupted batch says so, and runs again
        self.start_ingest(bound)
        return bound

    # --- the second leg ---

    def make_fan_out(self, target: Target) -> FanOut:
        world, flow, cluster = self.world, self.flow, self.world.clusters[target.cluster]
        writings = Writings(world, flow.name)
        # A monitor wants the newest beat: those of another replicator before us do no harm.
        existing = "append" if self.spec.heartbeats and flow.provenance else target.existing_records
        self.fan_outs[target.cluster] = FanOut(
            make_errand(world.config, world.root, flow, target, self.spec.table, world.cluster_ids, self.lease.epoch),
            self._bronze(),
            cluster,
            self.ledger,
            self._book(target),
            Outbox(writings.incident, writings.dead_letters),
            target_topics=partial(self.ensure_targets, target),
            limit_of=partial(record_limit, world.config, cluster),
            paused=partial(self._paused, target.cluster),
            takes=partial(self._takes, target.cluster),
            require_lease=self.lease.require_valid,
            stopped_cleanly=self.stopped_cleanly,
            existing_records=existing,
            fold_partitions=target.partitions == "modulo",
            recreate=target.on_topic_deleted == "recreate",
            latest=self._latest,
            budget_bytes=flow.fanout.max_bytes_per_round,
            rate_limit_per_second=target.rate_limit_records_per_second,
            slots=cores(world.config),
            turns=world.turns[target.cluster],
            refused_seconds=world.config.runner.refused_seconds,
            missing_seconds=float("inf") if target.missing_topics == "wait" else MISSING_SECONDS,
            stopping=self.stopping,
        )
        return self.fan_outs[target.cluster]

    def _takes(self, target: str, topic: str) -> bool:
        """Does the target take this topic, as the configuration is now?"""
        if (target, topic) not in self._taken:
            chosen = next(each for each in self.flow.targets if each.cluster == target)
            self._taken[target, topic] = name_on(self.world.config, self.flow, chosen, topic) is not None
        return self._taken[target, topic]

    def _paused(self, target: str, topic: str) -> bool:
        return any(pause.covers(target, topic) for pause in self.pauses())

    def _bronze(self) -> Bronze:
        """Files where Python may open them, unless the flow asks for Spark's reader."""
        folder, reader = self.world.tables.folder(self.spec.table), self.flow.fanout.reader
        if folder is None or reader == "spark":
            return BronzeInCatalog(self.world.spark, self.world.tables.identifier(self.spec.table))
        return BronzeInFolder(self.world.spark, folder)

    def _book(self, target: Target) -> Book:
        """What the ledger says of this table's topics, without those that the target does not take any more."""
        entries = read(self.world.tables, self.world.ops("ledger"), self.flow.name, target.cluster)
        ours = [entry for entry in entries if spec_topics(self.spec, [entry.source.topic])]
        return fold(entry for entry in ours if self._takes(target.cluster, entry.source.topic))

    def _latest(self, source: SourcePartition) -> int:
        at = TopicPartition(source.topic, source.partition)
        return self.source.log_ends([at])[at]

    def present_targets(self) -> list[Target]:
        return [target for target in self.flow.targets if target.cluster in self.world.cluster_ids]

    def late_targets(self) -> list[Target]:
        """Targets that were away when we started, and still have no fan-out."""
        return [target for target in self.flow.targets if target.cluster not in self.fan_outs]

    def make_fan_outs(self) -> list[FanOut]:
        """For all targets that are there and have none yet."""
        return [self.make_fan_out(t) for t in self.present_targets() if t.cluster not in self.fan_outs]

    def start_fan_outs(self) -> None:
        """Catch up in a thread of its own, then follow the table: a dead target holds back nobody."""
        for fan_out in self.make_fan_outs():
            stream = self._claim_fan_out(fan_out.errand.target)
            threading.Thread(target=self._catch_up_and_follow, args=(fan_out, stream), daemon=True).start()

    def _claim_fan_out(self, target: str) -> StreamId:
        stream = current(self.world.checkpoints, self.flow.name, "fanout", f"{self.spec.table}.{target}")
        claim(stream, self.world.checkpoints, {"flow": self.flow.name, "target": target})
        return stream

    def _catch_up_and_follow(self, fan_out: FanOut, stream: StreamId) -> None:
        """The query would look every few seconds; we have just looked, and Java is busy with its start."""
        self._deliver(fan_out)
        target = fan_out.errand.target
        if target in self.dead or self.stopping.wait(self._trigger_seconds()):
            return
        try:
            self._follow(fan_out, stream)
        except Exception as error:
            self.dead[target] = error
        if self.stopping.is_set():
            self.fan_out_queries[target].stop()  # whoever stopped us did not see it

    def _follow(self, fan_out: FanOut, stream: StreamId) -> None:
        """From the version that was looked at first, so that no commit falls between."""
        target = fan_out.errand.target
        folder = self.world.tables.folder(self.spec.table)
        clock = Clock(
            self.world.tables.identifier(self.spec.table),
            str(folder) if folder else None,
            str(stream.checkpoint(self.world.checkpoints)),
            stream.name,
            fan_out.bronze.followed_from,
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

    def kick(self) -> list[threading.Thread]:
        """Look without waiting for a commit: after a pause."""
        return [self._deliver_soon(fan_out) for target, fan_out in self.fan_outs.items() if target not in self.dead]

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
            self.dead[fan_out.errand.target] = error

    # --- watching ---

    def _ingest_failed(self, failure: Exception) -> None:
        self.ingest_failure = failure

    def has_ingested(self) -> bool:
        """Whether the source has ever given this runner a batch: what it refuses now, it did not then."""
        progressed = self.ingest_query is not None and self.ingest_query.lastProgress is not None
        self._has_ingested = self._has_ingested or progressed
        return self._has_ingested

    def is_ingesting(self) -> bool:
        """Or has failed. Looked at in this order: a query that has ended has said by then what ended it."""
        active: bool = self.ingest_query.isActive
        self.find_failures()
        return active or self.ingest_failure is not None

    def find_failures(self) -> None:
        """Queries that ended without telling us."""
        if self.ingest_failure is None:
            self.ingest_failure = ending(self.ingest_query, may_end=self.once)
        for target, query in list(self.fan_out_queries.items()):
            failure = ending(query)
            if failure is not None:
                self.dead.setdefault(target, failure)

    def restart_ingest(self) -> None:
        """After what passed by itself, or after a loss that the policy accepts: from where the checkpoint stands."""
        self.meet_losses()
        self._topics = self.source.describe(self.source_topics())  # a topic may be gone meanwhile
        self.start_ingest()

    def lag_samples(self, at: datetime) -> pa.Table:
        assert self.ingest is not None  # noqa: S101
        ingested = ingest_positions(read_positions(self.ingest.checkpoint), self.ingest.topic_ids)
        targets = {t.cluster: self._target_positions(t, ingested) for t in self.flow.targets}
        topics = self.source.describe(self._topics).values()
        committed = self.flow.isolation == "read_committed"
        rows = sample_rows(self.flow.name, self.source, topics, ingested, targets, committed, at, self._takes)
        self._source_ends = source_ends(rows)
        return rows

    def behind(self, target: str) -> int:
        """Records that the target has yet to get: those in bronze, and those that ingest had not read at the newest
        sample and has not read since."""
        fan_out = self.fan_outs[target]
        held, positions = bronze_ends(fan_out.bronze.segments()), fan_out.book.positions
        unread = (
            end - max(held.get(source, 0), positions[source].next_offset if source in positions else 0)
            for source, end in self._source_ends.items()
            if self._takes(target, source.topic)
        )
        return fan_out.behind() + sum(count for count in unread if count > 0)

    def complete(self, target: str) -> dict[SourcePartition, int]:
        """Source partition -> everything before this offset is on the target; nothing before ingest has begun."""
        fan_out = self.fan_outs.get(target)
        if self.ingest is None or fan_out is None:
            return {}
        ingested = ingest_positions(read_positions(self.ingest.checkpoint), self.ingest.topic_ids)
        # A batch is in the table before its position is in the checkpoint, so this version has all of it.
        has_all = fan_out.delivered_version >= self._bronze_version()
        return target_positions(fan_out.book, bronze_ends(fan_out.bronze.segments()) if has_all else None, ingested)

    def _bronze_version(self) -> float:
        """Infinite where only Spark may look: then what the ledger says has to do."""
        folder = self.world.tables.folder(self.spec.table)
        return DeltaTable(folder).version() if folder else float("inf")

    def _target_positions(self, target: Target, ingested: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        """A target that is away is sampled too: its lag grows. Its ledger stands still, so it is read once."""
        fan_out = self.fan_outs.get(target.cluster)
        if fan_out is not None:
            return target_positions(fan_out.book, bronze_ends(fan_out.bronze.segments()), ingested)
        if target.cluster not in self._away:
            self._away[target.cluster] = self._book(target)
        return target_positions(self._away[target.cluster], None, ingested)

    def stop(self) -> bool:
        """Let running rounds end, then stop the queries; false where a round did not end in time."""
        self.stopping.set()
        ended = [fan_out.await_end(timeout_seconds=30) for fan_out in self.fan_outs.values()]
        for query in [self.ingest_query, *list(self.fan_out_queries.values())]:
            # Where Spark itself is gone there is nothing to stop, and the ledger must still be closed.
            with contextlib.suppress(Exception):
                query and query.stop()
        return all(ended)


def make_errand(
    config: Config, root: Path, flow: Flow, target: Target, table: str, cluster_ids: Mapping[str, str], epoch: int
) -> Errand:
    """What all sending of a flow to a target has in common."""
    cluster = config.clusters[target.cluster]
    return Errand(
        flow.name,
        target.cluster,
        epoch,
        librdkafka_producer(target.cluster, cluster, flow.fanout.producer),
        librdkafka_admin(target.cluster, cluster),
        # A volume gives no locks between machines: there the lease's epoch and a stable log end must do.
        None if config.storage.catalog else str(producer_lock_path(root, flow.name, target.cluster, table)),
        flow.provenance,
        cluster_ids[flow.source],
        cluster_ids[target.cluster],
        flow.max_hops,
        limits(cluster).max_record_bytes or DEFAULT_MAX_RECORD_BYTES,
        flow.on_undeliverable == "dead_letter",
        flow.fanout.delivery_timeout_seconds,
    )


def record_limit(config: Config, cluster: Cluster, topic: str) -> int:
    """The service's limit, or what the topic's configuration says where we may read it."""
    service = limits(config.clusters[cluster.alias]).max_record_bytes
    try:
        configured = int(cluster.topic_configs([topic])[topic]["max.message.bytes"].value or DEFAULT_MAX_RECORD_BYTES)
    except (AccessRefused, KeyError):
        configured = DEFAULT_MAX_RECORD_BYTES
    return min(service, configured) if service else configured


def furthest(*positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Of several accounts of where we stand, the latest for each partition."""
    return {at: max(each.get(at, 0) for each in positions) for at in {at for each in positions for at in each}}


def ending(query: Any, may_end: bool = False) -> Exception | None:
    """What ended a query, None while it runs. One that nobody asked to end has failed, whatever it says."""
    if query is None or query.isActive:
        return None
    failure: Exception | None = query.exception()
    return failure or (None if may_end else RuntimeError("the query ended by itself, without an error"))


# What Spark's Kafka source calls the begin of a log.
EARLIEST = -2
GO_ON = "set on_source_loss: continue to go on without them"
BEGIN_ANEW = (
    "offsets that bronze holds already may come again and could not be told apart, so on_source_loss: continue does "
    "not help here: begin with another --root, and choose existing_records for its targets"
)

# What brokers take unless told otherwise.
DEFAULT_MAX_RECORD_BYTES = 1048588
