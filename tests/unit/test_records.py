"""Runs and spans against a dictionary of every single offset."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.records import (
    OPS_TABLES,
    Run,
    SourcePartition,
    TopicPartition,
    age,
    is_elder,
    is_same_log,
    known_id,
    next_branch,
    runs_from_pairs,
    spans,
    trunk,
)


@st.composite
def ascending_pairs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(source offset, target offset), both ascending, with jumps on either side."""
    steps = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=40))
    source, target = draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40))
    pairs = []
    for source_step, target_step in steps:
        source, target = source + source_step, target + target_step
        pairs.append((source, target))
    return pairs


@given(ascending_pairs())
def test_runs_translate_each_offset_as_a_dictionary_would(pairs: list[tuple[int, int]]) -> None:
    translated = {
        run.source_first + place: run.target_first + place
        for run in runs_from_pairs(pairs)
        for place in range(run.count)
    }
    assert translated == dict(pairs)


@given(ascending_pairs())
def test_runs_are_the_fewest_possible(pairs: list[tuple[int, int]]) -> None:
    jumps = sum((b[0] - a[0], b[1] - a[1]) != (1, 1) for a, b in pairwise(pairs))
    assert len(runs_from_pairs(pairs)) == (jumps + 1 if pairs else 0)


def test_a_run_knows_its_ends() -> None:
    run = Run(source_first=10, target_first=100, count=3)
    assert (run.source_last, run.target_end) == (12, 103)


@given(st.lists(st.integers(0, 2**50), unique=True, max_size=60).map(sorted))
def test_spans_hold_exactly_the_offsets_given(offsets: list[int]) -> None:
    held = spans(offsets)
    assert [offset for first, count in held for offset in range(first, first + count)] == offsets
    assert all(a[0] + a[1] < b[0] for a, b in pairwise(held))


def test_spans_are_plain_integers_so_that_json_takes_them() -> None:
    assert all(type(number) is int for span in spans([1, 2, 5]) for number in span)


def test_partitions_are_written_as_people_write_them() -> None:
    assert str(TopicPartition("orders", 3)) == str(SourcePartition("orders", "an-id", 3)) == "orders[3]"


def test_every_ops_table_says_when() -> None:
    assert all("at" in schema.names and "flow" in schema.names for schema in OPS_TABLES.values())


# --- logs that were cut ---


def of(topic_id: str, partition: int = 0) -> SourcePartition:
    return SourcePartition("orders", topic_id, partition)


def test_branches_are_counted_and_keep_the_id_that_the_broker_tells() -> None:
    first, second = next_branch("an-id"), next_branch(next_branch("an-id"))
    assert (first, second, trunk(second)) == ("an-id#1", "an-id#2", "an-id")
    assert next_branch("") == "#1"


def test_parts_of_a_log_have_an_order() -> None:
    parts = [of(""), of("#1"), of("an-id"), of("an-id#1"), of("an-id#2"), of("an-id#10")]
    assert sorted({*parts}, key=age) == parts
    assert all(is_elder(one, two) and not is_elder(two, one) for one, two in pairwise(parts))
    assert not is_elder(parts[0], parts[0])


def test_other_topics_and_partitions_are_other_logs() -> None:
    assert is_same_log(of("an-id"), of("an-id#1"))
    assert not is_same_log(of("an-id"), of("another"))
    assert not is_same_log(of("an-id"), of("an-id#1", partition=1))


def test_a_topic_is_called_by_what_its_broker_tells_and_by_the_branch_that_we_know() -> None:
    assert [known_id(kept, "an-id") for kept in (None, "", "an-id", "an-id#2", "another#2")] == [
        "an-id", "an-id", "an-id", "an-id#2", "an-id",
    ]  # fmt: skip
    assert known_id("an-id#2", "") == "an-id#2"
