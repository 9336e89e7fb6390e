"""What a relay sees of its ingest query. Everything else about it needs brokers: tests/broker."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlake.inlet import Inlet, furthest
from mirrorlake.records import SourcePartition, TopicPartition


@dataclass
class Query:
    """A query that runs for so many looks, and then has ended with an error or without."""

    looks: int
    failure: Exception | None = None

    @property
    def isActive(self) -> bool:  # noqa: N802
        self.looks -= 1
        return self.looks >= 0

    def exception(self) -> Exception | None:
        return self.failure


def looked_at(query: Query) -> Inlet:
    return Inlet(None, lambda: None, once=True, query=query)  # type: ignore[arg-type]


def test_a_pass_over_what_is_there_ends_where_its_query_does() -> None:
    inlet = looked_at(Query(2))
    assert [inlet.is_running() for _ in range(3)] == [True, False, False]
    assert inlet.failure is None


def test_a_query_that_failed_is_not_taken_for_one_that_is_done() -> None:
    """Whenever it ends: before it is looked at, while it is, or between two looks."""
    for looks in range(4):
        inlet = looked_at(Query(looks, RuntimeError("the log is cut")))
        while inlet.failure is None:
            assert inlet.is_running()


def test_a_stall_counts_from_the_last_commit_and_only_while_the_source_has_more() -> None:
    inlet, source = looked_at(Query(1)), SourcePartition("orders", "id", 0)
    assert inlet.stalled_seconds() == 0
    inlet.note_ends({source: 5}, {source: 4})
    first = inlet.stalled_seconds()
    assert inlet.stalled_seconds() > first >= 0
    inlet._behind_since = 0.0  # long ago
    inlet._committed()
    assert inlet.stalled_seconds() < 1
    inlet.note_ends({source: 5}, {source: 5})
    inlet._committed()
    assert inlet.stalled_seconds() == 0


def test_of_several_accounts_the_latest_counts_for_each_partition() -> None:
    one, two = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert furthest({one: 5, two: 7}, {one: 9}, {}) == {one: 9, two: 7}
    assert furthest({}, {}) == {}
