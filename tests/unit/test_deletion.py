"""Topics that the source has no more."""

from __future__ import annotations

from pathlib import Path

from mirrorlake.deletion import Doomed, is_due, notice, read_doomed, write_doomed

FILLED = {"src.a": "id-a", "src.b": "id-b"}


def test_what_is_filled_and_no_longer_wanted_is_doomed_from_when_it_was_noticed() -> None:
    first = notice(FILLED, ["src.a"], [], 100.0)
    assert first == [Doomed("src.b", "id-b", 100.0)]
    assert notice(FILLED, ["src.a"], first, 200.0) == first, "the time of grace does not begin again"
    assert notice({}, ["src.a"], first, 200.0) == first, "nor is it forgotten once the ledger has ended it"


def test_what_comes_back_is_spared() -> None:
    assert notice(FILLED, FILLED, [Doomed("src.b", "id-b", 1.0)], 2.0) == []


def test_it_is_due_after_the_time_of_grace() -> None:
    doomed = Doomed("src.b", "id-b", 100.0)
    assert [is_due(doomed, now, 10.0) for now in (100.0, 109.9, 110.0)] == [False, False, True]


def test_a_clock_that_jumps_moves_the_time_of_grace_by_as_much() -> None:
    """Back, and nothing goes early; ahead, and it does. It outlives restarts, so the clock on the wall tells it."""
    doomed = notice(FILLED, ["src.a"], [], 1000.0)
    assert notice(FILLED, ["src.a"], doomed, 400.0) == doomed
    assert [is_due(doomed[0], now, 10.0) for now in (400.0, 1009.0, 5000.0)] == [False, False, True]


def test_what_was_noticed_outlives_a_restart(tmp_path: Path) -> None:
    assert read_doomed(tmp_path, "f", "dr", "bronze.t") == []
    doomed = [Doomed("src.b", "id-b", 100.0)]
    write_doomed(tmp_path, "f", "dr", "bronze.t", doomed)
    assert read_doomed(tmp_path, "f", "dr", "bronze.t") == doomed
