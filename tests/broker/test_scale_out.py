"""The same flow on a standalone Spark cluster: a master and two workers, executors in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from harness import Flow, Records, finish

from mirrorlake.lab.standalone import standalone

PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Settings for a master that has two workers with a core each."""
    with standalone(tmp_path_factory.mktemp("standalone"), workers=2) as settings:
        yield settings


@pytest.fixture
def flow(make_flow: Callable[..., Flow], records: Records, topic: str, cluster: dict[str, str]) -> Flow:
    records.create("source", topic, PARTITIONS)
    records.send("source", topic, records.numbered(2000, PARTITIONS))
    flow = make_flow([topic], ["target", "hubs"])
    flow.runner["spark"] = cluster
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
