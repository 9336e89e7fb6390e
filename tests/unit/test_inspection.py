"""Looking at a storage root without Spark and without clusters."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirrorlake import control
from mirrorlake.config import parse, with_root
from mirrorlake.errors import StorageUnreachable
from mirrorlake.inspection import read_status, read_stored
from mirrorlake.records import LEDGER
from mirrorlake.tables import FolderTables
from mirrorlake.topics import relay_specs

CONFIG = """
clusters: {src: {bootstrap_servers: 'a:1'}, dr: {bootstrap_servers: 'b:1'}}
flows: {orders: {source: src, topics: [orders], targets: [{cluster: dr}]}}
"""


@pytest.mark.parametrize(
    ("others_ran", "said"),
    [(False, "there is no table ops[.]ledger"), (True, "there is no table bronze[.]src__orders")],
)
def test_a_flow_that_never_ran_under_this_root_is_said_so(tmp_path: Path, others_ran: bool, said: str) -> None:
    config = with_root(parse(CONFIG, "x.yml"), tmp_path)
    tables, flow = FolderTables(tmp_path), config.flow("orders")
    if others_ran:
        tables.ensure("ops.ledger", LEDGER, {})
    (spec,) = relay_specs(config, flow)
    with pytest.raises(StorageUnreachable, match=said) as fault:
        read_stored(config, tables, flow, spec)
    assert "run" in fault.value.next_step


@pytest.mark.parametrize(("seconds_ago", "state"), [(1, "running"), (600, "crashed")])
def test_on_a_catalog_a_runner_lives_while_it_says_so(tmp_path: Path, seconds_ago: float, state: str) -> None:
    """No lock of this machine says anything of a job on another."""
    config = parse(CONFIG + "storage: {catalog: main, volume: /Volumes/main/ops/state}", "x.yml")
    control.write_status(tmp_path, "orders", {"state": "running", "at": time.time() - seconds_ago})
    assert [flow["state"] for flow in read_status(config, tmp_path)] == [state]
