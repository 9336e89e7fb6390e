"""What storage knows of the ways between clusters, without running a flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from mirrorlake.config import Config, Flow, Target
from mirrorlake.consumers import Consumers
from mirrorlake.crossing import Crossing, Link, crossing, share
from mirrorlake.groups import Passage
from mirrorlake.inspection import Stored, read_stored
from mirrorlake.kafka import Cluster, TopicInfo
from mirrorlake.lag import bronze_ends, ingest_positions, target_positions
from mirrorlake.offsets import OffsetMaps
from mirrorlake.records import trunk
from mirrorlake.tables import Tables
from mirrorlake.topics import fit_names, flow_topics, relay_specs, spec_topics


@dataclass(frozen=True)
class Storage:
    """Configuration, tables and clients of a look from outside."""

    config: Config
    tables: Tables
    clusters: Mapping[str, Cluster]
    away: frozenset[str] = frozenset()
    """Clusters that do not answer: of their topics the ledger's newest count."""

    def passage(self, flow: Flow, target: Target, back: bool = False) -> Passage:
        here, there = (target.cluster, flow.source) if back else (flow.source, target.cluster)
        ends = (flow.source, target.cluster)

        def ways() -> Crossing:
            links = list(self.between({here, there}))
            takes = share(links, flow.name, ends, back, self._first(*ends) == flow.name)
            return crossing(links, here, there).only(takes)

        return Passage(flow.name, self.consumers[here], self.consumers[there], target.groups, ways)

    def _first(self, source: str, target: str) -> str:
        flows = (flow for flow in self.config.flows.values() if flow.source == source)
        return next(flow.name for flow in flows if any(each.cluster == target for each in flow.targets))

    @cached_property
    def consumers(self) -> dict[str, Consumers]:
        return {alias: Consumers(cluster) for alias, cluster in self.clusters.items()}

    def between(self, ends: set[str]) -> Iterator[tuple[str, str, Link]]:
        """(source, target, link) of all flows between two clusters, in either direction."""
        for flow in self.config.flows.values():
            for target in flow.targets:
                if {flow.source, target.cluster} == ends:
                    yield from ((flow.source, target.cluster, link) for link in self.links(flow, target))

    def links(self, flow: Flow, target: Target) -> Iterator[Link]:
        """One for each bronze table that is there."""
        known = self._topics(flow, target)
        for spec in relay_specs(self.config, flow, known):
            if self.tables.exists(spec.table):
                stored = read_stored(self.config, self.tables, flow, spec)
                yield self._link(stored, target, spec_topics(spec, known))

    def _topics(self, flow: Flow, target: Target) -> list[str]:
        """The flow's topics; of a source that is away, those that the ledger knows."""
        if flow.source not in self.away:
            return flow_topics(self.config, flow, self.clusters[flow.source].topic_names())
        ledger = f"{self.config.storage.ops_schema}.ledger"
        rows = self.tables.read(ledger, ["source_topic"], flow=flow.name, target=target.cluster)
        return sorted(set(rows["source_topic"].to_pylist()))

    def _link(self, stored: Stored, target: Target, topics: list[str]) -> Link:
        flow, maps = stored.flow, OffsetMaps(stored.entries[target.cluster])
        sources = newest_topics(maps) if flow.source in self.away else self.clusters[flow.source].describe(topics)
        names, _ = fit_names(self.config, flow, target, sources)
        ends = bronze_ends(stored.files.segments())
        ingested = ingest_positions(stored.ingested, stored.topic_ids)
        complete = target_positions(stored.book(target.cluster), ends, ingested)
        there = target.cluster not in self.away
        targets = self.clusters[target.cluster].describe(names.values()) if there else newest_copies(maps)
        return Link(names, sources, targets, maps, complete, flow.name)


def newest_topics(maps: OffsetMaps) -> dict[str, TopicInfo]:
    """Topics as the ledger last knew them."""
    newest = maps.newest()
    counts: dict[str, int] = {}
    for at in newest:
        counts[at.topic] = max(counts.get(at.topic, 0), at.partition + 1)
    return {at.topic: TopicInfo(at.topic, trunk(source.topic_id), counts[at.topic], 0) for at, source in newest.items()}


def newest_copies(maps: OffsetMaps) -> dict[str, TopicInfo]:
    """Target topics as the ledger last knew them."""
    found = [known for source in maps.newest().values() if (known := maps.of(source))]
    return {known.target.topic: TopicInfo(known.target.topic, known.target_topic_id, 0, 0) for known in found}
