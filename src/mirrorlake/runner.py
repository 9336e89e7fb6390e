"""Wires everything: what the commands, the notebooks and the jobs call."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mirrorlake import control, jars, session
from mirrorlake.bronze import read_positions
from mirrorlake.clusters import librdkafka_admin, limits, resolved, secrets_file_lines, spark_kafka_options
from mirrorlake.config import Config, Flow
from mirrorlake.errors import DataAtRisk, MirrorlakeError, StorageUnreachable, Transient, UsageFault
from mirrorlake.kafka import Cluster
from mirrorlake.lag import views
from mirrorlake.lease import Lease, hold, is_held, read_holder
from mirrorlake.ledger import LedgerWriter
from mirrorlake.relay import Relay, World, now
from mirrorlake.tables import FolderTables, Tables, ensure_ops
from mirrorlake.topics import RelaySpec, plan_topics, relay_specs, takes, target_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


def silent(_text: str) -> None:
    """Say nothing."""


# --- what everything stands on ---


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
    return {
        alias: Cluster(alias, resolved(librdkafka_admin(alias, config.clusters[alias]))) for alias in sorted(aliases)
    }


def reach(clusters: Mapping[str, Cluster]) -> dict[str, str]:
    """Ask each cluster for its id, so that an unreachable one is named before anything starts."""
    return {alias: cluster.cluster_id() for alias, cluster in clusters.items()}


@contextlib.contextmanager
def secrets_folder(config: Config) -> Iterator[Path]:
    """A private file that Kafka's own provider reads: Spark's options hold references to it, never values."""
    with tempfile.TemporaryDirectory(prefix="mirrorlake-") as folder:
        path = Path(folder) / "secrets.properties"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.writelines(f"{key}={value}\n" for key, value in secrets_file_lines(config).items())
        yield path


def spark_session(config: Config, root: Path, say: Say = silent) -> SparkSession:
    """The local session; a running one (a notebook's, Databricks') is used as it is."""
    from pyspark.sql import SparkSession

    if running := SparkSession.getActiveSession():
        return running
    jars.java()
    found = jars.resolve(jars.SPARK, say)
    cores = config.runner.parallelism or max(2, os.cpu_count() or 2)
    logs = root / "logs"
    options = session.settings(found, config.runner.driver_memory, cores, config.storage.codec, logs)
    options["spark.sql.warehouse.dir"] = str(root / "warehouse")
    say("starting Spark")
    return session.start({**options, **config.runner.spark}, logs)


# --- run ---


@dataclass
class Snapshot:
    """What runs, for people: one line for each flow, table and target."""

    flow: str
    table: str
    target: str
    ingested: int
    delivered: int
    waiting: str


@dataclass
class Run:
    """One run of the chosen flows, from leases to a clean stop."""

    config: Config
    once: bool = False
    for_seconds: float | None = None
    say: Say = silent
    watch: Callable[[list[Snapshot]], None] = lambda _snapshots: None
    stopping: threading.Event = field(default_factory=threading.Event)
    _failures: list[Exception] = field(default_factory=list)

    def __call__(self) -> None:
        """1. storage, clusters and leases; 2. Spark; 3. relays; 4. the control loop; 5. a clean stop."""
        root = storage_root(self.config)
        check_root(root)
        flows = list(self.config.flows.values())
        clusters = connect(self.config, flows)
        ids = reach(clusters)
        with contextlib.ExitStack() as stack:
            leases = {flow.name: stack.enter_context(hold(root, flow.name)) for flow in flows}
            secrets = stack.enter_context(secrets_folder(self.config))
            spark = spark_session(self.config, root, self.say)
            stack.callback(spark.stop)
            world = World(self.config, root, spark, FolderTables(root), clusters, ids, self._options(secrets))
            ensure_ops(world.tables, self.config.storage.ops_schema)
            self._run_relays(world, flows, leases)

    def _options(self, secrets: Path) -> dict[str, dict[str, str]]:
        return {
            alias: dict(spark_kafka_options(alias, cluster, secrets_file=secrets))
            for alias, cluster in self.config.clusters.items()
        }

    def _run_relays(self, world: World, flows: Sequence[Flow], leases: Mapping[str, Lease]) -> None:
        ledger = LedgerWriter(world.tables, world.ops("ledger"), self.config.runner.ledger_commit_seconds)
        relays: list[Relay] = []
        try:
            for flow in flows:
                relays += self._start_flow(world, flow, leases[flow.name], ledger)
            self._drain(relays) if self.once else self._control(world, relays)
        finally:
            self.say("stopping")
            for relay in relays:
                relay.stop()
            self._sample(world, relays, quietly=True)
            self._write_status(world, relays, "stopped")
            ledger.close()

    def _start_flow(self, world: World, flow: Flow, lease: Lease, ledger: LedgerWriter) -> list[Relay]:
        source = world.clusters[flow.source]
        known = source.topic_names() if flow.patterns else ()
        relays = []
        for spec in relay_specs(self.config, flow, known):
            relays.append(self._start_relay(world, flow, spec, lease, ledger))
        return relays

    def _start_relay(
        self, world: World, flow: Flow, spec: RelaySpec, lease: Lease, ledger: LedgerWriter
    ) -> Relay:
        self.say(f"flow {flow.name}: {spec.describe()} -> {spec.table} -> {', '.join(t.cluster for t in flow.targets)}")
        pauses = Pauses(world.root, flow.name)
        relay = Relay(world, flow, spec, lease, ledger, pauses, self.once)
        relay.stopping = self.stopping
        relay.prepare()
        relay.start_ingest()
        if not self.once:
            relay.start_fan_outs()
            relay.kick()
        return relay

    # --- once ---

    def _drain(self, relays: Sequence[Relay]) -> None:
        """Ingest what is there, then send all of it, and end."""
        for relay in relays:
            while relay.ingest_query.isActive and not self.stopping.is_set():
                relay.ingest_query.awaitTermination(1)
                self._show(relays)
            self._raise_failures(relays)
            for target in relay.flow.targets:
                relay.make_fan_out(target).deliver()
                self._show(relays)

    # --- the control loop ---

    def _control(self, world: World, relays: Sequence[Relay]) -> None:
        begun = time.monotonic()
        refresh = Every(self.config.runner.refresh_topics_seconds)
        sample = Every(self.config.runner.lag_sample_seconds)
        while not self.stopping.wait(0.5):
            if self.for_seconds is not None and time.monotonic() - begun > self.for_seconds:
                return
            self._raise_failures(relays)
            self._show(relays)
            if refresh.due():
                self._tolerantly(lambda: [relay.refresh() for relay in relays])
            if sample.due():
                self._sample(world, relays)
            self._write_status(world, relays, "running")
            for relay in relays:
                if relay.pauses.changed():
                    relay.kick()

    def _tolerantly(self, act: Callable[[], object]) -> None:
        """What passes by itself must not stop the flow; it is said, and tried at the next round."""
        try:
            act()
        except Transient as fault:
            self.say(f"waiting: {fault.what}")

    def _raise_failures(self, relays: Sequence[Relay]) -> None:
        for relay in relays:
            for failure in relay.failures:
                raise failure
            for query in [relay.ingest_query, *relay.fan_out_queries.values()]:
                if query is not None and not query.isActive and query.exception() is not None:
                    raise self._query_failure(relay, query)

    def _query_failure(self, relay: Relay, query: Any) -> MirrorlakeError:
        """A query that ended without one of our errors: look first whether the source lost something."""
        assert relay.ingest is not None  # noqa: S101
        relay._meet_losses(relay.ingest.losses())  # noqa: SLF001
        return DataAtRisk(
            f"flow {relay.flow.name}: query {query.name} ended: {str(query.exception()).splitlines()[0][:500]}",
            f"see {relay.world.root / 'logs' / 'spark.log'}; run again: it goes on where it stopped",
        )

    def _show(self, relays: Sequence[Relay]) -> None:
        self.watch([line for relay in relays for line in snapshots(relay)])

    def _sample(self, world: World, relays: Sequence[Relay], quietly: bool = False) -> None:
        def write() -> None:
            tables = [relay.lag_samples() for relay in relays if relay.ingest is not None and relay.fan_outs]
            if tables:
                world.tables.append(world.ops("lag_samples"), pa.concat_tables(tables))

        if quietly:
            with contextlib.suppress(Exception):
                write()
        else:
            self._tolerantly(write)

    def _write_status(self, world: World, relays: Sequence[Relay], state: str) -> None:
        for flow in {relay.flow.name for relay in relays}:
            lines = [line for relay in relays if relay.flow.name == flow for line in snapshots(relay)]
            control.write_status(
                world.root,
                flow,
                {"state": state, "pid": os.getpid(), "at": time.time(), "targets": [vars(line) for line in lines]},
            )


def snapshots(relay: Relay) -> list[Snapshot]:
    ingested = sum(read_positions(relay.ingest.checkpoint).values()) if relay.ingest else 0
    return [
        Snapshot(
            relay.flow.name,
            relay.spec.table,
            target.cluster,
            ingested,
            relay.fan_outs[target.cluster].progress.records if target.cluster in relay.fan_outs else 0,
            relay.fan_outs[target.cluster].progress.waiting if target.cluster in relay.fan_outs else "",
        )
        for target in relay.flow.targets
    ]


class Every:
    """True once in a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = time.monotonic()

    def due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._seconds
        return True


class Pauses:
    """What is paused of a flow, read again when the file changes."""

    def __init__(self, root: Path, flow: str) -> None:
        self._root = root
        self._flow = flow
        self._seen = self._read()

    def _read(self) -> list[control.Pause]:
        return control.read_pauses(self._root, self._flow)

    def __call__(self) -> list[control.Pause]:
        return self._seen

    def changed(self) -> bool:
        before, self._seen = self._seen, self._read()
        return before != self._seen
