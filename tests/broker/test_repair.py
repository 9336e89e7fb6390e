"""What a target misses is sent again from bronze, also when the source has it no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Flow, Record, Records, wait_until
from test_groups import commit, look

from mirrorlake.errors import ExistingRecords, TargetDiverged, Undeliverable
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
    import os

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


def raise_limit(records: Records, topic: str) -> None:
    assert not records.cluster("target").alter_configs({topic: {"max.message.bytes": "3000000"}})


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
        with pytest.raises(ExistingRecords, match="existing_records"):
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
