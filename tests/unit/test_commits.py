"""Files -> commits, once for each transaction; the files here are pyarrow's, Spark's are in tests/spark."""

from __future__ import annotations

import json
import multiprocessing
import uuid
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from mirrorlake.commits import Commits, file_statistics

SCHEMA = pa.schema([("topic", pa.string()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])
COLUMNS = "topic,offset,timestamp"
NOON = datetime(2024, 5, 1, 12, 0, 0, 123456, timezone.utc)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    DeltaTable.create(
        tmp_path, SCHEMA, configuration={"delta.dataSkippingStatsColumns": COLUMNS}, raise_if_key_not_exists=False
    )
    return tmp_path


def write(folder: Path, *offsets: int) -> Path:
    path = folder / f"batch-{uuid.uuid4().hex}" / "part-0.parquet"
    path.parent.mkdir()
    rows = [{"topic": "orders", "offset": offset, "timestamp": NOON} for offset in offsets]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    return path


def offsets(folder: Path) -> list[int]:
    return sorted(DeltaTable(folder).to_pyarrow_table()["offset"].to_pylist())


def test_files_of_one_batch_are_one_commit_and_a_batch_is_committed_once(folder: Path) -> None:
    commits = Commits(folder)
    commits.add([write(folder, 1, 2), write(folder, 3)], "ingest", 0)
    commits.add([write(folder, 1, 2, 3)], "ingest", 0)
    assert offsets(folder) == [1, 2, 3]
    assert DeltaTable(folder).version() == 1
    commits.add([write(folder, 4)], "ingest", 1)
    assert offsets(folder) == [1, 2, 3, 4]


def test_another_process_commit_under_the_same_batch_counts(folder: Path) -> None:
    ours, theirs = Commits(folder), Commits(folder)
    theirs.add([write(folder, 1)], "ingest", 5)
    assert ours.seen("ingest", 5)
    ours.add([write(folder, 1)], "ingest", 5)
    ours.add([write(folder, 2)], "ingest", 6)
    assert offsets(folder) == [1, 2]


def test_a_batch_without_records_is_known_to_the_table(folder: Path) -> None:
    """Spark writes a file also where there is nothing, as after a start at the latest: it is left out."""
    commits = Commits(folder)
    commits.add([], "ingest", 7)
    commits.add([write(folder)], "ingest", 8)
    assert DeltaTable(folder).transaction_version("ingest") == 8
    assert DeltaTable(folder).file_uris() == []


def test_a_commit_that_somebody_replaced_is_made_again(folder: Path) -> None:
    commits = Commits(folder)
    commits.add([write(folder, 1)], "ingest", 0)
    commits.add([write(folder, 2)], "ingest", 1)
    replace_entry(folder, 2)
    assert offsets(folder) == [1], "the second commit is gone"
    commits.add([write(folder, 3)], "ingest", 2)
    assert offsets(folder) == [1, 2, 3]


def replace_entry(folder: Path, version: int) -> None:
    """As a Spark process does that looked before our commit and renames after it."""
    entry = folder / "_delta_log" / f"{version:020}.json"
    entry.write_text(json.dumps({"commitInfo": {"operation": "OPTIMIZE"}}) + "\n")


def test_statistics_of_times_never_end_before_the_record(folder: Path) -> None:
    found = file_statistics(pq.read_metadata(write(folder, 3, 9, 4)), COLUMNS.split(","))
    assert found == {
        "numRecords": 3,
        "minValues": {"topic": "orders", "offset": 3, "timestamp": "2024-05-01T12:00:00.123Z"},
        "maxValues": {"topic": "orders", "offset": 9, "timestamp": "2024-05-01T12:00:00.124Z"},
        "nullCount": {"topic": 0, "offset": 0, "timestamp": 0},
    }


def commit_many(folder: Path, name: str) -> None:
    commits = Commits(folder)
    for version in range(10):
        commits.add([write(folder, version)], name, version)


def test_processes_that_commit_at_once_all_land(folder: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=commit_many, args=(folder, name)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert offsets(folder) == sorted([*range(10), *range(10)])


def test_a_time_beyond_pythons_calendar_leaves_no_statistics_and_is_kept(folder: Path) -> None:
    """Microseconds where Kafka has milliseconds date a record tens of thousands of years on."""
    path = folder / "part.parquet"
    far = pa.array([1_700_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    pq.write_table(pa.Table.from_arrays([pa.array(["orders"]), pa.array([7]), far], schema=SCHEMA), path)
    statistics = file_statistics(pq.read_metadata(path), COLUMNS.split(","))
    assert statistics["minValues"] == statistics["maxValues"] == {"topic": "orders", "offset": 7}
    Commits(folder).add([path], "ingest", 0)
    assert DeltaTable(folder).to_pyarrow_table()["timestamp"].cast(pa.int64()).to_pylist() == [
        1_700_000_000_000_000_000
    ]
