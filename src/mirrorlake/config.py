"""YAML to typed values, all faults at once.

Three steps: `Document` gives plain values and the line of every key; pydantic gives typed values; what it
refuses becomes `Fault`s with file, line and key. No message repeats a value that could be a secret.

A value that is refused hides no other fault, and causes none: the rest is read once more without it, and a rule
that asks for it is not judged.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, get_args

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
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from mirrorlake.errors import ConfigFault, Fault, UsageFault
from mirrorlake.secrets import SYNTAX, Secret

Key: TypeAlias = tuple[str | int, ...]
Broken: TypeAlias = tuple[Key, str]  # a rule that does not hold: where below the model, and what is wrong
T = TypeVar("T")

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


# --- values that are not well -----------------------------------------------------------------------------


class Unwell(str):
    """In place of a value that is refused: in a list it keeps the place; a model has no such field."""

    __slots__ = ()


UNWELL = Unwell()


class NotWell(AttributeError):
    """A question about a field whose value is refused."""


def or_unwell(value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """The value as it is checked; where the rest is wanted without it, UNWELL for one that is refused."""
    try:
        return value if value is UNWELL else check(value)
    except ValidationError:
        if not without_refused(info):
            raise
        return UNWELL


def without_refused(info: ValidationInfo) -> bool:
    """Whether this reading leaves out what is refused."""
    return bool(info.context and info.context.get("without_refused"))


def judged(rules: Iterator[T]) -> Iterator[T]:
    """What comes before the first question about a value that is refused."""
    with contextlib.suppress(NotWell):
        yield from rules


def when(key: Key, what: str, is_broken: Callable[[], object]) -> Iterator[Broken]:
    """A rule in a line."""
    if is_broken():
        yield key, what


def numbered(items: list[str]) -> Iterator[tuple[int, str]]:
    """The items that are well, with their places."""
    return ((index, item) for index, item in enumerate(items) if item is not UNWELL)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"unknown {what} {name}{did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = closest(name, known)
    return f"; did you mean {close[0]}?" if close else ""


def closest(name: str, known: Iterable[str]) -> list[str]:
    """The name that was meant, or none."""
    return difflib.get_close_matches(name, list(known), n=1)


def meant(keys: Iterable[str], known: Mapping[str, Any]) -> list[str]:
    """What the unknown ones of these keys were meant to be."""
    return [name for key in keys if key not in known for name in closest(key, known)]


# --- words: strings with a rule ---------------------------------------------------------------------------


def _name(text: str, info: ValidationInfo) -> str:
    # The rest is read with a wrong name too: it leads to what else is wrong below it.
    if not without_refused(info) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text):
        raise ValueError("a name begins with a letter or digit, then letters, digits, . _ - (at most 100)")
    return text


def _alias(name: str, info: ValidationInfo) -> str:
    # Known from the raw file, so that a wrong alias is reported together with all other faults.
    known = (info.context or {}).get("clusters")
    if known is not None and name not in known:
        raise ValueError(unknown("cluster", name, known))
    return name


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


def _client_key(option: str) -> str:
    if why := refused(option):
        raise ValueError(why)
    return option


def refused(option: str) -> str | None:
    """Why a client option may not be set by hand; None where it may."""
    key = option.lower()
    if DANGEROUS.fullmatch(key):
        return "refused: it can load code, run a command or switch off a check"
    if SECURITY.fullmatch(key):
        return "refused here: set it under `security`, where secrets are kept as references"
    return f"fixed by Mirrorlake: {OURS[key]}" if key in OURS else None


def _spark_key(option: str) -> str:
    if not option.startswith("spark."):
        raise ValueError("must begin with spark.")
    if re.match(r"(?i).*(password|secret|token|jaas|credential|access.?key).*", option):
        raise ValueError("refused: anyone can read Spark's settings")
    return option


Name = Annotated[str, AfterValidator(_name)]
Alias = Annotated[Name, AfterValidator(_alias)]
Topic = Annotated[str, AfterValidator(_topic), WrapValidator(or_unwell)]
Regex = Annotated[str, AfterValidator(_regex), WrapValidator(or_unwell)]
Template = Annotated[str, AfterValidator(_template)]
Naming = Annotated[str, AfterValidator(_naming)]
Separator = Annotated[str, AfterValidator(_separator)]
Servers = Annotated[str, BeforeValidator(_servers)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Interval = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Start = Annotated[str | datetime, PlainValidator(_start)]
Option = Annotated[str, BeforeValidator(_option)]
ClientOptions = dict[Annotated[str, AfterValidator(_client_key)], Option]
SparkOptions = dict[Annotated[str, AfterValidator(_spark_key)], Option]
Text = Annotated[str, Field(min_length=1)]
Isolation = Literal["read_committed", "read_uncommitted"]
Kind = Literal["kafka", "event_hubs", "event_streams"]


# --- models -----------------------------------------------------------------------------------------------


class Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    if not TYPE_CHECKING:  # else mypy would take any name for a field

        def __getattr__(self, name: str) -> Any:
            """A field whose value is refused is not there."""
            if name in type(self).model_fields:
                raise NotWell(name)
            return super().__getattr__(name)

    def rules(self) -> Iterator[Iterator[Broken]]:
        """Rules between fields, each by itself: one that cannot be judged leaves the others."""
        return iter(())

    def broken(self) -> list[Broken]:
        """The rules that do not hold, as far as they can be judged."""
        return [broken for rule in judged(self.rules()) for broken in judged(rule)]

    @classmethod
    def filled(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """The raw values, with those that go without saying."""
        return raw

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, raw: Any, info: ValidationInfo) -> Any:
        """Filled; a field whose key is mistyped is neither missing nor at its default, but not well."""
        if isinstance(raw, dict):
            filled = cls.filled({**dict.fromkeys(meant(raw, cls.model_fields), UNWELL), **raw})
            return cls._well(filled) if without_refused(info) else filled
        return dict.fromkeys(cls.model_fields, UNWELL) if raw is UNWELL or without_refused(info) else raw

    @classmethod
    def _well(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Without unknown keys; what is missing is there, but not well."""
        needed = [name for name, field in cls.model_fields.items() if field.is_required()]
        return {**dict.fromkeys(needed, UNWELL), **{key: raw[key] for key in raw if key in cls.model_fields}}

    @field_validator("*", mode="wrap")
    @classmethod
    def _or_unwell(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        return or_unwell(value, check, info)

    @model_validator(mode="after")
    def _hold_rules(self, info: ValidationInfo) -> Model:
        """Made by hand, rules hold at once; `validated` asks for them when all that is well is there."""
        for name in [name for name, value in self.__dict__.items() if value is UNWELL]:
            del self.__dict__[name]
        if info.context is None and (broken := self.broken()):
            text = "; ".join(f"{dotted(key)}: {what}" if key else what for key, what in broken)
            raise PydanticCustomError("rules", "{text}", {"text": text})
        return self


class Storage(Model):
    root: Text | None = None
    """Folder of tables, checkpoints and locks; `--root` and `MIRRORLAKE_ROOT` come first."""
    catalog: Text | None = None
    """Unity Catalog that holds the tables on Databricks."""
    volume: Text | None = None
    """Volume (`/Volumes/…`) for checkpoints and locks on Databricks; needed with `catalog`."""
    checkpoints: Text = "checkpoints"
    """Folder of Spark's checkpoints; a relative path lies below `root`, on a catalog below `volume`. Move it only to an
    empty folder: checkpoints then begin anew from bronze's own end, which loses and repeats nothing."""
    bronze: Template = "bronze.{source}__{topic}"
    """Bronze table: with `{topic}` a table for each topic, without it one for all of a flow."""
    ops_schema: Text = "ops"
    """Schema of the ledger and the other ops tables."""
    codec: Literal["zstd", "snappy", "lz4_raw", "uncompressed"] = "zstd"
    """Compression of the Parquet files."""
    deleted_file_retention_hours: int = Field(default=168, ge=1)
    """Hours that replaced files stay; must exceed the longest outage of a target."""

    def rules(self) -> Iterator[Iterator[Broken]]:
        missing = "is missing: a catalog needs a volume for checkpoints and locks"
        yield when(("volume",), missing, lambda: self.catalog and not self.volume)
        yield when(
            ("volume",), "must begin with /Volumes/", lambda: self.volume and not self.volume.startswith("/Volumes/")
        )
        both = "give a root (a folder) or a catalog (Databricks), not both"
        yield when(("root",), both, lambda: self.root and self.catalog)
        word = re.compile(r"\w+", re.ASCII)
        yield when(("ops_schema",), "must be letters, digits and _", lambda: not word.fullmatch(self.ops_schema))


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

    def rules(self) -> Iterator[Iterator[Broken]]:
        yield self._needed_for_sasl()
        yield self._only_for_oauth()
        yield self._only_for_sasl()
        yield self._only_for_tls()
        yield self._half_of_mutual_tls()
        both = "give a keystore, or certificate and key, not both"
        yield when(("keystore",), both, lambda: self.keystore and self.certificate)
        yield self._control_characters()

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name, None)]

    def _needed_for_sasl(self) -> Iterator[Broken]:
        if self.sasl:
            missing = f"is missing: {self.protocol} needs it"
            needed = ("mechanism", "username", "password")
            yield from (((name,), missing) for name in needed if not getattr(self, name, "not well"))
            if self.mechanism == "OAUTHBEARER" and not self.token_endpoint:
                yield ("token_endpoint",), missing

    def _only_for_oauth(self) -> Iterator[Broken]:
        if self.sasl and self.token_endpoint and not re.fullmatch(r"https://[!-+\--~]+", self.token_endpoint):
            yield ("token_endpoint",), "must begin with https://, and hold neither blanks nor commas"
        if self.sasl and self.mechanism and self.mechanism != "OAUTHBEARER":
            for name in self._given("token_endpoint", "scope", "token_ca"):
                yield (name,), f"has no use with {self.mechanism}"

    def _only_for_sasl(self) -> Iterator[Broken]:
        if not self.sasl:
            for name in self._given("mechanism", "username", "password", "token_endpoint", "scope", "token_ca"):
                yield (name,), f"has no use with {self.protocol}: did you mean protocol SASL_SSL?"

    def _only_for_tls(self) -> Iterator[Broken]:
        only = ("ca", "ca_password", "certificate", "key", "keystore", "keystore_password", "key_password")
        if not self.tls:
            yield from (((name,), f"has no use with {self.protocol}") for name in self._given(*only))

    def _half_of_mutual_tls(self) -> Iterator[Broken]:
        if bool(self.certificate) != bool(self.key):
            yield ("key" if self.certificate else "certificate",), "is missing: mutual TLS needs both"

    def _control_characters(self) -> Iterator[Broken]:
        for name in self._given("username", "scope", "ca", "certificate", "key", "keystore", "token_ca"):
            if any(ord(char) < 32 or ord(char) == 127 for char in getattr(self, name)):
                yield (name,), "holds a control character"


SECRETS = ("password", "ca_password", "keystore_password", "key_password")
# What a managed service leaves no choice about.
PRESETS: Mapping[str, Mapping[str, str]] = {
    "event_hubs": {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "$ConnectionString"},
    "event_streams": {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "token"},
}


def preset_of(kind: object, security: Mapping[str, object]) -> Mapping[str, str]:
    """What goes without saying for a kind; not known for a kind or a protocol that will be refused."""
    fits = kind in get_args(Kind) and security.get("protocol", "SASL_SSL") == "SASL_SSL"
    return PRESETS[str(kind)] if fits else dict.fromkeys(("protocol", "mechanism", "username"), UNWELL)


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

    @classmethod
    def filled(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """With what a managed service leaves no choice about; where the kind is refused, nobody knows what that is."""
        kind, security = raw.get("kind", "kafka"), raw.get("security", {})
        if kind == "kafka":
            return raw
        servers = FROM_SECRET if kind in get_args(Kind) else UNWELL
        secured = {**preset_of(kind, security), **security} if isinstance(security, dict) else security
        return {"bootstrap_servers": servers, **raw, "security": secured}

    def rules(self) -> Iterator[Iterator[Broken]]:
        yield self._tier_of_its_kind()
        servers = "must be host:port, or several of them"
        yield when(
            ("bootstrap_servers",),
            servers,
            lambda: self.kind == "kafka" and self.bootstrap_servers == FROM_SECRET,
        )
        yield self._unencrypted()
        unchecked = "switches off a check: leave it on, or set allow_insecure"
        yield when(
            ("security", "verify_hostname"),
            unchecked,
            lambda: not self.security.verify_hostname and not self.allow_insecure,
        )
        yield self._literal_secrets()

    def _tier_of_its_kind(self) -> Iterator[Broken]:
        tiers = TIERS.get(self.kind, ())
        if self.tier and self.tier not in tiers:
            yield ("tier",), f"{self.kind} has {', '.join(tiers)}" if tiers else f"has no use with {self.kind}"

    def _unencrypted(self) -> Iterator[Broken]:
        key, protocol = ("security", "protocol"), self.security.protocol
        if self.kind != "kafka" and protocol != "SASL_SSL":
            yield key, f"{self.kind} takes only SASL_SSL"
        if protocol == "SASL_PLAINTEXT" and not self.allow_insecure:
            yield key, "sends the password unencrypted: use SASL_SSL, or set allow_insecure"

    def _literal_secrets(self) -> Iterator[Broken]:
        for name in SECRETS:
            secret = getattr(self.security, name, None)
            if secret and secret.literal and not self.allow_literal_secrets:
                yield (
                    ("security", name),
                    f"is written out: give a reference ({SYNTAX}), or set allow_literal_secrets",
                )


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
    """Pause between looks at the table; by default 60 where ingest wakes the fan-out, 0 where only Spark may read."""
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
    cluster: Alias
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
    missing_topics: Literal["stop", "wait", "dead_letter"] = "stop"
    """Where a topic is missing, or too small, and only an operator can help: stop; or go on with the others, and wait
    until it is done; or list its records as dead letters meanwhile. Then all of it is sent, in order."""
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

    def rules(self) -> Iterator[Iterator[Broken]]:
        factor = "must be 1 or more, or -1 for the broker's default"
        yield when(
            ("replication_factor",),
            factor,
            lambda: self.replication_factor != -1 and not 1 <= self.replication_factor <= 32767,
        )
        yield listed_twice(self)


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
    source: Alias
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
    """Where the source dropped records, read or unread; an incident is written first."""
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

    def rules(self) -> Iterator[Iterator[Broken]]:
        nothing = "is missing: give topics, patterns or both"
        yield when(("topics",), nothing, lambda: not self.topics and not self.patterns)
        yield listed_twice(self)
        yield self._listed_and_excluded()
        yield self._targets_twice()
        for index, target in enumerate(self.targets):
            yield from self._target_rules(("targets", index), target)

    def _listed_and_excluded(self) -> Iterator[Broken]:
        # The default excludes are meant for patterns; excludes of the operator's own contradict the list.
        excludes = self.exclude if "exclude" in self.model_fields_set else []
        for index, topic in numbered(self.topics):
            if pattern := first_match(excludes, topic):
                yield ("topics", index), f"is listed, yet left out by exclude {pattern!r}"

    def _targets_twice(self) -> Iterator[Broken]:
        aliases = [getattr(target, "cluster", None) for target in self.targets]
        for index, alias in enumerate(aliases):
            if alias and aliases[:index].count(alias) == 1:
                yield ("targets", index, "cluster"), f"{alias} is a target of this flow already"

    def _target_rules(self, here: Key, target: Target) -> Iterator[Iterator[Broken]]:
        yield when((*here, "cluster"), "is the flow's own source", lambda: target.cluster == self.source)
        sole = "must be true where provenance is off: recovery rests on it"
        yield when((*here, "sole_writer"), sole, lambda: not self.provenance and not target.sole_writer)
        modulo = "modulo needs provenance: recovery tells partitions apart by it"
        yield when((*here, "partitions"), modulo, lambda: not self.provenance and target.partitions == "modulo")
        yield from self._deletion_rules((*here, "on_source_deleted"), target)
        yield self._narrowed_to_others((*here, "topics"), target)

    def _deletion_rules(self, key: Key, target: Target) -> Iterator[Iterator[Broken]]:
        stops = "delete needs on_source_loss: continue, or the flow stops before it"
        yield when(key, stops, lambda: target.on_source_deleted == "delete" and self.on_source_loss == "stop")
        others = "delete with identical names needs sole_writer: others may write there"
        yield when(
            key,
            others,
            lambda: target.on_source_deleted == "delete" and target.naming == "identity" and not target.sole_writer,
        )

    def _narrowed_to_others(self, key: Key, target: Target) -> Iterator[Broken]:
        taken = [*self.topics, *self.patterns]
        if any(each is UNWELL for each in taken):
            return  # it may be the one
        for place, topic in numbered(target.topics):
            if topic not in self.topics and not first_match(self.patterns, topic):
                yield (*key, place), "is not among the topics of the flow"


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

    @classmethod
    def filled(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """With the names of the flows."""
        flows = raw.get("flows")
        if not isinstance(flows, dict):
            return raw
        return raw | {
            "flows": {key: {**flow, "name": key} if isinstance(flow, dict) else flow for key, flow in flows.items()}
        }

    def rules(self) -> Iterator[Iterator[Broken]]:
        yield self._unknown_clusters()
        yield self._shared_tables()

    def _unknown_clusters(self) -> Iterator[Broken]:
        for name, flow in self.flows.items():
            if flow.source not in self.clusters:
                yield ("flows", name, "source"), unknown("cluster", flow.source, self.clusters)
            for index, target in enumerate(flow.targets):
                if target.cluster not in self.clusters:
                    yield (
                        ("flows", name, "targets", index, "cluster"),
                        unknown("cluster", target.cluster, self.clusters),
                    )

    def _shared_tables(self) -> Iterator[Broken]:
        """Two flows must not write one bronze table. Overlapping patterns show only once topics are known."""
        owner: dict[tuple[str, ...], str] = {}
        for name, flow in self.flows.items():
            for key, table in judged(tables_of(flow, self.storage)):
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


def listed_twice(model: Flow | Target) -> Iterator[Broken]:
    for index, topic in numbered(model.topics):
        if topic in model.topics[:index]:
            yield ("topics", index), f"{topic} is listed twice"


def first_match(patterns: Iterable[str], topic: str) -> str | None:
    return next((pattern for pattern in patterns if re.fullmatch(pattern, topic)), None)


def tables_of(flow: Flow, storage: Storage) -> Iterator[tuple[Key, tuple[str, ...]]]:
    """The flow's bronze tables as far as the file tells, each with the key that asks for it."""
    template = flow.bronze or storage.bronze
    holes = {"source": flow.source, "flow": flow.name}
    table = (template, *(value for hole, value in holes.items() if f"{{{hole}}}" in template))
    if "{topic}" in template:
        yield from ((("topics", index), (*table, topic)) for index, topic in numbered(flow.topics))
    else:
        yield ("bronze",) if flow.bronze else (), table


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

    def _fault(self, node: Any, key: Key, what: str) -> Unwell:
        self.faults.append((node.start_mark.line + 1, key, what))
        return UNWELL


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
    values = {key: value for key, value in raw.items() if not _filled_by_us((key,))}
    wrong: list[Broken] = []
    try:
        config = _read(values, without_refused=False)
    except ValidationError as bad:
        config = _read(values, without_refused=True)
        wrong = [fault_of(error) for error in bad.errors(include_input=False)]
    wrong = [(key, what) for key, what in wrong if not _filled_by_us(key)] + list(broken_below(config))
    return (None if wrong else config), wrong


def _read(values: dict[str, Any], without_refused: bool) -> Config:
    """The fields, without rules; where asked for, only those that are well."""
    clusters = values.get("clusters")
    known = set(clusters) if clusters and isinstance(clusters, dict) else None
    return Config.model_validate(values, context={"clusters": known, "without_refused": without_refused})


def broken_below(model: Model) -> Iterator[Broken]:
    """The rules that do not hold, of this model and of all below it."""
    yield from model.broken()
    for key, part in parts_of(model):
        yield from (((*key, *below), what) for below, what in broken_below(part))


def parts_of(model: Model) -> Iterator[tuple[Key, Model]]:
    for name, value in model.__dict__.items():
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        found: list[tuple[Key, Any]] = [((name,), value), *(((name, key), item) for key, item in items)]
        yield from ((key, part) for key, part in found if isinstance(part, Model))


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


def fault_of(error: ErrorDetails) -> Broken:
    """One pydantic error in our words."""
    key = tuple(part for part in error["loc"] if part != "[key]")
    return key, WORDS.get(error["type"], _pydantic_words)(key, error)


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
