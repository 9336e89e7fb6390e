"""What goes out next: shares, order, one writer for each target partition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import OTHER_ID, SOURCE, TARGET

from mirrorlake.ledger import Position
from mirrorlake.produce import Slice
from mirrorlake.records import SourcePartition, TopicPartition
from mirrorlake.rounds import Due, due_segments, one_for_each_target, plan_round
from mirrorlake.tables import Segment

SIZE = 100


def segment(first: int, last: int, source: SourcePartition = SOURCE, size: int = SIZE) -> Segment:
    return Segment(f"{first}-{last}", source, first, last, last - first + 1, size, alone=True)


def due(*segments: Segment, next_offset: int = 0, source: SourcePartition = SOURCE) -> Due:
    held = sorted(segments, key=lambda s: s.first_offset)
    at = TopicPartition(TARGET.topic, source.partition)
    return Due(source, Position(next_offset, at, "id", 7), False, tuple(held))


def only_slice(item: Due, budget: int) -> Slice:
    ((slice_,),) = plan_round([item], budget, 4)
    return slice_


def partition(number: int) -> SourcePartition:
    return SOURCE._replace(partition=number)


def test_a_rate_holds_within_a_file_too() -> None:
    """A file may hold minutes of what a target may get in a second."""
    item = due(segment(0, 99, size=1000), next_offset=50)
    ((slice_,),) = plan_round([item], 100, 4, strictly=True)
    assert (slice_.first, slice_.until) == (50, 60)
    assert only_slice(item, 100).until == 100


def test_nothing_due_is_no_task() -> None:
    assert plan_round([], 100, 4) == []


def test_segments_before_the_position_or_of_nobody_are_not_due() -> None:
    positions = {SOURCE: Position(10, TARGET, "id", 0)}
    other = SOURCE._replace(topic_id=OTHER_ID)
    segments = [segment(20, 29), segment(0, 9), segment(5, 10), segment(0, 5, other)]
    assert due_segments(segments, positions) == {SOURCE: [segment(5, 10), segment(20, 29)]}


@pytest.mark.parametrize(
    ("budget", "taken", "until"), [(1, 1, 10), (SIZE, 1, 10), (2 * SIZE, 2, 20), (10 * SIZE, 3, 30)]
)
def test_a_slice_takes_its_share_and_at_least_one_segment(budget: int, taken: int, until: int) -> None:
    slice_ = only_slice(due(segment(0, 9), segment(10, 19), segment(20, 29)), budget)
    assert (len(slice_.segments), slice_.first, slice_.until) == (taken, 0, until)
    assert (slice_.target, slice_.expected_end, slice_.shared) == (TARGET, 7, False)


def test_a_slice_begins_at_the_position_inside_a_segment() -> None:
    slice_ = only_slice(due(segment(0, 9), segment(10, 19), next_offset=4), SIZE)
    assert (slice_.first, slice_.until) == (4, 10)


def test_what_overlaps_the_rest_is_cut_where_the_rest_begins() -> None:
    slice_ = only_slice(due(segment(0, 9), segment(5, 14)), SIZE)
    assert (slice_.first, slice_.until) == (0, 5)


def test_what_overlaps_at_the_position_is_read_together() -> None:
    slice_ = only_slice(due(segment(0, 9), segment(5, 14), next_offset=5), SIZE)
    assert (slice_.until, len(slice_.segments)) == (15, 2)


@pytest.mark.parametrize(
    ("budget", "until"), [(0, 510), (1, 510), (SIZE // 10, 600), (SIZE // 2, 1000), (10 * SIZE, 1000)]
)
def test_what_lies_in_no_file_is_cut_at_any_offset(budget: int, until: int) -> None:
    span = Segment("", SOURCE, 0, 999, 400, SIZE, alone=False)
    slice_ = only_slice(due(span, next_offset=500), budget)
    assert (slice_.first, slice_.until) == (500, until)


@pytest.mark.parametrize("slots", [1, 2, 3, 8])
def test_every_partition_gets_one_slice_and_no_task_is_empty(slots: int) -> None:
    items = [due(segment(0, 9, partition(n), size=n + 1), source=partition(n)) for n in range(5)]
    tasks = plan_round(items, 1000, slots)
    assert sorted(slice_.source for task in tasks for slice_ in task) == [partition(n) for n in range(5)]
    assert len(tasks) == min(slots, 5)
    assert all(tasks)


def test_large_slices_are_placed_apart() -> None:
    sizes = [900, 800, 100, 90, 80]
    items = [due(segment(0, 9, partition(n), size=size), source=partition(n)) for n, size in enumerate(sizes)]
    loads = [sum(s.segments[0].bytes for s in task) for task in plan_round(items, 10**6, 2)]
    assert max(loads) <= 1000


@st.composite
def files(draw: st.DrawFn) -> list[Segment]:
    """Segments of one partition, some overlapping, with gaps, of any size."""
    pairs = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), min_size=1, max_size=10))
    sizes = draw(st.lists(st.integers(1, 300), min_size=len(pairs), max_size=len(pairs)))
    return [segment(first, first + more, size=size) for (first, more), size in zip(pairs, sizes, strict=True)]


@given(files(), st.integers(0, 60), st.integers(1, 600))
def test_rounds_cover_every_offset_once_in_order_and_come_to_an_end(
    segments: list[Segment], next_offset: int, budget: int
) -> None:
    position, covered = Position(next_offset, TARGET, "id", 0), list[int]()
    wanted = sorted({o for s in segments for o in range(s.first_offset, s.last_offset + 1) if o >= next_offset})
    for _ in range(3 * len(segments) + 1):
        held = due_segments(segments, {SOURCE: position})
        if not held:
            break
        ((slice_,),) = plan_round([Due(SOURCE, position, False, tuple(held[SOURCE]))], budget, 2)
        inside = {o for s in slice_.segments for o in range(s.first_offset, s.last_offset + 1)}
        covered += sorted(o for o in inside if slice_.first <= o < slice_.until)
        # No file that was left out may hold something of this range.
        left_out = [s for s in held[SOURCE] if s not in slice_.segments]
        assert all(s.first_offset >= slice_.until for s in left_out)
        assert slice_.until > slice_.first
        position.next_offset = slice_.until
    assert covered == wanted


@given(files(), st.integers(1, 600))
def test_a_slice_of_more_than_one_segment_keeps_to_its_budget_unless_they_overlap(
    segments: list[Segment], budget: int
) -> None:
    slice_ = only_slice(due(*segments), budget)
    apart = all(a.last_offset < b.first_offset for a, b in zip(slice_.segments, slice_.segments[1:], strict=False))
    if len(slice_.segments) > 1 and apart:
        assert sum(s.bytes for s in slice_.segments) <= budget


def test_a_busy_partition_does_not_keep_its_neighbour_waiting() -> None:
    busy, quiet = SOURCE, SOURCE._replace(partition=2)
    waiting = [(busy, TARGET), (quiet, TARGET)]
    assert one_for_each_target(waiting, lambda _: False, {}) == {TARGET: busy}
    assert one_for_each_target(waiting, lambda _: False, {busy: 1}) == {TARGET: quiet}
    elder = SOURCE._replace(topic_id=OTHER_ID)
    assert one_for_each_target([(elder, TARGET), (busy, TARGET)], lambda _: False, {elder: 9}) == {TARGET: elder}
    assert one_for_each_target(waiting, lambda _: True, {}) == {}
