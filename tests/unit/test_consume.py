"""Ranges of a batch as tasks and files; records as columns. Reading itself is proven on real brokers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.commits import file_statistics
from mirrorlake.consume import (
    MAX_FILES_PER_BATCH,
    WORTH_SPLITTING,
    Fetch,
    Range,
    Read,
    as_bronze,
    header_column,
    parquet_options,
    plan,
    split,
    truncated_at,
)
from mirrorlake.errors import DataAtRisk, UnreadableRecord
from mirrorlake.produce import header_lists
from mirrorlake.records import BRONZE, BRONZE_STATISTICS, SourcePartition

ORDERS = SourcePartition("orders", "00000000-0000-0000-0000-000000000001", 3)
FETCH = Fetch("source", {}, "folder", "zstd", 7, 1_700_000_000_000_000)


class Message:
    """A record as confluent-kafka gives it."""

    def __init__(
        self, offset: int, key: bytes | None = b"k", value: bytes | None = b"v", headers: Any = None, at: Any = (1, 5)
    ) -> None:
        self._all = {"offset": offset, "key": key, "value": value, "headers": headers, "timestamp": at}

    def __getattr__(self, name: str) -> Any:
        return lambda: self._all[name]


# --- planning ---

ranges = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 10**9), st.integers(1, 300_000)), unique_by=lambda t: t[0]
).map(lambda found: [Range(SourcePartition("t", "id", p), first, first + n) for p, first, n in found])


def offsets_of(pieces: list[Range]) -> dict[SourcePartition, list[tuple[int, int]]]:
    found: dict[SourcePartition, list[tuple[int, int]]] = {}
    for piece in sorted(pieces, key=lambda piece: (piece.source, piece.first)):
        spans = found.setdefault(piece.source, [])
        if spans and spans[-1][1] == piece.first:
            spans[-1] = (spans[-1][0], piece.until)
        else:
            spans.append((piece.first, piece.until))
    return found


@given(ranges, st.integers(1, 16))
def test_every_offset_is_read_once(wanted: list[Range], tasks: int) -> None:
    planned = plan(wanted, tasks)
    assert len(planned) <= tasks
    pieces = [piece for task in planned for file in task for piece in file]
    assert sum(piece.offsets for piece in pieces) == sum(one.offsets for one in wanted)
    assert offsets_of(pieces) == {one.source: [(one.first, one.until)] for one in wanted}


@given(ranges, st.integers(1, 16))
def test_a_batch_leaves_a_bounded_number_of_files_and_no_task_without_work(wanted: list[Range], tasks: int) -> None:
    planned = plan(wanted, tasks)
    assert sum(len(task) for task in planned) <= MAX_FILES_PER_BATCH
    assert all(task and all(file for file in task) for task in planned)


def test_few_partitions_have_a_file_each_and_tasks_share_them_evenly() -> None:
    wanted = [Range(SourcePartition("t", "id", n), 0, 1000) for n in range(4)]
    planned = plan(wanted, 2)
    assert [len(task) for task in planned] == [2, 2]
    assert all(len(file) == 1 for task in planned for file in task)


def test_one_large_partition_is_read_by_all_tasks_and_a_small_one_is_not_cut() -> None:
    large, small = Range(ORDERS, 10, 10 + 4 * WORTH_SPLITTING), Range(ORDERS, 10, 10 + WORTH_SPLITTING)
    assert [[file[0].offsets for file in task] for task in plan([large], 2)] == [[2 * WORTH_SPLITTING]] * 2
    assert plan([small], 2) == [[[small]]]


def test_an_empty_batch_has_no_tasks() -> None:
    assert plan([], 2) == []


# --- columns ---


def test_a_record_keeps_every_field() -> None:
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    rows = as_bronze(
        [
            Message(5, None, None, None, (1, -1)),
            Message(9, b"", b"", headers, (2, 1_700_000_000_123)),
        ],  # type: ignore[list-item]
        ORDERS,
        FETCH,
    )
    assert rows.schema == BRONZE
    first, second = rows.to_pylist()
    assert (first["key"], first["value"], first["headers"]) == (None, None, None)
    assert (second["key"], second["value"]) == (b"", b"")
    assert [(h["key"], h["value"]) for h in second["headers"]] == headers
    assert (first["offset"], second["offset"]) == (5, 9)
    assert (first["timestamp_type"], second["timestamp_type"]) == (0, 1)
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [-1000, 1_700_000_000_123_000]
    assert {row["topic"] for row in rows.to_pylist()} == {"orders"}
    assert (first["topic_id"], first["partition"], first["batch"]) == (ORDERS.topic_id, 3, 7)


names = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=4)


@given(st.lists(st.none() | names, max_size=8))
def test_headers_come_back_as_they_were(lists: list[Any]) -> None:
    assert header_lists(header_column(lists)) == [listed or [] for listed in lists]


def test_a_header_name_that_is_no_text_is_said() -> None:
    class Odd(Message):
        def headers(self) -> Any:
            b"\xff".decode()

    with pytest.raises(UnreadableRecord, match="not UTF-8"):
        as_bronze([Message(10), Odd(11)], ORDERS, FETCH)  # type: ignore[list-item]


@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4_raw", "uncompressed"])
def test_a_file_has_statistics_where_planning_needs_them_and_nowhere_else(tmp_path: Path, codec: str) -> None:
    rows = as_bronze([Message(n, b"%d" % n, b"x" * 100, [("h", b"1")]) for n in range(50)], ORDERS, FETCH)  # type: ignore[misc]
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(path, BRONZE, **parquet_options(codec)) as writer:
        writer.write_batch(rows)
    read = pq.read_metadata(path)
    kept = file_statistics(read, BRONZE_STATISTICS.split(","))
    assert kept["minValues"].keys() == set(BRONZE_STATISTICS.split(","))
    assert (kept["minValues"]["offset"], kept["maxValues"]["offset"], kept["numRecords"]) == (0, 49, 50)
    group = read.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert {name for name, column in columns.items() if column.statistics} == set(BRONZE_STATISTICS.split(","))
    assert Counter(column.compression for column in columns.values()).keys() == {
        {"lz4_raw": "LZ4", "uncompressed": "UNCOMPRESSED"}.get(codec, codec.upper())
    }
    assert not columns["value"].has_dictionary_page
    assert columns["headers.list.element.key"].has_dictionary_page


def test_a_time_that_no_table_can_hold_stops_with_where_it_is() -> None:
    """Nanoseconds where Kafka has milliseconds: multiplied they would be some other time, in silence."""
    messages: Any = [Message(1), Message(2, at=(1, 1_700_000_000_000_000_000))]
    with pytest.raises(DataAtRisk, match=r"orders.*offset 2 has the timestamp 1700000000000000000 ms") as told:
        as_bronze(messages, ORDERS, FETCH)
    assert told.value.next_step


# --- a log that was cut and has grown again ---


def test_librdkafkas_sentence_about_a_cut_log_says_where() -> None:
    said = (
        "Partition log truncation detected at offset 150 (leader epoch 0): broker end offset is 100 "
        "(offset leader epoch 0). Reset to INVALID.: Local: Partition log truncation detected (broker 0)"
    )
    assert truncated_at(said) == 100
    assert truncated_at("fetch failed due to requested offset not available on the broker") is None


def test_only_the_first_piece_of_a_range_is_read_after_what_was_read_before() -> None:
    whole = Range(ORDERS, 100, 100 + 3 * WORTH_SPLITTING, after=Read(98, 4))
    pieces = split(whole, whole.offsets, 3)
    assert [piece.after for piece in pieces] == [Read(98, 4), None, None]
