"""The whole benchmark: a stage, scenarios, rounds in which the contenders take turns, and what comes out of it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mirrorlake
from mirrorlake import jars
from mirrorlake.bench.contenders import described
from mirrorlake.bench.measure import Figures, Runs
from mirrorlake.bench.processes import require_proc
from mirrorlake.bench.results import Measured
from mirrorlake.bench.scenarios import END_SHARE, WARM_SHARE, Scenario
from mirrorlake.bench.stage import set_up
from mirrorlake.lab.training import keep_classes

Say = Callable[[str], None]


def run(
    scenarios: Sequence[Scenario], quick: bool, command: str, say: Say, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """`keep` gets the document after every run: what was measured outlives an interruption."""
    begun = time.monotonic()
    require_proc()
    jars.resolve(jars.MM2, say)
    keep_classes(say)
    document = describe(quick, command)
    with tempfile.TemporaryDirectory(prefix="mirrorlake-bench-") as folder, set_up(Path(folder), scenarios) as stage:
        runs = Runs(stage)
        for scenario in scenarios:
            measured = Measured.begin(scenario)
            document["scenarios"].append(asdict(measured))
            _rounds(runs, scenario, document["scenarios"][-1]["rounds"], say, lambda: keep(document))
    document["took_seconds"] = round(time.monotonic() - begun)
    keep(document)
    return document


def _rounds(runs: Runs, scenario: Scenario, rounds: list[Any], say: Say, kept: Callable[[], None]) -> None:
    say(f"{scenario.name}: preparing")
    runs.prepare(scenario)
    for number in range(scenario.rounds):
        rounds.append({})
        # Each round begins with another, so that none is always first after a pause.
        turn = number % len(scenario.contenders)
        for contender in scenario.contenders[turn:] + scenario.contenders[:turn]:
            rounds[-1][contender] = runs.measure(scenario, contender)
            say(f"{scenario.name}, round {number + 1}, {contender}: {in_short(rounds[-1][contender])}")
            kept()
    runs.finish(scenario)


def in_short(figures: Figures) -> str:
    shown = {
        "steady_records_per_second": "{:,.0f} records/s steady",
        "records_per_second": "{:,.0f} overall",
        "first_record_seconds": "first after {:.1f} s",
        "latency_p50_seconds": "p50 {:.2f} s",
        "latency_p99_seconds": "p99 {:.2f} s",
        "cores": "{:.2f} cores",
        "added_cpu_ratio": "one more costs {:.2f} times the CPU",
    }
    return ", ".join(text.format(figures[key]) for key, text in shown.items() if key in figures)


def describe(quick: bool, command: str) -> dict[str, Any]:
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "commit": commit(),
        "quick": quick,
        "machine": {"cores": os.cpu_count(), "memory_gib": _memory_gib(), "system": platform.system()},
        "versions": {
            "mirrorlake": mirrorlake.__version__,
            "python": platform.python_version(),
            "java": jars.java_version(),
            **{name: version(name) for name in ("pyspark", "delta-spark", "confluent-kafka", "pyarrow")},
            "kafka and MM2": jars.MM2.coordinates[0].rpartition(":")[2],
        },
        "settings": described(),
        "warm_up": {"steady_from_share": WARM_SHARE, "steady_to_share": END_SHARE},
        "scenarios": [],
    }


def commit(checkout: Path = Path(mirrorlake.__file__).parents[2]) -> str | None:
    """What git calls this state of the source; None where it is no checkout."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except FileNotFoundError:
        return None


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30))


def write_json(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".tmp")
    made.write_text(json.dumps(document, indent=1) + "\n")
    made.replace(path)
