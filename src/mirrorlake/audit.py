"""Source, bronze and each target, compared record by record.

Everything is a merge of streams in offset order, so memory does not grow with the topics: what is kept are
the ledger's runs, spans of offsets, and the digests of some records that have not turned up yet. The
comparisons are pure; `audit_partition` reads.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right, insort
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from mirrorlake.kafka import Cluster, is_compacted, is_same_topic
from mirrorlake.ledger import ADOPTED, BASELINE, REPAIR, REPLAY, SKIP, Entry, Position
from mirrorlake.produce import header_lists
from mirrorlake.provenance import HEADER, Provenance, find, topic_id_bytes
from mirrorlake.provenance import digest as name_digest
from mirrorlake.records import AUDITS, SourcePartition, TopicPartition
from mirrorlake.tables import Readable

SCHEMA_VERSION = 1

# What fails an audit.
MISSING_IN_BRONZE, NOT_IN_SOURCE, CHANGED = "missing_in_bronze", "not_in_source", "changed"
MISSING_ON_TARGET, OUT_OF_ORDER, DUPLICATE = "missing_on_target", "out_of_order", "duplicate"
LEDGER_DISAGREES, TOPIC_MADE_ANEW = "ledger_disagrees", "topic_made_anew"
# What is worth knowing.
WAITING, SKIPPED, EXPIRED, FOREIGN, UNRECORDED = "waiting", "skipped", "expired", "foreign", "unrecorded"
BEFORE_START, REPLAYED, COMPACTED_AWAY = "before_start", "replayed", "compacted_away"
TIMESTAMP_NOT_KEPT, HEADERS_NOT_COMPARED = "timestamp_not_kept", "headers_not_compared"
NOT_COMPARED, SOURCE_GONE = "not_compared", "source_gone"

FAILS = frozenset(
    {MISSING_IN_BRONZE, NOT_IN_SOURCE, CHANGED, MISSING_ON_TARGET, OUT_OF_ORDER, DUPLICATE,
     LEDGER_DISAGREES, TOPIC_MADE_ANEW}
)  # fmt: skip
INFORMS = frozenset(
    {WAITING, SKIPPED, EXPIRED, FOREIGN, UNRECORDED, BEFORE_START, REPLAYED, COMPACTED_AWAY,
     TIMESTAMP_NOT_KEPT, HEADERS_NOT_COMPARED, NOT_COMPARED, SOURCE_GONE}
)  # fmt: skip
BY_TARGET_OFFSET = frozenset({LEDGER_DISAGREES, FOREIGN})
"""Their topic, partition and offsets are the target's; those of all others are the source's."""

MOST_SPANS = 1000
"""Spans kept for each kind and detail; after that the last one grows, and its count stays exact."""
LOOK_BACK = 65_536
"""Records that have not turned up and whose digests are kept in case they stand further on."""

Record = tuple[int, bytes]
"""Offset and digest."""
TargetRecord = tuple[int, bytes, "Provenance | None"]


# --- digests ---

HeaderPairs = Sequence[tuple[str, "bytes | None"]]
_LENGTHS = struct.Struct(">qq")
_TIME = struct.Struct(">q")
_HASH_BYTES = 32
_NO_TIME = -(2**63)
_UNREADABLE = bytes(_HASH_BYTES)


def digest(key: bytes | None, value: bytes | None, headers: HeaderPairs | None, timestamp_ms: int | None) -> bytes:
    """SHA-256 of key and value, SHA-256 of the headers, timestamp: apart, so that a difference has a name.

    Our own header is left out. No timestamp, or headers of None, means: not to be compared.
    """
    body = hashlib.sha256(_framed(key, value)).digest()
    time = _TIME.pack(_NO_TIME if timestamp_ms is None else timestamp_ms)
    return body + (_UNREADABLE if headers is None else _headers_hash(headers)) + time


def _framed(first: bytes | None, second: bytes | None) -> bytes:
    """Both with their lengths before them; null has the length -1."""
    return _LENGTHS.pack(_length(first), _length(second)) + (first or b"") + (second or b"")


def _length(content: bytes | None) -> int:
    return -1 if content is None else len(content)


_NO_HEADERS = hashlib.sha256(b"").digest()


def _headers_hash(headers: HeaderPairs) -> bytes:
    framed = [_framed(name.encode(), value) for name, value in headers if name != HEADER]
    return hashlib.sha256(b"".join(framed)).digest() if framed else _NO_HEADERS


def differences(kept: bytes, seen: bytes, resent: bool = True) -> Iterator[tuple[str, str]]:
    """(kind, detail) for all in which a record differs from bronze's.

    `resent` by librdkafka, which cannot carry every timestamp; what the source holds must be equal in all.
    """
    if kept == seen:
        return
    parts = ["key or value"] if kept[:_HASH_BYTES] != seen[:_HASH_BYTES] else []
    kept_headers, seen_headers = kept[_HASH_BYTES:-8], seen[_HASH_BYTES:-8]
    if _UNREADABLE in (kept_headers, seen_headers):
        yield HEADERS_NOT_COMPARED, "a header's key is not UTF-8"
    elif kept_headers != seen_headers:
        parts.append("headers")
    if resent and (reason := _why_not_kept(kept[-8:], seen[-8:])):
        yield TIMESTAMP_NOT_KEPT, reason
    elif kept[-8:] != seen[-8:]:
        parts.append("timestamp")
    if parts:
        yield CHANGED, "differs in " + ", ".join(parts)


def _why_not_kept(kept: bytes, seen: bytes) -> str:
    if seen == _TIME.pack(_NO_TIME):
        return "the target topic keeps the time of appending (LogAppendTime)"
    if kept != seen and _TIME.unpack(kept)[0] <= 0:
        return "timestamp 0 or less: librdkafka sends the time of sending instead"
    return ""


# --- findings ---


@dataclass(frozen=True)
class Finding:
    """One thing said of a span of offsets; `target` is empty between source and bronze."""

    target: str
    topic: str
    partition: int
    kind: str
    first_offset: int
    last_offset: int
    records: int
    detail: str
    fails: bool


@dataclass
class _Span:
    first: int
    last: int
    records: int

    def widen(self, first: int, last: int, records: int) -> None:
        self.first, self.last = min(self.first, first), max(self.last, last)
        self.records += records


@dataclass
class Findings:
    """Gathers findings, neighbours together."""

    source: SourcePartition
    target: str = ""
    on_target: TopicPartition | None = None
    _spans: dict[tuple[str, str], list[_Span]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, first: int, detail: str = "", last: int | None = None) -> None:
        end = first if last is None else last
        spans, records = self._spans[kind, detail], end - first + 1
        if spans and (first == spans[-1].last + 1 or len(spans) >= MOST_SPANS):
            spans[-1].widen(first, end, records)
        else:
            spans.append(_Span(first, end, records))

    def compare(self, offset: int, kept: bytes, seen: bytes, resent: bool = True) -> None:
        for kind, detail in differences(kept, seen, resent):
            self.add(kind, offset, detail)

    def all(self) -> list[Finding]:
        """Those that fail first, then by offset."""
        gathered = self._spans.items()
        found = [self._finding(kind, detail, span) for (kind, detail), spans in gathered for span in spans]
        return sorted(found, key=lambda finding: (not finding.fails, finding.first_offset, finding.kind))

    def _finding(self, kind: str, detail: str, span: _Span) -> Finding:
        at = self.on_target if self.on_target and kind in BY_TARGET_OFFSET else self.source
        where = (self.target, at.topic, at.partition)
        return Finding(*where, kind, span.first, span.last, span.records, detail, fails=kind in FAILS)


# --- spans of offsets ---


class Offsets:
    """A set of offsets as disjoint spans in order; consecutive offsets cost nothing."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        """Spans are (first, end); they may overlap."""
        self._spans: list[tuple[int, int]] = []
        for first, end in sorted(spans):
            if self._spans and first <= self._spans[-1][1]:
                self._spans[-1] = (self._spans[-1][0], max(end, self._spans[-1][1]))
            elif first < end:
                self._spans.append((first, end))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._spans)

    def __contains__(self, offset: int) -> bool:
        return self._place(offset) is not None

    def _place(self, offset: int) -> int | None:
        place = bisect_right(self._spans, (offset, 2**63)) - 1
        return place if place >= 0 and offset < self._spans[place][1] else None

    def add(self, offset: int) -> None:
        if self._spans and self._spans[-1][1] == offset:
            self._spans[-1] = (self._spans[-1][0], offset + 1)
        elif offset not in self:
            insort(self._spans, (offset, offset + 1))

    def discard(self, offset: int) -> None:
        place = self._place(offset)
        if place is not None:
            first, end = self._spans[place]
            left = [span for span in ((first, offset), (offset + 1, end)) if span[0] < span[1]]
            self._spans[place : place + 1] = left


# --- source and bronze ---


_END: Record = (2**63, b"")


def merged(left: Iterable[Record], right: Iterable[Record]) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Two streams in offset order as one: the offset, and what each holds there."""
    lefts, rights = iter(left), iter(right)
    a, b = next(lefts, _END), next(rights, _END)
    while (offset := min(a[0], b[0])) < _END[0]:
        in_left, in_right = a[0] == offset, b[0] == offset
        yield offset, a[1] if in_left else None, b[1] if in_right else None
        a = next(lefts, _END) if in_left else a
        b = next(rights, _END) if in_right else b


def _once(records: Iterable[Record], repeated: Callable[[int], None]) -> Iterator[Record]:
    last = -1
    for offset, seen in records:
        if offset == last:
            repeated(offset)
        else:
            yield offset, seen
        last = offset


def compare_source(
    at: SourcePartition,
    source: Iterable[Record],
    bronze: Iterable[Record],
    source_start: int,
    source_end: int,
    ingest_position: int,
    compacted: bool = False,
) -> list[Finding]:
    """Both streams in offset order. A compacted source may rightly lack anything."""
    findings = Findings(at)
    once = _once(bronze, lambda offset: findings.add(DUPLICATE, offset, "twice in bronze"))
    for offset, seen, kept in merged(source, once):
        if seen is not None and kept is not None:
            findings.compare(offset, kept, seen, resent=False)
        elif seen is not None:
            findings.add(WAITING if offset >= ingest_position else MISSING_IN_BRONZE, offset)
        elif offset >= source_end:
            findings.add(NOT_IN_SOURCE, offset, f"the source ends at {source_end}: it lost its tail")
        elif offset >= source_start and not compacted:
            findings.add(NOT_IN_SOURCE, offset)
    return findings.all()


# --- bronze and a target ---


@dataclass(frozen=True)
class Copy:
    """One source partition on one target, and the log it stands in."""

    flow: str
    target: str
    source: SourcePartition
    position: Position
    log_start: int
    log_end: int
    topic_id: str = ""
    """The target topic's id now; empty where brokers know none."""
    compacted: bool = False

    def same_topic(self, topic_id: str) -> bool:
        return not topic_id or not self.topic_id or topic_id == self.topic_id


class Place(NamedTuple):
    """What the ledger says of a target offset."""

    source_offset: int
    kind: str

    @property
    def resent(self) -> bool:
        return self.kind in (REPAIR, REPLAY)


class LedgerMap:
    """The ledger of one source partition and target, as a map in both directions."""

    def __init__(self, entries: Sequence[Entry], copy: Copy) -> None:
        here = [entry for entry in entries if _runs_in(entry, copy)]
        self.runs = sorted(here, key=lambda entry: entry.target_first or 0)
        self._starts = [entry.target_first or 0 for entry in self.runs]
        self.skips = [entry for entry in entries if entry.kind == SKIP]
        self.delivered = Offsets((entry.source_first, entry.source_last + 1) for entry in here)
        self.readable = Offsets(_readable(entry, copy.log_start) for entry in here)
        self._left_out = Offsets((entry.source_first, entry.source_last + 1) for entry in self.skips)
        self.begin = min((entry.source_first for entry in entries if _begins(entry, copy)), default=0)

    def skips_over(self, source_offset: int) -> bool:
        """Left out on purpose, and not sent after all."""
        return source_offset in self._left_out and source_offset not in self.delivered

    def at(self, target_offset: int) -> Place | None:
        run = bisect_right(self._starts, target_offset) - 1
        if run < 0 or target_offset >= self._starts[run] + self.runs[run].count:
            return None
        entry = self.runs[run]
        return Place(entry.source_first + target_offset - self._starts[run], entry.kind)


def _runs_in(entry: Entry, copy: Copy) -> bool:
    """Does the entry say that records stand in this log? A replay may have gone to another topic."""
    here = entry.target_partition == copy.position.target_partition and copy.same_topic(entry.target_topic_id)
    return here and entry.target_first is not None and entry.count > 0 and entry.kind != ADOPTED


def _begins(entry: Entry, copy: Copy) -> bool:
    """Is it the baseline of the topic that the position speaks of?"""
    return entry.kind == BASELINE and entry.target_topic_id == copy.position.target_topic_id


def _readable(entry: Entry, log_start: int) -> tuple[int, int]:
    expired = max(0, log_start - (entry.target_first or 0))
    return entry.source_first + expired, entry.source_last + 1


def compare_target(
    messages: Iterable[TargetRecord], bronze: Iterable[Record], entries: Sequence[Entry], copy: Copy
) -> list[Finding]:
    """Messages in target order from the log's start, bronze in source order from its own."""
    return _Matching(bronze, LedgerMap(entries, copy), copy).run(messages)


class _Matching:
    """Walks along a target's log with bronze beside it."""

    def __init__(self, bronze: Iterable[Record], ledger: LedgerMap, copy: Copy) -> None:
        self.ledger, self.copy = ledger, copy
        self.findings = Findings(copy.source, copy.target, copy.position.target_partition)
        self._bronze = _once(bronze, lambda _offset: None)
        self._head = next(self._bronze, None)
        self._seen = Offsets()
        self._absent = Offsets()
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self._highest = -1
        self._flow = name_digest(copy.flow)
        self._topic_id = topic_id_bytes(copy.source.topic_id)

    def run(self, messages: Iterable[TargetRecord]) -> list[Finding]:
        for target_offset, seen, came in messages:
            self._take(target_offset, seen, came)
        self._pass_bronze(None)
        kind = COMPACTED_AWAY if self.copy.compacted else MISSING_ON_TARGET
        for first, end in self._absent:
            self.findings.add(kind, first, last=end - 1)
        for skip in sorted(self.ledger.skips, key=lambda entry: entry.source_first):
            self.findings.add(SKIPPED, skip.source_first, skip.reason, skip.source_last)
        return self.findings.all()

    def _take(self, target_offset: int, seen: bytes, came: Provenance | None) -> None:
        noted = self.ledger.at(target_offset)
        offset = self._source_offset(target_offset, came, noted)
        if offset is None:
            return
        if noted is None:
            self._check_recorded(target_offset, offset)
        if self._landed_before(offset):
            self.findings.add(REPLAYED if noted and noted.kind == REPLAY else DUPLICATE, offset)
            return
        self._seen.add(offset)
        if noted and noted.resent:
            # Sent again out of its place: `compare_resent` looks at what is in it.
            self._absent.discard(offset)
        else:
            self._match(offset, seen)

    def _source_offset(self, target_offset: int, came: Provenance | None, noted: Place | None) -> int | None:
        """Which record this is: by its provenance, else by the ledger; None where it is not ours."""
        if came is None or came.flow != self._flow:
            if noted is None:
                self.findings.add(FOREIGN, target_offset)
            return noted.source_offset if noted else None
        ours = (came.topic_id, came.partition) == (self._topic_id, self.copy.source.partition)
        claimed = came.offset if ours else None
        if noted and claimed != noted.source_offset:
            self.findings.add(LEDGER_DISAGREES, target_offset, "the record says it is another one")
        return claimed

    def _check_recorded(self, target_offset: int, offset: int) -> None:
        if offset >= self.copy.position.next_offset:
            self.findings.add(UNRECORDED, offset)
        elif offset not in self.ledger.delivered:
            self.findings.add(LEDGER_DISAGREES, target_offset, "the ledger does not know that it is there")

    def _landed_before(self, offset: int) -> bool:
        """Seen already, or delivered to where the log has expired since."""
        return offset in self._seen or self._has_expired(offset)

    def _has_expired(self, offset: int) -> bool:
        return offset in self.ledger.delivered and offset not in self.ledger.readable

    def _match(self, offset: int, seen: bytes) -> None:
        if offset < self._highest:
            self.findings.add(OUT_OF_ORDER, offset)
        self._highest = max(self._highest, offset)
        self._pass_bronze(offset)
        kept = self._kept(offset)
        if kept is None:
            self.findings.add(NOT_COMPARED, offset, "not in bronze, or too far from its place")
        else:
            self.findings.compare(offset, kept, seen)

    def _kept(self, offset: int) -> bytes | None:
        """Bronze's digest of a record, which is then accounted for."""
        if self._head and self._head[0] == offset:
            kept, self._head = self._head[1], next(self._bronze, None)
            return kept
        self._absent.discard(offset)
        return self._digests.pop(offset, None)

    def _pass_bronze(self, until: int | None) -> None:
        while self._head and (until is None or self._head[0] < until):
            self._settle(*self._head)
            self._head = next(self._bronze, None)

    def _settle(self, offset: int, kept: bytes) -> None:
        """Bronze holds it and the target has not shown it at its place."""
        if offset in self._seen or self.ledger.skips_over(offset):
            return
        if why := self._excused(offset):
            self.findings.add(why, offset)
            return
        self._absent.add(offset)
        self._digests[offset] = kept
        if len(self._digests) > LOOK_BACK:
            self._digests.popitem(last=False)

    def _excused(self, offset: int) -> str:
        """Why a record need not be there; empty where it must."""
        if offset in self.ledger.delivered:
            return EXPIRED if self._has_expired(offset) else ""
        if offset >= self.copy.position.next_offset:
            return WAITING
        return BEFORE_START if offset < self.ledger.begin else ""


def compare_resent(messages: Iterable[TargetRecord], bronze: Iterable[Record], run: Entry, copy: Copy) -> list[Finding]:
    """What a repair or a replay sent again: only its content, since its place is out of the order."""
    findings = Findings(copy.source, copy.target, copy.position.target_partition)
    shift = run.source_first - (run.target_first or 0)
    for offset, seen, kept in merged(((at + shift, seen) for at, seen, _ in messages), bronze):
        if seen is not None and kept is not None:
            findings.compare(offset, kept, seen)
    return findings.all()


# --- the report ---


@dataclass
class Counts:
    """Records read on each side."""

    source: int = 0
    bronze: int = 0
    targets: dict[str, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        self.source += other.source
        self.bronze += other.bronze
        for target, count in other.targets.items():
            self.targets[target] = self.targets.get(target, 0) + count


@dataclass
class PartitionAudit:
    source: SourcePartition
    counts: Counts = field(default_factory=Counts)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    audit_id: str
    flow: str
    at: datetime
    partitions: int
    compared: Counts
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.fails for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The schema is in docs/audit.md."""
        return {
            "schema": SCHEMA_VERSION,
            "audit": self.audit_id,
            "flow": self.flow,
            "at": self.at.isoformat(),
            "ok": self.ok,
            "partitions": self.partitions,
            "compared": asdict(self.compared),
            "findings": [asdict(finding) for finding in self.findings],
        }


def make_report(audit_id: str, flow: str, at: datetime, audits: Iterable[PartitionAudit]) -> Report:
    partitions, compared, findings = 0, Counts(), list[Finding]()
    for audit in audits:
        partitions += 1
        compared.add(audit.counts)
        findings += audit.findings
    findings.sort(key=lambda f: (not f.fails, f.target, f.topic, f.partition, f.first_offset))
    return Report(audit_id, flow, at, partitions, compared, tuple(findings))


def rows(report: Report) -> pa.Table:
    """For ops.audits: each finding, and a row `compared` for each side: a clean audit leaves a trace too."""
    found = [
        {
            "target": finding.target,
            "topic": finding.topic,
            "partition": finding.partition,
            "finding": finding.kind,
            "first_offset": finding.first_offset,
            "last_offset": finding.last_offset,
            "records": finding.records,
            "detail": finding.detail,
        }
        for finding in report.findings
    ]
    same = {"flow": report.flow, "audit": report.audit_id, "at": report.at}
    return pa.Table.from_pylist([{**same, **row} for row in [*_compared_rows(report), *found]], schema=AUDITS)


def _compared_rows(report: Report) -> list[dict[str, Any]]:
    detail = "ok" if report.ok else "with findings"
    sides = [("", "source", report.compared.source), ("", "bronze", report.compared.bronze)]
    sides += [(target, "target", count) for target, count in sorted(report.compared.targets.items())]
    return [
        {"target": target, "finding": "compared", "records": count, "detail": f"{side}: {detail}"}
        for target, side, count in sides
    ]


# --- reading ---


@dataclass(frozen=True)
class TargetSide:
    """A target as the audit needs it. The ledger is read first: what is sent meanwhile is `unrecorded`."""

    cluster: Cluster
    entries: Sequence[Entry]
    """Of the source partition and this target."""
    position: Position


@dataclass(frozen=True)
class SourceSide:
    """A source as the audit needs it."""

    cluster: Cluster
    ingest_position: int
    """Asked before the audit: the offset that ingest reads next."""
    ingest_begin: int = 0
    """Where ingest began, or up to where bronze was emptied on purpose: what lies before is not asked for."""
    committed: bool = False
    until: int | None = None
    """From there on bronze has the log as another partition: its broker began to tell ids, or the log was cut."""


def audit_partition(
    flow: str,
    source: SourcePartition,
    source_side: SourceSide,
    files: Readable,
    targets: Mapping[str, TargetSide],
) -> PartitionAudit:
    """One source partition against bronze, and bronze against every target."""
    audit = PartitionAudit(source)
    audit.findings += _audit_source(source, source_side, files, audit.counts)
    for target, side in targets.items():
        audit.findings += audit_target(flow, source, target, side, files, audit.counts)
    return audit


def _audit_source(source: SourcePartition, side: SourceSide, files: Readable, counts: Counts) -> list[Finding]:
    at, cluster = source.at, side.cluster
    info = cluster.describe([source.topic]).get(source.topic)
    if info is None or not is_same_topic(source.topic_id, info.id):
        return [_gone(source, files)]
    # The end is asked after bronze's files are known, so bronze cannot rightly hold anything after it.
    start, end = cluster.log_starts([at])[at], cluster.log_ends([at], side.committed)[at]
    first, end = max(start, side.ingest_begin), end if side.until is None else min(end, side.until)
    messages = map(_source_record, cluster.read_range(at, first, end, side.committed))
    seen, kept = Counted(messages), Counted(read_bronze(files, source, first, side.until))
    compacted = is_compacted(cluster, at.topic)
    found = compare_source(source, seen, kept, first, end, side.ingest_position, compacted)
    counts.source, counts.bronze = seen.count, kept.count
    return found + _cut_off(source, files, side.until)


def _gone(source: SourcePartition, files: Readable) -> Finding:
    held = [segment for segment in files.segments() if segment.source == source]
    first = min((segment.first_offset for segment in held), default=0)
    last = max((segment.last_offset for segment in held), default=-1)
    records = sum(segment.records for segment in held)
    return _only_here(source, first, last, records, "the source topic was deleted or made anew")


def _cut_off(source: SourcePartition, files: Readable, until: int | None) -> list[Finding]:
    """What stands in bronze from where the source's log was cut on: it has other records there now."""
    offsets = [offset for offset, _ in read_bronze(files, source, until)] if until is not None else []
    if not offsets:
        return []
    return [_only_here(source, offsets[0], offsets[-1], len(offsets), "the source's log was cut here")]


def _only_here(source: SourcePartition, first: int, last: int, records: int, why: str) -> Finding:
    detail = f"{why}: bronze alone holds these records"
    return Finding("", source.topic, source.partition, SOURCE_GONE, first, last, records, detail, fails=False)


def audit_target(
    flow: str, source: SourcePartition, target: str, side: TargetSide, files: Readable, counts: Counts | None = None
) -> list[Finding]:
    """Bronze against one target."""
    copy = _look_at(flow, source, target, side)
    at = copy.position.target_partition
    messages = Counted(map(_target_record, side.cluster.read_range(at, copy.log_start, copy.log_end)))
    found = _made_anew(copy) + compare_target(messages, read_bronze(files, source), side.entries, copy)
    if counts is not None:
        counts.targets[target] = messages.count
    for run in LedgerMap(side.entries, copy).runs:
        if run.kind in (REPAIR, REPLAY):
            found += _audit_resent(run, copy, side.cluster, files)
    return found


def _look_at(flow: str, source: SourcePartition, target: str, side: TargetSide) -> Copy:
    at, cluster = side.position.target_partition, side.cluster
    info = cluster.describe([at.topic]).get(at.topic)
    start, end = cluster.log_starts([at])[at], cluster.log_ends([at])[at]
    compacted = is_compacted(cluster, at.topic)
    return Copy(flow, target, source, side.position, start, end, info.id if info else "", compacted)


def _made_anew(copy: Copy) -> list[Finding]:
    if copy.same_topic(copy.position.target_topic_id):
        return []
    source, last = copy.source, copy.position.next_offset - 1
    detail = f"target topic {copy.position.target_partition.topic}: the ledger speaks of one with another id"
    return [Finding(copy.target, source.topic, source.partition, TOPIC_MADE_ANEW, 0, last, 0, detail, fails=True)]


def _audit_resent(run: Entry, copy: Copy, cluster: Cluster, files: Readable) -> list[Finding]:
    first, end = _readable(run, copy.log_start)
    if first >= end:
        return []
    shift = (run.target_first or 0) - run.source_first
    target_end = min(end + shift, copy.log_end)
    messages = cluster.read_range(copy.position.target_partition, first + shift, target_end)
    bronze = read_bronze(files, copy.source, first, end)
    return compare_resent(map(_target_record, messages), bronze, run, copy)


class Counted(Iterator[Any]):
    """Counts what is taken from it."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)
        self.count = 0

    def __next__(self) -> Any:
        item = next(self._items)
        self.count += 1
        return item


def read_bronze(files: Readable, source: SourcePartition, first: int = 0, until: int | None = None) -> Iterator[Record]:
    lasts = (segment.last_offset for segment in files.segments() if segment.source == source)
    end = max(lasts, default=-1) + 1 if until is None else until
    return (record for batch in files.read(source, first, end) for record in bronze_records(batch))


def bronze_records(batch: pa.RecordBatch) -> Iterator[Record]:
    at = batch["timestamp"]
    times = at.cast(pa.timestamp("ms", at.type.tz), safe=False).cast(pa.int64()).to_pylist()
    offsets, keys, values = (batch[name].to_pylist() for name in ("offset", "key", "value"))
    for offset, *record in zip(offsets, keys, values, header_lists(batch["headers"]), times, strict=True):
        yield offset, digest(*record)


def _source_record(message: Any) -> Record:
    return message.offset(), digest(message.key(), message.value(), _headers(message), message.timestamp()[1])


_LOG_APPEND_TIME = 2  # confluent_kafka.TIMESTAMP_LOG_APPEND_TIME


def _target_record(message: Any) -> TargetRecord:
    headers, (time_type, time_ms) = _headers(message), message.timestamp()
    kept_ms = None if time_type == _LOG_APPEND_TIME else time_ms
    return message.offset(), digest(message.key(), message.value(), headers, kept_ms), find(headers)


def _headers(message: Any) -> HeaderPairs | None:
    """None where a key is not UTF-8: the client cannot hand such headers out."""
    try:
        return message.headers() or ()
    except (UnicodeDecodeError, SystemError):
        return None
