"""33-41: what records can be, and what clusters do with them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from checker import THINNED, expect_equal
from confluent_kafka import Producer
from stage import Flow, Record, Stage, Trap, finish, target_name, wait_until

from mirrorlake.errors import (
    Undeliverable,
)
from mirrorlake.records import TopicPartition
from rows.common import EQUAL, bulk, direct_or_not, row, values


def transactional(stage: Stage, topic: str, name: str) -> Producer:
    producer = Producer({**direct_or_not(stage, "source"), "transactional.id": f"{name}-{topic}", "linger.ms": 5})
    producer.init_transactions(20)
    return producer


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
    assert values(stage, flow) == want
    producer.commit_transaction(20)
    flow.run_once()
    assert values(stage, flow) == [*want, b"open"]
    stage.expect_same(flow)


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
    assert values(stage, flow) == [b"value-%d" % n for n in range(20)]
    transactional(stage, topic, "h")  # a new producer of that name: the broker aborts the old one's transaction
    time.sleep(1)
    flow.run_once()
    assert values(stage, flow) == [b"value-%d" % n for n in range(30)]
    stage.expect_same(flow)


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
    stage.expect_same(fresh)
    stage.expect_accounts(flow, on_target=THINNED)  # whose topic compacts as the source's does
    stage.expect_audit(flow, ["compacted_away"])
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
    as_it_is = {"configs": {"enabled": False}}  # the source's topic does not compact
    flow = stage.flow(topic, fanout={"producer": {"batch.size": "3000"}}, target=as_it_is)
    stage.crash(flow, "acknowledged:1:kill-driver")
    ends = stage.ends("shaky", target_name(flow))
    wait_until(lambda: _left(stage, flow) < ends, "the cleaner")
    _await_quiet(lambda: _left(stage, flow))
    left = _left(stage, flow)
    stage.send(topic, _versions(range(500, 600), 7))
    flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == stage.ends("source", topic)
    last = {record.key: record for record in stage.records.read("source", topic)[0]}
    assert {record.key: record for record in stage.records.read("shaky", target_name(flow))[0]} == last
    stage.expect_accounts(flow, on_target=THINNED)
    stage.expect_incidents(flow, [])
    return f"{left} of {ends} records were left when it recovered"


def _left(stage: Stage, flow: Flow) -> int:
    return len(stage.records.read("shaky", target_name(flow))[0])


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
    stage.expect_accounts(flow, on_target=THINNED)
    stage.expect_incidents(flow, [])


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
    flow.run_once()
    stage.expect_accounts(flow, on_target=THINNED)
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
        assert values(stage, flow) == [b"value-%d" % n for n in range(10)]
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
    stage.expect_accounts(flow)
    stage.expect_audit(flow, ["skipped"])


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
    trap = Trap(flow, "repair-sent:1:kill")
    for environment, expected in ((trap.environment, -9), ({}, 0)):
        code, said = finish(flow.command(*repair, environment=environment))
        assert code == expected, f"{code}: {said[-1000:]}"
        trap.expect_met(said)
        _expect_late(stage, flow, 10)
    flow.run_once()
    _expect_late(stage, flow, 10)
    stage.expect_accounts(flow)
    stage.expect_audit(flow, ["skipped"])
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
    assert f"{topic}[0]" in said, f"the partition is not named: {said[-1000:]}"
    assert "offset 100" in said, f"the offset is not named: {said[-1000:]}"
    assert len(values(stage, flow)) == 100
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
    assert values(stage, flow) == [b"value-%d" % n for n in range(10)]
    stage.expect_accounts(flow, all_due=False)


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
