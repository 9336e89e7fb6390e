"""The least rights that flows need on a cluster, as `kafka-acls` commands, and which of them we have.

A broker says what we may do with each resource when asked (KIP-430), so no right to read ACLs is needed to find out.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirrorlake.config import FROM_SECRET, Config, Flow, Target
from mirrorlake.config import Cluster as ClusterConfig
from mirrorlake.heartbeats import TOPIC as HEARTBEATS
from mirrorlake.kafka import READER_GROUP, Cluster
from mirrorlake.secrets import is_literal
from mirrorlake.services import limits
from mirrorlake.topics import fit_names, flow_topics

CLUSTER_NAME = "kafka-cluster"


@dataclass(frozen=True, order=True)
class Need:
    """One operation on one resource, and what it is for."""

    resource: str
    """`topic`, `group` or `cluster`."""
    name: str
    operation: str
    why: str
    optional: bool = False
    """Without it the flow runs, and says what it leaves out."""

    def __str__(self) -> str:
        where = "the cluster" if self.resource == "cluster" else f"{self.resource} {self.name}"
        return f"{self.operation} on {where} ({self.why})"


def needs(config: Config, alias: str, known: Mapping[str, Sequence[str]]) -> list[Need]:
    """Everything that the flows need on one cluster. `known` are the topics of each source, for patterns."""
    found: dict[tuple[str, str, str], Need] = {}
    for flow in config.flows.values():
        for need in _of_flow(config, flow, alias, known.get(flow.source, ())):
            key = (need.resource, need.name, need.operation)
            # What one flow cannot do without, no other makes optional.
            if key not in found or (found[key].optional and not need.optional):
                found[key] = need
    return sorted(found.values())


def _of_flow(config: Config, flow: Flow, alias: str, known: Sequence[str]) -> Iterator[Need]:
    topics = list(dict.fromkeys([*flow.topics, *flow_topics(config, flow, known)]))
    if flow.source == alias:
        yield from _on_source(flow, topics)
    for target in flow.targets:
        if target.cluster == alias:
            names, _ = fit_names(config, flow, target, topics)
            yield from _on_target(config.clusters[alias], flow, target, list(names.values()))


def _on_source(flow: Flow, topics: Iterable[str]) -> Iterator[Need]:
    yield Need("group", READER_GROUP, "DESCRIBE", "to read ranges of records")
    copied = any(target.configs.enabled for target in flow.targets)
    for topic in topics:
        yield Need("topic", topic, "READ", "to copy its records")
        if copied:
            yield Need("topic", topic, "DESCRIBE_CONFIGS", "to copy its configuration", optional=True)
    if any(target.groups.checkpoints or target.groups.sync for target in flow.targets):
        yield Need("group", "*", "DESCRIBE", "to know where consumer groups stand", optional=True)
    if any(target.acls.enabled for target in flow.targets):
        yield Need("cluster", CLUSTER_NAME, "DESCRIBE", "to copy ACLs", optional=True)
    if flow.heartbeats.enabled:
        yield Need("topic", HEARTBEATS, "WRITE", "to send heartbeats")


def _on_target(cluster: ClusterConfig, flow: Flow, target: Target, names: Iterable[str]) -> Iterator[Need]:
    may = limits(cluster)
    yield Need("group", READER_GROUP, "DESCRIBE", "to read back after a crash")
    for name in names:
        yield Need("topic", name, "WRITE", "to send records")
        yield Need("topic", name, "READ", "to read back after a crash, and for audit")
        yield Need("topic", name, "DESCRIBE_CONFIGS", "to know its largest record", optional=True)
        if target.create_topics and may.can_create_topics:
            yield Need("topic", name, "CREATE", "to make it; or create_topics: false")
            yield Need("topic", name, "ALTER", "to add partitions as the source grows", optional=True)
        if target.configs.enabled and may.can_alter_configs:
            yield Need("topic", name, "ALTER_CONFIGS", "to configure it as on the source", optional=True)
    if target.groups.sync:
        yield Need("group", "*", "READ", "to commit translated offsets", optional=True)
    if target.acls.enabled:
        yield Need("cluster", CLUSTER_NAME, "ALTER", "to copy ACLs", optional=True)
    if flow.heartbeats.enabled:
        yield Need("topic", HEARTBEATS, "WRITE", "to send heartbeats")


# --- which of them we have ---


@dataclass(frozen=True)
class Held:
    """Needs sorted by what the cluster says of them."""

    granted: tuple[Need, ...] = ()
    missing: tuple[Need, ...] = ()
    untold: tuple[Need, ...] = ()
    """Of a topic that is not there yet, or of a cluster that does not say."""

    @property
    def lacking(self) -> tuple[Need, ...]:
        """What the flow cannot do without."""
        return tuple(need for need in self.missing if not need.optional)


def look(cluster: Cluster, wanted: Sequence[Need]) -> Held:
    """Ask the cluster what we may do."""
    allowed = cluster.allowed_operations(sorted({need.name for need in wanted if need.resource == "topic"}))
    told: dict[tuple[str, str], frozenset[str] | None] = {("topic", name): may for name, may in allowed.items()}
    told["cluster", CLUSTER_NAME] = cluster.allowed_on_cluster()
    told["group", READER_GROUP] = cluster.allowed_on_group(READER_GROUP)
    return sort_out(wanted, told)


def sort_out(wanted: Iterable[Need], told: Mapping[tuple[str, str], frozenset[str] | None]) -> Held:
    granted: list[Need] = []
    missing: list[Need] = []
    untold: list[Need] = []
    everywhere = told.get(("cluster", CLUSTER_NAME)) or frozenset()
    for need in wanted:
        may = told.get((need.resource, need.name))
        if need.operation == "CREATE" and "CREATE" in everywhere:
            granted.append(need)
        elif need.operation == "CREATE" and may:
            granted.append(need)  # it is there: nothing to make
        elif may is None:
            untold.append(need)
        else:
            (granted if need.operation in may else missing).append(need)
    return Held(tuple(granted), tuple(missing), tuple(untold))


# --- as commands ---


def principal_of(cluster: ClusterConfig, subject: str = "") -> str:
    """Who we are to the cluster. `subject` is that of our certificate, for mutual TLS."""
    user = cluster.security.username
    if cluster.security.sasl:
        return f"User:{user}" if user and is_literal(user) else "User:NAME"
    return f"User:{subject}" if subject else "User:ANONYMOUS"


def commands(cluster: ClusterConfig, wanted: Iterable[Need], principal: str) -> list[str]:
    """`kafka-acls` for an administrator, one for each resource."""
    options = {"topic": "--topic", "group": "--group"}
    made = []
    for (resource, name), needed in itertools.groupby(sorted(wanted), lambda need: (need.resource, need.name)):
        operations = " ".join(f"--operation {_spelled(each)}" for each in sorted({n.operation for n in needed}))
        where = f"{options[resource]} {shlex.quote(name)}" if resource in options else "--cluster"
        made.append(f"{_kafka_acls(cluster)} --add --allow-principal {shlex.quote(principal)} {operations} {where}")
    return made


def _kafka_acls(cluster: ClusterConfig) -> str:
    servers = "SERVERS" if cluster.bootstrap_servers == FROM_SECRET else cluster.bootstrap_servers
    return f"kafka-acls --bootstrap-server {servers} --command-config admin.properties"


def _spelled(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))
