"""What must be so of records in all four places: the source, bronze, the ledger and the target.

Everything here is pure but `read_log` and `read_bronze`. A record is known by its place at the source; the ledger and
the provenance header each say where it stands on the target, and neither is believed without the other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from harness import Flow, Record

from mirrorlake.kafka import Cluster
from mirrorlake.ledger import BASELINE, RELAY, REPAIR, SKIP
from mirrorlake.provenance import HEADER, Provenance, find, topic_id_bytes
from mirrorlake.provenance import digest as name_digest
from mirrorlake.records import TopicPartition
from mirrorlake.topics import relay_specs

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MILLISECOND = timedelta(milliseconds=1)
DELIVERED_BY = (RELAY, REPAIR)
EXACTLY, THINNED, COPIED = "exactly", "thinned", "copied"
"""What the target may hold of ours: all that was delivered, less since it drops records, or some of it twice."""


class Place(NamedTuple):
    """Of a record at the source."""

    topic: str
    topic_id: str
    partition: int
    offset: int


class Spot(NamedTuple):
    """Of a record on the target."""

    partition: int
    offset: int


@dataclass(frozen=True)
class Held:
    """A record as a log holds it, with all of its headers."""

    offset: int
    record: Record
    timestamp_type: int
    """As bronze counts: 0 where the producer gave the time, 1 where the broker did."""

    @property
    def relayed(self) -> Record:
        """What a relay has to keep: all but our own header."""
        headers = tuple(header for header in self.record.headers if header[0] != HEADER)
        return Record(self.record.value, self.record.key, headers, self.record.timestamp_ms, self.record.partition)

    @property
    def came(self) -> Provenance | None:
        return find(self.record.headers)

    @property
    def fingerprint(self) -> bytes:
        return fingerprint(self.record, self.timestamp_type)


Log = Mapping[int, Sequence[Held]]
"""All that a topic holds, by partition, in the order of offsets."""


def fingerprint(record: Record, timestamp_type: int) -> bytes:
    """SHA-256 of every field."""
    return hashlib.sha256(repr((record, timestamp_type)).encode()).digest()


# --- reading ---


def read_log(cluster: Cluster, topic: str, committed: bool = True) -> dict[int, list[Held]]:
    partitions = [TopicPartition(topic, number) for number in range(cluster.describe([topic])[topic].partitions)]
    starts, ends = cluster.log_starts(partitions), cluster.log_ends(partitions)
    return {
        at.partition: [_held(message) for message in cluster.read_range(at, starts[at], ends[at], committed)]
        for at in partitions
    }


def _held(message: Any) -> Held:
    kind, timestamp_ms = message.timestamp()
    headers = tuple(message.headers() or ())
    record = Record(message.value(), message.key(), headers, timestamp_ms, message.partition())
    return Held(message.offset(), record, kind - 1)


def read_bronze(flow: Flow) -> dict[Place, bytes]:
    """The fingerprint of each record of the flow's topic, which must stand there once."""
    config = flow.config()
    (spec,) = relay_specs(config, config.flow(flow.name), flow.topics)
    return once_each(map(_bronze_record, flow.rows(spec.table)))


def _bronze_record(row: Mapping[str, Any]) -> tuple[Place, bytes]:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    timestamp_ms = (row["timestamp"] - EPOCH) // MILLISECOND
    record = Record(row["value"], row["key"], headers, timestamp_ms, row["partition"])
    place = Place(row["topic"], row["topic_id"] or "", row["partition"], row["offset"])
    return place, fingerprint(record, row["timestamp_type"])


def once_each(records: Iterable[tuple[Place, bytes]]) -> dict[Place, bytes]:
    found: dict[Place, bytes] = {}
    for place, content in records:
        assert place not in found, f"bronze: {place} stands there twice"
        found[place] = content
    return found


# --- bronze and the source ---


def expect_bronze(bronze: Mapping[Place, bytes], source: Log, topic: str, topic_id: str, compacted: bool) -> None:
    """Each record that the source has now; of what lies after the first of them nothing else, unless it compacts."""
    firsts = {number: log[0].offset for number, log in source.items() if log}
    want = {
        Place(topic, topic_id, number, held.offset): held.fingerprint for number, log in source.items() for held in log
    }
    here = {
        place: content
        for place, content in bronze.items()
        if place.topic_id == topic_id and place.offset >= firsts.get(place.partition, place.offset + 1)
    }
    assert not (missing := want.keys() - here.keys()), f"bronze: {some(missing)} of the source are missing"
    assert compacted or not (more := here.keys() - want.keys()), f"bronze: {some(more)} are not at the source"
    changed = {place for place, content in want.items() if here[place] != content}
    assert not changed, f"bronze: {some(changed)} differ from the source's"


# --- the ledger ---


@dataclass(frozen=True)
class Ledger:
    """The rows of one flow and target, as far as they speak of the target topic that there is now."""

    stands: Mapping[Place, Spot]
    skipped: frozenset[Place]
    begins: Mapping[tuple[str, int], int]
    """(Topic id, partition) -> the first source offset that was to be sent."""

    def due(self, bronze: Iterable[Place]) -> set[Place]:
        """What must have been delivered: all of bronze from where we began, except what was left out on purpose."""
        left_out = self.skipped - self.stands.keys()
        return {place for place in bronze if place.offset >= self._begin(place) and place not in left_out}

    def _begin(self, place: Place) -> int:
        return self.begins.get((place.topic_id, place.partition), 0)


def ledger_of(rows: Sequence[Mapping[str, Any]], target_topic_id: str) -> Ledger:
    """No source record may stand there twice, and no two of them at one spot of the target."""
    here = [row for row in rows if row["target_topic_id"] == target_topic_id]
    baselines = [row for row in here if row["kind"] == BASELINE]
    begins: dict[tuple[str, int], int] = {}
    for row in baselines:
        at = (row["source_topic_id"] or "", row["source_partition"])
        begins[at] = min(row["source_first"], begins.get(at, row["source_first"]))
    skipped = frozenset(place for row in rows if row["kind"] == SKIP for place in places_of(row))
    return Ledger(_stands(here, baselines), skipped, begins)


def _stands(rows: Iterable[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]]) -> dict[Place, Spot]:
    found: dict[Place, Spot] = {}
    taken: dict[Spot, Place] = {}
    for row in rows:
        if row["kind"] in DELIVERED_BY and row["target_first"] is not None:
            for place, spot in _pairs(row, _replaced_from(row, baselines)):
                assert place not in found, f"ledger: {place} stands at {found[place]} and at {spot}"
                assert spot not in taken, f"ledger: {place} and {taken[spot]} both stand at {spot}"
                found[place], taken[spot] = spot, place
    return found


def places_of(row: Mapping[str, Any]) -> Iterator[Place]:
    for offset in range(row["source_first"], row["source_last"] + 1):
        yield Place(row["source_topic"], row["source_topic_id"] or "", row["source_partition"], offset)


def _pairs(row: Mapping[str, Any], until: float) -> Iterator[tuple[Place, Spot]]:
    assert row["count"] == row["source_last"] - row["source_first"] + 1, f"ledger: its count is no run's: {row}"
    for number, place in enumerate(places_of(row)):
        if place.offset < until:
            yield place, Spot(row["target_partition"], row["target_first"] + number)


def _replaced_from(row: Mapping[str, Any], baselines: Sequence[Mapping[str, Any]]) -> float:
    """A baseline of a later epoch says that the target lost what stood from there on."""
    same = ("source_topic", "source_topic_id", "source_partition")
    later = [b for b in baselines if b["epoch"] > row["epoch"] and all(b[name] == row[name] for name in same)]
    return min((b["source_first"] for b in later), default=float("inf"))


# --- the ledger and the target ---


def by_provenance(target: Log, flow: str) -> dict[tuple[bytes, int, int], list[Spot]]:
    """Which records say that they are ours, and where they stand."""
    found: dict[tuple[bytes, int, int], list[Spot]] = {}
    for number, log in target.items():
        for held in log:
            if (came := held.came) and came.flow == name_digest(flow):
                place = (came.topic_id, came.partition, came.offset)
                found.setdefault(place, []).append(Spot(number, held.offset))
    return found


def by_order(source: Log, target: Log, topic: str, topic_id: str) -> dict[Place, Spot]:
    """Where each record stands when the target is the source's copy, record by record."""
    return {
        Place(topic, topic_id, number, one.offset): Spot(number, two.offset)
        for number, log in source.items()
        for one, two in zip(log, target[number], strict=True)
    }


def expect_ledger(ledger: Ledger, target: Log, flow: str, on_target: str = EXACTLY) -> None:
    """What the ledger says of each record is what the record says of itself."""
    told = by_provenance(target, flow)
    noted = {
        (topic_id_bytes(place.topic_id), place.partition, place.offset): spot for place, spot in ledger.stands.items()
    }
    assert not (unknown := told.keys() - noted.keys()), f"ledger: does not know {some(unknown)}, which are there"
    absent = noted.keys() - told.keys()
    assert on_target == THINNED or not absent, f"ledger: knows {some(absent)}, which are not there"
    wrong = {place for place, spots in told.items() if not _agree(noted[place], spots, on_target)}
    places = [(place[1:], noted[place], told[place]) for place in sorted(wrong)[:3]]
    assert not wrong, f"ledger: {len(wrong)} records stand elsewhere, or twice: {places}"


def _agree(noted: Spot, told: Sequence[Spot], on_target: str) -> bool:
    return noted in told if on_target == COPIED else told == [noted]


def expect_all_due(ledger: Ledger, bronze: Iterable[Place]) -> None:
    due, told = ledger.due(bronze), ledger.stands.keys()
    assert not (missing := due - told), f"ledger: {some(missing)} are in bronze and were not delivered"
    assert not (more := told - due), f"ledger: {some(more)} were delivered and are not in bronze, or were left out"


def some(found: Iterable[Any]) -> str:
    listed = sorted(found)
    return f"{len(listed)} records ({', '.join(map(str, listed[:3]))}{', ...' if len(listed) > 3 else ''})"


# --- records ---


def expect_equal(want: Mapping[int, Sequence[Record]], got: Mapping[int, Sequence[Record]], what: str) -> None:
    assert want.keys() == got.keys(), f"{what}: partitions {sorted(got)}, expected {sorted(want)}"
    for number, records in want.items():
        if digest(records) != digest(got[number]):
            raise AssertionError(f"{what}[{number}]: {difference(records, got[number])}")


def digest(records: Sequence[Record]) -> bytes:
    sha = hashlib.sha256()
    for record in records:
        sha.update(repr(record).encode())
    return sha.digest()


def difference(want: Sequence[Record], got: Sequence[Record]) -> str:
    wanted, found = Counter(want), Counter(got)
    missing, more = wanted - found, found - wanted
    first = next(
        (n for n, pair in enumerate(zip(want, got, strict=False)) if pair[0] != pair[1]), min(len(want), len(got))
    )
    return (
        f"{len(got)} records of {len(want)}: {missing.total()} missing, {more.total()} too many, "
        f"first difference at {first}: {want[first : first + 1]} but {got[first : first + 1]}"
    )
