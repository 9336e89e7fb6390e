"""What people must hear of, as rows: incidents and dead letters of one flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import pyarrow as pa

from mirrorlake.failpoints import hit
from mirrorlake.produce import Errand
from mirrorlake.records import DEAD_LETTERS, INCIDENTS, SourcePartition
from mirrorlake.world import World, now

_FINDING = [name for name in INCIDENTS.names if name != "at"]


class Writings:
    """Incidents and dead letters of one flow, as rows."""

    def __init__(self, world: World, flow: str) -> None:
        self._world = world
        self._flow = flow

    def incident(self, kind: str, target: str, source: SourcePartition, first: int, last: int, detail: str) -> None:
        self._write(self._row(kind, target, source, first, last, detail))

    def finding(self, kind: str, target: str, source: SourcePartition, first: int, last: int, detail: str) -> None:
        """An incident of certain records, which every start would find again: it is written down once."""
        row = self._row(kind, target, source, first, last, detail)
        known = tuple(row.values())
        if known not in self._found:
            self._write(row)
            self._found.add(known)

    @cached_property
    def _found(self) -> set[tuple[object, ...]]:
        rows = self._world.tables.read(self._world.ops("incidents"), _FINDING, flow=self._flow).to_pylist()
        return {tuple(row[name] for name in _FINDING) for row in rows}

    def _row(
        self, kind: str, target: str, source: SourcePartition, first: int, last: int, detail: str
    ) -> dict[str, object]:
        return dict(zip(_FINDING, (self._flow, target, kind, *source, first, last, detail), strict=True))

    def _write(self, row: Mapping[str, object]) -> None:
        rows = pa.Table.from_pylist([{**row, "at": now()}], schema=INCIDENTS)
        self._world.tables.append(self._world.ops("incidents"), rows)
        hit("incident-written")

    def dead_letters(
        self,
        errand: Errand,
        source: SourcePartition,
        target_topic: str,
        refused: Iterable[tuple[int, int, str]],
    ) -> None:
        rows = [
            {
                "flow": self._flow, "target": errand.target, "source_topic": source.topic,
                "source_topic_id": source.topic_id, "source_partition": source.partition, "source_offset": offset,
                "target_topic": target_topic, "reason": reason, "record_bytes": size, "epoch": errand.epoch,
                "at": now(),
            }
            for offset, size, reason in refused
        ]  # fmt: skip
        self._world.tables.append(self._world.ops("dead_letters"), pa.Table.from_pylist(rows, schema=DEAD_LETTERS))
        hit("dead-letters-written")

    def listed(self, target: str) -> dict[SourcePartition, int]:
        """The offset after the last dead letter of each source partition."""
        held = self._world.tables.read(self._world.ops("dead_letters"), flow=self._flow, target=target)
        by_source = held.group_by(["source_topic", "source_topic_id", "source_partition"])
        return {
            SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"]): last + 1
            for row in by_source.aggregate([("source_offset", "max")]).to_pylist()
            if (last := row["source_offset_max"]) is not None
        }
