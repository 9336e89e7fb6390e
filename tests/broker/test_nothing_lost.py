"""Promise C: what the source dropped before it was read is named exactly, and stops the flow or not by policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Flow, Records, drop_before, wait_until

from mirrorlake.errors import SourceLoss


def recreate(records: Records, topic: str) -> None:
    admin = records.cluster("source").admin
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in records.cluster("source").describe([topic]), "the deletion")
    records.create("source", topic)


def ranges(flow: Flow) -> list[tuple[str, int, int]]:
    return [(row["kind"], row["first_offset"], row["last_offset"]) for row in flow.rows("ops.incidents")]


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_retention_that_overtakes_us_is_named_exactly(
    make_flow: Callable[..., Flow], records: Records, topic: str, policy: str
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(10))
    flow = make_flow([topic], on_source_loss=policy)
    flow.run_once()
    records.send("source", topic, records.numbered(20, first=10))
    drop_before(records, topic, 25)
    if policy == "stop":
        with pytest.raises(SourceLoss, match=r"offsets 10-24 \(retention\)"):
            flow.run_once()
    else:
        flow.run_once()
        kept = [record.value for record in records.read("target", f"source.{topic}")[0]]
        assert kept == [b"value-%d" % n for n in [*range(10), *range(25, 30)]]
    assert ranges(flow) == [("retention", 10, 24)]


@pytest.mark.parametrize("again", [5, 40], ids=["shorter than before", "grown past the old offset"])
def test_a_topic_made_anew_is_noticed_by_its_id(
    make_flow: Callable[..., Flow], records: Records, topic: str, again: int
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(20))
    flow = make_flow([topic])
    flow.run_once()
    recreate(records, topic)
    records.send("source", topic, records.numbered(again, first=100))
    with pytest.raises(SourceLoss, match="topic_recreated"):
        flow.run_once()
    assert [kind for kind, _, _ in ranges(flow)] == ["topic_recreated"]
    flow.options["on_source_loss"] = "continue"
    flow.run_once()
    flow.run_once()
    values = [record.value for record in records.read("target", f"source.{topic}")[0]]
    assert values == [b"value-%d" % n for n in [*range(20), *range(100, 100 + again)]]


def test_a_lost_checkpoint_costs_nothing(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    import shutil

    records.create("source", topic)
    records.send("source", topic, records.numbered(30))
    flow = make_flow([topic])
    flow.run_once()
    for _ in range(2):
        shutil.rmtree(flow.root / "checkpoints")
        records.send("source", topic, records.numbered(10))
        flow.run_once()
    assert len(records.read("target", f"source.{topic}")[0]) == 50
    assert flow.audit().ok
