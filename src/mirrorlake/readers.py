"""Bronze as the fan-out reads it: Parquet files opened by the Python workers, or rows that Spark hands them.

Both end in the same sender, `produce.deliver`. A folder is the fast way; where storage is governed only Spark may read.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorlake.errors import DeliveryDoubt
from mirrorlake.produce import Errand, Outcome, Slice, deliver
from mirrorlake.records import SourcePartition
from mirrorlake.session import on_workers
from mirrorlake.tables import RECORD_COLUMNS, BronzeFiles, Readable, Segment, read_ordered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Bronze(Readable, Protocol):
    """The bronze table as the fan-out needs it."""

    followed_from: int
    """The version up to which the segments are known: the stream begins here, so that no commit falls between."""

    def see(self, frame: DataFrame) -> None:
        """Learn what a commit of the followed stream added."""

    def forget(self, delivered: Mapping[SourcePartition, int]) -> None:
        """What lies before these offsets will not be asked for again, unless after `reindex`."""

    def reindex(self) -> None:
        """Pin the newest version, and know all that it holds again."""

    def came_at_ms(self, segment: Segment) -> int:
        """When bronze got the first of the segment's records."""

    def send(self, errand: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        """Deliver the slices, a Spark task for each list."""


class BronzeInFolder(BronzeFiles):
    """Parquet files that the Python workers open themselves: records do not pass through the JVM again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(folder)
        self._spark = spark
        self.followed_from = self.refresh()

    def see(self, frame: DataFrame) -> None:
        """The log says it already."""

    def came_at_ms(self, segment: Segment) -> int:
        of_source = [(column, "=", getattr(segment.source, column)) for column in SOURCE_COLUMNS]
        came = pq.read_table(segment.path, columns=["ingested_at"], filters=of_source)["ingested_at"]
        return pc.min(came.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())).as_py() or 0

    def send(self, errand: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        def work(slices: Sequence[Slice]) -> list[Outcome]:
            refuse_retries()
            return deliver(errand, [(slice_, _reader(slice_)) for slice_ in slices])

        return on_workers(self._spark, tasks, work)


def _reader(slice_: Slice) -> Callable[[], Iterable[pa.RecordBatch]]:
    return lambda: read_ordered(slice_.segments, slice_.first, slice_.until)


@dataclass(frozen=True)
class Span:
    """What a table holds of one source partition."""

    first: int
    last: int
    records: int


class BronzeInCatalog:
    """Governed storage: only Spark may read, so rows are shuffled to their task, sorted, and handed over by Arrow.

    One span for each source partition is kept, whatever the table's size: rounds cut it where they like. What the
    stream shows counts from the next `refresh`, which pins a version that has it.
    """

    _READ_BYTES = 32 << 20
    _BATCH_BYTES = 8 << 20

    def __init__(self, spark: SparkSession, identifier: str) -> None:
        # A session of its own: how many rows make an Arrow batch depends on this table's records.
        self._spark = spark.newSession()
        self._identifier = identifier
        self._seen: deque[tuple[SourcePartition, Span]] = deque()
        self._newest_bytes = 0.0
        self._version = self.followed_from = self._newest()
        self._held = dict(self._spans(self._at_version()))
        self._mean_bytes = self._table_bytes() / max(1, sum(span.records for span in self._held.values()))

    def _newest(self) -> int:
        row = self._spark.sql(f"DESCRIBE HISTORY {self._identifier} LIMIT 1").collect()[0]
        wrote = row["operationMetrics"] or {}
        if int(wrote.get("numOutputRows", 0)):
            self._newest_bytes = int(wrote.get("numOutputBytes", 0)) / int(wrote["numOutputRows"])
        return int(row["version"])

    def _table_bytes(self) -> int:
        return int(self._spark.sql(f"DESCRIBE DETAIL {self._identifier}").collect()[0]["sizeInBytes"])

    def _record_bytes(self) -> int:
        """Of a record, stored; the larger of the table's mean and the newest commit's, since records may grow."""
        return max(1, int(max(self._mean_bytes, self._newest_bytes)))

    def _at_version(self) -> DataFrame:
        return self._spark.sql(f"SELECT * FROM {self._identifier} VERSION AS OF {self._version}")  # noqa: S608

    def refresh(self) -> int:
        """First what was seen, then the version: so the version has all of it."""
        learned = [self._seen.popleft() for _ in range(len(self._seen))]
        self._version = self._newest()
        for source, span in learned:
            self._learn(source, span)
        return self._version

    def see(self, frame: DataFrame) -> None:
        self._seen.extend(self._spans(frame, "batch"))

    def _learn(self, source: SourcePartition, span: Span) -> None:
        """Batches come in offset order. The stream shows some again: the one it began at, and after a restart more."""
        held = self._held.get(source)
        if held is None:
            self._held[source] = span
        elif span.last > held.last:
            self._held[source] = Span(held.first, span.last, held.records + span.records)

    def _spans(self, frame: DataFrame, *cut_by: str) -> list[tuple[SourcePartition, Span]]:
        from pyspark.sql import functions as F  # noqa: N812

        rows = frame.groupBy(*SOURCE_COLUMNS, *cut_by).agg(
            F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("records")
        )
        return [
            (
                SourcePartition(*(row[column] for column in SOURCE_COLUMNS)),
                Span(row["first"], row["last"], row["records"]),
            )
            for row in sorted(rows.collect(), key=lambda row: row["first"])
        ]

    def forget(self, delivered: Mapping[SourcePartition, int]) -> None:
        """One span for each source partition is kept, and no more."""

    def reindex(self) -> None:
        self.refresh()  # nothing was forgotten

    def came_at_ms(self, segment: Segment) -> int:
        held = _is_slice(segment.source, segment.first_offset, segment.last_offset + 1)
        row = self._at_version().where(held).selectExpr("unix_millis(min(ingested_at)) AS at_ms").collect()[0]
        return int(row["at_ms"] or 0)

    def segments(self) -> list[Segment]:
        record_bytes = self._record_bytes()
        return [
            Segment("", source, span.first, span.last, span.records, span.records * record_bytes, alone=False)
            for source, span in list(self._held.items())
        ]

    def read(self, source: SourcePartition, first: int, until: int) -> Iterator[pa.RecordBatch]:
        """Some offsets at a time: a driver cannot hold what a target misses after an outage."""
        held = next((segment for segment in self.segments() if segment.source == source), None)
        if held is None:
            return
        end, step = min(until, held.last_offset + 1), held.offsets_within(self._READ_BYTES)
        for begin in range(max(first, held.first_offset), end, step):
            frame = self._at_version().where(_is_slice(source, begin, min(begin + step, end))).orderBy("offset")
            yield from (batch for batch in frame.select(*RECORD_COLUMNS).toArrow().to_batches() if batch.num_rows)

    def send(self, errand: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        slices = {slice_.source: slice_ for task in tasks for slice_ in task}

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            refuse_retries()
            for source, pieces in by_source(batches):
                yield as_rows(deliver(errand, [(slices[source], partial(iter, pieces))]))

        rows = max(1, min(10_000, self._BATCH_BYTES // self._record_bytes()))
        self._spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows)
        conditions = [_is_slice(s.source, s.first, s.until) for s in slices.values()]
        frame = self._at_version().where(" OR ".join(conditions)).repartition(len(tasks), *SOURCE_COLUMNS)
        ordered = frame.sortWithinPartitions(*SOURCE_COLUMNS, "offset").select(*SOURCE_COLUMNS, *RECORD_COLUMNS)
        outcomes = outcomes_of(ordered.mapInArrow(work, OUTCOMES).collect())
        return outcomes + _without_records(slices.values(), outcomes)


def _without_records(slices: Iterable[Slice], outcomes: Iterable[Outcome]) -> list[Outcome]:
    """A span is cut at any offset, so a slice may lie in a gap: nothing was due, and the position moves past it."""
    told = {outcome.source for outcome in outcomes}
    return [Outcome(s.source, target_end=s.expected_end) for s in slices if s.source not in told]


SOURCE_COLUMNS = ("topic", "topic_id", "partition")
OUTCOMES = "outcome string"


def _is_slice(source: SourcePartition, first: int, until: int) -> str:
    """A condition in SQL; topics and their ids are made of letters, digits, dots, dashes and underscores only."""
    return (
        f"(topic = '{source.topic}' AND topic_id = '{source.topic_id}' AND partition = {source.partition} "
        f"AND offset >= {first} AND offset < {until})"
    )


def by_source(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[SourcePartition, Iterator[pa.RecordBatch]]]:
    """Sorted rows cut where the source partition changes; nothing is gathered, so take a source's pieces first."""
    cuts = (cut for batch in batches for cut in _cuts(batch))
    for source, pieces in groupby(cuts, key=itemgetter(0)):
        yield source, (piece for _, piece in pieces)


def _cuts(batch: pa.RecordBatch) -> Iterator[tuple[SourcePartition, pa.RecordBatch]]:
    keys = list(zip(*(batch[column].to_pylist() for column in SOURCE_COLUMNS), strict=True))
    begin = 0
    for row in range(1, len(keys) + 1):
        if row == len(keys) or keys[row] != keys[begin]:
            yield SourcePartition(*keys[begin]), batch.slice(begin, row - begin).select(RECORD_COLUMNS)
            begin = row


def as_rows(outcomes: Sequence[Outcome]) -> pa.RecordBatch:
    texts = [json.dumps(outcome.to_json()) for outcome in outcomes]
    return pa.RecordBatch.from_pydict({"outcome": pa.array(texts, pa.string())})


def outcomes_of(rows: Iterable[Any]) -> list[Outcome]:
    return [Outcome.from_json(json.loads(row["outcome"])) for row in rows]


def refuse_retries() -> None:
    """Spark may run a task again without asking: what the first attempt sent is for recovery to find out."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise DeliveryDoubt(f"task attempt {context.attemptNumber()}: an earlier attempt may have sent records")
