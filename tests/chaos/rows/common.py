"""What rows are, and what they share."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from proxy import HOST, Proxy
from stage import Flow, Record, Stage, direct, target_name

from mirrorlake.lab import ClusterSpec, LabCluster


@dataclass(frozen=True)
class Row:
    number: str
    """Of the fault matrix; a letter tells variants apart."""
    name: str
    injected: str
    expected: str
    run: Callable[[Stage], str | None]


ROWS: list[Row] = []
EQUAL = "each record once, in order, every field equal; the audit agrees"


def row(number: str, name: str, injected: str, expected: str = EQUAL) -> Callable[..., Callable[[Stage], str | None]]:
    def take(run: Callable[[Stage], str | None]) -> Callable[[Stage], str | None]:
        ROWS.append(Row(number, name, injected, expected, run))
        return run

    return take


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


# --- data ---


def bulk(count: int, size: int = 1000, partitions: int = 2, first: int = 0) -> list[Record]:
    """Records that do not compress, so that bytes on the wire are what they seem."""
    return [
        Record(os.urandom(size), b"key-%d" % n, (), 1_700_000_000_000 + n, n % partitions)
        for n in range(first, first + count)
    ]


@contextlib.contextmanager
def feeding(
    stage: Stage, topic: str, per_second: int = 200, may_fail: bool = False, to: str = "source"
) -> Iterator[None]:
    """Somebody writes to the source all the time.

    What is due is told by the clock, so that a slow machine gets larger sends and not fewer records. A send that
    fails fails the row, unless the row lets the source's broker die.
    """
    done = threading.Event()
    feeder = Feeder(stage, topic, per_second, may_fail, to)
    thread = threading.Thread(target=feeder.feed, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(120)
    assert not thread.is_alive(), "the feeder does not end"
    feeder.raise_failure()


class Feeder:
    """Sends numbered records to two partitions at a pace, after the 200 that a topic has from the start."""

    def __init__(self, stage: Stage, topic: str, per_second: int, may_fail: bool, to: str) -> None:
        self._stage, self._topic, self._to = stage, topic, to
        self._per_second, self._may_fail = per_second, may_fail
        self._given = 0
        self.failure: Exception | None = None

    def feed(self, done: threading.Event) -> None:
        begun = time.monotonic()
        try:
            while not done.wait(0.5):
                self._give(int((time.monotonic() - begun) * self._per_second))
            self._give(int((time.monotonic() - begun) * self._per_second))
        except Exception as error:
            self.failure = error

    def _give(self, due: int) -> None:
        first, self._given = self._given, due
        try:
            self._stage.send(self._topic, self._stage.records.numbered(due - first, 2, 200 + first), self._to)
        except AssertionError:
            if not self._may_fail:
                raise

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise AssertionError(f"the feeder failed: {self.failure!r}") from self.failure


def source_proxy(stage: Stage) -> Proxy:
    assert "source" in stage.proxies, "this row needs a source behind a proxy: choose another"
    return stage.proxies["source"]


@contextlib.contextmanager
def counted(proxy: Proxy, kind: str, least: int = 1) -> Iterator[None]:
    """The proxy must do so much of what the row says: without it the row would pass with no fault at all."""
    before = proxy.counts[kind]
    yield
    seen = proxy.counts[kind] - before
    assert seen >= least, f"the proxy: {seen} {kind}, expected at least {least}: the fault was not there"


def direct_or_not(stage: Stage, name: str) -> dict[str, str]:
    cluster = stage.cluster(name)
    return direct(cluster) if name in stage.proxies else cluster.client_config()


def incidents(flow: Flow) -> list[tuple[str, int, int, int]]:
    return [
        (entry["kind"], entry["partition"], entry["first_offset"], entry["last_offset"])
        for entry in flow.rows("ops.incidents")
    ]


def values(stage: Stage, flow: Flow, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in stage.records.read("shaky", target_name(flow))[partition]]


@contextlib.contextmanager
def trio(stage: Stage, config: Mapping[str, str]) -> Iterator[LabCluster]:
    """A cluster of three brokers, new each time."""
    name = f"trio{len(stage.lab.names())}"
    try:
        yield stage.lab.up([ClusterSpec(name, brokers=3, config=dict(config))])[name]
    finally:
        stage.lab.down([name])


def leader_of(three: LabCluster, topic: str, partition: int = 0, but: int = -1) -> int:
    """As a broker says, other than one that may be dead; -1 where there is none yet."""
    ask = next(broker for broker in three.ports if broker != but and three.process(broker))
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{three.ports[ask].internal}", "log_level": 0})
    with contextlib.suppress(KafkaException):
        return int(admin.list_topics(topic, timeout=5).topics[topic].partitions[partition].leader)
    return -1


@contextlib.contextmanager
def put_back(stage: Stage, name: str, topic: str) -> Iterator[None]:
    """What is written to a topic inside is gone after, as if its disks had been restored."""
    cluster = stage.cluster(name)
    data = cluster.folder / "broker-0" / "data"
    kept = stage.folder / f"kept-{topic}"
    cluster.stop_broker(0)
    for folder in data.glob(f"{topic}-[0-9]"):
        shutil.copytree(folder, kept / folder.name)
    cluster.start_broker(0)
    yield
    cluster.stop_broker(0)
    for folder in kept.iterdir():
        shutil.rmtree(data / folder.name)
        shutil.copytree(folder, data / folder.name)
    cluster.start_broker(0)
