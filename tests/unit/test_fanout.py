"""Planning a round: everything due, in order, within its share; then rounds over a cluster of lists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from samples import (
    EPOCH_START,
    OTHER_ID,
    SOURCE,
    TARGET,
    FakeCluster,
    ListSender,
    bronze_batch,
    bronze_row,
    bronze_table,
    errand,
)

from mirrorlake import errors, fanout, produce
from mirrorlake.errors import (
    AccessRefused,
    ClusterUnreachable,
    DataAtRisk,
    DeliveryDoubt,
    ExistingRecords,
    MirrorlakeError,
    StorageUnreachable,
    TargetDiverged,
    TopicMissing,
    TopicNeeded,
    TopicRemade,
    Transient,
    from_text,
)
from mirrorlake.fanout import Backoff, FanOut, Outbox, joined
from mirrorlake.kafka import TopicInfo
from mirrorlake.ledger import REPAIR, SKIP, LedgerWriter, fold, read
from mirrorlake.missing import Missing, Need, Places
from mirrorlake.produce import Errand, Outcome, Outgoing, Shaper, Slice, _checked_ends, _prove, deliver, note
from mirrorlake.readers import BronzeInFolder, _reader
from mirrorlake.records import BRONZE, LEDGER, SourcePartition, TopicPartition
from mirrorlake.recovery import MISSING as NOT_THERE
from mirrorlake.recovery import set_aside
from mirrorlake.tables import FolderTables, read_ordered

TOPICS = ("orders", "other")


# --- words ---


def test_neighbours_left_out_for_one_reason_are_one_item() -> None:
    items = [(7, 1, "loop"), (3, 1, "hops"), (1, 1, "loop"), (2, 1, "loop"), (4, 2, "hops"), (8, 1, "hops")]
    assert joined(items) == [(1, 2, "loop"), (3, 3, "hops"), (7, 1, "loop"), (8, 1, "hops")]


def all_errors(kind: type[MirrorlakeError] = MirrorlakeError) -> list[type[MirrorlakeError]]:
    below = [found for child in kind.__subclasses__() for found in all_errors(child)]
    return sorted({kind, *below}, key=lambda k: k.__name__)


@pytest.mark.parametrize("kind", [k for k in all_errors() if k.__module__ == errors.__name__], ids=lambda k: k.__name__)
@pytest.mark.parametrize("next_step", ["", "do this: now"])
def test_an_error_keeps_its_kind_and_words_on_the_way_to_the_driver(kind: Any, next_step: str) -> None:
    error = kind("it: broke\nbadly", next_step)
    back = from_text(f"{kind.__name__}: {error}")
    assert type(back) is kind
    assert (back.what, back.next_step) == (error.what, error.next_step)


@pytest.mark.parametrize("text", ["", "gibberish", "ValueError: x", "dataclass: x", "Fault: x"])
def test_an_error_of_unknown_kind_is_doubt(text: str) -> None:
    assert isinstance(from_text(text), DeliveryDoubt)
    assert isinstance(from_text(text), Transient)


# --- rounds, with tasks that run here ---


def land(cluster: FakeCluster, target: TopicPartition, shaped: Outgoing) -> None:
    for number, row in enumerate(zip(shaped.keys, shaped.values, shaped.headers, strict=True)):
        if shaped.goes_out(number):
            cluster.append(target, *row)


class BronzeSentHere(BronzeInFolder):
    """The real folder; what the tasks would do is done here, one after the other, with the list as a producer."""

    def __init__(self, folder: Path, cluster: FakeCluster) -> None:
        super().__init__(None, folder)  # type: ignore[arg-type]
        self.cluster: Any = cluster

    def send(self, errand: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        return [self._send(errand, slice_) for task in tasks for slice_ in task]

    def _send(self, errand: Errand, slice_: Slice) -> Outcome:
        outcome = Outcome(slice_.source)
        try:
            before = _checked_ends(self.cluster, [slice_])
        except DeliveryDoubt as fault:
            outcome.error = f"DeliveryDoubt: {fault}"
            return outcome
        sent: list[int] = []
        for batch in read_ordered(slice_.segments, slice_.first, slice_.until):
            shaped = Shaper(errand, slice_.source).shape(batch)
            land(self.cluster, slice_.target, shaped)
            sent += note(shaped, outcome)
        _prove(errand, self.cluster, slice_, sent, before, self.cluster.log_ends([slice_.target]), outcome)
        return outcome


class Relay:
    """A fan-out over a real bronze folder and ledger; the target is made of lists and Spark is left out."""

    def __init__(self, root: Path, cluster: FakeCluster, epoch: int = 1, **fields: Any) -> None:
        tables = FolderTables(root)
        tables.ensure("bronze.t", BRONZE, {})
        tables.ensure("ops.ledger", LEDGER, {})
        self.folder, self.cluster, self.tables = root / "tables" / "bronze" / "t", cluster, tables
        self.incidents: list[tuple[Any, ...]] = []
        self.dead_letters: list[int] = []
        self.paused: set[str] = set()
        made: Any = {
            "errand": errand(epoch=epoch),
            "bronze": BronzeSentHere(self.folder, cluster),
            "cluster": cluster,
            "ledger": LedgerWriter(tables, "ops.ledger", 30.0),
            "book": fold(read(tables, "ops.ledger", "f", "dr")),
            "outbox": Outbox(
                lambda *what: self.incidents.append(what),
                lambda _errand, _source, _topic, refused: self.dead_letters.extend(offset for offset, _, _ in refused),
            ),
            "target_topics": lambda _asked: Places({"orders": TopicInfo("src.orders", "target-id", 1, 1)}),
            "limit_of": lambda topic: 1_000_000,
            "paused": lambda topic: topic in self.paused,
        }
        self.fan_out = FanOut(**made | fields)

    def ingest(self, *offsets: int, source: SourcePartition = SOURCE) -> None:
        self.ingest_rows(*(bronze_row(offset, source) for offset in offsets))

    def ingest_rows(self, *rows: dict[str, Any]) -> None:
        write_deltalake(self.folder, bronze_table(rows), mode="append")

    def lands(self, *offsets: int, source: SourcePartition = SOURCE, target: TopicPartition = TARGET) -> None:
        """These records reach the target, and nobody writes it down."""
        rows = [bronze_row(offset, source) for offset in offsets]
        land(self.cluster, target, Shaper(self.fan_out.errand, source).shape(bronze_batch(rows)))

    def deliver(self) -> list[bytes | None]:
        """One call, which must end by itself; returns what the target then holds."""
        giving_up = Timer(5, self.fan_out.stopping.set)
        giving_up.start()
        self.fan_out.deliver()
        giving_up.cancel()
        self.fan_out.ledger.flush()
        assert not self.fan_out.stopping.is_set(), self.fan_out.progress.waiting
        return [message.value() for message in self.cluster.logs.get(TARGET, [])]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setattr(fanout, "STABLE_SECONDS", 0.0)
    return FakeCluster()


def values(*offsets: int) -> list[bytes]:
    return [b"v%d" % offset for offset in offsets]


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


def test_what_landed_before_a_crash_is_found_and_not_sent_again(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster)
    relay.ingest(0, 1)
    relay.deliver()
    relay.ingest(2, 3, 4)
    sent = Shaper(errand(), SOURCE).shape(bronze_batch([bronze_row(2), bronze_row(3)]))
    land(cluster, TARGET, sent)
    assert Relay(tmp_path, cluster, epoch=2).deliver() == values(*range(5))


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
    relay.fan_out.ledger.flush()
    assert Relay(tmp_path, cluster, epoch=2).deliver() == [b"older", b"old", *values(0, 1)]


# --- doubt ---


def large(offset: int) -> dict[str, Any]:
    return bronze_row(offset, value=b"x" * 5000)


SMALL = {"errand": errand(dead_letters=True), "limit_of": lambda _topic: 2000}


def test_recovery_knows_what_is_too_large_for_the_topic(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster, **SMALL)
    relay.ingest(0)
    relay.deliver()
    relay.ingest_rows(large(1), bronze_row(2))
    relay.lands(2)
    again = Relay(tmp_path, cluster, **SMALL | {"errand": errand(dead_letters=True, epoch=2)})
    assert again.deliver() == values(0, 2)
    assert again.dead_letters == [1]


def test_after_a_fault_of_ours_the_target_is_looked_at_before_anything_is_sent(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    cluster.append(TARGET, b"", b"theirs")
    relay = Relay(tmp_path, cluster, existing_records="append")
    relay.ingest(0)
    relay.deliver()
    relay.ingest(1)
    send = relay.fan_out.bronze.send

    def land_and_break(*_: object) -> list[Outcome]:
        relay.lands(1)
        relay.fan_out.bronze.send = send  # type: ignore[method-assign]
        raise type("PythonException", (Exception,), {})("KeyError: 'x'")

    relay.fan_out.bronze.send = land_and_break  # type: ignore[method-assign]
    with pytest.raises(DataAtRisk):
        relay.fan_out.deliver()
    assert relay.deliver() == [b"theirs", *values(0, 1)]


class Killed(BaseException):
    """The process ends here."""


def killed(*_: object) -> None:
    raise Killed


def test_a_dead_letter_is_listed_before_the_ledger_passes_it_over(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster, **SMALL, outbox=Outbox(killed, killed))
    relay.ingest_rows(bronze_row(0), large(1), bronze_row(2))
    with pytest.raises(Killed):
        relay.fan_out.deliver()
    relay.fan_out.ledger.flush()
    again = Relay(tmp_path, cluster, **SMALL | {"errand": errand(dead_letters=True, epoch=2)})
    assert again.deliver() == values(0, 2)
    assert again.dead_letters == [1]


def test_a_duplicate_is_listed_before_the_ledger_passes_it_over(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster)
    relay.ingest(0, 1)
    relay.deliver()
    relay.ingest(2)
    relay.lands(1, 2)
    dying = Relay(tmp_path, cluster, epoch=2, outbox=Outbox(killed, killed))
    with pytest.raises(Killed):
        dying.fan_out.deliver()
    dying.fan_out.ledger.flush()
    again = Relay(tmp_path, cluster, epoch=3)
    assert again.deliver() == values(0, 1, 1, 2)
    assert [(kind, first, last) for kind, _, _, first, last, _ in again.incidents] == [("duplicate", 1, 1)]


def test_what_a_killed_repair_sent_is_written_down_as_its_repair(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster, **SMALL)
    relay.ingest_rows(bronze_row(0), large(1), bronze_row(2))
    relay.deliver()
    relay.lands(1)
    for epoch in (2, 3):
        again = Relay(tmp_path, cluster, epoch, history=lambda: read(relay.tables, "ops.ledger", "f", "dr"))
        assert again.deliver() == values(0, 2, 1)
        assert again.incidents == []
    entries = read(relay.tables, "ops.ledger", "f", "dr")
    assert [(e.source_first, e.target_first, e.count) for e in entries if e.kind == REPAIR] == [(1, 2, 1)]


def test_what_recovery_finds_in_a_partition_is_one_commit(tmp_path: Path, cluster: FakeCluster) -> None:
    """Each entry says that the log is known to its end: with half of them, the other half would be sent again."""
    relay, anew = Relay(tmp_path, cluster), SOURCE._replace(topic_id=OTHER_ID)
    relay.ingest(0)
    relay.ingest(0, source=anew)
    relay.deliver()
    relay.ingest(1, 2)
    relay.ingest(1, source=anew)
    relay.lands(1, 2)
    relay.lands(1, source=anew)
    ledger, table = LedgerWriter(relay.tables, "ops.ledger", 0.0), tmp_path / "tables" / "ops" / "ledger"
    before = DeltaTable(table).version()
    assert Relay(tmp_path, cluster, epoch=2, ledger=ledger).deliver() == values(0, 0, 1, 2, 1)
    assert DeltaTable(table).version() == before + 1


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
    relay.fan_out.bronze = dying = BronzeDelivered(relay.folder, cluster)
    dying.dies_after = dies_after
    with pytest.raises(Killed):
        relay.fan_out.deliver()
    again = Relay(tmp_path, cluster, errand=errand(dead_letters=True, epoch=2))
    again.fan_out.bronze = BronzeDelivered(relay.folder, cluster)
    assert again.deliver() == values(0, 1, 3, 5, 6)
    assert relay.dead_letters + again.dead_letters == [2, 4]
    assert {entry.source_first for entry in read(again.tables, "ops.ledger", "f", "dr") if entry.kind == SKIP} == {2, 4}


class BusyCluster(FakeCluster):
    """Something lands after a look at the log ends."""

    looks = 0
    lands_after: Callable[[int], None] = staticmethod(lambda _look: None)

    def log_ends(self, partitions: Iterable[TopicPartition], committed: bool = False) -> dict[TopicPartition, int]:
        ends = super().log_ends(partitions, committed)
        self.looks += 1
        self.lands_after(self.looks)
        return ends


def test_where_others_write_nobody_waits_for_them_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "STABLE_SECONDS", 0.05)
    busy = BusyCluster()
    busy.append(TARGET, b"", b"theirs")
    relay = Relay(tmp_path, busy, existing_records="append")
    relay.ingest(0)
    relay.deliver()
    busy.looks = 0
    busy.lands_after = lambda look: busy.append(TARGET, b"", b"theirs") and None if look < 40 else None
    Relay(tmp_path, busy, epoch=2, existing_records="append").deliver()
    assert busy.looks < 40, "they write on"


@pytest.mark.parametrize("late_at", [0, 1], ids=["shared", "ours alone"])
def test_a_request_on_its_way_is_waited_for_beside_a_shared_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_at: int
) -> None:
    monkeypatch.setattr(fanout, "STABLE_SECONDS", 0.3)
    busy, late_source = BusyCluster(), SOURCE._replace(partition=late_at)
    late_target = TopicPartition(TARGET.topic, late_at)
    relay = Relay(
        tmp_path, busy, target_topics=lambda _asked: Places({"orders": TopicInfo("src.orders", "target-id", 2, 1)})
    )
    for number in (0, 1):
        relay.ingest(0, source=SOURCE._replace(partition=number))
    relay.deliver()
    busy.append(TARGET, b"", b"theirs")
    relay.ingest(1)
    relay.deliver()
    relay.ingest(2, source=late_source)
    relay.fan_out.bronze.refresh()
    relay.fan_out._recovered, busy.looks = False, 0
    busy.lands_after = lambda look: relay.lands(2, source=late_source, target=late_target) if look == 2 else None
    relay.deliver()
    assert [message.value() for message in busy.logs[late_target]].count(b"v2") == 1


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
    relay.fan_out.target_topics = lambda _asked: Places({**READY, "bills": topic})
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
    relay.fan_out.outbox.listed = lambda _target: {BILLS: 6}
    relay.deliver()
    relay.deliver()
    assert relay.dead_letters == [6]


def test_few_records_are_listed_in_a_round_so_that_others_go_on(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "LISTED_BATCHES", 1)
    relay = lacking(tmp_path, cluster, "dead_letter")
    for offset in range(7, 12):
        relay.ingest(offset, source=BILLS)
    relay.deliver()
    assert relay.dead_letters == [5, 6, 7, 8, 9, 10, 11]


# --- a source topic that is gone ---


def test_a_target_topic_ends_when_all_was_delivered_and_begins_again_with_the_next_incarnation(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    relay = Relay(tmp_path, cluster)
    relay.ingest(0, 1)
    relay.deliver()
    relay.ingest(2)
    relay.fan_out.bronze.refresh()
    assert not relay.fan_out.end("src.orders"), "one record is due"
    relay.deliver()
    assert relay.fan_out.end("src.orders")
    cluster.logs.clear()
    cluster.ends.clear()
    again = Relay(tmp_path, cluster, epoch=2)
    again.ingest(0, 1, source=SOURCE._replace(topic_id=OTHER_ID))
    assert again.deliver() == values(0, 1), "only what is new"


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


def test_a_late_landing_before_a_new_incarnation_is_read_and_no_foreign_record(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    relay = Relay(tmp_path, cluster)
    relay.ingest(0, 1)
    relay.deliver()
    land(cluster, TARGET, Shaper(errand(), SOURCE).shape(bronze_batch([bronze_row(1)])))
    relay.ingest(0, source=ANEW)
    assert relay.deliver() == [*values(0, 1), *values(1), *values(0)]
    assert [incident[0] for incident in relay.incidents] == ["duplicate"]


def test_a_hole_is_an_incident_with_its_offsets_and_a_repair_sets_it_aside(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    relay = Relay(tmp_path, cluster)
    relay.ingest(*range(3))
    relay.deliver()
    for offset in (3, 6, 8):
        land(cluster, TARGET, Shaper(errand(), SOURCE).shape(bronze_batch([bronze_row(offset)])))
    relay.ingest(*range(3, 10))
    again = Relay(tmp_path, cluster, epoch=2)
    with pytest.raises(TargetDiverged, match="offsets 4-5, 7-7 are missing before later ones"):
        again.deliver()
    told = [(kind, first, last) for kind, _, _, first, last, _ in again.incidents]
    assert told == [("target_diverged", 4, 5), ("target_diverged", 7, 7)]
    mender = Relay(tmp_path, cluster, epoch=3, mends=True)
    assert mender.deliver() == [*values(*range(4)), *values(6, 8, 9)]
    assert set_aside(read(mender.tables, "ops.ledger", "f", "dr")) == dict.fromkeys((4, 5, 7), NOT_THERE)


NEXT_DOOR, OVER_THERE = SOURCE._replace(partition=1), TARGET._replace(partition=1)
TWO_PARTITIONS = Places({"orders": TopicInfo("src.orders", "target-id", 2, 1)})


def two_partitions(root: Path, cluster: FakeCluster, epoch: int, *offsets: int) -> Relay:
    """Bronze gets these offsets of two partitions."""
    relay = Relay(root, cluster, epoch, target_topics=lambda _asked: TWO_PARTITIONS)
    for source in (SOURCE, NEXT_DOOR):
        relay.ingest(*offsets, source=source)
    return relay


def test_a_hole_halts_its_partition_and_the_other_goes_on(tmp_path: Path, cluster: FakeCluster) -> None:
    two_partitions(tmp_path, cluster, 1, 0, 1).deliver()
    relay = two_partitions(tmp_path, cluster, 2, 2, 3, 4)
    relay.lands(3)
    assert relay.deliver() == values(0, 1, 3)
    assert [message.value() for message in cluster.logs[OVER_THERE]] == values(0, 1, 2, 3, 4)
    (fault,) = relay.fan_out.halted.values()
    assert "offsets 2-2 are missing before later ones" in fault.what
    assert relay.fan_out.progress.waiting == f"stopped: {fault.what}"
    assert relay.fan_out.behind() == 3, "what cannot go out is still due"
    assert [incident[0] for incident in relay.incidents] == ["target_diverged"]


def test_a_halted_partition_is_left_alone_until_the_next_run(tmp_path: Path, cluster: FakeCluster) -> None:
    """Whatever lands there meanwhile, another doubt next door, or another incarnation that would go there."""
    two_partitions(tmp_path, cluster, 1, 0, 1).deliver()
    relay = two_partitions(tmp_path, cluster, 2, 2, 3)
    relay.lands(3)
    relay.deliver()
    relay.lands(3)
    relay.lands(3, source=NEXT_DOOR, target=OVER_THERE)
    relay.ingest(4, source=NEXT_DOOR)
    relay.ingest(0, source=ANEW)
    assert relay.deliver() == values(0, 1, 3, 3)
    assert [message.value() for message in cluster.logs[OVER_THERE]] == values(0, 1, 2, 3, 3, 4)
    assert [incident[0] for incident in relay.incidents] == ["target_diverged", "duplicate"]


def test_a_target_stops_where_all_of_its_partitions_are_halted(tmp_path: Path, cluster: FakeCluster) -> None:
    two_partitions(tmp_path, cluster, 1, 0, 1).deliver()
    relay = two_partitions(tmp_path, cluster, 2, 2, 3)
    relay.lands(3)
    relay.lands(3, source=NEXT_DOOR, target=OVER_THERE)
    with pytest.raises(TargetDiverged, match="missing before later ones"):
        relay.fan_out.deliver()
    assert len(relay.incidents) == 2, "each is said"


# --- a target topic that somebody deleted ---


class RemadeCluster(FakeCluster):
    """Its topic was deleted and made again."""

    topic_id = "target-id"

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        return {topic: TopicInfo(topic, self.topic_id, 1, 1) for topic in topics}

    def remake(self) -> None:
        self.topic_id = "another-id"
        self.logs.clear()
        self.ends.clear()


@pytest.fixture
def remade(monkeypatch: pytest.MonkeyPatch) -> RemadeCluster:
    monkeypatch.setattr(fanout, "STABLE_SECONDS", 0.0)
    return RemadeCluster()


def topics_now(cluster: RemadeCluster) -> dict[str, Any]:
    return {"target_topics": lambda _asked: Places({"orders": TopicInfo("src.orders", cluster.topic_id, 1, 1)})}


def test_a_topic_that_was_deleted_stops_the_target(tmp_path: Path, remade: RemadeCluster) -> None:
    relay = Relay(tmp_path, remade, **topics_now(remade))
    relay.ingest(0, 1)
    relay.deliver()
    assert not relay.fan_out.doubt(remade.describe(["src.orders"]))
    remade.remake()
    assert relay.fan_out.doubt(remade.describe(["src.orders"]))
    with pytest.raises(TargetDiverged, match="made anew or deleted"):
        relay.fan_out.deliver()
    assert [incident[0] for incident in relay.incidents] == ["target_diverged"]
    assert not relay.fan_out.doubt({}), "a topic that is not looked at is not doubted"


def test_a_topic_that_was_deleted_is_filled_again_by_the_next_epoch(tmp_path: Path, remade: RemadeCluster) -> None:
    fields = {"recreate": True, **topics_now(remade)}
    relay = Relay(tmp_path, remade, **fields)
    relay.ingest(0, 1)
    relay.deliver()
    remade.remake()
    relay.fan_out.doubt(remade.describe(["src.orders"]))
    with pytest.raises(TopicRemade):
        relay.fan_out.deliver()
    again = Relay(tmp_path, remade, epoch=2, **fields)
    again.ingest(2)
    assert again.deliver() == values(0, 1, 2)
    assert [incident[0] for incident in again.incidents] == ["target_topic_remade"]
    assert Relay(tmp_path, remade, epoch=3, **fields).deliver() == values(0, 1, 2), "once"


def test_a_topic_that_was_deleted_is_filled_with_what_was_delivered_long_ago(
    tmp_path: Path, remade: RemadeCluster
) -> None:
    ids = {"src.orders": "target-id", "src.other": "other-id"}
    remade.describe = lambda topics: {t: TopicInfo(t, ids[t], 1, 1) for t in topics}  # type: ignore[method-assign]
    now = {
        "recreate": True,
        "target_topics": lambda _asked: Places({n: remade.describe([f"src.{n}"])[f"src.{n}"] for n in TOPICS}),
    }
    relay = Relay(tmp_path, remade, **now)
    for offset in range(4):
        relay.ingest(offset)
    relay.deliver()
    again = Relay(tmp_path, remade, epoch=2, **now)
    again.ingest(0, source=SOURCE._replace(topic="other"))
    again.deliver()  # and lets go of the files that the target has
    del remade.logs[TARGET], remade.ends[TARGET]
    ids["src.orders"] = "another-id"
    again.fan_out.doubt(remade.describe(["src.orders"]))
    assert again.deliver() == values(*range(4))


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

    relay.fan_out.bronze.send = send  # type: ignore[method-assign]
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
        return {"require_lease": self.require, "sends_until": lambda: self.ends_at}


def test_what_was_sent_while_the_lease_lapsed_is_left_to_the_next_runner(tmp_path: Path, cluster: FakeCluster) -> None:
    """He may have found it on the target already: the ledger would hear of it twice."""
    lent = Lent(time.time() + 20)
    relay = Relay(tmp_path, cluster, **lent.fields())
    relay.ingest(0, 1)
    send = relay.fan_out.bronze.send

    def send_and_lapse(given: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        assert given.lease_ends_at == lent.ends_at
        lent.valid = False
        return send(given, tasks)

    relay.fan_out.bronze.send = send_and_lapse  # type: ignore[method-assign]
    with pytest.raises(StorageUnreachable):
        relay.fan_out.deliver()
    relay.fan_out.ledger.flush()
    assert [entry.kind for entry in read(relay.tables, "ops.ledger", "f", "dr")] == ["baseline"]
    again = Relay(tmp_path, cluster, epoch=2)
    assert again.deliver() == values(0, 1)
    assert [(e.epoch, e.count) for e in read(again.tables, "ops.ledger", "f", "dr")] == [(1, 0), (2, 2)]


def test_without_the_lease_nothing_is_begun_or_recovered(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster, **Lent(time.time() + 20, valid=False).fields())
    relay.ingest(0)
    with pytest.raises(StorageUnreachable):
        relay.fan_out.deliver()
    relay.fan_out.ledger.flush()
    assert read(relay.tables, "ops.ledger", "f", "dr") == []


def test_tasks_that_a_round_left_behind_are_waited_for_until_their_lease_ends(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "LEASE_SECONDS", 0.0)
    relay = Relay(tmp_path, cluster, **Lent(time.time() + 1).fields())
    relay.ingest(0)
    send = relay.fan_out.bronze.send

    def leave_one_behind(*_: object) -> list[Outcome]:
        relay.fan_out.bronze.send = send  # type: ignore[method-assign]
        Timer(0.8, relay.lands, [0]).start()
        raise RuntimeError("Job aborted: Python worker exited unexpectedly")

    relay.fan_out.bronze.send = leave_one_behind  # type: ignore[method-assign]
    assert relay.deliver() == values(0), "once, though it landed late"


def test_a_round_that_took_longer_than_its_lease_is_followed_by_smaller_ones(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    relay = Relay(tmp_path, cluster, budget_bytes=64, **Lent(time.time() + 20).fields())
    relay.ingest(0)
    send, budgets = relay.fan_out.bronze.send, [relay.fan_out._budget([])]
    relay.fan_out.bronze.send = lambda *_: [Outcome(SOURCE, error="DeliveryDoubt: too late")]  # type: ignore[method-assign]
    for _ in range(8):
        with pytest.raises(DeliveryDoubt):
            relay.fan_out._deliver_once()
        budgets.append(relay.fan_out._budget([]))
    assert budgets == [64, 32, 16, 8, 4, 2, 1, 1, 1]
    relay.fan_out.bronze.send = send  # type: ignore[method-assign]
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
