"""Taking over from MM2: its target topics go on, at the next record.

MM2 notes where it stands once a minute, so after a crash its target is ahead of its notes: it would send those records
again. We look at the records instead. The end of the target's log is aligned with the source's, record by record; that
gives the position, the places of what MM2 copied, and what it copied twice.
"""

from __future__ import annotations

import hashlib
import json
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from mirrorlake.config import Flow, Target
from mirrorlake.consumers import Consumers
from mirrorlake.errors import DataAtRisk, TopicMissing
from mirrorlake.kafka import Cluster, TopicInfo, await_stable_ends
from mirrorlake.lease import hold_flow
from mirrorlake.ledger import ADOPTED, BASELINE, Entry, relay_entries
from mirrorlake.ledger import read as read_ledger
from mirrorlake.links import Storage
from mirrorlake.records import INCIDENTS, LEDGER, SourcePartition, TopicPartition, runs_from_pairs, spans
from mirrorlake.tables import ensure_ops
from mirrorlake.topics import fit_names, flow_topics
from mirrorlake.world import Say, now, silent, storage_root

WINDOW = 200_000  # records of a partition's end that are aligned
STABLE_SECONDS = 2.0
CONNECTOR = "MirrorSourceConnector"

Digest = bytes


def offsets_topic(source: str) -> str:
    """Where MM2 in its dedicated mode keeps its positions, on the target."""
    return f"mm2-offsets.{source}.internal"


def parse_position(key: bytes | None, value: bytes | None) -> tuple[str, TopicPartition, int | None] | None:
    """(cluster, partition, last offset that MM2 notes as copied) of one of its messages; None where it is another's."""
    try:
        connector, where = json.loads(key or b"")
        if not str(connector).endswith(CONNECTOR):
            return None
        at = TopicPartition(str(where["topic"]), int(where["partition"]))
        return str(where["cluster"]), at, int(json.loads(value)["offset"]) if value else None
    except (ValueError, TypeError, KeyError):
        return None


# --- aligning: pure ---


@dataclass
class Alignment:
    """Which source record stands at each place of the target."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    """(source offset, target offset), first landings only, ascending."""
    repeated: list[int] = field(default_factory=list)
    """Source offsets that landed again."""
    missing: list[int] = field(default_factory=list)
    """Source offsets that never landed, although later ones did."""
    unknown: list[int] = field(default_factory=list)
    """Target offsets whose records the source does not have (any more)."""

    @property
    def next_offset(self) -> int | None:
        return self.pairs[-1][0] + 1 if self.pairs else None


def align(source: Sequence[tuple[int, Digest]], target: Sequence[tuple[int, Digest]]) -> Alignment:
    """Walk the target. MM2 keeps the order, and after a restart goes back to an older record, never forward."""
    found = Alignment()
    places: dict[Digest, list[int]] = defaultdict(list)
    for at, (_, digest) in enumerate(source):
        places[digest].append(at)
    expected, highest = 0, -1
    first: int | None = None
    for place, digest in target:
        index = _nearest(places.get(digest, ()), expected, highest)
        if index is None:
            found.unknown.append(place)
            continue
        first = index if first is None else first
        if index <= highest:
            found.repeated.append(source[index][0])
        else:
            found.missing += [source[passed][0] for passed in range(max(highest + 1, first), index)]
            found.pairs.append((source[index][0], place))
            highest = index
        expected = index + 1
    return found


def _nearest(candidates: Sequence[int], expected: int, highest: int) -> int | None:
    """The record that is due; else one that was seen before (a restart); else the next one further on (a hole)."""
    due = bisect_left(candidates, expected)
    if due < len(candidates) and candidates[due] == expected:
        return expected
    seen = bisect_right(candidates, highest)
    return candidates[seen - 1] if seen else min(candidates, default=None)


def digest_of(message: Any) -> Digest:
    """Everything that MM2 copies."""
    fields = (message.timestamp()[1], message.key(), message.value(), message.headers() or [])
    return hashlib.blake2b(repr(fields).encode(), digest_size=16).digest()


# --- planning ---


@dataclass(frozen=True)
class Adoption:
    """One partition that goes on where MM2 stopped."""

    source: SourcePartition
    target: TopicPartition
    target_topic_id: str
    noted: int | None
    """Where MM2's own notes say that it would go on."""
    next_offset: int
    target_end: int
    pairs: Sequence[tuple[int, int]]
    repeated: Sequence[int]
    refusal: str = ""

    def to_json(self) -> dict[str, Any]:
        shown = {key: value for key, value in asdict(self).items() if key not in ("pairs", "repeated")}
        return {
            **shown,
            "copied": len(self.pairs),
            "repeated": [list(span) for span in spans(sorted(set(self.repeated)))],
        }


@dataclass(frozen=True)
class Taking:
    """What a take-over needs to know."""

    storage: Storage
    flow: Flow
    target: Target
    topic: str
    """Where MM2's positions are."""

    @property
    def source_cluster(self) -> Cluster:
        return self.storage.clusters[self.flow.source]

    @property
    def target_cluster(self) -> Cluster:
        return self.storage.clusters[self.target.cluster]

    def plan(self) -> list[Adoption]:
        """Positions by what is on both sides. Changes nothing."""
        self._refuse_running()
        noted = self._noted()
        sources = self._sources()
        names, _ = fit_names(self.storage.config, self.flow, self.target, sources)
        copies = self.target_cluster.describe(names.values())
        known = {entry.source for entry in self._entries()}
        return [
            self._adoption(source, copies[names[source.topic]], noted)
            for source in _partitions(sources)
            if names.get(source.topic) in copies and source not in known
        ]

    def _refuse_running(self) -> None:
        group = f"{self.flow.source}-mm2"
        state = Consumers(self.target_cluster).groups().get(group, "DEAD")
        if state not in ("EMPTY", "DEAD"):
            raise DataAtRisk(
                f"MM2 runs: its worker group {group} on {self.target.cluster} is {state.lower()}",
                "stop it; after a crash its group is empty within a minute",
            )

    def _sources(self) -> dict[str, TopicInfo]:
        names = self.source_cluster.topic_names()
        return self.source_cluster.describe(flow_topics(self.storage.config, self.flow, names))

    def _entries(self) -> list[Entry]:
        ledger = f"{self.storage.config.storage.ops_schema}.ledger"
        if not self.storage.tables.exists(ledger):
            return []
        return read_ledger(self.storage.tables, ledger, self.flow.name, self.target.cluster)

    def _noted(self) -> dict[TopicPartition, int]:
        """MM2's notes, the newest of each partition."""
        cluster = self.target_cluster
        found = cluster.describe([self.topic])
        if self.topic not in found:
            raise TopicMissing(
                f"cluster {self.target.cluster} has no topic {self.topic}, where MM2 keeps its positions",
                "name it with --offsets-topic; an MM2 run by Strimzi or Connect has another one",
            )
        places = [TopicPartition(self.topic, number) for number in range(found[self.topic].partitions)]
        starts, ends = cluster.log_starts(places), cluster.log_ends(places)
        noted: dict[TopicPartition, int] = {}
        for place in places:
            for message in cluster.read_range(place, starts[place], ends[place]):
                position = parse_position(message.key(), message.value())
                if position and position[0] == self.flow.source and position[2] is not None:
                    noted[position[1]] = position[2] + 1
        return noted

    def _adoption(self, source: SourcePartition, copy: TopicInfo, noted: Mapping[TopicPartition, int]) -> Adoption:
        here, there = source.at, TopicPartition(copy.name, source.partition)
        end = await_stable_ends(self.target_cluster, [there], STABLE_SECONDS, 60.0, time.monotonic, time.sleep)[there]
        found = align(
            self._window(self.source_cluster, here, noted.get(here)), self._window(self.target_cluster, there)
        )
        position, begin = noted.get(here), self.source_cluster.log_starts([here])[here]
        next_offset = begin if found.next_offset is None else found.next_offset
        refusal = _refusal(found, position, end)
        return Adoption(source, there, copy.id, position, next_offset, end, found.pairs, found.repeated, refusal)

    def _window(self, cluster: Cluster, at: TopicPartition, near: int | None = None) -> list[tuple[int, Digest]]:
        """The end of a log, or what lies around an offset of it."""
        start, end = cluster.log_starts([at])[at], cluster.log_ends([at])[at]
        until = end if near is None else min(end, near + WINDOW)
        committed = self.flow.isolation == "read_committed" and cluster is self.source_cluster
        messages = cluster.read_range(at, max(start, until - 2 * WINDOW), until, committed)
        return [(message.offset(), digest_of(message)) for message in messages]


def _partitions(topics: Mapping[str, TopicInfo]) -> Iterator[SourcePartition]:
    for info in topics.values():
        yield from (SourcePartition(info.name, info.id, number) for number in range(info.partitions))


def _refusal(found: Alignment, noted: int | None, target_end: int) -> str:
    if found.missing:
        said = ", ".join(f"{first}-{first + count - 1}" for first, count in spans(found.missing)[:5])
        return f"source offsets {said} are not there, although later ones are"
    if target_end and found.next_offset is None:
        return "none of the target's records is on the source any more"
    if noted is not None and found.next_offset is not None and found.next_offset < noted:
        return f"MM2 says that it copied up to {noted - 1}, the target ends with {found.next_offset - 1}"
    return ""


# --- doing ---


def adopt(taking: Taking, say: Say = silent) -> list[Adoption]:
    """Hold the flow, look again, then write baselines, places and what MM2 left twice."""
    storage, flow = taking.storage, taking.flow
    ensure_ops(storage.tables, storage.config.storage.ops_schema)
    root = storage_root(storage.config)
    with hold_flow(storage.config.storage, root, storage.tables, flow.name, say) as lease:
        plan = taking.plan()
        for each in plan:
            if each.refusal:
                raise DataAtRisk(
                    f"flow {flow.name}: {each.source} cannot be taken over: {each.refusal}",
                    "choose existing_records for the target: latest begins at the newest, append sends all",
                )
        entries = [entry for each in plan for entry in _entries(taking, each, lease.epoch)]
        incidents = [row for each in plan for row in _incidents(taking, each)]
        # Incidents first: once the baselines are there, nobody looks again.
        _append(storage, "incidents", incidents, INCIDENTS)
        _append(storage, "ledger", [entry.row(now()) for entry in entries], LEDGER)
    return plan


def _append(storage: Storage, table: str, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    if rows:
        name = f"{storage.config.storage.ops_schema}.{table}"
        storage.tables.append(name, pa.Table.from_pylist(rows, schema=schema))


def _entries(taking: Taking, each: Adoption, epoch: int) -> Iterable[Entry]:
    template = Entry(
        taking.flow.name, taking.target.cluster, BASELINE, epoch, each.source, each.next_offset, each.next_offset - 1,
        each.target, each.target_topic_id, None, 0, each.target_end, "taken over from MM2",
    )  # fmt: skip
    adopted = Entry(**{**vars(template), "kind": ADOPTED})
    return [template, *relay_entries(adopted, runs_from_pairs(each.pairs), each.target_end)]


def _incidents(taking: Taking, each: Adoption) -> Iterator[dict[str, Any]]:
    for first, count in spans(sorted(set(each.repeated))):
        yield {
            "flow": taking.flow.name, "target": taking.target.cluster, "kind": "duplicate", "topic": each.source.topic,
            "topic_id": each.source.topic_id, "partition": each.source.partition, "first_offset": first,
            "last_offset": first + count - 1, "detail": f"left by MM2 in {each.target}", "at": now(),
        }  # fmt: skip
