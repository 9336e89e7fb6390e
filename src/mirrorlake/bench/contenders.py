"""Who is compared, with the settings they run under; all produce with acks=all."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mirrorlake import jars
from mirrorlake.bench.scenarios import MIRRORLAKE, MM2_DEFAULTS, MM2_LZ4, MM2_TUNED
from mirrorlake.clusters import KIND_PRODUCER
from mirrorlake.errors import Unreachable
from mirrorlake.lab.brokers import LabCluster, last_lines
from mirrorlake.lab.mm2 import Mm2, mm2_properties
from mirrorlake.lab.processes import Process, stop

STOP_SECONDS = 60
# What Kafka's own start script gives MirrorMaker.
MM2_HEAP = "2g"
MM2_JVM = ("-Xms256m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
           "-XX:+ExplicitGCInvokesConcurrent")  # fmt: skip
MM2_COMMON = {"tasks.max": "2", "sync.topic.acls.enabled": "false"}
MM2_TUNING = {
    "producer.override.batch.size": str(512 << 10),
    "producer.override.linger.ms": "20",
    "producer.override.buffer.memory": str(128 << 20),
    "producer.override.enable.idempotence": "true",
    "producer.override.max.in.flight.requests.per.connection": "5",
    "consumer.max.poll.records": "5000",
    "consumer.fetch.min.bytes": "100000",
    "consumer.max.partition.fetch.bytes": str(4 << 20),
}
SETTINGS: dict[str, Mapping[str, str]] = {
    MM2_DEFAULTS: MM2_COMMON,
    MM2_TUNED: {**MM2_COMMON, **MM2_TUNING},
    MM2_LZ4: {**MM2_COMMON, **MM2_TUNING, "producer.override.compression.type": "lz4"},
    MIRRORLAKE: {"target.replication_factor": "1"},
}
# Not given by us, and worth knowing: what the lab sets for its MM2, and what each sends with by default.
MM2_LAB = {"offset.storage.partitions": "5"}
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    MM2_DEFAULTS: {**MM2_LAB, "compression.type, by default": "none"},
    MM2_TUNED: {**MM2_LAB, "compression.type, by default": "none"},
    MM2_LZ4: MM2_LAB,
    MIRRORLAKE: {"compression.type, by default": KIND_PRODUCER["kafka"]["compression.type"]},
}


def described() -> dict[str, dict[str, str]]:
    """Contender -> the settings that it runs under, as results keep them."""
    return {name: {**settings, **DEFAULTS[name]} for name, settings in SETTINGS.items()}


@dataclass(frozen=True)
class Job:
    """From `source` to `targets`, under an alias of its own: each run has fresh topics and fresh state."""

    alias: str
    topics: str
    """One name, or a pattern where it ends in `.*`."""
    source: LabCluster
    targets: Mapping[str, LabCluster]
    folder: Path

    def copy_of(self, topic: str) -> str:
        """Both name copies so by default."""
        return f"{self.alias}.{topic}"


@contextlib.contextmanager
def running(contender: str, job: Job) -> Iterator[Process]:
    """Launch, without waiting for anything; stopped in order at the end."""
    job.folder.mkdir(parents=True, exist_ok=True)
    process = _relay(job) if contender == MIRRORLAKE else _mm2(contender, job)
    try:
        yield process
    finally:
        stop([process], STOP_SECONDS)
        # Where a runner had to be killed, its Spark and workers are still there: they are its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def require_alive(contender: str, process: Process, job: Job) -> None:
    if not process.alive():
        said = "\n".join(line for path in sorted(job.folder.rglob("*.log")) for line in last_lines(path, 10))
        raise Unreachable(f"{contender} ended before its time; it said last:\n{said}", f"read {job.folder}")


def _mm2(contender: str, job: Job) -> Process:
    clusters = {job.alias: job.source, **job.targets}
    links = [(job.alias, target) for target in job.targets]
    settings = {f"{a}->{b}.{key}": value for a, b in links for key, value in SETTINGS[contender].items()}
    properties = mm2_properties(clusters, links, {"topics": job.topics, **settings})
    mm2 = Mm2(jars.resolve(jars.MM2, print), properties, job.folder, MM2_HEAP, MM2_JVM)
    mm2.launch()
    process = mm2.process
    if process is None:
        raise Unreachable("MirrorMaker 2 could not be started", f"read {job.folder}")
    return process


def _relay(job: Job) -> Process:
    path = job.folder / "relay.yml"
    path.write_text(yaml.safe_dump(relay_configuration(job)))
    command = [sys.executable, "-m", "mirrorlake.cli", "run", "-c", str(path), "--log-format", "json"]
    return Process.start(command, job.folder / "run.log", job.folder / "process.json")


def relay_configuration(job: Job) -> dict[str, Any]:
    """As a user would write it; nothing but the clusters and the topics."""
    clusters = {job.alias: job.source, **job.targets}
    topics = {"patterns" if job.topics.endswith(".*") else "topics": [job.topics]}
    targets: Sequence[Any] = [{"cluster": alias, "replication_factor": 1} for alias in job.targets]
    return {
        "storage": {"root": str(job.folder / "state")},
        "clusters": {alias: cluster.cluster_yaml() for alias, cluster in clusters.items()},
        "flows": {"bench": {"source": job.alias, **topics, "targets": targets}},
    }
