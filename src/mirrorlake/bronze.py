"""Kafka -> Delta: one ingest query for each bronze table.

The query plans batches and keeps its own position (Spark's checkpoint); a batch is appended once for each (transaction
id, batch). In a folder Python workers read its ranges; where storage is governed Spark's Kafka source does.
What the source dropped before it was read is never passed over: `diagnose` names the exact range.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.consume import MAX_FILES_PER_BATCH, Fetch, Fetched, Range, Read, cut_at, fetch_files, plan
from mirrorlake.errors import ClusterUnreachable, SourceLoss, StateMismatch, UnreadableRecord, from_text
from mirrorlake.failpoints import hit
from mirrorlake.kafka import ABSENT_SECONDS, Cluster, TopicInfo, is_same_topic
from mirrorlake.records import KnownEnd, SourcePartition, TopicPartition, known_id, next_branch, trunk
from mirrorlake.session import on_workers
from mirrorlake.streams import StreamId, reporting
from mirrorlake.tables import FolderTables, Tables
from mirrorlake.topics import RelaySpec, topics_now

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# --- shaping: pure ---


def shape_bronze(frame: DataFrame, topic_ids: Mapping[str, str], batch_id: int) -> DataFrame:
    """A batch of Spark's Kafka source as bronze rows."""
    from pyspark.sql import functions as F  # noqa: N812

    return frame.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        _topic_id(topic_ids).alias("topic_id"),
        F.current_timestamp().alias("ingested_at"),
        F.lit(batch_id).cast("bigint").alias("batch"),
    )


def _topic_id(topic_ids: Mapping[str, str]) -> Any:
    """The id known for the row's topic. A wrong id, or none, would stay for ever: without one the batch fails.

    It happens where a topic goes, or comes, between the plan of a batch and our question; the batch runs again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    pairs = [F.lit(text) for pair in topic_ids.items() for text in pair]
    known = F.create_map(*pairs).cast("map<string,string>")
    unknown = F.concat(F.lit("the id of topic "), "topic", F.lit(" is not known"))
    return F.coalesce(known[F.col("topic")], F.raise_error(unknown))


def records_per_batch(max_records: int, max_bytes: int, average_bytes: float) -> int:
    """Spark's source counts records only, so the bound in bytes becomes one in records."""
    return max(1, min(max_records, int(max_bytes / max(1.0, average_bytes))))


@dataclass(frozen=True)
class BatchSize:
    """What one batch held."""

    records: int
    bytes: int


def next_bound(bound: int, batch: BatchSize, max_records: int, max_bytes: int) -> int:
    """The bound in records for the batches after this one: the same, unless the records are of another size now.

    A change costs a restart of the query, so it waits until a batch held twice its bytes, or was full with a quarter.
    """
    if batch.records > bound:
        return bound  # planned before the last change
    fitting = records_per_batch(max_records, max_bytes, batch.bytes / max(1, batch.records))
    too_large = batch.bytes > 2 * max_bytes and fitting < bound
    too_small = batch.records >= 0.9 * bound and fitting >= 4 * bound
    return fitting if too_large or too_small else bound


def starting_offsets(positions: Mapping[TopicPartition, int]) -> str:
    """Offsets in the JSON that Spark's Kafka source takes and gives."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(nested)


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, offsets in json.loads(text).items()
        for partition, offset in offsets.items()
    }


RETENTION, LOG_TRUNCATED = "retention", "log_truncated"
TOPIC_DELETED, TOPIC_RECREATED = "topic_deleted", "topic_recreated"
GONE = frozenset({TOPIC_DELETED, TOPIC_RECREATED})


@dataclass(frozen=True)
class Loss:
    """Source records that were dropped before they were read."""

    kind: str
    topic: str
    topic_id: str
    partition: int
    first: int
    last: int
    """Where nothing is known of the records themselves: `first`, as the place from which on they are missing."""
    known: str = ""
    """How far the range can be trusted, where the log is gone and cannot be asked."""

    @property
    def source(self) -> SourcePartition:
        return SourcePartition(self.topic, self.topic_id, self.partition)

    @property
    def go_on_at(self) -> int | None:
        """In the log as it is now; None where that is another one, which is read from its begin."""
        return {RETENTION: self.last + 1, LOG_TRUNCATED: self.first}.get(self.kind)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offsets {self.first}-{self.last} ({self.kind})"


def diagnose(
    positions: Mapping[TopicPartition, int],
    known_ids: Mapping[str, str],
    topics: Mapping[str, TopicInfo],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[Loss]:
    """Compare where we stand with what the source still has; each loss with its exact range."""
    losses = []
    for at, position in sorted(positions.items()):
        kept_id, topic = known_ids.get(at.topic, ""), topics.get(at.topic)
        if topic is None:
            losses.append(Loss(TOPIC_DELETED, at.topic, kept_id, at.partition, position, position))
        elif not is_same_topic(kept_id, topic.id):
            losses.append(Loss(TOPIC_RECREATED, at.topic, kept_id, at.partition, position, position))
        elif starts.get(at, 0) > position:
            losses.append(Loss(RETENTION, at.topic, kept_id, at.partition, position, starts[at] - 1))
        elif at in ends and ends[at] < position:
            losses.append(Loss(LOG_TRUNCATED, at.topic, kept_id, at.partition, ends[at], position - 1))
    return losses


def begun_late(
    unread: Iterable[TopicPartition],
    known_ids: Mapping[str, str],
    topics: Mapping[str, TopicInfo],
    starts: Mapping[TopicPartition, int],
) -> list[Loss]:
    """Partitions that came after the flow had begun, and whose first records are gone before anybody read them."""
    return [
        Loss(RETENTION, at.topic, known_id(known_ids.get(at.topic), topics[at.topic].id), at.partition, 0, start - 1)
        for at in sorted(unread)
        if (start := starts.get(at, 0))
    ]


def as_far_as_known(losses: Iterable[Loss], ends: Mapping[SourcePartition, KnownEnd]) -> list[Loss]:
    """Of logs that are gone: what lay between our position and the last end that anybody saw."""
    found = list(losses)
    gone = {loss.source: loss for loss in found if loss.kind in GONE}
    known = [_up_to(loss, ends.get(source)) for source, loss in gone.items()]
    return [*(loss for loss in found if loss.kind not in GONE), *known, *_never_read(gone, ends)]


def _never_read(gone: Mapping[SourcePartition, Loss], ends: Mapping[SourcePartition, KnownEnd]) -> list[Loss]:
    """Partitions of the same topics that were seen, and of which no batch ever had a record."""
    kinds = {(source.topic, source.topic_id): loss.kind for source, loss in gone.items()}
    return [
        _up_to(Loss(kinds[source[:2]], *source, end.start, end.start), end)
        for source, end in sorted(ends.items())
        if source[:2] in kinds and source not in gone and end.offset > end.start
    ]


def ids_after(losses: Iterable[Loss], topic_ids: Mapping[str, str]) -> dict[str, str]:
    """The ids under which reading goes on.

    A topic that is gone is forgotten: the next one of its name has another id. Where none was told, or the log is still
    the same, offsets come again that bronze holds: the topic goes on as a branch.
    """
    ids = dict(topic_ids)
    for topic, kind in {(loss.topic, loss.kind) for loss in losses}:
        kept = topic_ids.get(topic, "")
        if kind == LOG_TRUNCATED or (kind in GONE and not trunk(kept)):
            ids[topic] = next_branch(kept)
        elif kind in GONE:
            ids.pop(topic, None)
    return ids


def _up_to(loss: Loss, end: KnownEnd | None) -> Loss:
    if end is None:
        return replace(loss, known=f"what came after {loss.first - 1} is unknown: the log's end was never sampled")
    when = end.at.isoformat(timespec="seconds")
    if end.offset <= loss.first:
        return replace(loss, known=f"nothing was left to read at {when}; what came after that is unknown")
    known = f"known up to {end.offset} at {when}; what came after that is unknown"
    return replace(loss, last=end.offset - 1, known=known)


def as_we_read_it(
    ends: Mapping[TopicPartition, int], truncated: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where the log ends that we have read: a log that was cut may have grown again, by other records."""
    return {at: min(end, truncated.get(at, end)) for at, end in ends.items()}


# --- positions on storage ---


def read_positions(checkpoint: Path) -> dict[TopicPartition, int]:
    """Where the query stands: the end of its last committed batch; empty before the first."""
    done = last_batch(checkpoint)
    if done is None:
        return {}
    return _offsets_in(checkpoint / "offsets" / str(done))


def read_plan(checkpoint: Path) -> dict[TopicPartition, int]:
    """How far the query's newest batch goes, done or not."""
    numbers = (int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*") if path.name.isdigit())
    newest = max(numbers, default=None)
    return {} if newest is None else _offsets_in(checkpoint / "offsets" / str(newest))


def read_begin(checkpoint: Path) -> dict[TopicPartition, int]:
    """Where the query began, or would have; empty before it was started."""
    path = checkpoint / "sources" / "0" / "0"
    return _offsets_in(path) if path.exists() else {}


def batch_bounds(checkpoint: Path, batch_id: int) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where a batch begins and ends: Spark writes it down before it hands us the batch."""
    begin = _offsets_in(checkpoint / "offsets" / str(batch_id - 1)) if batch_id else read_begin(checkpoint)
    return begin, _offsets_in(checkpoint / "offsets" / str(batch_id))


def _offsets_in(path: Path) -> dict[TopicPartition, int]:
    with _whole(path):
        return parse_offsets(path.read_text().splitlines()[-1])


def last_batch(checkpoint: Path) -> int | None:
    """The number of the last batch that the query has done."""
    numbers = (int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdigit())
    done = max(numbers, default=None)
    if done is not None:
        path = checkpoint / "commits" / str(done)
        with _whole(path):
            json.loads(path.read_text().splitlines()[-1])
    return done


def read_topic_ids(checkpoint: Path) -> dict[str, str]:
    path = checkpoint.with_suffix(".topics.json")
    if not path.exists():
        return {}
    with _whole(path):
        found: dict[str, str] = json.loads(path.read_text())
        return found


def read_leader_epochs(checkpoint: Path) -> dict[TopicPartition, int]:
    path = checkpoint.with_suffix(".epochs.json")
    return _offsets_in(path) if path.exists() else {}


def write_leader_epochs(checkpoint: Path, epochs: Mapping[TopicPartition, int]) -> None:
    _replace(checkpoint.with_suffix(".epochs.json"), starting_offsets(epochs))
    hit("epochs-noted")


def read_seed(checkpoint: Path) -> dict[TopicPartition, int]:
    """Where a query that goes on after another one is to begin; empty for the first."""
    path = checkpoint.with_suffix(".seed.json")
    return _offsets_in(path) if path.exists() else {}


def write_seed(checkpoint: Path, seed: Mapping[TopicPartition, int]) -> None:
    _replace(checkpoint.with_suffix(".seed.json"), starting_offsets(seed))


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, IndexError, AttributeError) as error:
        raise StateMismatch(
            f"the checkpoint file {path} is missing or damaged",
            f"move the folder {path.parent.parent} away: bronze and the ledger know where to go on",
        ) from error


def write_topic_ids(checkpoint: Path, topic_ids: Mapping[str, str]) -> None:
    _replace(checkpoint.with_suffix(".topics.json"), json.dumps(dict(topic_ids)))
    hit("topic-ids-noted")


def _replace(path: Path, text: str) -> None:
    """Whole or not at all."""
    replaced = path.with_suffix(".tmp")
    replaced.write_text(text)
    replaced.replace(path)


# --- the query ---


@dataclass(frozen=True)
class Workers:
    """Python workers that read ranges of Kafka themselves, and write Parquet files that they may open."""

    tables: FolderTables
    consumer_config: Mapping[str, str]
    """References, no secrets."""
    slots: int

    def fetch(self, spark: SparkSession, fetch: Fetch, ranges: Sequence[Range]) -> list[Fetched]:
        """All files of a batch, and the errors that tasks met."""
        return on_workers(spark, plan(ranges, self.slots), partial(fetch_files, fetch))


@dataclass
class Ingest:
    """What one ingest query needs, and what its batches do."""

    spec: RelaySpec
    stream: StreamId
    checkpoint: Path
    tables: Tables
    source: Cluster
    topic_ids: dict[str, str] = field(default_factory=dict)
    codec: str = "zstd"
    committed: Callable[[], None] = lambda: None
    """Told after each commit: who waits for records need not look for them."""
    workers: Workers | None = None
    """Who reads the records; Spark's Kafka source where it is None."""
    newest: BatchSize | None = None
    """What the newest batch held, where workers read it."""
    truncated: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions that were cut below what we have read, and where."""
    read: dict[TopicPartition, int] = field(default_factory=dict)
    """The offset after the last record of each partition that bronze holds."""
    leader_epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """In which that record was written: with both a broker can tell whether it still has it."""

    def append(self, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch: know the ids of its topics, then append."""
        hit("batch-begun")
        if self.workers is None or not self._append_by_workers(self.workers, frame.sparkSession, batch_id):
            self._learn_topic_ids(topics_now(self.spec, self.source))
            shaped = shape_bronze(frame, self.topic_ids, batch_id).coalesce(MAX_FILES_PER_BATCH)
            self.tables.append_frame(shaped, self.spec.table, self.stream.txn_app_id, batch_id, self.codec)
        hit("bronze-committed")
        self.committed()

    def _append_by_workers(self, workers: Workers, spark: SparkSession, batch_id: int) -> bool:
        """False where a record is such that only Spark's source can read it."""

        def write(folder: Path) -> list[Path]:
            begin, end = batch_bounds(self.checkpoint, batch_id)
            self._learn_topic_ids({at.topic for at in end if end[at] != begin.get(at)} | self._unknown(end))
            ranges = self._ranges(begin, end)
            hit("topics-known")
            fetch = Fetch(
                self.source.alias, workers.consumer_config, str(folder), self.codec, batch_id,
                time.time_ns() // 1000,
            )  # fmt: skip
            fetched = workers.fetch(spark, fetch, ranges)
            self._require_whole(fetched)
            # Once more: a topic that was made anew after the first look may have grown as far as the batch goes.
            self._look_at({range_.source.topic for range_ in ranges})
            self._note_read(fetched)
            records = sum(file.records for file in fetched)
            self.newest = BatchSize(records, sum(f.bytes for f in fetched) + records * RECORD_OVERHEAD_BYTES)
            hit("files-fetched")
            return [Path(file.path) for file in fetched]

        try:
            workers.tables.append_files(write, self.spec.table, self.stream.txn_app_id, batch_id)
        except UnreadableRecord:
            return False
        return True

    def _ranges(self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Range]:
        """What the batch holds of each partition; one that is new begins where its log does."""
        new = self.source.log_starts(at for at in end if at not in begin)
        bounds = {at: (begin.get(at, new.get(at, 0)), until) for at, until in end.items()}
        wrong = [at for at in begin if at not in end or begin[at] > end[at]]
        unknown = self._unknown(end)
        wrong += [at for at in end if at.topic in unknown]
        if wrong:
            # Whoever starts the query again looks for what was lost, and says it.
            raise ClusterUnreachable(
                f"flow {self.spec.flow}: on {self.source.alias} these are not known, or went away or back: "
                + ", ".join(map(str, wrong[:5]))
            )
        return [
            Range(self._source(at), first, until, self._read_before(at, first))
            for at, (first, until) in bounds.items()
            if first < until
        ]

    def _source(self, at: TopicPartition) -> SourcePartition:
        return SourcePartition(at.topic, self.topic_ids[at.topic], at.partition)

    def _read_before(self, at: TopicPartition, first: int) -> Read | None:
        until, epoch = self.read.get(at, 0), self.leader_epochs.get(at)
        return Read(until - 1, epoch) if epoch is not None and 0 < until <= first else None

    def _require_whole(self, fetched: Sequence[Fetched]) -> None:
        """The first error that a task met; where a log was cut is kept for whoever names the loss."""
        for source, end in (file.truncated for file in fetched if file.truncated):
            self.truncated[source.at] = end
        for file in fetched:
            if file.error:
                raise from_text(file.error)

    def _note_read(self, fetched: Sequence[Fetched]) -> None:
        """Before the commit: an epoch older than the record it is kept for would be a false alarm after a crash."""
        found = sorted((read, source.at) for file in fetched for source, read in file.read)
        self.read |= {at: read.offset + 1 for read, at in found}
        epochs = {at: read.leader_epoch for read, at in found}
        if epochs.items() - self.leader_epochs.items():
            self.leader_epochs |= epochs
            write_leader_epochs(self.checkpoint, self.leader_epochs)

    def _unknown(self, offsets: Iterable[TopicPartition]) -> set[str]:
        return {at.topic for at in offsets} - self.topic_ids.keys()

    def _learn_topic_ids(self, topics: Iterable[str]) -> None:
        """Of those that give records: hundreds that are idle need not be asked for each batch."""
        seen = self._look_at(topics)
        # A broker may be upgraded to one that tells ids, and in the middle of it they come and go.
        new = {name: known_id(self.topic_ids.get(name), topic.id) for name, topic in seen.items()}
        if new.items() - self.topic_ids.items():
            self.topic_ids.update(new)
            write_topic_ids(self.checkpoint, self.topic_ids)

    def _look_at(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """The topics as they are now, none of which may be another one of the same name."""
        seen = self.source.describe(topics)
        changed = [name for name, topic in seen.items() if not is_same_topic(self.topic_ids.get(name, ""), topic.id)]
        if changed:
            raise SourceLoss(
                f"flow {self.spec.flow}: topic {', '.join(changed)} on {self.source.alias} was deleted and made anew",
                "set on_source_loss: continue to go on with the new topic; what was lost is in ops.incidents",
            )
        return seen

    def _look_for_cuts(self, shorter: Iterable[TopicPartition]) -> None:
        """Logs that end before what we have read may have been cut even lower, and have grown again since."""
        for at in shorter:
            read = self._read_before(at, sys.maxsize) if self.workers and at.topic in self.topic_ids else None
            if self.workers and read and at not in self.truncated:
                cut = cut_at(self.workers.consumer_config, self.source.alias, self._source(at), read)
                self.truncated |= {} if cut is None else {at: cut}

    def positions(self, seed: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Where the query stands: its last batch, else where it began, else where it is to begin."""
        return read_positions(self.checkpoint) or read_begin(self.checkpoint) or seed

    def losses(
        self,
        positions: Mapping[TopicPartition, int],
        new: Iterable[TopicPartition] = (),
        known_ends: Callable[[], Mapping[SourcePartition, KnownEnd]] = dict,
    ) -> list[Loss]:
        """What the source dropped from where we stand on; of `new` partitions, from their begin on.

        `known_ends` is asked only where a log is gone.
        """
        asked = {*positions, *new}
        topics = self.source.describe_patiently({at.topic for at in asked}, ABSENT_SECONDS)
        there = {at for at in asked if at.topic in topics and at.partition < topics[at.topic].partitions}
        starts, ends = self.source.log_starts(there), self.source.log_ends(there)
        self._look_for_cuts(at for at, position in positions.items() if at in ends and ends[at] < position)
        found = diagnose(positions, self.topic_ids, topics, starts, as_we_read_it(ends, self.truncated))
        remade = {loss.source.at for loss in found if loss.kind == TOPIC_RECREATED}
        found += begun_late(there & {*new, *remade}, self.topic_ids, topics, starts)
        return as_far_as_known(found, known_ends()) if any(loss.kind in GONE for loss in found) else found


SOURCE_TUNING = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.fetch.max.bytes": str(32 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}


@dataclass(frozen=True)
class Reading:
    """How the source is read."""

    options: Mapping[str, str]
    isolation: str
    max_records: int
    starting_offsets: str
    trigger_seconds: float
    once: bool
    topics: Sequence[str]
    """Of those that are listed, the ones that are there: Spark would fail for another."""


def start_ingest(spark: SparkSession, ingest: Ingest, reading: Reading, failed: Callable[[Exception], None]) -> Any:
    """Returns the StreamingQuery. Workers measure what they read; otherwise the query does."""
    stream = _source(spark, ingest.spec, reading)
    return (
        (measured(stream) if ingest.workers is None else stream)
        .writeStream.foreachBatch(reporting(ingest.append, failed))
        .queryName(ingest.stream.name)
        .option("checkpointLocation", str(ingest.checkpoint))
        .trigger(**_trigger(reading))
        .start()
    )


def _source(spark: SparkSession, spec: RelaySpec, reading: Reading) -> DataFrame:
    options = {
        **SOURCE_TUNING,
        **reading.options,
        "kafka.isolation.level": reading.isolation,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "startingOffsets": reading.starting_offsets,
        "maxOffsetsPerTrigger": str(reading.max_records),
        **_subscription(spec, reading.topics),
        **({} if reading.once else _gathering(reading)),
    }
    return spark.readStream.format("kafka").options(**options).load()


def _gathering(reading: Reading) -> dict[str, str]:
    """A trickle waits for a second trigger: a batch costs the same for a few records as for many.

    A little less than two triggers, since the look at the source's ends takes a moment of its own.
    """
    wait_ms = max(1, int(1800 * reading.trigger_seconds))
    return {"minOffsetsPerTrigger": str(min(TRICKLE_RECORDS, reading.max_records)), "maxTriggerDelay": f"{wait_ms}ms"}


TRICKLE_RECORDS = 200


def measured(stream: DataFrame) -> DataFrame:
    """The stream, whose progress then says how large its batches were: counted while they are written."""
    from pyspark.sql import functions as F  # noqa: N812

    size = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    return stream.observe(_SIZES, F.count("*").alias("records"), F.sum(size.cast("bigint")).alias("bytes"))


_SIZES = "batch"
RECORD_OVERHEAD_BYTES = 100  # offset, timestamp, headers and framing, about


def batch_size(query: Any) -> BatchSize | None:
    """The newest batch with records, of a measured stream."""
    progress = query.lastProgress
    seen = progress and progress["observedMetrics"].get(_SIZES)
    if not seen or not seen["records"]:
        return None
    return BatchSize(seen["records"], seen["bytes"] + seen["records"] * RECORD_OVERHEAD_BYTES)


def _subscription(spec: RelaySpec, topics: Iterable[str]) -> dict[str, str]:
    return {"subscribePattern": spec.java_pattern} if spec.java_pattern else {"subscribe": ",".join(topics)}


def _trigger(reading: Reading) -> dict[str, Any]:
    if reading.once:
        return {"availableNow": True}
    return {"processingTime": f"{int(reading.trigger_seconds * 1000)} milliseconds"}


def sample_record_bytes(source: Cluster, partitions: Iterable[TopicPartition]) -> float:
    """The average size of a few of the newest records: what a bound in bytes means in records."""
    asked = list(partitions)[:8]
    starts, ends = source.log_starts(asked), source.log_ends(asked)

    def newest(at: TopicPartition) -> list[int]:
        found = source.read_range(at, max(starts[at], ends[at] - 10), ends[at])
        return [len(message.key() or b"") + len(message.value() or b"") for message in found]

    with ThreadPoolExecutor(len(asked) or 1) as pool:  # each waits for a connection of its own
        sizes = [size for found in pool.map(newest, asked) for size in found]
    return sum(sizes) / len(sizes) + RECORD_OVERHEAD_BYTES if sizes else 1000.0
