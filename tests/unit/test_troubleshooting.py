"""docs/troubleshooting.md: each row says who provokes it, and what it quotes is what the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
TESTS = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__))
TEST_NAMES = set(re.findall(r"def (test_\w+)", TESTS))
CHAOS = "".join(path.read_text() for path in sorted((ROOT / "tests/chaos/rows").glob("*.py")))
CHAOS_ROWS = set(re.findall(r'^@row\(\s*"(\w+)"', CHAOS, re.MULTILINE))
OURS, _, MIRRORMAKERS = PAGE.partition("## Errors of MirrorMaker 2")
MARK = re.compile(r"`(test_\w+)`|\bchaos (\w+)|(\*read\*)")


def rows(page: str) -> list[tuple[str, str]]:
    """First and last cell of each row of each table."""
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [(row[0], row[-1] if len(row) == 3 else "") for row in cells if row[-1] != "shown by"]


def templates() -> Iterator[str]:
    """Every text in the source; what is filled in when it is said is `…`."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


SAID = [*templates(), *TESTS.splitlines()]


@pytest.mark.parametrize(("message", "marks"), rows(PAGE))
def test_each_row_is_provoked_by_a_test_that_exists_or_marked_as_read(message: str, marks: str) -> None:
    found = MARK.findall(marks)
    assert found, message
    assert {test for test, _, _ in found if test} <= TEST_NAMES
    assert {row for _, row, _ in found if row} <= CHAOS_ROWS


@pytest.mark.parametrize(
    "message", [m for m, _ in rows(PAGE[PAGE.index("## Exit 2") : PAGE.index("## Errors of Mirror")])]
)
def test_what_is_quoted_is_what_is_said(message: str) -> None:
    for quoted in re.findall(r"`([^`]+)`", message):
        pieces = [piece for piece in re.split(r"\s*…\s*", quoted) if piece]
        assert any(all(piece in text for piece in pieces) for text in SAID), quoted


@pytest.mark.parametrize(
    "words",
    ["unknown topic during an election", "advertised listeners", "flush time-out", "offset commit failure",
     "SASL failures", "TLS failures", "topics not creatable"],
)  # fmt: skip
def test_what_people_come_with_from_mirrormaker_is_found_by_its_name(words: str) -> None:
    assert any(message.startswith(words) for message, _ in rows(MIRRORMAKERS))
