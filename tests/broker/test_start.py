"""Where a flow begins, and how fast it may go."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness import Flow, Records, by_partition, count


def test_replicate_from_latest(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    """Exactly what comes after the start, in each partition; also where a restart comes before the first record."""
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(20, 2))
    flow = make_flow([topic], start="latest")
    flow.run_once()
    late = records.numbered(7, 2, first=20)
    records.send("source", topic, late)
    flow.run_once()
    assert records.read("target", f"source.{topic}") == by_partition(late)
    assert flow.audit().ok


def test_a_flow_begins_at_a_time(make_flow: Callable[..., Flow], records: Records, topic: str) -> None:
    records.create("source", topic, 2)
    sent = records.numbered(20, 2)
    records.send("source", topic, sent)
    # The records are a millisecond apart, the first of them at this second.
    flow = make_flow([topic], start="2023-11-14T22:13:20.012Z")
    flow.run_once()
    assert records.read("target", f"source.{topic}") == by_partition(sent[12:])
    assert flow.audit().ok


def test_a_target_gets_no_more_records_in_a_second_than_it_may(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(400))
    flow = make_flow([topic], target={"rate_limit_records_per_second": 100}, ingest={"max_records_per_batch": 100})
    begun = time.monotonic()
    flow.run_once()
    assert time.monotonic() - begun > 3
    assert count(records.read("target", f"source.{topic}")) == 400
