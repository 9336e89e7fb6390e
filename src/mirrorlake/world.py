"""What a flow stands on: its storage root, its clusters, its tables, and Spark."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from threading import Semaphore
from typing import TYPE_CHECKING

from mirrorlake import classes, jars, session
from mirrorlake.clusters import librdkafka_admin, resolved, secrets_file_lines
from mirrorlake.config import Config, Flow
from mirrorlake.errors import StorageUnreachable, Transient
from mirrorlake.kafka import Cluster
from mirrorlake.tables import CatalogTables, FolderTables, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


def silent(_text: str) -> None:
    """Say nothing."""


def storage_root(config: Config) -> Path:
    """Where state lives: --root or MIRRORLAKE_ROOT (both end up in the configuration), else .mirrorlake here."""
    storage = config.storage
    return Path(storage.volume or storage.root or os.environ.get("MIRRORLAKE_ROOT") or ".mirrorlake").absolute()


def check_root(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise StorageUnreachable(
            f"the storage root {root} cannot be written: {error.strerror}",
            "choose another with --root or MIRRORLAKE_ROOT, or mend its permissions",
        ) from error


def connect(config: Config, flows: Sequence[Flow]) -> dict[str, Cluster]:
    """Clients for the clusters these flows touch."""
    aliases = {flow.source for flow in flows} | {t.cluster for flow in flows for t in flow.targets}
    return {alias: _client(config, alias) for alias in sorted(aliases)}


def _client(config: Config, alias: str) -> Cluster:
    def settings() -> dict[str, str | bool]:
        return resolved(librdkafka_admin(alias, config.clusters[alias]))

    return Cluster(alias, settings(), renew=settings)


def reach(clusters: Mapping[str, Cluster]) -> dict[str, str]:
    """Ask each cluster for its id, so that an unreachable one is named before anything starts."""
    return {alias: cluster.cluster_id() for alias, cluster in clusters.items()}


def reach_all_but(clusters: Mapping[str, Cluster], may_be_away: set[str], say: Say) -> dict[str, str]:
    """The same, but some may be away for now: they are missing in the answer."""
    ids = reach({alias: cluster for alias, cluster in clusters.items() if alias not in may_be_away})
    for alias in sorted(may_be_away):
        try:
            ids[alias] = clusters[alias].cluster_id()
        except Transient as fault:
            say(f"{alias} is away for now: {fault.what}")
    return ids


@contextlib.contextmanager
def secrets_folder(config: Config) -> Iterator[Path]:
    """A private file that Kafka's own provider reads: Spark's options hold references to it, never values."""
    with tempfile.TemporaryDirectory(prefix="mirrorlake-") as folder:
        path = Path(folder) / "secrets.properties"
        write_secrets(path, config)
        yield path


def write_secrets(path: Path, config: Config) -> None:
    """As they are now, in one step: a client that starts meanwhile reads the old ones or the new."""
    made = path.with_suffix(".new")
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(f"{key}={value}\n" for key, value in secrets_file_lines(config).items())
    made.replace(path)


def require_java(spark: SparkSession | None) -> None:
    """Before anything is made, where a session of our own is to start."""
    from pyspark.sql import SparkSession

    if spark is None and SparkSession.getActiveSession() is None:
        jars.java()


def spark_session(config: Config, root: Path, say: Say = silent, record_classes: bool = False) -> SparkSession:
    """The local session; a running one (a notebook's, Databricks') is used as it is."""
    from pyspark.sql import SparkSession

    if running := SparkSession.getActiveSession():
        return running
    jars.java()
    found = jars.resolve(jars.SPARK, say)
    logs = root / "logs"
    options = session.settings(found, config.runner.driver_memory, cores(config), config.storage.codec, logs)
    options["spark.master"] = f"local[{task_slots(config)}]"
    options["spark.driver.extraJavaOptions"] += allowed_endpoints(config) + compilers(config)
    options["spark.driver.extraJavaOptions"] += classes.java_options(kept_classes(), record_classes)
    options["spark.sql.warehouse.dir"] = str(root / "warehouse")
    options |= config.runner.spark
    if not options["spark.master"].startswith("local"):
        options.setdefault("spark.jars", ",".join(map(str, found)))  # for executors elsewhere
    say("starting Spark")
    return session.start(options, logs, config.runner.spark_log_level)


def kept_classes() -> Path:
    return classes.archive([*jars.resolve(jars.SPARK, silent), *jars.spark_jars()])


ROUNDS_AT_ONCE = 2
"""How many rounds may send to one target at the same time, whatever the number of tables."""


def cores(config: Config) -> int:
    return config.runner.parallelism or max(2, os.cpu_count() or 2)


def task_slots(config: Config) -> int:
    """A task that waits for a dead target's acknowledgement holds its slot: ingest and each target have their own."""
    targets = {target.cluster for flow in config.flows.values() for target in flow.targets}
    return cores(config) * (1 + ROUNDS_AT_ONCE * len(targets))


def compilers(config: Config) -> str:
    """Where Python workers carry all records Java only plans: its second compiler would take the cores from them."""
    carries = [config.storage.catalog, *(f.ingest.reader == "spark" for f in config.flows.values())]
    carries += [flow.fanout.reader == "spark" for flow in config.flows.values()]
    return "" if any(carries) else " -XX:TieredStopAtLevel=1"


def allowed_endpoints(config: Config) -> str:
    """Java may fetch tokens from the endpoints of the configuration, and from nowhere else."""
    found = {cluster.security.token_endpoint for cluster in config.clusters.values()} - {None}
    return f" -Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={','.join(sorted(map(str, found)))}"


def open_tables(config: Config, root: Path, spark: SparkSession | None = None) -> Tables:
    """Tables in a folder, or in a catalog where the configuration names one: only Spark gets in there."""
    if config.storage.catalog:
        return CatalogTables(spark or spark_session(config, root), config.storage.catalog)
    return FolderTables(root)


def now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass
class World:
    """What a running flow stands on; made once, by the runner."""

    config: Config
    root: Path
    spark: SparkSession
    tables: Tables
    clusters: Mapping[str, Cluster]
    cluster_ids: dict[str, str]
    """Alias -> id; a target that is away for now comes later."""
    source_options: Mapping[str, Mapping[str, str]]
    """Alias -> Spark's Kafka options, secrets as references."""
    turns: dict[str, Semaphore] = field(default_factory=lambda: defaultdict(lambda: Semaphore(ROUNDS_AT_ONCE)))
    """Target -> whose turn it is to send there."""

    def ops(self, table: str) -> str:
        return f"{self.config.storage.ops_schema}.{table}"

    @property
    def checkpoints(self) -> Path:
        return self.root / self.config.storage.checkpoints
