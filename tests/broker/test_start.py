"""Where a flow begins, and how fast it may go."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from harness import Flow, Records, by_partition, wait_until

from mirrorlake.records import TopicPartition


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
    """Watched on the target, where they would otherwise arrive all at once."""
    rate, total = 100, 600
    records.create("source", topic)
    records.send("source", topic, records.numbered(total))
    # A file of bronze is sent whole, however many records the target may get: here each has a second's worth.
    flow = make_flow([topic], target={"rate_limit_records_per_second": rate}, ingest={"max_records_per_batch": rate})
    seen: list[tuple[float, int]] = []

    def all_arrived() -> bool:
        arrived = log_end(records, f"source.{topic}")
        seen.append((time.monotonic(), arrived))
        return arrived == total

    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(flow.run_once)
        wait_until(lambda: all_arrived() or running.done(), "the records")
        running.result()
    # A round is what may go in a second, and goes at once: two of them may be a moment apart.
    begun = next(before for (before, _), (_, arrived) in pairwise(seen) if arrived)
    since = [(at - begun, arrived) for at, arrived in seen if arrived]
    assert [(seconds, arrived) for seconds, arrived in since if arrived > rate * (seconds + 2)] == []
    assert since[-1][0] > (total - 2 * rate) / rate
    assert records.read("target", f"source.{topic}")[0] == records.numbered(total)


def log_end(records: Records, topic: str) -> int:
    """Of its only partition; 0 before it is made."""
    if not records.arrived("target", topic, 1):
        return 0
    place = TopicPartition(topic, 0)
    return records.cluster("target").log_ends([place])[place]
