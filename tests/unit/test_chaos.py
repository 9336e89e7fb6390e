"""What `make chaos` makes of rows that were run, and of those that nobody lived to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from rows import ROWS
from verdicts import FAILED, PASSED, Verdict, chosen, complete, exit_code, forget, known, remember

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
