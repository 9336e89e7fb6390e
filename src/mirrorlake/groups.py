"""Consumer groups on both sides: where each stands here, where that is there, and what is to be done about it.

`decide` is pure and gives a reason for everything. `look` reads, `commit` writes and reads back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from mirrorlake.config import Groups
from mirrorlake.consumers import Commit, Consumers
from mirrorlake.crossing import Crossing, Landing
from mirrorlake.records import GROUP_CHECKPOINTS, TopicPartition

WRITE, KEEP, NONE, WRITTEN, FAILED = "write", "keep", "none", "written", "failed"
_TAG = re.compile(r"mirrorlake/1 (\S+) (\d+)")


def is_chosen(settings: Groups, group: str) -> bool:
    """MM2's rule: a full match, and exclusions win."""
    included = any(re.fullmatch(pattern, group) for pattern in settings.include)
    return included and not any(re.fullmatch(pattern, group) for pattern in settings.exclude)


@dataclass(frozen=True)
class Tag:
    """What we write beside an offset: who committed it, and from which offset it was translated."""

    flow: str
    source_offset: int

    def __str__(self) -> str:
        return f"mirrorlake/1 {self.flow} {self.source_offset}"


def read_tag(metadata: str) -> Tag | None:
    found = _TAG.fullmatch(metadata)
    return Tag(found[1], int(found[2])) if found else None


@dataclass(frozen=True)
class Line:
    """One group and partition: here, there, and the decision."""

    group: str
    topic: str
    partition: int
    offset: int
    target_topic: str | None
    target_partition: int | None
    target_offset: int | None
    committed: int | None
    """Where the group stands there now."""
    ahead: int
    never: int
    decision: str
    reason: str

    @property
    def target(self) -> TopicPartition:
        return TopicPartition(str(self.target_topic), int(self.target_partition or 0))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# --- deciding: pure ---


@dataclass(frozen=True)
class There:
    """The other side of one group and partition."""

    state: str | None
    """The group's state; None where it is absent."""
    commit: Commit | None
    log_start: int
    log_end: int


def decide(offset: int, landing: Landing, there: There, rewind: bool) -> tuple[int | None, str, str]:
    """(offset there, decision, reason)."""
    place = max(landing.offset, there.log_start)
    if place > there.log_end:
        return None, NONE, f"the log there ends at {there.log_end}, before {place}: it lost records"
    if there.state not in (None, "EMPTY", "DEAD"):
        return place, KEEP, f"the group has members there ({there.state.lower()})"
    if there.commit is None:
        return place, WRITE, _because("not committed there yet", landing, there)
    if there.commit.offset == place:
        return place, KEEP, _because("stands there already", landing, there)
    if there.commit.offset < place:
        return place, WRITE, _because("forward", landing, there)
    return place, *_backwards(offset, there.commit, rewind)


def _backwards(offset: int, commit: Commit, rewind: bool) -> tuple[str, str]:
    tag = read_tag(commit.metadata)
    if tag is None:
        return KEEP, f"the group itself went on there to {commit.offset}"
    if offset >= tag.source_offset:
        return KEEP, f"stands at {commit.offset} there, which is later; a group never goes back by itself"
    went_back = f"the group went back from {tag.source_offset} to {offset}"
    return (WRITE, went_back) if rewind else (KEEP, f"{went_back}; groups.rewind is off")


def _because(reason: str, landing: Landing, there: There) -> str:
    notes = [
        f"{landing.ahead} offsets that it has read are not there yet" if landing.ahead else "",
        f"{landing.never} offsets before the relay's begin never went there" if landing.never else "",
        f"older records are gone there (log start {there.log_start})" if there.log_start > landing.offset else "",
    ]
    return "; ".join([reason, *filter(None, notes)])


# --- looking and doing ---


Offsets = dict[str, dict[TopicPartition, Commit]]


@dataclass(frozen=True)
class Positions:
    """What groups have committed here, and where the logs here end; without ends where the cluster is away."""

    offsets: Offsets
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OtherSide:
    """What the other cluster says of groups and logs."""

    states: Mapping[str, str]
    commits: Offsets
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    def of(self, group: str, at: TopicPartition) -> There:
        commit = self.commits.get(group, {}).get(at)
        return There(self.states.get(group), commit, self.starts[at], self.ends[at])


@dataclass(frozen=True)
class Passage:
    """Groups of one cluster on their way to another."""

    flow: str
    here: Consumers
    there: Consumers
    settings: Groups
    crossing: Callable[[], Crossing]
    """Asked for after the offsets were read, so that it knows at least what the groups have seen."""

    def look(self, only: Iterable[str] = ()) -> list[Line]:
        """Every chosen group's partitions that have a way. Changes nothing."""
        return self.compare(self.read(only))

    def read(self, only: Iterable[str] = ()) -> Positions:
        wanted = set(only)
        chosen = (g for g in self.here.groups() if (g in wanted if wanted else is_chosen(self.settings, g)))
        offsets = self.here.offsets(chosen)
        topics = self.here.cluster.describe({at.topic for held in offsets.values() for at in held})
        there = {at for held in offsets.values() for at in held if at.topic in topics}
        known = [at for at in there if at.partition < topics[at.topic].partitions]
        return Positions(offsets, self.here.cluster.log_ends(known))

    def compare(self, positions: Positions) -> list[Line]:
        if not positions.offsets:
            return []
        crossing = self.crossing()
        other = self._other_side(crossing, positions.offsets)
        return [
            line
            for group, held in positions.offsets.items()
            for line in self._compare_group(group, held, positions.ends, crossing, other)
        ]

    def _compare_group(
        self,
        group: str,
        held: Mapping[TopicPartition, Commit],
        ends: Mapping[TopicPartition, int],
        crossing: Crossing,
        other: OtherSide,
    ) -> Iterator[Line]:
        landed: list[tuple[TopicPartition, int, Landing]] = []
        for start, commit in sorted(held.items()):
            if why := _closed_because(start, commit.offset, ends, crossing):
                yield _closed(group, start, commit.offset, why)
            else:
                landed += ((start, commit.offset, landing) for landing in crossing.land(start, commit.offset))
        for start, offset, landing in _together(landed):
            yield _line(group, start, offset, landing, other.of(group, landing.to), self.settings.rewind)

    def _other_side(self, crossing: Crossing, offsets: Offsets) -> OtherSide:
        passing = {group for group, held in offsets.items() if crossing.ways.keys() & held.keys()}
        starts = {start for group in passing for start in offsets[group]}
        places = {way.to for start in starts for way in crossing.ways.get(start, ())}
        states = self.there.groups()
        commits = self.there.offsets(sorted(passing & states.keys()))
        return OtherSide(states, commits, self.there.cluster.log_starts(places), self.there.cluster.log_ends(places))

    def commit(self, lines: Sequence[Line]) -> list[Line]:
        """Write what was decided, read it back, and say what became of it."""
        due: dict[str, dict[TopicPartition, Commit]] = {}
        for line in lines:
            if line.decision == WRITE and line.target_offset is not None:
                due.setdefault(line.group, {})[line.target] = Commit(
                    line.target_offset, str(Tag(self.flow, line.offset))
                )
        faults = self.there.commit(due)
        found = self.there.offsets(due)
        return [_done(line, faults.get(line.group), found.get(line.group, {})) for line in lines]


def _together(
    landed: Sequence[tuple[TopicPartition, int, Landing]],
) -> Iterator[tuple[TopicPartition, int, Landing]]:
    """Where several partitions go to one, a group has one place there: the earliest."""
    earliest: dict[TopicPartition, int] = {}
    for _, _, landing in landed:
        earliest[landing.to] = min(landing.offset, earliest.get(landing.to, landing.offset))
    return ((start, offset, replace(landing, offset=earliest[landing.to])) for start, offset, landing in landed)


def _closed_because(
    start: TopicPartition, offset: int, ends: Mapping[TopicPartition, int], crossing: Crossing
) -> str | None:
    if start not in crossing.ways:
        return crossing.closed.get(start)
    if start in ends and offset > ends[start]:
        return f"the log here ends at {ends[start]}: the offset belongs to an earlier topic of this name"
    return None


def _line(group: str, start: TopicPartition, offset: int, landing: Landing, there: There, rewind: bool) -> Line:
    place, decision, reason = decide(offset, landing, there, rewind)
    committed = there.commit.offset if there.commit else None
    return Line(group, start.topic, start.partition, offset, *landing.to, place, committed,
                landing.ahead, landing.never, decision, reason)  # fmt: skip


def _closed(group: str, start: TopicPartition, offset: int, why: str) -> Line:
    return Line(group, start.topic, start.partition, offset, None, None, None, None, 0, 0, NONE, why)


def _done(line: Line, fault: str | None, found: Mapping[TopicPartition, Commit]) -> Line:
    if line.decision != WRITE:
        return line
    if fault is not None:
        return replace(line, decision=FAILED, reason=fault)
    held = found.get(line.target)
    if held is None or held.offset != line.target_offset:
        return replace(line, decision=FAILED, reason=f"read back {held.offset if held else 'nothing'}")
    return replace(line, decision=WRITTEN, committed=held.offset)


# --- the table ---


def checkpoint_rows(flow: str, target: str, lines: Iterable[Line], at: datetime) -> pa.Table:
    rows = [
        {
            "flow": flow,
            "target": target,
            "group_id": line.group,
            "source_topic": line.topic,
            "partition": line.partition,
            "source_offset": line.offset,
            "target_topic": line.target_topic,
            "target_offset": line.target_offset,
            "decision": f"{line.decision}: {line.reason}",
            "at": at,
        }
        for line in lines
    ]
    return pa.Table.from_pylist(rows, schema=GROUP_CHECKPOINTS)
