"""Pause, resume and status: small files that the runner writes and reads, so that any process can ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirrorlake.lease import exclusive


@dataclass(frozen=True)
class Pause:
    """What is paused of a flow; None means all targets or all topics."""

    target: str | None
    topic: str | None

    def covers(self, target: str, topic: str) -> bool:
        return self.target in (None, target) and self.topic in (None, topic)

    def __str__(self) -> str:
        return f"{self.target or 'all targets'}, {self.topic or 'all topics'}"


EVERYTHING = Pause(None, None)


def _pauses_path(root: Path, flow: str) -> Path:
    return root / "control" / f"{flow}.json"


def read_pauses(root: Path, flow: str) -> list[Pause]:
    path = _pauses_path(root, flow)
    return [Pause(**item) for item in json.loads(path.read_text())] if path.exists() else []


def pause(root: Path, flow: str, pause: Pause) -> None:
    _change(root, flow, lambda pauses: [*(p for p in pauses if p != pause), pause])


def resume(root: Path, flow: str, target: str | None, topic: str | None) -> list[Pause]:
    """Take back what was paused, and say what that was; no target and no topic means everything of the flow."""
    asked = Pause(target, topic)
    before = _change(root, flow, lambda pauses: [p for p in pauses if p != asked and asked != EVERYTHING])
    return [p for p in before if asked in (p, EVERYTHING)]


def _change(root: Path, flow: str, change: Callable[[list[Pause]], list[Pause]]) -> list[Pause]:
    """Returns what was paused before."""
    path = _pauses_path(root, flow)
    with exclusive(root / "locks" / f"control.{flow}.lock"):
        before = read_pauses(root, flow)
        write_json(path, [{"target": p.target, "topic": p.topic} for p in change(before)])
    return before


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replaced = path.with_suffix(".tmp")
    replaced.write_text(json.dumps(content, indent=1))
    replaced.replace(path)


def write_status(root: Path, flow: str, status: dict[str, Any]) -> None:
    write_json(root / "status" / f"{flow}.json", status)


def read_status(root: Path, flow: str) -> dict[str, Any]:
    path = root / "status" / f"{flow}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


class Pauses:
    """What is paused of a flow, read again when the file changes."""

    def __init__(self, root: Path, flow: str) -> None:
        self._root = root
        self._flow = flow
        self._seen = self._read()

    def _read(self) -> list[Pause]:
        return read_pauses(self._root, self._flow)

    def __call__(self) -> list[Pause]:
        return self._seen

    def changed(self) -> bool:
        before, self._seen = self._seen, self._read()
        return before != self._seen
