"""After any doubt: what of the target's tail is ours.

What lies between the ledger's end and the log's end was sent by us and not recorded, or is foreign. What is ours must be
a prefix of what was due, for each source partition; then sending goes on after it. A hole stops the flow, a duplicate is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mirrorlake.errors import TargetDiverged
from mirrorlake.kafka import Cluster
from mirrorlake.ledger import Position
from mirrorlake.produce import Errand, Outcome, Outgoing, Shaper, note, own_records
from mirrorlake.records import Run, SourcePartition, TopicPartition, runs_from_pairs, spans

# Reads bronze: a source partition from an offset (inclusive) to another (exclusive, None for all there is).
ReadBronze = Callable[[SourcePartition, int, "int | None"], Iterable[pa.RecordBatch]]


@dataclass
class Recovered:
    """What was found in one target partition's tail."""

    target: TopicPartition
    target_end: int
    outcomes: list[Outcome] = field(default_factory=list)
    duplicates: dict[SourcePartition, list[tuple[int, int]]] = field(default_factory=dict)
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
) -> Recovered:
    """Match the tail of one target partition with what was due from the source partitions that go there."""
    ledger_end = max(position.target_end for position in positions.values())
    if log.end < ledger_end:
        raise _truncated(errand, target, ledger_end, log)
    found = Recovered(target, log.end)
    if log.end == ledger_end:
        return found
    if not errand.provenance or log.start > ledger_end:
        return _recover_sole_writer(errand, cluster, found, positions, ledger_end, log, read_bronze)
    tail = list(cluster.read_range(target, ledger_end, log.end))
    ours = {source: list(own_records(errand, source, tail)) for source in positions}
    found.foreign = len(tail) - sum(len(pairs) for pairs in ours.values())
    for source, pairs in ours.items():
        _match(errand, found, source, positions[source], pairs, read_bronze)
    return found


def _match(
    errand: Errand,
    found: Recovered,
    source: SourcePartition,
    position: Position,
    pairs: list[tuple[int, int]],
    read_bronze: ReadBronze,
) -> None:
    fresh, repeated = split_repeated(pairs, position.next_offset)
    if repeated:
        found.duplicates[source] = spans(sorted(set(repeated)))
    if not fresh:
        return
    outcome = Outcome(source, target_end=found.target_end)
    due = due_offsets(errand, source, outcome, read_bronze(source, position.next_offset, fresh[-1][0] + 1))
    if due != [offset for offset, _ in fresh]:
        raise _hole(errand, source, found.target, due, [offset for offset, _ in fresh])
    outcome.runs = runs_from_pairs(fresh)
    found.outcomes.append(outcome)


def split_repeated(
    pairs: Iterable[tuple[int, int]], next_offset: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """The first landing of each due offset, and the source offsets that landed again."""
    fresh: list[tuple[int, int]] = []
    repeated: list[int] = []
    last = next_offset - 1
    for source_offset, target_offset in pairs:
        if source_offset <= last:
            repeated.append(source_offset)
        else:
            fresh.append((source_offset, target_offset))
            last = source_offset
    return fresh, repeated


def due_offsets(
    errand: Errand, source: SourcePartition, outcome: Outcome, batches: Iterable[pa.RecordBatch]
) -> list[int]:
    """The offsets that the sender would have sent; what it leaves out is noted in the outcome."""
    shaper = Shaper(errand, source)
    return [offset for batch in batches for offset in note(shaper.shape(batch), outcome)]


def _recover_sole_writer(
    errand: Errand,
    cluster: Cluster,
    found: Recovered,
    positions: Mapping[SourcePartition, Position],
    ledger_end: int,
    log: Log,
    read_bronze: ReadBronze,
) -> Recovered:
    """Without provenance, or with the tail gone: a sole writer without transactions landed exactly end - ledger end records."""
    if len(positions) != 1:
        raise _unknowable(errand, found.target, ledger_end, log)
    (source, position), landed = next(iter(positions.items())), log.end - ledger_end
    outcome = Outcome(source, target_end=log.end)
    rows = due_rows(errand, source, outcome, read_bronze(source, position.next_offset, None), landed)
    if len(rows) != landed or not _same_content(cluster, found.target, ledger_end, log, rows, errand.provenance):
        raise _unknowable(errand, found.target, ledger_end, log)
    outcome.runs = runs_from_pairs((row.offset, ledger_end + place) for place, row in enumerate(rows))
    _forget_after(outcome, outcome.runs[-1])
    found.outcomes.append(outcome)
    return found


def _forget_after(outcome: Outcome, last: Run) -> None:
    """What was left out after the last record that landed is still to be decided."""
    outcome.skipped = [item for item in outcome.skipped if item[0] < last.source_last]
    outcome.refused = [item for item in outcome.refused if item[0] < last.source_last]


@dataclass(frozen=True)
class DueRow:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def due_rows(
    errand: Errand, source: SourcePartition, outcome: Outcome, batches: Iterable[pa.RecordBatch], count: int
) -> list[DueRow]:
    shaper, rows = Shaper(errand, source), list[DueRow]()
    for batch in batches:
        outgoing = shaper.shape(batch)
        note(outgoing, outcome)
        rows += _rows(outgoing)
        if len(rows) >= count:
            break
    return rows[:count]


def _rows(outgoing: Outgoing) -> Iterator[DueRow]:
    columns = zip(outgoing.offsets, outgoing.timestamps_ms, outgoing.keys, outgoing.values, strict=True)
    for row, values in enumerate(columns):
        if outgoing.goes_out(row):
            yield DueRow(*values)


def _same_content(
    cluster: Cluster, target: TopicPartition, ledger_end: int, log: Log, rows: Sequence[DueRow], stamped: bool
) -> bool:
    """Do the records that can still be read equal those that were due at their places?"""
    for message in cluster.read_range(target, max(ledger_end, log.start), log.end):
        row = rows[message.offset() - ledger_end]
        if (message.key(), message.value()) != (row.key, row.value):
            return False
    return True


def _where(errand: Errand, target: TopicPartition) -> str:
    return f"flow {errand.flow}, target {errand.target}, {target}"


def _truncated(errand: Errand, target: TopicPartition, ledger_end: int, log: Log) -> TargetDiverged:
    return TargetDiverged(
        f"{_where(errand, target)}: the ledger says {ledger_end} records were delivered, the log ends at {log.end}",
        "the target lost records or its topic was made anew: `mirrorlake repair` sends from bronze what is missing",
    )


def _hole(
    errand: Errand, source: SourcePartition, target: TopicPartition, due: Sequence[int], seen: Sequence[int]
) -> TargetDiverged:
    missing = spans([offset for offset in due if offset not in set(seen)])
    said = ", ".join(f"{first}-{first + count - 1}" for first, count in missing[:5])
    return TargetDiverged(
        f"{_where(errand, target)}: of {source} the source offsets {said} are missing before later ones",
        "`mirrorlake audit` lists what the target misses; `mirrorlake repair` sends it",
    )


def _unknowable(errand: Errand, target: TopicPartition, ledger_end: int, log: Log) -> TargetDiverged:
    return TargetDiverged(
        f"{_where(errand, target)}: the records in [{ledger_end}, {log.end}) are not those that were due, "
        f"or can no longer be read (the log starts at {log.start})",
        "somebody else writes to this topic, or it expires records at once: turn provenance on, or use another topic",
    )


