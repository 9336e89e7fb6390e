"""Offsets of the same records on two clusters, exactly, in both directions.

The ledger holds where every record went. A reader that stands at an offset on one side goes on, on the other, at the
first place from which it still meets every record that it has not read. Where records keep their order, and a
relay keeps it, that place is the very next record: nothing is skipped and nothing is read again.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

from mirrorlake.ledger import BASELINE, END, REPLAY, SKIP, Entry, in_order
from mirrorlake.records import Run, SourcePartition, TopicPartition, age, is_same_log


def staircase(runs: Iterable[Run]) -> list[Run]:
    """Of runs that do not overlap on the target, the parts that raise the highest source offset seen so far.

    What a repair sent late, after younger records, falls out: who looks for it finds its younger neighbour first.
    """
    steps: list[Run] = []
    highest = -1
    for run in sorted(runs, key=lambda run: run.target_first):
        known = min(run.count, max(0, highest + 1 - run.source_first))
        if known < run.count:
            steps.append(Run(run.source_first + known, run.target_first + known, run.count - known))
            highest = run.source_last
    return steps


def swapped(runs: Iterable[Run]) -> list[Run]:
    return [Run(run.target_first, run.source_first, run.count) for run in runs]


@dataclass(frozen=True)
class Stairs:
    """From an offset to the first place on the other side that holds a record from there or later."""

    steps: list[Run]
    end: int
    """Where the next record will stand, or later: the answer where there is none yet."""

    @cached_property
    def _lasts(self) -> list[int]:
        return [step.source_last for step in self.steps]

    def __call__(self, offset: int) -> int:
        found = bisect_left(self._lasts, offset)
        if found == len(self.steps):
            return self.end
        step = self.steps[found]
        return step.target_first + max(0, offset - step.source_first)


@dataclass(frozen=True)
class OffsetMap:
    """One incarnation of a source partition on one incarnation of its target partition."""

    target: TopicPartition
    target_topic_id: str
    runs: tuple[Run, ...]
    source_begin: int
    """Where the relay began: older records never went to the target."""
    source_end: int
    """After the last record that was relayed or left out."""
    target_begin: int
    """Where the target's log ended when the relay began: the first record came here or later."""

    @cached_property
    def to_target(self) -> Stairs:
        # After the last copy, not at the log's end: what others wrote since may be unread.
        return Stairs(staircase(self.runs), max((run.target_end for run in self.runs), default=self.target_begin))

    @cached_property
    def to_source(self) -> Stairs:
        return Stairs(staircase(swapped(self.runs)), self.source_end)

    def read_again(self, source_offset: int) -> int:
        """Records older than the offset that a reader of the target meets all the same: those that came late."""
        place = self.to_target(source_offset)
        late = (Run(r.target_first, r.source_first, r.count) for r in self.runs if r.target_end > place)
        return sum(_count_below(run, place, source_offset) for run in late)


def _count_below(run: Run, place: int, source_offset: int) -> int:
    """Of a run seen from the target: how many stand at `place` or after it and come from before `source_offset`."""
    passed = max(0, place - run.source_first)
    return max(0, min(run.count, source_offset - run.target_first) - passed)


# --- from the ledger ---


@dataclass
class _Draft:
    target: TopicPartition
    target_topic_id: str
    begin: int
    end: int
    target_begin: int
    runs: list[Run] = field(default_factory=list)

    @property
    def place(self) -> tuple[TopicPartition, str]:
        return self.target, self.target_topic_id

    def add(self, entry: Entry) -> None:
        self.begin = min(self.begin, entry.source_first)
        self.end = max(self.end, entry.source_last + 1)
        if entry.kind != SKIP and entry.target_first is not None:
            self._append(Run(entry.source_first, entry.target_first, entry.count))

    def _append(self, run: Run) -> None:
        last = self.runs[-1] if self.runs else None
        if last and (last.source_last + 1, last.target_end) == (run.source_first, run.target_first):
            self.runs[-1] = Run(last.source_first, last.target_first, last.count + run.count)
        else:
            self.runs.append(run)

    def begin_again(self, entry: Entry) -> None:
        """The same log, shorter than we knew: what stood after its end is gone, and comes again."""
        kept = (Run(r.source_first, r.target_first, min(r.count, entry.target_end - r.target_first)) for r in self.runs)
        self.runs = [run for run in kept if run.count > 0]
        self.begin, self.end = min(self.begin, entry.source_first), entry.source_last + 1
        self.target_begin = entry.target_end


def _before(source_end: int, runs: Iterable[Run]) -> list[Run]:
    kept = (Run(run.source_first, run.target_first, min(run.count, source_end - run.source_first)) for run in runs)
    return [run for run in kept if run.count > 0]


class OffsetMaps:
    """The maps of one flow and target; entries may go on coming while it is asked."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._lock = Lock()
        self._drafts: dict[SourcePartition, _Draft] = {}
        self._parts: dict[TopicPartition, set[SourcePartition]] = defaultdict(set)
        self._made: dict[TopicPartition, dict[SourcePartition, OffsetMap]] = {}
        for entry in in_order(entries):
            self.learn(entry)

    def learn(self, entry: Entry) -> None:
        with self._lock:
            self._learn(entry)

    def _learn(self, entry: Entry) -> None:
        draft = self._drafts.get(entry.source)
        if entry.kind == REPLAY or (draft and entry.kind != BASELINE and draft.target != entry.target_partition):
            return  # A second copy, or one elsewhere: the first is what readers go by.
        self._made.pop(entry.source.at, None)
        self._parts[entry.source.at].add(entry.source)
        if entry.kind == END:
            self._drafts.pop(entry.source, None)
            return
        if draft is None or entry.kind == BASELINE:
            draft = self._drafts[entry.source] = self._begun(draft, entry)
        draft.add(entry)

    def _begun(self, draft: _Draft | None, entry: Entry) -> _Draft:
        place = (entry.target_partition, entry.target_topic_id)
        if draft is None or draft.place != place:
            # Every relay has a baseline. Without one, who stands at its end reads all of it again, and skips nothing.
            begin = entry.target_end if entry.kind == BASELINE else entry.target_first or 0
            return _Draft(*place, entry.source_first, entry.source_last + 1, begin)
        draft.begin_again(entry)
        return draft

    def of(self, source: SourcePartition) -> OffsetMap | None:
        """Of the whole log that the source partition is a part of."""
        with self._lock:
            made = self._made.setdefault(source.at, {})
            if source not in made and (found := self._join(self._log_of(source))):
                made[source] = found
            return made.get(source)

    def runs(self, source: SourcePartition) -> list[Run]:
        """Of this part of a log alone, as they stand in the target topic that it goes to."""
        with self._lock:
            return list(self._drafts[source].runs) if source in self._drafts else []

    def _log_of(self, source: SourcePartition) -> list[_Draft]:
        parts = (part for part in self._parts[source.at] if part in self._drafts and is_same_log(part, source))
        return [self._drafts[part] for part in sorted(parts, key=age)]

    def _join(self, drafts: Sequence[_Draft]) -> OffsetMap | None:
        """A log that was cut counts up to there by its earlier branch, and from there on by its later one."""
        if not drafts:
            return None
        runs, begin, newest = list[Run](), sys.maxsize, drafts[-1]
        for draft in reversed([each for each in drafts if each.place == newest.place]):
            runs = [*_before(begin, draft.runs), *runs]
            begin, target_begin = min(begin, draft.begin), draft.target_begin
        return OffsetMap(*newest.place, tuple(runs), begin, newest.end, target_begin)

    def newest(self) -> dict[TopicPartition, SourcePartition]:
        """The youngest incarnation of each source partition: what can be said while the source is away."""
        with self._lock:
            return {source.at: source for source in self._drafts}

    def filled(self) -> set[TopicPartition]:
        """Target partitions that hold copies, or are about to."""
        with self._lock:
            return {draft.target for draft in self._drafts.values()}
