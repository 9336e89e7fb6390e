"""Topics that the source has no more: noticed, and after a time of grace deleted on the target, where the policy says.

What is noticed is kept in a small file for each bronze table and target, so that the time of grace outlives restarts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mirrorlake.control import write_json


@dataclass(frozen=True)
class Doomed:
    """A target topic whose source topic is gone."""

    topic: str
    topic_id: str
    """Of the topic that we filled: another one of the same name is not ours to delete."""
    since: float


def notice(filled: Mapping[str, str], wanted: Iterable[str], before: Iterable[Doomed], now: float) -> list[Doomed]:
    """`filled`: target topic -> its id. Whatever is wanted again is doomed no more."""
    kept, alive = {doomed.topic: doomed for doomed in before}, set(wanted)
    for topic, topic_id in filled.items():
        kept.setdefault(topic, Doomed(topic, topic_id, now))
    return [doomed for topic, doomed in sorted(kept.items()) if topic not in alive]


def is_due(doomed: Doomed, now: float, grace_seconds: float) -> bool:
    return now - doomed.since >= grace_seconds


def _path(root: Path, flow: str, target: str, table: str) -> Path:
    return root / "deletions" / f"{flow}@{target}@{table}.json"


def read_doomed(root: Path, flow: str, target: str, table: str) -> list[Doomed]:
    path = _path(root, flow, target, table)
    return [Doomed(**item) for item in json.loads(path.read_text())] if path.exists() else []


def write_doomed(root: Path, flow: str, target: str, table: str, doomed: Iterable[Doomed]) -> None:
    write_json(_path(root, flow, target, table), [asdict(each) for each in doomed])
