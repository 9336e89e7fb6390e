"""A lease that lives in a table: one wins, a live one is never taken, a crashed one ends, a lost one is noticed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pytest

from mirrorlake.config import Storage
from mirrorlake.errors import LeaseHeld, StorageUnreachable
from mirrorlake.lease import EXPIRY, LEASE_SECONDS, SENDING, TableLease, hold_flow, hold_in_table, is_held, read_signs
from mirrorlake.records import LEASES
from mirrorlake.tables import FolderTables

NAME = "ops.leases"


@pytest.fixture
def tables(tmp_path: Path) -> FolderTables:
    made = FolderTables(tmp_path)
    made.ensure(NAME, LEASES, {})
    return made


@dataclass
class Clock:
    """Time that passes when somebody sleeps; `meanwhile` happens then."""

    at: float = 0.0
    meanwhile: list[Callable[[], object]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __call__(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def hold(self, tables: FolderTables, owner: str) -> AbstractContextManager[TableLease]:
        return hold_in_table(tables, NAME, "f", owner, self.said.append, clock=self, sleep=self.sleep)


def leave(tables: FolderTables, epoch: int, owner: str, age_seconds: float = 0) -> None:
    """A row as another machine writes it, by that machine's clock."""
    at = datetime.now(timezone.utc) - timedelta(seconds=age_seconds)
    row = {"flow": "f", "epoch": epoch, "owner": owner, "at": at}
    tables.append(NAME, pa.Table.from_pylist([row], schema=LEASES))


def nothing() -> None:
    pass


# --- whose it is ---


def test_a_second_holder_is_refused_while_the_first_lives_and_follows_after_it(tables: FolderTables) -> None:
    clock = Clock()
    with clock.hold(tables, "one") as first:
        clock.meanwhile = [nothing, first.beat]
        with pytest.raises(LeaseHeld, match="one, epoch 1") as refused, clock.hold(tables, "two"):
            pass
        assert refused.value.exit_code == 5
        assert clock.at < LEASE_SECONDS / 10, "refused at the first sign"
    with clock.hold(tables, "two") as second:
        assert second.epoch == 2
    assert clock.at < LEASE_SECONDS / 10, "what was given up is not waited for"
    with hold_in_table(tables, NAME, "g", "two") as other:
        assert other.epoch == 1


@pytest.mark.parametrize("age_seconds", [1000, 0, -1000])
def test_a_crashed_holder_gives_up_after_its_time_whatever_its_clock_said(
    tables: FolderTables, age_seconds: float
) -> None:
    leave(tables, 7, "crashed", age_seconds)
    clock = Clock()
    with clock.hold(tables, "next") as lease:
        assert lease.epoch == 8
        lease.require_valid()
    assert clock.at == pytest.approx(LEASE_SECONDS, abs=3)
    assert [("crashed" in said, "taking" in said) for said in clock.said] == [(True, False), (False, True)]


def test_a_holder_whose_clock_is_behind_keeps_the_lease(tables: FolderTables) -> None:
    """Its newest sign is older than any lease lasts, and its clock even goes back: it is a sign all the same."""
    leave(tables, 7, "behind", 1000)
    clock = Clock(meanwhile=[nothing, lambda: leave(tables, 7, "behind", 2000)])
    with pytest.raises(LeaseHeld, match="behind, epoch 7"), clock.hold(tables, "next"):
        pass


def test_a_holder_that_gives_up_while_we_wait_is_followed_at_once(tables: FolderTables) -> None:
    leave(tables, 7, "ending")
    clock = Clock(meanwhile=[lambda: leave(tables, 7, "")])
    with clock.hold(tables, "next") as lease:
        assert lease.epoch == 8
    assert clock.at < LEASE_SECONDS / 10


def test_a_last_sign_while_we_claim_is_waited_out(tables: FolderTables) -> None:
    """It came back and gave its sign between our last look and our claim: it may send until it sees us."""
    leave(tables, 7, "slow")

    class Between(FolderTables):
        def append_once(self, name: str, rows: pa.Table, txn_app_id: str, txn_version: int) -> None:
            leave(tables, 7, "slow")
            super().append_once(name, rows, txn_app_id, txn_version)

    clock = Clock()
    with clock.hold(Between(tables.root), "next"):
        pass
    assert clock.at >= 2 * LEASE_SECONDS


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


# --- for how long ---


def test_a_holder_that_was_overtaken_notices(tables: FolderTables) -> None:
    def be_overtaken() -> None:
        with hold_in_table(tables, NAME, "f", "one", seconds=4.0) as lease:
            TableLease("f", 2, tables, NAME, "two").claim()
            with pytest.raises(LeaseHeld, match="another runner took"):
                within(10, lease.require_valid)
            # leaving the block gives the lease up, which is no longer ours to give

    with pytest.raises(LeaseHeld, match="another runner took"):
        be_overtaken()


def within(seconds: float, act: Callable[[], None]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        act()
        time.sleep(0.01)


def test_the_lease_is_kept_alive_from_the_claim_on_whatever_its_holder_does(tables: FolderTables) -> None:
    with hold_in_table(tables, NAME, "f", "one", seconds=2.0) as lease:
        within(2.5, lease.require_valid)
        assert read_signs(tables, NAME, "f").count > 2
    ended = read_signs(tables, NAME, "f")
    assert ended.owner == ""
    time.sleep(0.7)
    assert read_signs(tables, NAME, "f") == ended, "the thread has ended too"


def test_a_holder_without_a_sign_stops_before_another_may_begin(tables: FolderTables) -> None:
    clock = Clock()
    lease = TableLease("f", 1, tables, NAME, "one", clock=clock)
    with pytest.raises(StorageUnreachable):
        lease.require_valid()
    lease.claim()
    clock.at = LEASE_SECONDS * 0.7
    lease.require_valid()
    clock.at = LEASE_SECONDS * 0.8
    with pytest.raises(StorageUnreachable, match="could not be renewed in time"):
        lease.require_valid()
    lease.beat()
    lease.require_valid()


def test_what_is_sent_ends_long_before_another_may_begin_by_the_clock_that_others_have(tables: FolderTables) -> None:
    clock = Clock()
    lease = TableLease("f", 1, tables, NAME, "one", clock=clock, wall=lambda: 1_000 + clock.at)
    assert lease.sends_until() == float("-inf"), "never, before it is claimed"
    lease.claim()
    clock.at = 7
    assert lease.sends_until() == pytest.approx(1_000 + LEASE_SECONDS / 2)
    lease.beat()
    assert lease.sends_until() == pytest.approx(1_007 + LEASE_SECONDS / 2)
    assert SENDING + EXPIRY < 1, "with time for clocks that differ"


def test_a_sign_counts_from_before_it_was_written(tables: FolderTables) -> None:
    """Whoever reads it begins to count after that."""

    class Slow(FolderTables):
        def append(self, name: str, rows: pa.Table) -> None:
            super().append(name, rows)
            clock.at += LEASE_SECONDS

    clock = Clock()
    lease = TableLease("f", 1, Slow(tables.root), NAME, "one", clock=clock)
    lease.claim()
    lease.beat()
    with pytest.raises(StorageUnreachable):
        lease.require_valid()


def test_a_storage_that_is_away_for_a_moment_ends_nothing(tables: FolderTables) -> None:
    class Away(FolderTables):
        fails = 0

        def append(self, name: str, rows: pa.Table) -> None:
            if self.fails:
                self.fails -= 1
                raise OSError("away")
            super().append(name, rows)

    away = Away(tables.root)
    with hold_in_table(away, NAME, "f", "one", seconds=2.0) as lease:
        away.fails = 1
        within(2.5, lease.require_valid)
        away.fails = 1000
        with pytest.raises(StorageUnreachable, match="away"):
            within(5, lease.require_valid)
        away.fails = 0


def test_what_ended_the_holder_is_what_is_said(tables: FolderTables) -> None:
    def fail() -> None:
        with hold_in_table(tables, NAME, "f", "one"):
            TableLease("f", 2, tables, NAME, "two").claim()
            raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"):
        fail()


# --- which kind ---


def test_a_flow_is_held_where_its_storage_is(tables: FolderTables) -> None:
    catalog = Storage.model_construct(catalog="main", ops_schema="ops")
    with hold_flow(catalog, tables.root, tables, "f") as lease:
        assert isinstance(lease, TableLease)
        assert not is_held(tables.root, "f")
    with hold_flow(Storage(), tables.root, tables, "f") as lease:
        assert is_held(tables.root, "f")
        lease.require_valid()
        assert lease.sends_until() is None
        with contextlib.suppress(LeaseHeld), hold_flow(Storage(), tables.root, tables, "f"):
            raise AssertionError("held twice")
