"""1-16: kill -9 of a runner at every named point, at random, and of its other processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable

from proxy import PASS, THROTTLE
from stage import Command, Flow, Stage, Trap, children, command_of, finish, jvm_of, local_ports, terminate, wait_until

from rows.common import EQUAL, bulk, feeding, row

IN_ANY_RUN = {
    "1": "batch-begun:1", "1b": "row-group-written:1", "1c": "topics-known:1", "2": "file-written:1",
    "2b": "files-fetched:1", "3": "bronze-committed:1", "4": "batch-sent:1", "5": "all-sent:1", "6": "acknowledged:1",
    "7": "proven:1", "8": "settled:1", "9": "ledger-before-commit:1", "10": "ledger-after-commit:1",
    "11": "batch-sent:2", "11b": "first-acknowledged:1",
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


@row("12d", "kill -9 as the ledger joins its files", "failpoint ledger-rewritten; many small commits")
def compacting_dies(stage: Stage) -> None:
    topic = stage.topic("joining")
    flow = stage.flow(topic, ingest={"max_records_per_batch": 20}, runner={"ledger_commit_seconds": 0.01})
    trap = Trap(flow, "ledger-rewritten:1:kill-driver")
    runner = flow.start(environment=trap.environment)
    stage.more(topic, 3000)
    code, said = finish(runner, 180)
    trap.expect_met(said)
    assert code == -9, f"{code}: {said[-1500:]}"
    flow.run_once()
    stage.expect_same(flow)


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


# --- 15: at random ---

FED_PER_SECOND, LEAST_IN_TEN_MINUTES = 300, 100_000
BROKER = "broker"
KINDS = ("runner", "jvm", "worker", BROKER)


@row(
    "15",
    "random kill -9 of runner, JVM, worker or the target's broker",
    "loop, U(2, 12) s, each kind as often, while records come in",
)
def random_kills(stage: Stage) -> str:
    topic = stage.topic("random")
    flow = stage.flow(topic, ingest={"max_records_per_batch": 2000})
    killed: Counter[str] = Counter()
    deadline = time.monotonic() + stage.minutes * 60
    with feeding(stage, topic, FED_PER_SECOND):
        while time.monotonic() < deadline or len(killed) < len(KINDS):
            for kind in stage.random.sample(KINDS, len(KINDS)):
                _run_and_kill(stage, flow, kind)
                killed[kind] += 1
    flow.run_once()
    stage.expect_same(flow)
    records = stage.ends("source", topic)
    assert stage.minutes < 10 or records >= LEAST_IN_TEN_MINUTES, f"{records:,} records in {stage.minutes} minutes"
    return f"{records:,} records, killed {dict(killed)}"


def _run_and_kill(stage: Stage, flow: Flow, kind: str) -> None:
    """The runner dies too, at the same instant or later; its remains are the next runner's to outlive."""
    runner = flow.start()
    try:
        time.sleep(stage.random.uniform(2, 12))
        if kind == BROKER:
            _kill_and_start_broker(stage)
        else:
            _kill_process(stage, runner, kind)
        if kind in ("worker", BROKER):
            time.sleep(stage.random.uniform(0.5, 4))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner.pid, signal.SIGKILL)
        finish(runner, 60)


def _kill_and_start_broker(stage: Stage) -> None:
    stage.cluster().kill_broker(0)
    time.sleep(stage.random.uniform(0, 2))
    stage.cluster().start_broker(0)


def _kill_process(stage: Stage, runner: Command, kind: str) -> None:
    wait_until(lambda: _processes(runner, kind), f"a process to kill: {kind}")
    os.kill(stage.random.choice(_processes(runner, kind)), signal.SIGKILL)


def _processes(runner: Command, kind: str) -> list[int]:
    if kind == "runner":
        return [runner.pid]
    named = {"jvm": "SparkSubmit", "worker": "mirrorlake.daemon"}[kind]
    return [pid for pid in children(runner.pid) if named in command_of(pid)]


# --- 16: other processes of a runner ---


@row("16", "kill -9 of a Python worker at acknowledged", "failpoint in every new worker")
def worker_dies(stage: Stage) -> str:
    flow = stage.begun("worker")
    code, _ = stage.trapped(flow, "acknowledged:1:kill")
    flow.run_once()
    stage.expect_same(flow)
    return f"the runner ended with {code}"


@row("16b", "kill -9 of a worker under task retries", "local[2,4], failpoint batch-sent")
def worker_dies_with_retries(stage: Stage) -> str:
    """Every new worker dies where the last one did, so Spark gives a task up after its last attempt, and says so."""
    flow = stage.begun("retries", runner={"spark": {"spark.master": "local[2,4]"}})
    code, _ = stage.trapped(flow, "batch-sent:1:kill")
    logged = (flow.root / "logs" / "spark.log").read_text()
    assert "failed 4 times" in logged, f"Spark tried no task again: {logged[-1500:]}"
    flow.run_once()
    stage.expect_same(flow)
    return f"a task was tried 4 times; the runner ended with {code}"


@row("16c", "kill -9 of one worker while both send slowly", "SIGKILL by pid, target throttled", EQUAL + "; no restart")
def one_of_two_workers_dies(stage: Stage) -> str:
    topic = stage.topic("slow-workers")
    flow = stage.flow(topic)
    runner = flow.start()
    try:
        stage.caught_up(flow)
        stage.proxy.set(THROTTLE, bytes_per_second=150_000)
        stage.send(topic, bulk(3000))
        wait_until(lambda: len(_senders(stage, runner)) >= 2, "two workers in the middle of a request")
        senders = _senders(stage, runner)
        os.kill(stage.random.choice(senders), signal.SIGKILL)
        time.sleep(4)
        stage.proxy.set(PASS)
        stage.caught_up(flow, seconds=120)
        time.sleep(3)
    finally:
        code, said = terminate(runner)
    assert code == 0, said[-1500:]
    stage.expect_same(flow)
    return f"one of {len(senders)} workers that were in the middle of a request"


def _senders(stage: Stage, runner: Command) -> list[int]:
    """The workers of which the proxy has a part of a produce request."""
    ports = set(stage.proxy.sending_ports())
    return [pid for pid in _processes(runner, "worker") if ports & local_ports(pid)]


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
