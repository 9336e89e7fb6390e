"""Bronze as the fan-out reads it: Parquet files opened by the Python workers, or rows that Spark hands them.

Both end in the same sender, `produce.deliver`. A folder is the fast way; where storage is governed only Spark may read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from mirrorlake.errors import DeliveryDoubt
from mirrorlake.produce import Errand, Outcome, Slice, deliver
from mirrorlake.records import SourcePartition
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
        """What lies before these offsets will not be asked for again."""

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

    def send(self, errand: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            refuse_retries()
            for batch in batches:
                for number in batch["id"].to_pylist():
                    yield as_rows(deliver(errand, [(s, _reader(s)) for s in tasks[number]]))

        count = len(tasks)
        return outcomes_of(self._spark.range(0, count, 1, count).mapInArrow(work, OUTCOMES).collect())


def _reader(slice_: Slice) -> Callable[[], Iterable[pa.RecordBatch]]:
    return lambda: read_ordered(slice_.segments, slice_.first, slice_.until)


class BronzeInCatalog:
    """Governed storage: only Spark may read, so rows are shuffled to their task, sorted, and handed over by Arrow."""

    _AVERAGE_BYTES = 1000  # of a record, for planning; sizes would need the values themselves

    def __init__(self, spark: SparkSession, identifier: str) -> None:
        self._spark = spark
        self._identifier = identifier
        self._version = self.followed_from = self._newest()
        self._segments = self._ranges(self._at_version())

    def _newest(self) -> int:
        return int(self._spark.sql(f"DESCRIBE HISTORY {self._identifier} LIMIT 1").collect()[0]["version"])

    def _at_version(self) -> DataFrame:
        return self._spark.sql(f"SELECT * FROM {self._identifier} VERSION AS OF {self._version}")  # noqa: S608

    def refresh(self) -> int:
        self._version = self._newest()
        return self._version

    def see(self, frame: DataFrame) -> None:
        self._segments += self._ranges(frame)

    def _ranges(self, frame: DataFrame) -> list[Segment]:
        from pyspark.sql import functions as F  # noqa: N812

        rows = frame.groupBy(*SOURCE_COLUMNS).agg(
            F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("records")
        )
        return [
            Segment(
                "", SourcePartition(row["topic"], row["topic_id"], row["partition"]), row["first"], row["last"],
                row["records"], row["records"] * self._AVERAGE_BYTES, alone=False,
            )
            for row in rows.collect()
        ]  # fmt: skip

    def forget(self, delivered: Mapping[SourcePartition, int]) -> None:
        """Nothing is kept for each commit."""

    def segments(self) -> list[Segment]:
        return list(self._segments)

    def read(self, source: SourcePartition, first: int, until: int) -> Iterable[pa.RecordBatch]:
        frame = self._at_version().where(_is_slice(source, first, until)).orderBy("offset")
        return (batch for batch in frame.select(*RECORD_COLUMNS).toArrow().to_batches() if batch.num_rows)

    def send(self, errand: Errand, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        slices = {slice_.source: slice_ for task in tasks for slice_ in task}

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            refuse_retries()
            for source, held in by_source(batches):
                yield as_rows(deliver(errand, [(slices[source], partial(iter, held))]))

        conditions = [_is_slice(s.source, s.first, s.until) for s in slices.values()]
        frame = self._at_version().where(" OR ".join(conditions)).repartition(len(tasks), *SOURCE_COLUMNS)
        ordered = frame.sortWithinPartitions(*SOURCE_COLUMNS, "offset").select(*SOURCE_COLUMNS, *RECORD_COLUMNS)
        return outcomes_of(ordered.mapInArrow(work, OUTCOMES).collect())


SOURCE_COLUMNS = ("topic", "topic_id", "partition")
OUTCOMES = "outcome string"


def _is_slice(source: SourcePartition, first: int, until: int) -> str:
    """A condition in SQL; topics and their ids are made of letters, digits, dots, dashes and underscores only."""
    return (
        f"(topic = '{source.topic}' AND topic_id = '{source.topic_id}' AND partition = {source.partition} "
        f"AND offset >= {first} AND offset < {until})"
    )


def by_source(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[SourcePartition, list[pa.RecordBatch]]]:
    """Sorted rows cut where the source partition changes."""
    current: SourcePartition | None = None
    held: list[pa.RecordBatch] = []
    for source, piece in (cut for batch in batches for cut in _cuts(batch)):
        if held and source != current:
            yield current, held  # type: ignore[misc]
            held = []
        current = source
        held.append(piece)
    if held and current is not None:
        yield current, held


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
