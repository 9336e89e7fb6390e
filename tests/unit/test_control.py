"""Pause, resume and status, as any process may ask for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mirrorlake.control import Pause, pause, read_pauses, read_status, resume, write_status

ALL, TARGET, TOPIC, ONE = Pause(None, None), Pause("dr", None), Pause(None, "orders"), Pause("dr", "orders")


@pytest.mark.parametrize(
    ("paused", "target", "topic", "covered"),
    [
        (ALL, "dr", "orders", True),
        (TARGET, "dr", "clicks", True),
        (TARGET, "hubs", "orders", False),
        (TOPIC, "hubs", "orders", True),
        (TOPIC, "hubs", "clicks", False),
        (ONE, "dr", "orders", True),
        (ONE, "dr", "clicks", False),
        (ONE, "hubs", "orders", False),
    ],
)
def test_a_pause_covers_what_it_names(paused: Pause, target: str, topic: str, covered: bool) -> None:
    assert paused.covers(target, topic) is covered


def test_nothing_is_paused_at_first_and_asking_writes_nothing(tmp_path: Path) -> None:
    assert read_pauses(tmp_path, "f") == []
    assert read_status(tmp_path, "f") == {}
    assert not list(tmp_path.iterdir())


def test_pausing_twice_is_pausing_once(tmp_path: Path) -> None:
    pause(tmp_path, "f", ONE)
    pause(tmp_path, "f", ONE)
    assert read_pauses(tmp_path, "f") == [ONE]


def test_resume_takes_back_what_it_names_and_no_more(tmp_path: Path) -> None:
    for item in (TARGET, TOPIC, ONE):
        pause(tmp_path, "f", item)
    assert resume(tmp_path, "f", "dr", None) == [TARGET]
    assert read_pauses(tmp_path, "f") == [TOPIC, ONE]


def test_resume_of_what_was_not_paused_so_says_so(tmp_path: Path) -> None:
    pause(tmp_path, "f", ALL)
    assert resume(tmp_path, "f", "dr", None) == []
    assert read_pauses(tmp_path, "f") == [ALL]


def test_resume_of_the_flow_takes_everything_back(tmp_path: Path) -> None:
    for item in (ALL, TARGET, ONE):
        pause(tmp_path, "f", item)
    assert resume(tmp_path, "f", None, None) == [ALL, TARGET, ONE]
    assert read_pauses(tmp_path, "f") == []


def test_flows_are_paused_apart(tmp_path: Path) -> None:
    pause(tmp_path, "f", ALL)
    assert read_pauses(tmp_path, "g") == []


def test_pauses_of_several_processes_at_once_all_hold(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from mirrorlake.control import *\n"
        f"for n in range(10): pause(Path({str(tmp_path)!r}), 'f', Pause(sys.argv[1], f't{{n}}'))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ("a", "b")]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(read_pauses(tmp_path, "f")) == 20


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_status(tmp_path, "f.v1", {"state": "running"})
    write_status(tmp_path, "f.v1", {"state": "stopped", "why": None})
    assert read_status(tmp_path, "f.v1") == {"state": "stopped", "why": None}
    assert [path.name for path in (tmp_path / "status").iterdir()] == ["f.v1.json"]
