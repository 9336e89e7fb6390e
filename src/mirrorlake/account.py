"""What one target has of one bronze table, as the ledger says and as we go on: positions, log ends, entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from mirrorlake.errors import TargetDiverged
from mirrorlake.kafka import Cluster
from mirrorlake.ledger import BASELINE, END, RELAY, REPAIR, SKIP, Book, Entry, LedgerWriter, Position, relay_entries
from mirrorlake.produce import Errand, Outcome
from mirrorlake.readers import Bronze
from mirrorlake.records import Run, SourcePartition, TopicPartition, spans
from mirrorlake.recovery import DEAD_LETTER, MissingRecords
from mirrorlake.rounds import due_segments
from mirrorlake.tables import Segment


@dataclass
class Outbox:
    """Where things that people must hear of are written."""

    incident: Callable[..., None]
    dead_letters: Callable[[Errand, SourcePartition, str, Sequence[tuple[int, int, str]]], None]
    listed: Callable[[str], dict[SourcePartition, int]] = lambda _target: {}
    """Target -> the offset after the last dead letter of each source partition."""


@dataclass
class Account:
    """One target of one bronze table. What is entered here goes to the ledger."""

    errand: Errand
    bronze: Bronze
    cluster: Cluster
    ledger: LedgerWriter
    book: Book
    outbox: Outbox
    limit_of: Callable[[str], int]
    """Target topic -> the largest record that it takes, in bytes."""
    existing_records: str = "stop"
    halted: dict[TopicPartition, TargetDiverged] = field(default_factory=dict)
    """Target partitions that do not hold what the ledger says. Nothing goes there until a repair; the others go on."""
    shared: set[TopicPartition] = field(default_factory=set)
    """Target partitions to which others write too."""
    touched: set[SourcePartition] = field(default_factory=set)
    """Partitions that the ledger knows of from this epoch: a new beginning needs the next one."""
    delivered: int = 0
    """Records since we began."""
    _came_at_ms: dict[SourcePartition, int] = field(default_factory=dict)
    """When bronze got them, of partitions that were due together with another incarnation of theirs."""

    # --- looking ---

    def going(self) -> dict[SourcePartition, Position]:
        """Those that are not halted."""
        held = list(self.book.positions.items())  # asked by others, too, while a round adds to them
        return {source: position for source, position in held if position.target_partition not in self.halted}

    def known_ends(self) -> dict[TopicPartition, int]:
        """Where each target partition ends, as far as anybody who writes to it knows."""
        ends: dict[TopicPartition, int] = {}
        for position in self.book.positions.values():
            target = position.target_partition
            ends[target] = max(ends.get(target, 0), position.target_end)
        return ends

    def may_be_shared(self, target: TopicPartition) -> bool:
        return target in self.shared or self.existing_records != "stop"

    def due(self) -> dict[SourcePartition, list[Segment]]:
        return due_segments(self.bronze.segments(), self.book.positions)

    def behind(self) -> int:
        """How many records of bronze are still to be sent, as far as was looked."""
        return sum(
            min(segment.records, segment.last_offset + 1 - self.book.positions[source].next_offset)
            for source, segments in self.due().items()
            for segment in segments
        )

    def elders_first(self, held: Mapping[SourcePartition, Sequence[Segment]]) -> list[SourcePartition]:
        """Incarnations of a topic as bronze got them: neither their ids nor their offsets say which is the elder."""
        incarnations = Counter((source.topic, source.partition) for source in held)
        for source, segments in held.items():
            if incarnations[source.topic, source.partition] > 1 and source not in self._came_at_ms:
                self._came_at_ms[source] = self.bronze.came_at_ms(segments[0])
        begun = (source for source in self.book.positions if source in held)
        return sorted(begun, key=lambda source: self._came_at_ms.get(source, 0))

    def read_bronze(self, source: SourcePartition, first: int, until: int | None) -> Iterable[pa.RecordBatch]:
        return self.bronze.read(source, first, self.bronze_end(source) if until is None else until)

    def bronze_end(self, source: SourcePartition) -> int:
        return max(
            (segment.last_offset + 1 for segment in self.bronze.segments() if segment.source == source), default=0
        )

    def learn_limits(self) -> None:
        """Each target topic has its own limit; no batch may exceed the smallest, since librdkafka never splits one."""
        topics = {source.topic: p.target_partition.topic for source, p in self.book.positions.items()}
        new = {source: self.limit_of(topic) for source, topic in topics.items() if source not in self.errand.limits}
        if new:
            limits = {**self.errand.limits, **new}
            batch_bytes = min(int(self.errand.producer_config.get("batch.size", "1000000")), *limits.values())
            config = {**self.errand.producer_config, "batch.size": str(batch_bytes)}
            self.errand = replace(self.errand, limits=limits, producer_config=config)

    # --- entering ---

    def write(self, entries: Sequence[Entry]) -> None:
        """In our book, too, once the ledger has them."""
        self.ledger.add(entries)
        self.ledger.flush()
        for entry in entries:
            self.book.apply(entry)
            self.touched.add(entry.source)

    def enter(self, outcome: Outcome, until: int | None = None) -> list[Entry]:
        """What the ledger is to hear of an outcome, entered in our own book."""
        position = self.book.positions[outcome.source]
        self._report(outcome, position)
        entries = self._entries(outcome, position)
        self.touched.add(outcome.source)
        for entry in entries:
            self.book.apply(entry)
        if until is not None and (self.errand.dead_letters or not outcome.refused):
            position.next_offset = max(position.next_offset, until)
        position.target_end = max(position.target_end, outcome.target_end)
        self.delivered += sum(run.count for run in outcome.runs)
        return entries

    def _report(self, outcome: Outcome, position: Position) -> None:
        """Before the ledger is told: what a kill makes us list twice does less harm than what is never listed."""
        if outcome.refused and self.errand.dead_letters:
            self.outbox.dead_letters(self.errand, outcome.source, position.target_partition.topic, outcome.refused)
        for first, count in outcome.timeless:
            self.outbox.incident(
                "timestamp_not_kept", self.errand.target, outcome.source, first, first + count - 1,
                "timestamp 0 or less: librdkafka sends the time of sending instead",
            )  # fmt: skip

    def _entries(self, outcome: Outcome, position: Position) -> list[Entry]:
        template = self._template(RELAY, outcome.source, position, outcome.target_end)
        left_out = [*outcome.skipped]
        if self.errand.dead_letters:
            left_out += [(offset, 1, f"{DEAD_LETTER}: {reason}") for offset, _, reason in outcome.refused]
        skips = [
            replace(template, kind=SKIP, source_first=first, source_last=first + count - 1, count=count, reason=why)
            for first, count, why in joined(left_out)
        ]
        return relay_entries(template, outcome.runs, outcome.target_end) + skips

    def repairs(self, source: SourcePartition, runs: Sequence[Run], target_end: int) -> list[Entry]:
        """What a repair sent that did not live to say so."""
        template = self._template(REPAIR, source, self.book.positions[source], target_end)
        return relay_entries(replace(template, reason=DEAD_LETTER), runs, target_end)

    def baseline(
        self, source: SourcePartition, target: TopicPartition, topic_id: str, first: int, target_end: int
    ) -> Entry:
        """Where we begin."""
        return self._template(BASELINE, source, Position(first, target, topic_id, target_end), target_end)

    def end(self, source: SourcePartition, position: Position) -> Entry:
        """Nothing more goes there."""
        template = self._template(END, source, position, position.target_end)
        return replace(template, reason="the source topic was deleted")

    def _template(self, kind: str, source: SourcePartition, position: Position, target_end: int) -> Entry:
        """A row of nothing, which stands at the position."""
        return Entry(
            self.errand.flow, self.errand.target, kind, self.errand.epoch, source, position.next_offset,
            position.next_offset - 1, position.target_partition, position.target_topic_id, None, 0, target_end,
        )  # fmt: skip

    def halt(self, held: Mapping[SourcePartition, Position], target: TopicPartition, fault: TargetDiverged) -> None:
        """With an incident: of records that are missing their ranges, otherwise from where on nothing goes out."""
        ranges = [(source, position.next_offset, 1) for source, position in held.items()]
        if isinstance(fault, MissingRecords):
            ranges = [(fault.source, first, count) for first, count in spans(fault.offsets)]
        for source, first, count in ranges:
            self.outbox.incident("target_diverged", self.errand.target, source, first, first + count - 1, fault.what)
        self.halted[target] = fault


def joined(left_out: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Neighbouring records left out for the same reason as one item."""
    items: list[tuple[int, int, str]] = []
    for first, count, reason in sorted(left_out):
        if items and items[-1][2] == reason and items[-1][0] + items[-1][1] == first:
            items[-1] = (items[-1][0], items[-1][1] + count, reason)
        else:
            items.append((first, count, reason))
    return items
