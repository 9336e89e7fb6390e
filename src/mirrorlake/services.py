"""Managed services: what each kind and tier can take, what its secret holds, and what an operator must do there.

Event Hubs and Event Streams are Kafka with refusals. What cannot be done through Kafka's protocol becomes a command
to copy, with the rights that it needs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirrorlake.config import FROM_SECRET, Cluster
from mirrorlake.errors import UsageFault
from mirrorlake.secrets import Databricks, resolve

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Limits:
    """What a cluster can take; None where only the cluster itself can tell."""

    max_record_bytes: int | None = None
    compressions: tuple[str, ...] = CODECS
    max_partitions: int | None = None
    """Of one topic."""
    can_create_topics: bool = True
    can_alter_configs: bool = True
    can_add_partitions: bool = True
    max_topics: int | None = None
    max_partitions_in_all: int | None = None


# Topics are made by portal, CLI or ARM. gzip works on Premium and Dedicated only.
_HUBS = Limits(1_000_000, ("none", "gzip"), 1024, False, False, False)
_STREAMS = Limits(1_000_000)
LIMITS: Mapping[tuple[str, str | None], Limits] = {
    ("kafka", None): Limits(),
    ("event_hubs", None): _HUBS,
    ("event_hubs", "standard"): replace(_HUBS, compressions=("none",), max_partitions=32, max_topics=10),
    ("event_hubs", "premium"): replace(_HUBS, max_partitions=100, max_topics=100),  # for each processing unit
    ("event_hubs", "dedicated"): replace(_HUBS, max_topics=1000),
    ("event_streams", None): _STREAMS,
    ("event_streams", "lite"): replace(_STREAMS, max_partitions=1, max_topics=1, max_partitions_in_all=1),
    ("event_streams", "standard"): replace(_STREAMS, max_partitions_in_all=100),
    ("event_streams", "enterprise"): replace(_STREAMS, max_partitions_in_all=3000),
}


def limits(cluster: Cluster) -> Limits:
    """Of kind and tier, with the record size that the operator set, if any."""
    given = {**cluster.client, **cluster.producer}.get("message.max.bytes", "")
    known = LIMITS[cluster.kind, cluster.tier]
    return replace(known, max_record_bytes=int(given)) if given.isdecimal() else known


# --- what a secret holds ---


@dataclass(frozen=True, repr=False)
class Opened:
    """A connection string or service credentials, taken apart."""

    servers: str
    password: str


def open_secret(kind: str, text: str) -> Opened:
    """Servers are empty where the secret does not name them. Nothing of it is repeated in an error."""
    if kind == "event_streams" and text.lstrip().startswith("{"):
        return _credentials(text)
    if kind == "event_hubs":
        found = re.search(r"(?i)(?:^|;)\s*endpoint=sb://([A-Za-z0-9.-]+?)/?\s*(?:;|$)", text)
        return Opened(f"{found[1]}:9093" if found else "", text)
    return Opened("", text)


def _credentials(text: str) -> Opened:
    """IBM's JSON, as the console and `ibmcloud resource service-key` print it."""
    try:
        held = json.loads(text)
        held = held.get("credentials", held)
        key = next(held[name] for name in ("api_key", "apikey", "password") if held.get(name))
        servers = held.get("kafka_brokers_sasl") or []
        return Opened(",".join(map(str, servers)), str(key))
    except (ValueError, AttributeError, StopIteration):
        raise UsageFault(
            "The service credentials of Event Streams are not JSON with an api_key.",
            "ibmcloud resource service-key NAME --output json prints them; give that file with ${file:/path}",
        ) from None


def servers_of(alias: str, cluster: Cluster, databricks: Databricks | None = None) -> str:
    """host:port of the brokers, from the secret where the configuration leaves them to it."""
    if cluster.bootstrap_servers != FROM_SECRET:
        return cluster.bootstrap_servers
    password = cluster.security.password
    opened = open_secret(cluster.kind, resolve(password.text, databricks) if password else "")
    if not opened.servers:
        raise UsageFault(f"Cluster {alias}: {NO_SERVERS[cluster.kind]}", "or give bootstrap_servers")
    return opened.servers


NO_SERVERS = {
    "event_hubs": "its secret is no connection string: it must begin with Endpoint=sb://NAMESPACE…",
    "event_streams": "its secret is no service credentials JSON with kafka_brokers_sasl",
}


# --- what an operator must do ---

# Said behind a command, as a comment of the shell: what whoever runs it must be allowed to.
MANAGE = "   # needs Manage, or the role Azure Event Hubs Data Owner"
MANAGER = "   # needs the IAM role Manager on the topic"


def namespace_of(servers: str) -> str:
    return servers.partition(":")[0].partition(".")[0]


def create_command(cluster: Cluster, topic: str, partitions: int, replication_factor: int = -1) -> str:
    """The command that makes a topic where we may not."""
    name = shlex.quote(topic)
    if cluster.kind == "event_hubs":
        return (
            f"az eventhubs eventhub create --resource-group RESOURCE_GROUP --namespace-name {_namespace(cluster)}"
            f" --name {name} --partition-count {partitions} --cleanup-policy Delete --retention-time 168{MANAGE}"
        )
    if cluster.kind == "event_streams":
        return f"ibmcloud es topic-create --name {name} --partitions {partitions}{MANAGER}"
    factor = f" --replication-factor {replication_factor}" if replication_factor > 0 else ""
    return f"{_kafka_topics(cluster)} --create --topic {name} --partitions {partitions}{factor}"


def grow_command(cluster: Cluster, topic: str, partitions: int) -> str:
    """The command that gives a topic more partitions."""
    name = shlex.quote(topic)
    if cluster.kind == "event_hubs":
        return (
            f"az eventhubs eventhub update --resource-group RESOURCE_GROUP --namespace-name {_namespace(cluster)}"
            f" --name {name} --partition-count {partitions}{MANAGE}; Premium and Dedicated only"
        )
    if cluster.kind == "event_streams":
        return f"ibmcloud es topic-partitions-set --name {name} --partitions {partitions}{MANAGER}"
    return f"{_kafka_topics(cluster)} --alter --topic {name} --partitions {partitions}"


def _namespace(cluster: Cluster) -> str:
    known = cluster.bootstrap_servers != FROM_SECRET
    return shlex.quote(namespace_of(cluster.bootstrap_servers)) if known else "NAMESPACE"


def _kafka_topics(cluster: Cluster) -> str:
    plain = cluster.security.protocol == "PLAINTEXT"
    return f"kafka-topics --bootstrap-server {cluster.bootstrap_servers}" + (
        "" if plain else " --command-config client.properties"
    )


RIGHTS: Mapping[tuple[str, str], str] = {
    ("event_hubs", "source"): "a SAS policy with Listen, or the role Azure Event Hubs Data Receiver",
    ("event_hubs", "target"): (
        "a SAS policy with Send and Listen (recovery reads back what was sent), or the roles Azure Event Hubs Data "
        "Sender and Data Receiver; Manage only for whoever makes the hubs"
    ),
    ("event_streams", "source"): "IAM: Reader on the cluster, on the topics and on the group mirrorlake-reader",
    ("event_streams", "target"): (
        "IAM: Reader on the cluster, Writer and Reader on the topics, Reader on the group mirrorlake-reader; "
        "Manager on the topics where we are to make them (create_topics)"
    ),
}
