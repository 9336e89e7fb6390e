"""The ingest query's pure parts: offsets, bounds, and what the source lost."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import FakeCluster

from mirrorlake.bronze import (
    BatchSize,
    Ingest,
    Loss,
    as_far_as_known,
    batch_bounds,
    begun_late,
    diagnose,
    ids_after,
    next_bound,
    parse_offsets,
    read_begin,
    read_positions,
    read_seed,
    read_topic_ids,
    records_per_batch,
    sample_record_bytes,
    starting_offsets,
    write_seed,
    write_topic_ids,
)
from mirrorlake.errors import SourceLoss, StateMismatch
from mirrorlake.kafka import TopicInfo
from mirrorlake.records import KnownEnd, SourcePartition, TopicPartition
from mirrorlake.topics import RelaySpec

AT = TopicPartition("orders", 0)
THERE = {"orders": TopicInfo("orders", "id-1", 1, 1)}
POSITIONS = st.dictionaries(
    st.builds(TopicPartition, st.text("ab.-_", min_size=1, max_size=4), st.integers(0, 12)),
    st.integers(0, 2**62),
)


@given(POSITIONS)
def test_offsets_go_to_spark_and_back(positions: dict[TopicPartition, int]) -> None:
    assert parse_offsets(starting_offsets(positions)) == positions


def test_offsets_are_written_as_spark_wants_them() -> None:
    positions = {TopicPartition("b", 0): 5, TopicPartition("a", 10): 1, TopicPartition("a", 2): 7}
    assert json.loads(starting_offsets(positions)) == {"a": {"2": 7, "10": 1}, "b": {"0": 5}}


@pytest.mark.parametrize(
    ("max_records", "max_bytes", "average", "records"),
    [
        (1000, 10**6, 100.0, 1000),
        (1000, 10**6, 10_000.0, 100),
        (1000, 10**6, 10**9, 1),
        (1000, 10**6, 0.0, 1000),
        (1, 1, 1.0, 1),
    ],
)
def test_a_bound_in_bytes_becomes_one_in_records(
    max_records: int, max_bytes: int, average: float, records: int
) -> None:
    assert records_per_batch(max_records, max_bytes, average) == records


@pytest.mark.parametrize(
    ("records", "size", "bound"),
    [
        pytest.param(1000, 10**6, 1000, id="as expected"),
        pytest.param(1000, 2 * 10**6, 1000, id="twice is borne"),
        pytest.param(1000, 10 * 10**6, 100, id="ten times its bytes: a tenth of the records"),
        pytest.param(3, 3 * 900_000, 1, id="a few large ones exceed it too"),
        pytest.param(1, 900_000, 1000, id="one that fits changes nothing"),
        pytest.param(1000, 10**5, 5000, id="full with a tenth: up to the most records"),
        pytest.param(500, 10**4, 1000, id="small, but nothing was waiting"),
        pytest.param(1200, 10**9, 1000, id="planned under another bound"),
    ],
)
def test_the_bound_follows_the_size_of_records(records: int, size: int, bound: int) -> None:
    assert next_bound(1000, BatchSize(records, size), 5000, 10**6) == bound


def test_a_record_larger_than_a_batch_does_not_start_the_query_for_ever() -> None:
    assert next_bound(1, BatchSize(1, 10**9), 5000, 10**6) == 1


# --- loss ---


@pytest.mark.parametrize(
    ("position", "start", "end", "loss"),
    [
        (50, 0, 100, None),
        (50, 50, 100, None),
        (50, 50, 50, None),
        (0, 0, 0, None),
        (50, 51, 100, ("retention", 50, 50)),
        (0, 80, 100, ("retention", 0, 79)),
        (50, 100, 100, ("retention", 50, 99)),
        (50, 0, 49, ("log_truncated", 49, 49)),
        (50, 0, 10, ("log_truncated", 10, 49)),
    ],
)
def test_a_loss_is_named_with_its_exact_range(
    position: int, start: int, end: int, loss: tuple[str, int, int] | None
) -> None:
    found = diagnose({AT: position}, {"orders": "id-1"}, THERE, {AT: start}, {AT: end})
    assert [(item.kind, item.first, item.last) for item in found] == ([loss] if loss else [])


def test_a_deleted_topic_is_a_loss() -> None:
    (loss,) = diagnose({AT: 7}, {"orders": "id-1"}, {}, {}, {})
    assert (loss.kind, loss.topic_id, loss.first) == ("topic_deleted", "id-1", 7)


def test_a_topic_made_anew_is_a_loss_even_where_its_offsets_fit() -> None:
    (loss,) = diagnose({AT: 7}, {"orders": "id-0"}, THERE, {AT: 0}, {AT: 100})
    assert (loss.kind, loss.topic_id) == ("topic_recreated", "id-0")


@pytest.mark.parametrize(
    ("topic_id", "end", "last", "known"),
    [
        ("id-0", 20, 19, "known up to 20 at 2026-01-01T12:00:00+00:00; what came after that is unknown"),
        ("id-0", 7, 7, "nothing was left to read at 2026-01-01T12:00:00+00:00; what came after that is unknown"),
        ("id-1", 20, 7, "what came after 6 is unknown: the log's end was never sampled"),
    ],
    ids=["behind", "all read", "of another incarnation"],
)
def test_of_a_log_that_is_gone_the_newest_sample_tells_the_range(
    topic_id: str, end: int, last: int, known: str
) -> None:
    seen = {SourcePartition("orders", topic_id, 0): KnownEnd(end, datetime(2026, 1, 1, 12, tzinfo=timezone.utc))}
    for topics in ({}, THERE):
        (loss,) = as_far_as_known(diagnose({AT: 7}, {"orders": "id-0"}, topics, {AT: 0}, {AT: 100}), seen)
        assert (loss.first, loss.last, loss.known) == (7, last, known)


def test_a_log_that_is_there_speaks_for_itself() -> None:
    seen = {SourcePartition("orders", "id-1", 0): KnownEnd(100, datetime(2026, 1, 1, tzinfo=timezone.utc))}
    losses = diagnose({AT: 7}, {"orders": "id-1"}, THERE, {AT: 20}, {AT: 30})
    assert as_far_as_known(losses, seen) == losses


@pytest.mark.parametrize(("kept", "now"), [("", "id-1"), ("id-1", "")], ids=["unknown before", "unknown now"])
def test_topic_ids_that_are_not_known_accuse_nobody(kept: str, now: str) -> None:
    topics = {"orders": TopicInfo("orders", now, 1, 1)}
    assert diagnose({AT: 7}, {"orders": kept}, topics, {AT: 0}, {AT: 10}) == []


def test_of_a_topic_that_is_gone_partitions_that_were_never_read_are_losses_too() -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    ends = {(1, 3): KnownEnd(20, at, 3), (2, 0): KnownEnd(0, at), (0, 0): KnownEnd(7, at)}
    seen = {SourcePartition("orders", "id-0", number): end for (number, _), end in ends.items()}
    others = SourcePartition("orders", "id-9", 5), SourcePartition("other", "id-0", 5)
    seen |= dict.fromkeys(others, KnownEnd(9, at))
    losses = as_far_as_known(diagnose({AT: 7}, {"orders": "id-0"}, {}, {}, {}), seen)
    assert [(loss.kind, loss.partition, loss.first, loss.last) for loss in losses] == [
        ("topic_deleted", 0, 7, 7),
        ("topic_deleted", 1, 3, 19),
    ]


def test_a_partition_that_came_later_and_has_lost_its_first_records_is_a_loss() -> None:
    new = [TopicPartition("orders", 1), TopicPartition("orders", 2)]
    for ids, called in (({"orders": "id-1#2"}, "id-1#2"), ({}, "id-1")):
        found = begun_late(new, ids, THERE, {new[0]: 5, new[1]: 0})
        assert found == [Loss("retention", "orders", called, 1, 0, 4)]


@pytest.mark.parametrize(
    ("kind", "kept", "after", "go_on_at"),
    [
        ("retention", "id-1", "id-1", 10),
        ("topic_deleted", "id-1", None, None),
        ("topic_recreated", "id-1", None, None),
        ("topic_deleted", "", "#1", None),
        ("log_truncated", "id-1", "id-1#1", 5),
        ("log_truncated", "id-1#1", "id-1#2", 5),
        ("log_truncated", "", "#1", 5),
    ],
)
def test_where_offsets_come_again_and_no_id_tells_them_apart_a_topic_goes_on_as_a_branch(
    kind: str, kept: str, after: str | None, go_on_at: int | None
) -> None:
    losses = [Loss(kind, "orders", kept, number, 5, 9) for number in (0, 1)]
    known = {"orders": kept, "other": "id-2"}
    assert ids_after(losses, known).get("orders") == after
    assert ids_after(losses, known)["other"] == "id-2"
    assert {loss.go_on_at for loss in losses} == {go_on_at}


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (["", ""], ""),  # a broker before 2.8
        (["", "id-1", ""], "id-1"),  # upgraded, one of its brokers later than the others
        (["id-1", ""], "id-1"),
    ],
)
def test_an_upgrade_that_brings_topic_ids_is_no_new_topic(tmp_path: Path, told: list[str], kept: str) -> None:
    path = tmp_path / "g1"
    for topic_id in told:
        batch_of(path, topic_id)
    assert read_topic_ids(path) == {"orders": kept}
    if kept:
        with pytest.raises(SourceLoss, match="made anew"):
            batch_of(path, "id-2")


def test_a_branch_outlives_what_its_broker_tells(tmp_path: Path) -> None:
    path = tmp_path / "g1"
    write_topic_ids(path, {"orders": "id-1#1"})
    for told in ("id-1", ""):
        batch_of(path, told)
        assert read_topic_ids(path) == {"orders": "id-1#1"}
    with pytest.raises(SourceLoss, match="made anew"):
        batch_of(path, "id-2")


def batch_of(checkpoint: Path, topic_id: str) -> None:
    """What a batch learns of the source, in a process that begins with what the one before kept."""
    source: Any = SimpleNamespace(alias="a", describe=lambda _: {"orders": TopicInfo("orders", topic_id, 1, 1)})
    spec, anything = RelaySpec("f", "bronze.orders", ("orders",)), cast(Any, None)
    Ingest(spec, anything, checkpoint, anything, source, read_topic_ids(checkpoint))._learn_topic_ids(["orders"])


def test_each_partition_is_looked_at_in_order() -> None:
    positions = {TopicPartition("orders", n): 10 for n in (2, 0, 1)}
    starts = {TopicPartition("orders", n): 20 for n in (0, 2)}
    found = diagnose(positions, {}, THERE, starts, {})
    assert [loss.partition for loss in found] == [0, 2]


def test_a_loss_reads_well() -> None:
    assert str(Loss("retention", "orders", "id", 3, 5, 9)) == "orders[3] offsets 5-9 (retention)"


# --- a checkpoint on storage ---


def checkpoint(folder: Path, committed: dict[int, str], planned: dict[int, str]) -> Path:
    """As Spark writes it: an offsets file for each batch begun, a commits file for each one done."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    metadata = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
    for batch, offsets in {**committed, **planned}.items():
        (folder / "offsets" / str(batch)).write_text(f"v1\n{metadata}\n{offsets}")
    for batch in committed:
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (folder / "commits" / f".{batch}.crc").write_text("")
    return folder


def test_a_query_stands_at_the_end_of_its_last_committed_batch(tmp_path: Path) -> None:
    committed = {batch: json.dumps({"orders": {"0": batch * 10, "1": 3}}) for batch in (0, 9, 10)}
    made = checkpoint(tmp_path / "g0", committed, {11: '{"orders":{"0":999,"1":3}}'})
    assert read_positions(made) == {AT: 100, TopicPartition("orders", 1): 3}


def test_a_query_that_committed_nothing_stands_nowhere(tmp_path: Path) -> None:
    assert read_positions(tmp_path / "none") == {}
    assert read_positions(checkpoint(tmp_path / "g0", {}, {0: '{"orders":{"0":5}}'})) == {}


def test_a_query_that_has_done_nothing_yet_is_known_by_its_begin(tmp_path: Path) -> None:
    """So that what the source drops before the first batch is a loss like any other."""
    made = checkpoint(tmp_path / "g0", {}, {0: '{"orders":{"0":50}}'})
    assert read_begin(made) == {}
    (made / "sources" / "0").mkdir(parents=True)
    (made / "sources" / "0" / "0").write_text('v1\n{"orders":{"0":40}}')
    assert read_begin(made) == {AT: 40}
    assert batch_bounds(made, 0) == ({AT: 40}, {AT: 50})


def test_topic_ids_are_kept_beside_the_checkpoint_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "g0"
    assert read_topic_ids(path) == {}
    write_topic_ids(path, {"orders": "id-1"})
    write_topic_ids(path, {"orders": "id-1", "a.b": "id-2"})
    assert read_topic_ids(path) == {"orders": "id-1", "a.b": "id-2"}
    assert [kept.name for kept in tmp_path.iterdir()] == ["g0.topics.json"]
    assert read_topic_ids(tmp_path / "g1") == {}


def test_where_a_query_is_to_begin_is_kept_beside_its_checkpoint(tmp_path: Path) -> None:
    assert read_seed(tmp_path / "g1") == {}
    write_seed(tmp_path / "g1", {AT: 100})
    assert read_seed(tmp_path / "g1") == {AT: 100}


def test_the_average_size_comes_from_the_newest_records() -> None:
    cluster = FakeCluster()
    assert sample_record_bytes(cluster, [AT]) == 1000.0  # type: ignore[arg-type]
    for _ in range(50):
        cluster.append(AT, b"", b"x" * 10_000)
    for _ in range(10):
        cluster.append(AT, b"k" * 10, b"x" * 90)
    assert sample_record_bytes(cluster, [AT]) == 200.0  # type: ignore[arg-type]


@pytest.mark.parametrize("left", ["", "v1", "v1\n{}\nnonsense"], ids=["cut to nothing", "cut", "overwritten"])
@pytest.mark.parametrize("kind", ["offsets", "commits"])
def test_a_damaged_checkpoint_is_said_so_with_what_to_do(tmp_path: Path, left: str, kind: str) -> None:
    made = checkpoint(tmp_path / "g0", {0: '{"orders":{"0":5}}'}, {})
    (made / kind / "0").write_text(left)
    with pytest.raises(StateMismatch, match="is missing or damaged") as fault:
        read_positions(made)
    assert "bronze and the ledger know where to go on" in fault.value.next_step
