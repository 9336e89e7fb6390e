"""What we ask of a cluster: topics and their ids, log starts and ends, ranges of records, new topics.

One thin layer over confluent-kafka that turns its error codes into our error tree.
"""

from __future__ import annotations

import contextlib
import gc
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import TopicPartition as _TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from mirrorlake.errors import (
    AccessRefused,
    ClusterUnreachable,
    DataAtRisk,
    MirrorlakeError,
    RecordRefused,
    TopicMissing,
    Unreachable,
)
from mirrorlake.records import TopicPartition, trunk

_ACCESS = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
# What a broker says of a record, not of itself; the code may hide behind the gapless guarantee's fatal error.
_RECORD_FAULTS = [
    KafkaError(code).str()
    for code in (KafkaError.INVALID_TIMESTAMP, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
]
_OLD_FORMAT = KafkaError(KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT).str()
_UNKNOWN_SETTING = re.compile(r"Unknown topic config name: ([\w.-]+)")
_NO_CONTROLLER = "waiting for controller"  # librdkafka's words
_SHARES = (1 / 8, 1 / 4, 5 / 8)
"""Of a time-out, for questions to the controller: the first tries leave time for another client."""
_T = TypeVar("_T")

ABSENT_SECONDS = 5.0
"""A topic that nobody knows for so long is gone; a broker that has just started may not know it for a moment."""
READER_GROUP = "mirrorlake-reader"
"""Of consumers that read ranges; it commits nothing."""
GRACE_SECONDS = 10.0
"""After its time-out a request is given so long to say so."""
SILENT_SECONDS = 30.0
"""After so long without an answer a client is replaced."""
QUIET = {"log_level": "0"}
"""What librdkafka would print to stderr reaches us through callbacks and errors."""


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Records hold no cycles; looking for some among their many short lists is a fifth of the work."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class TopicInfo:
    """A topic as the cluster describes it; `id` is empty where brokers know no topic ids."""

    name: str
    id: str
    partitions: int
    replication_factor: int


def is_same_topic(kept_id: str, id_now: str) -> bool:
    """Is it the topic that we knew? Where brokers told no id, then or now, nothing speaks against it."""
    kept = trunk(kept_id)
    return not kept or not id_now or kept == id_now


@dataclass(frozen=True)
class NewTopicSpec:
    """A topic to be made."""

    name: str
    partitions: int
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicSetting:
    """One entry of a topic's configuration, and who says so: the topic itself, its broker, or Kafka's default."""

    value: str | None
    origin: str = "topic"
    """`topic`, `dynamic_broker`, `static_broker` or `default`."""
    fixed: bool = False
    """Read-only or secret: nothing to copy."""


_ORIGINS = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.STATIC_BROKER_CONFIG: "static_broker",
    ConfigSource.DEFAULT_CONFIG: "default",
}


def _topic_setting(entry: Any) -> TopicSetting:
    # The binding gives the source as a plain number.
    origin = _ORIGINS.get(ConfigSource(entry.source), "dynamic_broker")
    return TopicSetting(entry.value, origin, bool(entry.is_read_only or entry.is_sensitive))


@dataclass(frozen=True, order=True)
class Acl:
    """Who may, or may not, do what with which resource; in Kafka's words, lower case."""

    resource: str
    """`topic` or `group`."""
    name: str
    principal: str
    operation: str
    permission: str = "allow"
    host: str = "*"
    pattern: str = "literal"

    def __str__(self) -> str:
        where = "" if self.host == "*" else f" from {self.host}"
        prefixed = " (prefix)" if self.pattern == "prefixed" else ""
        return f"{self.permission} {self.principal}{where} {self.operation} on {self.resource} {self.name}{prefixed}"


def _acl(binding: AclBinding) -> Acl:
    return Acl(
        binding.restype.name.lower(),
        binding.name,
        binding.principal,
        binding.operation.name.lower(),
        binding.permission_type.name.lower(),
        binding.host,
        binding.resource_pattern_type.name.lower(),
    )


def _acl_arguments(acl: Acl) -> tuple[Any, ...]:
    return (
        ResourceType[acl.resource.upper()],
        acl.name,
        ResourcePatternType[acl.pattern.upper()],
        acl.principal,
        acl.host,
        AclOperation[acl.operation.upper()],
        AclPermissionType[acl.permission.upper()],
    )


# What no waiting mends. All else (elections, restarts, loading coordinators, full queues) passes by itself.
_LASTING = {
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICA_ASSIGNMENT,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_REQUEST,
    KafkaError.POLICY_VIOLATION,
    KafkaError.SECURITY_DISABLED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._INVALID_ARG,
    KafkaError._UNSUPPORTED_FEATURE,
}


# A broker that does not like our certificate says so after the handshake, as an alert on a connection that breaks.
_ALERT = re.compile(r"alert (bad certificate|certificate (required|unknown|expired|revoked)|unknown ca|decrypt error)")
_CURES = (
    (r"OAUTHBEARER token.*certificate", "set security.token_ca of {alias} to the authority of the token endpoint"),
    (
        r"OAUTHBEARER",
        "check security.token_endpoint, username (the client id), password (its secret) and scope of {alias}",
    ),
    (_ALERT.pattern, "set security.certificate and key (or keystore) of {alias} to ones that its authority signed"),
    (
        r"certificate verify failed",
        "set security.ca of {alias} to the authority of its brokers; `mirrorlake doctor` tells whether authority, "
        "host name or date is wrong",
    ),
    (r"SASL|[Aa]uthentication", "check security.username, password and mechanism of {alias}"),
    (r"[Aa]uthoriz", "grant it: `mirrorlake doctor` prints the kafka-acls commands for {alias}"),
)


def cure_of(said: str) -> str:
    """What to do about a refusal, by the words of librdkafka or the broker; `{alias}` is to be filled in."""
    default = "check user, password, certificate and ACLs for {alias} in the configuration"
    return next((cure for words, cure in _CURES if re.search(words, said)), default)


_JAVA_REFUSAL = re.compile(r"(\w*(?:Authorization|Authentication)Exception|SSLHandshakeException):? ([^\n]*)")


def refusal_in(said: str, alias: str) -> AccessRefused | None:
    """What Kafka's Java client was refused, in the words of a failed query; None where it failed of something else."""
    found = _JAVA_REFUSAL.search(said)
    if found is None:
        return None
    words = f"{found[1]}: {found[2][:300]}"
    cure = cure_of("certificate verify failed" if found[1].upper().startswith("SSL") else words)
    return AccessRefused(f"cluster {alias}: {words}", cure.format(alias=alias))


def is_access(error: KafkaError) -> bool:
    # A gapless producer wraps what the broker said in a fault of its own: then only the words tell.
    refused = "authorization failed" in error.str()
    return error.code() in _ACCESS or refused or _ALERT.search(error.str()) is not None


def translate(error: KafkaError, alias: str, what: str) -> MirrorlakeError:
    """Our error for Kafka's: the type says whether trying again helps."""
    # A controller that refuses says so with the whole Java request: the code's own words are enough.
    words = KafkaError(error.code()).str() if "Request(" in error.str() else error.str()
    said = f"cluster {alias}: {what}: {words}"
    if any(fault in error.str() for fault in _RECORD_FAULTS):
        return RecordRefused(said, "the records are sent one by one to find it; on_undeliverable decides")
    if is_access(error):
        return AccessRefused(said, cure_of(error.str()).format(alias=alias))
    if _OLD_FORMAT in error.str():
        return Unreachable(said, "the topic keeps a format from before Kafka 0.11: raise its message.format.version")
    if error.code() in _MISSING:
        return TopicMissing(said, "check the name, or create the topic; `mirrorlake plan` shows what is expected")
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        # Retention moved between the look at a log's begin and the read: whoever tries again looks anew.
        return ClusterUnreachable(said, "the log begins later by now than what was asked for")
    if error.code() in _LASTING:
        return Unreachable(said, "`mirrorlake doctor` looks at the cluster step by step")
    return ClusterUnreachable(said, f"is {alias} up, and are its advertised listeners reachable from here?")


_UNSETTLED = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._NOENT,  # librdkafka's word for leaders that it does not know
}


def _code(fault: MirrorlakeError) -> int | None:
    """What Kafka said, of an error that was made from it."""
    raised = fault.__cause__
    return raised.args[0].code() if isinstance(raised, KafkaException) else None


@dataclass
class Cluster:
    """A live connection to one cluster; clients are made when first needed."""

    alias: str
    config: Mapping[str, str | bool] = field(repr=False)  # with its secrets
    timeout_seconds: float = 20.0
    renew: Callable[[], Mapping[str, str | bool]] | None = field(default=None, repr=False)
    """The settings with their secrets as they are now: what was refused may have been changed meanwhile."""
    _errors: list[KafkaError] = field(default_factory=list)
    _admin: AdminClient | None = None
    _retired: list[tuple[float, AdminClient]] = field(default_factory=list)
    _refused: bool = False
    _silent_since: float | None = None

    @property
    def admin(self) -> AdminClient:
        # Kept for the object's life: a collected AdminClient fails its pending futures.
        if self._admin is None:
            if self._refused and self.renew:
                self.config, self._refused = self.renew(), False
            self._admin = AdminClient({**self.config, **QUIET, "error_cb": self._errors.append})
        return self._admin

    def close(self) -> None:
        """Let go of the client and its threads; another question would make a new one."""
        self._admin = None
        self._retired.clear()

    def _replace_client(self) -> None:
        """The next question makes a new one.

        Other threads may wait for answers of this one, and would do so for ever if it were destroyed under them: it
        is kept until they have one, or ran out of time.
        """
        now, kept_seconds = time.monotonic(), 2 * self.timeout_seconds
        self._retired[:] = [(at, client) for at, client in self._retired if now - at < kept_seconds]
        if self._admin is not None:
            self._retired.append((now, self._admin))
        self._admin, self._silent_since = None, None

    def _answer(self, what: str, future: Any) -> Any:
        """librdkafka keeps the time of each request; ours is for the day on which it does not."""
        return self._ask(what, lambda: future.result(self.timeout_seconds + GRACE_SECONDS))

    def _ask(self, what: str, call: Callable[[], _T]) -> _T:
        self._errors.clear()
        try:
            answer = call()
            self._silent_since = None
            return answer
        except KafkaException as raised:
            fault = translate(self._cause(raised.args[0]), self.alias, what)
            self._note_silence(fault)
            if isinstance(fault, AccessRefused) and self.renew:
                self._replace_client()
                self._refused = True
            raise fault from raised
        except TimeoutError:
            self._replace_client()
            raise ClusterUnreachable(f"cluster {self.alias}: {what}: no answer in time") from None

    def _note_silence(self, fault: MirrorlakeError) -> None:
        """A client that gets no answer for long is replaced: some were seen not to find a restarted broker again.

        One that waits for a controller, which may be a broker that died, would go on waiting for that one.
        """
        if not isinstance(fault, ClusterUnreachable):
            self._silent_since = None
        elif _NO_CONTROLLER in fault.what:
            self._replace_client()
        elif self._silent_since is None:
            self._silent_since = time.monotonic()
        elif time.monotonic() - self._silent_since > SILENT_SECONDS:
            self._replace_client()

    def _cause(self, error: KafkaError) -> KafkaError:
        """A refused password shows as a time-out here and as itself in the error callback."""
        if error.code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            return error
        self.admin.poll(0)  # brings the callbacks
        return next((seen for seen in self._errors if is_access(seen)), error)

    def _metadata(self) -> Any:
        return self._ask("metadata", lambda: self.admin.list_topics(timeout=self.timeout_seconds))

    def cluster_id(self) -> str:
        return str(self._metadata().cluster_id or self.alias)

    def brokers(self) -> list[tuple[str, int]]:
        """Where the brokers say they are."""
        return [(broker.host, broker.port) for broker in self._metadata().brokers.values()]

    def broker_count(self) -> int:
        return len(self.brokers())

    def topic_names(self) -> list[str]:
        return sorted(self._metadata().topics)

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """The topics that exist among those named.

        librdkafka asks the controller, and waits for one that has just died as for any other: then a new client is
        told of another.
        """
        names = sorted(set(topics))
        if not names:
            return {}
        *early, last = (share * self.timeout_seconds for share in _SHARES)
        for seconds in early:
            with contextlib.suppress(ClusterUnreachable):
                return self._describe(names, seconds)
        return self._describe(names, last)

    def _describe(self, names: Sequence[str], timeout_seconds: float) -> dict[str, TopicInfo]:
        asked = TopicCollection(list(names))
        futures = self._ask(
            "describe topics", lambda: self.admin.describe_topics(asked, request_timeout=timeout_seconds)
        )
        found = {name: self._described(name, future) for name, future in futures.items()}
        return {name: info for name, info in found.items() if info}

    def describe_patiently(self, topics: Iterable[str], patience_seconds: float) -> dict[str, TopicInfo]:
        """The same, asked again for a while where one is missing: a broker may not know of it for a moment."""
        names, until = set(topics), time.monotonic() + patience_seconds
        while True:
            found = self.describe(names)
            if len(found) == len(names) or time.monotonic() > until:
                return found
            time.sleep(0.25)

    def _described(self, name: str, future: Any) -> TopicInfo | None:
        try:
            topic = self._answer(f"describe topic {name}", future)
        except TopicMissing:
            return None
        replicas = len(topic.partitions[0].replicas) if topic.partitions else 0
        return TopicInfo(name, _uuid_text(topic.topic_id), len(topic.partitions), replicas)

    def allowed_operations(self, topics: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """What we may do with each topic; None where it is not there, or the cluster does not say."""
        names = sorted(set(topics))
        if not names:
            return {}
        asked = {"include_authorized_operations": True, "request_timeout": self.timeout_seconds}
        futures = self.admin.describe_topics(TopicCollection(names), **asked)
        return {name: self._allowed(f"describe topic {name}", future) for name, future in futures.items()}

    def allowed_on_cluster(self) -> frozenset[str] | None:
        asked = {"include_authorized_operations": True, "request_timeout": self.timeout_seconds}
        return self._allowed("describe the cluster", self.admin.describe_cluster(**asked))

    def allowed_on_group(self, group: str) -> frozenset[str] | None:
        asked = {"include_authorized_operations": True, "request_timeout": self.timeout_seconds}
        return self._allowed(f"group {group}", self.admin.describe_consumer_groups([group], **asked)[group])

    def _allowed(self, what: str, future: Any) -> frozenset[str] | None:
        try:
            operations = self._answer(what, future).authorized_operations
        except TopicMissing:
            return None
        except AccessRefused:
            return frozenset()
        except Unreachable:
            return None  # the request is not known there
        return None if operations is None else frozenset(each.name for each in operations)

    def log_ends(self, partitions: Iterable[TopicPartition], committed: bool = False) -> dict[TopicPartition, int]:
        """Where each log ends; `committed` means the last stable offset."""
        return self._offsets(partitions, OffsetSpec.latest(), committed)

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, OffsetSpec.earliest())

    def offsets_at(self, partitions: Iterable[TopicPartition], at_ms: int) -> dict[TopicPartition, int]:
        """The first offset at or after a time; the log end where there is none."""
        asked = list(partitions)
        found = self._offsets(asked, OffsetSpec.for_timestamp(at_ms), may_lack=True)
        ends = self.log_ends(asked)
        return {partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()}

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: Any, committed: bool = False, may_lack: bool = False
    ) -> dict[TopicPartition, int]:
        """Asked again for a moment after an election, or a start, of which client and broker do not know the same."""
        asked = {_TopicPartition(topic, partition): spec for topic, partition in partitions}
        until = time.monotonic() + ABSENT_SECONDS
        while asked:
            try:
                found = self._list_offsets(asked, committed)
                if may_lack or all(offset >= 0 for offset in found.values()):
                    return found
                # Seen during an election: no error, and no offset.
                if time.monotonic() > until:
                    raise ClusterUnreachable(f"cluster {self.alias}: a log's offset is not known: {found}")
            except ClusterUnreachable as fault:
                if _code(fault) not in _UNSETTLED or time.monotonic() > until:
                    raise
            time.sleep(0.25)
        return {}

    def _list_offsets(self, asked: dict[_TopicPartition, Any], committed: bool) -> dict[TopicPartition, int]:
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        futures = self._ask(
            "offsets",
            lambda: self.admin.list_offsets(asked, isolation_level=isolation, request_timeout=self.timeout_seconds),
        )
        return {
            TopicPartition(at.topic, at.partition): self._answer(f"offset of {at.topic}[{at.partition}]", future).offset
            for at, future in futures.items()
        }

    def read_range(self, partition: TopicPartition, first: int, end: int, committed: bool = False) -> Iterator[Message]:
        """The records with offsets in [first, end), read to the end-of-partition event: markers take offsets too."""
        if first >= end:
            return
        with self.consumer(committed) as consumer:
            consumer.assign([_TopicPartition(partition.topic, partition.partition, first)])
            yield from self._until(consumer, partition, end)

    def _until(self, consumer: Consumer, partition: TopicPartition, end: int) -> Iterator[Message]:
        heard_at = time.monotonic()
        while True:
            # `consume` waits until it has as many as asked, so the wait is short and the patience is ours.
            messages = consumer.consume(1000, timeout=0.05)
            if messages:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > self.timeout_seconds:
                raise ClusterUnreachable(
                    f"cluster {self.alias}: reading {partition} stopped for {self.timeout_seconds:.0f} s"
                )
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    if message.offset() >= end:
                        return
                    continue
                if error is not None:
                    raise translate(error, self.alias, f"read {partition}")
                if message.offset() >= end:
                    return
                yield message
                if message.offset() == end - 1:
                    return

    @contextlib.contextmanager
    def consumer(self, committed: bool = False) -> Iterator[Consumer]:
        isolation = "read_committed" if committed else "read_uncommitted"
        consumer = Consumer(
            {
                **self.config,
                **QUIET,
                "group.id": READER_GROUP,
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "auto.offset.reset": "error",
                "isolation.level": isolation,
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def groups(self) -> dict[str, str]:
        """Each consumer group with its state, such as EMPTY or STABLE."""
        asked = self._ask("groups", lambda: self.admin.list_consumer_groups(request_timeout=self.timeout_seconds))
        found = self._answer("groups", asked)
        for error in found.errors:
            # The binding gives either kind here.
            raise translate(getattr(error, "args", [error])[0], self.alias, "groups")
        return {group.group_id: group.state.name for group in found.valid}

    def create_topic(self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]) -> None:
        self.create_topics([NewTopicSpec(name, partitions, replication_factor, config)])

    def create_topics(self, topics: Iterable[NewTopicSpec]) -> None:
        """All in one request: hundreds take a second. One that is there already is well.

        A setting that this release of Kafka does not know is left out.
        """
        asked = {topic.name: topic for topic in topics}
        new = [NewTopic(t.name, t.partitions, t.replication_factor, config=dict(t.config)) for t in asked.values()]
        futures = self.admin.create_topics(new, request_timeout=self.timeout_seconds) if new else {}
        again = []
        for name, future in futures.items():
            try:
                self._made(f"create topic {name}", future)
            except Unreachable as fault:
                simpler = _without_unknown(asked[name], str(fault.__cause__))
                if simpler is None:
                    raise
                again.append(simpler)
        if again:
            self.create_topics(again)

    def grow_topic(self, name: str, partitions: int) -> None:
        self.grow_topics({name: partitions})

    def grow_topics(self, partitions: Mapping[str, int]) -> None:
        new = [NewPartitions(name, count) for name, count in partitions.items()]
        futures = self.admin.create_partitions(new, request_timeout=self.timeout_seconds) if new else {}
        for name, future in futures.items():
            self._made(f"grow topic {name} to {partitions[name]} partitions", future)

    def delete_topic(self, name: str) -> None:
        future = self.admin.delete_topics([name], request_timeout=self.timeout_seconds)[name]
        self._answer(f"delete topic {name}", future)

    def _made(self, what: str, future: Any) -> None:
        try:
            self._answer(what, future)
        except MirrorlakeError as fault:
            if _code(fault) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, TopicSetting]]:
        """Each topic's configuration by key; a topic that is gone meanwhile is left out."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(set(topics))]
        if not resources:
            return {}
        futures = self.admin.describe_configs(resources, request_timeout=self.timeout_seconds)
        found: dict[str, dict[str, TopicSetting]] = {}
        for resource, future in futures.items():
            with contextlib.suppress(TopicMissing):
                entries = self._answer(f"configuration of {resource.name}", future)
                found[resource.name] = {key: _topic_setting(entry) for key, entry in entries.items()}
        return found

    def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, MirrorlakeError]:
        """Set these keys, take back those that are None, leave all others. What failed comes back, by topic."""
        resources = [
            ConfigResource(ConfigResource.Type.TOPIC, t, incremental_configs=_ops(c)) for t, c in changes.items()
        ]
        if not resources:
            return {}
        futures = self.admin.incremental_alter_configs(resources, request_timeout=self.timeout_seconds)
        return self._failures("configuration of topic {}", {resource.name: f for resource, f in futures.items()})

    def acls(self) -> list[Acl] | None:
        """All ACLs of topics and groups; None where the cluster has no authorizer."""
        found: list[Acl] = []
        for kind in (ResourceType.TOPIC, ResourceType.GROUP):
            asked = AclBindingFilter(
                kind, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
            )
            future = self.admin.describe_acls(asked, request_timeout=self.timeout_seconds)
            try:
                found += [_acl(binding) for binding in self._answer("read ACLs", future)]
            except Unreachable as fault:
                if _code(fault) == KafkaError.SECURITY_DISABLED:
                    return None
                raise
        return sorted(found)

    def create_acls(self, acls: Iterable[Acl]) -> dict[Acl, MirrorlakeError]:
        """What failed comes back, by ACL."""
        bindings = {AclBinding(*_acl_arguments(acl)): acl for acl in acls}
        if not bindings:
            return {}
        futures = self.admin.create_acls(list(bindings), request_timeout=self.timeout_seconds)
        return self._failures("give the ACL {}", {bindings[binding]: future for binding, future in futures.items()})

    def delete_acls(self, acls: Iterable[Acl]) -> dict[Acl, MirrorlakeError]:
        filters = {AclBindingFilter(*_acl_arguments(acl)): acl for acl in acls}
        if not filters:
            return {}
        futures = self.admin.delete_acls(list(filters), request_timeout=self.timeout_seconds)
        return self._failures("take away the ACL {}", {filters[asked]: future for asked, future in futures.items()})

    def _failures(self, what: str, futures: Mapping[_T, Any]) -> dict[_T, MirrorlakeError]:
        failed: dict[_T, MirrorlakeError] = {}
        for subject, future in futures.items():
            try:
                self._answer(what.format(subject), future)
            except MirrorlakeError as fault:
                failed[subject] = fault
        return failed


def _without_unknown(topic: NewTopicSpec, refusal: str) -> NewTopicSpec | None:
    """The topic without the setting that this release of Kafka does not know, where it was refused for one."""
    found = _UNKNOWN_SETTING.search(refusal)
    if found is None or found[1] not in topic.config:
        return None
    return replace(topic, config={key: value for key, value in topic.config.items() if key != found[1]})


def _ops(changes: Mapping[str, str | None]) -> list[ConfigEntry]:
    kinds = {True: AlterConfigOpType.DELETE, False: AlterConfigOpType.SET}
    return [ConfigEntry(key, value, incremental_operation=kinds[value is None]) for key, value in changes.items()]


def _uuid_text(topic_id: Any) -> str:
    if topic_id is None:
        return ""
    high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    number = ((high & (2**64 - 1)) << 64) | (low & (2**64 - 1))
    return str(uuid.UUID(int=number)) if number else ""


def is_compacted(cluster: Cluster, topic: str) -> bool:
    """False too where the cluster does not tell (Event Hubs)."""
    try:
        policy = cluster.topic_configs([topic])[topic].get("cleanup.policy")
    except (MirrorlakeError, KeyError):
        return False
    return policy is not None and "compact" in str(policy.value)


def await_stable_ends(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    stable_seconds: float,
    timeout_seconds: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> dict[TopicPartition, int]:
    """The log ends once they have not moved for a while: a dead client's bytes may still be landing."""
    asked = list(partitions)
    ends, since, begun = cluster.log_ends(asked), clock(), clock()
    while clock() - since < stable_seconds:
        sleep(min(0.25, stable_seconds))
        seen = cluster.log_ends(asked)
        if seen != ends:
            ends, since = seen, clock()
        if clock() - begun > timeout_seconds:
            raise DataAtRisk(
                f"cluster {cluster.alias}: the log ends kept moving for {timeout_seconds:.0f} s during recovery",
                "another producer writes to these topics: stop it, or set existing_records: append for the target",
            )
    return ends
