"""YAML to typed values, all faults at once.

Three steps: `Document` gives plain values and the line of every key; pydantic gives typed values; what it
refuses becomes `Fault`s with file, line and key. No message repeats a value that could be a secret.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from mirrorlake.errors import ConfigFault, Fault, UsageFault
from mirrorlake.secrets import SYNTAX, Secret

Key: TypeAlias = tuple[str | int, ...]
Broken: TypeAlias = tuple[Key, str]  # a rule that does not hold: where below the model, and what is wrong

MIB = 1 << 20
FROM_SECRET = "from_secret"  # noqa: S105
"""In place of servers: a connection string or service credentials name them."""
TIERS = {"event_hubs": ("standard", "premium", "dedicated"), "event_streams": ("lite", "standard", "enterprise")}
MM2_EXCLUDES = (r".*[\-\.]internal", r".*\.replica", r"__.*")
# What MM2 and Connect keep in topics, as they and their operators name them.
CONTROL_EXCLUDES = (
    r"(?:.*[._-])?(?:connect|mm2|mirrormaker2?)(?:-cluster)?-(?:configs|offsets|status)(?:\..*)?",
    r"mm2-offset-syncs\..*",
)
DEFAULT_EXCLUDES = (*MM2_EXCLUDES, *CONTROL_EXCLUDES)
MM2_CONFIG_EXCLUDES = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
MM2_GROUP_EXCLUDES = (r"console-consumer-.*", r"connect-.*", r"__.*")


# --- words: strings with a rule ---------------------------------------------------------------------------


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text):
        raise ValueError("a name begins with a letter or digit, then letters, digits, . _ - (at most 100)")
    return text


def _topic(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text) or text in (".", ".."):
        raise ValueError("not a Kafka topic name: letters, digits, . _ - (at most 249, not . or ..)")
    return text


def _regex(text: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)
    except (re.error, OverflowError, RecursionError) as bad:
        raise ValueError(f"not a regular expression: {bad}") from None
    if re.search(r"\(\?[a-zA-Z]+\)|\\[1-9]|\(\?P=", text):
        # Patterns are joined into one for Spark, where flags would leak and groups would be counted anew.
        raise ValueError("inline flags such as (?i) and back-references are not supported")
    return text


def _template(text: str) -> str:
    holes = re.findall(r"\{([^{}]*)\}", text)
    if unknown := sorted(set(holes) - {"source", "topic", "flow"}):
        raise ValueError(f"unknown placeholder {{{unknown[0]}}}; there are {{source}}, {{topic}}, {{flow}}")
    if not re.fullmatch(r"\w+\.\w+", re.sub(r"\{\w+\}", "x", text), re.ASCII):
        raise ValueError("must be schema.table of letters, digits, _ and placeholders")
    if "{" in text.partition(".")[0]:
        raise ValueError("the schema (before the dot) takes no placeholder")
    return text


def _naming(text: str) -> str:
    if not re.fullmatch(r"default|identity|python:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", text):
        raise ValueError("must be default, identity or python:package.module:Class")
    return text


def _separator(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,20}", text):
        raise ValueError("a separator is made of characters that topic names allow")
    return text


def _servers(value: object) -> str:
    """A comma list or a YAML list, as a comma list."""
    if value == FROM_SECRET:
        return FROM_SECRET
    listed = value if isinstance(value, list) else value.split(",") if isinstance(value, str) else None
    if not listed or not all(isinstance(server, str) for server in listed):
        raise ValueError("must be host:port, or several of them")
    servers = [server.strip() for server in listed]
    if bad := [server for server in servers if not _is_server(server)]:
        raise ValueError(f"{bad[0][:100]!r} is not host:port")
    return ",".join(servers)


def _is_server(text: str) -> bool:
    match = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})", text)
    return match is not None and 0 < int(match[2]) < 65536


UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}


def _bytes(value: object) -> object:
    match = re.fullmatch(r"([0-9]{1,12}) ?([A-Za-z]*)", value) if isinstance(value, str) else None
    if match and match[2] in UNITS:
        return int(match[1]) * UNITS[match[2]]
    if isinstance(value, str):
        raise ValueError("must be a number of bytes, such as 268435456 or 256MiB")
    return value


def _start(value: object) -> str | datetime:
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(timezone.utc)
    if value in ("earliest", "latest"):
        return str(value)
    try:
        moment = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        return _start(moment) if moment.tzinfo else _refuse_start()
    except (ValueError, OverflowError):
        return _refuse_start()


def _refuse_start() -> str:
    raise ValueError("must be earliest, latest or a time with its zone, such as 2024-05-01T00:00:00Z") from None


def _option(value: object) -> object:
    """YAML reads `linger.ms: 5` as a number; client options are text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


# Options that load code, run commands, or weaken security; and options that belong elsewhere in this file.
DANGEROUS = re.compile(
    r"plugin\.library\.paths|.*\.class(es)?|.*kinit\.cmd|ssl\.engine\..*|ssl\.providers|security\.providers"
    r"|metric\.reporters|.*config\.providers.*|.*unsecure\.jwt|builtin\.features|opaque|.*_cb|.*\.cb"
)
SECURITY = re.compile(
    r"(sasl|ssl)\..*|security\..*|https\..*|enable\.ssl\..*|enable\.sasl\..*"
    r"|.*(password|passwd|secret|token|jaas|credential|private|pem|keystore|connection.?string).*"
)
OURS = {
    "acks": "every replica in sync must have the record",
    "request.required.acks": "every replica in sync must have the record",
    "allow.auto.create.topics": "topics are made with the source's partitions, or not at all",
    "auto.offset.reset": "an offset out of range is an incident, not a place to jump from",
    "bootstrap.servers": "set bootstrap_servers of the cluster",
    "metadata.broker.list": "set bootstrap_servers of the cluster",
    "delivery.report.only.error": "delivery is proved by the log end",
    "enable.auto.commit": "positions live in the ledger",
    "auto.commit.enable": "positions live in the ledger",
    "enable.auto.offset.store": "positions live in the ledger",
    "enable.gapless.guarantee": "records must not overtake a failed one",
    "enable.idempotence": "records must not arrive twice",
    "enable.partition.eof": "range reads end at the end of the partition",
    "group.id": "positions live in the ledger",
    "isolation.level": "set isolation of the flow",
    "max.in.flight": "idempotence decides it",
    "max.in.flight.requests.per.connection": "idempotence decides it",
    "message.timeout.ms": "set delivery_timeout_seconds of the fan-out",
    "delivery.timeout.ms": "set delivery_timeout_seconds of the fan-out",
    "queuing.strategy": "records stay in order",
    "transactional.id": "no promise rests on transactions",
}


def _passthrough(options: dict[str, str]) -> dict[str, str]:
    if broken := [((key,), why) for key in options if (why := refused(key))]:
        raise _rules(broken)
    return options


def refused(option: str) -> str | None:
    """Why a client option may not be set by hand; None where it may."""
    key = option.lower()
    if DANGEROUS.fullmatch(key):
        return "refused: it can load code, run a command or switch off a check"
    if SECURITY.fullmatch(key):
        return "refused here: set it under `security`, where secrets are kept as references"
    return f"fixed by Mirrorlake: {OURS[key]}" if key in OURS else None


def _spark(options: dict[str, str]) -> dict[str, str]:
    secret = re.compile(r"(?i).*(password|secret|token|jaas|credential|access.?key).*")
    broken: list[Broken] = [((key,), "must begin with spark.") for key in options if not key.startswith("spark.")]
    broken += [((key,), "refused: anyone can read Spark's settings") for key in options if secret.match(key)]
    if broken:
        raise _rules(broken)
    return options


def _rules(broken: Iterable[Broken]) -> PydanticCustomError:
    """Several broken rules of one model as one pydantic error; `faults_of` takes them apart again."""
    found = list(broken)
    text = "; ".join(f"{dotted(key)}: {what}" if key else what for key, what in found)
    return PydanticCustomError("rules", "{text}", {"text": text, "rules": found})


Name = Annotated[str, AfterValidator(_name)]
Topic = Annotated[str, AfterValidator(_topic)]
Regex = Annotated[str, AfterValidator(_regex)]
Template = Annotated[str, AfterValidator(_template)]
Naming = Annotated[str, AfterValidator(_naming)]
Separator = Annotated[str, AfterValidator(_separator)]
Servers = Annotated[str, BeforeValidator(_servers)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Interval = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Start = Annotated[str | datetime, PlainValidator(_start)]
Option = Annotated[str, BeforeValidator(_option)]
ClientOptions = Annotated[dict[str, Option], AfterValidator(_passthrough)]
SparkOptions = Annotated[dict[str, Option], AfterValidator(_spark)]
Text = Annotated[str, Field(min_length=1)]
Isolation = Literal["read_committed", "read_uncommitted"]
Kind = Literal["kafka", "event_hubs", "event_streams"]


# --- models -----------------------------------------------------------------------------------------------


class Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    def broken_rules(self) -> Iterator[Broken]:
        """Rules between fields; checked once the fields are well."""
        return iter(())

    @model_validator(mode="after")
    def _hold_rules(self) -> Model:
        if broken := list(self.broken_rules()):
            raise _rules(broken)
        return self


class Storage(Model):
    root: Text | None = None
    """Folder of tables, checkpoints and locks; `--root` and `MIRRORLAKE_ROOT` come first."""
    catalog: Text | None = None
    """Unity Catalog that holds the tables on Databricks."""
    volume: Text | None = None
    """Volume (`/Volumes/…`) for checkpoints and locks on Databricks; needed with `catalog`."""
    bronze: Template = "bronze.{source}__{topic}"
    """Bronze table: with `{topic}` a table for each topic, without it one for all of a flow."""
    ops_schema: Text = "ops"
    """Schema of the ledger and the other ops tables."""
    codec: Literal["zstd", "snappy", "lz4_raw", "uncompressed"] = "zstd"
    """Compression of the Parquet files."""
    deleted_file_retention_hours: int = Field(default=168, ge=1)
    """Hours that replaced files stay; must exceed the longest outage of a target."""

    def broken_rules(self) -> Iterator[Broken]:
        if self.catalog and not self.volume:
            yield ("volume",), "is missing: a catalog needs a volume for checkpoints and locks"
        if self.volume and not self.volume.startswith("/Volumes/"):
            yield ("volume",), "must begin with /Volumes/"
        if self.root and self.catalog:
            yield ("root",), "give a root (a folder) or a catalog (Databricks), not both"
        if not re.fullmatch(r"\w+", self.ops_schema, re.ASCII):
            yield ("ops_schema",), "must be letters, digits and _"


class Security(Model):
    protocol: Literal["PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT"] = "PLAINTEXT"
    """How to connect; `SASL_SSL` for every cloud service."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """SASL mechanism."""
    username: Text | None = None
    """User, or client id for OAUTHBEARER; may be a reference."""
    password: Secret | None = None
    """Password, connection string, API key or client secret, as a reference such as `${env:NAME}`."""
    token_endpoint: Text | None = None
    """https URL that gives tokens, for OAUTHBEARER."""
    scope: Text | None = None
    """Scope to ask of the token endpoint."""
    token_ca: Text | None = None
    """PEM file of the authorities that the token endpoint's certificate comes from; the system's where absent."""
    ca: Text | None = None
    """File of the authorities to trust, PEM, JKS or PKCS12; the system's where absent."""
    ca_password: Secret | None = None
    """Password of `ca` where it is a JKS or PKCS12 truststore, as a reference."""
    certificate: Text | None = None
    """PEM file of our certificate, for mutual TLS."""
    key: Text | None = None
    """PEM file of our private key, for mutual TLS."""
    keystore: Text | None = None
    """JKS or PKCS12 file of our key and certificate, instead of `certificate` and `key`."""
    keystore_password: Secret | None = None
    """Password of `keystore`, as a reference."""
    key_password: Secret | None = None
    """Password of the private key, as a reference; the keystore's where absent."""
    verify_hostname: bool = True
    """Check that the certificate names the host; `false` needs `allow_insecure`."""

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def broken_rules(self) -> Iterator[Broken]:
        yield from self._sasl_rules() if self.sasl else self._rules_without_sasl()
        tls_only = ("ca", "ca_password", "certificate", "key", "keystore", "keystore_password", "key_password")
        if not self.tls:
            yield from (((name,), f"has no use with {self.protocol}") for name in tls_only if getattr(self, name))
        if bool(self.certificate) != bool(self.key):
            yield ("key" if self.certificate else "certificate",), "is missing: mutual TLS needs both"
        if self.keystore and self.certificate:
            yield ("keystore",), "give a keystore, or certificate and key, not both"
        for name in ("username", "scope", "ca", "certificate", "key", "keystore", "token_ca"):
            if any(ord(char) < 32 or ord(char) == 127 for char in getattr(self, name) or ""):
                yield (name,), "holds a control character"

    def _sasl_rules(self) -> Iterator[Broken]:
        needed = ["mechanism", "username", "password"]
        needed += ["token_endpoint"] if self.mechanism == "OAUTHBEARER" else []
        yield from (((name,), f"is missing: {self.protocol} needs it") for name in needed if not getattr(self, name))
        if self.mechanism != "OAUTHBEARER":
            only = ("token_endpoint", "scope", "token_ca")
            yield from (((name,), f"has no use with {self.mechanism}") for name in only if getattr(self, name))
        if self.token_endpoint and not re.fullmatch(r"https://[!-+\--~]+", self.token_endpoint):
            yield ("token_endpoint",), "must begin with https://, and hold neither blanks nor commas"

    def _rules_without_sasl(self) -> Iterator[Broken]:
        for name in ("mechanism", "username", "password", "token_endpoint", "scope", "token_ca"):
            if getattr(self, name):
                yield (name,), f"has no use with {self.protocol}: did you mean protocol SASL_SSL?"


SECRETS = ("password", "ca_password", "keystore_password", "key_password")
# What a managed service leaves no choice about.
PRESETS: Mapping[str, Mapping[str, str]] = {
    "event_hubs": {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "$ConnectionString"},
    "event_streams": {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "token"},
}


class Cluster(Model):
    kind: Kind = "kafka"
    """`event_hubs` and `event_streams` fill security and know the limits."""
    tier: Literal["lite", "standard", "premium", "dedicated", "enterprise"] | None = None
    """Tier of a managed service, which decides its limits."""
    bootstrap_servers: Servers
    """`host:port`, several by comma or as a list; managed services: absent where the secret names them."""
    security: Security = Security()
    """How to connect and who we are."""
    client: ClientOptions = {}
    """librdkafka options for consumers and producers alike."""
    producer: ClientOptions = {}
    """librdkafka options for producers."""
    consumer: ClientOptions = {}
    """librdkafka options for consumers."""
    allow_insecure: bool = False
    """Allow `SASL_PLAINTEXT`, or TLS that does not check the host name."""
    allow_literal_secrets: bool = False
    """Allow passwords written here instead of references; for throw-away clusters."""

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, raw: Any) -> Any:
        kind = raw.get("kind") if isinstance(raw, dict) else None
        security = raw.get("security", {}) if isinstance(raw, dict) else None
        if isinstance(kind, str) and kind in PRESETS and isinstance(security, dict):
            return {"bootstrap_servers": FROM_SECRET, **raw, "security": {**PRESETS[kind], **security}}
        return raw

    def broken_rules(self) -> Iterator[Broken]:
        yield from self._service_rules()
        security = self.security
        if security.protocol == "SASL_PLAINTEXT" and not self.allow_insecure:
            yield (
                ("security", "protocol"),
                "sends the password unencrypted: use SASL_SSL, or set allow_insecure",
            )
        if not security.verify_hostname and not self.allow_insecure:
            yield ("security", "verify_hostname"), "switches off a check: leave it on, or set allow_insecure"
        if self.kind != "kafka" and security.protocol != "SASL_SSL":
            yield ("security", "protocol"), f"{self.kind} takes only SASL_SSL"
        for name in SECRETS:
            secret = getattr(security, name)
            if secret and secret.literal and not self.allow_literal_secrets:
                yield (
                    ("security", name),
                    f"is written out: give a reference ({SYNTAX}), or set allow_literal_secrets",
                )

    def _service_rules(self) -> Iterator[Broken]:
        tiers = TIERS.get(self.kind, ())
        if self.tier and self.tier not in tiers:
            yield ("tier",), f"{self.kind} has {', '.join(tiers)}" if tiers else f"has no use with {self.kind}"
        if self.kind == "kafka" and self.bootstrap_servers == FROM_SECRET:
            yield ("bootstrap_servers",), "must be host:port, or several of them"


class Ingest(Model):
    trigger_seconds: Seconds = 0.5
    """A batch begins at most this often; 0 begins the next at once, for less latency and more commits."""
    max_records_per_batch: int = Field(default=500000, ge=1)
    """Most records of one batch."""
    max_bytes_per_batch: Bytes = 256 * MIB
    """Most bytes of one batch, such as `256MiB`."""
    reader: Literal["auto", "workers", "spark"] = "auto"
    """Python workers read the batches, or Spark's Kafka source where storage is governed."""


class Fanout(Model):
    trigger_seconds: Seconds | None = None
    """Pause between looks at the table; by default 15 where ingest wakes the fan-out, 0 where only Spark may read."""
    max_bytes_per_round: Bytes = 256 * MIB
    """Most bytes sent before the ledger hears of it."""
    delivery_timeout_seconds: int = Field(default=120, ge=1)
    """How long a record may wait for its acknowledgement before we stop and recover."""
    reader: Literal["auto", "files", "spark"] = "auto"
    """Read Parquet files directly, or through Spark where storage is governed."""
    producer: ClientOptions = {}
    """librdkafka producer options of this flow; come before the cluster's."""


class ConfigSync(Model):
    enabled: bool = True
    """Keep topics configured as on the source. A new topic begins so in any case."""
    every_seconds: Interval = 60
    """How often to compare; only differences are written."""
    exclude: list[Regex] = list(MM2_CONFIG_EXCLUDES)
    """Keys that are the target's own business, as expressions that match the whole key."""
    use_defaults_from: Literal["target", "source"] = "target"
    """What a key at Kafka's default on the source means: the target's default, or the source's value."""


class AclSync(Model):
    enabled: bool = True
    """Copy ACLs of relayed topics, where the source has an authorizer: no write, and read instead of all."""
    every_seconds: Interval = 60
    """How often to compare; only differences are written."""
    prefixed: bool = False
    """Copy ACLs for prefixes of topic names too, where a relayed topic begins so."""
    groups: bool = False
    """Copy ACLs of consumer groups too, as they are."""
    remove: bool = False
    """Take away what we gave once the source has taken it away."""


class Groups(Model):
    include: list[Regex] = [".*"]
    """Consumer groups that fully match one of these."""
    exclude: list[Regex] = list(MM2_GROUP_EXCLUDES)
    """Of those, leave out groups that fully match one of these."""
    checkpoints: bool = True
    """Write where each group stands on both sides to `ops.group_checkpoints`."""
    checkpoint_seconds: Interval = 60
    """How often."""
    sync: bool = False
    """Commit the translated offsets on the target, for groups that have no members there."""
    sync_seconds: Interval = 60
    """How often; 5 for a tight fail-over."""
    rewind: bool = False
    """Follow a group that was set back at the source; otherwise a group never goes back."""
    mm2_checkpoints: bool | None = None
    """Write MM2's `<source>.checkpoints.internal` to the target; by default not on Event Hubs, where topics are few."""
    mm2_offset_syncs: Literal["none", "source", "target"] = "none"
    """Write MM2's `mm2-offset-syncs.<other>.internal` to one of the clusters."""

    @property
    def every_seconds(self) -> float:
        """One pass serves both."""
        chosen = [self.checkpoint_seconds] * self.checkpoints + [self.sync_seconds] * self.sync
        return min(chosen, default=float("inf"))


class Target(Model):
    cluster: Name
    """Alias of the cluster to write to."""
    naming: Naming = "default"
    """`default` prefixes the source's alias, `identity` keeps names, `python:module:Class` is yours."""
    separator: Separator = "."
    """Between alias and topic in `default` names."""
    topics: list[Topic] = []
    """Narrow to these topics of the flow."""
    patterns: list[Regex] = []
    """Narrow to topics that fully match one of these."""
    exclude: list[Regex] = []
    """Leave out topics that fully match one of these."""
    replication_factor: int = -1
    """Of topics that we make; -1 is the broker's default."""
    create_topics: bool = True
    """Make missing topics, with the source's partitions."""
    missing_topics: Literal["stop", "wait"] = "stop"
    """Where a topic is missing, or too small, and only an operator can help: stop, or wait until it is done."""
    partitions: Literal["same", "modulo"] = "same"
    """`same` keeps partition numbers, or refuses; `modulo` does with fewer: number modulo count, keys in order."""
    on_topic_deleted: Literal["stop", "recreate"] = "stop"
    """Where somebody deleted a topic on the target: stop, or make it again and fill it from bronze."""
    configs: ConfigSync = ConfigSync()
    """Topic configurations as on the source."""
    acls: AclSync = AclSync()
    """ACLs as on the source."""
    on_source_deleted: Literal["report", "delete"] = "report"
    """Where a topic is deleted on the source: an incident, or the target's is deleted too, after the time of grace."""
    delete_after_seconds: Seconds = 86400
    """The time of grace before a deletion on the source reaches the target."""
    existing_records: Literal["stop", "append", "latest"] = "stop"
    """Where a target topic holds records we do not know: stop, append all, or begin at the latest."""
    rate_limit_records_per_second: int | None = Field(default=None, ge=1)
    """Most records per second to this target."""
    groups: Groups = Groups()
    """Consumer groups: where they stand on both sides."""
    sole_writer: bool = False
    """Declares that nobody else writes to these topics; needed where provenance is off."""

    @field_validator("cluster")
    @classmethod
    def _known(cls, alias: str, info: ValidationInfo) -> str:
        return known_cluster(alias, info)

    def broken_rules(self) -> Iterator[Broken]:
        if self.replication_factor != -1 and not 1 <= self.replication_factor <= 32767:
            yield ("replication_factor",), "must be 1 or more, or -1 for the broker's default"
        yield from repeated("topics", self.topics)


class Heartbeats(Model):
    enabled: bool = False
    """Write MM2's heartbeats at both ends and relay them to `<alias>.heartbeats`; on by itself for files of MM2."""
    every_seconds: Interval = 10
    """How often; each is a commit in Delta."""
    replication_factor: int = -1
    """Of the topic `heartbeats` where we make it; -1 is the broker's default."""


class Flow(Model):
    name: Name
    """The flow's key."""
    source: Name
    """Alias of the cluster to read from."""
    topics: list[Topic] = []
    """Topics by name; each has its own bronze table."""
    patterns: list[Regex] = []
    """Topics that fully match one of these; they share a bronze table."""
    exclude: list[Regex] = list(DEFAULT_EXCLUDES)
    """Of the topics that a pattern takes, leave out those that fully match one of these."""
    targets: list[Target] = Field(min_length=1)
    """Where the records go."""
    start: Start = "earliest"
    """Where a topic read for the first time begins: `earliest`, `latest` or a time with its zone."""
    isolation: Isolation = "read_committed"
    """`read_committed` leaves out aborted transactions; `read_uncommitted` takes all."""
    provenance: bool = True
    """Add one header that says where a record came from."""
    max_hops: int = Field(default=1, ge=1, le=255)
    """How many relays a record may pass: 1 in a mesh, more in a chain."""
    on_source_loss: Literal["stop", "continue"] = "stop"
    """Where the source dropped records unread; an incident is written. A log that went back stops in any case."""
    on_undeliverable: Literal["dead_letter", "stop"] = "stop"
    """What to do with a record that a target can never take."""
    heartbeats: Heartbeats = Heartbeats()
    """Signs of life for monitors."""
    bronze: Template | None = None
    """Bronze table of this flow; `storage.bronze` where absent."""
    ingest: Ingest = Ingest()
    """The first leg: Kafka to Delta."""
    fanout: Fanout = Fanout()
    """The second leg: Delta to Kafka."""

    @field_validator("source")
    @classmethod
    def _known(cls, alias: str, info: ValidationInfo) -> str:
        return known_cluster(alias, info)

    def broken_rules(self) -> Iterator[Broken]:
        if not self.topics and not self.patterns:
            yield ("topics",), "is missing: give topics, patterns or both"
        yield from repeated("topics", self.topics)
        # The default excludes are meant for patterns; excludes of the operator's own contradict the list.
        excludes = self.exclude if "exclude" in self.model_fields_set else []
        for index, topic in enumerate(self.topics):
            if pattern := first_match(excludes, topic):
                yield ("topics", index), f"is listed, yet left out by exclude {pattern!r}"
        yield from self._target_rules()

    def _target_rules(self) -> Iterator[Broken]:
        seen = Counter[str]()
        for index, target in enumerate(self.targets):
            here = ("targets", index)
            seen[target.cluster] += 1
            if target.cluster == self.source:
                yield (*here, "cluster"), "is the flow's own source"
            if seen[target.cluster] == 2:
                yield (*here, "cluster"), f"{target.cluster} is a target of this flow already"
            if not self.provenance and not target.sole_writer:
                yield (*here, "sole_writer"), "must be true where provenance is off: recovery rests on it"
            if target.on_source_deleted == "delete" and self.on_source_loss == "stop":
                yield (*here, "on_source_deleted"), "delete needs on_source_loss: continue, or the flow stops before it"
            if target.on_source_deleted == "delete" and target.naming == "identity" and not target.sole_writer:
                yield (
                    (*here, "on_source_deleted"),
                    "delete with identical names needs sole_writer: others may write there",
                )
            if not self.provenance and target.partitions == "modulo":
                yield (*here, "partitions"), "modulo needs provenance: recovery tells partitions apart by it"
            for place, topic in enumerate(target.topics):
                if topic not in self.topics and not first_match(self.patterns, topic):
                    yield (*here, "topics", place), "is not among the topics of the flow"


class Runner(Model):
    refresh_topics_seconds: Seconds = 30
    """How often to look for new topics and partitions."""
    lag_sample_seconds: Seconds = 10
    """How often to write lag samples."""
    ledger_commit_seconds: Seconds = 1.0
    """Batches within this time share one ledger commit."""
    refused_seconds: Seconds = 60
    """How long a cluster may refuse us that did not before, while passwords, certificates or rights are changed."""
    spark: SparkOptions = {}
    """Further Spark settings."""
    spark_log_level: Literal["debug", "info", "warn", "error"] = "warn"
    """What Spark and its Kafka client write to `<root>/logs/spark.log`."""
    driver_memory: str = Field(default="2g", pattern="^[0-9]+[kmgKMG]$")
    """Memory of the local Spark driver."""
    parallelism: int | None = Field(default=None, ge=1)
    """Local Spark cores; all where absent."""


class Config(Model):
    storage: Storage = Storage()
    """Where tables, checkpoints and locks lie."""
    clusters: dict[Name, Cluster] = Field(min_length=1)
    """Clusters by alias."""
    flows: dict[Name, Flow] = Field(min_length=1)
    """Flows by name."""
    runner: Runner = Runner()
    """The process that runs the flows."""
    path: Path | None = None
    """The file this came from."""
    others: dict[Name, Flow] = {}
    """Flows of the file that were not selected: nothing runs them, but their ledgers know offsets too."""

    @model_validator(mode="before")
    @classmethod
    def _name_flows(cls, raw: Any) -> Any:
        flows = raw.get("flows") if isinstance(raw, dict) else None
        if not isinstance(flows, dict):
            return raw
        named = {key: {"name": key, **flow} if isinstance(flow, dict) else flow for key, flow in flows.items()}
        return {**raw, "flows": named}

    def broken_rules(self) -> Iterator[Broken]:
        for name, flow in self.flows.items():
            if flow.source not in self.clusters:
                yield ("flows", name, "source"), unknown("cluster", flow.source, self.clusters)
            for index, target in enumerate(flow.targets):
                if target.cluster not in self.clusters:
                    yield (
                        ("flows", name, "targets", index, "cluster"),
                        unknown("cluster", target.cluster, self.clusters),
                    )
        yield from self._shared_tables()

    def _shared_tables(self) -> Iterator[Broken]:
        """Two flows must not write one bronze table. Overlapping patterns show only once topics are known."""
        owner: dict[tuple[str, ...], str] = {}
        for name, flow in self.flows.items():
            for key, table in tables_of(flow, flow.bronze or self.storage.bronze):
                if (first := owner.setdefault(table, name)) != name:
                    yield (
                        ("flows", name, *key),
                        f"shares a bronze table with flow {first}: make them one, or set bronze",
                    )

    def flow(self, name: str) -> Flow:
        if name not in self.flows:
            raise UsageFault(unknown("flow", name, self.flows), f"Flows are: {', '.join(sorted(self.flows))}.")
        return self.flows[name]

    def select(self, flows: Iterable[str] = (), clusters: Iterable[str] = ()) -> Config:
        """Only these flows, and of them only targets on these clusters; no names mean all."""
        chosen = [self.flow(name) for name in flows] or list(self.flows.values())
        aliases = set(clusters)
        for alias in sorted(aliases - set(self.clusters)):
            raise UsageFault(
                unknown("cluster", alias, self.clusters), f"Clusters are: {', '.join(sorted(self.clusters))}."
            )
        kept = {flow.name: narrowed for flow in chosen if (narrowed := _only_targets(flow, aliases)).targets}
        if not kept:
            raise UsageFault(
                f"No flow writes to {', '.join(sorted(aliases))}.", "mirrorlake plan shows who writes where."
            )
        others = {name: flow for name, flow in self.flows.items() if name not in kept}
        return self.model_copy(update={"flows": kept, "others": {**self.others, **others}})


def with_root(config: Config, root: str | Path | None) -> Config:
    """The configuration with another storage root; None changes nothing."""
    if root is None:
        return config
    return config.model_copy(update={"storage": config.storage.model_copy(update={"root": str(root)})})


def _only_targets(flow: Flow, aliases: set[str]) -> Flow:
    kept = [target for target in flow.targets if not aliases or target.cluster in aliases]
    return flow.model_copy(update={"targets": kept})


def known_cluster(alias: str, info: ValidationInfo) -> str:
    # Known from the raw file, so that a wrong alias is reported together with all other faults.
    known = (info.context or {}).get("clusters")
    if known is not None and alias not in known:
        raise ValueError(unknown("cluster", alias, known))
    return alias


def repeated(field: str, names: list[str]) -> Iterator[Broken]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield (field, index), f"{name} is listed twice"


def first_match(patterns: Iterable[str], topic: str) -> str | None:
    return next((pattern for pattern in patterns if re.fullmatch(pattern, topic)), None)


def tables_of(flow: Flow, template: str) -> Iterator[tuple[Key, tuple[str, ...]]]:
    """The flow's bronze tables as far as the file tells, each with the key that asks for it."""
    holes = {"source": flow.source, "flow": flow.name}
    table = (template, *(value for hole, value in holes.items() if f"{{{hole}}}" in template))
    if "{topic}" in template:
        yield from ((("topics", index), (*table, topic)) for index, topic in enumerate(flow.topics))
    else:
        yield ("bronze",) if flow.bronze else (), table


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"unknown {what} {name}{did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


# --- YAML -------------------------------------------------------------------------------------------------

MAX_FILE_BYTES = MIB
MAX_ALIASES = 16  # enough for a block used twice or thrice, too few for a bomb
MAX_DEPTH = 24


class _Loader(yaml.SafeLoader):
    """Plain data, without YAML 1.1's surprises: `no` is text, `12:30` is text, dates are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    aliases = depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        self.aliases += self.check_event(yaml.AliasEvent)
        if self.depth > MAX_DEPTH or self.aliases > MAX_ALIASES:
            what = "too deeply nested" if self.depth > MAX_DEPTH else f"more than {MAX_ALIASES} aliases"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=what, problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _pattern, _first in (
    ("bool", r"(?:true|false|True|False)", "tfTF"),
    ("int", r"-?(?:0|[1-9][0-9_]{0,17})", "-0123456789"),
    ("float", r"-?[0-9]{1,18}\.[0-9]{1,18}", "-0123456789"),
    ("null", r"(?:~|null|)", ["~", "n", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^{_pattern}$"), list(_first))


class Document:
    """Plain values of a YAML text, the line of every key, and what is wrong with the text itself."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Key, int] = {(): 1}
        self.faults: list[tuple[int, Key, str]] = []
        self.value: Any = None
        self._open: list[yaml.Node] = []
        try:
            self._loader = _Loader(text)
            self.value = self._build(self._loader.get_single_node(), ())
        except yaml.YAMLError as bad:
            self.faults.append(_yaml_fault(bad))

    def _build(self, node: Any, key: Key) -> Any:
        self.lines.setdefault(key, node.start_mark.line + 1 if node else 1)
        if node in self._open:
            return self._fault(node, key, "an alias that contains itself")
        self._open.append(node)
        value = self._build_open(node, key)
        self._open.pop()
        return value

    def _build_open(self, node: Any, key: Key) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._build_mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*key, index)) for index, item in enumerate(node.value)]
        return self._build_scalar(node, key) if node else None

    def _build_mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, item in node.value:
            place: Key = (*key, str(name.value))
            if not isinstance(name, yaml.ScalarNode):
                self._fault(name, key, "a key must be plain text")
            elif name.value in values:
                self._fault(name, place, f"twice; first on line {self.lines[place]}")
            else:
                self.lines[place] = name.start_mark.line + 1
                values[name.value] = self._build(item, place)
        return values

    def _build_scalar(self, node: yaml.ScalarNode, key: Key) -> Any:
        if node.tag.startswith("tag:yaml.org,2002:"):
            try:
                return self._loader.construct_object(node)
            except (ValueError, KeyError, yaml.YAMLError):
                pass
        return self._fault(node, key, "a YAML tag that does not fit: leave it out")

    def _fault(self, node: Any, key: Key, what: str) -> None:
        self.faults.append((node.start_mark.line + 1, key, what))


def _yaml_fault(bad: yaml.YAMLError) -> tuple[int, Key, str]:
    # PyYAML quotes the text around the fault, and the names of anchors: either may be a secret.
    mark = getattr(bad, "problem_mark", None)
    problem = getattr(bad, "problem", None) or getattr(bad, "reason", None) or "not YAML"
    return (mark.line + 1 if mark else 1), (), "YAML: " + re.sub(r" (['\"])(?!<)..+\1", "", str(problem))


# --- from text to Config ----------------------------------------------------------------------------------


def load(path: Path) -> Config:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageFault(f"{path} is larger than {MAX_FILE_BYTES} bytes: not a configuration.")
        text = path.read_text(encoding="utf-8")
    except OSError as bad:
        raise UsageFault(f"{path} could not be read: {bad.strerror}.", "Check the path given with -c.") from None
    except UnicodeDecodeError:
        raise UsageFault(f"{path} is not UTF-8 text.", "Check the path given with -c.") from None
    return parse(text, str(path)).model_copy(update={"path": path})


def parse(text: str, where: str) -> Config:
    """The configuration, or one `ConfigFault` with everything that is wrong."""
    document = Document(text)
    faults = list(document.faults)
    faults += [(document.lines[key], key, "unknown key") for key in document.lines if _filled_by_us(key)]
    if isinstance(document.value, dict) and not _only_syntax(document):
        config, wrong = validated(document.value)
        faults += [(line_of(key, document.lines), key, what) for key, what in wrong]
        if config and not faults:
            return config
    raise _config_fault(where, faults or [(1, (), "a configuration is a mapping with clusters and flows")])


def _only_syntax(document: Document) -> bool:
    return any(key == () for _, key, _ in document.faults)


def _filled_by_us(key: Key) -> bool:
    return key in (("path",), ("others",)) or (len(key) == 3 and key[0] == "flows" and key[2] == "name")


def validated(raw: dict[str, Any]) -> tuple[Config | None, list[Broken]]:
    """Plain values as a configuration, or everything that is wrong with them."""
    clusters = raw.get("clusters")
    try:
        context = {"clusters": set(clusters) if isinstance(clusters, dict) else set()}
        values = {key: value for key, value in raw.items() if not _filled_by_us((key,))}
        return Config.model_validate(values, context=context), []
    except ValidationError as bad:
        return None, [broken for error in bad.errors(include_input=False) for broken in faults_of(error)]


def _config_fault(where: str, faults: list[tuple[int, Key, str]]) -> ConfigFault:
    listed = tuple(Fault(f"{where}:{line}", dotted(key), what) for line, key, what in sorted(faults, key=_by_line))
    count = "1 fault" if len(listed) == 1 else f"{len(listed)} faults"
    return ConfigFault(f"{where}: {count}.", "docs/configuration.md lists every key.", faults=listed)


def _by_line(fault: tuple[int, Key, str]) -> int:
    return fault[0]


def line_of(key: Key, lines: Mapping[Key, int]) -> int:
    """The line of the key, or of the nearest one around it."""
    return next(lines[key[:end]] for end in range(len(key), -1, -1) if key[:end] in lines)


def dotted(key: Key) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def faults_of(error: ErrorDetails) -> list[Broken]:
    """One pydantic error in our words; broken rules come out one by one."""
    key = tuple(part for part in error["loc"] if part != "[key]")
    if error["type"] == "rules":
        return [((*key, *below), what) for below, what in error["ctx"]["rules"]]
    return [(key, WORDS.get(error["type"], _pydantic_words)(key, error))]


def _pydantic_words(key: Key, error: ErrorDetails) -> str:
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _unknown_key(key: Key, error: ErrorDetails) -> str:
    return f"unknown key{did_you_mean(str(key[-1]), model_at(key[:-1]).model_fields)}"


WORDS: Mapping[str, Callable[[Key, ErrorDetails], str]] = {
    "missing": lambda key, error: "is missing",
    "extra_forbidden": _unknown_key,
    "string_type": lambda key, error: "must be text: quote it",
    "dict_type": lambda key, error: "must be a mapping",
    "model_type": lambda key, error: "must be a mapping",
    "list_type": lambda key, error: "must be a list",
    "too_short": lambda key, error: "must not be empty",
}


def model_at(key: Key) -> type[Model]:
    """The model that a key leads to; aliases, names and indexes are passed over."""
    model: type[Model] = Config
    for part in key:
        field = model.model_fields.get(str(part))
        model = (models_in(field.annotation) or [model])[0] if field else model
    return model


def models_in(annotation: Any) -> list[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]
