"""Where a target begins, and what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from relays import Relay, values
from samples import (
    OTHER_ID,
    SOURCE,
    TARGET,
    FakeCluster,
)

from mirrorlake import beginnings
from mirrorlake.errors import (
    ExistingRecords,
    TopicNeeded,
)
from mirrorlake.kafka import TopicInfo
from mirrorlake.missing import Missing, Need, Places
from mirrorlake.records import SourcePartition, TopicPartition


def test_records_that_the_ledger_does_not_know_stop_the_flow(tmp_path: Path, cluster: FakeCluster) -> None:
    cluster.append(TARGET, b"", b"theirs")
    relay = Relay(tmp_path, cluster)
    relay.ingest(0)
    with pytest.raises(ExistingRecords) as stopped:
        relay.fan_out.deliver()
    for choice in ("existing_records: latest", "existing_records: append", "`mirrorlake adopt --target dr`"):
        assert choice in stopped.value.next_step
    beside = Relay(tmp_path, cluster, existing_records="append")
    assert beside.deliver() == [b"theirs", b"v0"]


# --- fewer partitions than the source ---


def test_folded_partitions_share_a_target_partition_each_in_its_order_and_by_turns(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    fields = {"fold_partitions": True, "budget_bytes": 1}
    relay = Relay(tmp_path, cluster, **fields)
    third = SOURCE._replace(partition=3)
    for offset in (0, 1, 2):
        relay.ingest(offset)
    for offset in (10, 11, 12):
        relay.ingest(offset, source=third)
    assert relay.deliver() == values(0, 10, 1, 11, 2, 12)
    relay.ingest(13, source=third)
    relay.ingest(3)
    again = Relay(tmp_path, cluster, epoch=2, **fields)
    assert sorted(again.deliver()[6:]) == values(13, 3), "and a restart goes on after both"
    assert again.deliver() == relay.deliver()


def test_partitions_are_folded_by_their_number_modulo_the_topics(tmp_path: Path, cluster: FakeCluster) -> None:
    topics = {"orders": TopicInfo("src.orders", "target-id", 2, 1)}
    relay = Relay(tmp_path, cluster, fold_partitions=True, target_topics=lambda _asked: Places(topics))
    for partition in range(5):
        relay.ingest(partition, source=SOURCE._replace(partition=partition))
    relay.deliver()
    held = {at.partition: [message.value() for message in log] for at, log in cluster.logs.items()}
    assert held == {0: values(0, 2, 4), 1: values(1, 3)}


# --- topics that only an operator can make ---


BILLS = SourcePartition("bills", OTHER_ID, 0)


READY = {"orders": TopicInfo("src.orders", "target-id", 1, 1)}


NEEDED = Places(READY, {"bills": Need("src.bills", "needs 1 partition and may not be made")})


def lacking(root: Path, cluster: FakeCluster, policy: Any, clock: list[float] | None = None, **fields: Any) -> Relay:
    """A target without `bills`, which bronze holds beside `orders`."""
    at = clock if clock is not None else [0.0]
    missing = Missing("dr", policy, clock=lambda: at[0])
    relay = Relay(root, cluster, missing=missing, target_topics=lambda _asked: NEEDED, **fields)
    relay.ingest(0, 1)
    relay.ingest(5, 6, source=BILLS)
    return relay


@pytest.mark.parametrize("policy", ["stop", "wait", "dead_letter"])
def test_neighbours_of_a_missing_topic_go_on(tmp_path: Path, cluster: FakeCluster, policy: str) -> None:
    relay = lacking(tmp_path, cluster, policy)
    assert relay.deliver() == values(0, 1)
    assert "topic src.bills needs 1 partition" in relay.fan_out.progress.waiting
    relay.ingest(2)
    assert relay.deliver() == values(0, 1, 2)
    assert relay.dead_letters == ([5, 6] if policy == "dead_letter" else [])


@pytest.mark.parametrize("policy", ["stop", "wait", "dead_letter"])
def test_once_the_topic_is_there_all_of_it_is_sent_in_order(tmp_path: Path, cluster: FakeCluster, policy: str) -> None:
    clock = [0.0]
    relay = lacking(tmp_path, cluster, policy, clock)
    relay.deliver()
    relay.ingest(7, source=BILLS)
    clock[0] += 10
    topic = TopicInfo("src.bills", "bills-id", 1, 1)
    relay.beginnings.target_topics = lambda _asked: Places({**READY, "bills": topic})
    relay.deliver()
    assert [m.value() for m in cluster.logs[TopicPartition("src.bills", 0)]] == values(5, 6, 7)
    assert relay.fan_out.progress.waiting == ""


def test_a_topic_that_stays_away_stops_the_target_after_a_while(tmp_path: Path, cluster: FakeCluster) -> None:
    clock = [0.0]
    relay = lacking(tmp_path, cluster, "stop", clock)
    relay.deliver()
    clock[0] += 29
    relay.deliver()
    clock[0] += 2
    with pytest.raises(TopicNeeded, match=r"cluster dr: topic src\.bills needs 1 partition"):
        relay.deliver()


def test_a_single_pass_waits_for_the_topic_no_longer_than_it_may(tmp_path: Path, cluster: FakeCluster) -> None:
    ticks = iter(range(1000))
    missing = Missing("dr", "wait", clock=lambda: float(next(ticks)))
    relay = Relay(tmp_path, cluster, missing=missing, target_topics=lambda _asked: NEEDED, patience_seconds=2.0)
    relay.ingest(5, source=BILLS)
    with pytest.raises(TopicNeeded):
        relay.deliver()


def test_what_was_listed_before_is_not_listed_again(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = lacking(tmp_path, cluster, "dead_letter")
    relay.account.outbox.listed = lambda _target: {BILLS: 6}
    relay.deliver()
    relay.deliver()
    assert relay.dead_letters == [6]


def test_few_records_are_listed_in_a_round_so_that_others_go_on(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginnings, "LISTED_BATCHES", 1)
    relay = lacking(tmp_path, cluster, "dead_letter")
    for offset in range(7, 12):
        relay.ingest(offset, source=BILLS)
    relay.deliver()
    assert relay.dead_letters == [5, 6, 7, 8, 9, 10, 11]


# --- another incarnation ---


ANEW = SOURCE._replace(topic_id=OTHER_ID)


def test_a_new_incarnation_is_sent_whole_to_a_partition_that_we_fill_though_others_write_there_too(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    """`existing_records: latest` speaks of what was there before us."""
    relay = Relay(tmp_path, cluster, existing_records="latest", latest=lambda _source: 99)
    relay.ingest(0, 1)
    relay.deliver()
    cluster.append(TARGET, None, b"theirs")
    relay.ingest(0, 1, source=ANEW)
    assert relay.deliver() == [*values(0, 1), b"theirs", *values(0, 1)]
