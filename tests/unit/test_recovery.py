"""After a crash: what of the target's tail is ours, by a cluster made of lists and a machine of accidents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from samples import NOON_MS, OTHER_ID, SOURCE, TARGET, FakeCluster, bronze_batch, bronze_row, errand

from mirrorlake.errors import TargetDiverged
from mirrorlake.ledger import Position
from mirrorlake.produce import Errand, Outcome, Shaper
from mirrorlake.provenance import HEADER, Provenance, digest
from mirrorlake.records import Run, SourcePartition
from mirrorlake.recovery import (
    COMPACTED,
    MISSING,
    Circumstances,
    Log,
    MissingRecords,
    Recovered,
    recover,
    split_repeated,
)

ANEW = SOURCE._replace(topic_id=OTHER_ID)
LOOPED = [(HEADER, Provenance(digest("x"), digest("cluster-b"), bytes(16), 0, 1, 1, 1, 1).encode())]


class World:
    """Bronze rows by source partition, and a target to send them to."""

    timestamp_type = TIMESTAMP_CREATE_TIME

    def __init__(self, rows: Sequence[dict[str, Any]] = (), **fields: Any) -> None:
        self.bronze: dict[SourcePartition, list[dict[str, Any]]] = {SOURCE: list(rows)}
        self.cluster = FakeCluster()
        self.errand: Errand = errand(**fields)

    def read_bronze(self, source: SourcePartition, first: int, until: int | None) -> Iterable[pa.RecordBatch]:
        end = until if until is not None else 2**62
        rows = [row for row in self.bronze[source] if first <= row["offset"] < end]
        return [bronze_batch(rows[at : at + 3]) for at in range(0, len(rows), 3)]

    def lands(self, *offsets: int, source: SourcePartition = SOURCE) -> None:
        """These records reach the target, as the sender shapes them."""
        by_offset = {row["offset"]: row for row in self.bronze[source]}
        for offset in offsets:
            sent = Shaper(self.errand, source).shape(bronze_batch([by_offset[offset]]))
            stamped = (self.timestamp_type, sent.timestamps_ms[0])
            self.cluster.append(TARGET, sent.keys[0], sent.values[0], sent.headers[0], stamped)

    def foreign(self, count: int = 1) -> None:
        for _ in range(count):
            self.cluster.append(TARGET, b"not", b"ours")

    def recover(
        self,
        next_offset: int = 0,
        ledger_end: int = 0,
        others: dict[SourcePartition, Position] | None = None,
        waiting: Collection[int] = (),
        **circumstances: Any,
    ) -> Recovered:
        positions = {SOURCE: Position(next_offset, TARGET, "id", ledger_end), **(others or {})}
        log = Log(self.cluster.log_starts([TARGET])[TARGET], self.cluster.log_ends([TARGET])[TARGET])
        cluster: Any = self.cluster
        known = Circumstances(waiting=lambda _: waiting, **circumstances)
        return recover(self.errand, cluster, TARGET, positions, log, self.read_bronze, known)


def world(count: int = 10, **fields: Any) -> World:
    return World([bronze_row(offset) for offset in range(count)], **fields)


def runs(found: Recovered, source: SourcePartition = SOURCE) -> list[Run]:
    return [run for outcome in found.outcomes if outcome.source == source for run in outcome.runs]


# --- by provenance ---


def test_nothing_landed_nothing_found() -> None:
    found = world().recover()
    assert (found.outcomes, found.duplicates, found.foreign) == ([], {}, 0)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_prefix_that_landed_unrecorded_is_taken(count: int) -> None:
    made = world()
    made.lands(*range(count))
    found = made.recover()
    assert runs(found) == [Run(0, 0, count)]
    assert found.outcomes[0].target_end == found.target_end == count


def test_only_what_lies_after_the_ledger_is_looked_at() -> None:
    made = world()
    made.lands(*range(6))
    assert runs(made.recover(next_offset=4, ledger_end=4)) == [Run(4, 4, 2)]


def test_gaps_in_the_source_are_no_holes() -> None:
    made = World([bronze_row(offset) for offset in (3, 7, 8, 20)])
    made.lands(3, 7, 8)
    assert runs(made.recover(next_offset=2)) == [Run(3, 0, 1), Run(7, 1, 2)]


@pytest.mark.parametrize("seen", [(1, 4, 5), (0, 2), (2, 0, 1)], ids=["1 4 5", "0 2", "late begin"])
def test_a_hole_stops_the_flow_and_is_named(seen: tuple[int, ...]) -> None:
    made = world()
    made.lands(*seen)
    with pytest.raises(TargetDiverged, match="missing before later ones") as stopped:
        made.recover()
    missing = min(set(range(max(seen))) - set(seen), default=0)
    assert f"offsets {missing if missing not in seen else 0}" in str(stopped.value)


def test_a_record_that_bronze_does_not_hold_is_named() -> None:
    made = world()
    made.lands(0, 1)
    made.bronze[SOURCE].pop(1)
    with pytest.raises(TargetDiverged, match="offsets 1-1 are there, but not in bronze"):
        made.recover()


def test_what_landed_again_is_listed_and_not_taken_twice() -> None:
    made = world()
    made.lands(0, 1, 2, 3, 4, 2, 3, 5, 3)
    found = made.recover(next_offset=2, ledger_end=2)
    assert runs(found) == [Run(2, 2, 3), Run(5, 7, 1)]
    assert found.duplicates == {SOURCE: [(2, 2)]}


def test_a_dead_letter_that_is_there_was_repaired_and_is_no_duplicate_unless_it_landed_again() -> None:
    made = world()
    made.lands(0, 3, 4, 1, 2, 1, 3, 5)
    found = made.recover(next_offset=5, ledger_end=3, waiting=[1, 2])
    assert found.repaired == {SOURCE: [Run(1, 3, 2)]}
    assert found.duplicates == {SOURCE: [(1, 1), (3, 1)]}
    assert runs(found) == [Run(5, 7, 1)]


def test_a_repair_at_the_end_of_a_thinned_tail_is_enough() -> None:
    made = world()
    made.lands(0, 2, 2, 1)
    made.cluster.compact_away(TARGET, [2])
    assert made.recover(next_offset=3, ledger_end=2, waiting=[1]).repaired == {SOURCE: [Run(1, 3, 1)]}


def test_a_late_landing_of_what_the_ledger_knows_moves_nothing() -> None:
    made = world()
    made.lands(0, 1, 2, 1, 2)
    found = made.recover(next_offset=3, ledger_end=3)
    assert (found.outcomes, found.duplicates) == ([], {SOURCE: [(1, 2)]})


def test_foreign_records_between_ours_are_counted_and_passed_over() -> None:
    made = world()
    made.foreign(2)
    made.lands(0, 1)
    made.foreign()
    made.lands(2)
    found = made.recover()
    assert runs(found) == [Run(0, 2, 2), Run(2, 5, 1)]
    assert found.foreign == 3


def test_a_long_foreign_tail_is_not_held_at_once() -> None:
    made = world()
    made.foreign(4500)
    made.lands(0)
    assert made.recover().foreign == 4500


def test_records_left_out_on_purpose_are_noted_as_skips() -> None:
    made = World([bronze_row(0), bronze_row(1, headers=LOOPED), bronze_row(2), bronze_row(3, headers=LOOPED)])
    made.lands(0, 2)
    (outcome,) = made.recover().outcomes
    assert outcome.runs == [Run(0, 0, 1), Run(2, 1, 1)]
    # What stands after the last that landed is still to be decided.
    assert [offset for offset, _, _ in outcome.skipped] == [1]


def test_a_record_that_landed_is_not_refused_because_the_limit_is_lower_today() -> None:
    made = World([bronze_row(0), bronze_row(1, value=b"x" * 5000), bronze_row(2)])
    made.lands(0, 1, 2)
    made.errand = errand(max_record_bytes=2000)
    (outcome,) = made.recover().outcomes
    assert outcome.runs == [Run(0, 0, 3)]
    assert (outcome.refused, outcome.skipped) == ([], [])


def test_a_dead_letter_of_yesterday_is_a_skip_where_the_flow_stops_today() -> None:
    made = World([bronze_row(0), bronze_row(1, value=b"x" * 5000), bronze_row(2)], max_record_bytes=2000)
    made.lands(0, 2)
    (outcome,) = made.recover().outcomes
    assert [(first, count) for first, count, _ in outcome.skipped] == [(1, 1)]
    made.errand = errand(max_record_bytes=2000, dead_letters=True)
    (outcome,) = made.recover().outcomes
    assert [offset for offset, _, _ in outcome.refused] == [1]


def test_a_log_that_ends_before_the_ledger_stops_the_flow() -> None:
    made = world()
    made.lands(0)
    with pytest.raises(TargetDiverged, match="reached 5, it ends at 1"):
        made.recover(next_offset=5, ledger_end=5)


def test_two_incarnations_of_a_topic_are_matched_apart() -> None:
    made = world()
    made.bronze[ANEW] = [bronze_row(offset, ANEW) for offset in range(5)]
    made.lands(4)
    made.lands(0, 1, source=ANEW)
    found = made.recover(next_offset=4, others={ANEW: Position(0, TARGET, "id", 0)})
    assert (runs(found), runs(found, ANEW)) == ([Run(4, 0, 1)], [Run(0, 1, 2)])
    assert found.foreign == 0


@pytest.mark.parametrize(
    ("pairs", "next_offset", "fresh", "repeated"),
    [
        ([], 0, [], []),
        ([(5, 0), (6, 1)], 5, [(5, 0), (6, 1)], []),
        ([(4, 0), (5, 1)], 5, [(5, 1)], [(4, 0)]),
        ([(5, 0), (6, 1), (5, 2), (7, 3)], 5, [(5, 0), (6, 1), (7, 3)], [(5, 2)]),
    ],
)
def test_first_landings_are_told_from_later_ones(
    pairs: list[tuple[int, int]], next_offset: int, fresh: list[tuple[int, int]], repeated: list[tuple[int, int]]
) -> None:
    assert split_repeated(pairs, next_offset) == (fresh, repeated)


# --- by counting: the tail is gone, or provenance is off ---


def test_without_provenance_content_at_its_place_proves_a_sole_writer() -> None:
    made = world(provenance=False)
    made.lands(*range(7))
    assert runs(made.recover(next_offset=2, ledger_end=2)) == [Run(2, 2, 5)]


@pytest.mark.parametrize("field", ["key", "value", "headers"])
def test_without_provenance_other_content_stops_the_flow(field: str) -> None:
    made = world(provenance=False)
    made.lands(0, 1, 2)
    made.bronze[SOURCE][1] = bronze_row(1, **{field: [("h", b"x")] if field == "headers" else b"other"})
    with pytest.raises(TargetDiverged, match="not those that were due"):
        made.recover()


def test_without_provenance_a_second_landing_is_told_from_an_equal_record_by_its_time() -> None:
    equal = {"key": b"k", "value": b"v"}
    made = World([bronze_row(0, **equal), bronze_row(1, at_ms=NOON_MS + 1, **equal)], provenance=False)
    made.lands(0, 0)
    with pytest.raises(TargetDiverged, match="not those that were due"):
        made.recover()


@pytest.mark.parametrize(
    ("at_ms", "timestamp_type"),
    [(0, TIMESTAMP_CREATE_TIME), (-1, TIMESTAMP_CREATE_TIME), (1, TIMESTAMP_LOG_APPEND_TIME)],
)
def test_without_provenance_a_time_that_the_target_does_not_keep_is_no_difference(
    at_ms: int, timestamp_type: int
) -> None:
    made = World([bronze_row(0)], provenance=False)
    made.timestamp_type = timestamp_type
    made.lands(0)
    made.bronze[SOURCE] = [bronze_row(0, at_ms=at_ms)]
    assert runs(made.recover()) == [Run(0, 0, 1)]


def test_without_provenance_more_than_was_due_stops_the_flow() -> None:
    made = world(2, provenance=False)
    made.lands(0, 1)
    made.foreign()
    with pytest.raises(TargetDiverged):
        made.recover()


@pytest.mark.parametrize("provenance", [True, False])
@pytest.mark.parametrize("kept_from", [3, 5, 6], ids=["some left", "one left", "all gone"])
def test_an_expired_tail_is_counted(provenance: bool, kept_from: int) -> None:
    made = world(provenance=provenance)
    made.lands(*range(6))
    made.cluster.expire(TARGET, kept_from)
    assert runs(made.recover(next_offset=1, ledger_end=1)) == [Run(1, 1, 5)]


def test_an_expired_tail_that_others_may_have_written_stops_the_flow() -> None:
    made = world()
    made.lands(*range(6))
    made.cluster.expire(TARGET, 6)
    with pytest.raises(TargetDiverged, match=r"the log starts at 6"):
        made.recover(shared=True)


def test_an_expired_tail_whose_rest_is_not_ours_stops_the_flow() -> None:
    made = world()
    made.lands(0, 1)
    made.cluster.append(TARGET, b"k2", b"theirs")
    made.cluster.expire(TARGET, 2)
    with pytest.raises(TargetDiverged):
        made.recover()


def two_lives(elder: int = 4, younger: int = 4, **fields: Any) -> tuple[World, dict[SourcePartition, Position]]:
    made = world(elder, **fields)
    made.bronze[ANEW] = [bronze_row(offset, ANEW) for offset in range(younger)]
    return made, {ANEW: Position(0, TARGET, "id", 0)}


@pytest.mark.parametrize("provenance", [True, False])
@pytest.mark.parametrize("gone", [range(7), [3, 6], [6], [0, 1, 4]], ids=["all", "both ends", "the end", "begins"])
def test_incarnations_are_sent_one_after_the_other_so_places_tell_them_apart(
    provenance: bool, gone: Iterable[int]
) -> None:
    made, others = two_lives(provenance=provenance)
    made.lands(*range(4))
    made.lands(*range(3), source=ANEW)
    made.cluster.compact_away(TARGET, gone)
    found = made.recover(others=others)
    assert (runs(found), runs(found, ANEW)) == ([Run(0, 0, 4)], [Run(0, 4, 3)])


def test_an_incarnation_that_is_at_its_end_is_in_nobodys_way() -> None:
    made, others = two_lives(provenance=False)
    made.lands(*range(4))
    made.lands(0, 1, source=ANEW)
    assert runs(made.recover(next_offset=4, ledger_end=4, others=others), ANEW) == [Run(0, 4, 2)]


def test_an_expired_tail_of_two_partitions_stops_the_flow() -> None:
    """They take turns, and who went when is in nobody's memory."""
    made, beside = world(), SOURCE._replace(partition=7)
    made.bronze[beside] = [bronze_row(offset, beside) for offset in range(5)]
    made.lands(*range(6))
    made.cluster.expire(TARGET, 3)
    with pytest.raises(TargetDiverged, match="can no longer be read"):
        made.recover(others={beside: Position(0, TARGET, "id", 0)})


@pytest.mark.parametrize("then", [True, False], ids=["turned on", "turned off"])
def test_provenance_that_was_switched_after_a_crash_repeats_nothing(then: bool) -> None:
    made = world(provenance=not then)
    made.lands(*range(5))
    made.errand = errand(provenance=then)
    found = made.recover(next_offset=1, ledger_end=1)
    assert (runs(found), found.foreign) == ([Run(1, 1, 4)], 0)


def test_what_others_wrote_after_our_records_without_provenance_is_theirs() -> None:
    made = world(provenance=False)
    made.lands(0, 1)
    made.foreign(2)
    made.errand = errand()
    found = made.recover()
    assert (runs(found), found.foreign) == ([Run(0, 0, 2)], 2)
    assert made.recover(shared=True).foreign == 4, "where others may write, nothing but the header tells"


# --- holes, once somebody mends them ---


def test_a_repair_sets_a_hole_aside_and_goes_on_after_it() -> None:
    made = world()
    made.lands(0, 3, 4, 6)
    (outcome,) = made.recover(mends=True).outcomes
    assert outcome.runs == [Run(0, 0, 1), Run(3, 1, 2), Run(6, 3, 1)]
    assert outcome.skipped == [(1, 2, MISSING), (5, 1, MISSING)]


def test_a_hole_names_its_offsets() -> None:
    made = world()
    made.lands(0, 3, 4, 6)
    with pytest.raises(MissingRecords) as stopped:
        made.recover()
    assert (stopped.value.source, stopped.value.offsets) == (SOURCE, [1, 2, 5])
    assert "mirrorlake repair" in stopped.value.next_step


def test_what_bronze_does_not_hold_no_repair_can_mend() -> None:
    made = world()
    made.lands(0, 1)
    made.bronze[SOURCE].pop(1)
    with pytest.raises(TargetDiverged, match="not in bronze"):
        made.recover(mends=True)


def compacted(shared: bool, gone: Iterable[int], **circumstances: Any) -> Recovered:
    """Six of ours, one of somebody else, and what compaction left of them."""
    made = world()
    made.lands(*range(6))
    made.foreign()
    made.lands(6)
    made.cluster.compact_away(TARGET, gone)
    return made.recover(shared=shared, compacted=lambda: True, **circumstances)


@pytest.mark.parametrize("shared", [True, False])
def test_beside_others_what_compaction_took_from_the_middle_is_no_hole(shared: bool) -> None:
    (outcome,) = compacted(shared, [1, 2]).outcomes
    assert outcome.runs == [Run(0, 0, 1), Run(3, 3, 3), Run(6, 7, 1)]
    assert outcome.skipped == [(1, 2, COMPACTED)]


@pytest.mark.parametrize("shared", [True, False])
def test_beside_others_a_tail_that_ends_in_removed_records_stops_the_flow_until_somebody_mends_it(shared: bool) -> None:
    with pytest.raises(TargetDiverged, match="can no longer be read"):
        compacted(shared, [7])
    assert runs(compacted(shared, [7], mends=True)) == [Run(0, 0, 6)]


def test_a_compacted_tail_is_told_from_a_hole_by_the_places() -> None:
    made = world()
    made.lands(*range(8))
    made.cluster.compact_away(TARGET, [2, 3, 5])
    assert runs(made.recover(next_offset=1, ledger_end=1)) == [Run(1, 1, 7)]


@pytest.mark.parametrize("gone", [range(4, 6), range(1, 6), [2, 5]], ids=["the last two", "all", "inside and last"])
def test_a_compacted_tail_that_ends_in_removed_records_is_not_sent_again(gone: Iterable[int]) -> None:
    made = world()
    made.lands(*range(6))
    made.cluster.compact_away(TARGET, gone)
    assert runs(made.recover(next_offset=1, ledger_end=1)) == [Run(1, 1, 5)]


def test_a_compacted_tail_whose_last_record_was_due_needs_no_counting() -> None:
    made = world()
    made.lands(0, 1, 2, 1, 3)
    made.cluster.compact_away(TARGET, [3])  # the second landing
    assert runs(made.recover(next_offset=2, ledger_end=2)) == [Run(2, 2, 1), Run(3, 4, 1)]


def test_a_compacted_tail_that_ends_in_a_second_landing_stops_the_flow() -> None:
    made = world()
    made.lands(0, 1, 2, 1)
    made.cluster.compact_away(TARGET, [2])
    with pytest.raises(TargetDiverged, match="can no longer be read"):
        made.recover()


def test_markers_of_others_transactions_are_no_removed_records() -> None:
    made = world()
    made.lands(*range(3))
    made.foreign(2)
    made.cluster.compact_away(TARGET, [4])
    assert runs(made.recover(shared=True)) == runs(made.recover()) == [Run(0, 0, 3)]


def test_what_comes_after_the_last_that_landed_is_still_to_be_decided() -> None:
    rows = [bronze_row(0), bronze_row(1, at_ms=0), bronze_row(2, at_ms=0), *map(bronze_row, range(3, 6))]
    made = World(rows, provenance=False)
    made.lands(0, 1)
    (outcome,) = made.recover().outcomes
    assert (outcome.runs, outcome.timeless) == ([Run(0, 0, 2)], [(1, 1)])


def test_a_refused_record_ends_what_can_have_landed() -> None:
    rows = [bronze_row(0), bronze_row(1, value=b"x" * 5000), bronze_row(2)]
    made = World(rows, provenance=False, max_record_bytes=2000)
    made.lands(0)
    assert runs(made.recover()) == [Run(0, 0, 1)]


# --- accidents in any order ---

PLAIN, LARGE, LOOPED_BACK, UNWELCOME = "plain", "large", "looped back", "unwelcome"
"""Large and looped ones are left out by the sender; one that is unwelcome is refused by the broker, which bronze does
not tell."""
KINDS = st.sampled_from([*[PLAIN] * 6, LARGE, LOOPED_BACK, UNWELCOME])
FIELDS: dict[str, dict[str, Any]] = {LARGE: {"value": b"x" * 5000}, LOOPED_BACK: {"headers": LOOPED}}


class Accidents(RuleBasedStateMachine):
    """A sender that crashes at any place, requests that land late, a log that loses records, and others who write."""

    provenance = True

    def __init__(self) -> None:
        super().__init__()
        self.world = World(dead_letters=True, limits={SOURCE.topic: 2000}, provenance=self.provenance)
        self.kinds: dict[int, str] = {}  # source offset -> what becomes of it
        self.recorded: dict[int, int] = {}  # source offset -> target offset, as the ledger has it
        self.passed_over: set[int] = set()  # source offsets that the ledger has as left out
        self.position = Position(0, TARGET, "id", 0)
        self.log_start = 0
        self.landed: dict[int, int] = {}  # target offset -> source offset
        self.late: list[int] = []  # offsets in requests of a dead process that may still land
        self.repeats_landed: set[int] = set()
        self.repeats_listed: set[int] = set()
        self.in_doubt = False
        self.tail_is_mixed = False  # what the ledger does not know holds more than first landings of ours
        self.tail_is_thinned = False
        self.ingest([(1, PLAIN)] * 5)

    @property
    def log_end(self) -> int:
        return self.world.cluster.ends.get(TARGET, 0)

    def land(self, offset: int) -> None:
        if offset in self.landed.values():
            self.repeats_landed.add(offset)
            self.tail_is_mixed = True
        self.landed[self.log_end] = offset
        self.world.lands(offset)

    def sendable(self, offsets: Iterable[int]) -> list[int]:
        return [offset for offset in offsets if self.kinds[offset] == PLAIN]

    def due(self) -> list[int]:
        """What a task goes through, as far as it may: it ends after a record that the broker refuses."""
        offsets = [offset for offset in self.kinds if offset >= self.position.next_offset]
        refused = next((place for place, offset in enumerate(offsets) if self.kinds[offset] == UNWELCOME), None)
        return offsets if refused is None else offsets[: refused + 1]

    @rule(records=st.lists(st.tuples(st.integers(1, 3), KINDS), min_size=1, max_size=5))
    def ingest(self, records: list[tuple[int, str]]) -> None:
        for step, drawn in records:
            offset = max(self.kinds, default=-1) + step
            # Without provenance nobody knows what came back.
            kind = PLAIN if drawn == LOOPED_BACK and not self.provenance else drawn
            self.kinds[offset] = kind
            self.world.bronze[SOURCE].append(bronze_row(offset, **FIELDS.get(kind, {})))

    def doubtful(self) -> bool:
        """After a crash, or where the log does not end as expected."""
        return self.in_doubt or self.log_end != self.position.target_end

    def begin_round(self) -> None:
        if self.doubtful():
            self.recover()

    @precondition(lambda self: self.due())
    @rule(data=st.data())
    def send_and_record(self, data: st.DataObject) -> None:
        self.begin_round()
        due = self.due()
        gone_through = due[: data.draw(st.integers(0, len(due)))]
        for offset in self.sendable(gone_through):
            self.recorded[offset] = self.log_end
            self.land(offset)
        self.passed_over |= {*gone_through} - self.recorded.keys()
        self.position.next_offset = max(gone_through, default=self.position.next_offset - 1) + 1
        self.position.target_end = self.log_end

    @precondition(lambda self: self.due())
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """A prefix lands and nobody writes it down; the next records are in a request on the wire."""
        self.begin_round()
        self.in_doubt = True
        due = self.sendable(self.due())
        count = data.draw(st.integers(0, len(due)))
        for offset in due[:count]:
            self.land(offset)
        on_the_wire = due[count : count + data.draw(st.integers(0, 2))]
        self.late = on_the_wire or due[max(0, count - 2) : count]

    @precondition(lambda self: self.provenance and self.late and not self.tail_is_thinned)
    @rule()
    def a_late_request_lands(self) -> None:
        for offset in self.late:
            self.land(offset)
        self.late = []

    @precondition(lambda self: self.provenance and not self.tail_is_thinned)
    @rule(count=st.integers(1, 2))
    def somebody_else_writes(self, count: int) -> None:
        self.world.foreign(count)
        self.tail_is_mixed = True

    def removable(self) -> int:
        """Records before this may go. Of a tail that is mixed nobody could say what it held, and the flow stops."""
        return self.position.target_end if self.tail_is_mixed else self.log_end

    @precondition(lambda self: self.log_end)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        self.log_start = data.draw(st.integers(self.log_start, max(self.log_start, self.removable())))
        self.world.cluster.expire(TARGET, self.log_start)
        self.tail_is_thinned |= self.log_start > self.position.target_end

    @precondition(lambda self: self.removable() > self.log_start)
    @rule(data=st.data())
    def compact_away(self, data: st.DataObject) -> None:
        gone = data.draw(st.sets(st.integers(self.log_start, self.removable() - 1), min_size=1))
        self.world.cluster.compact_away(TARGET, gone)
        self.tail_is_thinned |= max(gone) >= self.position.target_end

    @precondition(lambda self: self.doubtful())
    @rule()
    def recover(self) -> None:
        log, cluster = Log(self.log_start, self.log_end), cast(Any, self.world.cluster)
        found = recover(self.world.errand, cluster, TARGET, {SOURCE: self.position}, log, self.world.read_bronze)
        for outcome in found.outcomes:
            self.take(outcome)
        for first, count in found.duplicates.get(SOURCE, []):
            self.repeats_listed |= {*range(first, first + count)}
        self.position.target_end = found.target_end
        self.in_doubt = self.tail_is_mixed = self.tail_is_thinned = False

    def take(self, outcome: Outcome) -> None:
        for run in outcome.runs:
            taken = {run.source_first + place: run.target_first + place for place in range(run.count)}
            assert not taken.keys() & self.recorded.keys()
            self.recorded |= taken
        self.passed_over |= {offset for offset, _, _ in (*outcome.skipped, *outcome.refused)}
        self.position.next_offset = max(self.recorded) + 1

    @invariant()
    def first_landings_are_in_order_and_without_holes(self) -> None:
        firsts = list(dict.fromkeys(self.landed.values()))
        assert firsts == self.sendable(self.kinds)[: len(firsts)]

    @invariant()
    def the_position_skips_nothing(self) -> None:
        passed = [offset for offset in self.kinds if offset < self.position.next_offset]
        assert sorted(self.recorded) == self.sendable(passed)
        assert self.passed_over == {*passed} - self.recorded.keys()

    @invariant()
    def the_ledger_names_the_first_landing_of_each_record(self) -> None:
        firsts = {offset: at for at, offset in reversed(self.landed.items())}
        assert self.recorded.items() <= firsts.items()

    @invariant()
    def once_recovered_every_landing_is_recorded_and_every_repeat_is_listed(self) -> None:
        if not self.doubtful():
            assert {*self.landed.values()} == self.recorded.keys()
            assert self.repeats_landed == self.repeats_listed


class AccidentsOfASoleWriter(Accidents):
    """Without provenance nobody else may write, and content and places must do."""

    provenance = False


for machine in (Accidents, AccidentsOfASoleWriter):
    machine.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestAccidents = Accidents.TestCase
TestAccidentsOfASoleWriter = AccidentsOfASoleWriter.TestCase
