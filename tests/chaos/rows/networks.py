"""24-27: the network between the relay and the clusters."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

from checker import COPIED
from confluent_kafka import Producer
from proxy import (
    BLACKHOLE,
    DELAY,
    DELAYED,
    DROP_RESPONSE,
    DROPPED,
    HALF_CLOSE,
    HALF_CLOSES,
    HOLD,
    PASS,
    RESET,
    RESETS,
    STARVED,
    THROTTLE,
    THROTTLED,
)
from stage import Flow, Stage, direct, target_name, wait_until

from mirrorlake.records import TopicPartition
from rows.common import EQUAL, bulk, counted, row, source_proxy


@row("24", "acknowledgement lost, records landed", "proxy: drop-response, then reset")
def ack_lost(stage: Stage) -> str:
    topic = stage.topic("ack")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        for round_ in range(3):
            dropped, landed = stage.proxy.counts[DROPPED], stage.ends("shaky", target_name(flow))
            stage.proxy.set(DROP_RESPONSE)
            stage.more(topic, 500, 200 + 500 * round_)
            wait_until(partial(_is_dropping, stage, dropped), "a lost acknowledgement")
            # Some are there, and nobody knows. Not all need be: a later batch waits for the acknowledgement.
            wait_until(partial(_has_landed, stage, flow, landed), "records that landed")
            stage.proxy.set(PASS)
            stage.proxy.reset_all()
            time.sleep(1)
        stage.more(topic, 100, 1700)
        stage.caught_up(flow, running=running)
        time.sleep(1)
    stage.expect_same(flow)
    return f"{stage.proxy.counts[DROPPED]} answers lost"


def _is_dropping(stage: Stage, before: int) -> bool:
    return stage.proxy.counts[DROPPED] > before


def _has_landed(stage: Stage, flow: Flow, before: int) -> bool:
    return stage.ends("shaky", target_name(flow)) > before


@row("24b", "acknowledgement lost for longer than the time-out", "proxy: drop-response 12 s, delivery time-out 4 s")
def ack_lost_for_long(stage: Stage) -> None:
    topic = stage.topic("ack-long")
    flow = stage.flow(topic, fanout={"delivery_timeout_seconds": 4})
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with counted(stage.proxy, DROPPED):
            stage.proxy.set(DROP_RESPONSE)
            stage.more(topic, 1000)
            time.sleep(12)
        stage.proxy.set(PASS)
        stage.more(topic, 200, 1200)
        stage.caught_up(flow, running=running)
        time.sleep(3)
    stage.expect_same(flow)


@row(
    "24c",
    "a request that lands after recovery",
    "proxy: produce requests held, delivery time-out 4 s, then released",
    "cannot be excluded; the duplicates are listed exactly, order kept otherwise",
)
def late_landing(stage: Stage) -> str:
    topic = stage.topic("late")
    flow = stage.flow(topic, fanout={"delivery_timeout_seconds": 4})
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        stage.proxy.set(HOLD)
        stage.more(topic, 500)
        wait_until(stage.proxy.holds, "a request to hold")
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running)  # by new connections
        ends = stage.ends("shaky", target_name(flow))
        stage.proxy.release()
        wait_until(lambda: stage.ends("shaky", target_name(flow)) > ends, "the late landing", 20)
        stage.more(topic, 100, 700)
        want = stage.ends("source", topic) + stage.ends("shaky", target_name(flow)) - ends
        wait_until(lambda: stage.ends("shaky", target_name(flow)) >= want, "the rest")
        time.sleep(2)
    return _expect_listed_duplicates(stage, flow)


@row(
    "24d",
    "the first request to a new topic refused, those behind it taken",
    "proxy: produce request misspelt, 50 ms for each chunk; a record in each request",
    "a broker takes any number from a producer that is new to it, and librdkafka then calls the refused ones "
    "delivered: none may be behind the first; " + EQUAL,
)
def first_request_refused(stage: Stage) -> None:
    topic = stage.topic("first")
    flow = stage.flow(topic, fanout={"producer": {"batch.num.messages": "1"}})
    refused = stage.proxy.refuse_produce(target_name(flow))
    stage.proxy.set(DELAY, seconds=0.05)
    with stage.running(flow) as running, counted(stage.proxy, DELAYED):
        wait_until(refused.is_set, "a request that is refused")
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running)
    stage.expect_same(flow)


@row(
    "24e",
    "kill -9 while duplicates are listed",
    "copies of our records on the target; failpoint incident-written",
    "all are listed, by whoever lives to do so; order kept otherwise",
)
def listing_dies(stage: Stage) -> str:
    flow = stage.begun("listing")
    flow.run_once()
    _land_again(stage, target_name(flow), 5)
    stage.crash(flow, "incident-written:1:kill-driver")
    stage.more(flow.topics[0], 100, 2200)
    flow.run_once()
    return _expect_listed_duplicates(stage, flow)


def _land_again(stage: Stage, topic: str, count: int) -> None:
    """The newest records of each partition once more, header and all: as a late request would."""
    cluster, sender = stage.records.cluster("shaky"), Producer(direct(stage.cluster()))
    for at, end in cluster.log_ends(TopicPartition(topic, number) for number in range(2)).items():
        for message in list(cluster.read_range(at, end - count, end)):
            at_ms = message.timestamp()[1]
            sender.produce(
                topic, message.value(), message.key(), at.partition, timestamp=at_ms, headers=message.headers()
            )
    assert sender.flush(20) == 0


def _expect_listed_duplicates(stage: Stage, flow: Flow) -> str:
    sent, got = stage.records.read("source", flow.topics[0]), stage.records.read("shaky", target_name(flow))
    twice: set[tuple[int, int]] = set()
    for number, records in sent.items():
        places = {record: offset for offset, record in enumerate(records)}
        assert list(dict.fromkeys(got[number])) == records, f"partition {number}: order or content differ"
        twice |= {(number, places[record]) for record, seen in Counter(got[number]).items() if seen > 1}
    listed = {
        (entry["partition"], offset)
        for entry in flow.rows("ops.incidents")
        if entry["kind"] == "duplicate"
        for offset in range(entry["first_offset"], entry["last_offset"] + 1)
    }
    assert twice, "nothing landed twice: the row does not test what it says"
    assert twice == listed, f"{len(twice)} landed twice, {len(listed)} are listed"
    stage.expect_accounts(flow, on_target=COPIED)
    return f"{len(twice)} duplicates, all listed"


@row("25", "connections reset every 50 kB", "proxy: reset, 12 s", "progress meanwhile; " + EQUAL)
def resets(stage: Stage) -> str:
    topic = stage.topic("reset")
    flow = stage.flow(topic, fanout={"producer": {"batch.size": "16000", "reconnect.backoff.max.ms": "200"}})
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with counted(stage.proxy, RESETS, 10):
            stage.proxy.set(RESET, every_bytes=50_000)
            stage.send(topic, bulk(2000))
            time.sleep(12)
        during = stage.ends("shaky", target_name(flow))
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running)
    assert during > 200, "no progress while connections were reset"
    stage.expect_same(flow)
    return f"{during - 200} of 2000 records went through meanwhile"


@row("25b", "the target's side half-closed", "proxy: half-close, 5 s")
def half_closed(stage: Stage) -> None:
    topic = stage.topic("half")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with counted(stage.proxy, HALF_CLOSES, 2):
            stage.more(topic, 1000)
            stage.proxy.set(HALF_CLOSE)
            time.sleep(5)
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running)
    stage.expect_same(flow)


@row(
    "26",
    "target unreachable for 25 s, the source goes on",
    "proxy: blackhole; delivery time-out 5 s; a second target",
    "bronze and the second target go on; " + EQUAL,
)
def blackhole(stage: Stage) -> str:
    topic = stage.topic("hole")
    flow = stage.flow(topic, ["shaky", "hubs"], fanout={"delivery_timeout_seconds": 5})
    with stage.running(flow) as running:
        for target in flow.targets:
            stage.caught_up(flow, target, running=running)
        with counted(stage.proxy, STARVED):
            stage.proxy.set(BLACKHOLE)
            begun = time.monotonic()
            stage.more(topic, 1000)
            stage.caught_up(flow, "hubs", running=running, seconds=20)
            other = time.monotonic() - begun
            stage.more(topic, 1000, 1200)
            stage.caught_up(flow, "hubs", running=running, seconds=20)
            time.sleep(max(0, 25 - (time.monotonic() - begun)))
            assert stage.ends("shaky", target_name(flow)) == 200, "something went through"
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running, seconds=90)
    stage.expect_same(flow)
    return f"the other target had its records after {other:.1f} s"


@row("26b", "source unreachable for 25 s", "proxy: blackhole before the source", "waits, then goes on; " + EQUAL)
def source_blackhole(stage: Stage) -> None:
    proxy, topic = source_proxy(stage), stage.topic("source-hole")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with counted(proxy, STARVED):
            proxy.set(BLACKHOLE)
            stage.more(topic, 1000)
            time.sleep(25)
            assert stage.ends("shaky", target_name(flow)) == 200, "something went through"
        proxy.set(PASS)
        stage.caught_up(flow, running=running, seconds=120)
    stage.expect_same(flow)


@row("27", "1 Mbit/s to the target", "proxy: throttle 125 kB/s for each connection")
def throttled(stage: Stage) -> None:
    _slow(stage, THROTTLE, THROTTLED, bytes_per_second=125_000)


@row("27b", "100 ms to the target", "proxy: delay 100 ms for each chunk")
def delayed(stage: Stage) -> None:
    _slow(stage, DELAY, DELAYED, seconds=0.1)


def _slow(stage: Stage, mode: str, kind: str, **options: float) -> None:
    """All records went through slowly: they do not compress, so the proxy saw at least their bytes."""
    topic = stage.topic("slow")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with counted(stage.proxy, kind, 1_000_000):
            stage.proxy.set(mode, **options)
            stage.send(topic, bulk(1000))
            stage.caught_up(flow, running=running, seconds=90)
        stage.proxy.set(PASS)
    stage.expect_same(flow)
