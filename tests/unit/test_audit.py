"""The audit over plain iterators: every finding, and one mutation gives exactly its finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake import audit
from mirrorlake.audit import Copy, Findings, Offsets, compare_resent, compare_source, compare_target, digest
from mirrorlake.kafka import TopicInfo, is_compacted
from mirrorlake.ledger import BASELINE, RELAY, REPAIR, REPLAY, SKIP, Entry, Position
from mirrorlake.provenance import HEADER, Provenance, topic_id_bytes
from mirrorlake.provenance import digest as name_digest
from mirrorlake.records import AUDITS, BRONZE, SourcePartition, TopicPartition, runs_from_pairs
from mirrorlake.tables import BronzeFiles

SOURCE = SourcePartition("orders", "11111111-1111-1111-1111-111111111111", 3)
TARGET = TopicPartition("src.orders", 3)
TOPIC_ID = "22222222-2222-2222-2222-222222222222"
AT = datetime(2026, 1, 2, tzinfo=timezone.utc)
Target = list[tuple[int, bytes, Provenance | None]]


def record(offset: int, mark: str = "", timestamp_ms: int | None = 1000) -> tuple[int, bytes]:
    return offset, digest(b"k", f"{offset}{mark}".encode(), (), timestamp_ms)


def records(*offsets: int) -> list[tuple[int, bytes]]:
    return [record(offset) for offset in offsets]


def stamp(offset: int, flow: str = "flow", source: SourcePartition = SOURCE) -> Provenance:
    topic_id = topic_id_bytes(source.topic_id)
    return Provenance(name_digest(flow), name_digest("c"), topic_id, source.partition, offset, offset, 1, 1)


def entry(kind: str, source_first: int, target_first: int | None, count: int, **changes: Any) -> Entry:
    end = (target_first or 0) + count
    made = Entry(
        "flow", "dr", kind, 1, SOURCE, source_first, source_first + count - 1,
        TARGET, TOPIC_ID, target_first, count, end,
    )  # fmt: skip
    return replace(made, **changes)


def ledger_of(pairs: Sequence[tuple[int, int]], begin: int = 0) -> list[Entry]:
    runs = runs_from_pairs(pairs)
    return [entry(BASELINE, begin, None, 0)] + [
        entry(RELAY, run.source_first, run.target_first, run.count) for run in runs
    ]


def copy_of(next_offset: int, log_start: int = 0, log_end: int = 1000, **changes: Any) -> Copy:
    position = Position(next_offset, TARGET, TOPIC_ID, log_end)
    return Copy("flow", "dr", SOURCE, position, log_start, log_end, **{"topic_id": TOPIC_ID, **changes})


def said(findings: Sequence[audit.Finding]) -> list[tuple[str, int, int]]:
    return [(finding.kind, finding.first_offset, finding.records) for finding in findings]


def failing(findings: Sequence[audit.Finding]) -> list[tuple[str, int, int]]:
    return said([finding for finding in findings if finding.fails])


# --- digests ---


def test_the_digest_keeps_apart_what_is_different() -> None:
    seen = [
        digest(None, b"", (), 1), digest(b"", b"", (), 1),
        digest(b"", None, (), 1), digest(None, None, (), 1),
        digest(b"ab", b"c", (), 1), digest(b"a", b"bc", (), 1), digest(b"a", b"bc", (), 2),
        digest(b"a", b"bc", [("x", b"1"), ("y", b"2")], 1),
        digest(b"a", b"bc", [("y", b"2"), ("x", b"1")], 1),
        digest(b"a", b"bc", [("x", b"1")], 1), digest(b"a", b"bc", [("x", b"1"), ("x", b"1")], 1),
        digest(b"a", b"bc", [("x", None)], 1), digest(b"a", b"bc", [("x", b"")], 1),
        digest(b"a", b"bc", [("x1", b"")], 1), digest(b"a", b"bc", None, 1), digest(b"a", b"bc", (), None),
    ]  # fmt: skip
    assert len(set(seen)) == len(seen)


def test_our_own_header_is_left_out() -> None:
    assert digest(b"k", b"v", [("a", b"1"), (HEADER, b"x")], 5) == digest(b"k", b"v", [("a", b"1")], 5)


Headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3)
Contents = st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=3), Headers, st.integers(0, 3))


@given(Contents, Contents)
def test_digests_are_equal_where_records_are(left: Any, right: Any) -> None:
    assert (digest(*left) == digest(*right)) == (left == right)


@pytest.mark.parametrize(
    ("seen", "parts"),
    [
        pytest.param((b"k", b"w", (), 5), "key or value", id="value"),
        pytest.param((b"k", b"v", [("h", b"")], 5), "headers", id="headers"),
        pytest.param((b"k", b"v", (), 6), "timestamp", id="timestamp"),
        pytest.param((None, b"v", (), 6), "key or value, timestamp", id="two"),
    ],
)
def test_a_difference_has_a_name(seen: Any, parts: str) -> None:
    kept = digest(b"k", b"v", (), 5)
    assert list(audit.differences(kept, digest(*seen))) == [("changed", f"differs in {parts}")]


@pytest.mark.parametrize(
    ("kept_ms", "seen_ms", "kinds"),
    [
        pytest.param(0, 1_700_000_000_000, ["timestamp_not_kept"], id="zero became now"),
        pytest.param(-1, 1_700_000_000_000, ["timestamp_not_kept"], id="none became now"),
        pytest.param(5, None, ["timestamp_not_kept"], id="LogAppendTime"),
        pytest.param(0, 0, [], id="zero stayed"),
        pytest.param(5, 0, ["changed"], id="became zero"),
    ],
)
def test_timestamps_that_cannot_be_kept(kept_ms: int, seen_ms: int | None, kinds: list[str]) -> None:
    seen = audit.differences(digest(b"", b"", (), kept_ms), digest(b"", b"", (), seen_ms))
    assert [kind for kind, _ in seen] == kinds


def test_between_source_and_bronze_every_timestamp_must_be_equal() -> None:
    seen = audit.differences(digest(b"", b"", (), 0), digest(b"", b"", (), 7), resent=False)
    assert list(seen) == [("changed", "differs in timestamp")]


def test_headers_that_cannot_be_read_are_not_compared() -> None:
    seen = audit.differences(digest(b"", b"", [("a", b"")], 1), digest(b"", b"", None, 1))
    assert [kind for kind, _ in seen] == ["headers_not_compared"]


# --- spans ---


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
def test_offsets_behave_as_a_set(steps: list[tuple[bool, int]]) -> None:
    offsets, model = Offsets(), set[int]()
    for adds, offset in steps:
        (offsets.add if adds else offsets.discard)(offset)
        (model.add if adds else model.discard)(offset)
    assert {offset for offset in range(31) if offset in offsets} == model
    assert [o for first, end in offsets for o in range(first, end)] == sorted(model)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=10))
def test_overlapping_spans_become_one(spans: list[tuple[int, int]]) -> None:
    offsets = Offsets(spans)
    model = {offset for first, end in spans for offset in range(first, end)}
    assert {offset for offset in range(21) if offset in offsets} == model


def test_findings_stay_few_and_their_count_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_SPANS", 2)
    findings = Findings(SOURCE)
    for offset in (1, 2, 5, 9, 20):
        findings.add(audit.CHANGED, offset)
    spans = [(f.first_offset, f.last_offset, f.records) for f in findings.all()]
    assert spans == [(1, 2, 2), (5, 20, 3)]


# --- source and bronze ---


def against_bronze(source: Any, bronze: Any, start: int = 0, end: int = 10, position: int = 10, **more: Any) -> Any:
    return said(compare_source(SOURCE, iter(source), iter(bronze), start, end, position, **more))


def test_equal_source_and_bronze() -> None:
    assert against_bronze(records(0, 1, 4), records(0, 1, 4)) == []


def test_missing_in_bronze_comes_as_spans() -> None:
    found = against_bronze(records(0, 1, 2, 3, 5), records(0, 3))
    assert found == [("missing_in_bronze", 1, 2), ("missing_in_bronze", 5, 1)]


def test_what_is_not_ingested_yet_waits() -> None:
    found = compare_source(SOURCE, records(0, 1, 2), records(0), 0, 3, ingest_position=1)
    assert said(found) == [("waiting", 1, 2)]
    assert failing(found) == []


def test_not_in_source() -> None:
    assert against_bronze(records(0, 2), records(0, 1, 2)) == [("not_in_source", 1, 1)]


def test_a_compacted_source_may_lack_records() -> None:
    assert against_bronze(records(0, 2), records(0, 1, 2), compacted=True) == []


def test_a_source_may_have_expired_records() -> None:
    assert against_bronze(records(2), records(0, 1, 2), start=2) == []


def test_a_source_that_lost_its_tail_is_found_even_if_compacted() -> None:
    found = against_bronze(records(0), records(0, 1), end=1, compacted=True)
    assert found == [("not_in_source", 1, 1)]


def test_changed_in_bronze() -> None:
    assert against_bronze([*records(0), record(1)], [*records(0), record(1, "x")]) == [("changed", 1, 1)]


def test_twice_in_bronze() -> None:
    assert against_bronze(records(0, 1, 2), records(0, 1, 1, 2)) == [("duplicate", 1, 1)]


Subset = st.sets(st.integers(0, 20))


@given(Subset, Subset, st.integers(0, 21))
def test_source_findings_are_the_differences_of_sets(source: set[int], bronze: set[int], position: int) -> None:
    found = compare_source(SOURCE, records(*sorted(source)), records(*sorted(bronze)), 0, 21, position)
    offsets = {
        kind: {o for f in found if f.kind == kind for o in range(f.first_offset, f.last_offset + 1)}
        for kind in ("missing_in_bronze", "not_in_source", "waiting")
    }
    lacking = source - bronze
    assert offsets["missing_in_bronze"] == {offset for offset in lacking if offset < position}
    assert offsets["waiting"] == {offset for offset in lacking if offset >= position}
    assert offsets["not_in_source"] == bronze - source


# --- bronze and a target ---


@dataclass
class Relayed:
    """A correct copy: source offsets with gaps, target offsets with gaps, and the ledger of it."""

    pairs: list[tuple[int, int]]
    provenance: bool = True
    bronze: list[tuple[int, bytes]] = field(init=False)
    messages: Target = field(init=False)

    def __post_init__(self) -> None:
        self.bronze = records(*(offset for offset, _ in self.pairs))
        self.messages = [
            (at, record(offset)[1], stamp(offset) if self.provenance else None) for offset, at in self.pairs
        ]

    @property
    def next_offset(self) -> int:
        return self.pairs[-1][0] + 1

    def audit(self, messages: Target | None = None, entries: list[Entry] | None = None, **changes: Any) -> Any:
        kept = ledger_of(self.pairs) if entries is None else entries
        seen = self.messages if messages is None else messages
        return compare_target(iter(seen), iter(self.bronze), kept, copy_of(self.next_offset, **changes))


def steps(draw: Any, count: int) -> list[int]:
    """Ascending offsets: mostly neighbours, sometimes with a gap."""
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 7]), min_size=count, max_size=count))
    return [sum(gaps[: place + 1]) - 1 for place in range(count)]


@st.composite
def relayed(draw: Any) -> Relayed:
    count = draw(st.integers(2, 25))
    pairs = list(zip(steps(draw, count), steps(draw, count), strict=True))
    return Relayed(pairs, draw(st.booleans()))


@given(relayed())
def test_a_correct_copy_has_no_findings(copy: Relayed) -> None:
    assert copy.audit() == []


@given(relayed(), st.data())
def test_a_dropped_record_is_missing(copy: Relayed, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(copy.pairs) - 1))
    found = copy.audit(copy.messages[:place] + copy.messages[place + 1 :])
    assert said(found) == [("missing_on_target", copy.pairs[place][0], 1)]


@given(relayed(), st.data())
def test_a_changed_record_is_changed(copy: Relayed, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(copy.pairs) - 1))
    (at, _, came), messages = copy.messages[place], list(copy.messages)
    messages[place] = (at, record(copy.pairs[place][0], "x")[1], came)
    assert said(copy.audit(messages)) == [("changed", copy.pairs[place][0], 1)]


@given(relayed(), st.data())
def test_a_record_that_landed_again_is_a_duplicate(copy: Relayed, data: st.DataObject) -> None:
    copy.messages = [
        (at, seen, stamp(offset)) for (offset, at), (_, seen, _) in zip(copy.pairs, copy.messages, strict=True)
    ]
    place = data.draw(st.integers(0, len(copy.pairs) - 1))
    again = (copy.pairs[-1][1] + data.draw(st.integers(1, 3)), *copy.messages[place][1:])
    assert said(copy.audit([*copy.messages, again])) == [("duplicate", copy.pairs[place][0], 1)]


@given(relayed(), st.data())
def test_a_swap_that_the_ledger_knows_is_out_of_order(copy: Relayed, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(copy.pairs) - 2))
    sources, targets = zip(*copy.pairs, strict=True)
    swapped = [*sources[:place], sources[place + 1], sources[place], *sources[place + 2 :]]
    moved = Relayed(list(zip(swapped, targets, strict=True)), copy.provenance)
    found = copy.audit(moved.messages, ledger_of(moved.pairs))
    assert said(found) == [("out_of_order", sources[place], 1)]


@given(relayed(), st.data())
def test_a_swap_that_the_ledger_does_not_know_is_told_by_provenance_or_content(
    copy: Relayed, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(copy.pairs) - 2))
    (at, *first), (next_at, *second) = copy.messages[place : place + 2]
    messages: Any = [*copy.messages[:place], (at, *second), (next_at, *first), *copy.messages[place + 2 :]]
    counts = {kind: 0 for kind, _, _ in said(copy.audit(messages))}
    for kind, _, number in said(copy.audit(messages)):
        counts[kind] += number
    assert counts == ({"ledger_disagrees": 2, "out_of_order": 1} if copy.provenance else {"changed": 2})


@given(relayed(), st.data())
def test_foreign_records_are_told_and_do_not_fail(copy: Relayed, data: st.DataObject) -> None:
    at = copy.pairs[-1][1] + 1
    came = data.draw(st.sampled_from([None, stamp(0, flow="other")]))
    found = copy.audit([*copy.messages, (at, record(77)[1], came)])
    assert said(found) == [("foreign", at, 1)]
    assert not found[0].fails
    assert (found[0].topic, found[0].partition) == TARGET


def four() -> Relayed:
    return Relayed([(0, 10), (1, 11), (2, 12), (3, 13)])


def test_records_of_another_partition_of_the_flow_are_not_foreign() -> None:
    other = stamp(0, source=SOURCE._replace(partition=4))
    assert four().audit([*four().messages, (14, record(0)[1], other)]) == []


def test_another_partition_at_our_place_disagrees_and_ours_is_missing() -> None:
    messages = four().messages
    messages[1] = (11, messages[1][1], stamp(1, source=SOURCE._replace(partition=4)))
    assert said(four().audit(messages)) == [("missing_on_target", 1, 1), ("ledger_disagrees", 11, 1)]


def test_a_record_that_the_ledger_does_not_know_disagrees() -> None:
    entries = ledger_of([(0, 10), (1, 11), (3, 13)])
    found = four().audit(entries=entries)
    assert said(found) == [("ledger_disagrees", 12, 1)]
    assert "does not know" in found[0].detail


def test_a_record_that_should_have_been_skipped_disagrees() -> None:
    entries = [*ledger_of([(0, 10), (1, 11), (3, 13)]), entry(SKIP, 2, None, 1, reason="loop")]
    assert failing(four().audit(entries=entries)) == [("ledger_disagrees", 12, 1)]


def test_skips_are_told_with_their_reason() -> None:
    copy, pairs = four(), [(0, 10), (3, 13)]
    entries = [*ledger_of(pairs), entry(SKIP, 1, None, 2, reason="loop")]
    found = copy.audit([copy.messages[0], copy.messages[3]], entries)
    assert said(found) == [("skipped", 1, 2)]
    assert (found[0].detail, found[0].fails) == ("loop", False)


def test_expired_records_are_told_and_do_not_fail() -> None:
    found = four().audit(four().messages[2:], log_start=12)
    assert said(found) == [("expired", 0, 2)]
    assert not found[0].fails


def test_a_duplicate_of_an_expired_record_is_found() -> None:
    again = (14, record(0)[1], stamp(0))
    assert failing(four().audit([*four().messages[2:], again], log_start=12)) == [("duplicate", 0, 1)]


def test_a_truncated_target_misses_its_tail() -> None:
    assert said(four().audit(four().messages[:2], log_end=12)) == [("missing_on_target", 2, 2)]


def test_a_hole_in_the_ledger_is_missing() -> None:
    entries = ledger_of([(0, 10), (3, 13)])
    found = four().audit([four().messages[0], four().messages[3]], entries)
    assert said(found) == [("missing_on_target", 1, 2)]


def test_a_compacted_target_may_lack_records() -> None:
    found = four().audit(four().messages[1:], compacted=True)
    assert said(found) == [("compacted_away", 0, 1)]
    assert not found[0].fails


def test_what_lies_after_the_position_waits() -> None:
    copy = four()
    found = compare_target(copy.messages[:2], copy.bronze, ledger_of(copy.pairs[:2]), copy_of(2))
    assert said(found) == [("waiting", 2, 2)]


def test_what_was_delivered_since_the_ledger_was_read_is_compared_too() -> None:
    copy = four()
    messages = [*copy.messages[:3], (13, record(3, "x")[1], stamp(3))]
    found = compare_target(messages, copy.bronze, ledger_of(copy.pairs[:2]), copy_of(2))
    assert said(found) == [("changed", 3, 1), ("unrecorded", 2, 2)]


def test_what_lies_before_the_baseline_is_not_due() -> None:
    copy = four()
    found = copy.audit(copy.messages[2:], ledger_of(copy.pairs[2:], begin=2))
    assert said(found) == [("before_start", 0, 2)]


def test_a_repaired_record_is_there_and_not_out_of_order() -> None:
    copy = four()
    messages = [*copy.messages[:1], *copy.messages[2:], (14, record(1)[1], stamp(1))]
    entries = [*ledger_of(copy.pairs), entry(REPAIR, 1, 14, 1)]
    assert copy.audit(messages, entries) == []


def test_replayed_records_are_told_and_are_no_duplicates() -> None:
    copy = four()
    messages = [*copy.messages, (14, record(1)[1], stamp(1)), (15, record(2)[1], stamp(2))]
    found = copy.audit(messages, [*ledger_of(copy.pairs), entry(REPLAY, 1, 14, 2)])
    assert said(found) == [("replayed", 1, 2)]
    assert not found[0].fails


def test_a_replay_to_another_topic_says_nothing_of_this_one() -> None:
    elsewhere = entry(REPLAY, 0, 10, 4, target_partition=TopicPartition("else", 0))
    assert four().audit(entries=[*ledger_of(four().pairs), elsewhere]) == []


def test_what_was_sent_again_is_compared() -> None:
    run, copy = entry(REPAIR, 1, 14, 2), four()
    messages: Target = [(14, record(1)[1], None), (15, record(2, "x")[1], None)]
    found = compare_resent(messages, records(1, 2), run, copy_of(4))
    assert said(found) == [("changed", 2, 1)]
    assert compare_resent(messages[:1], records(1, 2), run, copy_of(4)) == []
    assert copy.audit() == []


def test_a_topic_made_anew_has_nothing_of_what_the_ledger_says() -> None:
    found = four().audit([], topic_id="33333333-3333-3333-3333-333333333333")
    assert said(found) == [("missing_on_target", 0, 4)]


def test_a_record_that_bronze_lost_cannot_be_compared() -> None:
    copy = four()
    copy.bronze = copy.bronze[1:]
    found = copy.audit()
    assert said(found) == [("not_compared", 0, 1)]
    assert not found[0].fails


def test_far_out_of_order_is_not_compared_beyond_the_look_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LOOK_BACK", 1)
    moved = Relayed([(3, 10), (0, 11), (1, 12), (2, 13)])
    found = four().audit(moved.messages, ledger_of(moved.pairs))
    assert said(found) == [("out_of_order", 0, 3), ("not_compared", 0, 2)]


def test_a_timestamp_that_librdkafka_cannot_carry_is_told() -> None:
    copy = Relayed([(0, 0)])
    copy.bronze = [record(0, timestamp_ms=0)]
    assert said(copy.audit()) == [("timestamp_not_kept", 0, 1)]


def test_the_streams_are_read_side_by_side() -> None:
    """Memory does not grow: bronze is never read further ahead than the messages ask."""
    count, ahead = 5000, []
    bronze_read = messages_read = 0

    def bronze() -> Iterator[tuple[int, bytes]]:
        nonlocal bronze_read
        for offset in range(count):
            bronze_read += 1
            ahead.append(bronze_read - messages_read)
            yield record(offset)

    def messages() -> Iterator[tuple[int, bytes, Provenance | None]]:
        nonlocal messages_read
        for offset in range(count):
            messages_read += 1
            yield offset, record(offset)[1], None

    assert compare_target(messages(), bronze(), [entry(RELAY, 0, 0, count)], copy_of(count)) == []
    assert max(ahead) <= 2


def test_every_kind_fails_or_informs() -> None:
    assert audit.FAILS.isdisjoint(audit.INFORMS)
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    assert [kind for kind in sorted(audit.FAILS | audit.INFORMS) if f"`{kind}`" not in page] == []


# --- the report ---


def report_of(*findings: audit.Finding) -> audit.Report:
    counts = audit.Counts(4, 4, {"dr": 3})
    return audit.make_report("a1", "flow", AT, [audit.PartitionAudit(SOURCE, counts, list(findings))] * 2)


def test_the_report_is_ok_unless_something_fails() -> None:
    fails = audit.Finding("dr", "orders", 3, "changed", 1, 2, 2, "differs in headers", True)
    assert report_of().ok
    assert report_of(replace(fails, kind="foreign", fails=False)).ok
    assert not report_of(fails).ok


def test_the_json_has_the_documented_keys() -> None:
    fails = audit.Finding("dr", "orders", 3, "changed", 1, 2, 2, "differs in headers", True)
    assert report_of(fails).to_json() == {
        "schema": 1,
        "audit": "a1",
        "flow": "flow",
        "at": "2026-01-02T00:00:00+00:00",
        "ok": False,
        "partitions": 2,
        "compared": {"source": 8, "bronze": 8, "targets": {"dr": 6}},
        "findings": [
            {
                "target": "dr",
                "topic": "orders",
                "partition": 3,
                "kind": "changed",
                "first_offset": 1,
                "last_offset": 2,
                "records": 2,
                "detail": "differs in headers",
                "fails": True,
            }
        ]
        * 2,
    }


def test_rows_fit_the_table_and_a_clean_audit_leaves_some() -> None:
    table = audit.rows(report_of())
    assert table.schema == AUDITS
    assert table.select(["target", "finding", "records", "detail"]).to_pylist() == [
        {"target": "", "finding": "compared", "records": 8, "detail": "source: ok"},
        {"target": "", "finding": "compared", "records": 8, "detail": "bronze: ok"},
        {"target": "dr", "finding": "compared", "records": 6, "detail": "target: ok"},
    ]


# --- reading ---


@dataclass
class FakeMessage:
    at: int
    content: bytes
    pairs: list[tuple[str, bytes | None]] | None = None
    time: tuple[int, int] = (1, 1000)

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return self.content

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.pairs

    def timestamp(self) -> tuple[int, int]:
        return self.time


@dataclass
class FakeCluster:
    """A cluster with one partition."""

    messages: list[FakeMessage]
    id: str
    log_start: int = 0
    policy: str = "delete"

    def describe(self, topics: list[str]) -> dict[str, TopicInfo]:
        return {topics[0]: TopicInfo(topics[0], self.id, 4, 1)}

    def log_starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {partitions[0]: self.log_start}

    def log_ends(self, partitions: list[TopicPartition], committed: bool = False) -> dict[TopicPartition, int]:
        return {partitions[0]: self.messages[-1].at + 1}

    def topic_configs(self, topics: list[str]) -> dict[str, dict[str, Any]]:
        @dataclass
        class ConfigEntry:
            value: str

        return {topics[0]: {"cleanup.policy": ConfigEntry(self.policy)}}

    def read_range(self, at: TopicPartition, first: int, end: int, committed: bool = False) -> Iterator[FakeMessage]:
        return (message for message in self.messages if first <= message.at < end)


def bronze_table(folder: Path, count: int) -> BronzeFiles:
    rows = [
        {
            "topic": SOURCE.topic,
            "partition": SOURCE.partition,
            "offset": offset,
            "timestamp": datetime.fromtimestamp(1, timezone.utc),
            "timestamp_type": 0,
            "value": b"v%d" % offset,
            "headers": [{"key": "h", "value": None}] if offset % 2 else None,
            "topic_id": SOURCE.topic_id,
            "ingested_at": AT,
            "batch": 0,
        }
        for offset in range(count)
    ]
    write_deltalake(folder, pa.Table.from_pylist(rows, schema=BRONZE))
    return BronzeFiles(folder)


def message(offset: int, at: int, stamped: bool = False, **more: Any) -> FakeMessage:
    pairs: list[tuple[str, bytes | None]] = [("h", None)] if offset % 2 else []
    pairs += [(HEADER, stamp(offset).encode())] if stamped else []
    return FakeMessage(at, b"v%d" % offset, pairs or None, **more)


def audited(tmp_path: Path, source: FakeCluster, target: FakeCluster, entries: list[Entry]) -> audit.PartitionAudit:
    side: Any = audit.TargetSide(target, entries, Position(6, TARGET, TOPIC_ID, 100))  # type: ignore[arg-type]
    source_side: Any = audit.SourceSide(source, 6)  # type: ignore[arg-type]
    return audit.audit_partition("flow", SOURCE, source_side, bronze_table(tmp_path, 6), {"dr": side})


PAIRS = [(offset, offset + 10) for offset in range(6)]


def test_a_partition_that_is_equal_everywhere(tmp_path: Path) -> None:
    source = FakeCluster([message(offset, offset) for offset in range(6)], SOURCE.topic_id)
    target = FakeCluster([message(offset, at, stamped=True) for offset, at in PAIRS], TOPIC_ID, log_start=10)
    found = audited(tmp_path, source, target, ledger_of(PAIRS))
    assert found.findings == []
    assert found.counts == audit.Counts(6, 6, {"dr": 6})


def test_a_partition_with_faults_on_both_legs(tmp_path: Path) -> None:
    source = FakeCluster([message(offset, offset) for offset in range(7)], SOURCE.topic_id)
    lands = [message(offset, at, stamped=True, time=(2, 99)) for offset, at in PAIRS if offset != 2]
    again = [FakeMessage(16, b"wrong", None), message(3, 17)]
    entries = [*ledger_of(PAIRS), entry(REPAIR, 2, 16, 1), entry(REPLAY, 3, 17, 1)]
    found = audited(tmp_path, source, FakeCluster([*lands, *again], TOPIC_ID), entries)
    assert [(f.target, f.kind, f.first_offset, f.records) for f in found.findings] == [
        ("", "waiting", 6, 1),
        ("dr", "timestamp_not_kept", 0, 2),
        ("dr", "replayed", 3, 1),
        ("dr", "timestamp_not_kept", 3, 3),
        ("dr", "changed", 2, 1),
    ]


def test_topics_made_anew_on_both_sides(tmp_path: Path) -> None:
    source = FakeCluster([message(0, 0)], TOPIC_ID)
    found = audited(tmp_path, source, FakeCluster([message(0, 0)], SOURCE.topic_id), ledger_of(PAIRS))
    assert [(f.kind, f.records) for f in found.findings] == [
        ("source_gone", 6),
        ("topic_made_anew", 0),
        ("missing_on_target", 6),
        ("foreign", 1),
    ]


@pytest.mark.parametrize(("until", "missing"), [(None, 3), (6, 0)])
def test_a_partition_ends_where_its_broker_began_to_tell_the_topics_id(
    tmp_path: Path, until: int | None, missing: int
) -> None:
    source: Any = FakeCluster([message(offset, offset) for offset in range(9)], SOURCE.topic_id)
    side = audit.SourceSide(source, 9, until=until)
    found = audit.audit_partition("flow", SOURCE, side, bronze_table(tmp_path, 6), {}).findings
    assert sum(f.records for f in found if f.kind == "missing_in_bronze") == missing


def test_what_a_source_that_was_cut_has_no_more_is_in_bronze_alone(tmp_path: Path) -> None:
    source: Any = FakeCluster([message(offset, offset) for offset in (0, 1, 2, 3)], SOURCE.topic_id)
    side = audit.SourceSide(source, 4, until=3)
    (found,) = audit.audit_partition("flow", SOURCE, side, bronze_table(tmp_path, 6), {}).findings
    assert (found.kind, found.first_offset, found.last_offset, found.records) == ("source_gone", 3, 5, 3)
    assert not found.fails
    assert "was cut here" in found.detail


def test_headers_that_the_client_cannot_hand_out() -> None:
    class Broken(FakeMessage):
        def headers(self) -> list[tuple[str, bytes | None]] | None:
            raise SystemError("returned a result with an exception set")

    assert audit._target_record(Broken(4, b"v")) == (4, digest(None, b"v", None, 1000), None)


def test_compaction_is_read_from_the_topic() -> None:
    cluster: Any = FakeCluster([], "", policy="compact,delete")
    assert is_compacted(cluster, "orders")
    assert not is_compacted(FakeCluster([], ""), "orders")  # type: ignore[arg-type]
