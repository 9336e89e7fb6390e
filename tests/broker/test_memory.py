"""Batches are bounded by bytes as well as by records: large records pass in a small heap."""

from __future__ import annotations

import os
from collections.abc import Callable

from harness import Flow, Record, Records, finish

RECORDS, BYTES = 700, 900_000


def test_many_large_records_pass_in_a_heap_that_could_not_hold_them(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    """630 MB of records through a heap of 640 MiB, to see that nothing holds a whole batch."""
    noise = os.urandom(BYTES)
    sent = (Record(noise[n:] + noise[:n], b"%d" % n, (), 1_700_000_000_000 + n, n % 2) for n in range(RECORDS))
    records.create("source", topic, 2)
    records.send("source", topic, sent, **{"message.max.bytes": 1_000_000})
    flow = make_flow([topic])
    flow.runner["driver_memory"] = "640m"
    code, said = finish(flow.start("--once"), 240)
    assert code == 0, said
    held = records.read("target", f"source.{topic}")
    assert [len(held[number]) for number in (0, 1)] == [RECORDS // 2, RECORDS // 2]
    assert all(record.value[:2] == noise[n : n + 2] for n, record in zip(range(0, RECORDS, 2), held[0], strict=True))
