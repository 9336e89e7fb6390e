"""Looking at a storage root without Spark and without clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlake.config import parse, with_root
from mirrorlake.errors import StorageUnreachable
from mirrorlake.inspection import read_stored
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
