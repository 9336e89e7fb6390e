"""A relay by hand: copies on the target and the ledger that says so, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from harness import Flow, Records, as_record, wait_until

from mirrorlake.ledger import BASELINE, RELAY, Entry, fold, relay_entries
from mirrorlake.records import BRONZE, LEDGER, SourcePartition, TopicPartition, runs_from_pairs
from mirrorlake.tables import FolderTables, bronze_properties, ensure_ops
from mirrorlake.topics import fit_names, relay_specs
from mirrorlake.world import now


@dataclass
class Handmade:
    """One topic of a flow. `relay` copies what is committed on the source and writes down where it went."""

    flow: Flow
    records: Records
    topic: str
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.flow.config()
        flow, (target,) = config.flow(self.flow.name), config.flow(self.flow.name).targets
        self.source_alias, self.target_alias = flow.source, target.cluster
        self.copy = fit_names(config, flow, target, [self.topic])[0][self.topic]
        self.tables = FolderTables(self.flow.root)
        ensure_ops(self.tables, "ops")
        for spec in relay_specs(config, flow):
            self.tables.ensure(spec.table, BRONZE, bronze_properties(168))

    def relay(self, until: int | None = None) -> None:
        source, target = self.records.cluster(self.source_alias), self.records.cluster(self.target_alias)
        info = source.describe([self.topic])[self.topic]
        if self.copy not in target.describe([self.copy]):
            self.records.create(self.target_alias, self.copy, info.partitions)
            wait_until(lambda: self.records.arrived(self.target_alias, self.copy, 0), "leaders")
        for number in range(info.partitions):
            self._relay(SourcePartition(self.topic, info.id, number), until)

    def _relay(self, at: SourcePartition, until: int | None) -> None:
        source, target = self.records.cluster(self.source_alias), self.records.cluster(self.target_alias)
        place, here = TopicPartition(self.copy, at.partition), TopicPartition(self.topic, at.partition)
        end = target.log_ends([place])[place]
        held = fold(self.entries).positions.get(at)
        topic_id = target.describe([self.copy])[self.copy].id
        template = Entry(self.flow.name, self.target_alias, RELAY, 1, at, 0, 0, place, topic_id, None, 0, end)
        if held is None:
            self.write([_baseline(template, source.log_starts([here])[here])])
        first = fold(self.entries).positions[at].next_offset
        last = source.log_ends([here])[here] if until is None else until
        messages = list(source.read_range(here, first, last, committed=True))
        self.records.send(self.target_alias, self.copy, [as_record(message) for message in messages])
        pairs = [(message.offset(), end + n) for n, message in enumerate(messages)]
        self.write(relay_entries(template, runs_from_pairs(pairs), end + len(pairs)))

    def write(self, entries: Sequence[Entry]) -> None:
        self.entries += entries
        if entries:
            rows = [entry.row(now()) for entry in entries]
            self.tables.append("ops.ledger", pa.Table.from_pylist(rows, schema=LEDGER))


def _baseline(template: Entry, first: int) -> Entry:
    fields = {**vars(template), "kind": BASELINE, "source_first": first, "source_last": first - 1}
    return Entry(**fields)
