"""Clusters on this machine: made, started, found again by another process, broken on purpose, stopped.

<root>/<cluster>/cluster.json          what was asked for, cluster id, ports
                 ca.pem broker.pem client.pem client.crt client.key
                 secrets.properties    the passwords by user, for configurations that refer to them
                 broker-N/server.properties log4j2.properties process.json
                 broker-N/data/  broker-N/logs/
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from mirrorlake import jars
from mirrorlake.errors import ClusterUnreachable, UsageFault
from mirrorlake.lab import certs
from mirrorlake.lab.processes import Process, kill, stop, wait_until
from mirrorlake.lab.settings import (
    HOST,
    ClusterSpec,
    Ports,
    free_ports,
    jaas_client,
    log4j2_properties,
    properties_text,
    refusal_to_listen,
    server_properties,
)

Say = Callable[[str], None]

SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
READY_SECONDS = 120
STOP_SECONDS = 20
DEFAULT_HEAP = "384m"
# As fast at start as any collector. Stopping at the first compiler tier would start faster and run slower.
DEFAULT_JVM = "-XX:+UseParallelGC"


def silent(_: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class BrokerStatus:
    cluster: str
    broker: int
    address: str
    protocol: str
    pid: int | None
    state: str  # ready, running (no answer yet, or paused), stopped


@dataclass(frozen=True)
class LabCluster:
    """One local cluster; brokers are numbered from 0, and the number is Kafka's node id."""

    folder: Path
    spec: ClusterSpec
    cluster_id: str
    ports: dict[int, Ports]
    say: Say = dataclasses.field(default=silent, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{ports.client}" for ports in self.ports.values())

    @property
    def ca_pem(self) -> Path | None:
        return self.folder / "ca.pem" if self.spec.tls else None

    def fits(self, spec: ClusterSpec) -> bool:
        """Whether this is what is asked for; ports that are not named are any ports."""
        asked = spec.ports is None or spec.ports == tuple(ports.client for ports in self.ports.values())
        return asked and self.spec.same_shape(spec)

    # -- how clients reach it

    def client_config(self, user: str | None = None) -> dict[str, str]:
        """Settings for librdkafka."""
        config = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": self.spec.protocol}
        if self.spec.sasl:
            name, password = self._credentials(user)
            mechanism = self.spec.mechanisms[0]
            config |= {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": password}
        if self.spec.tls:
            config |= {
                "ssl.ca.location": str(self.folder / "ca.pem"),
                "ssl.certificate.location": str(self.folder / "client.crt"),
                "ssl.key.location": str(self.folder / "client.key"),
            }
        return config

    def java_properties(self, user: str | None = None) -> dict[str, str]:
        """Settings for Kafka's own tools and any Java client."""
        properties = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": self.spec.protocol}
        if self.spec.sasl:
            mechanism = self.spec.mechanisms[0]
            login = jaas_client(*self._credentials(user), mechanism)
            properties |= {"sasl.mechanism": mechanism, "sasl.jaas.config": login}
        if self.spec.tls:
            properties |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.folder / "ca.pem"),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.folder / "client.pem"),
            }
        return properties

    def cluster_yaml(self, user: str | None = None) -> dict[str, Any]:
        """This cluster as a section of our configuration; the password stays in its file."""
        security: dict[str, str] = {"protocol": self.spec.protocol}
        if self.spec.sasl:
            name, _ = self._credentials(user)
            secret = f"${{file:{self.folder / 'secrets.properties'}:{name}}}"
            security |= {"mechanism": self.spec.mechanisms[0], "username": name, "password": secret}
        if self.spec.tls:
            security |= {"ca": str(self.folder / "ca.pem")}
        if self.spec.protocol == "SSL":
            security |= {"certificate": f"{self.folder}/client.crt", "key": f"{self.folder}/client.key"}
        unencrypted = {"allow_insecure": True} if self.spec.protocol == "SASL_PLAINTEXT" else {}
        servers = self.bootstrap_servers
        return {"kind": "kafka", "bootstrap_servers": servers, "security": security, **unencrypted}

    def _credentials(self, user: str | None = None) -> tuple[str, str]:
        name = next(iter(self.spec.users)) if user is None else user
        if name not in self.spec.users:
            raise UsageFault(f"lab cluster {self.name} has no user {name!r}", f"one of: {', '.join(self.spec.users)}")
        return name, self.spec.users[name]

    def inside(self) -> dict[str, str]:
        """Settings for librdkafka over the listener that passes by whatever stands before the brokers."""
        return {"bootstrap.servers": ",".join(f"{HOST}:{ports.internal}" for ports in self.ports.values())}

    # -- its brokers

    def process(self, broker: int) -> Process | None:
        """The process of a broker, where it runs."""
        return Process.recorded(self._home(broker) / "process.json")

    def start_broker(self, broker: int) -> None:
        """Start a broker on its old ports and data, and wait until it serves."""
        self.launch(broker)
        self.await_ready(broker, [broker])

    def stop_broker(self, broker: int) -> None:
        stop(filter(None, [self.process(broker)]), STOP_SECONDS)

    def kill_broker(self, broker: int) -> None:
        """SIGKILL: the broker gets no chance to say goodbye."""
        kill(filter(None, [self.process(broker)]))

    def pause_broker(self, broker: int) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._running(broker).signal(signal.SIGSTOP)

    def resume_broker(self, broker: int) -> None:
        self._running(broker).signal(signal.SIGCONT)

    def launch(self, broker: int) -> None:
        """Start a broker, and do not wait."""
        if self.process(broker) is None:
            home = self._home(broker)
            command = broker_command(jars.resolve(bundle_of(self.spec), self.say), home, self.spec.jvm)
            Process.start(command, home / "logs" / "stdout.log", home / "process.json")

    def await_ready(self, broker: int, peers: Collection[int]) -> None:
        """Wait until a broker itself names these peers as alive, and their partitions have leaders."""
        client = self._probe(broker)
        wait_until(lambda: self.process(broker) is None or _serves(client, peers), READY_SECONDS)
        if self.process(broker) is None:
            raise self._failure(broker, "died at start")
        if not _serves(client, peers):
            raise self._failure(broker, f"was not ready within {READY_SECONDS} seconds")
        self.say(f"{self.name} broker {broker} is ready")

    def admin(self) -> AdminClient:
        """A client that may do everything: brokers talk among themselves over the same listener."""
        return self._probe(next(iter(self.ports)))

    def add_scram_users(self) -> None:
        """Passwords of SCRAM live in the cluster's own metadata, so they come after its start."""
        admin = self.admin()  # kept: a collected client fails its pending futures
        for kind in (SCRAM[each] for each in self.spec.mechanisms if each in SCRAM):
            info = ScramCredentialInfo(kind, 4096)
            wanted = [UserScramCredentialUpsertion(user, info, word.encode()) for user, word in self.spec.users.items()]
            for future in admin.alter_user_scram_credentials(wanted).values():
                future.result(20)

    def status(self) -> list[BrokerStatus]:
        return [self._status_of(broker) for broker in self.ports]

    def _status_of(self, broker: int) -> BrokerStatus:
        process = self.process(broker)
        pid = process.pid if process else None
        answers = process is not None and _serves(self._probe(broker), [broker])
        state = "ready" if answers else "running" if process else "stopped"
        address = f"{HOST}:{self.ports[broker].client}"
        return BrokerStatus(self.name, broker, address, self.spec.protocol, pid, state)

    def _probe(self, broker: int) -> AdminClient:
        """A client of one broker over the listener that needs neither password nor certificate."""
        return AdminClient(
            {
                "bootstrap.servers": f"{HOST}:{self.ports[broker].internal}",
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                "error_cb": lambda _: None,  # refused connections are what we wait out
            }
        )

    def _home(self, broker: int) -> Path:
        if broker not in self.ports:
            raise UsageFault(f"lab cluster {self.name} has no broker {broker}", f"0 to {len(self.ports) - 1}")
        return self.folder / f"broker-{broker}"

    def _running(self, broker: int) -> Process:
        if (process := self.process(broker)) is None:
            raise UsageFault(f"broker {broker} of lab cluster {self.name} does not run", "start it first")
        return process

    def _failure(self, broker: int, what: str) -> ClusterUnreachable:
        logs = self._home(broker) / "logs"
        said = [line for file in ("stdout.log", "server.log") for line in last_lines(logs / file, 12)]
        return ClusterUnreachable(
            "\n".join([f"broker {broker} of lab cluster {self.name} {what}; it said last:", *said]),
            f"read {logs}; `mirrorlake lab up {self.name} --fresh` begins anew, without its data",
        )


class Lab:
    """The clusters under one folder."""

    def __init__(self, root: Path, say: Say = silent) -> None:
        self.root = Path(root).absolute()
        self.say = say

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self, specs: Sequence[ClusterSpec], fresh: bool = False) -> dict[str, LabCluster]:
        """Start what does not run of these clusters, all at once; return when every broker serves."""
        self._refuse_taken_ports(specs)
        self.root.mkdir(parents=True, exist_ok=True)
        for bundle in {bundle_of(spec) for spec in specs}:
            jars.resolve(bundle, self.say)
        with jars.alone(self.root / "lock", self.say):
            asked = {port for spec in specs for port in spec.asked_ports}
            clusters = {spec.name: self._prepared(spec, fresh, asked) for spec in specs}
            started = [(c, broker) for c in clusters.values() for broker in c.ports if c.process(broker) is None]
            try:
                self._start(started)
            except BaseException:
                stop(filter(None, (c.process(broker) for c, broker in started)), STOP_SECONDS)
                raise
        return clusters

    def cluster(self, name: str) -> LabCluster:
        """A cluster that was made here, running or not."""
        try:
            state = json.loads((self.root / name / "cluster.json").read_text())
        except FileNotFoundError:
            known = ", ".join(self.names()) or "none yet"
            raise UsageFault(
                f"no lab cluster {name!r} under {self.root} (there: {known})", f"mirrorlake lab up {name}"
            ) from None
        return _read_cluster(self.root / name, state, self.say)

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob("*/cluster.json"))

    def status(self) -> list[BrokerStatus]:
        return [status for name in self.names() for status in self.cluster(name).status()]

    def down(self, names: Sequence[str] | None = None) -> None:
        """Stop these clusters, or all; their data stay."""
        clusters = [self.cluster(name) for name in (self.names() if names is None else names)]
        running = [process for c in clusters for broker in c.ports if (process := c.process(broker))]
        stop(running, STOP_SECONDS)
        self.say(f"stopped {len(running)} broker(s)")

    def _refuse_taken_ports(self, specs: Sequence[ClusterSpec]) -> None:
        """Ports that somebody chose are looked at before anything is touched."""
        faults: list[str] = []
        chosen_by: dict[int, str] = {}
        for spec in specs:
            ours = self._held_ports(spec.name)
            for port in spec.listen_ports or spec.ports or ():
                if (other := chosen_by.setdefault(port, spec.name)) != spec.name:
                    faults.append(f"{spec.name} and {other} cannot both listen on {HOST}:{port}")
                elif port not in ours and (why := refusal_to_listen(port)):
                    faults.append(f"{spec.name} cannot listen on {HOST}:{port}: {why}")
        if faults:
            raise UsageFault(
                f"lab cluster {'; '.join(faults)}",
                "choose another with --port NAME=PORT, or stop what listens there (`mirrorlake lab status`)",
            )

    def _held_ports(self, name: str) -> set[int]:
        """The ports on which running brokers of this cluster listen."""
        if name not in self.names():
            return set()
        cluster = self.cluster(name)
        running = [broker for broker in cluster.ports if cluster.process(broker)]
        listening = {cluster.spec.listen_ports[broker] for broker in running} if cluster.spec.listen_ports else set()
        return listening.union(*(dataclasses.astuple(cluster.ports[broker]) for broker in running))

    def _known_ports(self) -> set[int]:
        """The ports of all clusters here: those that are stopped will want theirs again."""
        clusters = [self.cluster(name) for name in self.names()]
        return {port for c in clusters for ports in c.ports.values() for port in dataclasses.astuple(ports)}

    def _prepared(self, spec: ClusterSpec, fresh: bool, asked: set[int]) -> LabCluster:
        """The cluster on disk, made where it is not there yet; `asked` are ports that any cluster named."""
        if spec.name in self.names():
            cluster = self.cluster(spec.name)
            if not fresh and cluster.fits(spec):
                return cluster
            if not fresh:
                raise UsageFault(
                    f"lab cluster {spec.name} exists and differs from what is asked now",
                    f"`mirrorlake lab up {spec.name} ... --fresh` makes it anew, without its data",
                )
            self.down([spec.name])
        shutil.rmtree(self.root / spec.name, ignore_errors=True)
        return make_cluster(self.root / spec.name, spec, self.say, asked | self._known_ports())

    def _start(self, brokers: Sequence[tuple[LabCluster, int]]) -> None:
        began = time.monotonic()
        for cluster, broker in brokers:
            self.say(f"starting {cluster.name} broker {broker} on {HOST}:{cluster.ports[broker].client}")
            cluster.launch(broker)
        for cluster, broker in brokers:
            cluster.await_ready(broker, cluster.ports)
        for cluster in {cluster.name: cluster for cluster, _ in brokers}.values():
            cluster.add_scram_users()
        self.say(f"{len(brokers)} broker(s) started in {time.monotonic() - began:.1f} s")


# -- making a cluster


def bundle_of(spec: ClusterSpec) -> jars.Bundle:
    return jars.OLD_BROKER if spec.old else jars.BROKER


def make_cluster(folder: Path, spec: ClusterSpec, say: Say, spoken_for: Collection[int] = ()) -> LabCluster:
    """Lay out a new cluster's folder; `cluster.json` comes last, so that half a folder is not a cluster."""
    folder.mkdir(parents=True, mode=0o700)
    cluster = LabCluster(folder, spec, _kafka_uuid(), _choose_ports(spec, spoken_for), say)
    if spec.tls:
        _write_certificates(folder)
    if spec.sasl:
        write_private(folder / "secrets.properties", properties_text(spec.users))
    checkpoint = bootstrap_checkpoint(jars.resolve(bundle_of(spec), say))
    for broker in cluster.ports:
        _write_broker(cluster, broker, checkpoint)
    write_private(folder / "cluster.json", json.dumps(_state(cluster), indent=2))
    return cluster


def _choose_ports(spec: ClusterSpec, spoken_for: Collection[int]) -> dict[int, Ports]:
    free = free_ports(3 * spec.brokers, {*spoken_for, *spec.asked_ports})
    client = spec.ports or free[: spec.brokers]
    rest = iter(free[spec.brokers :])
    return {broker: Ports(client[broker], next(rest), next(rest)) for broker in range(spec.brokers)}


def _write_certificates(folder: Path) -> None:
    ca = certs.authority()
    broker, client = certs.issue(ca, "broker"), certs.issue(ca, "client")
    (folder / "ca.pem").write_bytes(ca.certificate_pem)
    (folder / "client.crt").write_bytes(client.certificate_pem)
    write_private(folder / "client.key", client.key_pem.decode())
    write_private(folder / "client.pem", client.pem.decode())
    # Brokers show their authority too, as most do: a client can look at it before it trusts.
    write_private(folder / "broker.pem", (broker.pem + ca.certificate_pem).decode())


def _write_broker(cluster: LabCluster, broker: int, checkpoint: Path) -> None:
    """Settings and a formatted data folder: what `StorageTool format` makes, without a JVM for each."""
    home = cluster.folder / f"broker-{broker}"
    (home / "data").mkdir(parents=True)
    (home / "logs").mkdir()
    settings = server_properties(cluster.spec, broker, cluster.ports, cluster.folder)
    write_private(home / "server.properties", properties_text(settings))
    (home / "log4j2.properties").write_text(log4j2_properties(home / "logs"))
    identity = {
        "version": "1",
        "cluster.id": cluster.cluster_id,
        "node.id": str(broker),
        "directory.id": _kafka_uuid(),
    }
    (home / "data" / "meta.properties").write_text(properties_text(identity))
    shutil.copyfile(checkpoint, home / "data" / "bootstrap.checkpoint")


def bootstrap_checkpoint(broker_jars: Sequence[Path]) -> Path:
    """The feature levels a new cluster begins with, as StorageTool writes them; made once for these jars."""
    kept = broker_jars[0].parent / "bootstrap.checkpoint"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            shutil.move(_format_storage(Path(folder), broker_jars), kept)
    return kept


def _format_storage(folder: Path, broker_jars: Sequence[Path]) -> Path:
    settings = folder / "server.properties"
    settings.write_text(properties_text(server_properties(ClusterSpec("x"), 0, {0: Ports(1, 2, 3)}, folder)))
    command = [str(jars.java()), "-cp", jars.class_path(broker_jars), "kafka.tools.StorageTool"]
    done = subprocess.run(
        [*command, "format", "-t", _kafka_uuid(), "-c", str(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UsageFault(f"Kafka's StorageTool failed: {(done.stdout + done.stderr)[-2000:]}", "check `java -version`")
    return folder / "broker-0" / "data" / "bootstrap.checkpoint"


def broker_command(broker_jars: Sequence[Path], home: Path, jvm: str = "") -> list[str]:
    """How a broker is started; passwords are in the settings file, never on the command line."""
    return [
        str(jars.java()),
        f"-Xmx{os.environ.get('MIRRORLAKE_LAB_HEAP', DEFAULT_HEAP)}",
        *os.environ.get("MIRRORLAKE_LAB_JVM", DEFAULT_JVM).split(),
        *jvm.split(),
        f"-XX:ErrorFile={home}/logs/jvm-crash.log",
        f"-Dlog4j2.configurationFile={home}/log4j2.properties",
        "-cp",
        jars.class_path(broker_jars),
        "kafka.Kafka",
        str(home / "server.properties"),
    ]


def _kafka_uuid() -> str:
    """Kafka's spelling: URL-safe base64 that must not begin with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _state(cluster: LabCluster) -> dict[str, Any]:
    ports = [dataclasses.astuple(ports) for ports in cluster.ports.values()]
    return {"spec": dataclasses.asdict(cluster.spec), "cluster_id": cluster.cluster_id, "ports": ports}


def _read_cluster(folder: Path, state: dict[str, Any], say: Say) -> LabCluster:
    asked = state["spec"]
    lists = {key: tuple(asked[key]) for key in ("ports", "listen_ports", "mechanisms") if asked.get(key)}
    spec = ClusterSpec(**{**asked, **lists})
    ports = {broker: Ports(*three) for broker, three in enumerate(state["ports"])}
    return LabCluster(folder, spec, state["cluster_id"], ports, say)


def write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


# -- asking a broker


def _serves(client: AdminClient, peers: Collection[int]) -> bool:
    """Whether the broker names all these peers as alive, and a leader for what only they hold."""
    try:
        metadata = client.list_topics(timeout=1)
    except KafkaException:
        return False
    partitions = (p for topic in metadata.topics.values() for p in topic.partitions.values())
    led = all(p.leader >= 0 for p in partitions if set(p.replicas) <= set(peers))
    return led and set(peers) <= set(metadata.brokers)


def last_lines(path: Path, count: int) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-count:] if path.exists() else []
