"""Promise C beyond the plain cases: sources that change under a flow, and records that are in bronze alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from harness import Flow, Record, Records, drop_before, finish, wait_until
from test_nothing_lost import delete, ranges, recreate, running

from mirrorlake.control import Pause, pause, resume
from mirrorlake.errors import SourceLoss
from mirrorlake.lab import Lab


def values(records: Records, topic: str, partition: int = 0, name: str = "target") -> list[bytes | None]:
    return [record.value for record in records.read(name, f"source.{topic}")[partition]]


def numbers(*offsets: Iterator[int] | range | int) -> list[bytes]:
    flat = [n for each in offsets for n in ([each] if isinstance(each, int) else each)]
    return [b"value-%d" % n for n in flat]


# --- logs that begin late ---


def test_a_partition_whose_first_records_are_gone_before_it_is_read(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(5))
    flow = make_flow([topic])
    flow.run_once()
    records.cluster("source").grow_topics({topic: 2})
    wait_until(lambda: records.cluster("source").describe([topic])[topic].partitions == 2, "a second partition")
    records.send("source", topic, [Record(b"value-%d" % n, partition=1) for n in range(10)])
    drop_before(records, topic, 6, partition=1)
    with pytest.raises(SourceLoss, match=r"\[1\] offsets 0-5 \(retention\)"):
        flow.run_once()
    assert ranges(flow) == [("retention", 0, 5)]
    flow.options["on_source_loss"] = "continue"
    flow.run_once()
    assert values(records, topic, partition=1) == numbers(range(6, 10))
    assert flow.audit().ok


def test_a_topic_of_a_pattern_that_came_while_nobody_looked_and_has_lost_its_begin(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    first, later = f"{topic}-1", f"{topic}-2"
    records.create("source", first)
    records.send("source", first, records.numbered(3))
    flow = make_flow([], patterns=[f"{topic}-.*"], on_source_loss="continue")
    flow.run_once()
    records.create("source", later)
    records.send("source", later, records.numbered(10))
    drop_before(records, later, 4)
    flow.run_once()
    assert ranges(flow) == [("retention", 0, 3)]
    assert values(records, later) == numbers(range(4, 10))


def test_a_topic_made_anew_that_has_lost_its_begin_too(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(5))
    flow = make_flow([topic], on_source_loss="continue")
    flow.run_once()
    recreate(records, topic)
    records.send("source", topic, records.numbered(10, first=100))
    drop_before(records, topic, 2)
    flow.run_once()
    assert ranges(flow) == [("topic_recreated", 5, 5), ("retention", 0, 1)]
    assert values(records, topic) == numbers(range(5), range(102, 110))


def test_a_batch_that_bronze_has_and_the_checkpoint_does_not_is_no_loss(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(10))
    flow = make_flow([topic])
    flow.run_once()
    records.send("source", topic, records.numbered(10, first=10))
    code, said = finish(flow.start("--once", environment={"MIRRORLAKE_FAIL": "bronze-committed:1:kill"}))
    assert code == -9, said
    drop_before(records, topic, 15)
    flow.run_once()
    assert ranges(flow) == []
    assert values(records, topic) == numbers(range(20))


# --- topics made anew, and where a flow begins ---


def test_a_topic_made_anew_while_it_is_read_is_read_from_its_begin(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(10))
    flow = make_flow([topic], on_source_loss="continue")
    with running(flow):
        wait_until(lambda: records.arrived("target", f"source.{topic}", 10), "the first topic")
        recreate(records, topic)
        records.send("source", topic, records.numbered(30, first=100))
        wait_until(lambda: records.arrived("target", f"source.{topic}", 40), "the second one")
    assert values(records, topic) == numbers(range(10), range(100, 130))
    assert {kind for kind, _, _ in ranges(flow)} <= {"topic_recreated", "topic_deleted"}
    assert ranges(flow)


@pytest.mark.parametrize("again", [3, 30], ids=["shorter than the start", "longer than the start"])
def test_a_topic_made_anew_counts_from_its_begin_wherever_the_flow_began(
    make_flow: Callable[..., Flow], records: Records, topic: str, again: int
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(20))
    flow = make_flow([topic], start="latest", on_source_loss="continue")
    flow.run_once()
    records.send("source", topic, records.numbered(5, first=20))
    flow.run_once()
    recreate(records, topic)
    records.send("source", topic, records.numbered(again, first=100))
    flow.run_once()
    assert values(records, topic) == numbers(range(20, 25), range(100, 100 + again))


def test_a_flow_begins_at_the_latest_beside_an_open_transaction(
    make_flow: Callable[..., Flow], records: Records, topic: str, lab: Lab
) -> None:
    """What is open at the start counts as coming after it; the query cannot begin behind what may be read."""
    records.create("source", topic)
    records.send("source", topic, records.numbered(5))
    writer = Producer({**lab.cluster("source").client_config(), "transactional.id": topic})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"value-5", partition=0)
    writer.flush(30)
    flow = make_flow([topic], start="latest")
    flow.run_once()
    writer.commit_transaction(30)
    records.send("source", topic, records.numbered(2, first=6))
    flow.run_once()
    assert values(records, topic) == numbers(5, 6, 7)


# --- what is in bronze alone ---


def held_back(flow: Flow, records: Records, topic: str) -> None:
    """Ten records are on the target, ten more in bronze, and none of those at the source."""
    flow.run_once()
    records.send("source", topic, records.numbered(10, first=10))
    pause(flow.root, flow.name, Pause("target", None))
    flow.run_once()
    delete(records, topic)


def test_a_listed_topic_that_is_deleted_reaches_the_target_from_bronze_and_is_read_when_it_comes_again(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(10))
    flow = make_flow([topic], on_source_loss="continue")
    held_back(flow, records, topic)
    flow.run_once()
    assert ranges(flow) == [("topic_deleted", 20, 20)]
    resume(flow.root, flow.name, None, None)
    flow.run_once()
    assert values(records, topic) == numbers(range(20))
    with running(flow):
        records.create("source", topic)
        records.send("source", topic, records.numbered(5, first=100))
        wait_until(lambda: records.arrived("target", f"source.{topic}", 25), "the topic that came again")
    assert values(records, topic) == numbers(range(20), range(100, 105))
    assert ranges(flow) == [("topic_deleted", 20, 20)], "told once"


def test_a_target_that_comes_later_gets_topics_and_partitions_that_the_source_has_no_more(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    gone, fewer = f"{topic}-gone", f"{topic}-fewer"
    for name in (gone, fewer):
        records.create("source", name, 3)
        records.send("source", name, records.numbered(9, 3))
    flow = make_flow([], patterns=[f"{topic}-.*"], on_source_loss="continue")
    flow.run_once()
    delete(records, gone)
    recreate(records, fewer)
    records.send("source", fewer, records.numbered(4, first=100))
    flow.run_once()
    flow.targets.append("hubs")
    flow.run_once()
    for name in (gone, fewer):
        assert records.read("hubs", f"source.{name}") == records.read("target", f"source.{name}")
    assert values(records, fewer, name="hubs") == numbers(0, 3, 6, range(100, 104))
