"""Whether a target has what the ledger says: what landed unrecorded, holes, topics made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from relays import SMALL, Killed, Relay, killed, land, large, values
from samples import (
    OTHER_ID,
    SOURCE,
    TARGET,
    FakeCluster,
    bronze_batch,
    bronze_row,
    errand,
)

from mirrorlake import doubts
from mirrorlake.account import Outbox
from mirrorlake.errors import (
    TargetDiverged,
    TopicRemade,
)
from mirrorlake.kafka import TopicInfo
from mirrorlake.ledger import REPAIR, LedgerWriter, read
from mirrorlake.missing import Places
from mirrorlake.produce import Shaper
from mirrorlake.records import TopicPartition
from mirrorlake.recovery import MISSING as NOT_THERE
from mirrorlake.recovery import set_aside


def test_what_landed_before_a_crash_is_found_and_not_sent_again(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster)
    relay.ingest(0, 1)
    relay.deliver()
    relay.ingest(2, 3, 4)
    sent = Shaper(errand(), SOURCE).shape(bronze_batch([bronze_row(2), bronze_row(3)]))
    land(cluster, TARGET, sent)
    assert Relay(tmp_path, cluster, epoch=2).deliver() == values(*range(5))


def test_recovery_knows_what_is_too_large_for_the_topic(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster, **SMALL)
    relay.ingest(0)
    relay.deliver()
    relay.ingest_rows(large(1), bronze_row(2))
    relay.lands(2)
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
    dying.account.ledger.flush()
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


# --- others who write ---


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
    monkeypatch.setattr(doubts, "STABLE_SECONDS", 0.05)
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
    monkeypatch.setattr(doubts, "STABLE_SECONDS", 0.3)
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
    relay.account.bronze.refresh()
    relay.doubts.settled, busy.looks = False, 0
    busy.lands_after = lambda look: relay.lands(2, source=late_source, target=late_target) if look == 2 else None
    relay.deliver()
    assert [message.value() for message in busy.logs[late_target]].count(b"v2") == 1


ANEW = SOURCE._replace(topic_id=OTHER_ID)


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


# --- holes ---


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
    (fault,) = relay.account.halted.values()
    assert "offsets 2-2 are missing before later ones" in fault.what
    assert relay.fan_out.progress.waiting == f"stopped: {fault.what}"
    assert relay.account.behind() == 3, "what cannot go out is still due"
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


TOPICS = ("orders", "other")


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
    monkeypatch.setattr(doubts, "STABLE_SECONDS", 0.0)
    return RemadeCluster()


def topics_now(cluster: RemadeCluster) -> dict[str, Any]:
    return {"target_topics": lambda _asked: Places({"orders": TopicInfo("src.orders", cluster.topic_id, 1, 1)})}


def test_a_topic_that_was_deleted_stops_the_target(tmp_path: Path, remade: RemadeCluster) -> None:
    relay = Relay(tmp_path, remade, **topics_now(remade))
    relay.ingest(0, 1)
    relay.deliver()
    assert not relay.doubts.arise_from(remade.describe(["src.orders"]))
    remade.remake()
    assert relay.doubts.arise_from(remade.describe(["src.orders"]))
    with pytest.raises(TargetDiverged, match="made anew or deleted"):
        relay.fan_out.deliver()
    assert [incident[0] for incident in relay.incidents] == ["target_diverged"]
    assert not relay.doubts.arise_from({}), "a topic that is not looked at is not doubted"


def test_a_topic_that_was_deleted_is_filled_again_by_the_next_epoch(tmp_path: Path, remade: RemadeCluster) -> None:
    fields = {"recreate": True, **topics_now(remade)}
    relay = Relay(tmp_path, remade, **fields)
    relay.ingest(0, 1)
    relay.deliver()
    remade.remake()
    relay.doubts.arise_from(remade.describe(["src.orders"]))
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
    again.doubts.arise_from(remade.describe(["src.orders"]))
    assert again.deliver() == values(*range(4))
