"""Moving consumers to the other side, and home again: how far it is, what would be read again or lost, and the move.

Works while the side that is left does not answer: groups then stand where the last checkpoint saw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mirrorlake.config import Flow, Target
from mirrorlake.consumers import Commit
from mirrorlake.crossing import Crossing
from mirrorlake.errors import ClusterUnreachable, DataAtRisk
from mirrorlake.groups import FAILED, NONE, Line, Passage, Positions, checkpoint_rows, is_chosen
from mirrorlake.kafka import Cluster
from mirrorlake.links import Storage
from mirrorlake.records import TopicPartition
from mirrorlake.world import now

RESTING = ("EMPTY", "DEAD")


@dataclass(frozen=True)
class Drill:
    """One move, looked at."""

    flow: str
    here: str
    there: str
    here_answers: bool
    behind: int | None
    """Offsets here whose records are not there yet; None where nobody can tell."""
    lines: Sequence[Line]
    live: Sequence[str]
    """Groups that still have members here."""

    def objections(self) -> list[str]:
        """Why the move would lose or repeat something now."""
        said = [f"group {group} still has members on {self.here}: stop its consumers first" for group in self.live]
        for line in self.lines:
            where = f"group {line.group}, {line.topic}[{line.partition}] at {line.offset}"
            if line.decision in (NONE, FAILED):
                said.append(f"{where}: {line.reason}")
            elif line.ahead:
                said.append(f"{where}: {line.ahead} offsets that it has read are not on {self.there} yet")
        return said

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "from": self.here,
            "to": self.there,
            "from_answers": self.here_answers,
            "behind": self.behind,
            "objections": self.objections(),
            "groups": [line.to_json() for line in self.lines],
        }


# --- looking ---


def prepare(storage: Storage, flow: Flow, target: Target, back: bool, only: Sequence[str]) -> tuple[Passage, Drill]:
    """What the move would mean now. Changes nothing."""
    passage = storage.passage(flow, target, back)
    here, there = passage.here.cluster, passage.there.cluster
    answers = here.alias not in storage.away
    if answers:
        lines = passage.look(only)
        resting = {group for group, state in passage.here.groups().items() if state in RESTING}
        live = sorted({line.group for line in lines} - resting)
        behind = _behind(here, passage.crossing())
        return passage, Drill(flow.name, here.alias, there.alias, True, behind, lines, live)
    if back:
        raise ClusterUnreachable(f"{here.alias} does not answer: what its groups have read there cannot be known")
    positions = last_checkpoints(storage, flow, target, only)
    return passage, Drill(flow.name, here.alias, there.alias, False, None, passage.compare(positions), [])


def _behind(here: Cluster, crossing: Crossing) -> int:
    """Along flows only: what came from there is there."""
    complete = {
        start: max(way.complete for way in ways if way.complete is not None)
        for start, ways in crossing.ways.items()
        if any(way.complete is not None for way in ways)
    }
    ends = here.log_ends(complete, committed=True)
    return sum(max(0, ends[start] - offset) for start, offset in complete.items())


def last_checkpoints(storage: Storage, flow: Flow, target: Target, only: Sequence[str]) -> Positions:
    """Where each group stood when a pass last saw it."""
    name = f"{storage.config.storage.ops_schema}.group_checkpoints"
    rows: pa.Table = storage.tables.read(name, flow=flow.name, target=target.cluster)
    offsets: dict[str, dict[TopicPartition, Commit]] = {}
    for row in rows.sort_by("at").to_pylist():
        group, at = row["group_id"], TopicPartition(row["source_topic"], row["partition"])
        if group in only if only else is_chosen(target.groups, group):
            offsets.setdefault(group, {})[at] = Commit(row["source_offset"])
    return Positions(offsets)


def away(clusters: Iterable[Cluster]) -> frozenset[str]:
    """Which of them do not answer."""
    return frozenset(cluster.alias for cluster in clusters if not _answers(cluster))


def _answers(cluster: Cluster) -> bool:
    try:
        cluster.cluster_id()
    except ClusterUnreachable:
        return False
    return True


# --- moving ---


def move(storage: Storage, passage: Passage, drill: Drill, target: Target, force: bool) -> Drill:
    """The last sync; refused where it would lose or repeat something, unless told otherwise."""
    objections = drill.objections()
    if objections and not force:
        more = f"; and {len(objections) - 5} more" if len(objections) > 5 else ""
        raise DataAtRisk(
            f"moving from {drill.here} to {drill.there} now would lose or repeat records: "
            f"{'; '.join(objections[:5])}{more}",
            "wait until `mirrorlake lag` shows 0 and try again, or give --force to move all the same",
        )
    lines = passage.commit(drill.lines)
    done = Drill(drill.flow, drill.here, drill.there, drill.here_answers, drill.behind, lines, drill.live)
    if drill.there == target.cluster:
        # The table holds positions at the source; those of a way home are none.
        name = f"{storage.config.storage.ops_schema}.group_checkpoints"
        storage.tables.append(name, checkpoint_rows(drill.flow, target.cluster, lines, now()))
    return done


def next_steps(storage: Storage, drill: Drill) -> list[str]:
    """What an operator does now."""
    servers = storage.config.clusters[drill.there].bootstrap_servers
    renamed = {line.topic: line.target_topic for line in drill.lines if line.target_topic not in (None, line.topic)}
    names = [f"consumers read {new} where they read {old}" for old, new in sorted(renamed.items())]
    return [
        f"point clients at {drill.there}: bootstrap.servers={servers}",
        *names,
        "start the consumers, with the same group.id; they go on at the next record",
        f"check: kafka-consumer-groups --bootstrap-server {servers} --describe --group GROUP",
    ]
