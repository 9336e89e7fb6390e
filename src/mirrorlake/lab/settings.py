"""What a lab cluster is, and the files that say so to Kafka. Nothing here has effects but looking for free ports."""

from __future__ import annotations

import dataclasses
import random
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirrorlake.clusters import properties_escape
from mirrorlake.errors import UsageFault

HOST = "127.0.0.1"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# What a JAAS option name can hold without quotes, and there are none for names.
USER_NAME = re.compile(r"[A-Za-z0-9_$][A-Za-z0-9_$.-]*")
# Below the range from which the system takes the local ports of connections: those come and go.
PORTS = range(20_000, 32_000)
LAST_PORT = 65_535


@dataclass(frozen=True)
class ClusterSpec:
    """What the user asks for; `config` overrides any broker setting."""

    name: str
    brokers: int = 1
    protocol: str = "PLAINTEXT"
    users: dict[str, str] = field(default_factory=dict, repr=False)  # the values are passwords
    ports: tuple[int, ...] | None = None
    listen_ports: tuple[int, ...] | None = None  # where brokers listen when something stands before `ports`
    old: bool = False  # Kafka 3.3 instead of the newest
    jvm: str = ""  # further options of the brokers' Java
    mechanisms: tuple[str, ...] = ("PLAIN",)  # of SASL; clients of the lab use the first
    config: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise UsageFault(f"lab cluster {self.name!r}: {'; '.join(faults)}", "see `mirrorlake lab up --help`")

    def _faults(self) -> list[str]:
        checks = {
            "the name may hold letters, digits, - and _": CLUSTER_NAME.fullmatch(self.name),
            f"the protocol is one of {', '.join(PROTOCOLS)}": self.protocol in PROTOCOLS,
            "it needs 1 to 9 brokers": 1 <= self.brokers <= 9,
            "it needs one port for each broker": all(
                ports is None or len(ports) == self.brokers for ports in (self.ports, self.listen_ports)
            ),
            f"ports lie between 1 and {LAST_PORT}": all(1 <= port <= LAST_PORT for port in self.asked_ports),
            "a user name may hold letters, digits and _ $ . -": all(map(USER_NAME.fullmatch, self.users)),
            f"{self.protocol} needs users": bool(self.users) or not self.sasl,
            f"mechanisms are {', '.join(MECHANISMS)}": self.mechanisms and set(self.mechanisms) <= set(MECHANISMS),
        }
        return [fault for fault, holds in checks.items() if not holds]

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    @property
    def tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def asked_ports(self) -> tuple[int, ...]:
        """All that were named, whether a broker or something before it listens there."""
        return (*(self.ports or ()), *(self.listen_ports or ()))

    def same_shape(self, other: ClusterSpec) -> bool:
        """Whether data and listeners made for one serve the other; ports not named are any ports."""
        ports = self.ports or other.ports
        return dataclasses.replace(self, ports=ports) == dataclasses.replace(other, ports=other.ports or ports)


def parse_spec(text: str) -> ClusterSpec:
    """`NAME[:protocol[:brokers]]`; with SASL the user is `$ConnectionString`, as on Event Hubs."""
    name, _, rest = text.partition(":")
    protocol, _, brokers = rest.partition(":")
    protocol = (protocol or "PLAINTEXT").upper()
    if brokers and not brokers.isdecimal():
        raise UsageFault(f"{text!r}: {brokers!r} is not a number of brokers", "write NAME[:protocol[:brokers]]")
    users = {"$ConnectionString": f"{name}-secret"} if protocol.startswith("SASL") else {}
    return ClusterSpec(name, int(brokers or 1), protocol, users)


def parse_ports(texts: Iterable[str]) -> dict[str, int]:
    """`NAME=PORT` each: cluster -> the port of its first broker."""
    ports: dict[str, int] = {}
    faults: list[str] = []
    for text in texts:
        name, _, port = text.partition("=")
        if not (name and port.isdecimal()):
            faults.append(f"{text!r} is not NAME=PORT")
        elif name in ports:
            faults.append(f"{name} is named twice")
        else:
            ports[name] = int(port)
    if faults:
        raise UsageFault(
            f"--port: {'; '.join(faults)}",
            "name the first port of a cluster, as in --port source=9092; its other brokers take the ports after it",
        )
    return ports


def at_ports(specs: Sequence[ClusterSpec], first_ports: Mapping[str, int]) -> list[ClusterSpec]:
    """The same clusters, where a port is named with their brokers on consecutive ones from there."""
    names = [spec.name for spec in specs]
    if unknown := [name for name in first_ports if name not in names]:
        raise UsageFault(
            f"--port: {', '.join(unknown)} is not among the clusters to start", f"here: {', '.join(names)}"
        )
    return [_at_port(spec, first_ports[spec.name]) if spec.name in first_ports else spec for spec in specs]


def _at_port(spec: ClusterSpec, first: int) -> ClusterSpec:
    return dataclasses.replace(spec, ports=tuple(range(first, first + spec.brokers)))


@dataclass(frozen=True)
class Ports:
    """The ports of one broker; only `client` is what users asked for."""

    client: int
    internal: int
    controller: int


def free_ports(count: int, without: Collection[int] = ()) -> list[int]:
    """Ports nobody listens on now, none of those that are spoken for."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(found) == count:
            return found
        if port not in without and _is_free(port):
            found.append(port)
    raise UsageFault(f"no {count} free ports in {PORTS.start}..{PORTS.stop}", "stop what listens there")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def refusal_to_listen(port: int) -> str | None:
    """Why the system would not let a broker listen there, in its words."""
    with socket.socket() as probe:
        # As Java does: connections that have ended do not count, who listens does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def server_properties(spec: ClusterSpec, node: int, ports: Mapping[int, Ports], folder: Path) -> dict[str, str]:
    """The settings of one broker, which is a controller too."""
    replicas = str(min(3, spec.brokers))
    mine = ports[node]
    listen = spec.listen_ports[node] if spec.listen_ports else mine.client
    internal = f"INTERNAL://{HOST}:{mine.internal}"
    return {
        "node.id": str(node),
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{n}@{HOST}:{p.controller}" for n, p in ports.items()),
        "controller.listener.names": "CONTROLLER",
        # Brokers talk among themselves, and the lab to them, in the clear on the loopback: whatever is
        # wrong with passwords or certificates on purpose, the cluster itself works.
        "inter.broker.listener.name": "INTERNAL",
        "listeners": f"CLIENT://{HOST}:{listen},{internal},CONTROLLER://{HOST}:{mine.controller}",
        "advertised.listeners": f"CLIENT://{HOST}:{mine.client},{internal}",
        "listener.security.protocol.map": f"CLIENT:{spec.protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / f"broker-{node}" / "data"),
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "5",
        # A killed broker is let in again only when its old session is over, by default after 9 seconds.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),  # the default takes a third of our heap
        **(_sasl(spec) if spec.sasl else {}),
        **(_tls(folder) if spec.tls else {}),
        **spec.config,
    }


def _sasl(spec: ClusterSpec) -> dict[str, str]:
    users = " ".join(f"user_{name}={_quoted(password)}" for name, password in spec.users.items())
    logins = {
        mechanism: f"{LOGINS[mechanism]} required {users if mechanism == 'PLAIN' else ''};"
        for mechanism in spec.mechanisms
    }
    return {
        "sasl.enabled.mechanisms": ",".join(spec.mechanisms),
        **{f"listener.name.client.{key.lower()}.sasl.jaas.config": login for key, login in logins.items()},
    }


def _tls(folder: Path) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
    }


SECURITY = "org.apache.kafka.common.security"
LOGINS = {
    "PLAIN": f"{SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{SECURITY}.oauthbearer.OAuthBearerLoginModule",
}


def jaas_client(user: str, password: str, mechanism: str = "PLAIN") -> str:
    return f"{LOGINS[mechanism]} required username={_quoted(user)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def properties_text(settings: Mapping[str, str]) -> str:
    """Java's properties format, where a backslash escapes."""
    return "".join(f"{key}={properties_escape(value)}\n" for key, value in settings.items())


def log4j2_properties(logs: Path) -> str:
    return properties_text(
        {
            "rootLogger.level": "INFO",
            "rootLogger.appenderRef.file.ref": "file",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": f"{logs}/server.log",
            "appender.file.filePattern": f"{logs}/server.log.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d{ISO8601} %p %m (%c{1})%n",
            "appender.file.policies.type": "Policies",
            "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size.size": "20MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": "3",
        }
    )
