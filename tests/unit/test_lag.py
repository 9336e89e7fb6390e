"""Samples of lag: who stands where, in which incarnation of a topic."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from samples import OTHER_ID, SOURCE, TOPIC_ID, FakeCluster

from mirrorlake.kafka import TopicInfo
from mirrorlake.lag import (
    SAMPLED_ENDS,
    as_known,
    ingest_positions,
    known_ends,
    sample_rows,
    source_ends,
    target_positions,
)
from mirrorlake.ledger import Book, Position
from mirrorlake.records import LAG_SAMPLES, KnownEnd, SourcePartition, TopicPartition

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
AT = TopicPartition(SOURCE.topic, SOURCE.partition)
TOPIC = TopicInfo(SOURCE.topic, TOPIC_ID, SOURCE.partition + 1, 1)


ELDER = SOURCE._replace(topic_id="")


def book(next_offset: int, source: SourcePartition = SOURCE) -> Book:
    return Book({source: Position(next_offset, TopicPartition("copy", 0), "id", next_offset)})


@pytest.mark.parametrize(
    ("held", "ends", "position"),
    [
        pytest.param(book(7), {SOURCE: 9}, 7, id="behind bronze"),
        pytest.param(book(9), {SOURCE: 9}, 12, id="with all of bronze it stands where ingest stands"),
        pytest.param(Book(), {}, 12, id="nothing in bronze: only markers were read"),
        pytest.param(Book(), {SOURCE: 9}, 0, id="nothing sent yet"),
        pytest.param(book(9), None, 9, id="bronze's end is not known"),
        pytest.param(book(9, SOURCE._replace(topic_id=OTHER_ID)), {SOURCE: 9}, 0, id="another incarnation"),
        pytest.param(book(7, ELDER), {ELDER: 9}, 7, id="behind in the branch before the log was cut"),
        pytest.param(book(9, ELDER), {ELDER: 9}, 12, id="with all of that branch, and nothing in the next one"),
        pytest.param(book(9, ELDER), {ELDER: 9, SOURCE: 10}, 0, id="nothing sent of the next branch yet"),
        pytest.param(book(9, ELDER), None, 9, id="of the next branch nobody knows"),
    ],
)
def test_a_target_stands_where_its_ledger_says(
    held: Book, ends: dict[SourcePartition, int] | None, position: int
) -> None:
    assert target_positions(held, ends, {SOURCE: 12}) == {SOURCE: position}


def sampled(topic_id: str) -> dict[str, int]:
    """Side -> position, of one sample after five records, all read and sent in the incarnation TOPIC_ID."""
    cluster = FakeCluster()
    for _ in range(5):
        cluster.append(AT, None, b"v")
    ingested = ingest_positions({AT: 5}, {AT.topic: TOPIC_ID})
    topic = TopicInfo(TOPIC.name, topic_id, TOPIC.partitions, 1)
    rows = sample_rows("f", cluster, [topic], ingested, {"dr": ingested}, False, NOON).to_pylist()  # type: ignore[arg-type]
    assert {(row["at"], row["topic_id"], row["flow"]) for row in rows} == {(NOON, topic_id, "f")}
    here = [row for row in rows if row["partition"] == AT.partition]
    assert [row["log_end"] for row in here if row["side"] == "source"] == [5]
    return {row["side"]: row["position"] for row in here if row["side"] != "source"}


def test_a_sample_has_everybodys_position() -> None:
    assert sampled(TOPIC_ID) == {"bronze": 5, "target": 5}


def test_of_a_topic_made_anew_nobody_has_anything() -> None:
    assert sampled(OTHER_ID) == {"bronze": 0, "target": 0}


def test_topics_are_sampled_under_the_ids_by_which_ingest_knows_them() -> None:
    assert [topic.id for topic in as_known([TOPIC], {TOPIC.name: f"{TOPIC_ID}#1"})] == [f"{TOPIC_ID}#1"]
    assert as_known([TOPIC], {TOPIC.name: OTHER_ID}) == as_known([TOPIC], {}) == [TOPIC]


def test_a_target_is_not_behind_with_a_topic_that_it_does_not_take() -> None:
    cluster, none = FakeCluster(), dict[SourcePartition, int]()
    cluster.append(AT, None, b"v")
    targets = {"dr": none, "hubs": none}
    rows = sample_rows("f", cluster, [TOPIC], none, targets, False, NOON, lambda target, _topic: target == "dr")  # type: ignore[arg-type]
    assert {row["cluster"] for row in rows.to_pylist() if row["side"] == "target"} == {"dr"}
    assert source_ends(rows)[SOURCE] == 1


def test_the_newest_sample_of_each_incarnation_tells_where_it_ended() -> None:
    def row(topic_id: str | None, log_end: int, minute: int) -> dict[str, object]:
        at = NOON + timedelta(minutes=minute)
        place = {"topic": SOURCE.topic, "topic_id": topic_id, "partition": 0}
        return {**place, "log_start": 1, "log_end": log_end, "at": at}

    rows = [row(TOPIC_ID, 5, 2), row(TOPIC_ID, 9, 1), row(OTHER_ID, 3, 3), row(None, 4, 0)]
    schema = pa.schema([LAG_SAMPLES.field(name) for name in SAMPLED_ENDS])
    assert known_ends(pa.Table.from_pylist(rows, schema=schema)) == {
        SOURCE: KnownEnd(5, NOON + timedelta(minutes=2), 1),  # a log may have been cut: the greatest end proves nothing
        SOURCE._replace(topic_id=OTHER_ID): KnownEnd(3, NOON + timedelta(minutes=3), 1),
        SOURCE._replace(topic_id=""): KnownEnd(4, NOON, 1),
    }
    assert known_ends(pa.Table.from_pylist([], schema=schema)) == {}
