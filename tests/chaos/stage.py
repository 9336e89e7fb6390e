"""What the rows stand on: clusters behind proxies, flows with their own roots, runners, and the checker."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Offset
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))

from checker import (
    EXACTLY,
    Held,
    Ledger,
    Log,
    Place,
    Spot,
    by_order,
    expect_all_due,
    expect_bronze,
    expect_equal,
    expect_ledger,
    ledger_of,
    read_bronze,
    read_log,
    some,
)
from harness import Command, Flow, Record, Records, as_record, finish, wait_until
from proxy import HOST, PASS, Proxy

from mirrorlake.control import read_status
from mirrorlake.errors import Unreachable
from mirrorlake.kafka import Cluster
from mirrorlake.lab import ClusterSpec, Lab, LabCluster
from mirrorlake.lab.brokers import make_cluster, silent
from mirrorlake.lab.settings import free_ports
from mirrorlake.records import TopicPartition
from mirrorlake.runner import Run

__all__ = ["Command", "Flow", "Record", "Records", "Stage", "finish", "wait_until"]


T = TypeVar("T")


class NotHere(Exception):
    """This machine lacks what the row needs, as was seen by asking it; the message says what. Nothing else is raised
    so: a row that merely did not come about has failed."""


def make_proxied(lab: Lab, spec: ClusterSpec) -> Proxy:
    """Lay out a cluster whose broker advertises a proxy's port and listens on another; `lab.up` starts it."""
    port, real = free_ports(2)
    proxy = Proxy(port, real)
    lab.root.mkdir(parents=True, exist_ok=True)
    cluster = make_cluster(lab.root / spec.name, proxied(spec, port), silent)
    path = cluster.folder / "broker-0" / "server.properties"
    text = path.read_text()
    path.write_text(text.replace(f"\nlisteners=CLIENT://{HOST}:{port},", f"\nlisteners=CLIENT://{HOST}:{real},"))
    return proxy


def proxied(spec: ClusterSpec, port: int) -> ClusterSpec:
    return replace(spec, ports=(port,))


def direct(cluster: LabCluster) -> dict[str, str]:
    """Client settings that pass by the proxy: the listener that brokers use among themselves."""
    return {"bootstrap.servers": f"{HOST}:{cluster.ports[0].internal}"}


@dataclass
class Stage:
    """One place where rows run. `source` feeds `shaky`, which stands behind a proxy, and `hubs`, which does not."""

    folder: Path
    lab: Lab
    spark: SparkSession
    proxies: dict[str, Proxy]
    seed: int = 0
    minutes: float = 0.5
    waiting_records: int = 400_000
    records: Records = field(init=False)
    _made: int = 0

    def __post_init__(self) -> None:
        self.records = Records(self.lab)
        self._standing = self.lab.names()
        self.random = random.Random(self.seed)  # noqa: S311
        for name in self.proxies:
            self.records.clients[name] = Cluster(name, direct(self.lab.cluster(name)))

    @property
    def proxy(self) -> Proxy:
        return self.proxies["shaky"]

    def cluster(self, name: str = "shaky") -> LabCluster:
        return self.lab.cluster(name)

    def settle(self) -> None:
        """After a row: no fault stays switched on, and every broker serves that all rows share."""
        for proxy in self.proxies.values():
            proxy.release()
            proxy.set(PASS)
        for name in self._standing:
            cluster = self.cluster(name)
            for broker in cluster.ports:
                if cluster.process(broker) is None:
                    cluster.start_broker(broker)
                cluster.resume_broker(broker)

    # --- topics and flows ---

    def topic(self, name: str, partitions: int = 2, count: int = 200, **config: str) -> str:
        """A new topic at the source, with some records."""
        self._made += 1
        topic = f"{name}-{self._made}-{os.getpid()}"
        self.records.create("source", topic, partitions, **config)
        self.send(topic, self.records.numbered(count, partitions))
        return topic

    def send(self, topic: str, records: Sequence[Record], to: str = "source", **producer: Any) -> None:
        if records:
            settings = direct(self.cluster(to)) if to in self.proxies else {}
            self.records.send(to, topic, records, **settings, **producer)

    def more(self, topic: str, count: int, first: int = 200, partitions: int = 2) -> None:
        self.send(topic, self.records.numbered(count, partitions, first))

    def load(self, topic: str, count: int, partitions: int, size: int) -> None:
        """Many records that do not compress, fast."""
        queue = {"linger.ms": 50, "queue.buffering.max.kbytes": 200_000, "enable.idempotence": True}
        producer = Producer({**direct(self.cluster("source")), **queue})
        noise = self.random.randbytes(1 << 20)
        for number in range(count):
            begin = number * 7919 % (len(noise) - size)
            value = b"%d " % number + noise[begin : begin + size]
            while True:
                try:
                    producer.produce(topic, value, partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0, "the source took not all of them"

    def flow(self, topic: str, targets: Sequence[str] = ("shaky",), **options: Any) -> Flow:
        folder = self.folder / topic
        folder.mkdir(parents=True, exist_ok=True)
        runner = options.pop("runner", {})
        return Flow(folder, self.lab, self.spark, [topic], list(targets), options, runner=runner)

    def begun(self, name: str, more: int = 2000, targets: Sequence[str] = ("shaky",), **options: Any) -> Flow:
        """A flow that relayed 200 records, so that a fault meets a ledger with content, and has more to do."""
        topic = self.topic(name)
        flow = self.flow(topic, targets, **{"ingest": {"max_records_per_batch": 600}, **options})
        flow.run_once()
        self.more(topic, more)
        return flow

    def drop_before(self, topic: str, offset: int, partition: int = 0, name: str = "source") -> None:
        admin = self.records.cluster(name).admin
        for future in admin.delete_records([Offset(topic, partition, offset)]).values():
            future.result()

    def delete(self, name: str, topic: str) -> None:
        cluster = self.records.cluster(name)
        cluster.admin.delete_topics([topic])[topic].result()
        wait_until(lambda: topic not in cluster.describe([topic]), f"the deletion of {topic}")

    # --- runners ---

    @contextlib.contextmanager
    def running(self, flow: Flow) -> Iterator[Running]:
        """The same code as `mirrorlake run`, in a thread of this process: it shares our Spark session."""
        running = Running(Run(flow.config(), spark=self.spark))
        running.thread.start()
        try:
            yield running
        finally:
            running.stop()

    def crash(self, flow: Flow, failpoint: str, code: int = -9) -> str:
        """A runner of its own that dies where told."""
        found, said = self.trapped(flow, failpoint)
        assert found == code, f"the runner ended with {found}, expected {code}: {said[-1500:]}"
        return said

    def trapped(self, flow: Flow, failpoint: str) -> tuple[int, str]:
        """How a runner ended that met a failpoint, and what it said."""
        trap = Trap(flow, failpoint)
        code, said = finish(flow.start("--once", environment=trap.environment))
        trap.expect_met(said)
        return code, said

    # --- the checker ---

    def caught_up(self, flow: Flow, target: str = "shaky", seconds: float = 90, running: Running | None = None) -> None:
        """Wait until the target has as many records as the source; what ended the runner is said at once."""
        topic = flow.topics[0]
        wanted = self.ends(source_of(flow), topic)

        def arrived() -> bool:
            if running is not None:
                running.raise_failure()
            with contextlib.suppress(Unreachable):  # of the checker's own client, while brokers come and go
                return self.records.arrived(target, target_name(flow), wanted)
            return False

        try:
            wait_until(arrived, f"{wanted} records of {topic} on {target}", seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}; the runner says: {read_status(flow.root, flow.name)}") from late

    def ends(self, name: str, topic: str) -> int:
        def look() -> int:
            cluster = self.records.cluster(name)
            if topic not in (there := cluster.describe([topic])):
                return 0
            return sum(cluster.log_ends(TopicPartition(topic, n) for n in range(there[topic].partitions)).values())

        return patiently(look)

    def expect_same(self, flow: Flow, targets: Sequence[str] | None = None, incidents: Sequence[str] = ()) -> None:
        """Every field of every record, in order, each once, at the source, in bronze and on the target.

        The ledger says of each where it stands; the audit has nothing to say; incidents are those expected.
        """
        source = self._log(source_of(flow), flow.topics[0])
        want = {number: [held.relayed for held in log] for number, log in source.items()}
        self._expect_bronze(flow, source)
        for target in targets or flow.targets:
            copy = self._log(target, target_name(flow))
            got = {number: [held.relayed for held in log] for number, log in copy.items()}
            expect_equal(want, got, f"{flow.topics[0]} on {target}")
            self._expect_ledger_of_a_copy(flow, target, source, copy)
        self.expect_audit(flow)
        self.expect_incidents(flow, incidents)

    def expect_audit(self, flow: Flow, findings: Collection[str] = ()) -> None:
        """It found nothing, or only what is meant: a record that waits or that nobody wrote down is not equal."""
        said = [str(finding) for finding in flow.audit().findings if finding.kind not in findings]
        assert not said, f"audit: {said[:5]}"

    def expect_accounts(
        self,
        flow: Flow,
        target: str = "shaky",
        on_target: str = EXACTLY,
        source: bool = True,
        all_due: bool = True,
    ) -> Ledger:
        """What can be asked where target and source differ on purpose: bronze has each record once, as the source has
        it, and the ledger knows of each that was delivered where it stands, as the record itself says."""
        bronze = read_bronze(flow)
        if source:
            self._expect_bronze(flow, self._log(source_of(flow), flow.topics[0]))
        ledger = self._ledger(flow, target)
        expect_ledger(ledger, self._log(target, target_name(flow)), flow.name, on_target)
        if all_due:
            expect_all_due(ledger, bronze)
        return ledger

    def _expect_ledger_of_a_copy(self, flow: Flow, target: str, source: Log, copy: Log) -> None:
        ledger, topic = self._ledger(flow, target), flow.topics[0]
        want = by_order(source, copy, topic, self._topic_id(source_of(flow), topic))
        assert ledger.stands == want, f"ledger of {target}: {mismatch(want, ledger.stands)}"
        if flow.options.get("provenance", True):
            expect_ledger(ledger, copy, flow.name)

    def _expect_bronze(self, flow: Flow, source: Log) -> None:
        name, topic = source_of(flow), flow.topics[0]
        policy = self.records.cluster(name).topic_configs([topic])[topic]["cleanup.policy"]
        compacted = "compact" in str(policy.value)
        expect_bronze(read_bronze(flow), source, topic, self._topic_id(name, topic), compacted)

    def _ledger(self, flow: Flow, target: str) -> Ledger:
        rows = [row for row in flow.rows("ops.ledger") if (row["flow"], row["target"]) == (flow.name, target)]
        return ledger_of(rows, self._topic_id(target, target_name(flow)))

    def _log(self, name: str, topic: str) -> dict[int, list[Held]]:
        return patiently(lambda: read_log(self.records.cluster(name), topic))

    def _topic_id(self, name: str, topic: str) -> str:
        return patiently(lambda: self.records.cluster(name).describe([topic])[topic].id)

    def expect_same_stream(self, topic: str, target: str = "shaky") -> None:
        """The records of source and target as above, without holding them: for more than fit in memory."""
        source, copy = self.records.cluster("source"), self.records.cluster(target)
        for number in range(source.describe([topic])[topic].partitions):
            pairs = zip(_all(source, topic, number), _all(copy, f"source.{topic}", number), strict=True)
            for offset, (want, got) in enumerate(pairs):
                assert want == got, f"partition {number}, offset {offset}: {want} became {got}"

    def expect_incidents(self, flow: Flow, kinds: Sequence[str]) -> None:
        found = {row["kind"] for row in flow.rows("ops.incidents")}
        assert found == set(kinds), f"incidents: {found}, expected {set(kinds)}: {flow.rows('ops.incidents')[:5]}"


def _all(cluster: Cluster, topic: str, number: int) -> Iterator[Record]:
    at = TopicPartition(topic, number)
    start, end = cluster.log_starts([at])[at], cluster.log_ends([at])[at]
    return map(as_record, cluster.read_range(at, start, end))


def source_of(flow: Flow) -> str:
    return str(flow.options.get("source", "source"))


def target_name(flow: Flow) -> str:
    return f"{source_of(flow)}.{flow.topics[0]}"


def mismatch(want: Mapping[Place, Spot], got: Mapping[Place, Spot]) -> str:
    wrong = {place for place in want.keys() & got.keys() if want[place] != got[place]}
    missing, more = want.keys() - got.keys(), got.keys() - want.keys()
    return f"lacks {some(missing)}, has {some(more)} too many, says something else of {some(wrong)}"


class Trap:
    """A failpoint for one command, and the mark that a process leaves which meets it: without it nothing was tested."""

    def __init__(self, flow: Flow, failpoint: str) -> None:
        self.failpoint = failpoint
        self.mark = flow.folder / f"met-{uuid.uuid4().hex[:8]}"
        self.environment = {"MIRRORLAKE_FAIL": failpoint, "MIRRORLAKE_FAIL_MARK": str(self.mark)}

    def expect_met(self, said: str = "") -> None:
        assert self.mark.exists(), f"no process met the failpoint {self.failpoint}: {said[-1500:]}"

    def met_by(self) -> list[int]:
        """The processes that met it, in the order in which they did."""
        return [int(line) for line in self.mark.read_text().split()] if self.mark.exists() else []


def patiently(look: Callable[[], T], seconds: float = 20) -> T:
    """The checker's own client may meet a topic or a broker that is not quite there yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return look()
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class Running:
    """A `Run` in a thread."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.said: list[str] = []
        run.say = self.said.append
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name="runner", daemon=True)

    def _work(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failure = error

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise AssertionError(f"the runner ended: {self.failure!r}") from self.failure

    def ended_with(self, kind: type[BaseException], seconds: float = 60) -> str:
        self.thread.join(seconds)
        assert isinstance(self.failure, kind), f"expected {kind.__name__}, got {self.failure!r}"
        return str(self.failure)

    def stop(self) -> None:
        self.run.stopping.set()
        self.thread.join(90)
        assert not self.thread.is_alive(), "the runner does not stop"


# --- processes ---


def children(pid: int) -> list[int]:
    """All descendants of a process, nearest first."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()
            parents.setdefault(int(words[1]), []).append(int(path.parent.name))
    found, queue = [], [pid]
    while queue:
        below = parents.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def local_ports(pid: int) -> set[int]:
    """The ports of a process's own ends of its TCP connections."""
    by_socket = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            by_socket[f"socket:[{words[9]}]"] = int(words[1].rpartition(":")[2], 16)
        return {by_socket[name] for name in map(os.readlink, descriptors(pid)) if name in by_socket}
    return set()


def descriptors(pid: int) -> list[Path]:
    """What a process has open."""
    return list(Path(f"/proc/{pid}/fd").iterdir())


def standing(pid: int) -> list[int]:
    """The processes among a process and its descendants that a signal has stopped."""
    return [each for each in [pid, *children(pid)] if _state(each) == "T"]


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def wake(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def jvm_of(runner: Command) -> int:
    """The Java process of a runner."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for pid in children(runner.pid):
            if "java" in command_of(pid).split(" ")[0] and "SparkSubmit" in command_of(pid):
                return pid
        time.sleep(0.1)
    raise AssertionError("the runner has no Java process")


def terminate(runner: Command) -> tuple[int, str]:
    runner.send_signal(signal.SIGTERM)
    return finish(runner)
