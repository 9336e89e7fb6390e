"""E1-E4, beyond the matrix: target topics that hold or get the records of others."""

from __future__ import annotations

import pytest
from checker import expect_equal
from stage import Flow, Record, Stage, target_name

from mirrorlake.errors import (
    ExistingRecords,
)
from rows.common import row, values


@row(
    "E1", "target topic holds unknown records, policy stop", "records before the first run", "stops (4) before it sends"
)
def existing_stop(stage: Stage) -> None:
    flow = _existing(stage, "stop")
    with pytest.raises(ExistingRecords):
        flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == 5
    assert not stage.expect_accounts(flow, all_due=False).stands, "the ledger speaks of records that were not sent"


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
    _expect_beside_theirs(stage, flow)
    _expect_foreign(stage, flow)


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
    assert values(stage, flow) == [b"theirs"] * 5 + [b"value-%d" % n for n in range(100, 150)]
    stage.expect_accounts(flow)
    stage.expect_audit(flow, ["foreign", "before_start"])


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
    _expect_beside_theirs(stage, flow)
    _expect_foreign(stage, flow)


def _expect_beside_theirs(stage: Stage, flow: Flow) -> None:
    got = stage.records.read("shaky", target_name(flow))
    ours = {number: [record for record in log if record.value != b"theirs"] for number, log in got.items()}
    expect_equal(stage.records.read("source", flow.topics[0]), ours, flow.topics[0])


def _expect_foreign(stage: Stage, flow: Flow) -> None:
    stage.expect_accounts(flow)
    stage.expect_audit(flow, ["foreign"])
    stage.expect_incidents(flow, [])
