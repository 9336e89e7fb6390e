"""A real Spark cluster on this machine: a master and workers, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mirrorlake.errors import ClusterUnreachable
from mirrorlake.lab.processes import Process, stop, wait_until
from mirrorlake.lab.settings import HOST, free_ports

DEPLOY = "org.apache.spark.deploy"
READY_SECONDS = 60
_REGISTERED = re.compile(r"Registering worker (\S+)")


@contextlib.contextmanager
def standalone(folder: Path, workers: int, drivers: int = 1) -> Iterator[dict[str, str]]:
    """Settings for `runner.spark` of a flow that runs there: an executor with one core on each worker.

    There is room for so many drivers at once; others wait.
    """
    port, page = free_ports(2)
    address = f"spark://{HOST}:{port}"
    processes = [_launch(folder / "master", "master.Master", "--port", str(port), "--webui-port", str(page))]
    try:
        for number in range(workers):
            home = folder / f"worker-{number}"
            given = [
                "--cores",
                str(drivers),
                "--memory",
                f"{drivers}g",
                "--work-dir",
                str(home),
                "--webui-port",
                "0",
                address,
            ]
            processes.append(_launch(home, "worker.Worker", *given))
        _await_workers(folder / "master" / "output.txt", workers)
        yield settings(address, workers)
    finally:
        stop(processes, 10)


def settings(address: str, executors: int) -> dict[str, str]:
    return {
        "spark.master": address,
        "spark.cores.max": str(executors),
        "spark.driver.host": HOST,
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _launch(home: Path, role: str, *given: str) -> Process:
    import pyspark

    home.mkdir(parents=True)
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"{DEPLOY}.{role}", "--host", HOST, *given]
    return Process.start(command, home / "output.txt", home / "process.json")


def _await_workers(said: Path, workers: int) -> None:
    if not wait_until(lambda: len(_registered(said.read_text())) >= workers, READY_SECONDS):
        raise ClusterUnreachable(f"Spark's workers did not register within {READY_SECONDS} s", f"see {said}")


def _registered(said: str) -> set[str]:
    """By address: one that had no answer in time registers again, and would count for one that is not there."""
    return set(_REGISTERED.findall(said))
