"""`make demo`: what it says, and that nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import wait_until


@pytest.mark.slow
def test_the_demo_finds_all_copies_equal_and_leaves_nothing_behind(tmp_path: Path) -> None:
    said = tmp_path / "said.txt"
    folder = tmp_path / "here"
    folder.mkdir()
    with said.open("w") as file:
        demo = subprocess.Popen(
            [sys.executable, "-m", "mirrorlake.demo"], cwd=folder, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: len(brokers_of(folder)) == 3 or demo.poll() is not None, "three brokers")
        code = demo.wait(240)
    finally:
        if demo.poll() is None:
            demo.terminate()  # it stops its brokers, which have sessions of their own
            demo.wait(60)
    text = " ".join(said.read_text().split())  # it breaks its lines
    assert code == 0, text
    for target in ("dr", "hubs"):
        assert f"{target}: 5,000 records, 100 of them tombstones, equal to source's, in order" in text
    everywhere = "source 5,000, bronze 5,000, dr 5,000, hubs 5,000"
    assert f"flow orders: equal; 3 partitions; records compared: {everywhere}" in text
    assert "Nothing is left running." in text
    # Spark's Java ends a moment after the Python that started it.
    wait_until(lambda: not processes_of(folder), "the last process of the demo", 15)
    assert not (folder / ".mirrorlake" / "demo").exists()


def brokers_of(folder: Path) -> list[int]:
    return [pid for pid, command in processes_of(folder).items() if "kafka.Kafka" in command]


def processes_of(folder: Path) -> dict[int, str]:
    """Those that name the folder in their command or their environment, or work in it."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            about = [command, (path / "environ").read_bytes().decode(errors="replace"), os.readlink(path / "cwd")]
        except OSError:
            continue  # it is gone, or not ours
        if any(str(folder) in text for text in about):
            found[int(path.name)] = command
    return found
