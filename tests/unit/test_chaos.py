"""What `make chaos` makes of rows that were run, and of those that nobody lived to run; and what its checker sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from rows import BY_SLUG, ROWS, THEMES
from stage import Record
from verdicts import FAILED, NOT_HERE, PASSED, Verdict, chosen, complete, exit_code, forget, known, remember

# Rows bring the folder of the broker tests with them, in which the checker looks.
from checker import (  # isort: skip
    COPIED,
    THINNED,
    Held,
    Place,
    Spot,
    by_order,
    expect_all_due,
    expect_bronze,
    expect_equal,
    expect_ledger,
    ledger_of,
    once_each,
)

from mirrorlake.provenance import HEADER, Provenance, topic_id_bytes
from mirrorlake.provenance import digest as name_digest

CHAOS = Path(__file__).parents[1] / "chaos"
ONE, TWO, THREE = ROWS[:3]


def passed(number: str) -> Verdict:
    return Verdict(number, "name", "injected", "expected", PASSED, 1.0, 7, "")


def test_a_row_without_a_verdict_has_failed() -> None:
    verdicts = complete([ONE, TWO, THREE], {ONE.number: passed(ONE.number)}, {TWO.number}, in_time=True, seed=7)
    assert [(v.number, v.verdict) for v in verdicts] == [
        (ONE.number, PASSED),
        (TWO.number, FAILED),
        (THREE.number, FAILED),
    ]
    assert [v.said for v in verdicts[1:]] == ["its process ended before it did", "no process lived to run it"]


def test_a_row_that_there_was_no_time_to_begin_has_no_verdict() -> None:
    verdicts = complete([ONE, TWO, THREE], {ONE.number: passed(ONE.number)}, {TWO.number}, in_time=False, seed=7)
    assert [v.number for v in verdicts] == [ONE.number, TWO.number]


def test_a_failed_row_and_a_dead_process_both_count() -> None:
    fine = passed("1")
    assert exit_code([fine], [0, 0]) == 0
    assert exit_code([fine, replace(fine, verdict=FAILED)], [0, 0]) == 1
    assert exit_code([fine], [0, -9]) == exit_code([], [1, 1]) == 1


def test_what_the_machine_lacks_is_no_fault_and_a_verdict_that_nobody_knows_is() -> None:
    assert exit_code([replace(passed("1"), verdict=NOT_HERE)], [0]) == 0
    assert exit_code([replace(passed("1"), verdict="skipped")], [0]) == 1


def test_every_module_of_rows_is_in_the_table() -> None:
    modules = {path.stem for path in (CHAOS / "rows").glob("*.py")} - {"__init__", "common"}
    assert modules == set(THEMES)
    assert len(BY_SLUG) == len(ROWS) == len({row.number for row in ROWS})


def test_only_the_rows_that_are_run_again_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "chaos.json"
    remember(path, [passed(TWO.number), passed(ONE.number)])
    assert [v["number"] for v in known(path)] == [ONE.number, TWO.number]
    forget(path, [ONE])
    assert [v["number"] for v in known(path)] == [TWO.number]


def test_rows_are_chosen_by_number_or_by_a_part_of_their_name() -> None:
    assert [row.number for row in chosen("46, 47")] == ["46", "47"]
    assert "24" in {row.number for row in chosen("acknowledgement lost")}
    assert chosen("") == ROWS
    assert chosen("99") == []


def test_processes_that_die_at_their_start_fail_every_row(tmp_path: Path) -> None:
    """As they do where Kafka's jars cannot be had: an earlier verdict of the same seed must not stand for this run."""
    path = tmp_path / "chaos.json"
    remember(path, [passed("46")])
    command = [sys.executable, str(CHAOS), "--rows", "46,46b,47,48", "--seed", "7", "--json", str(path)]
    environment = {**os.environ, "MIRRORLAKE_JARS": os.devnull}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 passed, 4 FAILED" in done.stdout
    assert {v["verdict"] for v in json.loads(path.read_text())} == {FAILED}


# --- the checker ---

TOPIC_ID, NEW_ID = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
TARGET_ID = "00000000-0000-0000-0000-00000000000a"


def record(number: int, *headers: tuple[str, bytes | None]) -> Record:
    return Record(b"value-%d" % number, b"key", headers, 1_700_000_000_000 + number)


def log(count: int, first: int = 0) -> dict[int, list[Held]]:
    """One partition, without gaps."""
    return {0: [Held(offset, record(offset), 0) for offset in range(first, first + count)]}


def relayed(source: Mapping[int, Sequence[Held]], flow: str = "flow", first: int = 0) -> dict[int, list[Held]]:
    """As a relay leaves it on a target, whose log begins at an offset of its own."""
    found = []
    for place, held in enumerate(source[0]):
        came = Provenance(name_digest(flow), bytes(8), topic_id_bytes(TOPIC_ID), 0, held.offset, held.offset, 1, 1)
        headers = (*held.record.headers, (HEADER, came.encode()))
        found.append(Held(first + place, replace(held.record, headers=headers), 0))
    return {0: found}


def bronze_of(source: Mapping[int, Sequence[Held]]) -> dict[Place, bytes]:
    return {Place("t", TOPIC_ID, 0, held.offset): held.fingerprint for held in source[0]}


def run(kind: str, first: int, count: int, target_first: int | None, **other: Any) -> dict[str, Any]:
    """A row of the ledger."""
    return {
        "kind": kind, "epoch": 1, "source_topic": "t", "source_topic_id": TOPIC_ID, "source_partition": 0,
        "source_first": first, "source_last": first + count - 1, "target_topic_id": TARGET_ID, "target_partition": 0,
        "target_first": target_first, "count": count, **other,
    }  # fmt: skip


BASELINE = run("baseline", 0, 0, None)


def test_a_true_copy_passes() -> None:
    source = log(10, 3)
    copy, ledger = relayed(source, first=7), ledger_of([BASELINE, run("relay", 3, 10, 7)], TARGET_ID)
    expect_bronze(bronze_of(source), source, "t", TOPIC_ID, compacted=False)
    assert ledger.stands == by_order(source, copy, "t", TOPIC_ID)
    expect_ledger(ledger, copy, "flow")
    expect_all_due(ledger, bronze_of(source))
    expect_equal({0: [held.record for held in source[0]]}, {0: [held.relayed for held in copy[0]]}, "t")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([run("relay", 0, 9, 0)], "does not know 1 records"),
        ([run("relay", 0, 11, 0)], "knows 1 records"),
        ([run("relay", 0, 5, 0), run("relay", 5, 5, 6)], "5 records stand elsewhere"),
        ([run("relay", 0, 10, 0), run("repair", 3, 1, 10)], "offset=3.* stands at .*offset=3.* and at .*offset=10"),
        ([run("relay", 0, 9, 0), run("relay", 9, 1, 8)], "both stand at"),
        ([{**run("relay", 0, 10, 0), "count": 9}], "no run's"),
        ([run("relay", 0, 10, 0, target_topic_id=NEW_ID)], "does not know 10 records"),
    ],
)
def test_a_ledger_that_says_something_else_is_seen(rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        expect_ledger(ledger_of([BASELINE, *rows], TARGET_ID), relayed(log(10)), "flow")


def test_what_was_in_bronze_and_not_delivered_is_seen() -> None:
    bronze, delivered = bronze_of(log(10)), [BASELINE, run("relay", 0, 9, 0)]
    with pytest.raises(AssertionError, match=r"1 records .*offset=9.* were not delivered"):
        expect_all_due(ledger_of(delivered, TARGET_ID), bronze)
    expect_all_due(ledger_of([*delivered, run("skip", 9, 1, None)], TARGET_ID), bronze)
    expect_all_due(ledger_of([*delivered, run("skip", 9, 1, None), run("repair", 9, 1, 12)], TARGET_ID), bronze)
    with pytest.raises(AssertionError, match=r"1 records .*offset=10.* not in bronze"):
        expect_all_due(ledger_of([BASELINE, run("relay", 0, 11, 0)], TARGET_ID), bronze)


def test_a_later_baseline_takes_the_place_of_what_stood_after_it() -> None:
    again = [run("baseline", 6, 0, None, epoch=2), run("relay", 6, 4, 6, epoch=2)]
    ledger = ledger_of([BASELINE, run("relay", 0, 10, 0), *again], TARGET_ID)
    assert ledger.stands[Place("t", TOPIC_ID, 0, 9)] == Spot(0, 9)
    with pytest.raises(AssertionError, match="stands at"):
        ledger_of([BASELINE, run("relay", 0, 10, 0), run("relay", 6, 4, 6, epoch=2)], TARGET_ID)


def test_a_target_may_drop_or_repeat_records_only_where_a_row_says_so() -> None:
    source = log(10)
    copy, ledger = relayed(source)[0], ledger_of([BASELINE, run("relay", 0, 10, 0)], TARGET_ID)
    thinned, copied = {0: copy[3:]}, {0: [*copy, replace(copy[4], offset=10)]}
    expect_ledger(ledger, thinned, "flow", THINNED)
    expect_ledger(ledger, copied, "flow", COPIED)
    for target in (thinned, copied):
        with pytest.raises(AssertionError):
            expect_ledger(ledger, target, "flow")
    expect_ledger(ledger_of([BASELINE], TARGET_ID), {0: copy}, "another flow")


def test_bronze_has_each_record_once_and_every_field() -> None:
    source = log(10)
    bronze, place = bronze_of(source), Place("t", TOPIC_ID, 0, 4)
    by_broker = {**bronze, place: Held(4, record(4), timestamp_type=1).fingerprint}
    changed = {**bronze, place: Held(4, record(4, ("h", None)), 0).fingerprint}
    missing = {key: content for key, content in bronze.items() if key != place}
    more = {**bronze, place._replace(offset=10): b""}
    for wrong, said in ((by_broker, "differ"), (changed, "differ"), (missing, "missing"), (more, "not at the source")):
        with pytest.raises(AssertionError, match=f"1 records .*{said}"):
            expect_bronze(wrong, source, "t", TOPIC_ID, compacted=False)
    with pytest.raises(AssertionError, match="twice"):
        once_each([(place, b""), (place, b"")])


def test_bronze_may_hold_what_the_source_dropped_or_had_before_it_was_made_anew() -> None:
    bronze = {**bronze_of(log(10)), Place("t", NEW_ID, 0, 7): b"of another topic"}
    expect_bronze(bronze, log(6, 4), "t", TOPIC_ID, compacted=False)
    thinned = {0: [held for held in log(10)[0] if held.offset != 5]}
    expect_bronze(bronze, thinned, "t", TOPIC_ID, compacted=True)
    with pytest.raises(AssertionError, match="not at the source"):
        expect_bronze(bronze, thinned, "t", TOPIC_ID, compacted=False)


def test_records_out_of_order_missing_or_repeated_are_seen() -> None:
    want = [record(number) for number in range(5)]
    for got in (want[::-1], want[:-1], [*want, want[0]], [*want[:4], replace(want[4], key=None)]):
        with pytest.raises(AssertionError, match="first difference at"):
            expect_equal({0: want}, {0: got}, "t")
