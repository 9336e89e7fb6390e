"""What goes out next: a fair share of each partition, one writer for each target partition, placed on tasks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirrorlake.ledger import Position
from mirrorlake.produce import Slice
from mirrorlake.records import SourcePartition, TopicPartition
from mirrorlake.tables import Segment


@dataclass(frozen=True)
class Due:
    """What one source partition has to send, and where to."""

    source: SourcePartition
    position: Position
    shared: bool
    segments: tuple[Segment, ...]
    carefully: bool = False


def due_segments(
    segments: Iterable[Segment], positions: Mapping[SourcePartition, Position]
) -> dict[SourcePartition, list[Segment]]:
    """The segments that hold something after the position, by source partition, in offset order."""
    found: dict[SourcePartition, list[Segment]] = defaultdict(list)
    for segment in segments:
        position = positions.get(segment.source)
        if position is not None and segment.last_offset >= position.next_offset:
            found[segment.source].append(segment)
    return {source: sorted(held, key=lambda s: s.first_offset) for source, held in sorted(found.items())}


def one_for_each_target(
    waiting: Iterable[tuple[SourcePartition, TopicPartition]],
    paused: Callable[[str], bool],
    served: Mapping[SourcePartition, int],
) -> dict[TopicPartition, SourcePartition]:
    """Of those that share a target partition: incarnations of a topic in their order, partitions by turns."""
    elders: dict[tuple[TopicPartition, str, int], SourcePartition] = {}
    for source, target in waiting:
        if not paused(source.topic):
            elders.setdefault((target, source.topic, source.partition), source)
    chosen: dict[TopicPartition, SourcePartition] = {}
    for (target, _, _), source in elders.items():
        if target not in chosen or served.get(source, 0) < served.get(chosen[target], 0):
            chosen[target] = source
    return chosen


def plan_round(due: Sequence[Due], budget_bytes: int, slots: int, strictly: bool = False) -> list[list[Slice]]:
    """Slices for each task: a fair share of the budget for each partition, large ones placed first.

    Strictly, a file that holds more than its partition's share is read again in the next round.
    """
    if not due:
        return []
    share_bytes = max(1, budget_bytes // len(due))
    slices = [_leading_slice(item, share_bytes, strictly) for item in due]
    tasks: list[list[Slice]] = [[] for _ in range(min(slots, len(slices)))]
    loads = [0] * len(tasks)
    for slice_ in sorted(slices, key=_bytes, reverse=True):
        lightest = loads.index(min(loads))
        tasks[lightest].append(slice_)
        loads[lightest] += _bytes(slice_)
    return tasks


def _bytes(slice_: Slice) -> int:
    return sum(segment.bytes for segment in slice_.segments)


def _leading_slice(due: Due, share_bytes: int, strictly: bool = False) -> Slice:
    """The first segments of a partition up to its share, at least one; what overlaps the rest is cut at its begin."""
    taken, total = 0, 0
    for segment in due.segments:
        if taken and total + segment.bytes > share_bytes:
            break
        taken, total = taken + 1, total + segment.bytes
    until = max(segment.last_offset for segment in due.segments[:taken]) + 1
    until = min([until, *(segment.first_offset for segment in due.segments[taken:])])
    if until <= due.position.next_offset:
        # The rest begins before what was taken ends: everything that overlaps must be read together.
        taken, until = len(due.segments), max(segment.last_offset for segment in due.segments) + 1
    if strictly or not due.segments[0].path:
        # Where there is no file, none would be opened again: it may be cut at any offset.
        until = min(until, due.position.next_offset + due.segments[0].offsets_within(share_bytes))
    return Slice(
        due.source,
        due.position.next_offset,
        until,
        due.position.target_partition,
        due.position.target_end,
        due.shared,
        due.segments[:taken],
        due.carefully,
    )
