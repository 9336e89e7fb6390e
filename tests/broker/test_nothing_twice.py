"""Promise D: after `kill -9` of any process of a runner at any instant, the target holds each record once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Flow, Records, by_partition, finish

from mirrorlake.failpoints import EVERY_RUN

# In a worker `kill` ends the worker: the runner recovers by itself. Everywhere `kill-driver` ends the runner.
DRIVER_DIES = [*(f"{point}:1:kill-driver" for point in EVERY_RUN), "batch-sent:2:kill-driver"]
WORKER_DIES = ["batch-sent:1:kill", "acknowledged:1:kill", "proven:1:kill"]


@pytest.fixture
def flow(make_flow: Callable[..., Flow], records: Records, topic: str) -> Flow:
    """Some records are relayed already, so that a crash meets a ledger with content."""
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(200, 2))
    flow = make_flow([topic], ingest={"max_records_per_batch": 600})
    flow.run_once()
    records.send("source", topic, records.numbered(2000, 2, first=200))
    return flow


def expect_each_record_once(flow: Flow, records: Records, topic: str) -> None:
    assert records.read("target", f"source.{topic}") == by_partition(records.numbered(2200, 2))
    report = flow.audit()
    assert report.ok, report.findings
    assert not flow.rows("ops.incidents")


def start_to_die(flow: Flow, failpoint: str) -> tuple[int, str]:
    """How a runner ended that met a failpoint: where no process met it, nothing is tested."""
    mark = flow.folder / "met"
    environment = {"MIRRORLAKE_FAIL": failpoint, "MIRRORLAKE_FAIL_MARK": str(mark)}
    code, said = finish(flow.start("--once", environment=environment))
    assert mark.exists(), f"no process met {failpoint}: {said}"
    return code, said


@pytest.mark.parametrize("failpoint", DRIVER_DIES)
def test_the_runner_is_killed(flow: Flow, records: Records, topic: str, failpoint: str) -> None:
    code, said = start_to_die(flow, failpoint)
    assert code == -9, said
    flow.run_once()
    expect_each_record_once(flow, records, topic)


@pytest.mark.parametrize("failpoint", WORKER_DIES)
def test_a_python_worker_is_killed_and_the_runner_recovers(
    flow: Flow, records: Records, topic: str, failpoint: str
) -> None:
    code, _said = start_to_die(flow, failpoint)
    if code != 0:
        # Every new worker dies at its first hit, so the runner may lose patience; it must still have lost nothing.
        flow.run_once()
    expect_each_record_once(flow, records, topic)
