"""One writer: the other holder is a real process, and dies by kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from mirrorlake.errors import DataAtRisk, LeaseHeld, StateMismatch, StorageUnreachable
from mirrorlake.lease import (
    Lease,
    await_no_producers,
    exclusive,
    hold,
    is_held,
    producer_lock_path,
    producing,
    read_holder,
)
from mirrorlake.records import LEDGER
from mirrorlake.tables import FolderTables

HOLDS = "with hold(root, 'orders') as lease:\n    print(lease.epoch, flush=True)\n    time.sleep(60)"
PRODUCES = (
    "with producing(producer_lock_path(root, 'orders', 'dr', 't')):\n    print(0, flush=True)\n    time.sleep(60)"
)


@contextlib.contextmanager
def other_process(root: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has done its part: it has printed a line and sleeps."""
    begin = f"import time\nfrom pathlib import Path\nfrom mirrorlake.lease import *\nroot = Path({str(root)!r})\n"
    with subprocess.Popen([sys.executable, "-c", begin + code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip().isdigit()
            yield process
        finally:
            process.kill()


def test_the_second_holder_is_refused_and_told_who_holds(tmp_path: Path) -> None:
    with other_process(tmp_path, HOLDS) as other:
        with (
            pytest.raises(LeaseHeld, match=f"process {other.pid} .*epoch 1") as refused,
            hold(tmp_path, "orders"),
        ):
            pass
        assert refused.value.exit_code == 5
        assert refused.value.next_step
        assert is_held(tmp_path, "orders")


def test_two_holders_in_one_process_are_refused_too(tmp_path: Path) -> None:
    with hold(tmp_path, "orders"), pytest.raises(LeaseHeld), hold(tmp_path, "orders"):
        pass


def test_other_flows_are_free(tmp_path: Path) -> None:
    with hold(tmp_path, "orders"), hold(tmp_path, "clicks") as other:
        assert other == Lease("clicks", 1)


def test_a_killed_holder_gives_the_lease_up_and_the_epoch_grows(tmp_path: Path) -> None:
    with other_process(tmp_path, HOLDS) as other:
        other.kill()
        other.wait()
        assert not is_held(tmp_path, "orders")
        with hold(tmp_path, "orders") as mine:
            assert mine.epoch == 2
            assert read_holder(tmp_path, "orders")["pid"] == os.getpid()


def test_the_epoch_grows_with_every_holder(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        with hold(tmp_path, "orders") as mine:
            epochs.append(mine.epoch)
    assert epochs == [1, 2, 3]


def test_a_lost_epoch_is_found_in_the_ledger(tmp_path: Path) -> None:
    """Else the next baseline would sort before older rows, and have no effect."""
    tables = FolderTables(tmp_path)
    tables.ensure("ops.ledger", LEDGER, {})
    rows = [{"flow": flow, "epoch": epoch} for flow, epoch in [("orders", 41), ("orders", 7), ("clicks", 99)]]
    tables.append("ops.ledger", pa.Table.from_pylist(rows, schema=LEDGER))
    epochs = []
    for _ in range(2):
        with hold(tmp_path, "orders") as mine:
            epochs.append(mine.epoch)
    assert epochs == [42, 43]


def test_somebody_who_only_looks_does_not_keep_a_runner_from_starting(tmp_path: Path) -> None:
    with hold(tmp_path, "orders"):
        pass
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            is_held(tmp_path, "orders")
            time.sleep(0.002)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(20):
            with hold(tmp_path, "orders"):
                pass
    finally:
        stop.set()
        for looker in lookers:
            looker.join()


def test_a_flow_that_never_ran_is_not_held_and_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert not is_held(tmp_path, "orders")
    assert read_holder(tmp_path, "orders") == {}
    assert not list(tmp_path.iterdir())


def test_a_damaged_epoch_stops_with_advice(tmp_path: Path) -> None:
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "orders.json").write_text("")
    with pytest.raises(StateMismatch, match="damaged"), hold(tmp_path, "orders"):
        pass


def test_a_root_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("a file, no folder")
    with pytest.raises(StorageUnreachable, match="cannot be written"), hold(tmp_path, "orders"):
        pass


# --- producing processes ---


def test_a_new_runner_waits_for_producers_that_still_live(tmp_path: Path) -> None:
    path = producer_lock_path(tmp_path, "orders", "dr", "t")
    with other_process(tmp_path, PRODUCES) as other:
        with pytest.raises(DataAtRisk, match="still holds"):
            await_no_producers(path, 0.1)
        threading.Timer(0.2, other.kill).start()
        begun = time.monotonic()
        await_no_producers(path, 10)
        assert 0.1 < time.monotonic() - begun < 5


def test_several_producers_share_the_lock(tmp_path: Path) -> None:
    with other_process(tmp_path, PRODUCES):
        path = producer_lock_path(tmp_path, "orders", "dr", "t")
        with producing(path), producing(path):
            pass


def test_producers_of_another_target_are_not_waited_for(tmp_path: Path) -> None:
    with other_process(tmp_path, PRODUCES):
        await_no_producers(producer_lock_path(tmp_path, "orders", "hubs", "t"), 0)


def test_flows_and_targets_never_share_a_lock() -> None:
    root = Path("/r")
    assert producer_lock_path(root, "a", "b__c", "t") != producer_lock_path(root, "a__b", "c", "t")


def test_nobody_begins_to_produce_while_a_runner_recovers(tmp_path: Path) -> None:
    path = producer_lock_path(tmp_path, "orders", "dr", "t")
    with exclusive(path), pytest.raises(DataAtRisk, match="is held"), producing(path):
        pass


def test_a_worker_that_a_dead_runner_starts_late_is_refused(tmp_path: Path) -> None:
    path = producer_lock_path(tmp_path, "orders", "dr", "t")
    with hold(tmp_path, "orders"):
        pass
    with hold(tmp_path, "orders") as mine:
        with pytest.raises(LeaseHeld, match="epoch 1 is over, epoch 2 runs"), producing(path, "orders", epoch=1):
            pass
        await_no_producers(path, 0)
        with producing(path, "orders", mine.epoch):
            pass


def test_a_critical_section_is_entered_by_one_at_a_time_and_not_waited_for_forever(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "x.lock"
    with exclusive(path), pytest.raises(LeaseHeld, match="stayed locked"), exclusive(path, 0.05):
        pass
    with exclusive(path, 0):
        pass


def test_the_holder_is_written_whole(tmp_path: Path) -> None:
    with hold(tmp_path, "orders.v1"):
        assert sorted(path.name for path in (tmp_path / "leases").iterdir()) == [
            "orders.v1.json",
            "orders.v1.lock",
        ]
        assert json.loads((tmp_path / "leases" / "orders.v1.json").read_text())["epoch"] == 1
