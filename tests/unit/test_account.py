"""What a target has, and what is entered of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from relays import SMALL, Killed, Relay, killed, large, values
from samples import (
    FakeCluster,
    bronze_row,
    errand,
)

from mirrorlake.account import Outbox, joined


def test_neighbours_left_out_for_one_reason_are_one_item() -> None:
    items = [(7, 1, "loop"), (3, 1, "hops"), (1, 1, "loop"), (2, 1, "loop"), (4, 2, "hops"), (8, 1, "hops")]
    assert joined(items) == [(1, 2, "loop"), (3, 3, "hops"), (7, 1, "loop"), (8, 1, "hops")]


def test_a_dead_letter_is_listed_before_the_ledger_passes_it_over(tmp_path: Path, cluster: FakeCluster) -> None:
    relay = Relay(tmp_path, cluster, **SMALL, outbox=Outbox(killed, killed))
    relay.ingest_rows(bronze_row(0), large(1), bronze_row(2))
    with pytest.raises(Killed):
        relay.fan_out.deliver()
    relay.account.ledger.flush()
    again = Relay(tmp_path, cluster, **SMALL | {"errand": errand(dead_letters=True, epoch=2)})
    assert again.deliver() == values(0, 2)
    assert again.dead_letters == [1]
