"""Versions, Java, jars; reaches each cluster step by step, stops at the first that fails, and names the fix."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mirrorlake import jars
from mirrorlake.clusters import librdkafka_admin, limits, resolved
from mirrorlake.config import Cluster as ClusterConfig
from mirrorlake.config import Config
from mirrorlake.errors import MirrorlakeError
from mirrorlake.kafka import Cluster
from mirrorlake.world import check_root


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    subject: str
    what: str
    ok: bool
    detail: str
    fix: str = ""


def examine(config: Config, root: Path) -> Iterator[Check]:
    yield from examine_machine(root)
    for alias, cluster in config.clusters.items():
        yield from examine_cluster(alias, cluster)


# --- this machine ---


def examine_machine(root: Path) -> Iterator[Check]:
    packages = ("mirrorlake", "pyspark", "delta-spark", "deltalake", "confluent-kafka", "pyarrow")
    yield Check("machine", "python", True, platform.python_version())
    for package in packages:
        yield _package(package)
    yield _attempt("machine", "java", _java)
    yield _attempt("machine", "jars", _jars)
    yield _attempt("machine", "storage root", lambda: _root(root))


def _package(name: str) -> Check:
    try:
        return Check("machine", name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check("machine", name, False, "not installed", "pip install 'mirrorlake[local]'")


def _java() -> str:
    found = jars.java()
    said = subprocess.run([str(found), "-version"], capture_output=True, text=True, check=True, timeout=20)
    return said.stderr.splitlines()[0]


def _jars() -> str:
    found = jars.resolve(jars.SPARK, lambda _text: None)
    names = sorted(jar.name for jar in found if jar.name.startswith(("kafka-clients", "delta-spark", "spark-sql")))
    return ", ".join(names)


def _root(root: Path) -> str:
    check_root(root)
    return f"{root}, {shutil.disk_usage(root).free / 1e9:.0f} GB free"


def _attempt(subject: str, what: str, look: Callable[[], str]) -> Check:
    try:
        return Check(subject, what, True, look())
    except MirrorlakeError as fault:
        return Check(subject, what, False, fault.what, fault.next_step)


# --- a cluster ---


def examine_cluster(alias: str, cluster: ClusterConfig) -> Iterator[Check]:
    """In order: name, port, then what Kafka's protocol says; the first that fails is the last."""
    steps: list[tuple[str, Callable[[], str]]] = [
        ("name resolves", lambda: _resolve(cluster)),
        ("port answers", lambda: _knock(cluster)),
        ("metadata", lambda: _metadata(alias, cluster)),
        ("advertised listeners", lambda: _listeners(alias, cluster)),
        ("limits", lambda: _limits(cluster)),
    ]
    for what, look in steps:
        check = _attempt(alias, what, look)
        yield check
        if not check.ok:
            return


def servers(cluster: ClusterConfig) -> list[tuple[str, int]]:
    pairs = [server.rpartition(":") for server in cluster.bootstrap_servers.split(",")]
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]


def _resolve(cluster: ClusterConfig) -> str:
    return ", ".join(f"{host} is {_address(host, port)}" for host, port in servers(cluster))


def _address(host: str, port: int) -> str:
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror as error:
        raise MirrorlakeError(
            f"{host} does not resolve: {error.strerror}", "check bootstrap_servers and DNS"
        ) from error


def _knock(cluster: ClusterConfig) -> str:
    took = {f"{host}:{port}": _connect_ms(host, port) for host, port in servers(cluster)}
    return ", ".join(f"{server} in {ms:.1f} ms" for server, ms in took.items())


def _connect_ms(host: str, port: int) -> float:
    begun = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as error:
        raise MirrorlakeError(
            f"{host}:{port} does not answer: {error}",
            "is the broker up, is the port right, is a firewall between?",
        ) from error
    return (time.monotonic() - begun) * 1000


def _metadata(alias: str, cluster: ClusterConfig) -> str:
    live = Cluster(alias, resolved(librdkafka_admin(alias, cluster)), timeout_seconds=10)
    return f"cluster id {live.cluster_id()}, {live.broker_count()} broker(s), {len(live.topic_names())} topics"


def _listeners(alias: str, cluster: ClusterConfig) -> str:
    """Brokers tell clients where to connect: each of those addresses must answer from here too."""
    live = Cluster(alias, resolved(librdkafka_admin(alias, cluster)), timeout_seconds=10)
    took = {f"{host}:{port}": _connect_ms(host, port) for host, port in live.brokers()}
    return ", ".join(f"{server} in {ms:.1f} ms" for server, ms in took.items())


def _limits(cluster: ClusterConfig) -> str:
    known = limits(cluster)
    size = f"{known.max_record_bytes} bytes" if known.max_record_bytes else "as its topics say"
    return f"records up to {size}; topics {'can' if known.can_create_topics else 'cannot'} be created by us"
