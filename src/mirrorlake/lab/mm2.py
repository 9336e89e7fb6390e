"""The real MirrorMaker 2 as a process of the lab: what we compare ourselves with, and take over from.

<folder>/mm2.properties log4j2.properties process.json
         logs/server.log  logs/stdout.log
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from mirrorlake import jars
from mirrorlake.errors import Unreachable
from mirrorlake.lab.brokers import LabCluster, last_lines, write_private
from mirrorlake.lab.processes import Process, kill, stop, wait_until
from mirrorlake.lab.settings import log4j2_properties, properties_text

READY_SECONDS = 120
STOP_SECONDS = 30
DEFAULT_HEAP = "512m"
# Logged when the connectors are configured; their tasks start within the next seconds.
STARTED = "Kafka MirrorMaker started"


class Mm2:
    """MirrorMaker in its dedicated mode. `with` starts it and stops it; a folder used again goes on with its log."""

    def __init__(
        self,
        mm2_jars: Sequence[Path],
        properties: Mapping[str, str] | Path,
        folder: Path,
        heap: str = DEFAULT_HEAP,
        jvm: Sequence[str] = (),
    ) -> None:
        self.jars = mm2_jars
        self.properties = properties
        self.folder = Path(folder).absolute()
        self.heap = heap
        self.jvm = jvm

    def __enter__(self) -> Mm2:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def process(self) -> Process | None:
        return Process.recorded(self.folder / "process.json")

    @property
    def log(self) -> str:
        path = self.folder / "logs" / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start, and wait until its connectors are configured."""
        before = self.log.count(STARTED)
        self.launch()
        wait_until(lambda: self.process is None or self.log.count(STARTED) > before, READY_SECONDS)
        if self.process is None:
            raise self._failure("died at start")
        if self.log.count(STARTED) == before:
            raise self._failure(f"was not ready within {READY_SECONDS} seconds")

    def launch(self) -> None:
        """Start, and do not wait."""
        if self.process is None:
            self._write_files()
            Process.start(self._command(), self.folder / "logs" / "stdout.log", self.folder / "process.json")

    def stop(self) -> None:
        """SIGTERM: it commits its offsets and leaves its groups."""
        stop(filter(None, [self.process]), STOP_SECONDS)

    def kill(self) -> None:
        kill(filter(None, [self.process]))

    def _write_files(self) -> None:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(log4j2_properties(self.folder / "logs"))
        if isinstance(self.properties, Path):
            shutil.copyfile(self.properties, self._settings)
        else:
            write_private(self._settings, properties_text(self.properties))

    @property
    def _settings(self) -> Path:
        return self.folder / "mm2.properties"

    def _command(self) -> list[str]:
        return [
            str(jars.java()),
            f"-Xmx{self.heap}",
            *self.jvm,
            f"-XX:ErrorFile={self.folder}/logs/jvm-crash.log",
            f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties",
            "-cp",
            jars.class_path(self.jars),
            "org.apache.kafka.connect.mirror.MirrorMaker",
            str(self._settings),
        ]

    def _failure(self, what: str) -> Unreachable:
        logs = self.folder / "logs"
        said = [line for file in ("stdout.log", "server.log") for line in last_lines(logs / file, 12)]
        return Unreachable("\n".join([f"MirrorMaker 2 in {self.folder} {what}; it said last:", *said]), f"read {logs}")


def mm2_properties(
    clusters: Mapping[str, LabCluster], links: Sequence[tuple[str, str]], settings: Mapping[str, str]
) -> dict[str, str]:
    """An mm2.properties for lab clusters: their addresses and logins, the links `(source, target)`, and `settings`.

    Links that are not named are off, heartbeats too. Internal topics get as many replicas as the clusters have brokers.
    """
    replicas = str(min(3, *(len(cluster.ports) for cluster in clusters.values())))
    internal = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic",
                "offset.storage", "status.storage", "config.storage")  # fmt: skip
    reached = {f"{alias}.{key}": value for alias, c in clusters.items() for key, value in c.java_properties().items()}
    return {
        "clusters": ", ".join(clusters),
        **reached,
        **{f"{source}->{target}.enabled": "true" for source, target in links},
        "replication.factor": replicas,
        **{f"{name}.replication.factor": replicas for name in internal},
        "offset.storage.partitions": "5",  # 25 by default, one file each
        **settings,
    }
