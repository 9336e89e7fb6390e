"""What people must hear of is written down, and what every start would find again only once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlake.records import INCIDENTS, SourcePartition
from mirrorlake.tables import FolderTables
from mirrorlake.writings import Writings

SOURCE = SourcePartition("orders", "id-1", 2)


@pytest.fixture
def tables(tmp_path: Path) -> FolderTables:
    made = FolderTables(tmp_path)
    made.ensure("ops.incidents", INCIDENTS, {})
    return made


def writings(tables: FolderTables, flow: str = "f") -> Writings:
    world: Any = SimpleNamespace(tables=tables, ops=lambda name: f"ops.{name}")
    return Writings(world, flow)


def test_a_finding_is_written_down_once_by_whoever_starts(tables: FolderTables) -> None:
    for _ in range(2):
        again = writings(tables)
        for _ in range(2):
            again.finding("retention", "", SOURCE, 10, 19, "policy stop")
    (row,) = tables.read("ops.incidents").to_pylist()
    assert row.pop("at") is not None
    assert row == {
        "flow": "f", "target": "", "kind": "retention", "topic": "orders", "topic_id": "id-1", "partition": 2,
        "first_offset": 10, "last_offset": 19, "detail": "policy stop",
    }  # fmt: skip


def test_other_records_another_flow_and_another_policy_are_findings_of_their_own(tables: FolderTables) -> None:
    told = writings(tables)
    told.finding("retention", "", SOURCE, 10, 19, "policy stop")
    told.finding("retention", "", SOURCE, 10, 19, "policy continue")
    told.finding("retention", "", SOURCE, 10, 20, "policy stop")
    told.finding("retention", "", SOURCE._replace(topic_id="id-2"), 10, 19, "policy stop")
    writings(tables, "g").finding("retention", "", SOURCE, 10, 19, "policy stop")
    assert tables.read("ops.incidents").num_rows == 5


def test_what_happens_twice_is_written_down_twice(tables: FolderTables) -> None:
    for _ in range(2):
        writings(tables).incident("target_topic_deleted", "dr", SOURCE, -1, -1, "its source is gone")
    assert tables.read("ops.incidents").num_rows == 2
