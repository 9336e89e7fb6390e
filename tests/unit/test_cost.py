"""A guard against collapse: how many calls Python makes for one record on its way out. Counts, no clock."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from mirrorlake.clusters import librdkafka_producer
from mirrorlake.config import Cluster
from mirrorlake.produce import Deadline, Errand, Sender, Shaper
from mirrorlake.records import BRONZE, SourcePartition, TopicPartition

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
    sender, seen = Sender(errand), Counter[str]()

    def count(_frame: Any, event: str, _argument: Any) -> None:
        seen[event] += 1

    deadline, target = Deadline(60), TopicPartition("copy", 0)
    sender.met.add(target)  # as after its first record, which is waited for
    sys.setprofile(count)
    try:
        sender.send(target, Shaper(errand, SOURCE).shape(batch), deadline)
    finally:
        sys.setprofile(None)
    assert len(sender.producer) >= batch.num_rows  # events wait in it too
    sender.discard()
    return seen["call"] + seen["c_call"]


@pytest.mark.parametrize(("size", "most"), [(100, 5), (1000, 5)])
def test_a_record_costs_few_python_calls(size: int, most: int, silent: Cluster) -> None:
    """What a batch costs once is not counted: the difference between two batches is."""
    settings = librdkafka_producer("away", silent)
    errand = Errand("flow", "away", 1, settings, {}, None, True, "src", "dst", 1, 1_048_588, False, 60)
    few, many = 200, 2200
    per_record = (calls(errand, rows(many, size)) - calls(errand, rows(few, size))) / (many - few)
    assert per_record <= most
