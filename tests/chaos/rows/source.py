"""28-32: the source changes while it is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from checker import expect_equal
from proxy import BLACKHOLE, PASS
from stage import Flow, Stage, Trap, finish, standing, target_name, wait_until, wake

from mirrorlake.errors import (
    DataAtRisk,
    SourceLoss,
)
from rows.common import EQUAL, incidents, row, source_proxy


@row("28", "retention overtakes the reader, policy stop", "delete-records", "stops (4), the exact range in incidents")
def retention_stop(stage: Stage) -> None:
    flow = _overtaken(stage, "stop")
    with pytest.raises(SourceLoss, match="offsets 100-149"):
        flow.run_once()
    assert incidents(flow) == [("retention", 0, 100, 149)]


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
    assert incidents(flow) == [("retention", 0, 100, 149)]
    _expect_all_but_the_overtaken(stage, flow)


def _expect_all_but_the_overtaken(stage: Stage, flow: Flow) -> None:
    got, want = stage.records.read("shaky", target_name(flow)), stage.records.numbered(1200, 2)
    expect_equal({0: want[0:200:2] + want[300::2], 1: want[1::2]}, got, flow.topics[0])
    stage.expect_accounts(flow)
    stage.expect_audit(flow)


def _overtaken(stage: Stage, policy: str) -> Flow:
    topic = stage.topic("retention")
    flow = stage.flow(topic, on_source_loss=policy)
    flow.run_once()
    stage.more(topic, 1000)
    stage.drop_before(topic, 150)
    return flow


def _killed_after_retention(failpoint: str) -> Callable[[Stage], str | None]:
    def run(stage: Stage) -> None:
        flow = _overtaken(stage, "continue")
        stage.crash(flow, failpoint)
        flow.run_once()
        flow.run_once()
        assert set(incidents(flow)) == {("retention", 0, 100, 149)}, incidents(flow)
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
    assert incidents(flow) == [("retention", 0, 100, 149)]


@row("29", "source topic deleted while it is read", "admin", "stops (4), the topic named in incidents")
def topic_deleted(stage: Stage) -> str:
    topic = stage.topic("deleted")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.delete("source", topic)
        said = running.ended_with(DataAtRisk, 90)
    stage.expect_incidents(flow, ["topic_deleted"])
    stage.expect_accounts(flow, source=False)
    return said.splitlines()[0][:100]


@row(
    "30",
    "source topic made anew, longer than before",
    "admin, while it is read",
    "stops (4) by topic id; both kept apart",
)
def topic_made_anew(stage: Stage) -> None:
    """The reader cannot look in between, when there is no topic: that would be row 29."""
    proxy, topic = source_proxy(stage), stage.topic("anew")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        proxy.set(BLACKHOLE)
        stage.delete("source", topic)
        stage.records.create("source", topic, 2)
        stage.more(topic, 600, 1000)
        proxy.set(PASS)
        running.ended_with(DataAtRisk, 90)
    _expect_recreated(flow, by_runs=1)
    flow.options["on_source_loss"] = "continue"
    flow.run_once()
    flow.run_once()
    _expect_recreated(flow, by_runs=2)
    _expect_old_and_new(stage, flow)


@row(
    "30e",
    "source topic made anew, longer than before, while a batch of it is read",
    "failpoint topics-known: the runner stands still meanwhile",
    "stops (4) by topic id, before any of it is in bronze as the old one; both kept apart",
)
def topic_made_anew_within_a_batch(stage: Stage) -> None:
    topic = stage.topic("within")
    flow = stage.flow(topic)
    flow.run_once()
    stage.more(topic, 100)
    trap = Trap(flow, "topics-known:1:stop")
    runner = flow.start("--once", environment=trap.environment)
    wait_until(lambda: standing(runner.pid), "a runner that stands still", 120)
    trap.expect_met()
    stage.delete("source", topic)
    stage.records.create("source", topic, 2)
    stage.more(topic, 600, 1000)
    wake(standing(runner.pid))
    code, said = finish(runner)
    assert code == 4, said[-1500:]
    _expect_recreated(flow, by_runs=1)
    flow.options["on_source_loss"] = "continue"
    flow.run_once()
    _expect_recreated(flow, by_runs=2)
    _expect_old_and_new(stage, flow)


def _expect_recreated(flow: Flow, by_runs: int) -> None:
    """For each partition our position alone, since the last sample saw nothing unread; said by each run that met it."""
    want = [("topic_recreated", number, 100, 100) for number in range(2)] * by_runs
    assert sorted(incidents(flow)) == sorted(want), incidents(flow)


def _expect_old_and_new(stage: Stage, flow: Flow) -> None:
    want = stage.records.numbered(200, 2) + stage.records.numbered(600, 2, 1000)
    got = stage.records.read("shaky", target_name(flow))
    expect_equal({0: want[0::2], 1: want[1::2]}, got, f"{flow.topics[0]}, old and new")
    stage.expect_accounts(flow)
    stage.expect_audit(flow, ["source_gone"])


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
        assert {(kind, number) for kind, number, *_ in incidents(flow)} == {("topic_recreated", n) for n in range(2)}
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
    stage.expect_same(flow)
