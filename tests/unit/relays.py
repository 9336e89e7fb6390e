"""A fan-out over a real bronze folder and ledger; the target is made of lists, and tasks run here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any

from deltalake import write_deltalake
from samples import (
    SOURCE,
    TARGET,
    FakeCluster,
    bronze_batch,
    bronze_row,
    bronze_table,
    errand,
)

from mirrorlake.account import Account, Outbox
from mirrorlake.beginnings import Beginnings
from mirrorlake.doubts import Doubts
from mirrorlake.errors import (
    DeliveryDoubt,
)
from mirrorlake.fanout import FanOut, Fence, Pace
from mirrorlake.kafka import TopicInfo
from mirrorlake.ledger import LedgerWriter, fold, read
from mirrorlake.missing import Places
from mirrorlake.produce import Errand, Outcome, Outgoing, Shaper, Slice, _checked_ends, _prove, note
from mirrorlake.readers import BronzeInFolder
from mirrorlake.records import BRONZE, LEDGER, SourcePartition, TopicPartition
from mirrorlake.tables import FolderTables, read_ordered


def land(cluster: FakeCluster, target: TopicPartition, shaped: Outgoing) -> None:
    for number, row in enumerate(zip(shaped.keys, shaped.values, shaped.headers, strict=True)):
        if shaped.goes_out(number):
            cluster.append(target, *row)


class BronzeSentHere(BronzeInFolder):
    """The real folder; what the tasks would do is done here, one after the other, with the list as a producer."""

    def __init__(self, folder: Path, cluster: FakeCluster) -> None:
        super().__init__(None, folder)  # type: ignore[arg-type]
        self.cluster: Any = cluster

    def send(self, errand: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        return [self._send(errand, slice_) for task in tasks for slice_ in task]

    def _send(self, errand: Errand, slice_: Slice) -> Outcome:
        outcome = Outcome(slice_.source)
        try:
            before = _checked_ends(self.cluster, [slice_])
        except DeliveryDoubt as fault:
            outcome.error = f"DeliveryDoubt: {fault}"
            return outcome
        sent: list[int] = []
        for batch in read_ordered(slice_.segments, slice_.first, slice_.until):
            shaped = Shaper(errand, slice_.source).shape(batch)
            land(self.cluster, slice_.target, shaped)
            sent += note(shaped, outcome)
        _prove(errand, self.cluster, slice_, sent, before, self.cluster.log_ends([slice_.target]), outcome)
        return outcome


ONE_PARTITION = Places({"orders": TopicInfo("src.orders", "target-id", 1, 1)})


def some(part: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Those that this part of a fan-out has."""
    return {field.name: fields[field.name] for field in dataclasses.fields(part) if field.name in fields}


class Relay:
    """A fan-out over a real bronze folder and ledger; the target is made of lists and Spark is left out."""

    def __init__(self, root: Path, cluster: FakeCluster, epoch: int = 1, **fields: Any) -> None:
        tables = FolderTables(root)
        tables.ensure("bronze.t", BRONZE, {})
        tables.ensure("ops.ledger", LEDGER, {})
        self.folder, self.cluster, self.tables = root / "tables" / "bronze" / "t", cluster, tables
        self.incidents: list[tuple[Any, ...]] = []
        self.dead_letters: list[int] = []
        self.paused: set[str] = set()
        made: dict[str, Any] = {
            "errand": errand(epoch=epoch),
            "bronze": BronzeSentHere(self.folder, cluster),
            "cluster": cluster,
            "ledger": LedgerWriter(tables, "ops.ledger", 30.0),
            "book": fold(read(tables, "ops.ledger", "f", "dr")),
            "outbox": Outbox(
                lambda *what: self.incidents.append(what),
                lambda _errand, _source, _topic, refused: self.dead_letters.extend(offset for offset, _, _ in refused),
            ),
            "limit_of": lambda _topic: 1_000_000,
        }
        self.account = Account(**{**made, **some(Account, fields)})
        given = {"target_topics": lambda _asked: ONE_PARTITION, "paused": lambda topic: topic in self.paused}
        self.beginnings = Beginnings(self.account, **{**given, **some(Beginnings, fields)})
        history = {"history": list, "begin": self.beginnings}
        self.doubts = Doubts(self.account, **{**history, **some(Doubts, fields)})
        pace, fence = Pace(**some(Pace, fields)), Fence(**some(Fence, fields))
        self.fan_out = FanOut(self.account, self.beginnings, self.doubts, pace, fence, **some(FanOut, fields))

    def ingest(self, *offsets: int, source: SourcePartition = SOURCE) -> None:
        self.ingest_rows(*(bronze_row(offset, source) for offset in offsets))

    def ingest_rows(self, *rows: dict[str, Any]) -> None:
        write_deltalake(self.folder, bronze_table(rows), mode="append")

    def lands(self, *offsets: int, source: SourcePartition = SOURCE, target: TopicPartition = TARGET) -> None:
        """These records reach the target, and nobody writes it down."""
        rows = [bronze_row(offset, source) for offset in offsets]
        land(self.cluster, target, Shaper(self.account.errand, source).shape(bronze_batch(rows)))

    def deliver(self) -> list[bytes | None]:
        """One call, which must end by itself; returns what the target then holds."""
        giving_up = Timer(5, self.fan_out.stopping.set)
        giving_up.start()
        self.fan_out.deliver()
        giving_up.cancel()
        self.account.ledger.flush()
        assert not self.fan_out.stopping.is_set(), self.fan_out.progress.waiting
        return [message.value() for message in self.cluster.logs.get(TARGET, [])]


def values(*offsets: int) -> list[bytes]:
    return [b"v%d" % offset for offset in offsets]


def large(offset: int) -> dict[str, Any]:
    return bronze_row(offset, value=b"x" * 5000)


SMALL = {"errand": errand(dead_letters=True), "limit_of": lambda _topic: 2000}


class Killed(BaseException):
    """The process ends here."""


def killed(*_: object) -> None:
    raise Killed
