"""After a crash: what of the target's tail is ours, by a cluster made of lists and a machine of accidents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from samples import OTHER_ID, SOURCE, TARGET, FakeCluster, bronze_batch, bronze_row, errand

from mirrorlake.errors import TargetDiverged
from mirrorlake.ledger import Position
from mirrorlake.produce import Errand, Shaper
from mirrorlake.provenance import HEADER, Provenance, digest
from mirrorlake.records import Run, SourcePartition
from mirrorlake.recovery import Log, Recovered, recover, split_repeated

ANEW = SOURCE._replace(topic_id=OTHER_ID)
LOOPED = [(HEADER, Provenance(digest("x"), digest("cluster-b"), bytes(16), 0, 1, 1, 1, 1).encode())]


class World:
    """Bronze rows by source partition, and a target to send them to."""

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
            self.cluster.append(TARGET, sent.keys[0], sent.values[0], sent.headers[0])

    def foreign(self, count: int = 1) -> None:
        for _ in range(count):
            self.cluster.append(TARGET, b"not", b"ours")

    def recover(
        self,
        next_offset: int = 0,
        ledger_end: int = 0,
        others: dict[SourcePartition, Position] | None = None,
        shared: bool = False,
    ) -> Recovered:
        positions = {SOURCE: Position(next_offset, TARGET, "id", ledger_end), **(others or {})}
        log = Log(self.cluster.log_starts([TARGET])[TARGET], self.cluster.log_ends([TARGET])[TARGET])
        cluster: Any = self.cluster
        return recover(self.errand, cluster, TARGET, positions, log, self.read_bronze, shared)


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
        ([(4, 0), (5, 1)], 5, [(5, 1)], [4]),
        ([(5, 0), (6, 1), (5, 2), (7, 3)], 5, [(5, 0), (6, 1), (7, 3)], [5]),
    ],
)
def test_first_landings_are_told_from_later_ones(
    pairs: list[tuple[int, int]], next_offset: int, fresh: list[tuple[int, int]], repeated: list[int]
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


def test_an_expired_tail_whose_rest_is_not_stamped_by_us_stops_the_flow() -> None:
    made = world()
    made.lands(0, 1)
    made.cluster.append(TARGET, b"k2", b"v2")
    made.cluster.expire(TARGET, 2)
    with pytest.raises(TargetDiverged):
        made.recover()


def test_an_expired_tail_of_two_sources_stops_the_flow() -> None:
    made = world()
    made.lands(*range(6))
    made.cluster.expire(TARGET, 3)
    with pytest.raises(TargetDiverged):
        made.recover(others={ANEW: Position(0, TARGET, "id", 0)})


def test_a_compacted_tail_is_told_from_a_hole_by_the_places() -> None:
    made = world()
    made.lands(*range(8))
    made.cluster.compact_away(TARGET, [2, 3, 5])
    assert runs(made.recover(next_offset=1, ledger_end=1)) == [Run(1, 1, 7)]


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


class Accidents(RuleBasedStateMachine):
    """A sender that crashes at any place, requests that land late, and others who write."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.recorded: dict[int, int] = {}  # source offset -> target offset, as the ledger has it
        self.position = Position(0, TARGET, "id", 0)
        self.landed: list[int] = []  # source offsets in the order of their landing
        self.late: list[int] = []  # offsets in requests of a dead process that may still land
        self.repeats_landed: list[int] = []
        self.repeats_listed: list[int] = []
        self.in_doubt = False

    def land(self, offset: int) -> None:
        if offset in self.landed:
            self.repeats_landed.append(offset)
        self.world.lands(offset)
        self.landed.append(offset)

    def due(self) -> list[int]:
        return [row["offset"] for row in self.world.bronze[SOURCE] if row["offset"] >= self.position.next_offset]

    @rule(steps=st.lists(st.integers(1, 3), min_size=1, max_size=5))
    def ingest(self, steps: list[int]) -> None:
        rows = self.world.bronze[SOURCE]
        for step in steps:
            rows.append(bronze_row((rows[-1]["offset"] if rows else -1) + step))

    @precondition(lambda self: not self.in_doubt and self.due())
    @rule(data=st.data())
    def send_and_record(self, data: st.DataObject) -> None:
        if self.world.cluster.log_ends([TARGET])[TARGET] != self.position.target_end:
            self.in_doubt = True  # as the sender's check of the log end has it
            return
        count = data.draw(st.integers(1, len(self.due())))
        for offset in self.due()[:count]:
            self.recorded[offset] = self.world.cluster.ends.get(TARGET, 0)
            self.land(offset)
        self.position.next_offset = self.landed[-1] + 1
        self.position.target_end = self.world.cluster.ends[TARGET]

    @precondition(lambda self: not self.in_doubt and self.due())
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """A prefix lands and nobody writes it down; the next records are in a request on the wire."""
        self.in_doubt = True
        if self.world.cluster.log_ends([TARGET])[TARGET] != self.position.target_end:
            return
        due = self.due()
        count = data.draw(st.integers(0, len(due)))
        for offset in due[:count]:
            self.land(offset)
        on_the_wire = due[count : count + data.draw(st.integers(0, 2))]
        self.late = on_the_wire or due[max(0, count - 2) : count]

    @precondition(lambda self: self.late)
    @rule()
    def a_late_request_lands(self) -> None:
        for offset in self.late:
            self.land(offset)
        self.late = []

    @rule(count=st.integers(1, 2))
    def somebody_else_writes(self, count: int) -> None:
        self.world.foreign(count)

    @rule()
    def recover(self) -> None:
        positions = {SOURCE: self.position}
        ends = self.world.cluster.log_ends([TARGET])
        cluster: Any = self.world.cluster
        log = Log(0, ends[TARGET])
        found = recover(self.world.errand, cluster, TARGET, positions, log, self.world.read_bronze)
        for run in runs(found):
            for place in range(run.count):
                assert run.source_first + place not in self.recorded
                self.recorded[run.source_first + place] = run.target_first + place
            self.position.next_offset = run.source_last + 1
        for first, count in found.duplicates.get(SOURCE, []):
            self.repeats_listed += range(first, first + count)
        self.position.target_end = found.target_end
        self.in_doubt = False

    @invariant()
    def first_landings_are_in_order_and_without_holes(self) -> None:
        firsts = list(dict.fromkeys(self.landed))
        assert firsts == [row["offset"] for row in self.world.bronze[SOURCE]][: len(firsts)]

    @invariant()
    def the_position_skips_nothing(self) -> None:
        passed = [row["offset"] for row in self.world.bronze[SOURCE] if row["offset"] < self.position.next_offset]
        assert sorted(self.recorded) == passed

    @invariant()
    def the_ledger_names_the_first_landing_of_each_record(self) -> None:
        for offset, at in self.recorded.items():
            (message,) = self.world.cluster.read_range(TARGET, at, at + 1)
            assert message.value() == b"v%d" % offset
        assert list(self.recorded.values()) == sorted(self.recorded.values())

    @invariant()
    def once_recovered_every_repeat_is_listed(self) -> None:
        if not self.in_doubt and self.position.target_end == self.world.cluster.ends.get(TARGET, 0):
            assert set(self.repeats_landed) == set(self.repeats_listed)


Accidents.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAccidents = Accidents.TestCase
