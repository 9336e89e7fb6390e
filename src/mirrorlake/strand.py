"""One bronze table of one flow: its topics, its targets, and what table and ledger hold of it now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from deltalake import DeltaTable

from mirrorlake.clusters import librdkafka_admin, librdkafka_producer, limits
from mirrorlake.config import Config, Flow, Target
from mirrorlake.errors import AccessRefused
from mirrorlake.kafka import Cluster, TopicInfo, is_same_topic
from mirrorlake.lag import bronze_ends
from mirrorlake.lease import EXPIRY, LEASE_SECONDS, Lease, producer_lock_path
from mirrorlake.ledger import Book, Entry, fold, read
from mirrorlake.produce import Errand
from mirrorlake.readers import Bronze, BronzeInCatalog, BronzeInFolder
from mirrorlake.records import SourcePartition, TopicPartition, age
from mirrorlake.topics import RelaySpec, name_on, spec_topics, topics_now
from mirrorlake.world import World
from mirrorlake.writings import Writings

# What brokers take unless told otherwise.
DEFAULT_MAX_RECORD_BYTES = 1048588


@dataclass
class Strand:
    """What both legs of a relay stand on."""

    world: World
    flow: Flow
    spec: RelaySpec
    lease: Lease
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    """The source's, as of the last look."""
    _taken: dict[tuple[str, str], bool] = field(default_factory=dict)
    """(Target, topic) -> whether it takes it: asked for every record's topic in every round."""

    @property
    def source(self) -> Cluster:
        return self.world.clusters[self.flow.source]

    @cached_property
    def writings(self) -> Writings:
        return Writings(self.world, self.flow.name)

    # --- topics ---

    def look(self) -> None:
        self.topics = self.source.describe(topics_now(self.spec, self.source))

    def source_partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic.name, partition)
            for topic in self.topics.values()
            for partition in range(topic.partitions)
        ]

    def is_now(self, source: SourcePartition) -> bool:
        """Is this the topic as the source has it now, not one of its name that is gone?"""
        topic = self.topics.get(source.topic)
        return topic is not None and is_same_topic(source.topic_id, topic.id)

    # --- bronze ---

    def bronze(self) -> Bronze:
        """Files where Python may open them, unless the flow asks for Spark's reader."""
        folder, reader = self.world.tables.folder(self.spec.table), self.flow.fanout.reader
        if folder is None or reader == "spark":
            return BronzeInCatalog(self.world.spark, self.world.tables.identifier(self.spec.table))
        return BronzeInFolder(self.world.spark, folder)

    def bronze_ends(self) -> dict[SourcePartition, int]:
        return bronze_ends(self.bronze().segments())

    def newest_in_bronze(self) -> dict[SourcePartition, int]:
        """Where bronze ends, for the topics as they are now; of a log that was cut, its latest branch."""
        ends = self.bronze_ends()
        newest = {source.at: source for source in sorted(ends, key=age) if self.is_now(source)}
        return {source: ends[source] for source in newest.values()}

    def bronze_version(self) -> float:
        """Infinite where only Spark may look: then what the ledger says has to do."""
        folder = self.world.tables.folder(self.spec.table)
        return DeltaTable(folder).version() if folder else float("inf")

    # --- targets ---

    def present_targets(self) -> list[Target]:
        return [target for target in self.flow.targets if target.cluster in self.world.cluster_ids]

    def takes(self, target: str, topic: str) -> bool:
        """Does the target take this topic, as the configuration is now?"""
        if (target, topic) not in self._taken:
            chosen = next(each for each in self.flow.targets if each.cluster == target)
            self._taken[target, topic] = name_on(self.world.config, self.flow, chosen, topic) is not None
        return self._taken[target, topic]

    def entries(self, target: str) -> list[Entry]:
        """All that the ledger knows of this flow's records on the target."""
        return read(self.world.tables, self.world.ops("ledger"), self.flow.name, target)

    def book(self, target: str, entries: Iterable[Entry]) -> Book:
        """What the ledger says of this table's topics, without those that the target does not take any more."""
        ours = [entry for entry in entries if spec_topics(self.spec, [entry.source.topic])]
        return fold(entry for entry in ours if self.takes(target, entry.source.topic))


def make_errand(
    config: Config, root: Path, flow: Flow, target: Target, table: str, cluster_ids: Mapping[str, str], epoch: int
) -> Errand:
    """What all sending of a flow to a target has in common."""
    cluster = config.clusters[target.cluster]
    # A volume gives no locks between machines. There a lease ends by itself, and what is sent must end with it.
    expiry = {"message.timeout.ms": str(int(LEASE_SECONDS * EXPIRY * 1000))} if config.storage.catalog else {}
    return Errand(
        flow.name,
        target.cluster,
        epoch,
        {**librdkafka_producer(target.cluster, cluster, flow.fanout.producer), **expiry},
        librdkafka_admin(target.cluster, cluster),
        None if config.storage.catalog else str(producer_lock_path(root, flow.name, target.cluster, table)),
        flow.provenance,
        cluster_ids[flow.source],
        cluster_ids[target.cluster],
        flow.max_hops,
        limits(cluster).max_record_bytes or DEFAULT_MAX_RECORD_BYTES,
        flow.on_undeliverable == "dead_letter",
        flow.fanout.delivery_timeout_seconds,
    )


def record_limit(config: Config, cluster: Cluster, topic: str) -> int:
    """The service's limit, or what the topic's configuration says where we may read it."""
    service = limits(config.clusters[cluster.alias]).max_record_bytes
    try:
        configured = int(cluster.topic_configs([topic])[topic]["max.message.bytes"].value or DEFAULT_MAX_RECORD_BYTES)
    except (AccessRefused, KeyError):
        configured = DEFAULT_MAX_RECORD_BYTES
    return min(service, configured) if service else configured
