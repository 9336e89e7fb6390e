"""Promise J: bad input is refused with a message that says what is wrong, where, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml
from harness import Flow, Records, finish

CASES: dict[str, tuple[Callable[[dict], None], int, str]] = {
    "a broker that is not there": (
        lambda c: c["clusters"]["source"].update(bootstrap_servers="127.0.0.1:1"), 3, "cluster source"),
    "a target that is not there": (
        lambda c: c["clusters"]["target"].update(bootstrap_servers="127.0.0.1:1"), 3, "cluster target"),
    "a topic that is not there": (lambda c: c["flows"]["flow"].update(topics=["no-such-topic"]), 3, "no-such-topic"),
    "a wrong password": (
        lambda c: c["clusters"]["hubs"]["security"].update(password="${env:WRONG_PASSWORD}"), 3, "cluster hubs"),
    "a storage root that cannot be written": (
        lambda c: c["storage"].update(root="/proc/nowhere"), 3, "/proc/nowhere"),
    "an unknown key": (lambda c: c["flows"]["flow"].update(topicz=["x"]), 2, "topicz"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_in_one_paragraph(
    make_flow: Callable[..., Flow], records: Records, topic: str, case: str
) -> None:
    change, wanted_code, named = CASES[case]
    records.create("source", topic)
    records.send("source", topic, records.numbered(3))
    flow = make_flow([topic], ["target", "hubs"])
    content = yaml.safe_load(flow.write().read_text())
    change(content)
    flow.path.write_text(yaml.safe_dump(content))
    running = flow.command("run", "-c", str(flow.path), "--once", environment={"WRONG_PASSWORD": "wr0ng-s3cret"})
    code, said = finish(running)
    assert code == wanted_code, said
    assert named in said
    assert "next:" in said
    assert "Traceback" not in said
    assert "wr0ng-s3cret" not in said
    assert not (flow.root / "tables" / "bronze").exists(), "nothing half-made"


def test_a_topic_that_is_not_there_keeps_those_beside_it_from_being_made(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    """All topics of a flow are looked at before anything is made for one of them."""
    records.create("source", topic)
    records.send("source", topic, records.numbered(3))
    flow = make_flow([topic, f"{topic}.missing"], ["target", "hubs"])
    code, said = finish(flow.start("--once"))
    assert code == 3, said
    assert f"{topic}.missing" in said
    assert "next:" in said
    assert "Traceback" not in said
    assert not (flow.root / "tables" / "bronze").exists()
    for target in flow.targets:
        assert not records.cluster(target).describe([f"source.{topic}", f"source.{topic}.missing"])


def test_a_checkpoint_of_another_flow_is_refused(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(3))
    flow = make_flow([topic])
    flow.run_once()
    mark = next((flow.root / "checkpoints" / "flow").glob("ingest.*/g0.json"))
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "flow": "another"}))
    records.send("source", topic, records.numbered(3, first=3))
    code, said = finish(flow.start("--once"))
    assert code == 4, said
    assert "belongs to something other" in said
    assert "its flow is another, this flow's is flow" in said
    assert "next: use another --root" in said
    assert "Traceback" not in said
    assert records.read("target", f"source.{topic}")[0] == records.numbered(3), "nothing was sent"


def test_missing_java_is_told_with_the_command(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    records.create("source", topic)
    flow = make_flow([topic])
    code, said = finish(flow.start("--once", environment={"PATH": "/nonexistent", "JAVA_HOME": ""}))
    assert code == 2, said
    assert "openjdk-17" in said
    assert "Traceback" not in said
    assert not flow.root.exists(), "nothing half-made"
    assert not records.cluster("target").describe([f"source.{topic}"])
