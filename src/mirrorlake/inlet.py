"""The first leg of one bronze table, kept running: its checkpoint, what the source dropped, how large a batch is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mirrorlake.admission import check_batches
from mirrorlake.bronze import (
    RETENTION,
    Ingest,
    Loss,
    Reading,
    Workers,
    batch_size,
    ids_after,
    next_bound,
    parse_offsets,
    read_begin,
    read_leader_epochs,
    read_plan,
    read_positions,
    read_seed,
    read_topic_ids,
    records_per_batch,
    sample_record_bytes,
    start_ingest,
    starting_offsets,
    write_leader_epochs,
    write_seed,
    write_topic_ids,
)
from mirrorlake.clusters import librdkafka_consumer
from mirrorlake.control import write_json
from mirrorlake.errors import SourceLoss
from mirrorlake.failpoints import hit
from mirrorlake.kafka import READER_GROUP, is_same_topic
from mirrorlake.lag import SAMPLED_ENDS, ingest_positions, known_ends
from mirrorlake.records import KnownEnd, SourcePartition, TopicPartition, age, branch
from mirrorlake.strand import Strand
from mirrorlake.streams import StreamId, claim, current, ending, next_generation
from mirrorlake.tables import FolderTables
from mirrorlake.topics import spec_topics
from mirrorlake.world import cores

# What Spark's Kafka source calls the begin of a log.
EARLIEST = -2
# So many checkpoint generations has an epoch of a flow at most, where the table cannot say which were used.
GENERATIONS = 1000


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
    _behind_since: float | None = None
    """When we last committed, or the source was first seen to have more than we have read; None where we have all."""
    _subscribed: Sequence[str] = ()
    """The topics that were there when the query started."""

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
        held, ids = self.strand.newest_in_bronze(), self.ingest.topic_ids
        # A branch that has no records yet begins where its log was cut, not where the one before it ended.
        later = (each for each in held.items() if branch(each[0].topic_id) >= branch(ids.get(each[0].topic, "")))
        self.ingest.read = {source.at: end for source, end in later}
        if not read_positions(checkpoint):
            self._seed = read_seed(checkpoint) or dict(self.ingest.read)
        self._follow_table({source.topic: source.topic_id for source in sorted(held, key=age)})
        self.meet_losses()

    def _stream(self) -> StreamId:
        """The newest generation; a later one where its checkpoint is gone although its writes may be in the table."""
        stream = self.current_stream()
        planned = read_plan(stream.checkpoint(self.strand.world.checkpoints))
        return stream if planned else self._unused(stream)

    def _unused(self, stream: StreamId) -> StreamId:
        """This generation, or the next one under which nothing was written yet: what was, the table would ignore."""
        tables, table = self.strand.world.tables, self.strand.spec.table
        if tables.folder(table) is None:
            # A catalog does not tell which transactions a table has seen; none of an epoch that just began.
            return replace(stream, generation=max(stream.generation, GENERATIONS * self.strand.lease.epoch))
        while tables.txn_version(table, stream.txn_app_id) is not None:
            stream = next_generation(stream)
        return stream

    def _make(self, stream: StreamId, checkpoint: Path, topic_ids: dict[str, str]) -> Ingest:
        strand = self.strand
        codec, tables = strand.world.config.storage.codec, strand.world.tables
        return Ingest(
            strand.spec, stream, checkpoint, tables, strand.source, topic_ids, codec, self._committed, self._workers(),
            leader_epochs=read_leader_epochs(checkpoint),
        )  # fmt: skip

    def _committed(self) -> None:
        if self._behind_since is not None:
            self._behind_since = time.monotonic()  # until a sample sees that we have all
        self.wake()

    def _workers(self) -> Workers | None:
        """Where Python may write files, unless the flow asks for Spark's reader."""
        world, flow = self.strand.world, self.strand.flow
        if not isinstance(world.tables, FolderTables) or flow.ingest.reader == "spark":
            return None
        cluster = world.config.clusters[flow.source]
        config = librdkafka_consumer(flow.source, cluster, flow.isolation, READER_GROUP)
        return Workers(world.tables, config, cores(world.config))

    def _follow_table(self, held_ids: Mapping[str, str]) -> None:
        """Topics may have left a shared table, which Spark would call a loss. And the table may hold more than the
        checkpoint ever planned, of topics that came back or under another checkpoint: it would be read again."""
        ids, begun = self.made.topic_ids, read_positions(self.made.checkpoint)
        # Of a log that was cut the table may have a later branch than an older checkpoint.
        later = {topic: held for topic, held in held_ids.items() if branch(held) > branch(ids.get(topic, ""))}
        ids.update(later)
        ours = set(spec_topics(self.strand.spec, {at.topic for at in begun})) - later.keys()
        going, planned = {at: p for at, p in begun.items() if at.topic in ours}, read_plan(self.made.checkpoint)
        if begun and (going != begun or any(end > planned.get(at, 0) for at, end in self.made.read.items())):
            kept = {topic: known for topic, known in ids.items() if topic in ours or topic in later}
            self._begin_generation(going, self.made.read, kept)

    # --- losses ---

    def meet_losses(self) -> None:
        """Never silent: what the source dropped is an incident; the flow's policy says whether to go on."""
        begun = self.made.positions(self._seed)
        # Where no query has begun, nobody can say what came after it.
        new = {*self.strand.source_partitions()} - begun.keys() if read_begin(self.made.checkpoint) else set()
        if not self.made.losses(begun, new):
            return
        stood = self._stood()
        if losses := self.made.losses(stood, new, self._known_ends):
            self._tell(losses)
            self._go_on(stood, losses)

    def _tell(self, losses: Sequence[Loss]) -> None:
        flow = self.strand.flow
        for loss in losses:
            detail = f"policy {flow.on_source_loss}" + (f"; {loss.known}" if loss.known else "")
            self.strand.writings.finding(loss.kind, "", loss.source, loss.first, loss.last, detail)
        if flow.on_source_loss == "stop":
            said = "; ".join(str(loss) for loss in losses[:5])
            raise SourceLoss(
                f"flow {flow.name}: {flow.source} dropped records: {said}",
                "ops.incidents has the exact ranges; set on_source_loss: continue to go on without them",
            )

    def _go_on(self, stood: Mapping[TopicPartition, int], losses: Sequence[Loss]) -> None:
        # Right after what is in the incident: should the source drop more meanwhile, that is another incident.
        after = {loss.source.at: at for loss in losses if (at := loss.go_on_at) is not None}
        others = {loss.source.at for loss in losses if loss.kind != RETENTION}
        going = {at: position for at, position in stood.items() if at not in others}
        self._begin_generation(going, after, ids_after(losses, self.made.topic_ids))

    def _stood(self) -> dict[TopicPartition, int]:
        """Where we stand: bronze may be ahead of the checkpoint, by a batch that was not called done."""
        ids, held = self.made.topic_ids, self.strand.newest_in_bronze()
        read = {source.at: end for source, end in held.items() if source.topic_id == ids.get(source.topic)}
        return furthest(self.made.positions(self._seed), read)

    def _known_ends(self) -> dict[SourcePartition, KnownEnd]:
        """Where the source's logs ended when the flow last sampled them: of one that is gone, nobody else can tell."""
        world, chosen = self.strand.world, {"flow": self.strand.flow.name, "side": "source"}
        return known_ends(world.tables.read(world.ops("lag_samples"), SAMPLED_ENDS, **chosen))

    def _begin_generation(
        self,
        going: Mapping[TopicPartition, int],
        elsewhere: Mapping[TopicPartition, int],
        topic_ids: dict[str, str],
    ) -> None:
        """Going on after a loss is a new checkpoint with a new transaction id, seeded from where we stand.

        `going`: where we stand in logs that go on as they were.
        """
        ingest, checkpoints = self.made, self.strand.world.checkpoints
        stream = self._unused(next_generation(ingest.stream))
        checkpoint = stream.checkpoint(checkpoints)
        claim(stream, checkpoints, self.source_facts())
        hit("generation-claimed")
        self._seed = furthest(going, elsewhere)
        write_seed(checkpoint, self._seed)
        write_topic_ids(checkpoint, topic_ids)
        write_leader_epochs(checkpoint, {at: epoch for at, epoch in ingest.leader_epochs.items() if at in going})
        checkpoint.mkdir(parents=True, exist_ok=True)  # from here on it is the newest, whether a query starts or not
        self.ingest = self._make(stream, checkpoint, topic_ids)
        self.ingest.read = {at: end for at, end in ingest.read.items() if at in going}

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
        """The flow's start, looked up once and kept: a restart before the first record must not begin later.

        Of topics as they were then: one that was made anew since has come after the start, and all of it counts.
        """
        if self.strand.flow.start == "earliest":
            return {}
        path = self.strand.world.root / "starts" / f"{self.strand.flow.name}.{self.strand.spec.table}.json"
        if not path.exists():
            offsets = json.loads(starting_offsets(self._look_up_start()))
            write_json(path, {"offsets": offsets, "topic_ids": {t.name: t.id for t in self.strand.topics.values()}})
        kept = json.loads(path.read_text())
        offsets = parse_offsets(json.dumps(kept["offsets"] if "topic_ids" in kept else kept))
        return {at: first for at, first in offsets.items() if self._is_as_of(kept.get("topic_ids", {}), at.topic)}

    def _is_as_of(self, topic_ids: Mapping[str, str], topic: str) -> bool:
        now = self.strand.topics.get(topic)
        gone_on = self.ingest is not None and branch(self.ingest.topic_ids.get(topic, "")) > 0
        return now is None or (is_same_topic(topic_ids.get(topic, ""), now.id) and not gone_on)

    def _look_up_start(self) -> dict[TopicPartition, int]:
        """No further than may be read: an open transaction holds the end back, and a query cannot begin behind it."""
        source, start, partitions = self.strand.source, self.strand.flow.start, self.strand.source_partitions()
        ends = source.log_ends(partitions, self.strand.flow.isolation == "read_committed")
        if not isinstance(start, datetime):
            return ends
        asked = source.offsets_at(partitions, int(start.timestamp() * 1000))
        return {at: min(offset, ends[at]) for at, offset in asked.items()}

    # --- running ---

    def start(self, bound: int | None = None) -> None:
        """`bound` is the most records of a batch; without one, a few of the newest records say how large they are."""
        flow, world = self.strand.flow, self.strand.world
        self._subscribed = sorted(self.strand.topics)
        if not self._subscribed and self.strand.spec.java_pattern is None:
            self.query, self.failure = None, None  # all that is listed is gone; bronze still has it
            return
        self._bound = bound or self._sampled_bound()
        reading = Reading(
            world.source_options[flow.source],
            flow.isolation,
            self._bound,
            self._starting_offsets(),
            flow.ingest.trigger_seconds,
            self.once,
            self._subscribed,
        )
        # Forgotten only now: what is asked before may be refused, and then the old failure still stands.
        self.failure = None
        self.query = start_ingest(world.spark, self.made, reading, self._failed)

    def _failed(self, failure: Exception) -> None:
        self.failure = failure

    def follow_topics(self) -> None:
        """Listed topics that the source has again, or at last: the query was not told of them."""
        if self.strand.spec.java_pattern is None and set(self.strand.topics) - set(self._subscribed):
            self.restart()

    def restart(self) -> None:
        """After what passed by itself, or after a loss that the policy accepts: from where the checkpoint stands."""
        if self.query is not None:
            self.query.stop()
        self.strand.look()  # topics may have come, or be gone
        self.meet_losses()
        self.start()

    def _sampled_bound(self) -> int:
        settings = self.strand.flow.ingest
        average = sample_record_bytes(self.strand.source, self.strand.source_partitions())
        return records_per_batch(settings.max_records_per_batch, settings.max_bytes_per_batch, average)

    def rebound(self) -> int | None:
        """Start again where records are of another size now; returns the new bound."""
        settings = self.strand.flow.ingest
        active = self.query is not None and self.query.isActive
        batch = (self.made.newest or batch_size(self.query)) if active else None
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

    def note_ends(self, ends: Mapping[SourcePartition, int], ingested: Mapping[SourcePartition, int]) -> None:
        """What a sample saw of the source, and of us."""
        if not any(end > ingested.get(source, 0) for source, end in ends.items()):
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = time.monotonic()

    def stalled_seconds(self) -> float:
        """How long nothing was committed, though the source has more."""
        return 0.0 if self._behind_since is None else time.monotonic() - self._behind_since

    def has_progressed(self) -> bool:
        """Whether the source has ever given this runner a batch: what it refuses now, it did not then."""
        progressed = self.query is not None and self.query.lastProgress is not None
        self._progressed = self._progressed or progressed
        return self._progressed

    def is_running(self) -> bool:
        """Or has failed. Looked at in this order: a query that has ended has said by then what ended it."""
        active: bool = self.query is not None and self.query.isActive
        self.find_failure()
        return active or self.failure is not None

    def find_failure(self) -> None:
        """Of a query that ended without telling us."""
        if self.failure is None:
            self.failure = ending(self.query, may_end=self.once)


def furthest(*positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Of several accounts of where we stand, the latest for each partition."""
    return {at: max(each.get(at, 0) for each in positions) for at in {at for each in positions for at in each}}
