"""Rounds over a cluster of lists: everything due, in order, within its share, under a lease."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from relays import BronzeSentHere, Killed, Relay, values
from samples import (
    EPOCH_START,
    OTHER_ID,
    SOURCE,
    TARGET,
    FakeCluster,
    ListSender,
    bronze_row,
    errand,
)

from mirrorlake import doubts, produce
from mirrorlake.errors import (
    AccessRefused,
    ClusterUnreachable,
    DataAtRisk,
    DeliveryDoubt,
    MirrorlakeError,
    StorageUnreachable,
    TopicMissing,
)
from mirrorlake.fanout import Backoff
from mirrorlake.ledger import SKIP, read
from mirrorlake.produce import Errand, Outcome, Slice, deliver
from mirrorlake.readers import _reader

# --- rounds ---


def test_everything_in_bronze_is_delivered_once_over_rounds_and_restarts(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster, budget_bytes=1)
    relay.ingest(3, 4, 5)
    relay.ingest(0, 1, 2)
    assert relay.deliver() == values(*range(6))
    relay.ingest(7, 9)
    assert relay.deliver() == values(*range(6), 7, 9)
    again = Relay(tmp_path, cluster, epoch=2)
    assert again.deliver() == values(*range(6), 7, 9)
    again.ingest(10)
    assert again.deliver() == values(*range(6), 7, 9, 10)


def test_a_paused_topic_waits_and_goes_on(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster)
    relay.paused.add("orders")
    relay.ingest(0, 1)
    assert relay.deliver() == []
    relay.paused.clear()
    assert relay.deliver() == values(0, 1)


def test_a_topic_made_anew_goes_to_the_same_partition_after_its_elder(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster, budget_bytes=1)
    anew = SOURCE._replace(topic_id=OTHER_ID)
    relay.ingest(0, 1)
    relay.deliver()
    for offset in range(2, 6):
        relay.ingest(offset)
    relay.ingest(0, 1, source=anew)
    relay.ingest(2, source=anew)
    assert relay.deliver() == values(*range(6), 0, 1, 2)
    assert relay.incidents == []


@pytest.mark.parametrize("elder_first_offset", [0, 100])
def test_a_new_target_gets_incarnations_in_the_order_in_which_bronze_got_them(
    tmp_path: Path, cluster: FakeCluster, elder_first_offset: int
) -> None:
    """Topic ids are random, and a ledger that is read again is in no order of theirs."""
    elder, anew = SOURCE._replace(topic_id=OTHER_ID), SOURCE
    assert anew.topic_id < elder.topic_id
    relay = Relay(tmp_path, cluster, budget_bytes=1)
    for place, value in enumerate([b"old", b"older"][::-1]):
        relay.ingest_rows(bronze_row(elder_first_offset + place, elder, value=value, ingested_at=EPOCH_START))
    relay.ingest(0, 1, source=anew)
    relay.fan_out._deliver_once()
    relay.account.ledger.flush()
    assert Relay(tmp_path, cluster, epoch=2).deliver() == [b"older", b"old", *values(0, 1)]


def test_after_a_fault_of_ours_the_target_is_looked_at_before_anything_is_sent(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    cluster.append(TARGET, b"", b"theirs")
    relay = Relay(tmp_path, cluster, existing_records="append")
    relay.ingest(0)
    relay.deliver()
    relay.ingest(1)
    send = relay.account.bronze.send

    def land_and_break(*_: object) -> list[Outcome]:
        relay.lands(1)
        relay.account.bronze.send = send  # type: ignore[method-assign]
        raise type("PythonException", (Exception,), {})("KeyError: 'x'")

    relay.account.bronze.send = land_and_break  # type: ignore[method-assign]
    with pytest.raises(DataAtRisk):
        relay.fan_out.deliver()
    assert relay.deliver() == [b"theirs", *values(0, 1)]


class BronzeDelivered(BronzeSentHere):
    """The real tasks, one after the other; `dies_after` counts those that end well."""

    dies_after = 1000

    def send(self, errand: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        outcomes = [o for task in tasks for o in deliver(errand, [(s, _reader(s)) for s in task])]
        self.dies_after -= not any(outcome.error for outcome in outcomes)
        if self.dies_after < 0:
            raise Killed
        return outcomes


@pytest.mark.parametrize("dies_after", [0, 1, 2])
def test_a_record_that_the_broker_refuses_is_settled_before_anything_follows(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, dies_after: int
) -> None:
    monkeypatch.setattr(produce, "Sender", lambda _errand: ListSender(cluster, values(2, 4)))
    relay = Relay(tmp_path, cluster, errand=errand(dead_letters=True))
    relay.ingest(*range(7))
    relay.account.bronze = dying = BronzeDelivered(relay.folder, cluster)
    dying.dies_after = dies_after
    with pytest.raises(Killed):
        relay.fan_out.deliver()
    again = Relay(tmp_path, cluster, errand=errand(dead_letters=True, epoch=2))
    again.account.bronze = BronzeDelivered(relay.folder, cluster)
    assert again.deliver() == values(0, 1, 3, 5, 6)
    assert relay.dead_letters + again.dead_letters == [2, 4]
    assert {entry.source_first for entry in read(again.tables, "ops.ledger", "f", "dr") if entry.kind == SKIP} == {2, 4}


def test_a_target_topic_ends_when_all_was_delivered_and_begins_again_with_the_next_incarnation(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    relay = Relay(tmp_path, cluster)
    relay.ingest(0, 1)
    relay.deliver()
    relay.ingest(2)
    relay.account.bronze.refresh()
    assert not relay.fan_out.end("src.orders"), "one record is due"
    relay.deliver()
    assert relay.fan_out.end("src.orders")
    cluster.logs.clear()
    cluster.ends.clear()
    again = Relay(tmp_path, cluster, epoch=2)
    again.ingest(0, 1, source=SOURCE._replace(topic_id=OTHER_ID))
    assert again.deliver() == values(0, 1), "only what is new"


@pytest.mark.parametrize(
    ("name", "said", "kind"),
    [
        ("RuntimeError", "Job aborted: Python worker exited unexpectedly", DeliveryDoubt),
        ("PythonException", "Traceback …\nmirrorlake.errors.DeliveryDoubt: an earlier attempt", DeliveryDoubt),
        ("PythonException", "Traceback …\nKeyError: 'x'", DataAtRisk),
    ],
)
def test_a_task_that_ended_is_doubt_unless_the_fault_is_ours(
    tmp_path: Path, cluster: FakeCluster, name: str, said: str, kind: type[MirrorlakeError]
) -> None:
    relay = Relay(tmp_path, cluster)

    def send(*_: object) -> list[Outcome]:
        raise type(name, (Exception,), {})(said)

    relay.account.bronze.send = send  # type: ignore[method-assign]
    with pytest.raises(kind, match=f"a Spark task ended: {said.splitlines()[-1]}"):
        relay.fan_out._run([])


# --- under a lease that ends by itself ---


@dataclass
class Lent:
    """A lease as a fan-out sees it; it lapses when told."""

    ends_at: float
    valid: bool = True

    def require(self) -> None:
        if not self.valid:
            raise StorageUnreachable("the lease could not be renewed in time")

    def fields(self) -> dict[str, Any]:
        return {"require": self.require, "sends_until": lambda: self.ends_at}


def test_what_was_sent_while_the_lease_lapsed_is_left_to_the_next_runner(tmp_path: Path, cluster: FakeCluster) -> None:
    """He may have found it on the target already: the ledger would hear of it twice."""
    lent = Lent(time.time() + 20)
    relay = Relay(tmp_path, cluster, **lent.fields())
    relay.ingest(0, 1)
    send = relay.account.bronze.send

    def send_and_lapse(given: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        assert given.lease_ends_at == lent.ends_at
        lent.valid = False
        return send(given, tasks)

    relay.account.bronze.send = send_and_lapse  # type: ignore[method-assign]
    with pytest.raises(StorageUnreachable):
        relay.fan_out.deliver()
    relay.account.ledger.flush()
    assert [entry.kind for entry in read(relay.tables, "ops.ledger", "f", "dr")] == ["baseline"]
    again = Relay(tmp_path, cluster, epoch=2)
    assert again.deliver() == values(0, 1)
    assert [(e.epoch, e.count) for e in read(again.tables, "ops.ledger", "f", "dr")] == [(1, 0), (2, 2)]


def test_without_the_lease_nothing_is_begun_or_recovered(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster, **Lent(time.time() + 20, valid=False).fields())
    relay.ingest(0)
    with pytest.raises(StorageUnreachable):
        relay.fan_out.deliver()
    relay.account.ledger.flush()
    assert read(relay.tables, "ops.ledger", "f", "dr") == []


def test_tasks_that_a_round_left_behind_are_waited_for_until_their_lease_ends(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubts, "LEASE_SECONDS", 0.0)
    relay = Relay(tmp_path, cluster, **Lent(time.time() + 1).fields())
    relay.ingest(0)
    send = relay.account.bronze.send

    def leave_one_behind(*_: object) -> list[Outcome]:
        relay.account.bronze.send = send  # type: ignore[method-assign]
        Timer(0.8, relay.lands, [0]).start()
        raise RuntimeError("Job aborted: Python worker exited unexpectedly")

    relay.account.bronze.send = leave_one_behind  # type: ignore[method-assign]
    assert relay.deliver() == values(0), "once, though it landed late"


def test_a_round_that_took_longer_than_its_lease_is_followed_by_smaller_ones(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    relay = Relay(tmp_path, cluster, budget_bytes=64, **Lent(time.time() + 20).fields())
    relay.ingest(0)
    send, budgets = relay.account.bronze.send, [relay.fan_out._budget([])]
    relay.account.bronze.send = lambda *_: [Outcome(SOURCE, error="DeliveryDoubt: too late")]  # type: ignore[method-assign]
    for _ in range(8):
        with pytest.raises(DeliveryDoubt):
            relay.fan_out._deliver_once()
        budgets.append(relay.fan_out._budget([]))
    assert budgets == [64, 32, 16, 8, 4, 2, 1, 1, 1]
    relay.account.bronze.send = send  # type: ignore[method-assign]
    assert relay.deliver() == values(0)
    assert relay.fan_out._budget([]) == 2, "and grows again"


# --- patience ---


class PatienceClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


AWAY, REFUSED, ABSENT = ClusterUnreachable("away"), AccessRefused("refused"), TopicMissing("missing")


@pytest.mark.parametrize(("fault", "seconds"), [(REFUSED, 60), (ABSENT, 30), (AWAY, 600)], ids=str)
def test_patience_depends_on_what_is_wrong(fault: MirrorlakeError, seconds: float) -> None:
    clock = PatienceClock()
    backoff = Backoff(600, 60, 30, clock)
    clock.now = seconds
    backoff.next_wait(fault)
    clock.now = seconds + 0.1
    with pytest.raises(type(fault), match=fault.what):
        backoff.next_wait(fault)


@pytest.mark.parametrize("fault", [REFUSED, ABSENT, AWAY], ids=str)
def test_patience_with_a_fault_is_never_longer_than_patience_altogether(fault: MirrorlakeError) -> None:
    clock = PatienceClock()
    backoff = Backoff(5, 60, 30, clock)
    clock.now = 5.1
    with pytest.raises(type(fault)):
        backoff.next_wait(fault)


def test_what_passes_by_itself_is_waited_for_for_ever_unless_told_otherwise() -> None:
    clock = PatienceClock()
    backoff = Backoff(float("inf"), 60, clock=clock)
    clock.now = 1e9
    backoff.next_wait(AWAY)


def test_waits_double_up_to_ten_seconds_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(float("inf"), 60, clock=PatienceClock())
    assert [backoff.next_wait(AWAY) for _ in range(8)] == [0.5, 1, 2, 4, 8, 10, 10, 10]
    backoff.reset()
    assert backoff.next_wait(AWAY) == 0.5


def test_a_success_gives_all_patience_back() -> None:
    clock = PatienceClock()
    backoff = Backoff(600, 60, clock=clock)
    clock.now = 59
    backoff.reset()
    clock.now = 119
    backoff.next_wait(REFUSED)
    clock.now = 119.1
    with pytest.raises(AccessRefused):
        backoff.next_wait(REFUSED)
