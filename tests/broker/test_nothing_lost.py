"""Promise C: what the source dropped before it was read is named exactly, and stops the flow or not by policy."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from harness import Flow, Records, drop_before, wait_until

from mirrorlake.errors import SourceLoss
from mirrorlake.runner import Run


def delete(records: Records, topic: str) -> None:
    admin = records.cluster("source").admin
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in records.cluster("source").describe([topic]), "the deletion")


def recreate(records: Records, topic: str) -> None:
    delete(records, topic)
    records.create("source", topic)


@contextlib.contextmanager
def running(flow: Flow) -> Iterator[None]:
    run = Run(flow.config(), spark=flow.spark)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        run.stopping.set()
        thread.join(60)


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
    assert ranges(flow) == [("topic_recreated", 20, 20)]
    assert "nothing was left to read at" in flow.rows("ops.incidents")[0]["detail"]
    flow.options["on_source_loss"] = "continue"
    flow.run_once()
    flow.run_once()
    values = [record.value for record in records.read("target", f"source.{topic}")[0]]
    assert values == [b"value-%d" % n for n in [*range(20), *range(100, 100 + again)]]


@pytest.mark.parametrize(("kind", "act"), [("topic_deleted", delete), ("topic_recreated", recreate)])
def test_of_a_topic_that_is_gone_the_range_is_named_as_far_as_it_was_sampled(
    make_flow: Callable[..., Flow], records: Records, topic: str, kind: str, act: Callable[[Records, str], None]
) -> None:
    kept, doomed = f"{topic}-kept", f"{topic}-doomed"
    for name in (kept, doomed):
        records.create("source", name)
        records.send("source", name, records.numbered(10))
    # After its first batch ingest stays behind: the next one is a day away.
    flow = make_flow([], patterns=[f"{topic}-.*"], ingest={"trigger_seconds": 86400})
    with running(flow):
        wait_until(lambda: records.arrived("target", f"source.{doomed}", 10), "the first batch")
        records.send("source", doomed, records.numbered(20, first=10))
        wait_until(lambda: 30 in {row["log_end"] for row in flow.rows("ops.lag_samples")}, "a sample that sees them")
    act(records, doomed)
    with pytest.raises(SourceLoss, match=rf"doomed\[0\] offsets 10-29 \({kind}\)"):
        flow.run_once()
    assert ranges(flow) == [(kind, 10, 29)]
    (incident,) = flow.rows("ops.incidents")
    assert incident["detail"].startswith("policy stop; known up to 30 at 20")
    assert incident["detail"].endswith("; what came after that is unknown")


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
