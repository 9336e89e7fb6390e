"""Every failpoint is in the real code path, and something lets a process die there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorlake import failpoints
from mirrorlake.failpoints import ACTIONS, POINTS, Failpoint

ROOT = Path(__file__).parents[2]
HITS = r'\bhit\("([a-z-]+)"\)'
USES = r'"([a-z-]+)(?::\d+(?::([a-z-]+))?)?"'
"""A point as tests write it: alone, with the nth hit, or with the action too."""


def found(pattern: str, *folders: str) -> set[str]:
    """What the groups of a pattern match in the files of folders."""
    texts = [path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {group for text in texts for match in re.finditer(pattern, text) for group in match.groups() if group}


def test_the_points_are_those_that_the_code_hits() -> None:
    assert found(HITS, "src/mirrorlake") == set(POINTS)
    assert len(POINTS) == len(set(POINTS))


def test_every_point_and_action_is_used_by_a_row_or_a_test() -> None:
    assert {*POINTS, *ACTIONS} - found(USES, "tests/chaos", "tests/broker") == set()


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ('crash(flow, "settled:1:kill")', {"settled", "kill"}),
        ('{"9": "settled:1"}', {"settled"}),
        ('("settled", "proven")', {"settled", "proven"}),
        ("# settled:1:kill in prose", set()),
    ],
)
def test_what_counts_as_a_use(tmp_path: Path, text: str, used: set[str]) -> None:
    (tmp_path / "rows.py").write_text(text)
    assert found(USES, str(tmp_path)) == used


@pytest.mark.parametrize("text", ["nowhere:1:kill", "settled:1:explode"])
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"there is no (point nowhere|action explode)"):
        failpoints._arm(text)


def test_the_nth_hit_counts_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", failpoints._arm("settled:2:raise"))
    failpoints.hit("proven")
    failpoints.hit("settled")
    with pytest.raises(Failpoint, match="settled"):
        failpoints.hit("settled")
    failpoints.hit("settled")


def test_who_acts_leaves_a_mark_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("MIRRORLAKE_FAIL_MARK", str(mark))
    monkeypatch.setattr(failpoints, "_armed", failpoints._arm("settled:1:raise"))
    failpoints.hit("proven")
    assert not mark.exists()
    with pytest.raises(Failpoint):
        failpoints.hit("settled")
    assert mark.read_text() == f"{os.getpid()}\n"


def test_a_mark_outlives_the_process_that_is_killed(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT / "src"), "MIRRORLAKE_FAIL": "settled:1:kill"}
    environment["MIRRORLAKE_FAIL_MARK"] = str(tmp_path / "mark")
    code = "from mirrorlake import failpoints; failpoints.hit('settled')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert (done.returncode, (tmp_path / "mark").exists()) == (-9, True)


def test_without_the_variable_nothing_is_armed() -> None:
    code = "from mirrorlake import failpoints; assert failpoints._armed is None; failpoints.hit('settled')"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / "src")})
