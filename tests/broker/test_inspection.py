"""`plan`, `doctor` and `sql`: looking without running."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Flow, Records, finish

from mirrorlake import inspection
from mirrorlake.doctor import examine
from mirrorlake.errors import UsageFault
from mirrorlake.tables import FolderTables
from mirrorlake.world import connect


def plan_of(flow: Flow) -> dict[str, object]:
    config = flow.config()
    made = config.flow(flow.name)
    return inspection.make_plan(config, made, connect(config, [made]), FolderTables(flow.root)).to_json()


def test_the_plan_is_what_run_does_and_then_nothing_is_left(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(4, 2))
    flow = make_flow([topic])
    table = f"bronze.source__{topic.replace('-', '__h')}"
    nothing = {
        "target": "target", "creates": {}, "grows": {}, "folds": {}, "alters": {}, "acls": {"give": [], "take": []},
        "deletes": {}, "refusals": {}, "declined": {}, "commands": {},
    }  # fmt: skip
    wanted = {**nothing, "creates": {f"source.{topic}": 2}}
    assert plan_of(flow) == {"flow": "flow", "tables": [table], "targets": [wanted]}
    assert not records.cluster("target").describe([f"source.{topic}"]), "a plan changes nothing"
    flow.run_once()
    assert plan_of(flow) == {"flow": "flow", "tables": [], "targets": [nothing]}
    records.cluster("source").grow_topic(topic, 4)
    assert plan_of(flow)["targets"] == [{**nothing, "grows": {f"source.{topic}": 4}}]


def test_a_topic_that_may_not_be_made_is_refused_with_its_reason(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic)
    flow = make_flow([topic], target={"create_topics": False})
    (target,) = plan_of(flow)["targets"]  # type: ignore[misc]
    assert list(target["refusals"]) == [f"source.{topic}"]
    code, said = finish(flow.start("--once"))
    assert code == 3, said
    assert f"--create --topic source.{topic} --partitions 1" in said


POLICY = """class Clashing:
    def target_topic(self, source, topic):
        return topic.lower() if topic.endswith(("A", "a")) else f"{source}/{topic}"

    def source_of(self, topic):
        return None

    upstream_topic = source_of
"""


def test_names_that_clash_or_are_illegal_are_refused_before_anything_runs(
    make_flow: Callable[..., Flow], records: Records, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clashing.py").write_text(POLICY)
    monkeypatch.syspath_prepend(tmp_path)
    names = [f"{topic}-A", f"{topic}-a", f"{topic}-slash"]
    for name in names:
        records.create("source", name)
        records.send("source", name, records.numbered(1))
    flow = make_flow(names, target={"naming": "python:clashing:Clashing"})
    (target,) = plan_of(flow)["targets"]  # type: ignore[misc]
    reasons = [f"would be {topic}-a, as {topic}-A already is", f"would be source/{topic}-slash, which Kafka does not"]
    assert list(target["refusals"]) == names[1:]
    for said, reason in zip(target["refusals"].values(), reasons, strict=True):
        assert said.startswith(reason)
    with pytest.raises(UsageFault, match="choose another naming policy"):
        flow.run_once()
    assert not [name for name in records.cluster("target").topic_names() if topic in name]
    assert not list(flow.root.glob("tables/bronze/*")), "and nothing was read"


def test_the_doctor_goes_step_by_step_and_stops_at_the_first_fault(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    flow = make_flow([topic], ["target", "hubs"])
    checks = list(examine(flow.config(), flow.root))
    assert all(check.ok for check in checks), [check for check in checks if not check.ok]
    assert {"source", "target", "hubs", "machine"} == {check.subject for check in checks}
    text = flow.write().read_text().replace(records.lab.cluster("target").bootstrap_servers, "127.0.0.1:1")
    flow.path.write_text(text)
    code, said = finish(flow.command("doctor", "-c", str(flow.path), "--json"))
    found = [check for check in json.loads(said) if check["subject"] == "target"]
    assert code == 1
    steps = [("configuration", True), ("name resolves", True), ("port answers", False)]
    assert [(check["what"], check["ok"]) for check in found] == steps
    assert found[-1]["fix"]


def test_sql_knows_the_names_of_the_design(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(3))
    flow = make_flow([topic])
    flow.run_once()
    table = f"bronze.source__{topic.replace('-', '__h')}"
    code, said = finish(flow.command("sql", "-c", str(flow.path), "--json", f"SELECT offset, value FROM {table}"))
    assert code == 0, said
    rows = json.loads(said[said.index("[") :])
    assert rows == [{"offset": n, "value": f"value-{n}"} for n in range(3)]
    code, said = finish(flow.command("sql", "-c", str(flow.path), "SELECT * FROM ops.nowhere"))
    assert code == 2, said
    assert "SQL: " in said
    assert "Traceback" not in said
