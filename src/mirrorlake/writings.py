"""What people must hear of, as rows: incidents and dead letters of one flow."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from mirrorlake.failpoints import hit
from mirrorlake.produce import Errand
from mirrorlake.records import DEAD_LETTERS, INCIDENTS, SourcePartition
from mirrorlake.world import World, now


class Writings:
    """Incidents and dead letters of one flow, as rows."""

    def __init__(self, world: World, flow: str) -> None:
        self._world = world
        self._flow = flow

    def incident(self, kind: str, target: str, source: SourcePartition, first: int, last: int, detail: str) -> None:
        row = {
            "flow": self._flow, "target": target, "kind": kind, "topic": source.topic, "topic_id": source.topic_id,
            "partition": source.partition, "first_offset": first, "last_offset": last, "detail": detail, "at": now(),
        }  # fmt: skip
        self._world.tables.append(self._world.ops("incidents"), pa.Table.from_pylist([row], schema=INCIDENTS))
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
