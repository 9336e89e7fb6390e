"""The same flow on a standalone Spark cluster: a master and two workers, executors in processes of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from harness import Flow, Records, finish, wait_until

from mirrorlake.lab.processes import Process, stop
from mirrorlake.lab.settings import free_ports

HOST = "127.0.0.1"
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
PARTITIONS = 4


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master that has two workers with a core each."""
    folder = tmp_path_factory.mktemp("standalone")
    port, page = free_ports(2)
    address = f"spark://{HOST}:{port}"
    deploy = "org.apache.spark.deploy"
    command = [f"{deploy}.master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(page)]
    processes = [launch(folder / "master", command)]
    for number in range(2):
        home = folder / f"worker-{number}"
        worker = [f"{deploy}.worker.Worker", "--host", HOST, "--cores", "1", "--memory", "1g", "--work-dir", str(home)]
        processes.append(launch(home, [*worker, "--webui-port", "0", address]))
    try:
        said = folder / "master" / "output.txt"
        wait_until(lambda: said.read_text().count("Registering worker") == 2, "two workers")
        yield address
    finally:
        stop(processes, 10)


def launch(home: Path, command: list[str]) -> Process:
    home.mkdir()
    return Process.start([str(SPARK_CLASS), *command], home / "output.txt", home / "process.json")


@pytest.fixture
def flow(make_flow: Callable[..., Flow], records: Records, topic: str, master: str) -> Flow:
    records.create("source", topic, PARTITIONS)
    records.send("source", topic, records.numbered(2000, PARTITIONS))
    flow = make_flow([topic], ["target", "hubs"])
    flow.runner["spark"] = {
        "spark.master": master,
        "spark.driver.host": HOST,
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return flow


def test_order_and_exactness_hold_on_two_executors_also_after_a_kill(flow: Flow, records: Records) -> None:
    code, said = finish(flow.start("--once", environment={"MIRRORLAKE_FAIL": "settled:1:kill-driver"}), 180)
    assert code == -9, said[-2000:]
    topic = flow.topics[0]
    records.send("source", topic, records.numbered(500, PARTITIONS, 2000))
    code, said = finish(flow.start("--once"), 180)
    assert code == 0, said[-2000:]
    want = records.read("source", topic)
    for target in flow.targets:
        assert records.read(target, f"source.{topic}") == want
    assert flow.audit().ok
    assert not flow.rows("ops.incidents")
