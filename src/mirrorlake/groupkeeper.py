"""Consumer groups kept in step while a flow runs: checkpoints to the table and to MM2's topic, sync to the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mirrorlake.config import Flow, Target
from mirrorlake.consumers import Consumers
from mirrorlake.crossing import Crossing, Link, crossing, share
from mirrorlake.errors import Transient, Unreachable
from mirrorlake.groups import KEEP, WRITE, WRITTEN, Line, Passage, Tag, checkpoint_rows
from mirrorlake.kafka import TopicInfo
from mirrorlake.ledger import Entry, LedgerWriter
from mirrorlake.ledger import read as read_ledger
from mirrorlake.mm2topics import Checkpoint, Mm2Topics, OffsetSync
from mirrorlake.offsets import OffsetMaps
from mirrorlake.records import SourcePartition, TopicPartition
from mirrorlake.topics import fit_names, flow_topics
from mirrorlake.upkeep import Every
from mirrorlake.world import Say, World, now


@dataclass
class GroupKeeper:
    """One flow and target. Made before anything is sent, so that it hears every entry of the ledger once."""

    world: World
    flow: Flow
    target: Target
    ledger: LedgerWriter
    complete: Callable[[str, str], Mapping[SourcePartition, int]]
    """Flow and target -> source partition -> everything before this offset is on the target."""
    keepers: Sequence[GroupKeeper]
    """All of this runner: a flow in the other direction is a way too."""
    elsewhere: Callable[[set[str]], Iterable[tuple[str, str, Link]]]
    """(source, target, link) of flows between two clusters that this runner does not run."""
    say: Say
    _written: dict[tuple[str, str, int], Line] = field(default_factory=dict)
    _refused: bool = False
    _synced: dict[TopicPartition, OffsetSync] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = self.world
        self._every = Every(self.target.groups.every_seconds)
        entries = read_ledger(world.tables, world.ops("ledger"), self.flow.name, self.target.cluster)
        self.maps = OffsetMaps(entries)
        self.ledger.listeners.append(self._hear)
        here, there = (Consumers(world.clusters[alias]) for alias in self.ends)
        self._passage = Passage(self.flow.name, here, there, self.target.groups, self._crossing)
        self._mm2 = Mm2Topics(world.config, self.flow, self.target, world.clusters)

    def _hear(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if (entry.flow, entry.target) == (self.flow.name, self.target.cluster):
                self.maps.learn(entry)

    # --- a pass ---

    def tend(self) -> None:
        settings = self.target.groups
        wanted = settings.checkpoints or settings.sync
        if wanted and not self._refused and self.target.cluster in self.world.cluster_ids and self._every.due():
            self._try()

    def _try(self) -> None:
        """Groups are worth a message, not a relay: a right that we lack is said once, and records go on."""
        try:
            self.work()
        except Unreachable as fault:
            if isinstance(fault, Transient):
                raise
            self._refused = True
            self.say(f"flow {self.flow.name}: consumer groups are left alone: {fault.what}")

    def close(self) -> None:
        self._passage.here.close()
        self._passage.there.close()

    def work(self) -> None:
        lines = self._passage.look()
        if self.target.groups.sync:
            lines = self._passage.commit(lines)
        changed = [line for line in lines if self._written.get(_key(line)) != line]
        self._write(changed)
        self._written.update({_key(line): line for line in changed})
        self._tell([line for line in changed if line.decision == WRITTEN])

    def _tell(self, written: Sequence[Line]) -> None:
        if written:
            groups = sorted({line.group for line in written})
            named = ", ".join(groups[:3]) + (f" and {len(groups) - 3} more" if len(groups) > 3 else "")
            self.say(f"target {self.target.cluster}: {len(written)} positions of groups written: {named}")

    def _write(self, lines: Sequence[Line]) -> None:
        world = self.world
        if lines and self.target.groups.checkpoints:
            rows = checkpoint_rows(self.flow.name, self.target.cluster, lines, now())
            world.tables.append(world.ops("group_checkpoints"), rows)
            self._mm2.write_checkpoints([_checkpoint(self.flow.name, line) for line in lines if _is_known(line)])
        self._write_offset_syncs()

    def _write_offset_syncs(self) -> None:
        if self.target.groups.mm2_offset_syncs == "none":
            return
        newest = {sync.source: sync for source in self.maps.newest().values() if (sync := self._sync_of(source))}
        fresh = [sync for at, sync in newest.items() if self._synced.get(at) != sync]
        self._mm2.write_offset_syncs(fresh)
        self._synced.update({sync.source: sync for sync in fresh})

    def _sync_of(self, source: SourcePartition) -> OffsetSync | None:
        """The last record that was relayed: MM2 translates from the newest pair at or before an offset."""
        known = self.maps.of(source)
        if known is None or not known.runs:
            return None
        last = max(known.runs, key=lambda run: run.target_first)
        return OffsetSync(source.at, last.source_last, last.target_end - 1)

    # --- the ways ---

    def _crossing(self) -> Crossing:
        links = list(self._links(set(self.ends)))
        first = next(keeper for keeper in self.keepers if keeper.ends == self.ends)
        return crossing(links, *self.ends).only(share(links, self.flow.name, self.ends, False, first is self))

    @property
    def ends(self) -> tuple[str, str]:
        return self.flow.source, self.target.cluster

    def _links(self, ends: set[str]) -> Iterator[tuple[str, str, Link]]:
        for keeper in self.keepers:
            if {keeper.flow.source, keeper.target.cluster} == ends:
                yield keeper.flow.source, keeper.target.cluster, keeper.link()
        yield from self.elsewhere(ends)

    def link(self) -> Link:
        config, clusters = self.world.config, self.world.clusters
        source, target = clusters[self.flow.source], clusters[self.target.cluster]
        sources: Mapping[str, TopicInfo] = source.describe(flow_topics(config, self.flow, source.topic_names()))
        names, _ = fit_names(config, self.flow, self.target, sources)
        complete = self.complete(self.flow.name, self.target.cluster)
        # What counts as complete must be on the map.
        self.ledger.flush()
        return Link(names, sources, target.describe(names.values()), self.maps, complete, self.flow.name)


def _key(line: Line) -> tuple[str, str, int]:
    return line.group, line.topic, line.partition


def _is_known(line: Line) -> bool:
    return line.target_offset is not None and line.decision in (WRITE, WRITTEN, KEEP)


def _checkpoint(flow: str, line: Line) -> Checkpoint:
    assert line.target_offset is not None  # noqa: S101
    return Checkpoint(line.group, line.target, line.offset, line.target_offset, str(Tag(flow, line.offset)))
