"""After any doubt: what of the target's tail is ours.

What lies between the ledger's end and the log's end was sent by us and not recorded, or is foreign. What is
ours must be a prefix of what was due, for each source partition; then sending goes on after it. A hole stops
the flow, a duplicate is listed, and a record that waits for a repair and is there was sent by one that did not live to
say so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME

from mirrorlake.errors import TargetDiverged
from mirrorlake.kafka import Cluster
from mirrorlake.ledger import RELAY, REPAIR, SKIP, Entry, Position, in_order
from mirrorlake.produce import Errand, Headers, Outcome, Outgoing, Shaper, note, own_records
from mirrorlake.provenance import HEADER, digest, find
from mirrorlake.records import Run, SourcePartition, TopicPartition, runs_from_pairs, spans

# Reads bronze: a source partition from an offset (inclusive) to another (exclusive, None for all there is).
ReadBronze = Callable[[SourcePartition, int, "int | None"], Iterable[pa.RecordBatch]]

# Source offsets that were set aside, and wait for a repair.
Waiting = Callable[[SourcePartition], Collection[int]]
DEAD_LETTER = "dead letter"
MISSING = "missing on the target"
COMPACTED = "removed by the target's compaction"

_CHUNK = 2000  # messages of the tail held at a time: others may have written a lot since


class MissingRecords(TargetDiverged):
    """Records that should stand before others of the target, and do not: `repair` can send them."""

    def __init__(self, what: str, next_step: str, source: SourcePartition, offsets: Sequence[int]) -> None:
        super().__init__(what, next_step)
        self.source = source
        self.offsets = offsets


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


@dataclass(frozen=True)
class Circumstances:
    """What else is known of a target partition."""

    shared: bool = False
    """Others may write there too, so counting alone proves nothing."""
    compacted: Callable[[], bool] = lambda: False
    """Does the target remove records from the middle of its logs?"""
    waiting: Waiting = lambda _source: ()
    mends: bool = False
    """What is missing is set aside for a repair, instead of stopping the flow."""


def recover(
    errand: Errand,
    cluster: Cluster,
    target: TopicPartition,
    positions: Mapping[SourcePartition, Position],
    log: Log,
    read_bronze: ReadBronze,
    circumstances: Circumstances | None = None,
) -> Recovered:
    """Match the tail of one target partition with what was due from the source partitions that go there.

    Of several incarnations of a topic the elder comes first in `positions`, as it does on the target.
    """
    ledger_end = max(position.target_end for position in positions.values())
    if log.end < ledger_end:
        raise _truncated(errand, target, ledger_end, log)
    found = Recovered(target, log.end)
    if log.end == ledger_end:
        return found
    doubt = _Doubt(errand, cluster, found, positions, ledger_end, log, read_bronze, circumstances or Circumstances())
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
    known: Circumstances

    @property
    def _landed(self) -> int:
        """How many offsets the log has grown by."""
        return self.log.end - self.ledger_end

    # --- by what each record says of itself ---

    def by_provenance(self) -> Recovered:
        ours, seen = self._own_pairs()
        stamped = sum(len(pairs) for pairs in ours.values())
        self.found.foreign = seen - stamped
        if seen and not stamped and self._by_content():
            return self.found
        faults = [fault for source, pairs in ours.items() if (fault := self._match(source, pairs))]
        if seen < self._landed and (faults or not self._reaches_end()):
            return self._thinned(faults, self._landed - seen)
        return self._mended(faults)

    def _thinned(self, faults: Sequence[TargetDiverged], removed: int) -> Recovered:
        """Offsets are missing too: the target compacts, maybe its last records. The places of the others may tell."""
        if not self.found.foreign and not self.known.shared and self._is_one_partition():
            return self.by_counting()
        compacted, missing = self.known.compacted(), [f for f in faults if isinstance(f, MissingRecords)]
        if compacted and len(missing) == len(faults) and sum(len(fault.offsets) for fault in missing) <= removed:
            self._explain(COMPACTED)
            faults = []
        if compacted and not self._reaches_end() and not self.known.mends:
            raise self._unknowable()
        return self._mended(faults)

    def _mended(self, faults: Sequence[TargetDiverged]) -> Recovered:
        for fault in faults:
            if not (self.known.mends and isinstance(fault, MissingRecords)):
                raise fault
        return self.found

    def _explain(self, why: str) -> None:
        for outcome in self.found.outcomes:
            outcome.skipped = [(first, n, why if said == MISSING else said) for first, n, said in outcome.skipped]

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
        """Take what is there; returns the fault where it is no prefix of what was due."""
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
        outcome.runs = runs_from_pairs(fresh)
        self._settle_left_out(outcome, landed)
        missing = sorted(due - landed)
        outcome.skipped += [(first, count, MISSING) for first, count in spans(missing)]
        self.found.outcomes.append(outcome)
        if landed - kept:
            return self._unknown(source, sorted(landed - kept))
        return self._missing(source, missing) if missing else None

    def _sort_repeated(self, source: SourcePartition, repeated: Iterable[tuple[int, int]]) -> None:
        """The first landing of a record that waits is its repair; all else is there twice."""
        waiting, mended, twice = set(self.known.waiting(source)), list[tuple[int, int]](), set[int]()
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

    # --- by content ---

    def _by_content(self) -> bool:
        """Our records of before provenance was turned on: those that equal what was due, as far as they do."""
        sources = self._going()
        if self.known.shared or len(sources) != 1:
            return False
        outcome = Outcome(sources[0], target_end=self.log.end)
        messages = self.cluster.read_range(self.found.target, self.ledger_end, self.log.end)
        pairs = [
            (row.offset, message.offset())
            for (_, row), message in takewhile(self._is_pair, zip(self._due([outcome]), messages, strict=False))
        ]
        self._take(outcome, pairs)
        self.found.foreign -= len(pairs)
        return bool(pairs)

    def _is_pair(self, pair: tuple[tuple[SourcePartition, DueRow], Any]) -> bool:
        (source, row), message = pair
        return self._is_same(source, message, row)

    # --- by counting ---

    def by_counting(self) -> Recovered:
        """Without provenance, or with the tail gone: a sole writer landed end - ledger end records."""
        if self.known.shared or not self._is_one_partition():
            raise self._unknowable()
        outcomes = [Outcome(source, target_end=self.log.end) for source in self._going()]
        rows = self._compared(islice(self._due(outcomes), self._landed))
        if len(rows) != self._landed:
            raise self._unknowable()
        self.found.outcomes = []
        for outcome in outcomes:
            self._take(outcome, [(offset, place) for source, offset, place in rows if source == outcome.source])
        return self.found

    def _going(self) -> list[SourcePartition]:
        """Source partitions that have something to send: elder incarnations are known for ever, and at their end."""
        due = ((source, self._bronze(source)) for source in self.positions)
        return [source for source, batches in due if any(batch.num_rows for batch in batches)]

    def _bronze(self, source: SourcePartition) -> Iterable[pa.RecordBatch]:
        return self.read_bronze(source, self.positions[source].next_offset, None)

    def _is_one_partition(self) -> bool:
        """Then incarnations are sent one after the other, and places tell which record is which."""
        return len({source.at for source in self._going()}) == 1

    def _due(self, outcomes: Iterable[Outcome]) -> Iterator[tuple[SourcePartition, DueRow]]:
        """What the sender would have sent, in order; it ends at a record that would have stopped it."""
        for outcome in outcomes:
            rows = due_rows(self.errand, outcome.source, outcome, self._bronze(outcome.source))
            yield from ((outcome.source, row) for row in rows)
            if outcome.refused and not self.errand.dead_letters:
                return

    def _take(self, outcome: Outcome, pairs: Sequence[tuple[int, int]]) -> None:
        if pairs:
            outcome.runs = runs_from_pairs(pairs)
            _forget_after(outcome, pairs[-1][0])
            self._settle_left_out(outcome, {offset for offset, _ in pairs})
            self.found.outcomes.append(outcome)

    def _compared(self, rows: Iterable[tuple[SourcePartition, DueRow]]) -> list[tuple[SourcePartition, int, int]]:
        """(Source, offset, place) of what was due, each compared with the record at its place where it can be read."""
        readable = iter(self.cluster.read_range(self.found.target, max(self.ledger_end, self.log.start), self.log.end))
        message, found = next(readable, None), list[tuple[SourcePartition, int, int]]()
        for place, (source, row) in enumerate(rows, self.ledger_end):
            if message is not None and message.offset() == place:
                if not self._is_same(source, message, row):
                    raise self._unknowable()
                message = next(readable, None)
            found.append((source, row.offset, place))
        return found

    def _is_same(self, source: SourcePartition, message: Any, row: DueRow) -> bool:
        """Provenance may have been on or off when it was sent: where our flow says something, that must be right."""
        headers: Headers = message.headers() or []
        if (message.key(), message.value(), _plain(headers)) != (row.key, row.value, _plain(row.headers)):
            return False
        came = find(headers)
        ours = came is not None and came.flow == digest(self.errand.flow)
        own = list(own_records(self.errand, source, [message]))
        return _is_same_time(message, row) and own == ([(row.offset, message.offset())] if ours else [])

    # --- faults ---

    def _missing(self, source: SourcePartition, offsets: Sequence[int]) -> MissingRecords:
        where, said = _where(self.errand, self.found.target), _said(offsets)
        what = f"{where}: of {source} the source offsets {said} are missing before later ones"
        next_step = f"`mirrorlake repair --target {self.errand.target}` sends them, after what is there"
        return MissingRecords(what, next_step, source, offsets)

    def _unknown(self, source: SourcePartition, offsets: Sequence[int]) -> TargetDiverged:
        where, said = _where(self.errand, self.found.target), _said(offsets)
        return TargetDiverged(
            f"{where}: of {source} the source offsets {said} are there, but not in bronze",
            "was bronze put back from an older copy, or emptied? `mirrorlake audit` compares all of it",
        )

    def _unknowable(self) -> TargetDiverged:
        return TargetDiverged(
            f"{_where(self.errand, self.found.target)}: the records in [{self.ledger_end}, {self.log.end}) "
            f"are not those that were due, or can no longer be read (the log starts at {self.log.start})",
            "somebody else writes to this topic, or it expires records at once: "
            "turn provenance on, or use another topic",
        )


def _plain(headers: Headers) -> Headers:
    return [header for header in headers if header[0] != HEADER]


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


def set_aside(entries: Iterable[Entry]) -> dict[int, str]:
    """Source offsets that wait for a repair, in order, and why. They do no more once a repair has sent them, or a relay
    to a topic made anew."""
    aside: dict[int, str] = {}
    for entry in in_order(entries):
        why = next((why for why in (DEAD_LETTER, MISSING) if entry.reason.startswith(why)), None)
        if entry.kind == SKIP and why:
            aside |= dict.fromkeys(range(entry.source_first, entry.source_last + 1), why)
        elif entry.kind in (REPAIR, RELAY):
            aside = {n: why for n, why in aside.items() if not entry.source_first <= n <= entry.source_last}
    return dict(sorted(aside.items()))


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


def _said(offsets: Sequence[int]) -> str:
    return ", ".join(f"{first}-{first + count - 1}" for first, count in spans(offsets)[:5])


def _where(errand: Errand, target: TopicPartition) -> str:
    return f"flow {errand.flow}, target {errand.target}, {target}"


def _truncated(errand: Errand, target: TopicPartition, ledger_end: int, log: Log) -> TargetDiverged:
    return TargetDiverged(
        f"{_where(errand, target)}: the ledger says the log reached {ledger_end}, it ends at {log.end}",
        "the target lost records or its topic was made anew: `mirrorlake repair` sends what is missing",
    )
