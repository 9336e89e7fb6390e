"""What a target that lost its end gets again: everything that is gone, and nothing that still stands."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirrorlake.records import Run, runs_from_pairs
from mirrorlake.repair import _between, first_lost, lost_repairs


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int]:
    """(Source offset, place) of a relay that left some out, some of them sent late by repairs; where the log is cut."""
    pairs, aside, place = list[tuple[int, int]](), list[int](), 0
    for offset in range(draw(st.integers(0, 30))):
        place += draw(st.sampled_from([0, 0, 0, 3]))  # others write too
        act = draw(st.sampled_from(["relay", "relay", "relay", "leave out", "repair"]))
        if act == "leave out":
            aside.append(offset)
            continue
        pairs.append((offset, place))
        place += 1
        if act == "repair" and aside:
            pairs.append((aside.pop(0), place))
            place += 1
    return pairs, draw(st.integers(0, place + 3))


@given(stories())
@example(([(n, n) for n in range(100)], 130))  # only others' records are gone
@example(([(n, n) for n in range(9) if n != 5] + [(5, 20)], 20))  # only a late one is
def test_what_is_lost_is_sent_again_and_nothing_else(story: tuple[list[tuple[int, int]], int]) -> None:
    pairs, end = story
    next_offset = max((source for source, _ in pairs), default=-1) + 1
    standing = {source for source, place in pairs if place < end}
    lost = {source for source, place in pairs if place >= end} - standing
    runs = runs_from_pairs(pairs)
    begin = first_lost(runs, end, next_offset)
    late = {first + n for first, count in lost_repairs(runs, end, begin) for n in range(count)}
    assert {source for source in range(begin, next_offset) if source in lost} | late == lost
    assert not standing & {*range(begin, next_offset)}
    assert not late & standing


def test_where_nothing_of_ours_is_lost_the_relay_goes_on_where_it_stood() -> None:
    assert first_lost([Run(0, 0, 100)], 130, 100) == 100
    assert first_lost([], 0, 7) == 7


@pytest.mark.parametrize(
    ("but", "left"),
    [([], [(3, 9)]), ([3], [(4, 9)]), ([9], [(3, 8)]), ([5, 6, 20], [(3, 4), (7, 9)]), (range(3, 10), [])],
)
def test_what_is_set_aside_already_is_not_missed_once_more(but: list[int], left: list[tuple[int, int]]) -> None:
    assert list(_between(3, 9, but)) == left
