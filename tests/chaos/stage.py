"""What the rows stand on: clusters behind proxies, flows with their own roots, runners, and the checker."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))

from harness import Command, Flow, Record, Records, as_record, finish, wait_until
from proxy import HOST, PASS, Proxy

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
    """The row needs something that this place lacks; the message says what."""


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
    from dataclasses import replace

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
    waiting_records: int = 1_000_000
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

    def load(self, topic: str, count: int, partitions: int) -> None:
        """Many small records, fast."""
        queue = {"linger.ms": 50, "queue.buffering.max.messages": 1_000_000, "enable.idempotence": True}
        producer = Producer({**direct(self.cluster("source")), **queue})
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, b"%d" % number, partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

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
        for future in admin.delete_records([Place(topic, partition, offset)]).values():
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
        found, said = finish(flow.start("--once", environment={"MIRRORLAKE_FAIL": failpoint}))
        assert found == code, f"the runner ended with {found}, expected {code}: {said[-1500:]}"
        return said

    # --- the checker ---

    def caught_up(self, flow: Flow, target: str = "shaky", seconds: float = 90, running: Running | None = None) -> None:
        """Wait until the target has as many records as the source; what ended the runner is said at once."""
        topic = flow.topics[0]
        wanted = self.ends("source", topic)

        def arrived() -> bool:
            if running is not None:
                running.raise_failure()
            with contextlib.suppress(Unreachable):  # of the checker's own client, while brokers come and go
                return self.records.arrived(target, f"source.{topic}", wanted)
            return False

        wait_until(arrived, f"{wanted} records of {topic} on {target}", seconds)

    def ends(self, name: str, topic: str) -> int:
        def look() -> int:
            cluster = self.records.cluster(name)
            if topic not in (there := cluster.describe([topic])):
                return 0
            return sum(cluster.log_ends(TopicPartition(topic, n) for n in range(there[topic].partitions)).values())

        return patiently(look)

    def expect_same(
        self,
        flow: Flow,
        targets: Sequence[str] | None = None,
        incidents: Sequence[str] = (),
        audit: bool = True,
    ) -> None:
        """Every field of every record, in order, each once; the audit agrees; incidents are those expected."""
        topic = flow.topics[0]
        want = patiently(lambda: self.records.read("source", topic))
        for target in targets or flow.targets:
            got = patiently(lambda target=target: self.records.read(target, f"source.{topic}"))
            expect_equal(want, got, f"{topic} on {target}")
        if audit:
            report = flow.audit()
            assert report.ok, f"audit: {[str(finding) for finding in report.findings[:5]]}"
        self.expect_incidents(flow, incidents)

    def expect_same_stream(self, topic: str, target: str = "shaky") -> None:
        """As above, without holding the records."""
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


def expect_equal(want: dict[int, list[Record]], got: dict[int, list[Record]], what: str) -> None:
    assert want.keys() == got.keys(), f"{what}: partitions {sorted(got)}, expected {sorted(want)}"
    for number, records in want.items():
        if digest(records) != digest(got[number]):
            raise AssertionError(f"{what}[{number}]: {difference(records, got[number])}")


def digest(records: Sequence[Record]) -> bytes:
    sha = hashlib.sha256()
    for record in records:
        sha.update(repr(record).encode())
    return sha.digest()


def difference(want: Sequence[Record], got: Sequence[Record]) -> str:
    wanted, found = Counter(want), Counter(got)
    missing, more = wanted - found, found - wanted
    first = next(
        (n for n, pair in enumerate(zip(want, got, strict=False)) if pair[0] != pair[1]), min(len(want), len(got))
    )
    return (
        f"{len(got)} records of {len(want)}: {missing.total()} missing, {more.total()} too many, "
        f"first difference at {first}: {want[first : first + 1]} but {got[first : first + 1]}"
    )


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


def jvm_of(runner: subprocess.Popen[str]) -> int:
    """The Java process of a runner."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for pid in children(runner.pid):
            if "java" in command_of(pid).split(" ")[0] and "SparkSubmit" in command_of(pid):
                return pid
        time.sleep(0.1)
    raise AssertionError("the runner has no Java process")


def terminate(runner: subprocess.Popen[str]) -> tuple[int, str]:
    runner.send_signal(signal.SIGTERM)
    return finish(runner)
