"""Looks at machine and clusters step by step; the first step of a cluster that fails is its last, and names the fix."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirrorlake import access, brokerapi, jars, tls
from mirrorlake.brokerapi import Spoken
from mirrorlake.clusters import librdkafka_admin, resolved, weaknesses
from mirrorlake.config import Cluster as ClusterConfig
from mirrorlake.config import Config, Flow, Target
from mirrorlake.errors import AccessRefused, ClusterUnreachable, MirrorlakeError, Transient, UsageFault
from mirrorlake.fitness import distance, too_large, too_many
from mirrorlake.kafka import Cluster, TopicInfo
from mirrorlake.records import TopicPartition
from mirrorlake.services import RIGHTS, limits
from mirrorlake.topics import fit_names, flow_topics
from mirrorlake.world import check_root

FEW_DAYS = 30
MUCH_DISK_GB = 5
CLOCK_SECONDS = 10


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    subject: str
    """`machine`, or a cluster's alias."""
    what: str
    level: str
    """`ok`, `warning` or `fault`."""
    detail: str
    fix: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.level != "fault"

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject, "what": self.what, "ok": self.ok, "level": self.level,
            "detail": self.detail, "fix": self.fix, "facts": dict(self.facts),
        }  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What a step found. A fault is raised instead."""

    detail: str
    warning: str = ""
    """What to do about it, where it is not as it should be and yet no fault."""
    facts: Mapping[str, Any] = field(default_factory=dict)


def examine(config: Config, root: Path, save_ca: Path | None = None) -> Iterator[Check]:
    yield from examine_machine(root)
    for alias in config.clusters:
        yield from examine_cluster(config, alias, save_ca)


def _attempt(subject: str, what: str, look: Callable[[], Seen]) -> Check:
    try:
        seen = look()
    except MirrorlakeError as fault:
        return Check(subject, what, "fault", fault.what, fault.next_step)
    return Check(subject, what, "warning" if seen.warning else "ok", seen.detail, seen.warning, seen.facts)


# --- this machine ---


def examine_machine(root: Path) -> Iterator[Check]:
    packages = ("mirrorlake", "pyspark", "delta-spark", "deltalake", "confluent-kafka", "pyarrow")
    yield Check("machine", "python", "ok", platform.python_version())
    for package in packages:
        yield _package(package)
    yield _attempt("machine", "java", _java)
    yield _attempt("machine", "jars", _jars)
    yield _attempt("machine", "storage root", lambda: _root(root))


def _package(name: str) -> Check:
    try:
        return Check("machine", name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check("machine", name, "fault", "not installed", "pip install 'mirrorlake[local]'")


def _java() -> Seen:
    found = jars.java()
    said = subprocess.run([str(found), "-version"], capture_output=True, text=True, check=True, timeout=20)
    return Seen(said.stderr.splitlines()[0], facts={"path": str(found)})


def _jars() -> Seen:
    found = jars.resolve(jars.SPARK, lambda _text: None)
    names = sorted(jar.name for jar in found if jar.name.startswith(("kafka-clients", "delta-spark", "spark-sql")))
    return Seen(", ".join(names), facts={"jars": names})


def _root(root: Path) -> Seen:
    check_root(root)
    free_gb = shutil.disk_usage(root).free / 1e9
    short = f"give the storage root more room: bronze keeps every record; {MUCH_DISK_GB} GB is little"
    facts = {"path": str(root), "free_gb": round(free_gb, 1)}
    return Seen(f"{root}, {free_gb:.0f} GB free", short if free_gb < MUCH_DISK_GB else "", facts)


# --- a cluster ---


def examine_cluster(config: Config, alias: str, save_ca: Path | None = None) -> Iterator[Check]:
    patient = Patient(config, alias, save_ca)
    for what, look in patient.steps():
        check = _attempt(alias, what, look)
        yield check
        if not check.ok:
            return


@dataclass
class Patient:
    """One cluster under examination; each step may rest on what the earlier ones found."""

    config: Config
    alias: str
    save_ca: Path | None = None
    settings: Mapping[str, str | bool] = field(default_factory=dict)
    spoken: Spoken | None = None
    topics: Sequence[str] = ()
    _live: Cluster | None = None

    @property
    def cluster(self) -> ClusterConfig:
        return self.config.clusters[self.alias]

    @property
    def live(self) -> Cluster:
        self._live = self._live or Cluster(self.alias, self.settings, timeout_seconds=10)
        return self._live

    def steps(self) -> list[tuple[str, Callable[[], Seen]]]:
        security = self.cluster.security
        return [
            ("configuration", self.configuration),
            ("name resolves", self.names),
            ("port answers", self.ports),
            *([("TLS", self.handshake)] if security.tls else []),
            ("round trip", self.round_trip),
            ("login" if security.sasl else "metadata", self.metadata),
            ("advertised listeners", self.listeners),
            ("version", self.version),
            ("rights", self.rights),
            *([("limits", self.limits), ("replication factor", self.replication)] if self.writers() else []),
            ("clock", self.clock),
        ]

    def readers(self) -> list[Flow]:
        return [flow for flow in self.config.flows.values() if flow.source == self.alias]

    def writers(self) -> list[tuple[Flow, Target]]:
        flows = self.config.flows.values()
        return [(flow, target) for flow in flows for target in flow.targets if target.cluster == self.alias]

    def servers(self) -> list[tuple[str, int]]:
        pairs = [server.rpartition(":") for server in str(self.settings["bootstrap.servers"]).split(",")]
        return [(host.strip("[]"), int(port)) for host, _, port in pairs]

    # --- reaching it

    def configuration(self) -> Seen:
        """Secrets and stores opened, as a client would; and whatever is less safe than it could be."""
        self.settings = resolved(librdkafka_admin(self.alias, self.cluster))
        if not self.settings["bootstrap.servers"]:
            raise UsageFault("the secret names no servers", "give bootstrap_servers")
        unsafe = list(weaknesses(self.cluster))
        detail = f"{self.cluster.kind}, {self.cluster.security.protocol}"
        return Seen("; ".join([detail, *unsafe]), _safer(unsafe), {"unsafe": unsafe})

    def names(self) -> Seen:
        found = {host: _address(host, port) for host, port in self.servers()}
        return Seen(", ".join(f"{host} is {address}" for host, address in found.items()), facts=found)

    def ports(self) -> Seen:
        took = {f"{host}:{port}": _connect_ms(host, port) for host, port in self.servers()}
        return Seen(", ".join(f"{server} in {ms:.1f} ms" for server, ms in took.items()), facts=took)

    def handshake(self) -> Seen:
        host, port = self.servers()[0]
        shown = tls.look(host, port)
        try:
            for each in self.servers():
                tls.verify(*each, self.settings)
        except AccessRefused as fault:
            raise self._told(shown, fault) from None
        return self._certificates(shown)

    def _told(self, shown: tls.Handshake, fault: AccessRefused) -> MirrorlakeError:
        """The fault with the chain that was shown; where asked to, the authority is written down."""
        chain = "; shown: " + " <- ".join(f"{each.subject} (sha256 {each.sha256})" for each in shown.chain)
        if self.save_ca is None or "security.ca" not in fault.next_step:
            return AccessRefused(fault.what + chain, fault.next_step)
        self.save_ca.mkdir(parents=True, exist_ok=True)
        path = self.save_ca / f"{self.alias}-ca.pem"
        root = tls.save_authority(shown, path)
        warning = (
            f"written to {path}. Anyone between here and there could have shown it: compare its sha256 "
            f"{root.sha256} with whoever runs the cluster, then set security.ca to the file"
        )
        return AccessRefused(fault.what + chain, warning)

    def _certificates(self, shown: tls.Handshake) -> Seen:
        own, now = shown.chain[0], tls.utc_now()
        days = min(each.days_left(now) for each in shown.chain)
        chain = " <- ".join(each.subject for each in shown.chain)
        detail = f"{shown.version}, {chain}, sha256 {own.sha256}, {days} days left"
        facts = {
            "version": shown.version, "days_left": days,
            "chain": [{"subject": c.subject, "issuer": c.issuer, "hosts": list(c.hosts), "sha256": c.sha256,
                       "not_after": c.not_after.isoformat()} for c in shown.chain],
        }  # fmt: skip
        return Seen(detail, f"renew it: {days} days are left" if days < FEW_DAYS else "", facts)

    def round_trip(self) -> Seen:
        host, port = self.servers()[0]
        asked = [brokerapi.ask(host, port, self.cluster.security.tls) for _ in range(3)]
        self.spoken = asked[0]
        best = min(each.round_trip_ms for each in asked)
        return Seen(f"{best:.1f} ms: {distance(best, bool(self.writers()))}", facts={"milliseconds": round(best, 2)})

    # --- what it says

    def metadata(self) -> Seen:
        self.topics = self.live.topic_names()
        brokers = self.live.broker_count()
        detail = f"cluster id {self.live.cluster_id()}, {brokers} broker(s), {len(self.topics)} topics"
        who = f"{self.cluster.security.mechanism} accepted; " if self.cluster.security.sasl else ""
        return Seen(who + detail, facts={"brokers": brokers, "topics": len(self.topics)})

    def listeners(self) -> Seen:
        """Brokers tell clients where to connect: each of those addresses must answer from here too."""
        took = {}
        for host, port in self.live.brokers():
            try:
                _address(host, port)
                took[f"{host}:{port}"] = _connect_ms(host, port)
                if self.cluster.security.tls:
                    tls.verify(host, port, self.settings)
            except MirrorlakeError as fault:
                raise ClusterUnreachable(
                    f"the cluster sends clients on to {host}:{port}, and there: {fault.what}",
                    f"mend advertised.listeners of that broker, or the way there. {fault.next_step}",
                ) from None
        return Seen(", ".join(f"{server} in {ms:.1f} ms" for server, ms in took.items()), facts=took)

    def version(self) -> Seen:
        spoken = self.spoken
        assert spoken is not None  # noqa: S101
        can = spoken.capabilities
        lacks = [name for name, has in can.items() if not has]
        detail = f"speaks as Kafka {spoken.release} or newer" + (f"; without {', '.join(lacks)}" if lacks else "")
        needed = ["record headers"] + (["idempotent producers"] if self.writers() else [])
        for name in needed:
            if not can[name]:
                raise UsageFault(f"{detail}: Mirrorlake cannot do without {name}", "use Kafka 0.11 or newer")
        warning = "" if can["topic ids"] else NO_TOPIC_IDS
        return Seen(detail, warning, {"release": spoken.release, "capabilities": can})

    def rights(self) -> Seen:
        wanted = access.needs(self.config, self.alias, self._known())
        held = access.look(self.live, wanted)
        facts = {
            "granted": list(map(str, held.granted)),
            "missing": list(map(str, held.missing)),
            "untold": list(map(str, held.untold)),
        }
        detail = f"{len(held.granted)} of {len(wanted)} granted"
        if held.lacking:
            missing = "; ".join(map(str, held.lacking))
            raise AccessRefused(f"{detail}; missing: {missing}", self._grants(held.lacking))
        if held.missing:
            detail += f"; the flow goes on without {'; '.join(map(str, held.missing))}"
        untold = f"; {len(held.untold)} cannot be told" if held.untold else ""
        return Seen(detail + untold, self._grants(held.missing) if held.missing else "", facts)

    def _grants(self, lacking: Sequence[access.Need]) -> str:
        if self.cluster.kind != "kafka":
            return "; ".join(RIGHTS[self.cluster.kind, side] for side in self.sides())
        return "\n".join(access.commands(self.cluster, lacking, access.principal_of(self.cluster, self._subject())))

    def sides(self) -> list[str]:
        return ["source"] * bool(self.readers()) + ["target"] * bool(self.writers())

    def _subject(self) -> str:
        return own_subject(self.settings)

    def _known(self) -> dict[str, Sequence[str]]:
        """The topics of every source that writes here or is this cluster; one that does not answer has none."""
        sources = {flow.source for flow in self.readers()} | {flow.source for flow, _ in self.writers()}
        return {alias: self.topics if alias == self.alias else topics_of(self.config, alias) for alias in sources}

    # --- what would be sent

    def limits(self) -> Seen:
        """Topics, partitions and records that flows would bring, against what the cluster takes."""
        known, found, told = limits(self.cluster), [], []
        for flow, target in self.writers():
            source = source_of(self.config, flow)
            names, sizes = self._wanted(flow, target, source)
            told.append(f"{flow.name}: {len(names)} topics, {sum(sizes.values())} partitions")
            found += list(too_many(known, self.topics, names, sizes))
            found += list(too_large(known, flow, self._largest(source, names)))
        size = f"records up to {known.max_record_bytes} bytes" if known.max_record_bytes else "records as topics say"
        made = "topics are made by us" if known.can_create_topics else "topics are made by an operator"
        detail = "; ".join([size, made, *told, *found])
        return Seen(detail, "see docs/event-hubs.md and docs/event-streams.md" if found else "", {"findings": found})

    def _wanted(self, flow: Flow, target: Target, source: Cluster | None) -> tuple[dict[str, str], dict[str, int]]:
        topics = flow_topics(self.config, flow, source.topic_names()) if source else flow.topics
        names, _ = fit_names(self.config, flow, target, topics)
        infos: Mapping[str, TopicInfo] = source.describe(names) if source else {}
        return names, {names[topic]: info.partitions for topic, info in infos.items()}

    def _largest(self, source: Cluster | None, names: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        """Topic -> what the source takes, what the target takes; where both say."""
        here = _record_limits(source, names)
        there = _record_limits(self.live, [name for name in names.values() if name in self.topics])
        return {topic: (here[topic], there.get(name, 0)) for topic, name in names.items() if topic in here}

    def replication(self) -> Seen:
        brokers = self.live.broker_count()
        asked = max(target.replication_factor for _, target in self.writers())
        if asked > brokers:
            raise UsageFault(
                f"replication_factor is {asked}, and there are {brokers} brokers",
                f"set replication_factor to {brokers} or less, or -1 for the broker's default",
            )
        return Seen(f"{'the default of the brokers' if asked < 0 else asked}, {brokers} broker(s)")

    def clock(self) -> Seen:
        """Kafka tells no time; a newest record from the future tells that a clock is wrong, ours or a producer's."""
        try:
            partitions = _some_partitions(self.live, self._own_topics())
            ahead = max((at / 1000 - time.time() for at in _newest_ms(self.live, partitions)), default=0.0)
        except Transient as fault:
            return Seen(f"no record could be looked at: {fault.what}", "try again: leaders may just be elected")
        detail = f"newest record of {len(partitions)} partition(s) looked at"
        if ahead > CLOCK_SECONDS:
            mend = "set this machine's clock, or that of whoever writes there (chronyc tracking, timedatectl)"
            return Seen(f"{detail} is {ahead:.0f} s ahead of this machine's clock", mend, {"ahead_seconds": ahead})
        return Seen(f"{detail}: none is from the future", facts={"ahead_seconds": round(ahead, 1)})

    def _own_topics(self) -> list[str]:
        there = set(self.topics)
        read = [topic for flow in self.readers() for topic in flow_topics(self.config, flow, self.topics)]
        known = self._known()
        sent = [
            name
            for flow, target in self.writers()
            for name in fit_names(
                self.config, flow, target, flow_topics(self.config, flow, known.get(flow.source, ())) or flow.topics
            )[0].values()
        ]
        return [topic for topic in dict.fromkeys([*read, *sent]) if topic in there][:20]


NO_TOPIC_IDS = (
    "before Kafka 2.8 topics have no ids: one that is deleted and made anew is noticed only where it is shorter than "
    "what was read"
)


# --- pieces ---


def _safer(unsafe: Sequence[str]) -> str:
    return "use SASL_SSL or SSL, check host names, and give secrets as references; docs/security.md" if unsafe else ""


def _address(host: str, port: int) -> str:
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except (socket.gaierror, UnicodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise ClusterUnreachable(
            f"{host} does not resolve: {said}", "check bootstrap_servers, and DNS: getent hosts " + host
        ) from None


def _connect_ms(host: str, port: int) -> float:
    begun = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as error:
        raise ClusterUnreachable(
            f"{host}:{port} does not answer: {error}",
            "is the broker up, is the port right, is a firewall between?",
        ) from None
    return round((time.monotonic() - begun) * 1000, 2)


def source_of(config: Config, flow: Flow) -> Cluster | None:
    """A client of the flow's source, where it answers."""
    try:
        live = Cluster(flow.source, resolved(librdkafka_admin(flow.source, config.clusters[flow.source])), 10)
        live.topic_names()
        return live
    except MirrorlakeError:
        return None


def topics_of(config: Config, alias: str) -> Sequence[str]:
    try:
        live = Cluster(alias, resolved(librdkafka_admin(alias, config.clusters[alias])), 10)
        return live.topic_names()
    except MirrorlakeError:
        return ()


def own_subject(settings: Mapping[str, str | bool]) -> str:
    """The subject of our certificate, which is our name to a cluster that asks for no user."""
    from cryptography import x509

    path, text = settings.get("ssl.certificate.location"), settings.get("ssl.certificate.pem")
    try:
        data = Path(str(path)).read_bytes() if path else str(text or "").encode()
        return x509.load_pem_x509_certificate(data).subject.rfc4514_string()
    except (OSError, ValueError):
        return ""


def _record_limits(cluster: Cluster | None, topics: Mapping[str, str] | Sequence[str]) -> dict[str, int]:
    if cluster is None:
        return {}
    try:
        configs = cluster.topic_configs(topics)
    except MirrorlakeError:
        return {}
    found = {topic: each.get("max.message.bytes") for topic, each in configs.items()}
    return {topic: int(setting.value) for topic, setting in found.items() if setting and setting.value}


def _some_partitions(cluster: Cluster, topics: Sequence[str]) -> list[TopicPartition]:
    infos = cluster.describe(topics).values()
    return [TopicPartition(info.name, number) for info in infos for number in range(info.partitions)][:20]


def _newest_ms(cluster: Cluster, partitions: Sequence[TopicPartition]) -> Iterator[int]:
    starts, ends = cluster.log_starts(partitions), cluster.log_ends(partitions)
    for at in partitions:
        if ends[at] > starts[at]:
            yield from (message.timestamp()[1] for message in cluster.read_range(at, ends[at] - 1, ends[at]))


def grants(config: Config, alias: str) -> list[str]:
    """All commands that give our user what the flows need on a cluster; the rights' names for a managed service."""
    cluster = config.clusters[alias]
    patient = Patient(config, alias)
    if cluster.kind != "kafka":
        return [f"# {alias}: {RIGHTS[cluster.kind, side]}" for side in patient.sides()]
    patterned = {flow.source for flow in config.flows.values() if flow.patterns}
    wanted = access.needs(config, alias, {source: topics_of(config, source) for source in patterned})
    return access.commands(cluster, wanted, access.principal_of(cluster, _subject_of(alias, cluster)))


def _subject_of(alias: str, cluster: ClusterConfig) -> str:
    try:
        return own_subject(resolved(librdkafka_admin(alias, cluster)))
    except MirrorlakeError:
        return ""
