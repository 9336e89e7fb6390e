"""What a run of the fault table found: one verdict for each row that was chosen, kept as JSON and as a page's table."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rows import ROWS, Row

PASSED, FAILED, NOT_HERE = "passed", "FAILED", "not here"
COLOURS = {PASSED: "green", FAILED: "red", NOT_HERE: "yellow"}


@dataclass(frozen=True)
class Verdict:
    number: str
    name: str
    injected: str
    expected: str
    verdict: str
    seconds: float
    seed: int
    said: str


def chosen(asked: str) -> list[Row]:
    """Rows by number, or by a part of their name."""
    words = [word.strip().lower() for word in asked.split(",") if word.strip()]
    return [row for row in ROWS if not words or any(_is_meant(row, word) for word in words)]


def _is_meant(row: Row, word: str) -> bool:
    return word == row.number.lower() or (not word[0].isdigit() and word in row.name.lower())


def complete(
    rows: Sequence[Row], found: Mapping[str, Verdict], begun: Collection[str], in_time: bool, seed: int
) -> list[Verdict]:
    """A verdict for every row: one without has failed, unless there was no time to begin it."""
    return [
        found.get(row.number) or _unjudged(row, row.number in begun, seed)
        for row in rows
        if row.number in found or row.number in begun or in_time
    ]


def _unjudged(row: Row, was_begun: bool, seed: int) -> Verdict:
    said = "its process ended before it did" if was_begun else "no process lived to run it"
    return Verdict(row.number, row.name, row.injected, row.expected, FAILED, 0, seed, said)


def exit_code(verdicts: Sequence[Verdict], codes: Sequence[int]) -> int:
    """`codes` are those of the processes that shared the rows: one that died may have failed before its first row.

    A row that is not here is no fault: it is said only where the machine itself was asked and refused.
    """
    return 1 if any(codes) or any(v.verdict not in (PASSED, NOT_HERE) for v in verdicts) else 0


def known(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found


def remember(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Add to what earlier runs found: the newest verdict of each row counts."""
    with _locked(path):
        _write(path, {v["number"]: v for v in known(path)} | {v.number: asdict(v) for v in verdicts})


def forget(path: Path, rows: Sequence[Row]) -> None:
    """What an earlier run found must not pass for what this one finds."""
    numbers = {row.number for row in rows}
    with _locked(path):
        _write(path, {v["number"]: v for v in known(path) if v["number"] not in numbers})


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, verdicts: Mapping[str, Mapping[str, Any]]) -> None:
    order = {row.number: place for place, row in enumerate(ROWS)}
    listed = sorted(verdicts.values(), key=lambda v: order.get(v["number"], len(order)))
    path.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")


MARK = "<!-- from here on written by `make chaos` -->\n"


def write_docs(path: Path, verdicts: Sequence[dict[str, object]]) -> None:
    """The table of `docs/guarantees.md`: every row there is, and what was found where it was run."""
    found = {v["number"]: v for v in verdicts}
    lines = [
        f"| {row.number} | {row.name} | {row.injected} | {row.expected} | {_cell(found.get(row.number))} |"
        for row in ROWS
    ]
    head = ["| # | fault | injected by | expected | verdict |", "|---|---|---|---|---|"]
    kept, _, _ = path.read_text().partition(MARK)
    path.write_text(kept + MARK + "\n" + "\n".join([*head, *lines]) + "\n")


def _cell(found: dict[str, object] | None) -> str:
    if found is None:
        return "not run yet"
    said = f": {found['said']}" if found["verdict"] != PASSED else ""
    return " ".join(f"{found['verdict']}{said}".split())[:200].replace("|", "\\|")
