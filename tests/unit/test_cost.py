"""A guard against collapse: calls of Python for a record, on its way in and out; bytes read for a commit. No clock."""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from mirrorlake.clusters import librdkafka_producer
from mirrorlake.config import Cluster
from mirrorlake.consume import Fetch, as_bronze
from mirrorlake.produce import Deadline, Errand, Sender, Shaper
from mirrorlake.records import BRONZE, SourcePartition, TopicPartition
from mirrorlake.tables import BronzeFiles, FolderTables, bronze_properties

SOURCE = SourcePartition("orders", "b3f0c1d2-0000-4000-8000-000000000001", 0)


@pytest.fixture
def silent() -> Iterator[Cluster]:
    """Takes connections and says nothing: records stay in the producer's queue."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Cluster(bootstrap_servers=f"127.0.0.1:{listener.getsockname()[1]}")


def rows(count: int, size: int) -> pa.RecordBatch:
    row = {
        "topic": "orders", "partition": 0, "timestamp": 1_700_000_000_000_000, "timestamp_type": 0, "key": b"k",
        "value": b"v" * size, "headers": [{"key": "trace", "value": b"t"}], "topic_id": SOURCE.topic_id, "batch": 0,
        "ingested_at": 1_700_000_000_000_000,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([{**row, "offset": number} for number in range(count)], schema=BRONZE)


def calls(errand: Errand, batch: pa.RecordBatch) -> int:
    """Calls of Python and C functions while a batch is shaped and handed to a real producer."""
    sender, deadline, target = Sender(errand), Deadline(60), TopicPartition("copy", 0)
    sender.met.add(target)  # as after its first record, which is waited for
    found = calls_of(lambda: sender.send(target, Shaper(errand, SOURCE).shape(batch), deadline))
    assert len(sender.producer) >= batch.num_rows  # events wait in it too
    sender.discard()
    return found


def calls_of(work: Callable[[], Any]) -> int:
    seen = Counter[str]()

    def count(_frame: Any, event: str, _argument: Any) -> None:
        seen[event] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen["call"] + seen["c_call"]


@pytest.mark.parametrize(("size", "most"), [(100, 5), (1000, 5)])
def test_a_record_costs_few_python_calls(size: int, most: int, silent: Cluster) -> None:
    """What a batch costs once is not counted: the difference between two batches is."""
    settings = librdkafka_producer("away", silent)
    errand = Errand("flow", "away", 1, settings, {}, None, True, "src", "dst", 1, 1_048_588, False, 60)
    few, many = 200, 2200
    per_record = (calls(errand, rows(many, size)) - calls(errand, rows(few, size))) / (many - few)
    assert per_record <= most


# --- in ---


class Message:
    """A record as confluent-kafka gives it."""

    def __init__(self, offset: int, size: int) -> None:
        self._offset, self._value = offset, b"v" * size

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        return [("trace", b"t"), ("kind", b"order")]


@pytest.mark.parametrize(("size", "most"), [(100, 7), (1000, 7)])
def test_a_record_costs_few_python_calls_on_its_way_in(size: int, most: int) -> None:
    """One for each thing that is asked of it, and one to count its headers."""
    fetch = Fetch("src", {}, "folder", "zstd", 0, 1_700_000_000_000_000)
    few, many = ([Message(offset, size) for offset in range(count)] for count in (200, 2200))
    as_bronze(few, SOURCE, fetch)  # type: ignore[arg-type]
    one, two = (calls_of(lambda m=messages: as_bronze(m, SOURCE, fetch)) for messages in (few, many))  # type: ignore[misc]
    assert (two - one) / (len(many) - len(few)) <= most


# --- commits ---


def bytes_read(work: Callable[[], Any]) -> int:
    """By this process, delta-rs included."""
    begun = _read_so_far()
    work()
    return _read_so_far() - begun


def _read_so_far() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def table_with(folder: Path, files: int) -> FolderTables:
    """A bronze table of so many files, as its log says."""
    tables = FolderTables(folder)
    tables.ensure("bronze.t", BRONZE, bronze_properties(168))
    table = DeltaTable(tables.folder("bronze.t"))
    adds = [AddAction(f"{n}.parquet", 1000, {}, 0, True, json.dumps(statistics(n))) for n in range(files)]
    table.create_write_transaction(adds, "append", table.schema())
    return tables


def statistics(number: int) -> dict[str, Any]:
    held = {"topic": "orders", "topic_id": SOURCE.topic_id, "partition": 0, "offset": number}
    return {"numRecords": 1, "minValues": held, "maxValues": held, "nullCount": {}}


def one_batch(number: int) -> Callable[[Path], list[Path]]:
    def write(folder: Path) -> list[Path]:
        folder.mkdir()
        pq.write_table(pa.Table.from_batches([rows(10, 100)]), folder / f"{number}.parquet")
        return [folder / f"{number}.parquet"]

    return write


def read_for_a_commit(folder: Path, files: int) -> list[int]:
    """Bytes for a commit, for seeing it, and for seeing that there is no other."""
    tables = table_with(folder, files)
    bronze = BronzeFiles(tables.root / "tables" / "bronze" / "t")
    tables.append_files(one_batch(0), "bronze.t", "guard", 0)
    bronze.refresh()
    committed = bytes_read(lambda: tables.append_files(one_batch(1), "bronze.t", "guard", 1))
    seen = [bytes_read(bronze.refresh), bytes_read(bronze.refresh)]
    assert len(bronze.segments()) == files + 2
    return [committed, *seen]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_a_commit_and_looking_for_it_read_no_more_where_there_are_many_files(tmp_path: Path) -> None:
    few, many = (read_for_a_commit(tmp_path / str(files), files) for files in (10, 3000))
    assert all(more <= less + 1000 for less, more in zip(few, many, strict=True)), (few, many)
