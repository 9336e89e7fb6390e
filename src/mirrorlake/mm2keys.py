"""Every key of MM2, and what becomes of it. docs/migrate-from-mm2.md is written from these tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Fate(str, Enum):
    """What becomes of a key."""

    TAKEN = "taken as"
    NOT_NEEDED = "not needed"
    UNSUPPORTED = "not supported"
    UNKNOWN = "unknown to MM2 as well"


@dataclass(frozen=True)
class Known:
    """What becomes of a key in general, for a reader of the docs and where nothing more special is known."""

    fate: Fate
    text: str


def _taken(text: str) -> Known:
    return Known(Fate.TAKEN, text)


def _not_needed(text: str) -> Known:
    return Known(Fate.NOT_NEEDED, text)


def _unsupported(text: str) -> Known:
    return Known(Fate.UNSUPPORTED, text)


# --- every key of MM2 -------------------------------------------------------------------------------------

LEDGER = "the ledger knows every position; no internal topic is made"
OFFSET_SYNCS = "the ledger knows every pair of offsets; groups.mm2_offset_syncs where a tool of MM2 wants them"
NO_CONNECT = "there are no Connect workers"
BYTES = "records are copied byte for byte"
STOPPED_FOR = "refused: a class cannot run here"

KEYS: Mapping[str, Known] = {
    # Every connector.
    "enabled": _taken("a flow from A with the target B; pairs of one source become one flow"),
    "source.cluster.alias": _not_needed("the pair's name says it"),
    "target.cluster.alias": _not_needed("the pair's name says it"),
    "name": _not_needed(NO_CONNECT),
    "connector.class": _not_needed(NO_CONNECT),
    "connector.plugin.version": _not_needed(NO_CONNECT),
    "tasks.max": _not_needed("Spark spreads the work over its cores; see runner.parallelism"),
    "tasks.max.enforce": _not_needed(NO_CONNECT),
    "config.action.reload": _not_needed(NO_CONNECT),
    "admin.timeout.ms": _not_needed("requests to a cluster have limits of their own"),
    "replication.policy.class": _taken("naming of the target; a class that Kafka does not bring is refused"),
    "replication.policy.separator": _taken("separator of the target"),
    "replication.policy.internal.topic.separator.enabled": _not_needed("no internal topic is made"),
    "forwarding.admin.class": _unsupported("topics are made with the cluster's own admin API; leave it out"),
    "metric.reporters": _not_needed("lag and throughput are in tables"),
    "auto.include.jmx.reporter": _not_needed("lag and throughput are in tables"),
    "key.converter*": _not_needed(BYTES),
    "value.converter*": _not_needed(BYTES),
    "header.converter*": _not_needed(BYTES),
    "transforms*": _unsupported(f"refused: {BYTES}; change records in a job of your own, then leave it out"),
    "predicates*": _unsupported(f"refused: {BYTES}; leave it out with the transforms it is for"),
    "errors.tolerance": _taken("on_undeliverable: `all` becomes dead_letter, where MM2 would drop the record"),
    "errors.*": _not_needed("a record that a target cannot take stops the flow or is a dead letter"),
    "topic.creation.*": _unsupported("topics are made with the source's partitions; make others by hand"),
    "exactly.once.support": _not_needed("each record arrives once, without transactions"),
    "transaction.boundary*": _not_needed("each record arrives once, without transactions"),
    "offsets.storage.topic": _not_needed(LEDGER),
    # MirrorSourceConnector.
    "topics": _taken("topics (plain names) and patterns (the rest) of the flow or target"),
    "topics.exclude": _taken("exclude of the flow or target; MM2's internal topics are always left out"),
    "topics.blacklist": _taken("exclude, as topics.exclude, its newer name"),
    "topic.filter.class": _taken("nothing, where it is DefaultTopicFilter; another class is refused"),
    "config.properties.exclude": _taken("configs.exclude of the target"),
    "config.properties.blacklist": _taken("configs.exclude, as config.properties.exclude, its newer name"),
    "use.defaults.from": _taken("configs.use_defaults_from of the target"),
    "use.incremental.alter.configs": _not_needed("only differences are written, always"),
    "config.property.filter.class": _taken(
        "nothing, where it is DefaultConfigPropertyFilter; another class is refused"
    ),
    "consumer.poll.timeout.ms": _not_needed("Spark reads by offset ranges"),
    "replication.factor": _taken("replication_factor of the target; the broker's default where absent, not 2"),
    "refresh.topics.enabled": _not_needed("new topics are always looked for"),
    "refresh.topics.interval.seconds": _taken("runner.refresh_topics_seconds; of several the shortest"),
    "sync.topic.configs.enabled": _taken("configs.enabled of the target"),
    "sync.topic.configs.interval.seconds": _taken("configs.every_seconds of the target; 60 where absent, not 600"),
    "sync.topic.acls.enabled": _taken("acls.enabled of the target"),
    "sync.topic.acls.interval.seconds": _taken("acls.every_seconds of the target; 60 where absent, not 600"),
    "offset.lag.max": _not_needed("offsets are mapped one by one, exactly"),
    "emit.offset-syncs.enabled": _not_needed(OFFSET_SYNCS),
    "offset-syncs.topic.replication.factor": _not_needed(OFFSET_SYNCS),
    "offset-syncs.topic.location": _not_needed(OFFSET_SYNCS),
    "heartbeats.replication.enabled": _not_needed("heartbeats are relayed where they are emitted"),
    "add.source.alias.to.metrics": _not_needed("lag and throughput are in tables"),
    "task.assigned.partitions": _not_needed("MM2 sets it by itself"),
    "task.assigned.groups": _not_needed("MM2 sets it by itself"),
    "task.index": _not_needed("MM2 sets it by itself"),
    # MirrorCheckpointConnector.
    "groups": _taken("groups.include of the target"),
    "groups.exclude": _taken("groups.exclude of the target"),
    "groups.blacklist": _taken("groups.exclude, as groups.exclude, its newer name"),
    "group.filter.class": _taken("nothing, where it is DefaultGroupFilter; another class is refused"),
    "refresh.groups.enabled": _not_needed("groups are looked for in every pass"),
    "refresh.groups.interval.seconds": _not_needed("groups are looked for in every pass"),
    "emit.checkpoints.enabled": _taken("groups.checkpoints of the target"),
    "emit.checkpoints.interval.seconds": _taken("groups.checkpoint_seconds of the target"),
    "sync.group.offsets.enabled": _taken("groups.sync of the target; exact, and tagged as ours"),
    "sync.group.offsets.interval.seconds": _taken("groups.sync_seconds of the target"),
    "checkpoints.topic.replication.factor": _not_needed("it is made with replication_factor of the target"),
    # MirrorHeartbeatConnector.
    "emit.heartbeats.enabled": _taken("heartbeats.enabled of the flow; true where absent, as in MM2"),
    "emit.heartbeats.interval.seconds": _taken("heartbeats.every_seconds of the flow; 10 where absent, not 1"),
    "heartbeats.topic.replication.factor": _taken(
        "heartbeats.replication_factor; the broker's default where absent, not 3"
    ),
    # The dedicated driver and its workers.
    "clusters": _taken("clusters"),
    "dedicated.mode.enable.internal.rest": _not_needed("one runner holds a flow; there is no REST between nodes"),
    "config.providers": _taken("references: file, env and directory providers"),
    "config.providers.*": _taken("references: file, env and directory providers; another class is refused"),
    "client.id": _not_needed("clients are named mirrorlake-ALIAS"),
    "group.id": _not_needed(NO_CONNECT),
    "config.storage*": _not_needed(LEDGER),
    "offset.storage*": _not_needed(LEDGER),
    "status.storage*": _not_needed(LEDGER),
    "offset.flush.interval.ms": _not_needed("the ledger is written with every batch"),
    "offset.flush.timeout.ms": _not_needed("the ledger is written with every batch"),
    "scheduled.rebalance.max.delay.ms": _not_needed(NO_CONNECT),
    "exactly.once.source.support": _not_needed("each record arrives once, without transactions"),
    "connector.client.config.override.policy": _not_needed(NO_CONNECT),
    "connect.protocol": _not_needed(NO_CONNECT),
    "heartbeat.interval.ms": _not_needed(NO_CONNECT),
    "session.timeout.ms": _not_needed(NO_CONNECT),
    "rebalance.timeout.ms": _not_needed(NO_CONNECT),
    "worker.*": _not_needed(NO_CONNECT),
    "task.shutdown.graceful.timeout.ms": _not_needed(NO_CONNECT),
    "topic.tracking.*": _not_needed(NO_CONNECT),
    "topic.creation.enable": _not_needed("create_topics of the target decides"),
    "listeners*": _not_needed("there is no REST server"),
    "rest.*": _not_needed("there is no REST server"),
    "admin.listeners": _not_needed("there is no REST server"),
    "access.control.*": _not_needed("there is no REST server"),
    "response.http.headers.config": _not_needed("there is no REST server"),
    "inter.worker.*": _not_needed(NO_CONNECT),
    "plugin.path": _not_needed("no Java plug-in is loaded"),
    "plugin.discovery": _not_needed("no Java plug-in is loaded"),
    "metrics.*": _not_needed("lag and throughput are in tables"),
}

# Keys of a cluster: `alias.key`, or `key` alone for every cluster that does not say otherwise.
CLIENT: Mapping[str, Known] = {
    "bootstrap.servers": _taken("bootstrap_servers; a reference in it is looked up when the file is read"),
    "security.protocol": _taken("security.protocol; plain text with a warning"),
    "security.providers": _unsupported("refused: it loads code"),
    "sasl.mechanism": _taken("security.mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"),
    "sasl.jaas.config": _taken("security.username and password; login modules for PLAIN, SCRAM and OAUTHBEARER only"),
    "sasl.oauthbearer.token.endpoint.url": _taken("security.token_endpoint"),
    "sasl.oauthbearer.scope": _taken("security.scope"),
    "sasl.oauthbearer.client.credentials.client.id": _taken("security.username"),
    "sasl.oauthbearer.client.credentials.client.secret": _taken("security.password"),
    "sasl.login.callback.handler.class": _not_needed("the mechanism decides; a foreign class is refused"),
    "sasl.client.callback.handler.class": _not_needed("the mechanism decides; a foreign class is refused"),
    "sasl.login.class": _not_needed("the mechanism decides; a foreign class is refused"),
    "sasl.kerberos.*": _unsupported("Kerberos is not there; use SCRAM or mutual TLS"),
    "sasl.login.*": _not_needed("the client renews its login by itself"),
    "sasl.oauthbearer.*": _not_needed("the client asks the token endpoint by itself"),
    "ssl.truststore.location": _taken("security.ca"),
    "ssl.truststore.type": _taken("the kind of security.ca; the file itself decides where it is there"),
    "ssl.truststore.password": _taken("security.ca_password, where the store is JKS or PKCS12"),
    "ssl.truststore.certificates": _taken("security.ca, where it is a reference to a whole file"),
    "ssl.keystore.location": _taken("security.keystore; security.certificate and key where it is PEM"),
    "ssl.keystore.type": _taken("the kind of security.keystore; the file itself decides where it is there"),
    "ssl.keystore.password": _taken("security.keystore_password"),
    "ssl.keystore.key": _taken("security.key, where it is a reference to a whole file"),
    "ssl.keystore.certificate.chain": _taken("security.certificate, where it is a reference to a whole file"),
    "ssl.key.password": _taken("security.key_password"),
    "ssl.endpoint.identification.algorithm": _taken("security.verify_hostname; empty with a warning"),
    "ssl.protocol": _not_needed("the best version that both sides know is used"),
    "ssl.enabled.protocols": _not_needed("the best version that both sides know is used"),
    "ssl.cipher.suites": _not_needed("the safest that both sides know is used"),
    "ssl.provider": _not_needed("OpenSSL and Java's own are used"),
    "ssl.client.auth": _not_needed("there is no REST server"),
    "ssl.keymanager.algorithm": _not_needed("Java's own is used"),
    "ssl.trustmanager.algorithm": _not_needed("Java's own is used"),
    "ssl.secure.random.implementation": _not_needed("the system's is used"),
    "ssl.engine.factory.class": _unsupported(STOPPED_FOR + "; use ssl.truststore and ssl.keystore"),
    "client.dns.lookup": _taken("client.client.dns.lookup"),
    "client.rack": _unsupported("not yet: ingest reads from the leaders"),
    "request.timeout.ms": _not_needed("requests to a cluster have limits of their own"),
    "default.api.timeout.ms": _not_needed("requests to a cluster have limits of their own"),
    "retries": _not_needed("what passes by itself is tried again until it does"),
    "reconnect.backoff*": _not_needed("the client waits longer from try to try by itself"),
    "metric.reporters": _not_needed("lag and throughput are in tables"),
    "client.id": _not_needed("clients are named mirrorlake-ALIAS"),
}


@dataclass(frozen=True)
class Tuned:
    """A number that librdkafka has too: its name there, its bounds, and what to divide by."""

    name: str
    low: int
    high: int
    divide: int = 1


MOST = 2147483647
COMMON_TUNING = {
    "metadata.max.age.ms": Tuned("metadata.max.age.ms", 1, 86400000),
    "connections.max.idle.ms": Tuned("connections.max.idle.ms", 0, MOST),
    "retry.backoff.ms": Tuned("retry.backoff.ms", 1, 300000),
    "retry.backoff.max.ms": Tuned("retry.backoff.max.ms", 1, 300000),
    "socket.connection.setup.timeout.ms": Tuned("socket.connection.setup.timeout.ms", 1000, MOST),
    "send.buffer.bytes": Tuned("socket.send.buffer.bytes", 0, 100000000),
    "receive.buffer.bytes": Tuned("socket.receive.buffer.bytes", 0, 100000000),
}
PRODUCER_TUNING = {
    "linger.ms": Tuned("linger.ms", 0, 900000),
    "batch.size": Tuned("batch.size", 1, MOST),
    "max.request.size": Tuned("message.max.bytes", 1000, 1000000000),
    "buffer.memory": Tuned("queue.buffering.max.kbytes", 1, MOST, 1024),
    "request.timeout.ms": Tuned("request.timeout.ms", 1, 900000),
}

# `alias.producer.key` of the target's alias and `A->B.producer.override.key`: the producer of the records.
PRODUCER: Mapping[str, Known] = {
    **{key: _taken(f"producer.{tuned.name}") for key, tuned in PRODUCER_TUNING.items()},
    "compression.type": _taken("producer.compression.type"),
    "delivery.timeout.ms": _taken("fanout.delivery_timeout_seconds"),
    "acks": _not_needed("every replica in sync must have the record, always"),
    "enable.idempotence": _not_needed("it is always on"),
    "max.in.flight.requests.per.connection": _not_needed("idempotence keeps the order"),
    "max.block.ms": _not_needed("the producer waits as long as a batch may take"),
    "retries": _not_needed("what passes by itself is tried again until fanout.delivery_timeout_seconds"),
    "transactional.id": _not_needed("each record arrives once, without transactions"),
    "transaction.timeout.ms": _not_needed("each record arrives once, without transactions"),
    "partitioner.*": _not_needed("a record keeps its partition"),
    "key.serializer": _not_needed(BYTES),
    "value.serializer": _not_needed(BYTES),
    "interceptor.classes": _unsupported("a class cannot run here; leave it out"),
}

# `alias.consumer.key` of the source's alias, `A->B.consumer.key` and `A->B.source.consumer.key`.
CONSUMER: Mapping[str, Known] = {
    "auto.offset.reset": _taken("start of the flow: earliest or latest; it never jumps a gap"),
    "isolation.level": _taken("isolation of the flow; read_committed where absent, unlike MM2"),
    "max.poll.records": _not_needed("ingest.max_records_per_batch bounds a batch"),
    "max.poll.interval.ms": _not_needed("there is no consumer group"),
    "fetch.*": _not_needed("Spark's source decides; ingest.max_bytes_per_batch bounds a batch"),
    "max.partition.fetch.bytes": _not_needed("Spark's source decides; ingest.max_bytes_per_batch bounds a batch"),
    "enable.auto.commit": _not_needed("positions live in the ledger"),
    "auto.commit.interval.ms": _not_needed("positions live in the ledger"),
    "group.*": _not_needed("there is no consumer group"),
    "session.timeout.ms": _not_needed("there is no consumer group"),
    "heartbeat.interval.ms": _not_needed("there is no consumer group"),
    "partition.assignment.strategy": _not_needed("there is no consumer group"),
    "key.deserializer": _not_needed(BYTES),
    "value.deserializer": _not_needed(BYTES),
    "check.crcs": _not_needed("checksums are always checked"),
    "exclude.internal.topics": _not_needed("the flow's exclude decides"),
    "allow.auto.create.topics": _not_needed("reading never makes a topic"),
    "interceptor.classes": _unsupported("a class cannot run here; leave it out"),
}
OFFSET_SYNCS_PRODUCER = _not_needed("in MM2 it tunes the producer of offset syncs, which are not needed")
DROPPED = "MM2 drops it here; write {} to mean it"


def find(table: Mapping[str, Known], key: str) -> Known | None:
    """The entry of a key: its own, or that of the longest `prefix*`."""
    if key in table:
        return table[key]
    prefixes = [entry for entry in table if entry.endswith("*") and key.startswith(entry[:-1])]
    return table[max(prefixes, key=len)] if prefixes else None


COMMON: Mapping[str, Known] = {
    **CLIENT,
    **{key: _taken(f"client.{tuned.name}") for key, tuned in COMMON_TUNING.items()},
}


# --- for the docs -----------------------------------------------------------------------------------------

TABLES = (
    ("Flows, topics and workers: `KEY`, `A->B.KEY`", KEYS),
    ("Connections: `ALIAS.KEY`, or `KEY` for all", COMMON),
    ("Producer: `B.producer.KEY`, `A->B.producer.override.KEY`", PRODUCER),
    ("Consumer: `A.consumer.KEY`, `A->B.consumer.KEY`, `A->B.source.consumer.KEY`", CONSUMER),
)


def key_tables() -> str:
    """The tables of docs/migrate-from-mm2.md."""
    return "\n".join(f"### {title}\n\n{_key_table(table)}" for title, table in TABLES)


def _key_table(table: Mapping[str, Known]) -> str:
    words = {Fate.TAKEN: "taken", Fate.NOT_NEEDED: "not needed", Fate.UNSUPPORTED: "**not supported**"}
    rows = [f"| `{key}` | {words[known.fate]} | {known.text} |\n" for key, known in table.items()]
    return "| key | | becomes, or why not |\n|---|---|---|\n" + "".join(rows)
