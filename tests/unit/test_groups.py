"""What is decided about a group, and ways between clusters against a model that knows what was read."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.config import Groups
from mirrorlake.consumers import Commit
from mirrorlake.crossing import Crossing, Landing, Link, Way, against, along, crossing, share
from mirrorlake.groups import KEEP, NONE, WRITE, Passage, Positions, Tag, There, decide, is_chosen, read_tag
from mirrorlake.kafka import TopicInfo
from mirrorlake.ledger import BASELINE, RELAY, SKIP, Entry
from mirrorlake.offsets import OffsetMaps, Stairs
from mirrorlake.records import Run, SourcePartition, TopicPartition

TO = TopicPartition("eu.orders", 0)


# --- which groups ---


@pytest.mark.parametrize(
    ("group", "chosen"),
    [
        ("shop", True),
        ("console-consumer-17", False),
        ("connect-sink", False),
        ("__internal", False),
        ("my-connect-x", True),
    ],
)
def test_by_default_the_groups_are_mm2s(group: str, chosen: bool) -> None:
    assert is_chosen(Groups(), group) is chosen


def test_exclusions_win_and_a_match_is_a_full_one() -> None:
    settings = Groups(include=["shop.*"], exclude=["shop-test"])
    assert [is_chosen(settings, g) for g in ("shop-1", "shop-test", "a-shop")] == [True, False, False]


# --- what is decided ---


def there(commit: Commit | None = None, state: str | None = "EMPTY", start: int = 0, end: int = 100) -> There:
    return There(state, commit, start, end)


def ours(offset: int, source_offset: int) -> Commit:
    return Commit(offset, str(Tag("f", source_offset)))


@pytest.mark.parametrize(
    ("landing", "side", "rewind", "expected"),
    [
        pytest.param(Landing(TO, 7), there(state=None), False, (7, WRITE, "not committed there yet"), id="absent"),
        pytest.param(Landing(TO, 7), there(Commit(5)), False, (7, WRITE, "forward"), id="forward"),
        pytest.param(Landing(TO, 7), there(Commit(7)), False, (7, KEEP, "stands there already"), id="same"),
        pytest.param(
            Landing(TO, 7), there(Commit(9)), True, (7, KEEP, "the group itself went on there to 9"), id="used there"
        ),
        pytest.param(
            Landing(TO, 7),
            there(None, "STABLE"),
            False,
            (7, KEEP, "the group has members there (stable)"),
            id="members",
        ),
        pytest.param(
            Landing(TO, 7),
            there(ours(9, 30)),
            False,
            (7, KEEP, "the group went back from 30 to 20; groups.rewind is off"),
            id="set back",
        ),
        pytest.param(
            Landing(TO, 7),
            there(ours(9, 30)),
            True,
            (7, WRITE, "the group went back from 30 to 20"),
            id="set back, followed",
        ),
        pytest.param(
            Landing(TO, 7),
            there(ours(9, 20)),
            True,
            (7, KEEP, "stands at 9 there, which is later; a group never goes back by itself"),
            id="the map changed",
        ),
        pytest.param(
            Landing(TO, 101),
            there(),
            False,
            (None, NONE, "the log there ends at 100, before 101: it lost records"),
            id="lost end",
        ),
        pytest.param(
            Landing(TO, 7),
            there(start=40),
            False,
            (40, WRITE, "not committed there yet; older records are gone there (log start 40)"),
            id="retention there",
        ),
        pytest.param(
            Landing(TO, 7, ahead=3),
            there(),
            False,
            (7, WRITE, "not committed there yet; 3 offsets that it has read are not there yet"),
            id="ahead",
        ),
        pytest.param(
            Landing(TO, 7, never=4),
            there(),
            False,
            (7, WRITE, "not committed there yet; 4 offsets before the relay's begin never went there"),
            id="before the begin",
        ),
    ],
)
def test_every_decision_has_its_reason(
    landing: Landing, side: There, rewind: bool, expected: tuple[int | None, str, str]
) -> None:
    assert decide(20, landing, side, rewind) == expected


@given(
    st.integers(0, 99),
    st.integers(0, 99),
    st.integers(0, 99),
    st.booleans(),
    st.sampled_from([None, "EMPTY", "STABLE"]),
)
def test_a_write_is_never_behind_what_stands_there_unless_the_group_went_back(
    place: int, held: int, tagged: int, rewind: bool, state: str | None
) -> None:
    offset, decision, _ = decide(50, Landing(TO, place), there(ours(held, tagged), state), rewind)
    if decision == WRITE:
        assert state != "STABLE"
        assert offset is not None
        assert offset > held or (rewind and tagged > 50)


def test_a_tag_is_read_back_and_anything_else_is_not_ours() -> None:
    assert read_tag(str(Tag("orders-eu", 12))) == Tag("orders-eu", 12)
    assert [read_tag(text) for text in ("", "mirrorlake", "mirrorlake/1 f", "x mirrorlake/1 f 3")] == [None] * 4


# --- two clusters that relay to each other ---


@dataclass
class Side:
    """One cluster's log of one topic: who wrote each record first, and its number there."""

    name: str
    log: list[tuple[str, int] | None] = field(default_factory=list)
    """None where an offset holds no record: a marker, or what compaction took."""
    written: int = 0

    def gap(self, count: int) -> None:
        self.log += [None] * count

    def records(self, begin: int = 0, end: int | None = None) -> list[tuple[str, int]]:
        return [record for record in self.log[begin:end] if record]

    def write(self, count: int) -> None:
        self.log += [(self.name, self.written + n) for n in range(count)]
        self.written += count


@dataclass
class Relaying:
    """A relay that keeps its ledger as ours does: nothing before the first record, then copies as runs, and skips."""

    source: Side
    target: Side
    next_offset: int = 0
    entries: list[Entry] = field(default_factory=list)

    def note(self, kind: str, first: int, last: int, place: int | None) -> None:
        at, to = SourcePartition("orders", self.source.name, 0), TopicPartition("orders", 0)
        self.entries.append(
            Entry(
                "f",
                self.target.name,
                kind,
                1,
                at,
                first,
                last,
                to,
                self.target.name,
                place,
                last - first + 1,
                len(self.target.log),
            )
        )

    def step(self, count: int) -> None:
        for offset in range(self.next_offset, min(self.next_offset + count, len(self.source.log))):
            record, place = self.source.log[offset], None
            self.next_offset = offset + 1
            if record and not self.entries:
                self.note(BASELINE, offset, offset - 1, None)
            if record and record[0] == self.source.name:
                place = len(self.target.log)
                self.target.log.append(record)
            if record:
                self.note(SKIP if place is None else RELAY, offset, offset, place)

    def link(self) -> Link:
        infos = {side.name: {"orders": TopicInfo("orders", side.name, 1, 1)} for side in (self.source, self.target)}
        maps, complete = OffsetMaps(self.entries), {SourcePartition("orders", self.source.name, 0): self.next_offset}
        return Link({"orders": "orders"}, infos[self.source.name], infos[self.target.name], maps, complete)


steps = st.lists(
    st.tuples(st.sampled_from(["write eu", "write us", "gap eu", "gap us", "eu to us", "us to eu"]), st.integers(1, 5)),
    max_size=16,
)


def happen(acts: list[tuple[str, int]]) -> tuple[Side, Side, Relaying, Relaying]:
    eu, us = Side("eu"), Side("us")
    there, back = Relaying(eu, us), Relaying(us, eu)
    for act, count in acts:
        acting = {"write eu": eu.write, "write us": us.write, "gap eu": eu.gap, "gap us": us.gap}
        {**acting, "eu to us": there.step, "us to eu": back.step}[act](count)
    return eu, us, there, back


def ways(there: Relaying, back: Relaying) -> Crossing:
    return crossing([("eu", "us", there.link()), ("us", "eu", back.link())], "eu", "us")


@given(steps)
def test_with_the_same_names_in_both_directions_nothing_unread_is_skipped(acts: list[tuple[str, int]]) -> None:
    eu, us, there, back = happen(acts)
    for offset in range(len(eu.log) + 1):
        read = set(eu.records(0, offset))
        (landing,) = ways(there, back).land(TopicPartition("orders", 0), offset)
        assert set(us.records(0, landing.offset)) <= read
        assert landing.ahead == max(0, offset - there.next_offset)


@given(steps)
def test_where_both_sides_have_everything_a_reader_of_all_reads_nothing_again(acts: list[tuple[str, int]]) -> None:
    eu, us, there, back = happen([*acts, ("eu to us", 999), ("us to eu", 999), ("eu to us", 999), ("us to eu", 999)])
    assert sorted(eu.records()) == sorted(us.records())
    (landing,) = ways(there, back).land(TopicPartition("orders", 0), len(eu.log))
    assert us.records(landing.offset) == []


def test_the_way_back_does_not_wait_until_copies_were_looked_at() -> None:
    eu, _, there, back = happen([("write eu", 5), ("eu to us", 5)])
    assert back.next_offset == 0
    (landing,) = ways(there, back).land(TopicPartition("orders", 0), len(eu.log))
    assert landing.offset == 5


def test_with_prefixed_names_a_copy_leads_back_to_its_original() -> None:
    maps = OffsetMaps(
        [
            Entry(
                "f",
                "eu",
                BASELINE,
                1,
                SourcePartition("orders", "u", 0),
                3,
                2,
                TopicPartition("us.orders", 0),
                "e",
                None,
                0,
                10,
            ),
            Entry(
                "f",
                "eu",
                RELAY,
                1,
                SourcePartition("orders", "u", 0),
                3,
                7,
                TopicPartition("us.orders", 0),
                "e",
                10,
                5,
                15,
            ),
        ]
    )
    info = {"orders": TopicInfo("orders", "u", 1, 1)}
    link = Link({"orders": "us.orders"}, info, {"us.orders": TopicInfo("us.orders", "e", 1, 1)}, maps, {})
    (way,) = against(link)
    assert (way.start, way.to) == (TopicPartition("us.orders", 0), TopicPartition("orders", 0))
    assert [way.stairs(place) for place in (0, 10, 12, 15)] == [3, 3, 5, 8]


def test_why_there_is_no_way_is_said() -> None:
    maps = OffsetMaps(
        [
            Entry(
                "f",
                "us",
                BASELINE,
                1,
                SourcePartition("orders", "s", 0),
                0,
                -1,
                TopicPartition("eu.orders", 0),
                "old",
                None,
                0,
                0,
            ),
        ]
    )
    sources = {name: TopicInfo(name, "s", 1, 1) for name in ("orders", "new", "gone")}
    targets = {"eu.orders": TopicInfo("eu.orders", "new", 1, 1), "eu.new": TopicInfo("eu.new", "n", 1, 1)}
    link = Link({name: f"eu.{name}" for name in sources}, sources, targets, maps, {})
    opened, closed = along(link)
    assert opened == []
    assert {at.topic: why.partition(":")[0] for at, why in closed.items()} == {
        "orders": "eu.orders was made anew since it was filled",
        "new": "nothing of it was relayed yet",
        "gone": "there is no topic eu.gone",
    }


def test_what_is_complete_is_known_by_any_branch_of_a_log() -> None:
    place, branch = TopicPartition("eu.orders", 0), SourcePartition("orders", "s#1", 0)
    maps = OffsetMaps([Entry("f", "us", BASELINE, 1, branch, 4, 3, place, "t", None, 0, 9)])
    sources, targets = {"orders": TopicInfo("orders", "s", 1, 1)}, {"eu.orders": TopicInfo("eu.orders", "t", 1, 1)}
    (way,), closed = along(Link({"orders": "eu.orders"}, sources, targets, maps, {branch: 7}))
    assert (way.complete, way.begin, closed) == (7, 4, {})


def test_an_empty_partition_begins_there_at_0_unless_others_are_there() -> None:
    """The ledger says nothing of it; ingest has looked, and all of it is there."""
    taken = TopicPartition("eu.orders", 1)
    maps = OffsetMaps([Entry("f", "us", BASELINE, 1, SourcePartition("orders", "s", 5), 0, -1, taken, "t", None, 0, 0)])
    sources = {"orders": TopicInfo("orders", "s", 5, 1)}
    targets = {"eu.orders": TopicInfo("eu.orders", "t", 4, 1)}
    complete = {SourcePartition("orders", "s", number): offset for number, offset in [(0, 0), (1, 0), (3, 7), (4, 0)]}
    link = Link({"orders": "eu.orders"}, sources, targets, maps, complete)
    opened, closed = along(link)
    assert [(way.to, way.stairs(9), way.begin, way.complete) for way in opened] == [
        (TopicPartition("eu.orders", 0), 0, 0, 0),
        (TopicPartition("eu.orders", 3), 0, 7, 7),  # markers only, or begun at the latest
    ]
    assert {at.partition for at in closed} == {1, 2, 4}, "shared, not looked at yet, and without a place of its own"
    assert [(way.start.partition, way.stairs(0)) for way in against(link)] == [(0, 0), (3, 7)]


def test_each_of_several_flows_moves_the_groups_of_its_own_topics_and_the_first_also_the_rest() -> None:
    def link(flow: str, names: dict[str, str]) -> Link:
        return Link(names, {}, {}, OffsetMaps(), {}, flow)

    links = [
        ("eu", "us", link("a", {"a.1": "eu.a.1", "a.2": "eu.a.2"})),
        ("eu", "us", link("b", {"b.1": "eu.b.1"})),
        ("us", "eu", link("home", {"c": "us.c"})),
    ]
    there, back = ["a.1", "a.2", "b.1", "us.c"], ["eu.a.1", "eu.a.2", "eu.b.1", "c"]
    moved = {
        (flow, home): [topic for topic in topics if share(links, flow, ("eu", "us"), home, flow == "a")(topic)]
        for flow in ("a", "b")
        for home, topics in ((False, there), (True, back))
    }
    assert moved == {
        ("a", False): ["a.1", "a.2", "us.c"],
        ("a", True): ["eu.a.1", "eu.a.2", "c"],
        ("b", False): ["b.1"],
        ("b", True): ["eu.b.1"],
    }


def test_partitions_that_share_one_there_have_the_earliest_place() -> None:
    class Group:
        """Both sides' answers, without brokers."""

        cluster = None

        def groups(self) -> dict[str, str]:
            return {}

        def offsets(self, _groups: object) -> dict[str, object]:
            return {}

    class Log:
        def log_starts(self, places: set[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(places, 0)

        def log_ends(self, places: set[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(places, 100)

    there = Group()
    there.cluster = Log()  # type: ignore[assignment]
    ways = Crossing()
    ways.add([Way(TopicPartition("t", n), TO, Stairs([Run(0, 10 * n, 9)], 50), 0, 9) for n in (0, 2)], {})
    passage = Passage("f", Group(), there, Groups(), lambda: ways)  # type: ignore[arg-type]
    held = {TopicPartition("t", 0): Commit(8), TopicPartition("t", 2): Commit(3)}
    lines = passage.compare(Positions({"g": held}))
    assert [(line.partition, line.target, line.target_offset) for line in lines] == [(0, TO, 8), (2, TO, 8)]
