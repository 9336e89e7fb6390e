"""The first leg of one bronze table, kept running: its checkpoint, what the source dropped, how large a batch is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mirrorlake.admission import check_batches
from mirrorlake.bronze import (
    Ingest,
    Reading,
    Workers,
    batch_size,
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
from mirrorlake.clusters import librdkafka_consumer
from mirrorlake.control import write_json
from mirrorlake.errors import SourceLoss
from mirrorlake.failpoints import hit
from mirrorlake.kafka import READER_GROUP
from mirrorlake.lag import SAMPLED_ENDS, ingest_positions, known_ends
from mirrorlake.records import KnownEnd, SourcePartition, TopicPartition
from mirrorlake.strand import Strand
from mirrorlake.streams import StreamId, claim, current, ending, next_generation
from mirrorlake.tables import FolderTables
from mirrorlake.topics import spec_topics
from mirrorlake.world import cores

# What Spark's Kafka source calls the begin of a log.
EARLIEST = -2
GO_ON = "set on_source_loss: continue to go on without them"
BEGIN_ANEW = (
    "offsets that bronze holds already may come again and could not be told apart, so on_source_loss: continue does "
    "not help here: begin with another --root, and choose existing_records for its targets"
)


@dataclass
class Inlet:
    """Source -> bronze. `made` is set once it is prepared."""

    strand: Strand
    wake: Callable[[], None]
    """Told of every commit."""
    once: bool = False
    ingest: Ingest | None = None
    query: Any = None
    failure: Exception | None = None
    _progressed: bool = False
    _seed: dict[TopicPartition, int] = field(default_factory=dict)
    """Where a new checkpoint begins, where that is not the flow's start."""
    _bound: int = 0

    @property
    def made(self) -> Ingest:
        if self.ingest is None:
            raise RuntimeError("ingest was not prepared")
        return self.ingest

    # --- preparing ---

    def current_stream(self) -> StreamId:
        """As storage has it. Changes nothing."""
        return current(self.strand.world.checkpoints, self.strand.flow.name, "ingest", self.strand.spec.table)

    def source_facts(self) -> dict[str, str]:
        """What a checkpoint belongs to: the same alias may one day mean another cluster."""
        flow, ids = self.strand.flow, self.strand.world.cluster_ids
        return {"flow": flow.name, "source": flow.source, "source_cluster_id": ids[flow.source]}

    def prepare(self) -> None:
        """Find out where we stand, and what the source dropped meanwhile."""
        stream = self._stream()
        checkpoint = stream.checkpoint(self.strand.world.checkpoints)
        claim(stream, self.strand.world.checkpoints, self.source_facts())
        check_batches(self.strand, stream, checkpoint)
        self.ingest = self._make(stream, checkpoint, read_topic_ids(checkpoint))
        self.ingest.read = self.strand.bronze_positions()
        if not read_positions(checkpoint):
            self._seed = dict(self.ingest.read)
        self._follow_table()
        self.meet_losses()

    def _stream(self) -> StreamId:
        """The newest generation; a later one where its checkpoint is gone although its writes may be in the table."""
        stream, world, table = self.current_stream(), self.strand.world, self.strand.spec.table
        if read_positions(stream.checkpoint(world.checkpoints)):
            return stream
        if world.tables.folder(table) is None:
            # A catalog does not tell which transactions a table has seen; one of this epoch it cannot have.
            return replace(stream, generation=max(stream.generation, self.strand.lease.epoch))
        while world.tables.txn_version(table, stream.txn_app_id) is not None:
            stream = next_generation(stream)
        return stream

    def _make(self, stream: StreamId, checkpoint: Path, topic_ids: dict[str, str]) -> Ingest:
        strand = self.strand
        codec, tables = strand.world.config.storage.codec, strand.world.tables
        return Ingest(
            strand.spec, stream, checkpoint, tables, strand.source, topic_ids, codec, self.wake, self._workers(),
            leader_epochs=read_leader_epochs(checkpoint),
        )  # fmt: skip

    def _workers(self) -> Workers | None:
        """Where Python may write files, unless the flow asks for Spark's reader."""
        world, flow = self.strand.world, self.strand.flow
        if not isinstance(world.tables, FolderTables) or flow.ingest.reader == "spark":
            return None
        cluster = world.config.clusters[flow.source]
        config = librdkafka_consumer(flow.source, cluster, flow.isolation, READER_GROUP)
        return Workers(world.tables, config, cores(world.config))

    def _follow_table(self) -> None:
        """Topics may have left a shared table, which Spark would call a loss. And the table may hold more than the
        checkpoint ever planned, of topics that came back or under another checkpoint: it would be read again."""
        begun, planned = read_positions(self.made.checkpoint), read_plan(self.made.checkpoint)
        if not begun:
            return
        left = {at for at in begun if not spec_topics(self.strand.spec, [at.topic])}
        if left or any(end > planned.get(at, 0) for at, end in self.made.read.items()):
            self._begin_generation(left)

    # --- losses ---

    def meet_losses(self) -> None:
        """Never silent: what the source dropped unread is an incident; the flow's policy says whether to go on."""
        losses, flow = self.made.losses(self._seed, self._known_ends), self.strand.flow
        if not losses:
            return
        for loss in losses:
            source = SourcePartition(loss.topic, loss.topic_id, loss.partition)
            detail = f"policy {flow.on_source_loss}" + (f"; {loss.known}" if loss.known else "")
            self.strand.writings.incident(loss.kind, "", source, loss.first, loss.last, detail)
        passable = all(loss.can_be_passed for loss in losses)
        if flow.on_source_loss == "stop" or not passable:
            said = "; ".join(str(loss) for loss in losses[:5])
            raise SourceLoss(
                f"flow {flow.name}: {flow.source} dropped records before they were read: {said}",
                "ops.incidents has the exact ranges; " + (GO_ON if passable else BEGIN_ANEW),
            )
        gone = {TopicPartition(loss.topic, loss.partition) for loss in losses}
        # Right after what is in the incident: should the source drop more meanwhile, that is another incident.
        after = {TopicPartition(n.topic, n.partition): n.last + 1 for n in losses if n.kind == "retention"}
        self._begin_generation(gone, after)

    def _known_ends(self) -> dict[SourcePartition, KnownEnd]:
        """Where the source's logs ended when the flow last sampled them: of one that is gone, nobody else can tell."""
        world, chosen = self.strand.world, {"flow": self.strand.flow.name, "side": "source"}
        return known_ends(world.tables.read(world.ops("lag_samples"), SAMPLED_ENDS, **chosen))

    def _begin_generation(self, gone: set[TopicPartition], after: Mapping[TopicPartition, int] | None = None) -> None:
        """Going on after a loss is a new checkpoint with a new transaction id, seeded from where we stand.

        Bronze may be ahead of the checkpoint, by a batch that was not called done.
        """
        ingest, checkpoints = self.made, self.strand.world.checkpoints
        begun = {at: p for at, p in ingest.positions(self._seed).items() if at not in gone}
        held, ids = self.strand.bronze_positions(), ingest.topic_ids
        known = {at.topic: ids[at.topic] for at in begun if at.topic in ids}
        self._seed = furthest(begun, held, after or {})
        stream = next_generation(ingest.stream)
        checkpoint = stream.checkpoint(checkpoints)
        claim(stream, checkpoints, self.source_facts())
        hit("generation-claimed")
        write_topic_ids(checkpoint, known)
        write_leader_epochs(checkpoint, {at: epoch for at, epoch in ingest.leader_epochs.items() if at in begun})
        self.ingest = self._make(stream, checkpoint, known)
        self.ingest.read = held

    # --- where it begins ---

    def _starting_offsets(self) -> str:
        """Where a new checkpoint begins: where we stood before a loss, else bronze's own end, else the flow's start."""
        if read_positions(self.made.checkpoint):
            return "earliest"  # nobody asks: the checkpoint says
        if not self._seed and self.strand.flow.start == "earliest":
            return "earliest"
        begin = self.first_positions() | self._seed
        return starting_offsets({at: begin.get(at, EARLIEST) for at in self.strand.source_partitions()})

    def first_positions(self) -> dict[TopicPartition, int]:
        """The flow's start, looked up once and kept: a restart before the first record must not begin later."""
        if self.strand.flow.start == "earliest":
            return {}
        path = self.strand.world.root / "starts" / f"{self.strand.flow.name}.{self.strand.spec.table}.json"
        if not path.exists():
            write_json(path, json.loads(starting_offsets(self._look_up_start())))
        return parse_offsets(path.read_text())

    def _look_up_start(self) -> dict[TopicPartition, int]:
        source, start, partitions = self.strand.source, self.strand.flow.start, self.strand.source_partitions()
        if isinstance(start, datetime):
            return source.offsets_at(partitions, int(start.timestamp() * 1000))
        return source.log_ends(partitions)

    # --- running ---

    def start(self, bound: int | None = None) -> None:
        """`bound` is the most records of a batch; without one, a few of the newest records say how large they are."""
        flow, world = self.strand.flow, self.strand.world
        self._bound = bound or self._sampled_bound()
        reading = Reading(
            world.source_options[flow.source],
            flow.isolation,
            self._bound,
            self._starting_offsets(),
            flow.ingest.trigger_seconds,
            self.once,
        )
        # Forgotten only now: what is asked before may be refused, and then the old failure still stands.
        self.failure = None
        self.query = start_ingest(world.spark, self.made, reading, self._failed)

    def _failed(self, failure: Exception) -> None:
        self.failure = failure

    def restart(self) -> None:
        """After what passed by itself, or after a loss that the policy accepts: from where the checkpoint stands."""
        self.meet_losses()
        self.strand.look()  # a topic may be gone meanwhile
        self.start()

    def _sampled_bound(self) -> int:
        settings = self.strand.flow.ingest
        average = sample_record_bytes(self.strand.source, self.strand.source_partitions())
        return records_per_batch(settings.max_records_per_batch, settings.max_bytes_per_batch, average)

    def rebound(self) -> int | None:
        """Start again where records are of another size now; returns the new bound."""
        settings = self.strand.flow.ingest
        batch = (self.made.newest or batch_size(self.query)) if self.query.isActive else None
        if batch is None:
            return None
        bound = next_bound(self._bound, batch, settings.max_records_per_batch, settings.max_bytes_per_batch)
        if bound == self._bound:
            return None
        self.query.stop()  # an interrupted batch says so, and runs again
        self.start(bound)
        return bound

    # --- watching ---

    def positions(self) -> dict[SourcePartition, int]:
        """Where ingest stands, by the checkpoint."""
        return ingest_positions(read_positions(self.made.checkpoint), self.made.topic_ids)

    def has_progressed(self) -> bool:
        """Whether the source has ever given this runner a batch: what it refuses now, it did not then."""
        progressed = self.query is not None and self.query.lastProgress is not None
        self._progressed = self._progressed or progressed
        return self._progressed

    def is_running(self) -> bool:
        """Or has failed. Looked at in this order: a query that has ended has said by then what ended it."""
        active: bool = self.query.isActive
        self.find_failure()
        return active or self.failure is not None

    def find_failure(self) -> None:
        """Of a query that ended without telling us."""
        if self.failure is None:
            self.failure = ending(self.query, may_end=self.once)


def furthest(*positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Of several accounts of where we stand, the latest for each partition."""
    return {at: max(each.get(at, 0) for each in positions) for at in {at for each in positions for at in each}}
