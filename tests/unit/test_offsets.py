"""Translation against an oracle that knows every record's two places."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.ledger import BASELINE, END, RELAY, REPAIR, REPLAY, SKIP, Entry
from mirrorlake.offsets import OffsetMap, OffsetMaps
from mirrorlake.records import SourcePartition, TopicPartition, runs_from_pairs

SOURCE = SourcePartition("orders", "id-1", 0)
TARGET = TopicPartition("src.orders", 0)


@dataclass
class Story:
    """What happened to one partition: the pairs that are on the target now, and the ledger's rows about them."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    next_source: int = 0
    log_end: int = 0
    epoch: int = 1

    def note(self, kind: str, first: int, last: int, target_first: int | None = None, **fields: Any) -> None:
        entry = Entry(
            "f",
            "dr",
            kind,
            self.epoch,
            SOURCE,
            first,
            last,
            TARGET,
            "t-1",
            target_first,
            last - first + 1,
            self.log_end,
        )
        self.entries.append(replace(entry, **fields))

    def send(self, kind: str, offsets: Iterable[int]) -> None:
        new = [(source, self.log_end + place) for place, source in enumerate(offsets)]
        self.pairs += new
        self.log_end += len(new)
        for run in runs_from_pairs(new):
            self.note(kind, run.source_first, run.source_last, run.target_first)

    # --- what can happen ---

    def relay(self, count: int) -> None:
        self.send(RELAY, range(self.next_source, self.next_source + count))
        self.next_source += count

    def gap(self, count: int) -> None:
        """Compaction took records, or markers of transactions take offsets."""
        self.next_source += count

    def foreign(self, count: int) -> None:
        self.log_end += count

    def left_out(self, count: int) -> None:
        offsets = range(self.next_source, self.next_source + count)
        self.dead += offsets
        self.note(SKIP, offsets[0], offsets[-1])
        self.next_source += count

    def repair(self, _count: int) -> None:
        self.epoch += 1
        self.send(REPAIR, self.dead)
        self.dead = []

    def replay(self, count: int) -> None:
        again = [source for source, _ in self.pairs][:count]
        if again:
            place, self.log_end = self.log_end, self.log_end + len(again)
            for run in runs_from_pairs(zip(again, range(place, self.log_end), strict=True)):
                self.note(REPLAY, run.source_first, run.source_last, run.target_first)

    def lose_end(self, count: int) -> None:
        """The target forgets its last records; a repair begins again at the first that is gone."""
        self.epoch += 1
        self.log_end = max(0, self.log_end - count)
        lost = [source for source, target in self.pairs if target >= self.log_end]
        self.pairs = [(source, target) for source, target in self.pairs if target < self.log_end]
        self.next_source = min(lost, default=self.next_source)
        self.dead = [offset for offset in self.dead if offset < self.next_source]
        self.note(BASELINE, self.next_source, self.next_source - 1)


ACTS = ("relay", "gap", "foreign", "left_out", "repair", "replay", "lose_end")
acts = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(1, 6)), max_size=14)


def told(begin: int, log_end: int, happened: list[tuple[str, int]]) -> Story:
    story = Story(next_source=begin, log_end=log_end)
    story.note(BASELINE, begin, begin - 1)
    for act, count in happened:
        getattr(story, act)(count)
    return story


stories = st.builds(told, st.integers(0, 5), st.integers(0, 5), acts)


def map_of(story: Story) -> OffsetMap:
    found = OffsetMaps(story.entries).of(SOURCE)
    assert found is not None
    return found


@given(stories)
def test_an_offset_becomes_the_first_place_with_a_record_from_there_or_later(story: Story) -> None:
    made = map_of(story)
    for offset in range(story.next_source + 2):
        places = [target for source, target in story.pairs if source >= offset]
        after_last_copy = max((target + 1 for _, target in story.pairs), default=made.target_begin)
        assert made.to_target(offset) == min(places, default=after_last_copy)


@given(stories)
def test_and_back_to_the_first_source_record_that_stands_there_or_later(story: Story) -> None:
    made = map_of(story)
    for place in range(story.log_end + 2):
        offsets = [source for source, target in story.pairs if target >= place]
        assert made.to_source(place) == min(offsets, default=made.source_end)


@given(stories)
def test_a_later_offset_never_becomes_an_earlier_place(story: Story) -> None:
    made = map_of(story)
    places = [made.to_target(offset) for offset in range(story.next_source + 2)]
    assert places == sorted(places)


@given(stories)
def test_a_reader_who_goes_on_there_skips_nothing_and_the_number_read_again_is_known(story: Story) -> None:
    made = map_of(story)
    for offset in range(story.next_source + 2):
        place = made.to_target(offset)
        met = [source for source, target in story.pairs if target >= place]
        assert {source for source, _ in story.pairs if source >= offset} <= set(met)
        assert made.read_again(offset) == sum(source < offset for source in met)


@given(stories.filter(lambda story: not any(entry.kind == REPAIR for entry in story.entries)))
def test_without_repairs_nothing_is_ever_read_again(story: Story) -> None:
    made = map_of(story)
    assert all(made.read_again(offset) == 0 for offset in range(story.next_source + 2))


@given(stories, st.randoms())
def test_rows_may_be_read_in_any_order(story: Story, chance: Any) -> None:
    shuffled = list(story.entries)
    chance.shuffle(shuffled)
    ours, straight = map_of(replace(story, entries=shuffled)), map_of(story)
    for offset in range(story.next_source + 2):
        assert ours.to_target(offset) == straight.to_target(offset)


@given(stories)
def test_rows_that_come_one_by_one_make_the_same_map(story: Story) -> None:
    maps = OffsetMaps()
    for entry in story.entries:
        maps.learn(entry)
        maps.of(SOURCE)  # asked in between, as a running flow does
    made, whole = maps.of(SOURCE), map_of(story)
    assert made is not None
    assert [made.to_target(n) for n in range(story.next_source + 2)] == [
        whole.to_target(n) for n in range(story.next_source + 2)
    ]


def test_incarnations_never_mix() -> None:
    story = told(0, 0, [("relay", 5)])
    anew = SourcePartition("orders", "id-2", 0)
    younger = [
        replace(story.entries[0], source=anew, epoch=2, target_end=5),
        replace(story.entries[1], source=anew, epoch=2, target_first=5, target_end=10),
    ]
    maps = OffsetMaps([*story.entries, *younger])
    assert maps.of(SOURCE).to_target(2) == 2  # type: ignore[union-attr]
    assert maps.of(anew).to_target(2) == 7  # type: ignore[union-attr]
    assert maps.of(SourcePartition("orders", "id-3", 0)) is None


@pytest.mark.parametrize("asked", ["id-1", "id-1#1"])
@pytest.mark.parametrize(
    ("offset", "place"), [(0, 0), (5, 5), (6, 10), (7, 11), (8, 12), (9, 13), (10, 13)],
)  # fmt: skip
def test_a_log_that_was_cut_is_read_by_its_earlier_branch_up_to_there(asked: str, offset: int, place: int) -> None:
    """Ten records, cut at 6, then three others in their place."""
    story = told(0, 0, [("relay", 10)])
    later = told(6, 10, [("relay", 3)])
    cut = [replace(entry, source=SOURCE._replace(topic_id="id-1#1"), epoch=2) for entry in later.entries]
    made = OffsetMaps([*story.entries, *cut]).of(SOURCE._replace(topic_id=asked))
    assert made is not None
    assert (made.to_target(offset), made.source_begin, made.source_end) == (place, 0, 9)
    assert [made.to_source(place) for place in (0, 5, 6, 9, 10, 12, 13)] == [0, 5, 6, 6, 6, 8, 9]


def test_a_log_goes_on_when_its_broker_begins_to_tell_ids() -> None:
    story, later = told(0, 0, [("relay", 5)]), told(5, 5, [("relay", 5)])
    elder = [replace(entry, source=SOURCE._replace(topic_id="")) for entry in story.entries]
    made = OffsetMaps([*elder, *(replace(entry, epoch=2) for entry in later.entries)]).of(SOURCE)
    assert made is not None
    assert [made.to_target(offset) for offset in (2, 5, 9, 10)] == [2, 5, 9, 10]


def test_a_target_topic_made_anew_begins_a_map_of_its_own() -> None:
    story = told(0, 0, [("relay", 5)])
    baseline = replace(story.entries[0], epoch=2, target_topic_id="t-2")
    made = OffsetMaps([*story.entries, baseline]).of(SOURCE)
    assert made is not None
    assert (made.target_topic_id, made.runs, made.to_target(3)) == ("t-2", (), 0)


def test_a_target_topic_that_was_deleted_after_its_source_has_no_map() -> None:
    story = told(0, 0, [("relay", 5)])
    assert OffsetMaps([*story.entries, replace(story.entries[-1], kind=END, epoch=2)]).of(SOURCE) is None


def test_adjacent_runs_are_one_so_that_a_dense_partition_stays_small() -> None:
    assert len(map_of(told(0, 0, [("relay", 3)] * 10)).runs) == 1


@pytest.mark.parametrize(
    ("offset", "place"), [(0, 10), (4, 14), (5, 15), (7, 15), (8, 15), (9, 16), (10, 17), (99, 17)]
)
def test_by_example(offset: int, place: int) -> None:
    story = told(0, 10, [("relay", 5), ("gap", 3), ("relay", 2), ("foreign", 3)])
    story.note(SKIP, 10, 10)  # seen later, when the log had grown
    assert map_of(story).to_target(offset) == place
