"""Topics that the source has no more: noticed, and after a time of grace deleted on the target, where the policy says.

What is noticed is kept in a small file for each bronze table and target, so that the time of grace outlives restarts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mirrorlake.config import Target
from mirrorlake.control import write_json
from mirrorlake.fanout import FanOut
from mirrorlake.records import SourcePartition
from mirrorlake.strand import Strand
from mirrorlake.world import now


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


def follow(strand: Strand, target: Target, fan_out: FanOut, wanted: Iterable[str]) -> None:
    """A target topic goes after its source topic, when the time of grace is over and all of it was delivered."""
    place = (strand.world.root, strand.flow.name, target.cluster, strand.spec.table)
    filled = {p.target_partition.topic: p.target_topic_id for p in list(fan_out.account.book.positions.values())}
    before, at = read_doomed(*place), now().timestamp()
    doomed = notice(filled, wanted, before, at)
    grace = target.delete_after_seconds
    kept = [each for each in doomed if not (is_due(each, at, grace) and _delete(strand, each, fan_out))]
    if kept != before:
        write_doomed(*place, kept)


def _delete(strand: Strand, doomed: Doomed, fan_out: FanOut) -> bool:
    """True when nothing is left to delete. The ledger hears first: a crash between leaves a topic too many."""
    cluster = fan_out.account.cluster
    found = cluster.describe([doomed.topic])
    if doomed.topic in found and found[doomed.topic].id != doomed.topic_id:
        return True
    if not fan_out.end(doomed.topic):
        return False
    if doomed.topic in found:
        cluster.delete_topic(doomed.topic)
        gone = SourcePartition(doomed.topic, doomed.topic_id, -1)
        detail = "its source topic was deleted, and the time of grace is over"
        strand.writings.incident("target_topic_deleted", cluster.alias, gone, -1, -1, detail)
    return True
