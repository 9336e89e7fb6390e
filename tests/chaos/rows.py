"""The fault table as data: each row injects one fault into a running relay and checks what the promises say.

Numbers are those of the fault matrix that `docs/guarantees.md` shows. A row raises AssertionError where a promise
is broken, and NotHere where this place lacks what it needs; what it returns is said beside its verdict.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from deltalake import DeltaTable
from proxy import (
    BLACKHOLE,
    DELAY,
    DROP_RESPONSE,
    HALF_CLOSE,
    HOLD,
    NO_IDEMPOTENCE,
    PASS,
    REFUSE,
    RESET,
    THROTTLE,
    Proxy,
)
from stage import (
    Command,
    Flow,
    NotHere,
    Record,
    Stage,
    children,
    command_of,
    direct,
    expect_equal,
    finish,
    jvm_of,
    patiently,
    standing,
    terminate,
    wait_until,
    wake,
)

from mirrorlake.control import EVERYTHING, pause, resume
from mirrorlake.errors import (
    AccessRefused,
    DataAtRisk,
    ExistingRecords,
    SourceLoss,
    StateMismatch,
    TargetDiverged,
    Undeliverable,
)
from mirrorlake.lab import ClusterSpec, LabCluster, certs
from mirrorlake.lease import read_holder
from mirrorlake.records import TopicPartition


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
def feeding(stage: Stage, topic: str, per_second: int = 200, partitions: int = 2) -> Iterator[None]:
    """Somebody writes to the source all the time."""
    done = threading.Event()

    def feed() -> None:
        sent = 200
        while not done.wait(0.5):
            with contextlib.suppress(AssertionError):
                stage.more(topic, per_second // 2, sent, partitions)
            sent += per_second // 2

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(90)


def target_name(flow: Flow) -> str:
    return f"source.{flow.topics[0]}"


def source_proxy(stage: Stage) -> Proxy:
    if "source" not in stage.proxies:
        raise NotHere("the source stands behind no proxy here")
    return stage.proxies["source"]


# --- 1-14: kill -9 of the runner at every named point ---


IN_ANY_RUN = {
    "1": "batch-begun:1", "2": "file-written:1", "3": "bronze-committed:1", "4": "batch-sent:1", "5": "all-sent:1",
    "6": "acknowledged:1", "7": "proven:1", "8": "settled:1", "9": "ledger-before-commit:1",
    "10": "ledger-after-commit:1", "11": "batch-sent:2", "11b": "first-acknowledged:1",
}  # fmt: skip
IN_A_FIRST_RUN = {"12": "baseline-committed", "12b": "topic-ids-noted", "12c": "epochs-noted"}


def _killed_at(failpoint: str, make: Callable[[Stage], Flow]) -> Callable[[Stage], str | None]:
    def run(stage: Stage) -> None:
        flow = make(stage)
        stage.crash(flow, failpoint)
        flow.run_once()
        stage.expect_same(flow)

    return run


def _begun(stage: Stage) -> Flow:
    return stage.begun("kill")


def _fresh(stage: Stage) -> Flow:
    return stage.flow(stage.topic("first", count=1000))


for _number, _failpoint in IN_ANY_RUN.items():
    row(_number, f"kill -9 at {_failpoint}", "failpoint, SIGKILL to the runner")(
        _killed_at(f"{_failpoint}:kill-driver", _begun)
    )
for _number, _failpoint in IN_A_FIRST_RUN.items():
    row(_number, f"kill -9 at {_failpoint}", "failpoint, SIGKILL to the runner")(
        _killed_at(f"{_failpoint}:1:kill-driver", _fresh)
    )


def _killed_twice(failpoint: str) -> Callable[[Stage], str | None]:
    def run(stage: Stage) -> None:
        flow = stage.begun("tail")
        stage.crash(flow, "acknowledged:1:kill-driver")
        stage.crash(flow, failpoint)
        flow.run_once()
        stage.expect_same(flow)

    return run


row("13", "kill -9 during recovery from a kill -9", "failpoints acknowledged, then tail-read")(
    _killed_twice("tail-read:1:kill-driver")
)
row("13b", "kill -9 as recovery tells the ledger", "failpoints acknowledged, then tail-noted")(
    _killed_twice("tail-noted:1:kill-driver")
)


@row("14", "kill -9 at acknowledged, without provenance", "failpoint; provenance off, sole writer")
def killed_without_provenance(stage: Stage) -> None:
    flow = stage.begun("bare", provenance=False, target={"sole_writer": True})
    stage.crash(flow, "acknowledged:1:kill-driver")
    flow.run_once()
    stage.expect_same(flow)


@row("15", "random kill -9 of runner, JVM or worker", "loop, U(2, 12) s, while records come in")
def random_kills(stage: Stage) -> str:
    topic = stage.topic("random")
    flow = stage.flow(topic, ingest={"max_records_per_batch": 2000})
    killed: Counter[str] = Counter()
    deadline = time.monotonic() + stage.minutes * 60
    with feeding(stage, topic, 500):
        while time.monotonic() < deadline:
            runner = flow.start()
            time.sleep(stage.random.uniform(2, 12))
            killed[_kill_one(stage, runner)] += 1
            _end_group(runner)
    flow.run_once()
    stage.expect_same(flow)
    return f"{stage.ends('source', topic):,} records, killed {dict(killed)}"


def _kill_one(stage: Stage, runner: subprocess.Popen[str]) -> str:
    below = children(runner.pid)
    kinds = {
        "runner": [runner.pid],
        "jvm": [pid for pid in below if "SparkSubmit" in command_of(pid)],
        "worker": [pid for pid in below if "mirrorlake.daemon" in command_of(pid)],
    }
    kind = stage.random.choice([kind for kind, pids in kinds.items() if pids])
    with contextlib.suppress(ProcessLookupError):
        os.kill(stage.random.choice(kinds[kind]), signal.SIGKILL)
    if kind == "worker":
        time.sleep(stage.random.uniform(0.5, 4))
    return kind


def _end_group(runner: subprocess.Popen[str]) -> None:
    """The runner dies too, at the same instant or later; its remains are the next runner's to outlive."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(runner.pid, signal.SIGKILL)
    finish(runner, 60)


# --- 16: other processes of a runner ---


@row("16", "kill -9 of a Python worker at acknowledged", "failpoint in every new worker")
def worker_dies(stage: Stage) -> str:
    flow = stage.begun("worker")
    code, _ = finish(flow.start("--once", environment={"MIRRORLAKE_FAIL": "acknowledged:1:kill"}))
    flow.run_once()
    stage.expect_same(flow)
    return f"the runner ended with {code}"


@row("16b", "kill -9 of a worker under task retries", "local[2,4], failpoint batch-sent")
def worker_dies_with_retries(stage: Stage) -> str:
    flow = stage.begun("retries", runner={"spark": {"spark.master": "local[2,4]"}})
    code, _ = finish(flow.start("--once", environment={"MIRRORLAKE_FAIL": "batch-sent:1:kill"}))
    flow.run_once()
    stage.expect_same(flow)
    return f"the runner ended with {code}"


@row("16c", "kill -9 of one worker while both send slowly", "SIGKILL by pid, target throttled", EQUAL + "; no restart")
def one_of_two_workers_dies(stage: Stage) -> str:
    topic = stage.topic("slow-workers")
    flow = stage.flow(topic)
    runner = flow.start()
    try:
        stage.caught_up(flow)
        stage.proxy.set(THROTTLE, bytes_per_second=150_000)
        seen = stage.proxy.produce_requests
        stage.send(topic, bulk(3000))
        wait_until(lambda: stage.proxy.produce_requests >= seen + 2, "both workers sending")
        workers = _producing_workers(runner)
        os.kill(stage.random.choice(workers), signal.SIGKILL)
        time.sleep(4)
        stage.proxy.set(PASS)
        stage.caught_up(flow, seconds=120)
        time.sleep(3)
    finally:
        code, said = terminate(runner)
    assert code == 0, said[-1500:]
    stage.expect_same(flow)
    return f"one of {len(workers)} workers"


def _producing_workers(runner: subprocess.Popen[str]) -> list[int]:
    daemons = [pid for pid in children(runner.pid) if "mirrorlake.daemon" in command_of(pid)]
    return [pid for pid in daemons if not any(other in daemons for other in children(pid))]


@row("16d", "kill -9 of the JVM alone", "SIGKILL to the runner's Java child, mid-send", "the runner ends; " + EQUAL)
def jvm_dies(stage: Stage) -> str:
    topic = stage.topic("jvm")
    flow = stage.flow(topic)
    runner = flow.start()
    try:
        stage.caught_up(flow)
        stage.proxy.set(THROTTLE, bytes_per_second=150_000)
        seen = stage.proxy.produce_requests
        stage.send(topic, bulk(2000))
        wait_until(lambda: stage.proxy.produce_requests > seen, "sending")
        os.kill(jvm_of(runner), signal.SIGKILL)
        code, said = finish(runner, 60)
    finally:
        stage.proxy.set(PASS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(runner.pid, signal.SIGKILL)
    flow.run_once()
    stage.expect_same(flow)
    assert code == 3, said[-1500:]  # PySpark's own threads print tracebacks of their own; the last word is ours
    assert "Java process ended" in said.splitlines()[-2] + said.splitlines()[-3], said[-1500:]
    return f"the runner ended with {code}"


# --- 17-19: one writer ---


@row("17", "SIGSTOP of a runner, a second starts, SIGCONT", "kill -STOP / -CONT", "the second is refused (5); " + EQUAL)
def stopped_runner(stage: Stage) -> None:
    topic = stage.topic("stopped")
    flow = stage.flow(topic)
    runner = flow.start()
    try:
        stage.caught_up(flow)
        runner.send_signal(signal.SIGSTOP)
        stage.more(topic, 500)
        code, said = finish(flow.start("--once"))
        assert code == 5, f"{code}: {said[-800:]}"
        runner.send_signal(signal.SIGCONT)
        stage.caught_up(flow)
    finally:
        runner.send_signal(signal.SIGCONT)
        code, said = terminate(runner)
    assert code == 0, said[-1500:]
    stage.expect_same(flow)


def _stopped_at(failpoint: str) -> Callable[[Stage], str | None]:
    def run(stage: Stage) -> str:
        flow = stage.begun("standing")
        runner = flow.start("--once", environment={"MIRRORLAKE_FAIL": failpoint})
        try:
            wait_until(lambda: standing(runner.pid), "a process that stands still", 120)
            stopped = standing(runner.pid)
            code, said = finish(flow.start("--once"))
            assert (code, f"process {runner.pid}" in said) == (5, True), f"{code}: {said[-800:]}"
        finally:
            code, said = _finish_awake(runner)
        assert code == 0, said[-1500:]
        stage.expect_same(flow)
        return f"{len(stopped)} processes stood still"

    return run


def _finish_awake(runner: Command) -> tuple[int, str]:
    """Every process that meets the failpoint stops: each is sent on, until the runner has ended."""

    def ended() -> bool:
        wake(standing(runner.pid))
        return runner.process.poll() is not None

    with contextlib.suppress(AssertionError):  # `finish` says what hung
        wait_until(ended, "the runner's end", 120)
    return finish(runner, 5)


for _number, _what, _failpoint in (
    ("17b", "workers stopped in the middle of sending", "batch-sent:1:stop"),
    ("17c", "runner stopped with all sent and the ledger not told", "settled:1:stop"),
):
    row(
        _number, f"{_what}, a second starts, SIGCONT", f"failpoint {_failpoint}", "the second is refused (5); " + EQUAL
    )(_stopped_at(_failpoint))


@row(
    "17d",
    "runner killed while its workers stand still in the middle of sending",
    "failpoint batch-sent:1:stop, SIGKILL to the runner; SIGCONT when a second has begun",
)
def stopped_workers_outlive_their_runner(stage: Stage) -> None:
    flow = stage.begun("orphans")
    runner = flow.start("--once", environment={"MIRRORLAKE_FAIL": "batch-sent:1:stop"})
    wait_until(lambda: standing(runner.pid), "a process that stands still", 120)
    stopped = standing(runner.pid)
    os.kill(runner.pid, signal.SIGKILL)
    finish(runner)
    second = flow.start("--once")
    try:
        wait_until(lambda: read_holder(flow.root, flow.name).get("pid") == second.pid, "the second's turn")
        time.sleep(3)
    finally:
        wake(stopped)
        code, said = finish(second)
    assert code == 0, said[-1500:]
    stage.expect_same(flow)


@row("18", "two runners at once on one folder", "both started together", "one ends with 5 before it produces; " + EQUAL)
def two_runners(stage: Stage) -> str:
    flow = stage.begun("two")
    runners = [flow.start("--once"), flow.start("--once")]
    codes = sorted(finish(runner)[0] for runner in runners)
    assert codes == [0, 5], codes
    stage.expect_same(flow)
    versions = sorted(int(path.stem) for path in (flow.root / "tables/ops/ledger/_delta_log").glob("*[0-9].json"))
    assert versions == list(range(len(versions))), "a commit of the ledger was written over or lost"
    return f"exit codes {codes}"


# --- 20-23: brokers ---


def _broker_dies(stage: Stage, name: str) -> None:
    topic = stage.topic(f"broker-{name}")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with feeding(stage, topic, 1000):
            time.sleep(1.5)
            stage.cluster(name).kill_broker(0)
            time.sleep(2)
            stage.cluster(name).start_broker(0)
            time.sleep(1)
        stage.caught_up(flow, running=running, seconds=120)
    stage.expect_same(flow)


@row("20", "source broker kill -9", "SIGKILL, started again after 2 s, while records come in")
def source_broker_dies(stage: Stage) -> None:
    _broker_dies(stage, "source")


@row("21", "target broker kill -9 mid-batch", "SIGKILL, started again after 2 s, while records come in")
def target_broker_dies(stage: Stage) -> None:
    _broker_dies(stage, "shaky")


@row(
    "21c",
    "acknowledgement lost, then the target broker dies; records of years ago",
    "proxy: drop-response; SIGKILL, started again",
    "brokers forget producers of old records when they crash, so nothing may be sent again blindly; " + EQUAL,
)
def target_broker_dies_after_ack_lost(stage: Stage) -> None:
    topic = stage.topic("ack-broker")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        landed = stage.ends("shaky", target_name(flow))
        stage.proxy.set(DROP_RESPONSE)
        stage.more(topic, 500)
        wait_until(lambda: stage.ends("shaky", target_name(flow)) > landed, "records that landed")
        stage.cluster().kill_broker(0)
        stage.proxy.set(PASS)
        stage.cluster().start_broker(0)
        stage.more(topic, 100, 700)
        stage.caught_up(flow, running=running)
        time.sleep(1)
    stage.expect_same(flow)


@row("21b", "target refuses connections for 8 s", "proxy: refuse")
def target_refuses(stage: Stage) -> None:
    topic = stage.topic("refuse")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.proxy.set(REFUSE)
        stage.more(topic, 2000)
        time.sleep(8)
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running)
    stage.expect_same(flow)


@row(
    "22", "target broker SIGSTOP 20 s", "kill -STOP; delivery time-out 5 s", "late landings are taken for what they are"
)
def target_stops(stage: Stage) -> None:
    topic = stage.topic("pause")
    flow = stage.flow(topic, fanout={"delivery_timeout_seconds": 5})
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with feeding(stage, topic, 1000):
            time.sleep(1)
            stage.cluster().pause_broker(0)
            time.sleep(20)
            stage.cluster().resume_broker(0)
        stage.caught_up(flow, running=running, seconds=120)
    stage.expect_same(flow)


@row("23", "rolling restart of all brokers", "SIGTERM and start, one after the other", "no halt; " + EQUAL)
def rolling(stage: Stage) -> None:
    topic = stage.topic("rolling")
    flow = stage.flow(topic, ["shaky", "hubs"])
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        for name in ("source", "shaky", "hubs"):
            stage.more(topic, 300)
            stage.cluster(name).stop_broker(0)
            time.sleep(1)
            stage.cluster(name).start_broker(0)
        stage.more(topic, 300)
        for target in flow.targets:
            stage.caught_up(flow, target, running=running, seconds=120)
    stage.expect_same(flow)


# --- 24-27: the network ---


@row("24", "acknowledgement lost, records landed", "proxy: drop-response, then reset")
def ack_lost(stage: Stage) -> str:
    topic = stage.topic("ack")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        for round_ in range(3):
            swallowed, landed = stage.proxy.swallowed_bytes, stage.ends("shaky", target_name(flow))
            stage.proxy.set(DROP_RESPONSE)
            stage.more(topic, 500, 200 + 500 * round_)
            wait_until(lambda seen=swallowed: stage.proxy.swallowed_bytes > seen, "a lost acknowledgement")
            # Some are there, and nobody knows. Not all need be: a later batch waits for the acknowledgement.
            wait_until(lambda seen=landed: stage.ends("shaky", target_name(flow)) > seen, "records that landed")
            stage.proxy.set(PASS)
            stage.proxy.reset_all()
            time.sleep(1)
        stage.more(topic, 100, 1700)
        stage.caught_up(flow, running=running)
        time.sleep(1)
    stage.expect_same(flow)
    return f"{stage.proxy.swallowed_bytes:,} bytes swallowed"


@row("24b", "acknowledgement lost for longer than the time-out", "proxy: drop-response 12 s, delivery time-out 4 s")
def ack_lost_for_long(stage: Stage) -> None:
    topic = stage.topic("ack-long")
    flow = stage.flow(topic, fanout={"delivery_timeout_seconds": 4})
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.proxy.set(DROP_RESPONSE)
        stage.more(topic, 1000)
        time.sleep(12)
        stage.proxy.set(PASS)
        stage.more(topic, 200, 1200)
        stage.caught_up(flow, running=running)
        time.sleep(3)
    stage.expect_same(flow)


@row(
    "24c",
    "a request that lands after recovery",
    "proxy: produce requests held, delivery time-out 4 s, then released",
    "cannot be excluded; the duplicates are listed exactly, order kept otherwise",
)
def late_landing(stage: Stage) -> str:
    topic = stage.topic("late")
    flow = stage.flow(topic, fanout={"delivery_timeout_seconds": 4})
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.proxy.set(HOLD)
        stage.more(topic, 500)
        wait_until(stage.proxy.holds, "a request to hold")
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running)  # by new connections
        ends = stage.ends("shaky", target_name(flow))
        stage.proxy.release()
        wait_until(lambda: stage.ends("shaky", target_name(flow)) > ends, "the late landing", 20)
        stage.more(topic, 100, 700)
        want = stage.ends("source", topic) + stage.ends("shaky", target_name(flow)) - ends
        wait_until(lambda: stage.ends("shaky", target_name(flow)) >= want, "the rest")
        time.sleep(2)
    return _expect_listed_duplicates(stage, flow)


@row(
    "24d",
    "the first request to a new topic refused, those behind it taken",
    "proxy: produce request misspelt, 50 ms for each chunk; a record in each request",
    "a broker takes any number from a producer that is new to it, and librdkafka then calls the refused ones "
    "delivered: none may be behind the first; " + EQUAL,
)
def first_request_refused(stage: Stage) -> None:
    topic = stage.topic("first")
    flow = stage.flow(topic, fanout={"producer": {"batch.num.messages": "1"}})
    refused = stage.proxy.refuse_produce(target_name(flow))
    stage.proxy.set(DELAY, seconds=0.05)
    with stage.running(flow) as running:
        wait_until(refused.is_set, "a request that is refused")
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running)
    stage.expect_same(flow)


@row(
    "24e",
    "kill -9 while duplicates are listed",
    "copies of our records on the target; failpoint incident-written",
    "all are listed, by whoever lives to do so; order kept otherwise",
)
def listing_dies(stage: Stage) -> str:
    flow = stage.begun("listing")
    flow.run_once()
    _land_again(stage, target_name(flow), 5)
    stage.crash(flow, "incident-written:1:kill-driver")
    stage.more(flow.topics[0], 100, 2200)
    flow.run_once()
    return _expect_listed_duplicates(stage, flow)


def _land_again(stage: Stage, topic: str, count: int) -> None:
    """The newest records of each partition once more, header and all: as a late request would."""
    cluster, sender = stage.records.cluster("shaky"), Producer(direct(stage.cluster()))
    for at, end in cluster.log_ends(TopicPartition(topic, number) for number in range(2)).items():
        for message in list(cluster.read_range(at, end - count, end)):
            at_ms = message.timestamp()[1]
            sender.produce(
                topic, message.value(), message.key(), at.partition, timestamp=at_ms, headers=message.headers()
            )
    assert sender.flush(20) == 0


def _expect_listed_duplicates(stage: Stage, flow: Flow) -> str:
    sent, got = stage.records.read("source", flow.topics[0]), stage.records.read("shaky", target_name(flow))
    twice: set[tuple[int, int]] = set()
    for number, records in sent.items():
        places = {record: offset for offset, record in enumerate(records)}
        assert list(dict.fromkeys(got[number])) == records, f"partition {number}: order or content differ"
        twice |= {(number, places[record]) for record, seen in Counter(got[number]).items() if seen > 1}
    listed = {
        (entry["partition"], offset)
        for entry in flow.rows("ops.incidents")
        if entry["kind"] == "duplicate"
        for offset in range(entry["first_offset"], entry["last_offset"] + 1)
    }
    assert twice, "nothing landed twice: the row does not test what it says"
    assert twice == listed, f"{len(twice)} landed twice, {len(listed)} are listed"
    return f"{len(twice)} duplicates, all listed"


@row("25", "connections reset every 50 kB", "proxy: reset, 12 s", "progress meanwhile; " + EQUAL)
def resets(stage: Stage) -> str:
    topic = stage.topic("reset")
    flow = stage.flow(topic, fanout={"producer": {"batch.size": "16000", "reconnect.backoff.max.ms": "200"}})
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.proxy.set(RESET, every_bytes=50_000)
        stage.send(topic, bulk(2000))
        time.sleep(12)
        during = stage.ends("shaky", target_name(flow))
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running)
    assert during > 200, "no progress while connections were reset"
    stage.expect_same(flow)
    return f"{during - 200} of 2000 records went through meanwhile"


@row("25b", "the target's side half-closed", "proxy: half-close, 5 s")
def half_closed(stage: Stage) -> None:
    topic = stage.topic("half")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.more(topic, 1000)
        stage.proxy.set(HALF_CLOSE)
        time.sleep(5)
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running)
    stage.expect_same(flow)


@row(
    "26",
    "target unreachable for 25 s, the source goes on",
    "proxy: blackhole; delivery time-out 5 s; a second target",
    "bronze and the second target go on; " + EQUAL,
)
def blackhole(stage: Stage) -> str:
    topic = stage.topic("hole")
    flow = stage.flow(topic, ["shaky", "hubs"], fanout={"delivery_timeout_seconds": 5})
    with stage.running(flow) as running:
        for target in flow.targets:
            stage.caught_up(flow, target, running=running)
        stage.proxy.set(BLACKHOLE)
        begun = time.monotonic()
        stage.more(topic, 1000)
        stage.caught_up(flow, "hubs", running=running, seconds=20)
        other = time.monotonic() - begun
        stage.more(topic, 1000, 1200)
        stage.caught_up(flow, "hubs", running=running, seconds=20)
        time.sleep(max(0, 25 - (time.monotonic() - begun)))
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running, seconds=90)
    stage.expect_same(flow)
    return f"the other target had its records after {other:.1f} s"


@row("26b", "source unreachable for 25 s", "proxy: blackhole before the source", "waits, then goes on; " + EQUAL)
def source_blackhole(stage: Stage) -> None:
    proxy, topic = source_proxy(stage), stage.topic("source-hole")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        proxy.set(BLACKHOLE)
        stage.more(topic, 1000)
        time.sleep(25)
        proxy.set(PASS)
        stage.caught_up(flow, running=running, seconds=120)
    stage.expect_same(flow)


@row("27", "1 Mbit/s to the target", "proxy: throttle 125 kB/s for each connection")
def throttled(stage: Stage) -> None:
    _slow(stage, THROTTLE, bytes_per_second=125_000)


@row("27b", "100 ms to the target", "proxy: delay 100 ms for each chunk")
def delayed(stage: Stage) -> None:
    _slow(stage, DELAY, seconds=0.1)


def _slow(stage: Stage, mode: str, **options: float) -> None:
    topic = stage.topic("slow")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.proxy.set(mode, **options)
        stage.send(topic, bulk(1000))
        stage.caught_up(flow, running=running, seconds=90)
        stage.proxy.set(PASS)
    stage.expect_same(flow)


# --- 28-31: the source changes ---


@row("28", "retention overtakes the reader, policy stop", "delete-records", "stops (4), the exact range in incidents")
def retention_stop(stage: Stage) -> None:
    flow = _overtaken(stage, "stop")
    with pytest.raises(SourceLoss, match="offsets 100-149"):
        flow.run_once()
    assert _incidents(flow) == [("retention", 0, 100, 149)]


@row(
    "28b",
    "retention overtakes the reader, policy continue",
    "delete-records",
    "the range in incidents, the rest relayed",
)
def retention_continue(stage: Stage) -> None:
    flow = _overtaken(stage, "continue")
    flow.run_once()
    flow.run_once()
    assert _incidents(flow) == [("retention", 0, 100, 149)]
    _expect_all_but_the_overtaken(stage, flow)


def _expect_all_but_the_overtaken(stage: Stage, flow: Flow) -> None:
    got = stage.records.read("shaky", target_name(flow))
    want = stage.records.numbered(1200, 2)
    assert got[0] == want[0:200:2] + want[300::2], "partition 0"
    assert got[1] == want[1::2], "partition 1"


def _overtaken(stage: Stage, policy: str) -> Flow:
    topic = stage.topic("retention")
    flow = stage.flow(topic, on_source_loss=policy)
    flow.run_once()
    stage.more(topic, 1000)
    stage.drop_before(topic, 150)
    return flow


def _incidents(flow: Flow) -> list[tuple[str, int, int, int]]:
    return [
        (entry["kind"], entry["partition"], entry["first_offset"], entry["last_offset"])
        for entry in flow.rows("ops.incidents")
    ]


def _killed_after_retention(failpoint: str) -> Callable[[Stage], str | None]:
    def run(stage: Stage) -> None:
        flow = _overtaken(stage, "continue")
        stage.crash(flow, failpoint)
        flow.run_once()
        flow.run_once()
        assert set(_incidents(flow)) == {("retention", 0, 100, 149)}, _incidents(flow)
        _expect_all_but_the_overtaken(stage, flow)

    return run


@row("28c", "retention overtakes a running reader", "source blackholed, delete-records, source back", "as 28")
def retention_while_running(stage: Stage) -> None:
    proxy, topic = source_proxy(stage), stage.topic("overtaken")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        proxy.set(BLACKHOLE)
        stage.more(topic, 1000)
        stage.drop_before(topic, 150)
        proxy.set(PASS)
        running.ended_with(SourceLoss, 90)
    found = _incidents(flow)
    assert len(found) == 1, found
    assert found[0][:2] == ("retention", 0), found
    assert found[0][3] == 149, found


@row("29", "source topic deleted while it is read", "admin", "stops (4), the topic named in incidents")
def topic_deleted(stage: Stage) -> str:
    topic = stage.topic("deleted")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.delete("source", topic)
        said = running.ended_with(DataAtRisk, 90)
    stage.expect_incidents(flow, ["topic_deleted"])
    return said.splitlines()[0][:100]


@row(
    "30",
    "source topic made anew, longer than before",
    "admin, while it is read",
    "stops (4) by topic id; both kept apart",
)
def topic_made_anew(stage: Stage) -> None:
    topic = stage.topic("anew")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.delete("source", topic)
        stage.records.create("source", topic, 2)
        stage.more(topic, 600, 1000)
        running.ended_with(DataAtRisk, 90)
    assert {kind for kind, *_ in _incidents(flow)} <= {"topic_recreated", "topic_deleted"}, _incidents(flow)
    flow.options["on_source_loss"] = "continue"
    flow.run_once()
    flow.run_once()
    _expect_old_and_new(stage, flow)


def _expect_old_and_new(stage: Stage, flow: Flow) -> None:
    want = stage.records.numbered(200, 2) + stage.records.numbered(600, 2, 1000)
    got = stage.records.read("shaky", target_name(flow))
    assert got == {0: want[0::2], 1: want[1::2]}, "old and new records, each once"


def _killed_after_recreation(failpoint: str) -> Callable[[Stage], str | None]:
    def run(stage: Stage) -> None:
        topic = stage.topic("anew")
        flow = stage.flow(topic, on_source_loss="continue")
        flow.run_once()
        stage.delete("source", topic)
        stage.records.create("source", topic, 2)
        stage.more(topic, 600, 1000)
        stage.crash(flow, failpoint)
        flow.run_once()
        flow.run_once()
        assert {(kind, number) for kind, number, *_ in _incidents(flow)} == {("topic_recreated", n) for n in range(2)}
        _expect_old_and_new(stage, flow)

    return run


GOING_ON = ("incident-written", "generation-claimed", "epochs-noted")
"""What going on after a loss passes, up to where the new query starts."""

for _letter, _point in zip("def", GOING_ON, strict=True):
    row(f"28{_letter}", f"retention overtakes the reader, kill -9 at {_point}", "delete-records; failpoint", "as 28b")(
        _killed_after_retention(f"{_point}:1:kill-driver")
    )
for _letter, _point in zip("bcd", GOING_ON, strict=True):
    row(
        f"30{_letter}", f"source topic made anew, kill -9 at {_point}", "admin; failpoint", "both kept apart, each once"
    )(_killed_after_recreation(f"{_point}:1:kill-driver"))


@row("31", "partitions 2 to 4 while it runs", "admin", "the target grows first, the new ones from 0; " + EQUAL)
def partitions_grow(stage: Stage) -> None:
    topic = stage.topic("grow")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.records.cluster("source").grow_topic(topic, 4)
        wait_until(lambda: stage.records.cluster("source").describe([topic])[topic].partitions == 4, "growth")
        stage.more(topic, 800, partitions=4)
        stage.caught_up(flow, running=running)
    stage.expect_same(flow)


@row("32", "key order, 100,000 records in 6 partitions", "load")
def key_order(stage: Stage) -> None:
    topic = stage.topic("keys", partitions=6, count=0)
    stage.send(topic, stage.records.numbered(100_000, 6))
    flow = stage.flow(topic, ingest={"max_records_per_batch": 30_000})
    flow.run_once()
    stage.expect_same(flow, audit=False)


# --- 33-41: what records can be ---


def transactional(stage: Stage, topic: str, name: str) -> Producer:
    producer = Producer({**direct_or_not(stage, "source"), "transactional.id": f"{name}-{topic}", "linger.ms": 5})
    producer.init_transactions(20)
    return producer


def direct_or_not(stage: Stage, name: str) -> dict[str, str]:
    cluster = stage.cluster(name)
    return direct(cluster) if name in stage.proxies else cluster.client_config()


@row(
    "33",
    "aborted, open and committed transactions",
    "transactional producers",
    "committed only; an open one is waited for",
)
def transactions(stage: Stage) -> None:
    topic = stage.topic("txn", partitions=1, count=5)
    producer, want = transactional(stage, topic, "t"), [b"value-%d" % n for n in range(5)]
    for number, commits in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for n in range(7):
            producer.produce(topic, b"%d-%d" % (number, n), partition=0)
        producer.flush()
        producer.commit_transaction(20) if commits else producer.abort_transaction(20)
        want += [b"%d-%d" % (number, n) for n in range(7)] if commits else []
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush()
    flow = stage.flow(topic)
    flow.run_once()
    assert _values(stage, flow) == want
    producer.commit_transaction(20)
    flow.run_once()
    assert _values(stage, flow) == [*want, b"open"]
    assert flow.audit().ok
    stage.expect_incidents(flow, [])


def _values(stage: Stage, flow: Flow, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in stage.records.read("shaky", target_name(flow))[partition]]


HANGING = """
import sys, time
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
who = {"bootstrap.servers": sys.argv[1], "transactional.id": sys.argv[3]}
producer = Producer({**who, "transaction.timeout.ms": 600000})
producer.init_transactions(20)
producer.begin_transaction()
producer.produce(sys.argv[2], b"hanging", partition=0)
producer.flush()
print("sent", flush=True)
time.sleep(600)
"""


@row(
    "34",
    "hanging transaction",
    "the producer is killed, its time-out is long",
    "nothing lost, nothing early; `--once` ends",
)
def hanging(stage: Stage) -> None:
    topic = stage.topic("hanging", partitions=1, count=20)
    servers = direct_or_not(stage, "source")["bootstrap.servers"]
    command = [sys.executable, "-c", HANGING, servers, topic, f"h-{topic}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "sent"
        process.kill()
    stage.send(topic, stage.records.numbered(10, 1, 20))
    flow = stage.flow(topic)
    flow.run_once()
    assert _values(stage, flow) == [b"value-%d" % n for n in range(20)]
    transactional(stage, topic, "h")  # a new producer of that name: the broker aborts the old one's transaction
    time.sleep(1)
    flow.run_once()
    assert _values(stage, flow) == [b"value-%d" % n for n in range(30)]
    stage.expect_incidents(flow, [])


def _versions(numbers: range, keys: int = 20) -> list[Record]:
    """Ever newer versions of a few keys, some of them tombstones; times that roll segments."""
    return [
        Record(None if n % keys == 3 else b"%d" % n, b"k%d" % (n % keys), (), 1_700_000_000_000 + 1000 * n)
        for n in numbers
    ]


def _await_quiet(look: Callable[[], int], seconds: float = 3) -> None:
    seen, since = look(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.5)
        if (now := look()) != seen:
            seen, since = now, time.monotonic()


@row(
    "35",
    "compacted source: gaps and tombstones",
    "segments rolled, cleaner",
    "no false alarm, null values kept; " + EQUAL,
)
def compacted_source(stage: Stage) -> str:
    topic = stage.topic(
        "compact", partitions=1, count=0, cleanup_policy="compact", segment_ms="1", min_cleanable_dirty_ratio="0.001",
        delete_retention_ms="600000", max_compaction_lag_ms="1000",
    )  # fmt: skip
    flow = stage.flow(topic)
    for value in range(4):
        stage.send(topic, _versions(range(20 * value, 20 * value + 20)))
        flow.run_once()
    expected = stage.ends("shaky", target_name(flow))
    wait_until(lambda: len(stage.records.read("source", topic)[0]) < stage.ends("source", topic), "the cleaner", 40)
    stage.send(topic, _versions(range(80, 100)))
    flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == expected + 20
    _await_quiet(lambda: len(stage.records.read("source", topic)[0]))
    fresh = stage.flow(topic, ["hubs"])
    fresh.name = "fresh"
    fresh.options["bronze"] = "bronze.fresh"
    fresh.run_once()
    assert stage.records.read("hubs", target_name(flow)) == stage.records.read("source", topic)
    assert flow.audit().ok
    stage.expect_incidents(flow, [])
    return f"{len(stage.records.read('source', topic)[0])} of {stage.ends('source', topic)} offsets left"


@row(
    "36",
    "compacted target, runner killed",
    "failpoint acknowledged; the cleaner thins the tail",
    "the ledger is trusted, nothing sent again",
)
def compacted_target(stage: Stage) -> str:
    topic = stage.topic("thin", partitions=1, count=0)
    stage.records.create(
        "shaky", f"source.{topic}", 1, cleanup_policy="compact", segment_ms="1", min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="500",
    )  # fmt: skip
    stage.send(topic, _versions(range(500), 7))
    flow = stage.flow(topic, fanout={"producer": {"batch.size": "3000"}})
    stage.crash(flow, "acknowledged:1:kill-driver")
    ends = stage.ends("shaky", target_name(flow))
    time.sleep(20)
    left = len(stage.records.read("shaky", target_name(flow))[0])
    stage.send(topic, _versions(range(500, 600), 7))
    flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == stage.ends("source", topic)
    last = {record.key: record for record in stage.records.read("source", topic)[0]}
    assert {record.key: record for record in stage.records.read("shaky", target_name(flow))[0]} == last
    return f"{left} of {ends} records were left when it recovered"


@row(
    "36b",
    "target drops records at once, runner killed",
    "failpoint acknowledged, then delete-records on the target",
    "the ledger is trusted, nothing sent again",
)
def expiring_target(stage: Stage) -> None:
    flow = stage.begun("expire")
    stage.crash(flow, "acknowledged:1:kill-driver")
    for partition, records in stage.records.read("shaky", target_name(flow)).items():
        stage.drop_before(target_name(flow), len(records), partition, "shaky")
    flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == stage.ends("source", flow.topics[0])
    stage.more(flow.topics[0], 100, 2200)
    flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == stage.ends("source", flow.topics[0])


@row(
    "36c",
    "target keeps records for a second, runner killed",
    "retention.ms of the target, old timestamps, failpoint acknowledged",
    "the ledger is trusted, nothing sent again",
)
def short_retention(stage: Stage) -> str:
    topic = stage.topic("retention", count=1000)
    stage.records.create("shaky", f"source.{topic}", 2, retention_ms="1000")
    flow = stage.flow(topic, target={"configs": {"enabled": False}})
    stage.crash(flow, "acknowledged:1:kill-driver")
    sent = stage.ends("shaky", target_name(flow))
    cluster, places = stage.records.cluster("shaky"), [TopicPartition(target_name(flow), n) for n in range(2)]
    wait_until(lambda: cluster.log_starts(places) == cluster.log_ends(places), "retention")
    for first in (1000, 1300):
        flow.run_once()
        assert stage.ends("shaky", target_name(flow)) == stage.ends("source", topic)
        stage.more(topic, 300, first)
    stage.expect_incidents(flow, [])
    return f"{sent} records had landed, none was left when it recovered"


def _oversize(stage: Stage, policy: str) -> Flow:
    topic = stage.topic("large", partitions=1, count=10)
    stage.records.create("shaky", f"source.{topic}", 1, max_message_bytes="20000")
    stage.send(topic, bulk(1, 50_000, 1))
    stage.send(topic, stage.records.numbered(10, 1, 10))
    return stage.flow(topic, on_undeliverable=policy, target={"configs": {"enabled": False}})


@row(
    "37",
    "record too large for the target, policy stop",
    "max.message.bytes",
    "stops (4) at that offset, all before it delivered",
)
def oversize_stop(stage: Stage) -> None:
    flow = _oversize(stage, "stop")
    for _ in range(2):
        with pytest.raises(Undeliverable, match="offset 10"):
            flow.run_once()
        assert _values(stage, flow) == [b"value-%d" % n for n in range(10)]
    flow.options["on_undeliverable"] = "dead_letter"
    flow.run_once()
    _expect_dead_letter(stage, flow)


@row(
    "37b",
    "record too large for the target, policy dead_letter",
    "max.message.bytes",
    "quarantined, neighbours delivered",
)
def oversize_dead_letter(stage: Stage) -> None:
    flow = _oversize(stage, "dead_letter")
    flow.run_once()
    flow.run_once()
    _expect_dead_letter(stage, flow)


def _expect_dead_letter(stage: Stage, flow: Flow, listed: int = 1) -> None:
    want = stage.records.read("source", flow.topics[0])
    del want[0][10]
    expect_equal(want, stage.records.read("shaky", target_name(flow)), flow.topics[0])
    assert [entry["source_offset"] for entry in flow.rows("ops.dead_letters")] == [10] * listed
    report = flow.audit()
    assert report.ok, report.findings[:5]


@row(
    "37d",
    "kill -9 of a repair",
    "a dead letter that fits now; failpoint repair-sent",
    "sent once, by the repair that was killed",
)
def repair_dies(stage: Stage) -> None:
    flow = _oversize(stage, "dead_letter")
    flow.run_once()
    assert not stage.records.cluster("shaky").alter_configs({target_name(flow): {"max.message.bytes": "100000"}})
    repair = ("repair", "-c", str(flow.write()), "--target", "shaky", "--apply")
    for failpoint, expected in (("repair-sent:1:kill", -9), ("", 0)):
        code, said = finish(flow.command(*repair, environment={"MIRRORLAKE_FAIL": failpoint}))
        assert code == expected, f"{code}: {said[-1000:]}"
        _expect_late(stage, flow, 10)
    flow.run_once()
    _expect_late(stage, flow, 10)
    assert flow.audit().ok
    stage.expect_incidents(flow, [])


def _expect_late(stage: Stage, flow: Flow, offset: int) -> None:
    """All records, one of them last."""
    want = stage.records.read("source", flow.topics[0])
    want[0].append(want[0].pop(offset))
    expect_equal(want, stage.records.read("shaky", target_name(flow)), flow.topics[0])


@row("38", "awkward records", "null and empty, repeated headers, null header values", EQUAL)
def awkward(stage: Stage) -> None:
    records = [
        Record(key=None), Record(key=b""), Record(value=None), Record(value=b""), Record(None, None),
        Record(headers=(("a", b"1"), ("a", b"2"), ("", None), ("n", None), ("e", b""), ("ü", b"\xff"))),
        Record(timestamp_ms=1), Record(timestamp_ms=4_102_444_800_000 // 4), Record(bytes(range(256)) * 3000),
    ]  # fmt: skip
    topic = stage.topic("awkward", partitions=1, count=0)
    stage.send(topic, records)
    flow = stage.flow(topic, ["shaky", "hubs"])
    flow.run_once()
    stage.expect_same(flow)


@row("39", "bytes that are no schema's", "random keys and values")
def random_bytes(stage: Stage) -> None:
    topic = stage.topic("noise", count=0)
    stage.send(
        topic, [Record(os.urandom(n % 300), os.urandom(n % 17), (), 1_700_000_000_000, n % 2) for n in range(1000)]
    )
    flow = stage.flow(topic)
    flow.run_once()
    stage.expect_same(flow)


@row(
    "40",
    "a corrupt batch at the source",
    "a byte of the segment flipped, broker stopped meanwhile",
    "stops (4), says where; no loss in silence",
)
def corrupt_batch(stage: Stage) -> str:
    topic = stage.topic("corrupt", partitions=1, count=100)
    flow = stage.flow(topic)
    flow.run_once()
    stage.send(topic, bulk(50, 500, 1))
    cluster = stage.cluster("source")
    cluster.stop_broker(0)
    segment = next((cluster.folder / "broker-0" / "data" / f"{topic}-0").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[-100] ^= 0xFF
    segment.write_bytes(data)
    cluster.start_broker(0)
    begun = time.monotonic()
    code, said = finish(flow.start("--once"), 150)
    assert code in (3, 4), f"{code}: {said[-1000:]}"
    assert "Traceback" not in said, said[-1000:]
    assert len(_values(stage, flow)) == 100
    return f"exit {code} after {time.monotonic() - begun:.0f} s: {said.splitlines()[-2][-160:]}"


def _future(stage: Stage, policy: str) -> Flow:
    topic = stage.topic("future", partitions=1, count=10, message_timestamp_after_max_ms=str(10**15))
    stage.records.create("shaky", f"source.{topic}", 1, message_timestamp_after_max_ms="3600000")
    stage.send(topic, [Record(b"future", timestamp_ms=int(time.time() * 1000) + 86_400_000)])
    stage.send(topic, stage.records.numbered(10, 1, 10))
    return stage.flow(topic, on_undeliverable=policy, target={"configs": {"enabled": False}})


@row(
    "41",
    "timestamp in the future, policy stop",
    "message.timestamp.after.max.ms of the target",
    "stops (4) at that offset",
)
def future_stop(stage: Stage) -> None:
    flow = _future(stage, "stop")
    with pytest.raises(Undeliverable, match="offset 10"):
        flow.run_once()
    assert _values(stage, flow) == [b"value-%d" % n for n in range(10)]


@row(
    "41b",
    "timestamp in the future, policy dead_letter",
    "message.timestamp.after.max.ms of the target",
    "quarantined, neighbours delivered",
)
def future_dead_letter(stage: Stage) -> None:
    flow = _future(stage, "dead_letter")
    flow.run_once()
    _expect_dead_letter(stage, flow)


def _killed_before(failpoint: str, make: Callable[[Stage, str], Flow], listed: int) -> Callable[[Stage], str | None]:
    """With a record that the target does not take; it may be listed by both runners."""

    def run(stage: Stage) -> None:
        flow = make(stage, "dead_letter")
        stage.crash(flow, failpoint)
        flow.run_once()
        _expect_dead_letter(stage, flow, listed)

    return run


for _number, _what, _failpoint, _make, _listed in (
    ("37c", "record too large for the target", "dead-letters-written:1", _oversize, 2),
    ("41c", "timestamp in the future", "record-refused:1", _future, 1),
    ("41d", "timestamp in the future", "dead-letters-written:1", _future, 2),
):
    row(_number, f"{_what}, kill -9 at {_failpoint}", "failpoint", "quarantined, neighbours delivered once")(
        _killed_before(f"{_failpoint}:kill-driver", _make, _listed)
    )


# --- 42-44: access ---


def _refused(flow: Flow, change: Callable[[dict], None], seconds: float = 60) -> tuple[int, str, float]:
    content = yaml.safe_load(flow.write().read_text())
    change(content)
    flow.path.write_text(yaml.safe_dump(content))
    begun = time.monotonic()
    runner = flow.command("run", "-c", str(flow.path), "--once", environment={"WRONG_PASSWORD": "wr0ng-s3cret"})
    code, said = finish(runner, seconds)
    assert "Traceback" not in said, said[-1000:]
    assert "next:" in said, said[-1000:]
    return code, said, time.monotonic() - begun


@row("42", "wrong password", "configuration", "exit 3 within 30 s, no secret said; goes on after the fix")
def wrong_password(stage: Stage) -> str:
    flow = stage.flow(stage.topic("password"), ["hubs"])
    code, said, seconds = _refused(
        flow, lambda c: c["clusters"]["hubs"]["security"].update(password="${env:WRONG_PASSWORD}")
    )
    assert code == 3, said
    assert seconds < 30, seconds
    assert "wr0ng-s3cret" not in said
    flow.run_once()
    stage.expect_same(flow)
    return f"refused after {seconds:.1f} s"


@row(
    "43",
    "wrong authority",
    "a CA that signed nothing",
    "exit 3, refused before anything is made; goes on after the fix",
)
def wrong_authority(stage: Stage) -> str:
    flow = stage.flow(stage.topic("authority"), ["hubs"])
    other = flow.folder / "other-ca.pem"
    other.write_bytes(certs.authority().certificate_pem)
    code, said, seconds = _refused(flow, lambda c: c["clusters"]["hubs"]["security"].update(ca=str(other)))
    assert code == 3, said
    flow.run_once()
    stage.expect_same(flow)
    return f"refused after {seconds:.1f} s"


@row(
    "44",
    "ACL for writing removed while it runs",
    "admin, authorizer of the second target",
    "stops that target, names topic; goes on after the fix",
)
def acl_removed(stage: Stage) -> str:
    topic = stage.topic("acl")
    flow = stage.flow(topic, ["hubs"], runner={"refused_seconds": 10})
    with stage.running(flow) as running:
        stage.caught_up(flow, "hubs", running=running)
        with denied(stage, target_name(flow), AclOperation.WRITE):
            stage.more(topic, 300)
            said = running.ended_with(AccessRefused)
    flow.run_once()
    stage.expect_same(flow)
    return said.splitlines()[0][:120]


@row(
    "44b",
    "ACL for reading removed while it runs",
    "admin, authorizer of the source",
    "waits, then stops (3), names topic; goes on after the fix",
)
def acl_for_reading_removed(stage: Stage) -> str:
    """`hubs` as the source: it is the cluster that has an authorizer."""
    topic, back = f"reading-{os.getpid()}", stage.records.numbered
    stage.records.create("hubs", topic, 2)
    stage.send(topic, back(200, 2), to="hubs")
    flow = stage.flow(topic, ["shaky"], source="hubs", runner={"refused_seconds": 10})
    with stage.running(flow) as running:
        wait_until(lambda: stage.ends("shaky", f"hubs.{topic}") == 200, "the first records")
        with denied(stage, topic, AclOperation.READ):
            stage.send(topic, back(300, 2, 200), to="hubs")
            said = running.ended_with(AccessRefused)
    flow.run_once()
    expect_equal(stage.records.read("hubs", topic), stage.records.read("shaky", f"hubs.{topic}"), topic)
    assert flow.audit().ok
    return said.splitlines()[0][:120]


@contextlib.contextmanager
def denied(stage: Stage, topic: str, operation: AclOperation) -> Iterator[None]:
    """Everything else stays allowed on the topic, as the cluster allows what no ACL speaks of."""
    admin = AdminClient({**direct(stage.cluster("hubs")), "log_level": 0})
    place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*")
    allow = AclBinding(*place, AclOperation.ALL, AclPermissionType.ALLOW)
    deny = AclBinding(*place, operation, AclPermissionType.DENY)
    for future in admin.create_acls([allow, deny]).values():
        future.result(20)
    time.sleep(1)  # until the authorizer has replayed the metadata log; nothing says when
    yield
    everything = AclBindingFilter(*place, AclOperation.ANY, AclPermissionType.ANY)
    next(iter(admin.delete_acls([everything]).values())).result(20)
    time.sleep(1)


# --- 45-49: storage ---


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[None]:
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        raise NotHere("mounting a file system is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def remount(path: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(path)], check=True)


@row(
    "45",
    "disk full",
    "tmpfs of 10 MB as the storage root",
    "stops, acknowledges nothing falsely; goes on when freed; " + EQUAL,
)
def disk_full(stage: Stage) -> str:
    topic = stage.topic("full")
    flow = stage.flow(topic, ingest={"max_records_per_batch": 2000})
    with small_disk(flow.root, 10):
        flow.run_once()
        stage.send(topic, bulk(16_000))
        code, said = finish(flow.start("--once"), 180)
        assert code in (3, 4), f"{code}: {said[-1500:]}"
        assert "Traceback" not in said, said[-1500:]
        remount(flow.root, "size=200m")
        flow.run_once()
        stage.expect_same(flow)
    return f"exit {code}"


@row(
    "45b",
    "disk full for the ledger only",
    "failpoint ledger-before-commit raises",
    "the flow stops (3), nothing is sent again; " + EQUAL,
)
def ledger_fails(stage: Stage) -> str:
    flow = stage.begun("ledger-full")
    code, said = finish(flow.start("--once", environment={"MIRRORLAKE_FAIL": "ledger-before-commit:1:raise"}))
    assert (code, "cannot be written" in said) == (3, True), said[-700:]
    flow.run_once()
    stage.expect_same(flow)
    return f"exit {code}"


@row(
    "45c",
    "disk full at a target's broker",
    "tmpfs as its log folder, filled while records flow",
    "waits while the broker is down, acknowledges nothing falsely; goes on when freed; " + EQUAL,
)
def broker_disk_full(stage: Stage) -> str:
    topic = stage.topic("narrow")
    with _narrow(stage, 64) as (cluster, data):
        flow = stage.flow(topic, ["narrow"])
        flow.run_once()
        _fill(data / "ballast")
        with stage.running(flow) as running:
            stage.send(topic, bulk(8000, first=200))
            wait_until(lambda: cluster.process(0) is None, "the broker to give up", 90)
            (data / "ballast").unlink()
            cluster.start_broker(0)
            stage.caught_up(flow, "narrow", running=running)
        stage.expect_same(flow)
    return "the broker ended, and took nothing in between"


@contextlib.contextmanager
def _narrow(stage: Stage, megabytes: int) -> Iterator[tuple[LabCluster, Path]]:
    """A cluster of one broker whose disk is small."""
    cluster = stage.lab.up([ClusterSpec("narrow")])["narrow"]
    cluster.stop_broker(0)
    data = cluster.folder / "broker-0" / "data"
    kept = data.rename(data.with_name("kept"))
    with small_disk(data, megabytes):
        shutil.copytree(kept, data, dirs_exist_ok=True)
        cluster.start_broker(0)
        try:
            yield cluster, data
        finally:
            stage.lab.down(["narrow"])


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


@row(
    "46", "a checkpoint's offset file cut to nothing", "truncate", "refuses (4) or goes on; never from the start again"
)
def truncated_offsets(stage: Stage) -> str:
    return _truncated(stage, "offsets")


@row(
    "46b", "a checkpoint's commit file cut to nothing", "truncate", "refuses (4) or goes on; never from the start again"
)
def truncated_commits(stage: Stage) -> str:
    return _truncated(stage, "commits")


def _truncated(stage: Stage, kind: str) -> str:
    flow = stage.begun("cut")
    flow.run_once()
    folder = next((flow.root / "checkpoints").glob(f"*/ingest.*/g0/{kind}"))
    newest = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    newest.write_bytes(b"")
    stage.more(flow.topics[0], 500, 2200)
    code, said = finish(flow.start("--once"))
    assert "Traceback" not in said, f"exit {code}: {said[-700:]}"
    assert code in (0, 4), f"exit {code}: {said[-700:]}"
    if code == 4:
        shutil.rmtree(flow.root / "checkpoints")  # what a person would do next, since the ledger is intact
        flow.run_once()
    stage.expect_same(flow)
    return f"exit {code}"


@row("46c", "storage root read-only", "tmpfs remounted ro", "exit 3, named; goes on after the fix")
def read_only(stage: Stage) -> str:
    topic = stage.topic("readonly")
    flow = stage.flow(topic)
    with small_disk(flow.root, 200):
        flow.run_once()
        stage.more(topic, 300)
        remount(flow.root, "ro")
        code, said = finish(flow.start("--once"))
        assert code == 3, f"{code}: {said[-800:]}"
        assert "Traceback" not in said, said[-800:]
        remount(flow.root, "rw")
        flow.run_once()
        stage.expect_same(flow)
    return f"exit {code}"


@row("47", "checkpoints deleted", "rm -r, twice", "begun again from bronze and ledger; " + EQUAL)
def checkpoints_deleted(stage: Stage) -> None:
    flow = stage.begun("gone")
    for round_ in range(2):
        flow.run_once()
        shutil.rmtree(flow.root / "checkpoints")
        stage.more(flow.topics[0], 300, 2200 + 300 * round_)
    flow.run_once()
    stage.expect_same(flow)


@row(
    "47b",
    "bronze table deleted, its checkpoint kept",
    "rm -r, once with a target that has yet to get its records, once without",
    "refuses (4), says what to do, sends nothing; goes on when that is done; " + EQUAL,
)
def bronze_deleted(stage: Stage) -> str:
    flow = stage.begun("no-bronze")
    pause(flow.root, flow.name, EVERYTHING)
    flow.run_once()
    resume(flow.root, flow.name, None, None)
    for first in (2200, 2500):
        shutil.rmtree(flow.root / "tables" / "bronze")
        stage.more(flow.topics[0], 300, first)
        before = stage.ends("shaky", target_name(flow))
        with pytest.raises(StateMismatch) as refused:
            flow.run_once()
        assert stage.ends("shaky", target_name(flow)) == before, "something was sent"
        _do_as_told(refused.value)
        flow.run_once()
        stage.expect_same(flow)
    return refused.value.what


def _do_as_told(refused: StateMismatch) -> None:
    told = re.search(r"move the folder (\S+) away", refused.next_step)
    assert told, f"what to do is not said: {refused}"
    shutil.rmtree(told[1])


@row(
    "47c",
    "an older copy of the checkpoints put back",
    "cp -r, some batches later and one batch later",
    "refuses (4) or goes on; never a loss in silence; " + EQUAL,
)
def checkpoints_put_back(stage: Stage) -> str:
    flow = stage.begun("older")
    checkpoints, kept = flow.root / "checkpoints", flow.folder / "kept"
    said = []
    for first in (2200, 2300):
        shutil.copytree(checkpoints, kept)
        flow.run_once()
        shutil.rmtree(checkpoints)
        kept.rename(checkpoints)
        stage.more(flow.topics[0], 100, first)
        try:
            flow.run_once()
            said.append("went on")
        except StateMismatch as refused:
            said.append(refused.what)
            _do_as_told(refused)
            flow.run_once()
        stage.expect_same(flow)
        stage.more(flow.topics[0], 100, first + 1000)
    return "; ".join(said)


@row("47d", "ledger deleted", "rm -r tables/ops/ledger", "refuses (4) before anything is sent")
def ledger_deleted(stage: Stage) -> str:
    flow = stage.begun("no-ledger")
    flow.run_once()
    before = stage.ends("shaky", target_name(flow))
    shutil.rmtree(flow.root / "tables" / "ops" / "ledger")
    stage.more(flow.topics[0], 300, 2200)
    for _ in range(2):
        with pytest.raises(DataAtRisk, match="ledger") as refused:
            flow.run_once()
        assert refused.value.next_step, refused.value
        assert stage.ends("shaky", target_name(flow)) == before, "something was sent"
    return refused.value.what


@row(
    "48",
    "Delta commit landed, Spark told otherwise",
    "failpoint bronze-committed raises",
    "not appended twice; " + EQUAL,
)
def commit_unknown(stage: Stage) -> str:
    flow = stage.begun("commit")
    code, said = finish(flow.start("--once", environment={"MIRRORLAKE_FAIL": "bronze-committed:1:raise"}))
    if code != 0:
        flow.run_once()
    stage.expect_same(flow)
    assert "Traceback" not in said, said[-800:]
    return f"exit {code}"


@row("49", "OPTIMIZE and VACUUM while it runs", "SQL, several times; a target that is behind")
def optimized(stage: Stage) -> str:
    topic = stage.topic("optimize")
    flow = stage.flow(topic, ["shaky", "hubs"], fanout={"delivery_timeout_seconds": 5})
    table = flow.root / "tables" / "bronze"
    with stage.running(flow) as running:
        for target in flow.targets:
            stage.caught_up(flow, target, running=running)
        folder = next(table.iterdir())
        stage.proxy.set(BLACKHOLE)
        for round_ in range(4):
            stage.more(topic, 300, 200 + 300 * round_)
            stage.caught_up(flow, "hubs", running=running)
        files = len(DeltaTable(str(folder)).file_uris())
        DeltaTable(str(folder)).optimize.compact()
        DeltaTable(str(folder)).vacuum(0, enforce_retention_duration=False, dry_run=False)
        left = len(list(folder.rglob("*.parquet")))
        stage.proxy.set(PASS)
        stage.more(topic, 300, 1400)
        for target in flow.targets:
            stage.caught_up(flow, target, running=running)
    stage.expect_same(flow)
    return f"{files} files became {left}"


# --- 50-56: targets and sources that go back in time ---


@row("50", "target topic made anew", "admin", "stops (4); `repair` fills it from bronze")
def target_made_anew(stage: Stage) -> str:
    flow = stage.begun("remade")
    flow.run_once()
    stage.delete("shaky", target_name(flow))
    stage.records.create("shaky", target_name(flow), 2)
    with pytest.raises(TargetDiverged, match="made anew"):
        flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == 0, "something was sent"
    return _repaired(stage, flow)


@row(
    "50b",
    "target restored from an older copy",
    "its partitions' folders put back, broker stopped",
    "stops (4); `repair` sends exactly what is missing",
)
def target_rewound(stage: Stage) -> str:
    topic = stage.topic("rewound")
    flow = stage.flow(topic)
    flow.run_once()
    with _put_back(stage, "shaky", target_name(flow)):
        stage.more(topic, 500)
        flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == 200
    with pytest.raises(TargetDiverged, match="the log reached"):
        flow.run_once()
    return _repaired(stage, flow)


@row(
    "50c",
    "target topic made anew, filled again by policy; kill -9 as that is told",
    "admin; failpoint incident-written",
    "filled from bronze; " + EQUAL,
)
def refilling_dies(stage: Stage) -> None:
    flow = stage.begun("refill", target={"on_topic_deleted": "recreate"})
    flow.run_once()
    stage.delete("shaky", target_name(flow))
    stage.crash(flow, "incident-written:1:kill-driver")
    flow.run_once()
    stage.expect_same(flow, incidents=["target_topic_remade"])


@contextlib.contextmanager
def _put_back(stage: Stage, name: str, topic: str) -> Iterator[None]:
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


def _repaired(stage: Stage, flow: Flow) -> str:
    code, said = finish(flow.command("repair", "-c", str(flow.write()), "--target", "shaky", "--apply"))
    assert code == 0, f"repair: exit {code}: {said[-1000:]}"
    stage.more(flow.topics[0], 100, 5000)
    flow.run_once()
    stage.expect_same(flow, incidents=["target_diverged"])
    return "repaired"


@row(
    "52",
    "target knows no idempotent producers",
    "proxy: InitProducerId taken out of what the broker says it knows",
    "exit 3, named; nothing sent; goes on after the fix",
)
def no_idempotence(stage: Stage) -> str:
    flow = stage.begun("plain")
    before, begun = stage.ends("shaky", target_name(flow)), time.monotonic()
    stage.proxy.set(NO_IDEMPOTENCE)
    code, said = finish(flow.start("--once"))
    assert code == 3, f"{code}: {said[-1500:]}"
    assert "Traceback" not in said, said[-1500:]
    assert "next:" in said, said[-1500:]
    assert "dempoten" in said, said[-1500:]
    assert stage.ends("shaky", target_name(flow)) == before, "something was sent"
    seconds = time.monotonic() - begun
    stage.proxy.set(PASS)
    flow.run_once()
    stage.expect_same(flow)
    return f"exit {code} after {seconds:.0f} s: {' '.join(said.split())[-300:]}"


@row("54", "one of two targets down when the runner starts", "proxy: refuse", "the other gets its records")
def down_at_start(stage: Stage) -> None:
    topic = stage.topic("down")
    flow = stage.flow(topic, ["shaky", "hubs"])
    flow.run_once()
    stage.proxy.set(REFUSE)
    stage.more(topic, 500)
    with stage.running(flow) as running:
        stage.caught_up(flow, "hubs", running=running, seconds=60)
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running, seconds=60)
    stage.expect_same(flow)


@row(
    "56",
    "source goes back in time",
    "its partitions' folders put back, broker stopped",
    "stops (4), log_truncated in incidents",
)
def source_rewound(stage: Stage) -> None:
    topic = stage.topic("past")
    flow = stage.flow(topic)
    with _put_back(stage, "source", topic):
        stage.more(topic, 500)
        flow.run_once()
    with pytest.raises(SourceLoss, match="log_truncated"):
        flow.run_once()
    stage.expect_incidents(flow, ["log_truncated"])


@row(
    "56b",
    "unclean leader election at the source",
    "3 brokers: the follower stops, records come, the leader is killed, the follower leads",
    "stops (4), the lost range in incidents as log_truncated",
)
def unclean_election(stage: Stage) -> str:
    with _trio(stage) as trio:
        return _elect_uncleanly(stage, trio, then=0)


@row(
    "56c",
    "unclean leader election at the source, which grows past what was read",
    "as 56b, then more records than were lost, before the next look",
    "stops (4), the lost range in incidents as log_truncated, though all offsets are there again",
)
def unclean_election_and_growth(stage: Stage) -> str:
    with _trio(stage) as trio:
        return _elect_uncleanly(stage, trio, then=100)


@contextlib.contextmanager
def _trio(stage: Stage) -> Iterator[LabCluster]:
    spec = ClusterSpec("trio", brokers=3, config={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})
    try:
        yield stage.lab.up([spec])["trio"]
    finally:
        stage.lab.down(["trio"])


def _elect_uncleanly(stage: Stage, trio: LabCluster, then: int) -> str:
    topic, admin = f"unclean-{then}-{os.getpid()}", stage.records.cluster("trio").admin
    admin.create_topics([NewTopic(topic, num_partitions=1, replica_assignment=[[0, 1]])])[topic].result()
    flow = stage.flow(topic, source="trio")
    stage.records.send("trio", topic, stage.records.numbered(100), acks="all")
    trio.kill_broker(1)
    one = {"acks": "1", "enable.idempotence": False}
    stage.records.send("trio", topic, stage.records.numbered(50, 1, 100), **one)
    # Nobody may read them before the follower is given up: until then they are on one broker only.
    wait_until(lambda: _end_of(stage, topic) == 150, "the records that only the leader has")
    flow.run_once()
    trio.kill_broker(0)
    trio.start_broker(1)
    wait_until(lambda: _leader(admin, topic) == 1, "the unclean election")
    stage.records.send("trio", topic, stage.records.numbered(then, 1, 500), **one)
    with pytest.raises(SourceLoss, match="log_truncated"):
        flow.run_once()
    lost = [(row["kind"], row["first_offset"], row["last_offset"]) for row in flow.rows("ops.incidents")]
    assert lost == [("log_truncated", 100, 149)], lost
    return "offsets 100-149 are in bronze and on the target; the source has them no more"


def _end_of(stage: Stage, topic: str) -> int:
    at = TopicPartition(topic, 0)
    return patiently(lambda: stage.records.cluster("trio").log_ends([at])[at])


def _leader(admin: AdminClient, topic: str) -> int:
    return int(admin.list_topics(topic, timeout=5).topics[topic].partitions[0].leader)


@row(
    "57",
    "a million records wait for a dead target",
    "proxy: refuse; a second target; `--waiting 10000000` for ten",
    "the other has them all; memory stays bounded; on return all in order, each once",
)
def waiting(stage: Stage) -> str:
    topic = stage.topic("waiting", partitions=4, count=4)
    flow = stage.flow(topic, ["shaky", "hubs"])
    command = flow.start()
    try:
        for target in flow.targets:
            stage.caught_up(flow, target, seconds=120)
        stage.proxy.set(REFUSE)
        peak = _Peak(command.pid)
        stage.load(topic, stage.waiting_records, 4)
        stage.caught_up(flow, "hubs", seconds=900)
        before = peak.mib()
        stage.proxy.set(PASS)
        stage.caught_up(flow, seconds=900)
        after = peak.mib()
    finally:
        command.send_signal(signal.SIGTERM)
        code, said = finish(command)
    assert code == 0, said[-1500:]
    stage.expect_same_stream(topic)
    assert max(before, after) < WAITING_MIB, f"{before} MiB while they waited, {after} MiB while they were sent"
    return f"{stage.waiting_records:,} records; at most {before:,} MiB while they waited, {after:,} MiB to the end"


WAITING_MIB = 5000  # of all processes of a runner whose Java heap is bounded to 2 GiB, however many records wait


class _Peak:
    """The most memory that a process and its children had together, while looked at."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most = pid, 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while Path(f"/proc/{self._pid}").exists():
                self._most = max(self._most, sum(map(_resident_kib, [self._pid, *children(self._pid)])))
                time.sleep(0.5)

    def mib(self) -> int:
        return self._most // 1024


def _resident_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
    return 0


# --- beyond the matrix ---


@row(
    "E1", "target topic holds unknown records, policy stop", "records before the first run", "stops (4) before it sends"
)
def existing_stop(stage: Stage) -> None:
    flow = _existing(stage, "stop")
    with pytest.raises(ExistingRecords):
        flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == 5


@row(
    "E2",
    "target topic holds unknown records, policy append",
    "records before the first run; killed at acknowledged",
    "all are sent beside them, once",
)
def existing_append(stage: Stage) -> None:
    flow = _existing(stage, "append")
    stage.crash(flow, "acknowledged:1:kill-driver")
    flow.run_once()
    assert _values(stage, flow) == [b"theirs"] * 5 + [b"value-%d" % n for n in range(100)]


@row(
    "E3",
    "target topic holds unknown records, policy latest",
    "records before the first run",
    "only what comes from now on is sent",
)
def existing_latest(stage: Stage) -> None:
    flow = _existing(stage, "latest")
    flow.run_once()
    stage.send(flow.topics[0], stage.records.numbered(50, 1, 100))
    flow.run_once()
    assert _values(stage, flow) == [b"theirs"] * 5 + [b"value-%d" % n for n in range(100, 150)]


def _existing(stage: Stage, policy: str) -> Flow:
    topic = stage.topic("existing", partitions=1, count=100)
    stage.records.create("shaky", f"source.{topic}", 1)
    stage.send(f"source.{topic}", [Record(b"theirs")] * 5, "shaky")
    return stage.flow(topic, target={"existing_records": policy})


@row(
    "E4",
    "somebody else writes to the target topic meanwhile",
    "a producer of its own, and a kill at acknowledged",
    "ours each once and in order among theirs",
)
def foreign_writer(stage: Stage) -> None:
    flow = stage.begun("foreign")
    stage.crash(flow, "acknowledged:1:kill-driver")
    stage.send(target_name(flow), [Record(b"theirs")] * 5, "shaky")
    flow.run_once()
    stage.send(target_name(flow), [Record(b"theirs")] * 5, "shaky")
    stage.more(flow.topics[0], 300, 2200)
    flow.run_once()
    got = stage.records.read("shaky", target_name(flow))
    for number, want in stage.records.read("source", flow.topics[0]).items():
        assert [record for record in got[number] if record.value != b"theirs"] == want, f"partition {number}"


BY_SLUG = {slug(f"{row.number} {row.name}"): row for row in ROWS}
