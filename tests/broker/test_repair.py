"""What a target misses is sent again from bronze, also when the source has it no more."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
from harness import Flow, Record, Records, finish, wait_until
from test_groups import commit, look

from mirrorlake.control import read_status
from mirrorlake.errors import ExistingRecords, TargetDiverged, Undeliverable
from mirrorlake.provenance import HEADER, Provenance, digest, topic_id_bytes
from mirrorlake.repair import apply_repairs, make_repairs
from mirrorlake.tables import FolderTables
from mirrorlake.world import connect


def repair(flow: Flow) -> None:
    config = flow.config()
    made = config.flow(flow.name)
    apply_repairs(config, made, made.targets[0], connect(config, [made]), FolderTables(flow.root))


def plans(flow: Flow) -> list[str]:
    config = flow.config()
    made = config.flow(flow.name)
    found = make_repairs(config, made, made.targets[0], connect(config, [made]), FolderTables(flow.root))
    return [item.why for _, plan in found for item in [*plan.refills, *plan.resends]]


def test_a_target_topic_made_anew_stops_the_flow_and_is_filled_from_bronze(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    sent, name = records.numbered(60), f"source.{topic}"
    records.create("source", topic)
    records.send("source", topic, sent)
    flow = make_flow([topic])
    flow.run_once()
    target = records.cluster("target")
    target.admin.delete_topics([name])[name].result()
    wait_until(lambda: name not in target.describe([name]), "the deletion")
    with pytest.raises(TargetDiverged, match="made anew or deleted"):
        flow.run_once()
    assert plans(flow) == ["the topic was made anew"]
    repair(flow)
    flow.run_once()
    assert records.read("target", name)[0] == sent
    assert flow.audit().ok


def test_a_record_too_large_is_set_aside_or_stops_and_is_sent_once_it_fits(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    large = Record(os.urandom(1_500_000))
    sent = [*records.numbered(5), large, *records.numbered(5, first=5)]
    records.create("source", topic, max_message_bytes="3000000")
    records.send("source", topic, sent, **{"message.max.bytes": 3_000_000})
    flow = make_flow([topic], target={"configs": {"exclude": [r"max\.message\.bytes"]}})
    with pytest.raises(Undeliverable, match=r"offset 5 \(\d+ bytes\) is larger than the target takes"):
        flow.run_once()
    assert len(records.read("target", f"source.{topic}")[0]) == 5
    flow.options["on_undeliverable"] = "dead_letter"
    flow.run_once()
    small = [record for record in sent if record is not large]
    assert records.read("target", f"source.{topic}")[0] == small
    (letter,) = flow.rows("ops.dead_letters")
    assert (letter["source_offset"], letter["reason"]) == (5, "larger than the target takes")
    assert translated(flow, records, topic, 4, 5, 6, 11) == [4, 5, 5, 10], "a dead letter leaves no hole"
    with pytest.raises(Undeliverable, match="still larger"):
        repair(flow)
    raise_limit(records, f"source.{topic}")
    repair(flow)
    assert records.read("target", f"source.{topic}")[0] == [*small, large]
    assert plans(flow) == []
    assert flow.audit().ok


def translated(flow: Flow, records: Records, topic: str, *offsets: int) -> list[int | None]:
    """Where groups that stand at these offsets go on at the target."""
    for offset in offsets:
        commit(records, "source", f"{topic}.{offset:02}", topic, offset)
    _, lines = look(flow, *(f"{topic}.{offset:02}" for offset in offsets))
    return [line.target_offset for line in sorted(lines, key=lambda line: line.group)]


def raise_limit(records: Records, topic: str, size_bytes: int = 3_000_000) -> None:
    assert not records.cluster("target").alter_configs({topic: {"max.message.bytes": str(size_bytes)}})


# --- dead letters, each once ---

MIDDLE, LARGE = Record(os.urandom(50_000)), Record(os.urandom(80_000))


def with_dead_letters(make_flow: Callable[..., Flow], records: Records, topic: str, sent: list[Record]) -> Flow:
    """A run that has set aside what the target does not take."""
    records.create("source", topic)
    records.create("target", f"source.{topic}", max_message_bytes="20000")
    records.send("source", topic, sent)
    exclude = {"configs": {"exclude": [r"max\.message\.bytes"]}}
    flow = make_flow([topic], target=exclude, on_undeliverable="dead_letter")
    flow.run_once()
    return flow


def apply(flow: Flow, fail: str = "") -> tuple[int, str]:
    arguments = ("repair", "-c", str(flow.write()), "--target", "target", "--apply")
    return finish(flow.command(*arguments, environment={"MIRRORLAKE_FAIL": fail}))


def duplicates(flow: Flow) -> list[int]:
    return [row["first_offset"] for row in flow.rows("ops.incidents") if row["kind"] == "duplicate"]


@pytest.mark.parametrize("between", [0, 1])
def test_what_a_repair_sent_before_a_record_that_is_still_too_large_is_not_sent_again(
    make_flow: Callable[..., Flow], records: Records, topic: str, between: int
) -> None:
    """Side by side they are one errand, apart they are two."""
    small = records.numbered(4 + between)
    sent = [*small[:2], MIDDLE, *small[2 : 2 + between], LARGE, *small[2 + between :]]
    flow = with_dead_letters(make_flow, records, topic, sent)
    raise_limit(records, f"source.{topic}", 60_000)
    for _ in range(2):
        code, said = apply(flow)
        assert code == 4, said
        assert f"offset {3 + between} (80" in said
        assert "is still larger than the target takes (60000 bytes)" in " ".join(said.split())
        assert records.read("target", f"source.{topic}")[0] == [*small, MIDDLE]
    raise_limit(records, f"source.{topic}")
    assert apply(flow)[0] == 0
    assert records.read("target", f"source.{topic}")[0] == [*small, MIDDLE, LARGE]
    assert plans(flow) == []
    assert flow.audit().ok


@pytest.mark.parametrize("run_between", [False, True])
def test_what_a_killed_repair_sent_is_not_sent_again(
    make_flow: Callable[..., Flow], records: Records, topic: str, run_between: bool
) -> None:
    small = records.numbered(4)
    flow = with_dead_letters(make_flow, records, topic, [*small[:2], MIDDLE, small[2], LARGE, small[3]])
    raise_limit(records, f"source.{topic}")
    assert apply(flow, fail="proven:1:kill")[0] == -9
    assert records.read("target", f"source.{topic}")[0] == [*small, MIDDLE]
    if run_between:
        flow.run_once()
    code, said = apply(flow)
    assert code == 0, said
    assert records.read("target", f"source.{topic}")[0] == [*small, MIDDLE, LARGE]
    assert flow.audit().ok
    assert duplicates(flow) == []
    flow.run_once()
    assert records.read("target", f"source.{topic}")[0] == [*small, MIDDLE, LARGE]


def test_what_a_killed_run_sent_is_written_down_before_a_repair_sends_after_it(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    """Else the ledger's end would move past it, and the next run would send it again."""
    small, later = records.numbered(4), records.numbered(20, first=4)
    flow = with_dead_letters(make_flow, records, topic, [*small, MIDDLE])
    records.send("source", topic, later)
    assert finish(flow.start("--once", environment={"MIRRORLAKE_FAIL": "settled:1:kill"}))[0] == -9
    assert records.read("target", f"source.{topic}")[0] == [*small, *later]
    raise_limit(records, f"source.{topic}")
    code, said = apply(flow)
    assert code == 0, said
    flow.run_once()
    assert records.read("target", f"source.{topic}")[0] == [*small, *later, MIDDLE]
    assert flow.audit().ok


@pytest.mark.parametrize("fail", ["", "hole-noted:1:kill", "proven:1:kill", "repair-sent:1:kill"])
def test_a_hole_stops_the_target_and_repair_fills_it(
    make_flow: Callable[..., Flow], records: Records, topic: str, fail: str
) -> None:
    """Records 3, 6 and 7 of a dead runner landed, those between did not."""
    sent = records.numbered(10)
    records.create("source", topic)
    records.send("source", topic, sent[:3])
    flow = make_flow([topic])
    flow.run_once()
    records.send("source", topic, sent[3:])
    records.send("target", f"source.{topic}", [stamped(flow, records, topic, sent, n) for n in (3, 6, 7)])
    with pytest.raises(TargetDiverged, match="offsets 4-5 are missing before later ones"):
        flow.run_once()
    incidents = flow.rows("ops.incidents")
    assert [(row["kind"], row["first_offset"], row["last_offset"]) for row in incidents] == [("target_diverged", 4, 5)]
    if fail:
        assert apply(flow, fail)[0] == -9
    code, said = apply(flow)
    assert code == 0, said
    flow.run_once()
    there = [sent[n] for n in (0, 1, 2, 3, 6, 7, 4, 5, 8, 9)]
    assert records.read("target", f"source.{topic}")[0] == there
    assert flow.audit().ok
    assert duplicates(flow) == []
    assert plans(flow) == []


def test_a_hole_stops_its_partition_while_the_others_go_on(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    """Record 4 of partition 0 landed and 3 did not; partition 1 is well."""
    sent, name = records.numbered(20, 2), f"source.{topic}"
    records.create("source", topic, 2)
    records.send("source", topic, sent[:6])
    flow = make_flow([topic])
    flow.run_once()
    records.send("source", topic, sent[6:])
    records.send("target", name, [stamped(flow, records, topic, sent[::2], 4)])
    with pytest.raises(TargetDiverged, match="offsets 3-3 are missing before later ones"):
        flow.run_once()
    assert len(records.read("target", name)[1]) == 10, "a single pass sends what it can, too"
    runner = flow.start()
    more = records.numbered(10, 2, first=20)
    records.send("source", topic, more)
    wait_until(lambda: len(records.read("target", name)[1]) == 15, "what came to partition 1 later")
    (shown,) = read_status(flow.root, flow.name)["targets"]
    assert "offsets 3-3 are missing before later ones" in shown["waiting"]
    runner.send_signal(signal.SIGTERM)
    code, said = finish(runner)
    assert code == 4, said
    assert "offsets 3-3 are missing before later ones" in " ".join(said.split())
    assert records.read("target", name)[0] == [sent[n] for n in (0, 2, 4, 8)]
    assert apply(flow)[0] == 0
    flow.run_once()
    there = records.read("target", name)
    assert there[0] == [sent[n] for n in (0, 2, 4, 8, 6, 10, 12, 14, 16, 18)] + more[::2]
    assert there[1] == sent[1::2] + more[1::2]
    assert flow.audit().ok
    assert len(flow.rows("ops.incidents")) == 1


def stamped(flow: Flow, records: Records, topic: str, sent: list[Record], offset: int) -> Record:
    """A record as a runner of this flow sends it."""
    source = records.cluster("source")
    topic_id = topic_id_bytes(source.describe([topic])[topic].id)
    flow_id, origin = digest(flow.name), digest(source.cluster_id())
    came = Provenance(flow_id, origin, topic_id, 0, offset, offset, hops=1, epoch=1)
    return replace(sent[offset], headers=(*sent[offset].headers, (HEADER, came.encode())))


@pytest.mark.parametrize(("policy", "kept"), [("stop", None), ("append", 9), ("latest", 4)])
def test_records_that_the_ledger_does_not_know(
    make_flow: Callable[..., Flow], records: Records, topic: str, policy: str, kept: int | None
) -> None:
    """An MM2 was here before us: the choice is the operator's, and nothing is sent twice by surprise."""
    records.create("source", topic)
    records.send("source", topic, records.numbered(5))
    records.create("target", f"source.{topic}")
    records.send("target", f"source.{topic}", records.numbered(4))
    flow = make_flow([topic], target={"existing_records": policy})
    if kept is None:
        with pytest.raises(ExistingRecords, match=r"latest .* existing_records: append .* `mirrorlake adopt"):
            flow.run_once()
        return
    flow.run_once()
    assert len(records.read("target", f"source.{topic}")[0]) == kept
    records.send("source", topic, records.numbered(3, first=5))
    flow.run_once()
    assert len(records.read("target", f"source.{topic}")[0]) == kept + 3


def test_a_timestamp_that_the_target_refuses_is_found_among_its_neighbours(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    """Brokers refuse whole batches: which record it was is found by sending them one by one."""
    import time

    far = Record(b"from the future", timestamp_ms=int(time.time() * 1000) + 86_400_000)
    sent = [*records.numbered(20), far, *records.numbered(20, first=20)]
    records.create("source", topic, message_timestamp_after_max_ms=str(2**62))
    records.create("target", f"source.{topic}", message_timestamp_after_max_ms="3600000")
    records.send("source", topic, sent)
    flow = make_flow([topic], target={"configs": {"enabled": False}})
    with pytest.raises(Undeliverable, match=r"offset 20 .* Invalid timestamp"):
        flow.run_once()
    assert records.read("target", f"source.{topic}")[0] == sent[:20]
    flow.options["on_undeliverable"] = "dead_letter"
    flow.run_once()
    assert records.read("target", f"source.{topic}")[0] == [record for record in sent if record is not far]
    (letter,) = flow.rows("ops.dead_letters")
    assert letter["source_offset"] == 20
    assert flow.audit().ok
