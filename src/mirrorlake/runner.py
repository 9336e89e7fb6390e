"""Wires everything: what the commands, the notebooks and the jobs call."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from mirrorlake import classes, control, session
from mirrorlake.clusters import spark_kafka_options, weaknesses
from mirrorlake.config import Config, Flow, Target
from mirrorlake.errors import (
    AccessRefused,
    DataAtRisk,
    MirrorlakeError,
    SourceLoss,
    StorageUnreachable,
    TopicMissing,
    TopicRemade,
    Transient,
)
from mirrorlake.fanout import Backoff, last_line
from mirrorlake.groupkeeper import GroupKeeper
from mirrorlake.inspection import register
from mirrorlake.kafka import refusal_in
from mirrorlake.lease import Lease, await_no_producers, hold_flow, producer_locks
from mirrorlake.ledger import LedgerWriter
from mirrorlake.links import Storage
from mirrorlake.records import SourcePartition
from mirrorlake.relay import Relay
from mirrorlake.strand import Strand
from mirrorlake.tables import Tables, ensure_ops
from mirrorlake.targets import refuse_misnamed
from mirrorlake.throughput import Meter
from mirrorlake.topics import fit_names, flow_topics, relay_specs
from mirrorlake.upkeep import Every, Upkeep
from mirrorlake.world import (
    Say,
    World,
    check_root,
    connect,
    cores,
    kept_classes,
    now,
    open_tables,
    reach_all_but,
    require_java,
    secrets_folder,
    silent,
    spark_session,
    storage_root,
    write_secrets,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STALL_SECONDS = 10.0
RETRY_REFUSED_SECONDS = 5.0
"""How often a source that refuses us, after it did not, is tried again: a password may just be changed."""
PATIENCE_SECONDS = 60.0
"""How long a start, and `--once`, wait for what passes by itself."""
T = TypeVar("T")

# --- run ---


class Keeper(Protocol):
    """Something beside the copying that is looked after now and then."""

    def tend(self) -> None: ...


@dataclass
class Snapshot:
    """What runs, for people: one line for each flow, table and target."""

    flow: str
    table: str
    target: str
    delivered: int
    """Records since this runner started."""
    behind: int
    """Records that are not delivered yet: in bronze, or at the source as of the newest sample."""
    waiting: str


@dataclass
class Run:
    """One run of the chosen flows, from leases to a clean stop."""

    config: Config
    once: bool = False
    for_seconds: float | None = None
    say: Say = silent
    watch: Callable[[list[Snapshot]], None] = lambda _snapshots: None
    spark: SparkSession | None = None
    """The session to use, a notebook's or Databricks'; without one we start our own, and stop it at the end."""
    keep_classes: bool = False
    """Have Java keep what it loaded, at the end of a run of which nobody minds the pace."""
    stopping: threading.Event = field(default_factory=threading.Event)
    _leases: list[Lease] = field(default_factory=list)
    _stalled: set[str] = field(default_factory=set)
    """Tables of which it was said that nothing comes."""
    _mourned: set[tuple[str, str, str]] = field(default_factory=set)
    """(Table, target, why) of which was said that it stopped."""
    _secrets: Path | None = None
    _refused: dict[str, Every] = field(default_factory=dict)
    """Table -> when to try again after the source refused us."""
    _refusals: Episodes = field(init=False)
    _restarts: Restarts = field(default_factory=lambda: Restarts(10, 600))
    _waits: Restarts = field(default_factory=lambda: Restarts(100, 600))
    """After what passes by itself: a source may be away for hours, but not come and go twice a second."""
    _meter: Meter = field(default_factory=Meter)
    _begun: float | None = None
    _asked_to_stop: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    """Set when the relays of this pass stop."""

    def __post_init__(self) -> None:
        self._refusals = Episodes(self.config.runner.refused_seconds)

    def __call__(self) -> None:
        """Run; and once more, with a new epoch, where a topic that somebody deleted is to be filled again."""
        while True:
            try:
                return self._run()
            except TopicRemade as fault:
                if self._asked_to_stop or not self._restarts.allowed("remade topics"):
                    raise
                self.say(f"starting again: {fault.what}")
                self.stopping.clear()
                self._mourned.clear()
            except Transient:
                if not self._asked_to_stop:
                    raise
                return None  # what we waited for concerns nobody any more

    def _run(self) -> None:
        """1. storage, clusters and leases; 2. Spark; 3. relays; 4. the control loop; 5. a clean stop."""
        root = storage_root(self.config)
        require_java(self.spark)
        check_root(root)
        flows = list(self.config.flows.values())
        clusters = connect(self.config, flows)
        for alias in clusters:
            for weakness in weaknesses(self.config.clusters[alias]):
                self.say(f"cluster {alias}: {weakness}")
        # A long-running relay does not wait for a target that is away; a single pass does, and says so.
        targets = set() if self.once else clusters.keys() - {flow.source for flow in flows}
        ids = reach_all_but(clusters, targets, self.say)
        with contextlib.ExitStack() as stack:
            for cluster in clusters.values():
                # Spark keeps what it called back, and so all that a relay held, for as long as the process lives.
                stack.callback(cluster.close)
            # Before Spark starts, where that can be: a second runner is refused at once.
            leases = {} if self.config.storage.catalog else self._hold(stack, root, open_tables(self.config, root))
            self._secrets = secrets = stack.enter_context(secrets_folder(self.config))
            spark = self.spark or stack.enter_context(self._own_spark(root))
            tables = open_tables(self.config, root, spark)
            world = World(self.config, root, spark, tables, clusters, ids, self._options(secrets, many_machines(spark)))
            ensure_ops(tables, self.config.storage.ops_schema)
            with spark_explained(root):
                self._run_relays(world, flows, leases or self._hold(stack, root, tables))

    def _hold(self, stack: contextlib.ExitStack, root: Path, tables: Tables) -> dict[str, Lease]:
        """All flows at once: each may have to wait until a crashed runner's lease ends."""

        def enter(flow: str) -> Lease:
            return stack.enter_context(hold_flow(self.config.storage, root, tables, flow, self.say))

        with ThreadPoolExecutor(len(self.config.flows)) as pool:
            self._leases = list(pool.map(enter, self.config.flows))
        return {lease.flow: lease for lease in self._leases}

    def _require_leases(self) -> None:
        for lease in self._leases:
            lease.require_valid()

    @contextlib.contextmanager
    def _own_spark(self, root: Path) -> Iterator[SparkSession]:
        spark = spark_session(self.config, root, self.say, self.keep_classes)
        session.warm_up(spark, cores(self.config))
        try:
            yield spark
            if self.keep_classes:
                classes.keep(spark.sparkContext._gateway, kept_classes())  # noqa: SLF001
        finally:
            # A session whose Java process is gone cannot be stopped, and need not be.
            with contextlib.suppress(Exception):
                spark.stop()

    def _options(self, secrets: Path, many: bool) -> dict[str, dict[str, str]]:
        shaded = "DATABRICKS_RUNTIME_VERSION" in os.environ
        sources = {flow.source: self.config.clusters[flow.source] for flow in self.config.flows.values()}
        return {
            alias: dict(spark_kafka_options(alias, cluster, shaded, secrets, by_environment=many))
            for alias, cluster in sources.items()
        }

    def _run_relays(self, world: World, flows: Sequence[Flow], leases: Mapping[str, Lease]) -> None:
        ledger = LedgerWriter(world.tables, world.ops("ledger"), self.config.runner.ledger_commit_seconds)
        ledger.listeners.append(self._meter.count)
        relays: list[Relay] = []
        reason = ""
        keepers = [Upkeep(world, flow, target, self.say) for flow in flows for target in flow.targets]
        group_keepers = self._group_keepers(world, flows, ledger, relays)
        try:
            for flow in flows:
                relays += self._make_relays(world, flow, leases[flow.name], ledger)
            for relay in relays:
                self._patiently(relay.look)
            for keeper in keepers:
                self._tolerantly(keeper.beat)
            for relay in relays:
                self._start(relay)
            self._make_views(world, relays)
            self._keep_up([*keepers, *group_keepers] if not self.once else keepers)
            self._drain(relays) if self.once else self._control(world, relays)
            if self.once:
                self._keep_up(group_keepers)
            self._raise_dead(relays)
        except BaseException as fault:
            reason = fault.what if isinstance(fault, MirrorlakeError) else repr(fault)
            raise
        finally:
            for group_keeper in group_keepers:
                group_keeper.close()
            self._stop(world, relays, ledger, reason)

    def _stop(self, world: World, relays: Sequence[Relay], ledger: LedgerWriter, reason: str) -> None:
        """A clean stop is what the next run trusts: nothing of us can land any more, and the ledger has all of it."""
        self.say("stopping")
        self._asked_to_stop = self.stopping.is_set()
        self._over.set()
        ended = [relay.stop() for relay in relays]
        clean = all(ended) and all(relay.is_certain() for relay in relays)
        self._sample(world, relays, quietly=True)
        self._write_status(world, relays, "failed", reason)
        ledger.close()
        with contextlib.suppress(Exception):  # counts for people: nothing to fail for
            self._write_deliveries(world)
        if not reason:
            self._write_status(world, relays, "stopped" if all(ended) else "failed", clean=clean)

    def _make_relays(self, world: World, flow: Flow, lease: Lease, ledger: LedgerWriter) -> list[Relay]:
        known = self._patiently(world.clusters[flow.source].topic_names) if flow.patterns else flow.topics
        self._refuse_names(flow, known)
        clean = self._outlive_the_last_runner(world, flow)
        pauses = control.Pauses(world.root, flow.name)
        return [
            Relay(Strand(world, flow, spec, lease), ledger, pauses, self.once, clean, self.stopping)
            for spec in relay_specs(self.config, flow, known)
        ]

    def _refuse_names(self, flow: Flow, known: Iterable[str]) -> None:
        """All topics of a flow together: those that cannot have their names at once may be in different tables."""
        topics = flow_topics(self.config, flow, known)
        for target in flow.targets:
            refuse_misnamed(target.cluster, fit_names(self.config, flow, target, topics)[1])

    def _outlive_the_last_runner(self, world: World, flow: Flow) -> bool:
        """Did it stop cleanly? If not, some process of it may still live."""
        for target in flow.targets if not self.config.storage.catalog else ():
            for lock in producer_locks(world.root, flow.name, target.cluster):
                await_no_producers(lock, 60)
        said = control.read_status(world.root, flow.name)
        clean = said.get("state") == "stopped" and said.get("clean", False)
        # From here on a crash is a crash, whatever we had time to say.
        control.write_status(world.root, flow.name, {"state": "running", "pid": os.getpid(), "at": time.time()})
        return clean

    def _start(self, relay: Relay) -> None:
        targets = ", ".join(target.cluster for target in relay.flow.targets)
        self.say(f"flow {relay.flow.name}: {relay.spec.describe()} -> {relay.spec.table} -> {targets}")
        self._patiently(relay.prepare)
        if not self.once:
            relay.start_fan_outs()  # what bronze holds can go while Spark's source is made
        self._patiently(relay.inlet.start)

    def _patiently(self, act: Callable[[], T]) -> T:
        """A source that was reached may elect leaders now, or start again: it is waited for, and that is said."""
        backoff = Backoff(PATIENCE_SECONDS, PATIENCE_SECONDS)
        while True:
            try:
                return act()
            except Transient as fault:
                self.say(f"waiting: {fault.what}")
                if self.stopping.wait(backoff.next_wait(fault)):
                    raise

    def _make_views(self, world: World, relays: Sequence[Relay]) -> None:
        """Where Spark's catalog outlives us its views are kept up; a folder's are made by whoever queries it."""
        if self.config.storage.catalog:
            register(world.spark, self.config, world.tables, {relay.spec.table: relay.topics for relay in relays})

    # --- upkeep ---

    def _group_keepers(
        self, world: World, flows: Sequence[Flow], ledger: LedgerWriter, relays: Sequence[Relay]
    ) -> list[GroupKeeper]:
        """Made before the relays, so that they hear of everything that is sent."""

        def complete(flow: str, target: str) -> dict[SourcePartition, int]:
            return dict(ChainMap(*(relay.complete(target) for relay in list(relays) if relay.flow.name == flow)))

        others = self.config.model_copy(update={"flows": self.config.others})
        elsewhere = Storage(others, world.tables, world.clusters).between
        keepers: list[GroupKeeper] = []
        for flow in flows:
            for target in flow.targets:
                keepers.append(GroupKeeper(world, flow, target, ledger, complete, keepers, elsewhere, self.say))
        return keepers

    def _keep_up(self, keepers: Sequence[Keeper]) -> None:
        """Once, or for as long as we run, each in a thread of its own: a target that is away holds back nobody."""
        self._over = threading.Event()
        for keeper in keepers:
            if self.once:
                self._tend_kept(keeper, "")
            else:
                threading.Thread(target=self._tend_for_long, args=(keeper, self._over), daemon=True).start()

    def _tend_for_long(self, keeper: Keeper, over: threading.Event) -> None:
        told = ""
        while not over.wait(0.5):
            told = self._tend_kept(keeper, told)

    def _tend_kept(self, keeper: Keeper, told: str) -> str:
        """Copying goes on: what is not in step yet is tried again, and said when it changes.

        A fault that we do not know is said too: a keeper that ends in silence would never be missed.
        """
        try:
            keeper.tend()
        except Exception as fault:
            if self.once and not isinstance(fault, MirrorlakeError):
                raise
            what = fault.what if isinstance(fault, MirrorlakeError) else f"{type(fault).__name__}: {last_line(fault)}"
            if what != told:
                self.say(f"waiting: {what}")
            return what
        return ""

    # --- once ---

    def _drain(self, relays: Sequence[Relay]) -> None:
        """Ingest what is there, then send all of it, and end."""
        patience = time.monotonic() + PATIENCE_SECONDS
        while any(relay.inlet.is_running() for relay in relays):
            if self.stopping.wait(0.1):
                return
            self._tend(relays, patience)
            self._show(relays)
        threads = [thread for relay in relays for thread in self._deliver_all(relay)]
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
            self._require_leases()
            self._show(relays)

    def _deliver_all(self, relay: Relay) -> list[threading.Thread]:
        """All targets side by side; what does not pass within a minute ends the run."""
        relay.make_fan_outs()
        for fan_out in relay.fan_outs.values():
            fan_out.patience_seconds = PATIENCE_SECONDS
        return relay.kick()

    # --- the control loop ---

    def _control(self, world: World, relays: list[Relay]) -> None:
        self._begun = self._begun or time.monotonic()
        refresh = Every(self.config.runner.refresh_topics_seconds)
        sample = Every(self.config.runner.lag_sample_seconds)
        arrivals = Every(5)
        while not self.stopping.wait(0.5):
            if self.for_seconds is not None and time.monotonic() - self._begun > self.for_seconds:
                return
            self._tend(relays)
            self._show(relays)
            if arrivals.due():
                self._meet_late_targets(relays)
                for relay in relays:
                    relay.look_for_topics()
            if refresh.due():
                self._tolerantly(lambda: self._refresh(world, relays))
            if sample.due():
                self._sample(world, relays)
                self._write_deliveries(world)
            self._write_status(world, relays, "running")
            self._go_on_after_pauses(relays)

    def _go_on_after_pauses(self, relays: Sequence[Relay]) -> None:
        changed = {pauses for pauses in {relay.pauses for relay in relays} if pauses.changed()}
        for relay in relays:
            if relay.pauses in changed:
                relay.kick()

    def _meet_late_targets(self, relays: Sequence[Relay]) -> None:
        """Targets that were away when we started."""
        for relay in relays:
            for target in relay.late_targets():
                self._tolerantly(partial(self._meet, relay, target))
            self._tolerantly(relay.start_fan_outs)

    def _meet(self, relay: Relay, target: Target) -> None:
        relay.world.cluster_ids[target.cluster] = relay.world.clusters[target.cluster].cluster_id()
        self.say(f"target {target.cluster} of flow {relay.flow.name} is there now")

    def _refresh(self, world: World, relays: list[Relay]) -> None:
        """New topics and partitions. Where a template gives matched topics a table each, a new topic is a new relay."""
        before = [relay.topics for relay in relays]
        for relay in relays:
            relay.look_again()
            for target in relay.strand.present_targets():
                self._tolerantly(partial(relay.look_at, target))  # one that is away holds back nobody
        elders = {relay.flow.name: relay for relay in relays if relay.flow.patterns}
        for elder in elders.values():
            tables, known = {relay.spec.table for relay in relays}, elder.source.topic_names()
            for spec in relay_specs(self.config, elder.flow, known):
                if spec.table not in tables:
                    self._refuse_names(elder.flow, known)
                    self._tolerantly(partial(self._take_up, relays, elder.sibling(spec)))
        if [relay.topics for relay in relays] != before:
            self._make_views(world, relays)

    def _take_up(self, relays: list[Relay], relay: Relay) -> None:
        """Ours from when it is prepared on; should the source be away just then, ingest is started again like any."""
        relay.look()
        relay.prepare()
        relays.append(relay)
        relay.start_fan_outs()
        try:
            relay.inlet.start()
        except Transient as fault:
            relay.inlet.failure = fault

    def _tolerantly(self, act: Callable[[], object]) -> None:
        """What passes by itself must not stop the flow, nor a password that is being changed; it is tried again."""
        try:
            act()
        except (Transient, AccessRefused) as fault:
            self.say(f"waiting: {fault.what}")

    def _tend(self, relays: Sequence[Relay], patience: float = float("inf")) -> None:
        """Start again what passes by itself; a target that stopped for good is said, and the others go on."""
        self._require_leases()
        for relay in relays:
            relay.find_failures()
            if relay.inlet.failure is not None:
                self._tend_ingest(relay, relay.inlet.failure, patience)
            else:
                self._tolerantly(partial(self._rebound, relay))
                self._say_stall(relay)
            for target, fault in relay.faults():
                if isinstance(fault, TopicRemade):
                    raise fault
                self._mourn(relay, target, _explained(relay, fault).what)
        if relays and all(len(relay.dead) == len(relay.flow.targets) for relay in relays):
            self._raise_dead(relays)

    def _mourn(self, relay: Relay, target: str, why: str) -> None:
        """Once for each: the whole target may follow one of its partitions."""
        if (relay.spec.table, target, why) not in self._mourned:
            self._mourned.add((relay.spec.table, target, why))
            self.say(f"target {target} of flow {relay.flow.name} stopped: {why}")

    def _say_stall(self, relay: Relay) -> None:
        """A source that does not answer for a while is waited for by the workers themselves, and nobody else knows."""
        table, seconds = relay.spec.table, relay.inlet.stalled_seconds()
        if seconds < STALL_SECONDS:
            self._stalled.discard(table)
        elif table not in self._stalled:
            self._stalled.add(table)
            what = f"ingest to {table} has committed nothing for {seconds:.0f} s, though {relay.flow.source} has more"
            self.say(f"flow {relay.flow.name}: waiting: {what}")

    def _rebound(self, relay: Relay) -> None:
        if (bound := relay.inlet.rebound()) is not None:
            self.say(f"flow {relay.flow.name}: the size of records changed: {bound} in a batch from now on")

    def _tend_ingest(self, relay: Relay, failure: Exception, patience: float) -> None:
        """A source that is away is waited for; one that is there gets a few tries before we call it lasting."""
        passing = isinstance(failure, Transient | SourceLoss | TopicMissing | AccessRefused)
        if isinstance(failure, MirrorlakeError) and not passing:
            raise failure
        refused = failure if isinstance(failure, AccessRefused) else refusal_in(str(failure), relay.flow.source)
        if refused and (not relay.inlet.has_progressed() or self._refusals.lasting(relay.spec.table)):
            raise refused
        if refused and not self._refused.setdefault(relay.spec.table, Every(RETRY_REFUSED_SECONDS)).due():
            return
        try:
            relay.source.cluster_id()
            tries = self._waits if isinstance(failure, Transient) else self._restarts
            if not refused and not tries.allowed(relay.spec.table):
                raise _unknown(relay, failure)
            self.say(f"flow {relay.flow.name}: ingest to {relay.spec.table} starts again: {last_line(failure)}")
            if self._secrets:
                write_secrets(self._secrets, self.config)
            relay.inlet.restart()
        except (Transient, AccessRefused, TopicMissing) as fault:
            self.say(f"flow {relay.flow.name}: waiting: {fault.what}")
            lasting = isinstance(fault, AccessRefused) and self._refusals.lasting(relay.spec.table)
            if lasting or time.monotonic() > patience:
                raise

    def _raise_dead(self, relays: Sequence[Relay]) -> None:
        for relay in relays:
            for _, fault in relay.faults():
                raise _explained(relay, fault)

    def _show(self, relays: Sequence[Relay]) -> None:
        self.watch([line for relay in relays for line in snapshots(relay)])

    def _sample(self, world: World, relays: Sequence[Relay], quietly: bool = False) -> None:
        def write() -> None:
            # A flow is sampled whole or not at all, with one time: readers take its newest sample for all there is.
            at, unready = now(), {relay.flow.name for relay in relays if relay.inlet.ingest is None}
            tables = [relay.lag_samples(at) for relay in relays if relay.flow.name not in unready]
            if tables:
                world.tables.append(world.ops("lag_samples"), pa.concat_tables(tables))

        if quietly:
            with contextlib.suppress(Exception):
                write()
        else:
            self._tolerantly(write)

    def _write_deliveries(self, world: World) -> None:
        counted = self._meter.take()
        if counted.num_rows:
            world.tables.append(world.ops("deliveries"), counted)

    def _write_status(
        self, world: World, relays: Sequence[Relay], state: str, reason: str = "", clean: bool = False
    ) -> None:
        for flow in {relay.flow.name for relay in relays}:
            lines = [line for relay in relays if relay.flow.name == flow for line in snapshots(relay)]
            control.write_status(
                world.root,
                flow,
                {
                    "state": state,
                    "reason": reason,
                    "clean": clean,
                    "pid": os.getpid(),
                    "at": time.time(),
                    "targets": [vars(line) for line in lines],
                },
            )


def many_machines(spark: SparkSession) -> bool:
    """Whether executors may be on other machines, which have none of our files."""
    return not str(spark.sparkContext.master).startswith("local")


@contextlib.contextmanager
def spark_explained(root: Path) -> Iterator[None]:
    """A Java process that ends takes every call with it: one sentence instead of their tracebacks."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_py4j)
    try:
        yield
    except Exception as error:
        gone = isinstance(error, ConnectionError) or type(error).__module__.startswith("py4j")
        if not gone:
            raise
        raise StorageUnreachable(
            f"Spark's Java process ended or does not answer: {last_line(error)}",
            f"see {root / 'logs' / 'spark.log'}, and whether memory ran out; run again: it recovers and goes on",
        ) from error


def _not_py4j(record: logging.LogRecord) -> bool:
    """py4j writes some of its tracebacks to the root logger, beside its own."""
    return "py4j" not in Path(record.pathname).parts


def _explained(relay: Relay, failure: Exception) -> MirrorlakeError:
    return failure if isinstance(failure, MirrorlakeError) else _unknown(relay, failure)


def _unknown(relay: Relay, failure: Exception) -> MirrorlakeError:
    return DataAtRisk(
        f"flow {relay.flow.name}, table {relay.spec.table}: a query ended: {last_line(failure)}",
        f"see {relay.world.root / 'logs' / 'spark.log'}; run again: it goes on where it stopped",
    )


class Restarts:
    """How often something may start again within a time, before it is taken for lasting."""

    def __init__(self, most: int, within_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._within_seconds = within_seconds
        self._clock = clock
        self._seen: dict[str, list[float]] = {}

    def allowed(self, what: str) -> bool:
        now = self._clock()
        recent = [at for at in self._seen.get(what, []) if now - at < self._within_seconds]
        self._seen[what] = [*recent, now]
        return len(recent) < self._most


class Episodes:
    """For how long something has gone on; after a quiet time it begins anew."""

    def __init__(self, most_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_seconds = most_seconds
        self._clock = clock
        self._seen: dict[str, tuple[float, float]] = {}

    def lasting(self, what: str) -> bool:
        """It is so now: has it been for too long?"""
        now = self._clock()
        first, last = self._seen.get(what, (now, now))
        first = first if now - last < self._most_seconds / 2 else now
        self._seen[what] = (first, now)
        return now - first > self._most_seconds


def snapshots(relay: Relay) -> list[Snapshot]:
    return [_snapshot(relay, target.cluster) for target in relay.flow.targets]


def _snapshot(relay: Relay, target: str) -> Snapshot:
    fan_out, flow, table = relay.fan_outs.get(target), relay.flow.name, relay.spec.table
    if fan_out is None:
        why = "waiting for ingest" if target in relay.world.cluster_ids else "away since the start"
        return Snapshot(flow, table, target, 0, 0, why)
    waiting = fan_out.progress.waiting
    if relay.inlet.failure is not None:
        waiting = f"ingest: {last_line(relay.inlet.failure)}"
    if target in relay.dead:
        waiting = f"stopped: {_explained(relay, relay.dead[target]).what}"
    return Snapshot(flow, table, target, fan_out.account.delivered, relay.behind(target), waiting)
