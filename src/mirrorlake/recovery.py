"""After any doubt: what of the target's tail is ours.

What lies between the ledger's end and the log's end was sent by us and not recorded, or is foreign. What is
ours must be a prefix of what was due, for each source partition; then sending goes on after it. A hole stops
the flow, a duplicate is listed, and a dead letter that is there was sent by a repair that did not live to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME

from mirrorlake.errors import TargetDiverged
from mirrorlake.kafka import Cluster
from mirrorlake.ledger import RELAY, REPAIR, SKIP, Entry, Position, in_order
from mirrorlake.produce import Errand, Headers, Outcome, Outgoing, Shaper, note, own_records
from mirrorlake.records import Run, SourcePartition, TopicPartition, runs_from_pairs, spans

# Reads bronze: a source partition from an offset (inclusive) to another (exclusive, None for all there is).
ReadBronze = Callable[[SourcePartition, int, "int | None"], Iterable[pa.RecordBatch]]

# Source offsets that were set aside as dead letters, and wait for a repair.
Waiting = Callable[[SourcePartition], Collection[int]]
DEAD_LETTER = "dead letter"

_CHUNK = 2000  # messages of the tail held at a time: others may have written a lot since


@dataclass
class Recovered:
    """What was found in one target partition's tail."""

    target: TopicPartition
    target_end: int
    outcomes: list[Outcome] = field(default_factory=list)
    duplicates: dict[SourcePartition, list[tuple[int, int]]] = field(default_factory=dict)
    repaired: dict[SourcePartition, list[Run]] = field(default_factory=dict)
    foreign: int = 0


@dataclass(frozen=True)
class Log:
    start: int
    end: int


def recover(
    errand: Errand,
    cluster: Cluster,
    target: TopicPartition,
    positions: Mapping[SourcePartition, Position],
    log: Log,
    read_bronze: ReadBronze,
    shared: bool = False,
    waiting: Waiting = lambda _source: (),
) -> Recovered:
    """Match the tail of one target partition with what was due from the source partitions that go there.

    `shared`: others may write there too, so counting alone proves nothing.
    """
    ledger_end = max(position.target_end for position in positions.values())
    if log.end < ledger_end:
        raise _truncated(errand, target, ledger_end, log)
    found = Recovered(target, log.end)
    if log.end == ledger_end:
        return found
    doubt = _Doubt(errand, cluster, found, positions, ledger_end, log, read_bronze, shared, waiting)
    if not errand.provenance or log.start > ledger_end:
        return doubt.by_counting()
    return doubt.by_provenance()


@dataclass
class _Doubt:
    """One target partition's tail, while it is looked at."""

    errand: Errand
    cluster: Cluster
    found: Recovered
    positions: Mapping[SourcePartition, Position]
    ledger_end: int
    log: Log
    read_bronze: ReadBronze
    shared: bool
    waiting: Waiting

    # --- by what each record says of itself ---

    def by_provenance(self) -> Recovered:
        ours, seen = self._own_pairs()
        self.found.foreign = seen - sum(len(pairs) for pairs in ours.values())
        thinned = seen < self.log.end - self.ledger_end
        countable = thinned and not self.found.foreign and not self.shared and len(ours) == 1
        for source, pairs in ours.items():
            hole = self._match(source, pairs)
            if countable and (hole or not self._reaches_end()):
                # Offsets are missing too: the target compacts, maybe its last records. The places of the others tell.
                return self.by_counting()
            if hole:
                raise hole
        return self.found

    def _reaches_end(self) -> bool:
        """Is the log's last record one that was due? Then nothing of ours came after it that is gone now."""
        due = (outcome.runs for outcome in self.found.outcomes)
        return any(run.target_end == self.log.end for runs in (*due, *self.found.repaired.values()) for run in runs)

    def _own_pairs(self) -> tuple[dict[SourcePartition, list[tuple[int, int]]], int]:
        """(source offset, target offset) of our records, by source partition, and how many records in all."""
        ours: dict[SourcePartition, list[tuple[int, int]]] = {source: [] for source in self.positions}
        seen = 0
        messages = iter(self.cluster.read_range(self.found.target, self.ledger_end, self.log.end))
        while chunk := list(islice(messages, _CHUNK)):
            seen += len(chunk)
            for source, pairs in ours.items():
                pairs += own_records(self.errand, source, chunk)
        return ours, seen

    def _match(self, source: SourcePartition, pairs: list[tuple[int, int]]) -> TargetDiverged | None:
        """Take what is a prefix of what was due; returns the fault where it is none."""
        position = self.positions[source]
        fresh, repeated = split_repeated(pairs, position.next_offset)
        if repeated:
            self._sort_repeated(source, repeated)
        if not fresh:
            return None
        landed = {offset for offset, _ in fresh}
        outcome = Outcome(source, target_end=self.found.target_end)
        batches = self.read_bronze(source, position.next_offset, fresh[-1][0] + 1)
        due = set(due_offsets(self.errand, source, outcome, batches))
        kept = due | {first for first, _, _ in (*outcome.skipped, *outcome.refused)}
        if due - landed or landed - kept:
            return _hole(self.errand, source, self.found.target, sorted(due - landed), sorted(landed - kept))
        outcome.runs = runs_from_pairs(fresh)
        self._settle_left_out(outcome, landed)
        self.found.outcomes.append(outcome)
        return None

    def _sort_repeated(self, source: SourcePartition, repeated: Iterable[tuple[int, int]]) -> None:
        """The first landing of a dead letter that waits is its repair; all else is there twice."""
        waiting, mended, twice = set(self.waiting(source)), list[tuple[int, int]](), set[int]()
        for offset, place in repeated:
            if offset in waiting:
                waiting.remove(offset)
                mended.append((offset, place))
            else:
                twice.add(offset)
        if mended:
            self.found.repaired[source] = runs_from_pairs(mended)
        if twice:
            self.found.duplicates[source] = spans(sorted(twice))

    def _settle_left_out(self, outcome: Outcome, landed: set[int]) -> None:
        """What landed was not left out, whatever the settings say today; what was passed over stays so."""
        outcome.skipped = [item for item in outcome.skipped if item[0] not in landed]
        outcome.refused = [item for item in outcome.refused if item[0] not in landed]
        if not self.errand.dead_letters:
            outcome.skipped += [(offset, 1, reason) for offset, _, reason in outcome.refused]
            outcome.refused = []

    # --- by counting ---

    def by_counting(self) -> Recovered:
        """Without provenance, or with the tail gone: a sole writer landed end - ledger end records."""
        if self.shared or len(self.positions) != 1:
            raise self._unknowable()
        (source, position), landed = next(iter(self.positions.items())), self.log.end - self.ledger_end
        outcome = Outcome(source, target_end=self.log.end)
        rows = due_rows(self.errand, source, outcome, self.read_bronze(source, position.next_offset, None))
        offsets = self._compared(source, islice(rows, landed))
        if len(offsets) != landed:
            raise self._unknowable()
        outcome.runs = runs_from_pairs(zip(offsets, range(self.ledger_end, self.log.end), strict=True))
        _forget_after(outcome, offsets[-1])
        self._settle_left_out(outcome, set(offsets))
        self.found.outcomes = [outcome]
        return self.found

    def _compared(self, source: SourcePartition, rows: Iterable[DueRow]) -> list[int]:
        """The offsets due, each compared with the record at its place where that can still be read."""
        readable = iter(self.cluster.read_range(self.found.target, max(self.ledger_end, self.log.start), self.log.end))
        message, offsets = next(readable, None), list[int]()
        for place, row in enumerate(rows, self.ledger_end):
            if message is not None and message.offset() == place:
                if not self._is_same(source, message, row):
                    raise self._unknowable()
                message = next(readable, None)
            offsets.append(row.offset)
        return offsets

    def _is_same(self, source: SourcePartition, message: Any, row: DueRow) -> bool:
        if (message.key(), message.value()) != (row.key, row.value):
            return False
        if self.errand.provenance:
            return list(own_records(self.errand, source, [message])) == [(row.offset, message.offset())]
        return [*(message.headers() or ())] == row.headers and _is_same_time(message, row)

    def _unknowable(self) -> TargetDiverged:
        return TargetDiverged(
            f"{_where(self.errand, self.found.target)}: the records in [{self.ledger_end}, {self.log.end}) "
            f"are not those that were due, or can no longer be read (the log starts at {self.log.start})",
            "somebody else writes to this topic, or it expires records at once: "
            "turn provenance on, or use another topic",
        )


def _is_same_time(message: Any, row: DueRow) -> bool:
    """Equal records are told apart by their time, where the target keeps it."""
    kind, at_ms = message.timestamp()
    kept = kind == TIMESTAMP_CREATE_TIME and row.timestamp_ms > 0
    return bool(at_ms == row.timestamp_ms) if kept else True


def split_repeated(
    pairs: Iterable[tuple[int, int]], next_offset: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The first landing of each due offset, and the landings of those that were not due any more."""
    fresh: list[tuple[int, int]] = []
    repeated: list[tuple[int, int]] = []
    last = next_offset - 1
    for source_offset, target_offset in pairs:
        if source_offset <= last:
            repeated.append((source_offset, target_offset))
        else:
            fresh.append((source_offset, target_offset))
            last = source_offset
    return fresh, repeated


def open_dead_letters(entries: Iterable[Entry]) -> list[int]:
    """Source offsets that were set aside and not sent since: by a repair, or with all else to a topic made anew."""
    aside = set[int]()
    for entry in in_order(entries):
        if entry.kind == SKIP and entry.reason.startswith(DEAD_LETTER):
            aside.update(range(entry.source_first, entry.source_last + 1))
        elif entry.kind in (REPAIR, RELAY):
            aside = {offset for offset in aside if not entry.source_first <= offset <= entry.source_last}
    return sorted(aside)


def due_offsets(
    errand: Errand, source: SourcePartition, outcome: Outcome, batches: Iterable[pa.RecordBatch]
) -> list[int]:
    """The offsets that the sender would have sent; what it leaves out is noted in the outcome."""
    shaper = Shaper(errand, source)
    return [offset for batch in batches for offset in note(shaper.shape(batch), outcome)]


@dataclass(frozen=True)
class DueRow:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def due_rows(
    errand: Errand, source: SourcePartition, outcome: Outcome, batches: Iterable[pa.RecordBatch]
) -> Iterator[DueRow]:
    """What the sender would have sent, in order; it ends at a record that would have stopped it."""
    shaper = Shaper(errand, source)
    for batch in batches:
        outgoing = shaper.shape(batch)
        note(outgoing, outcome)
        yield from _rows(outgoing)
        if outcome.refused and not errand.dead_letters:
            return


def _rows(out: Outgoing) -> Iterator[DueRow]:
    columns = zip(out.offsets, out.timestamps_ms, out.keys, out.values, out.headers, strict=True)
    for row, values in enumerate(columns):
        if out.goes_out(row):
            yield DueRow(*values)


def _forget_after(outcome: Outcome, last: int) -> None:
    """What comes after the last record that landed is still to be decided."""
    outcome.skipped = [item for item in outcome.skipped if item[0] < last]
    outcome.refused = [item for item in outcome.refused if item[0] < last]
    outcome.timeless = [(first, min(count, last - first + 1)) for first, count in outcome.timeless if first <= last]


def _where(errand: Errand, target: TopicPartition) -> str:
    return f"flow {errand.flow}, target {errand.target}, {target}"


def _truncated(errand: Errand, target: TopicPartition, ledger_end: int, log: Log) -> TargetDiverged:
    return TargetDiverged(
        f"{_where(errand, target)}: the ledger says the log reached {ledger_end}, it ends at {log.end}",
        "the target lost records or its topic was made anew: `mirrorlake repair` sends what is missing",
    )


def _hole(
    errand: Errand,
    source: SourcePartition,
    target: TopicPartition,
    missing: Sequence[int],
    unknown: Sequence[int],
) -> TargetDiverged:
    offsets, fault = (missing, "missing before later ones") if missing else (unknown, "there, but not in bronze")
    said = ", ".join(f"{first}-{first + count - 1}" for first, count in spans(offsets)[:5])
    return TargetDiverged(
        f"{_where(errand, target)}: of {source} the source offsets {said} are {fault}",
        "`mirrorlake audit` lists what the target misses; `mirrorlake repair` sends it",
    )
