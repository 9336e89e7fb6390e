"""Order and exactness on a standalone Spark cluster: a master and two workers, executors in processes of their own.

The tests are those of `test_in_order` and `test_nothing_twice`; what differs is where the tasks run.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import pytest
import test_in_order as in_order
import test_nothing_twice as nothing_twice
import yaml
from harness import Command, Flow, Records, finish, wait_until
from pyspark.sql import SparkSession

from mirrorlake.config import load, parse
from mirrorlake.lab import Lab
from mirrorlake.lab.standalone import standalone
from mirrorlake.runner import Run
from mirrorlake.session import on_workers
from mirrorlake.world import spark_session

PARTITIONS = 4
WORKERS = 2
# The shared session, the runner of a test, and what is left of one that was killed.
DRIVERS = 3
# What a configuration must have; the session is made before there is a flow.
NO_FLOW = {
    "clusters": {name: {"bootstrap_servers": f"{name}:1"} for name in "ab"},
    "flows": {"f": {"source": "a", "topics": ["t"], "targets": [{"cluster": "b"}]}},
}
Result = TypeVar("Result")

# Where the runner dies; a worker on an executor does not know it, and so cannot end it.
DRIVER_DIES = ["bronze-committed:1:kill-driver"]
# Where a task fails, with its process or without: Spark runs it again, which it does on a cluster only.
TASK_FAILS = ["proven:1:kill", "acknowledged:1:raise"]
# As brokers of the tests: executors carry little, so the second compiler tier would not pay.
QUICKLY = {"spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


# --- in the process that holds the session ---


@functools.cache
def session(configuration: str, root: Path) -> SparkSession:
    """Made as a runner makes it, and kept for the tests that follow, as the local one is."""
    return spark_session(parse(configuration, "spark"), root)


def in_session(configuration: str, root: Path, work: Callable[..., Result], *given: Any) -> Result:
    return work(session(configuration, root), *given)


def run_once(spark: SparkSession, path: Path) -> None:
    Run(load(path), once=True, spark=spark)()


def sql(spark: SparkSession, text: str) -> None:
    spark.sql(text)


def version(spark: SparkSession) -> str:
    return spark.version


def places(spark: SparkSession) -> set[str]:
    """Folders in which tasks run: an executor's is below that of its worker."""

    def place(_task: int) -> list[str]:
        time.sleep(0.2)  # long enough for the other executor to get one too
        return [os.getcwd()]

    return set(on_workers(spark, range(2 * WORKERS), place))


# --- here ---


@dataclass(frozen=True)
class SessionThere:
    """A session on the cluster, in another process: this one may have the local session, and cannot have two."""

    process: Executor
    configuration: str
    root: Path

    def __call__(self, work: Callable[..., Result], *given: Any) -> Result:
        return self.process.submit(in_session, self.configuration, self.root, work, *given).result()

    def sql(self, text: str) -> None:
        self(sql, text)


@dataclass
class FlowThere(Flow):
    """A flow whose runs have their tasks on the cluster."""

    cluster: Mapping[str, str] = field(default_factory=dict)

    def run_once(self) -> None:
        there: Any = self.spark
        there(run_once, self.write())

    def start(self, *arguments: str, environment: dict[str, str] | None = None) -> Command:
        on_executors = {f"spark.executorEnv.{name}": value for name, value in (environment or {}).items()}
        self.runner["spark"] = {**self.cluster, **on_executors}
        return super().start(*arguments, environment=environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    with standalone(folder, WORKERS, DRIVERS) as settings:
        yield {**settings, **QUICKLY}


@pytest.fixture(scope="module")
def spark(cluster: Mapping[str, str], folder: Path) -> Iterator[SessionThere]:
    """In the place of the local session."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        configuration = {**NO_FLOW, "runner": {"spark": dict(cluster)}}
        there = SessionThere(process, yaml.safe_dump(configuration), folder / "driver")
        there(version)  # its start is not a test's time
        yield there
        there(SparkSession.stop)


@pytest.fixture
def make_flow(tmp_path: Path, lab: Lab, spark: Any, cluster: dict[str, str]) -> Callable[..., Flow]:
    def make(topics: list[str], targets: list[str] | None = None, **options: object) -> Flow:
        return FlowThere(tmp_path, lab, spark, topics, targets or ["target"], dict(options), cluster=cluster)

    return make


@pytest.fixture
def topic(topic: str) -> str:
    """Not the one of the same test elsewhere, which has the same clusters."""
    return f"{topic}-there"


def test_tasks_run_on_executors_of_both_workers(spark: SessionThere, folder: Path) -> None:
    workers = {folder / f"worker-{number}" for number in range(WORKERS)}

    def found() -> set[Path]:
        return {Path(place).parents[1] for place in spark(places)}

    wait_until(lambda: found() == workers, "executors on both workers")


# --- order: after several commits, OPTIMIZE, restarts, and for a target that comes to a full table ---

test_a_new_target_gets_a_compacted_table_in_order = in_order.test_a_new_target_gets_a_compacted_table_in_order
test_several_ingest_commits_in_one_fan_out_round = in_order.test_several_ingest_commits_in_one_fan_out_round


# --- each record once: after the end of a driver, of a worker, of a task ---

flow = nothing_twice.flow


@pytest.mark.parametrize("failpoint", DRIVER_DIES)
def test_the_runner_is_killed(flow: Flow, records: Records, topic: str, failpoint: str) -> None:
    nothing_twice.test_the_runner_is_killed(flow, records, topic, failpoint)


@pytest.mark.parametrize("failpoint", TASK_FAILS)
def test_a_task_fails_and_the_runner_recovers(flow: Flow, records: Records, topic: str, failpoint: str) -> None:
    nothing_twice.test_a_python_worker_is_killed_and_the_runner_recovers(flow, records, topic, failpoint)
    said = (flow.root / "logs" / "spark.log").read_text()
    assert re.search(r"Lost task .* executor \d", said), "no task failed there"
    assert "task attempt 1: an earlier attempt may have sent records" in said, "Spark ran none again, or it was let in"


def test_order_and_exactness_hold_on_two_executors_also_after_a_kill(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic, PARTITIONS)
    records.send("source", topic, records.numbered(2000, PARTITIONS))
    flow = make_flow([topic], ["target", "hubs"])
    code, said = finish(flow.start("--once", environment={"MIRRORLAKE_FAIL": "settled:1:kill-driver"}), 180)
    assert code == -9, said[-2000:]
    records.send("source", topic, records.numbered(500, PARTITIONS, 2000))
    code, said = finish(flow.start("--once"), 180)
    assert code == 0, said[-2000:]
    want = records.read("source", topic)
    for target in flow.targets:
        assert records.read(target, f"source.{topic}") == want
    assert flow.audit().ok
    assert not flow.rows("ops.incidents")
