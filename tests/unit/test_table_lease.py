"""A lease that lives in a table: one wins, a crashed one ends, a lost one is noticed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pytest

from mirrorlake.errors import LeaseHeld
from mirrorlake.lease import TableLease, hold_in_table
from mirrorlake.records import LEASES
from mirrorlake.tables import FolderTables

NAME = "ops.leases"


@pytest.fixture
def tables(tmp_path: Path) -> FolderTables:
    made = FolderTables(tmp_path)
    made.ensure(NAME, LEASES, {})
    return made


def test_a_second_holder_is_refused_while_the_first_lives_and_follows_after_it(tables: FolderTables) -> None:
    with hold_in_table(tables, NAME, "f", "one") as first:
        with pytest.raises(LeaseHeld, match="one, epoch 1"), hold_in_table(tables, NAME, "f", "two"):
            pass
        first.beat()
    with hold_in_table(tables, NAME, "f", "two") as second:
        assert second.epoch == 2
    with hold_in_table(tables, NAME, "g", "two") as other:
        assert other.epoch == 1


def test_a_crashed_holder_gives_up_after_its_time(tables: FolderTables) -> None:
    old = datetime.now(timezone.utc) - timedelta(seconds=100)
    row = {"flow": "f", "epoch": 7, "owner": "crashed", "at": old}
    tables.append(NAME, pa.Table.from_pylist([row], schema=LEASES))
    with hold_in_table(tables, NAME, "f", "next") as lease:
        assert lease.epoch == 8


def test_a_holder_that_was_overtaken_notices(tables: FolderTables) -> None:
    with pytest.raises(LeaseHeld, match="another runner took"), hold_in_table(tables, NAME, "f", "one"):
        TableLease("f", 2, tables, NAME, "two").claim()
        # leaving the block gives the lease up, which is no longer ours to give


def claim(root: str, owner: str) -> bool:
    try:
        TableLease("f", 1, FolderTables(Path(root)), NAME, owner).claim()
    except LeaseHeld:
        return False
    return True


def test_of_many_who_claim_one_epoch_one_wins(tables: FolderTables) -> None:
    with get_context("spawn").Pool(4) as pool:
        won = pool.starmap(claim, [(str(tables.root), f"runner {n}") for n in range(12)])
    assert sum(won) == 1
