"""From one cluster to another: where a reader of a partition here goes on there.

A flow is a way in both directions: along it, from a record to its copy; against it, from a copy to its original. Two
clusters that relay to each other under the same names have both ways between one pair of topics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mirrorlake.kafka import TopicInfo
from mirrorlake.offsets import OffsetMap, OffsetMaps, Stairs
from mirrorlake.records import Run, SourcePartition, TopicPartition, trunk


@dataclass(frozen=True)
class Way:
    """How one partition here is found there."""

    start: TopicPartition
    to: TopicPartition
    stairs: Stairs
    begin: int
    """Offsets here before this one were never there."""
    complete: int | None
    """Everything before this offset here is there; None where all that is here came from there."""
    copies: Sequence[Run] = ()
    """Along the flow: which records there are copies, as runs from here to there."""


@dataclass(frozen=True)
class Landing:
    """Where a reader goes on there, and how that differs from the very next record."""

    to: TopicPartition
    offset: int
    ahead: int = 0
    """Offsets that it has passed here and whose records are not there yet: it would read them again."""
    never: int = 0
    """Offsets that it has not passed here and whose records never went there."""


@dataclass
class Crossing:
    """All ways from one cluster to another."""

    ways: dict[TopicPartition, list[Way]] = field(default_factory=dict)
    closed: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions that should have a way and have none, and why."""

    def add(self, ways: Iterable[Way], closed: Mapping[TopicPartition, str]) -> None:
        for way in ways:
            self.ways.setdefault(way.start, []).append(way)
        self.closed.update(closed)

    def only(self, takes: Callable[[str], bool]) -> Crossing:
        """What begins in topics here that are taken."""
        ways = {start: ways for start, ways in self.ways.items() if takes(start.topic)}
        return Crossing(ways, {start: why for start, why in self.closed.items() if takes(start.topic)})

    def destinations(self) -> set[TopicPartition]:
        return {way.to for ways in self.ways.values() for way in ways}

    def land(self, start: TopicPartition, offset: int) -> list[Landing]:
        by_place: dict[TopicPartition, list[Way]] = {}
        for way in self.ways.get(start, ()):
            by_place.setdefault(way.to, []).append(way)
        return [_landing(to, ways, offset) for to, ways in by_place.items()]


def _landing(to: TopicPartition, ways: Sequence[Way], offset: int) -> Landing:
    """With two ways the earlier place counts: nothing that either of them still brings may be skipped.

    A flow that has brought everything says nothing then: what others wrote after it is on the other way.
    """
    speaking = [way for way in ways if way.complete is None or way.stairs(offset) != way.stairs.end]
    places = [_unread(way, offset, ways) for way in speaking or ways]
    ahead = [max(0, offset - way.complete) for way in ways if way.complete is not None]
    never = [max(0, way.begin - offset) for way in ways]
    return Landing(to, min(places), max(ahead, default=0), min(never))


def _unread(way: Way, offset: int, ways: Sequence[Way]) -> int:
    """Against a flow, its end is the first record that it has not looked at; copies of what was read here are known."""
    place = way.stairs(offset)
    if way.complete is not None or place != way.stairs.end:
        return place
    copies = (run for other in ways for run in other.copies)
    for run in sorted(copies, key=lambda run: run.target_first):
        read = min(run.count, offset - run.source_first)
        if read > 0 and run.target_first <= place < run.target_first + read:
            place = run.target_first + read
    return place


# --- along and against one flow ---


@dataclass(frozen=True)
class Link:
    """What is known of one flow and one of its targets."""

    names: Mapping[str, str]
    """Source topic -> target topic."""
    sources: Mapping[str, TopicInfo]
    targets: Mapping[str, TopicInfo]
    maps: OffsetMaps
    complete: Mapping[SourcePartition, int]
    """Source partition, by whichever of its branches -> everything before this offset is on the target."""
    flow: str = ""

    def partitions(self) -> Iterator[SourcePartition]:
        for topic in self.names:
            if topic in self.sources:
                info = self.sources[topic]
                yield from (SourcePartition(topic, info.id, number) for number in range(info.partitions))

    def known(self, source: SourcePartition) -> OffsetMap | str:
        """The map of today's topics on both sides, or why there is none."""
        name, found = self.names[source.topic], self.maps.of(source)
        if name not in self.targets:
            return f"there is no topic {name}"
        found = found or self._empty(source)
        if found is None or found.target.topic != name:
            return "nothing of it was relayed yet"
        if found.target_topic_id and self.targets[name].id and found.target_topic_id != self.targets[name].id:
            return f"{name} was made anew since it was filled: `mirrorlake repair` fills it again"
        return found

    @cached_property
    def _complete(self) -> dict[SourcePartition, int]:
        return {source._replace(topic_id=trunk(source.topic_id)): end for source, end in self.complete.items()}

    def complete_to(self, source: SourcePartition) -> int | None:
        return self._complete.get(source)

    def _empty(self, source: SourcePartition) -> OffsetMap | None:
        """Of a partition without records the ledger says nothing, and all of it is there: its copy begins at 0.

        Not where others were copied to the same place: an earlier topic of this name, or a partition that shares it.
        """
        there, position = self.targets[self.names[source.topic]], self.complete_to(source)
        place = TopicPartition(there.name, source.partition)
        if position is None or place in self._filled or place.partition >= there.partitions:
            return None
        return OffsetMap(place, there.id, (), position, position, 0)

    @cached_property
    def _filled(self) -> set[TopicPartition]:
        return self.maps.filled()


def along(link: Link) -> tuple[list[Way], dict[TopicPartition, str]]:
    ways, closed = [], {}
    for source in link.partitions():
        start, found = source.at, link.known(source)
        if isinstance(found, str):
            closed[start] = found
        else:
            complete = max(found.source_end, link.complete_to(source) or 0)
            ways.append(Way(start, found.target, found.to_target, found.source_begin, complete, found.runs))
    return ways, closed


def against(link: Link) -> list[Way]:
    known = ((source, link.known(source)) for source in link.partitions())
    return [
        Way(found.target, source.at, _homewards(found, link, source), 0, None)
        for source, found in known
        if isinstance(found, OffsetMap)
    ]


def _homewards(found: OffsetMap, link: Link, source: SourcePartition) -> Stairs:
    """Who has read all copies goes on after everything that was copied or left out, markers at the end included."""
    return Stairs(found.to_source.steps, max(found.source_end, link.complete_to(source) or 0))


def crossing(links: Iterable[tuple[str, str, Link]], here: str, there: str) -> Crossing:
    """All ways from one cluster to the other, by (source, target, link) of any flows."""
    found = Crossing()
    for source, target, link in links:
        if (source, target) == (here, there):
            found.add(*along(link))
        elif (target, source) == (here, there):
            found.add(against(link), {})
    return found


def share(
    links: Iterable[tuple[str, str, Link]], flow: str, ends: tuple[str, str], back: bool, first: bool
) -> Callable[[str], bool]:
    """Of several flows from one cluster to another (`ends`) each moves the groups that read its own topics.

    The first of them also moves what is nobody's own, such as copies of what came from there. Two that move the same
    group and partition would do the work twice, and the slower one would set it back.
    """
    topics: dict[str, set[str]] = defaultdict(set)
    for source, target, link in links:
        if (source, target) == ends:
            topics[link.flow].update(link.names.values() if back else link.names)
    own, theirs = topics.pop(flow, set()), set().union(*topics.values())
    return lambda topic: topic in own or (first and topic not in theirs)
