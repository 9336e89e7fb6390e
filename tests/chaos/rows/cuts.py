"""56: sources whose logs are cut below what was read, and go on with other records under the same offsets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import NewTopic
from stage import Flow, Record, Stage, expect_equal, patiently, source_of, target_name, wait_until

from mirrorlake.errors import SourceLoss
from mirrorlake.lab import LabCluster
from mirrorlake.records import TopicPartition
from rows.common import incidents, leader_of, put_back, row, trio

Logs = dict[int, list[Record]]
ALONE = {"acks": "1", "enable.idempotence": False}
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
GOES_ON = "goes on by policy: what was lost stays on the target, what comes after the cut follows it, each once"


@row(
    "56",
    "source goes back in time",
    "its partitions' folders put back, broker stopped",
    "stops (4), log_truncated in incidents",
)
def source_rewound(stage: Stage) -> None:
    flow, _ = _rewound(stage)
    with pytest.raises(SourceLoss, match="log_truncated"):
        flow.run_once()
    stage.expect_incidents(flow, ["log_truncated"])
    stage.expect_accounts(flow, source=False)


def _rewound(stage: Stage) -> tuple[Flow, Logs]:
    """A flow that has read 700 records of a source that has 200 now, and what those were."""
    topic = stage.topic("past")
    flow = stage.flow(topic)
    with put_back(stage, "source", topic):
        stage.more(topic, 500)
        flow.run_once()
        before = stage.records.read("source", topic)
    return flow, before


@row(
    "56b",
    "unclean leader election at the source",
    "3 brokers: the follower stops, records come, the leader is killed, the follower leads",
    "stops (4), the lost range in incidents as log_truncated",
)
def unclean_election(stage: Stage) -> str:
    with _elected(stage, then=0) as (flow, _):
        return _stops(stage, flow)


@row(
    "56c",
    "unclean leader election at the source, which grows past what was read",
    "as 56b, then more records than were lost, before the next look",
    "stops (4), the lost range in incidents as log_truncated, though all offsets are there again",
)
def unclean_election_and_growth(stage: Stage) -> str:
    with _elected(stage, then=100) as (flow, _):
        return _stops(stage, flow)


def _stops(stage: Stage, flow: Flow) -> str:
    with pytest.raises(SourceLoss, match="log_truncated"):
        flow.run_once()
    assert incidents(flow) == [("log_truncated", 0, 100, 149)], incidents(flow)
    stage.expect_accounts(flow, source=False)
    return "offsets 100-149 are in bronze and on the target; the source has them no more"


@row(
    "56k",
    "unclean leader election at the source, which grows again, but not as far as what was read",
    "as 56b, then fewer records than were lost, before the next look",
    "stops (4), the lost range in incidents as log_truncated, from the cut on and not from the log's end",
)
def unclean_election_and_some_growth(stage: Stage) -> str:
    with _elected(stage, then=20) as (flow, _):
        return _stops(stage, flow)


@row("56d", "unclean leader election at the source, policy continue", "as 56b, then records come again", GOES_ON)
def branch_after_election(stage: Stage) -> None:
    with _elected(stage, then=0, on_source_loss="continue") as (flow, before):
        flow.run_once()
        stage.records.send(source_of(flow), flow.topics[0], stage.records.numbered(80, 1, 500), **ALONE)
        flow.run_once()
        _expect_branch(stage, flow, before, cut=100)


@row(
    "56e",
    "unclean leader election at the source, which grows past what was read, policy continue",
    "as 56c, while the flow runs",
    GOES_ON,
)
def branch_after_growth(stage: Stage) -> None:
    with _elected(stage, then=100, on_source_loss="continue") as (flow, before):
        with stage.running(flow):
            wait_until(lambda: stage.records.arrived("shaky", target_name(flow), 250), "what came after the cut", 90)
        _expect_branch(stage, flow, before, cut=100)


@contextlib.contextmanager
def _elected(stage: Stage, then: int, **options: str) -> Iterator[tuple[Flow, Logs]]:
    """A flow that has read 150 records of a source which lost the last 50 and got others, and what those were."""
    with trio(stage, UNCLEAN) as three:
        topic, admin = f"unclean-{then}-{len(options)}-{os.getpid()}", stage.records.cluster(three.name).admin
        admin.create_topics([NewTopic(topic, num_partitions=1, replica_assignment=[[0, 1]])])[topic].result()
        flow = stage.flow(topic, source=three.name, **options)
        stage.records.send(three.name, topic, stage.records.numbered(100), acks="all")
        three.kill_broker(1)
        stage.records.send(three.name, topic, stage.records.numbered(50, 1, 100), **ALONE)
        # Nobody may read them before the follower is given up: until then they are on one broker only.
        wait_until(lambda: _end_of(stage, three, topic) == 150, "the records that only the leader has")
        flow.run_once()
        before = stage.records.read(three.name, topic)
        three.kill_broker(0)
        three.start_broker(1)
        wait_until(lambda: leader_of(three, topic) == 1, "the unclean election")
        stage.records.send(three.name, topic, stage.records.numbered(then, 1, 500), **ALONE)
        # Until the dead one is given up, clients are told that it may be the controller: a start waits for that.
        stage.records.clients.pop(three.name)  # it would go on asking the dead one
        yield flow, before


def _end_of(stage: Stage, three: LabCluster, topic: str) -> int:
    at = TopicPartition(topic, 0)
    return patiently(lambda: stage.records.cluster(three.name).log_ends([at])[at])


def _expect_branch(stage: Stage, flow: Flow, before: Logs, cut: int) -> None:
    """Of each partition: all that was read before, and after it what the source has from the cut on."""
    now = patiently(lambda: stage.records.read(source_of(flow), flow.topics[0]))
    copied = stage.records.read("shaky", target_name(flow))
    want = {number: held + now[number][cut:] for number, held in before.items()}
    expect_equal(want, copied, f"{flow.topics[0]}, {incidents(flow)}")
    assert {kind for kind, *_ in incidents(flow)} == {"log_truncated"}
    stage.expect_accounts(flow, source=False)
    stage.expect_audit(flow, ["source_gone"])
    ids = {entry["source_topic_id"] for entry in flow.rows("ops.ledger")}
    assert len(ids) >= 2, ids
    assert any("#" in topic_id for topic_id in ids), ids


def _branch_dies(failpoint: str) -> Callable[[Stage], str | None]:
    def run(stage: Stage) -> None:
        flow, before = _rewound(stage)
        flow.options["on_source_loss"] = "continue"
        stage.more(flow.topics[0], 100, 5000)
        stage.crash(flow, f"{failpoint}:1:kill-driver")
        flow.run_once()
        stage.more(flow.topics[0], 1000, 6000)
        flow.run_once()
        _expect_branch(stage, flow, before, cut=100)

    return run


for _number, _failpoint in (
    ("56f", "incident-written"),
    ("56g", "generation-claimed"),
    ("56h", "topic-ids-noted"),
    ("56i", "epochs-noted"),
    ("56j", "bronze-committed"),
):
    row(
        _number,
        f"source goes back in time, policy continue, kill -9 at {_failpoint}",
        "its partitions' folders put back; failpoint",
        GOES_ON,
    )(_branch_dies(_failpoint))
