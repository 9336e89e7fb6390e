"""What a target's topics may lack: partitions, or the whole topic."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from harness import Flow, Record, Records, count, flat, wait_until

from mirrorlake.errors import TopicMissing
from mirrorlake.runner import Run


def test_fewer_partitions_than_the_source_keep_every_key_in_order(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    name, sent = f"source.{topic}", records.numbered(100, 5)
    records.create("source", topic, 5)
    records.create("target", name, 2)
    records.send("source", topic, sent[:60])
    flow = make_flow([topic], target={"partitions": "modulo"})
    flow.run_once()
    records.send("source", topic, sent[60:])
    flow.run_once()
    found = records.read("target", name)
    assert sorted(r.value or b"" for r in flat(found)) == sorted(r.value or b"" for r in sent)
    for partition in range(5):
        expected = [record.value for record in sent if record.partition == partition]
        kept = {record.value for record in sent if record.partition == partition}
        assert [record.value for record in found[partition % 2] if record.value in kept] == expected
    assert flow.audit().ok


def test_a_topic_that_cannot_grow_is_refused_by_default(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic, 3)
    records.create("target", f"source.{topic}", 2)
    flow = make_flow([topic], target={"create_topics": False})
    with pytest.raises(TopicMissing, match="partitions: modulo"):
        flow.run_once()
    assert count(records.read("target", f"source.{topic}")) == 0


def test_a_topic_that_somebody_deleted_is_made_again_and_filled_while_the_rest_runs(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    name, sent = f"source.{topic}", records.numbered(60)
    records.create("source", topic)
    records.send("source", topic, sent)
    flow = make_flow([topic], target={"on_topic_deleted": "recreate"})
    run = Run(flow.config(), spark=flow.spark)
    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    try:
        wait_until(lambda: records.arrived("target", name, 60), "all records")
        before = records.cluster("target").describe([name])[name].id
        records.cluster("target").delete_topic(name)

        def again() -> bool:
            topics = records.cluster("target").describe([name])
            return name in topics and topics[name].id != before and records.arrived("target", name, 60)

        wait_until(again, "the topic made again and filled", 90)
        records.send("source", topic, [Record(b"after")])
        wait_until(lambda: records.arrived("target", name, 61), "the record after")
    finally:
        run.stopping.set()
        runner.join(60)
    assert [record.value for record in flat(records.read("target", name))] == [r.value for r in sent] + [b"after"]
    assert "target_topic_remade" in [row["kind"] for row in flow.rows("ops.incidents")]
    assert flow.audit().ok


def test_a_deletion_on_the_source_reaches_the_target_after_the_time_of_grace(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    kept, doomed = f"{topic}-kept", f"{topic}-doomed"
    for name in (kept, doomed):
        records.create("source", name)
        records.send("source", name, records.numbered(5))
    policy = {"on_source_deleted": "delete", "delete_after_seconds": 4}
    flow = make_flow([], patterns=[f"{topic}-.*"], on_source_loss="continue", target=policy)
    target = records.cluster("target")
    run = Run(flow.config(), spark=flow.spark)
    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    try:
        for name in (kept, doomed):
            wait_until(lambda name=name: records.arrived("target", f"source.{name}", 5), name)  # type: ignore[misc]
        records.cluster("source").delete_topic(doomed)
        wait_until(lambda: list((flow.root / "deletions").glob("*.json")), "the deletion noticed")
        assert f"source.{doomed}" in target.topic_names(), "the time of grace is not over"
        wait_until(lambda: f"source.{doomed}" not in target.topic_names(), "the deletion carried out")
        records.send("source", kept, records.numbered(3, first=5))
        wait_until(lambda: records.arrived("target", f"source.{kept}", 8), "the other topic goes on")
    finally:
        run.stopping.set()
        runner.join(60)
    kinds = [row["kind"] for row in flow.rows("ops.incidents")]
    assert "topic_deleted" in kinds
    assert "target_topic_deleted" in kinds
    flow.run_once()
    assert f"source.{doomed}" not in target.topic_names(), "and it stays away"


@pytest.fixture
def lacking(make_flow: Callable[..., Flow], records: Records, topic: str) -> Flow:
    """Two topics in one table; the target has one of them, and we may make none."""
    here, there = f"{topic}-here", f"{topic}-there"
    for name in (here, there):
        records.create("source", name, 2)
        records.send("source", name, records.numbered(20, 2))
    records.create("target", f"source.{here}", 2)
    return make_flow([here, there], bronze="bronze.both", target={"create_topics": False})


def test_records_of_a_topic_that_cannot_be_made_are_dead_letters_until_it_is_there(
    lacking: Flow, records: Records
) -> None:
    here, there = lacking.topics
    lacking.options["target"]["missing_topics"] = "dead_letter"
    lacking.run_once()
    records.send("source", there, records.numbered(10, 2, 20))
    lacking.run_once()
    assert records.read("target", f"source.{here}") == records.read("source", here)
    letters = lacking.rows("ops.dead_letters")
    coordinates = [(each["source_topic"], each["source_partition"], each["source_offset"]) for each in letters]
    assert sorted(coordinates) == [(there, partition, offset) for partition in (0, 1) for offset in range(15)]
    assert {(each["target_topic"], "may not be made" in each["reason"]) for each in letters} == {
        (f"source.{there}", True)
    }
    records.create("target", f"source.{there}", 2)
    lacking.run_once()
    assert records.read("target", f"source.{there}") == records.read("source", there)
    assert len(lacking.rows("ops.dead_letters")) == len(letters)
    assert lacking.audit().ok


def test_neighbours_of_a_topic_that_is_waited_for_go_on_and_it_is_sent_once_it_is_there(
    lacking: Flow, records: Records
) -> None:
    here, there = lacking.topics
    lacking.options["target"]["missing_topics"] = "wait"
    run = Run(lacking.config(), spark=lacking.spark)
    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    try:
        wait_until(lambda: records.arrived("target", f"source.{here}", 20), "the neighbour")
        records.send("source", here, records.numbered(10, 2, 20))
        wait_until(lambda: records.arrived("target", f"source.{here}", 30), "more of the neighbour")
        records.create("target", f"source.{there}", 2)
        wait_until(lambda: records.arrived("target", f"source.{there}", 20), "the topic that was made")
    finally:
        run.stopping.set()
        runner.join(60)
    for name in (here, there):
        assert records.read("target", f"source.{name}") == records.read("source", name)
    assert lacking.audit().ok
