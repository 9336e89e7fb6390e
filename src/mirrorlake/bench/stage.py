"""Where the contenders run: one source, up to three targets, one more behind a long line."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import NewTopic

from mirrorlake import jars
from mirrorlake.bench.records import load
from mirrorlake.bench.scenarios import FILL, Scenario
from mirrorlake.errors import Unreachable
from mirrorlake.kafka import Cluster
from mirrorlake.lab.brokers import Lab, LabCluster
from mirrorlake.lab.processes import Process, kill, wait_until
from mirrorlake.lab.settings import HOST, ClusterSpec, free_ports

BROKER_JVM = "-Xmx1g"
FAR = "far"
TOPIC_SECONDS = 30


@dataclass
class Stage:
    clusters: dict[str, LabCluster]
    folder: Path
    jmx_port: int
    loaded: set[str] = field(default_factory=set)
    clients: dict[str, Cluster] = field(default_factory=dict)

    @property
    def source(self) -> LabCluster:
        return self.clusters["src"]

    def client(self, name: str) -> Cluster:
        """For looking on: it passes by the long line."""
        if name not in self.clients:
            self.clients[name] = Cluster(name, self.clusters[name].inside())
        return self.clients[name]

    def targets(self, scenario: Scenario) -> dict[str, LabCluster]:
        names = [FAR] if scenario.round_trip_ms else target_names(scenario.targets)
        return {name: self.clusters[name] for name in names}

    def broker_pids(self) -> list[int]:
        processes = [cluster.process(broker) for cluster in self.clusters.values() for broker in cluster.ports]
        return [process.pid for process in processes if process]

    # -- topics

    def prepare(self, *scenarios: Scenario) -> None:
        """The scenarios' topics on the source, full, and no others; made once for all that share them."""
        wanted = {scenario.topic: scenario for scenario in scenarios}
        self.drop("src", *(self.loaded - set(wanted)))
        for topic, scenario in wanted.items():
            if topic not in self.loaded:
                self._fill(scenario)
        self.loaded = set(wanted)

    def _fill(self, scenario: Scenario) -> None:
        self.create(scenario.topic, scenario.partitions)
        load(self.source.inside(), scenario.topic, scenario.partitions, scenario.records, scenario.record_bytes)

    def create(self, topic: str, partitions: int) -> None:
        source = self.client("src")
        source.create_topic(topic, partitions, 1, {})
        wait_until(lambda: topic in source.describe([topic]), TOPIC_SECONDS)

    def create_many(self, topics: Sequence[str]) -> None:
        futures = self.client("src").admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
        for future in futures.values():
            future.result(TOPIC_SECONDS)

    def drop(self, name: str, *topics: str) -> None:
        """Gone for good, so that disks do not fill; the brokers delete a minute later."""
        there = [topic for topic in self.client(name).topic_names() if topic in topics]
        for future in self.client(name).admin.delete_topics(there).values() if there else ():
            future.result(TOPIC_SECONDS)

    def forget(self, alias: str, targets: Sequence[str]) -> None:
        """All topics of one run: copies, and what MM2 keeps for itself."""
        for name in ["src", *targets]:
            named = (f"{alias}.", f"mm2-offsets.{alias}.", f"mm2-configs.{alias}.", f"mm2-status.{alias}.")
            own = [t for t in self.client(name).topic_names() if t.startswith(named) or f".{alias}.internal" in t]
            self.drop(name, *own)

    # -- what the source cluster gave

    def source_bytes_out(self, topic: str) -> int:
        """Bytes of a topic that left the source, as its broker counts them."""
        command = [
            str(jars.java()), "-cp", jars.class_path(jars.resolve(jars.MM2, print)), "org.apache.kafka.tools.JmxTool",
            "--jmx-url", f"service:jmx:rmi:///jndi/rmi://{HOST}:{self.jmx_port}/jmxrmi",
            "--object-name", f"kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic={topic}",
            "--attributes", "Count", "--one-time", "--report-format", "properties",
        ]  # fmt: skip
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        counts = [line.rpartition("=")[2] for line in said.stdout.splitlines() if "Count=" in line]
        # A topic that nobody has read yet has no counter.
        return int(counts[0]) if counts else 0


def target_names(count: int) -> list[str]:
    return [f"dst{number}" for number in range(1, count + 1)]


@contextlib.contextmanager
def set_up(folder: Path, scenarios: Sequence[Scenario]) -> Iterator[Stage]:
    """Only the clusters that these scenarios need."""
    jmx_port, far_port, far_listens = free_ports(3)
    specs = [ClusterSpec("src", jvm=f"{BROKER_JVM} {jmx_options(jmx_port)}", config=KEEP)]
    near = max([scenario.targets + (scenario.kind == FILL) for scenario in scenarios])
    specs += [ClusterSpec(name, jvm=BROKER_JVM, config=KEEP) for name in target_names(near)]
    round_trips = [scenario.round_trip_ms for scenario in scenarios if scenario.round_trip_ms]
    with contextlib.ExitStack() as stack:
        if round_trips:
            specs.append(ClusterSpec(FAR, ports=(far_port,), listen_ports=(far_listens,), jvm=BROKER_JVM, config=KEEP))
            stack.enter_context(delayed(folder, far_port, far_listens, round_trips[0] / 2000))
        clusters = stack.enter_context(Lab(folder / "lab")).up(specs)
        yield Stage(clusters, folder, jmx_port)


KEEP = {"log.retention.ms": "-1", "log.segment.delete.delay.ms": "1000"}


def jmx_options(port: int) -> str:
    prefix = "-Dcom.sun.management.jmxremote"
    return (
        f"{prefix}.port={port} {prefix}.rmi.port={port} {prefix}.host={HOST} -Djava.rmi.server.hostname={HOST} "
        f"{prefix}.authenticate=false {prefix}.ssl=false"
    )


@contextlib.contextmanager
def delayed(folder: Path, port: int, upstream_port: int, seconds: float) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mirrorlake.bench.delay", str(port), str(upstream_port), str(seconds)]
    process = Process.start(command, folder / "delay.log", folder / "delay.json")
    try:
        yield
    finally:
        kill([process])
    if "Error" in (folder / "delay.log").read_text():
        raise Unreachable("the delay line failed", f"read {folder / 'delay.log'}")
