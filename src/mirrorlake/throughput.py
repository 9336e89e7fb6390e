"""How much each target got, and when. The ledger joins its runs, so it keeps no history of that."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timezone

import pyarrow as pa

from mirrorlake.ledger import RELAY, Entry
from mirrorlake.records import DELIVERIES


class Meter:
    """Counts what the ledger wrote down, by flow, target and minute, until somebody takes the counts away."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc)) -> None:
        self._clock = clock
        self._counts: Counter[tuple[str, str, datetime]] = Counter()
        self._lock = threading.Lock()

    def count(self, entries: Iterable[Entry]) -> None:
        minute = self._clock().replace(second=0, microsecond=0)
        with self._lock:
            for entry in entries:
                if entry.kind == RELAY:
                    self._counts[entry.flow, entry.target, minute] += entry.count

    def take(self) -> pa.Table:
        """What was counted since the last time."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        rows = [
            {"flow": flow, "target": target, "records": records, "at": minute}
            for (flow, target, minute), records in counts.items()
        ]
        return pa.Table.from_pylist(rows, schema=DELIVERIES)
