"""Kafka -> Parquet, in the executors.

A batch of Spark's Kafka source is a range of offsets for each partition. A task gets some of them, reads each through
one consumer that the worker process keeps, and writes what it read. `produce` is the way back.
"""

from __future__ import annotations

import heapq
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as _TopicPartition

from mirrorlake.clusters import resolved
from mirrorlake.errors import ClusterUnreachable, DataAtRisk, MirrorlakeError, SourceLoss, UnreadableRecord
from mirrorlake.failpoints import hit
from mirrorlake.kafka import QUIET, is_access, no_collection, translate
from mirrorlake.records import BRONZE, BRONZE_STATISTICS, SourcePartition

ROW_GROUP_BYTES = 32 << 20
CHUNK_BYTES = 4 << 20
CHUNK_RECORDS = 10_000
SILENCE_SECONDS = 20.0
# Above this many ranges in a batch, several share a file: thousands of tiny files cost more than a filter.
MAX_FILES_PER_BATCH = 64
# Below this many offsets a range is not worth two tasks.
WORTH_SPLITTING = 20_000


class Read(NamedTuple):
    """The last record that was read of a partition: its offset, and the leader epoch in which it was written."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True)
class Range:
    """The offsets [first, until) of one source partition; some of them may hold no record."""

    source: SourcePartition
    first: int
    until: int
    after: Read | None = None
    """What was read before it, where that is known: the broker then tells whether it still has that."""

    @property
    def offsets(self) -> int:
        return self.until - self.first


@dataclass(frozen=True)
class Fetch:
    """What all ranges of one batch have in common. Travels to the executors: references, no secrets."""

    source: str
    """The cluster's alias."""
    consumer_config: Mapping[str, str]
    folder: str
    codec: str
    batch: int
    at_us: int
    """When the batch was begun, in microseconds."""


@dataclass(frozen=True)
class Fetched:
    """One file, or why there is none."""

    path: str = ""
    records: int = 0
    bytes: int = 0
    error: str = ""
    """Name and message."""
    read: tuple[tuple[SourcePartition, Read], ...] = ()
    """The last record of each partition."""
    truncated: tuple[SourcePartition, int] | None = None
    """Where the source has dropped what it gave us before, and has other records from this offset on."""


File = Sequence[Range]
"""What goes into one file."""


# --- planning: pure ---


def plan(ranges: Sequence[Range], tasks: int) -> list[list[File]]:
    """Files for each task: the largest first, each to whoever has least."""
    cut = [piece for one in ranges for piece in split(one, sum(r.offsets for r in ranges), tasks)]
    files = shared_files(cut, MAX_FILES_PER_BATCH)
    loads: list[tuple[int, int, list[File]]] = [(0, number, []) for number in range(min(tasks, len(files)))]
    for file in sorted(files, key=lambda file: -sum(r.offsets for r in file)):
        load, number, held = heapq.heappop(loads)
        held.append(file)
        heapq.heappush(loads, (load + sum(r.offsets for r in file), number, held))
    return [held for _, _, held in sorted(loads, key=lambda each: each[1])]


def split(one: Range, total: int, tasks: int) -> list[Range]:
    """A partition that is more than a task's share of the batch is read by several."""
    share = max(WORTH_SPLITTING, -(-total // tasks))
    pieces = -(-one.offsets // share)
    step = -(-one.offsets // max(1, pieces))
    begins = range(one.first, one.until, step)
    after = {one.first: one.after}
    return [replace(one, first=at, until=min(at + step, one.until), after=after.get(at)) for at in begins]


def shared_files(ranges: Sequence[Range], most: int) -> list[File]:
    size = max(1, -(-len(ranges) // most))
    ordered = sorted(ranges, key=lambda one: (one.source, one.first))
    return [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]


# --- records as columns: pure ---


def as_bronze(messages: Sequence[Message], source: SourcePartition, fetch: Fetch) -> pa.RecordBatch:
    """Messages of one partition as bronze rows."""
    count = len(messages)
    stamps = [message.timestamp() for message in messages]
    columns = {
        "topic": pa.repeat(pa.scalar(source.topic), count),
        "partition": pa.repeat(pa.scalar(source.partition, pa.int32()), count),
        "offset": pa.array([message.offset() for message in messages], pa.int64()),
        "timestamp": pa.array(microseconds([at_ms for _, at_ms in stamps], messages, source)),
        # Java counts the kinds from -1, librdkafka from 0.
        "timestamp_type": pa.array(np.array([kind for kind, _ in stamps], np.int32) - 1),
        "key": pa.array([message.key() for message in messages], pa.binary()),
        "value": pa.array([message.value() for message in messages], pa.binary()),
        "headers": header_column(_headers(messages)),
        "topic_id": pa.repeat(pa.scalar(source.topic_id), count),
        "ingested_at": pa.repeat(pa.scalar(fetch.at_us, pa.int64()), count),
        "batch": pa.repeat(pa.scalar(fetch.batch, pa.int64()), count),
    }
    return pa.RecordBatch.from_arrays([columns[f.name].cast(f.type) for f in BRONZE], schema=BRONZE)


def microseconds(at_ms: Sequence[int], messages: Sequence[Message], source: SourcePartition) -> np.ndarray:
    """Tables count in microseconds. Producers that count in nanoseconds leave times that no table can hold."""
    times_ms = np.array(at_ms, np.int64)
    beyond = np.flatnonzero(np.abs(times_ms) > MOST_MS)
    if beyond.size:
        first = messages[beyond[0]]
        raise DataAtRisk(
            f"{source} offset {first.offset()} has the timestamp {times_ms[beyond[0]]} ms, which no table can hold",
            "exclude the topic; or drop the record there (kafka-delete-records) and set on_source_loss: continue",
        )
    return times_ms * 1000


MOST_MS = (1 << 63) // 1000 - 1
Headers = list[tuple[str, bytes | None]]


def _headers(messages: Sequence[Message]) -> list[Headers | None]:
    try:
        return [message.headers() for message in messages]
    except (UnicodeDecodeError, SystemError) as error:  # the binding forgets to return its own error
        raise UnreadableRecord("a header's name is not UTF-8") from error


def header_column(lists: Sequence[Headers | None]) -> pa.Array:
    """Null where a record has none; child arrays are made once, since pa.array of structs is slow."""
    kind = BRONZE.field("headers").type
    counts = np.array([len(listed) if listed else 0 for listed in lists], np.int32)
    if not counts.any():
        return pa.nulls(len(lists), kind)
    pairs = [pair for listed in lists if listed for pair in listed]
    names = pa.array([name for name, _ in pairs], pa.string())
    contents = pa.array([content for _, content in pairs], pa.binary())
    ends = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    structs = pa.StructArray.from_arrays([names, contents], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(ends, structs, type=kind, mask=pa.array(counts == 0))


# --- reading ---


class _Vanished(MirrorlakeError):
    """What was read before a range is not there any more."""


class Truncated(SourceLoss):
    """The source's log was cut below what we have read, and has other records there now."""

    def __init__(self, what: str, source: SourcePartition, end: int) -> None:
        super().__init__(what)
        self.source = source
        self.end = end


class Reader:
    """One consumer, kept by the worker process between batches."""

    def __init__(self, alias: str, config: Mapping[str, str]) -> None:
        self.alias = alias
        self._errors: list[KafkaError] = []
        self.consumer = Consumer({**resolved(config), **QUIET, "error_cb": self._errors.append})

    def chunks(self, one: Range) -> Iterator[list[Message]]:
        """The records of a range, in order, some at a time: about as many bytes, whatever their size."""
        try:
            yield from self._chunks(one)
        except _Vanished:
            # Retention took what lay before the range, which may begin right where the log does now.
            yield from self._chunks(replace(one, after=None))

    def _chunks(self, one: Range) -> Iterator[list[Message]]:
        self._errors.clear()
        self.consumer.assign([_begin(one)])
        at, most, heard_at = one.first, 100, time.monotonic()
        while at < one.until:
            # `consume` returns as soon as it has as many as asked, so more than can come is never asked for.
            heard = self.consumer.consume(min(most, one.until - at), timeout=0.1)
            records, at = self._sorted_out(heard, one, at)
            if records:
                most = chunk_records(records)
                yield records
            if heard:
                heard_at = time.monotonic()
            self._require_sound(one, heard_at)

    def _sorted_out(self, heard: Sequence[Message], one: Range, at: int) -> tuple[list[Message], int]:
        """The records of the range, and where it goes on: at its end once something beyond was seen."""
        records = [message for message in heard if message.error() is None]
        for event in heard if len(records) < len(heard) else ():
            error = event.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                # Markers and compaction leave no record at the end of a range.
                at = one.until if event.offset() >= one.until else at
            elif error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise self._not_there(error, one)
            elif error is not None:
                raise translate(error, self.alias, f"read {one.source} from offset {at} on")
        if not records:
            return [], at
        last = records[-1].offset()
        if last >= one.until or records[0].offset() < one.first:
            records = [message for message in records if one.first <= message.offset() < one.until]
        return records, max(at, last + 1)

    def _not_there(self, error: KafkaError, one: Range) -> MirrorlakeError:
        """Whoever starts the query again finds out what the source has dropped, and says it."""
        if (end := truncated_at(error.str())) is not None:
            return Truncated(f"cluster {self.alias}: {one.source} was cut at {end}", one.source, end)
        if one.after is not None:
            return _Vanished("")
        return ClusterUnreachable(f"cluster {self.alias}: {one.source} does not begin at {one.first} any more")

    def _require_sound(self, one: Range, heard_at: float) -> None:
        """A refused password is said beside the records; a broker that is away comes back within a time."""
        for error in self._errors:
            if is_access(error):
                raise translate(error, self.alias, f"read {one.source}")
        if time.monotonic() - heard_at > SILENCE_SECONDS:
            raise ClusterUnreachable(
                f"cluster {self.alias}: reading {one.source} stopped for {SILENCE_SECONDS:.0f} s",
                f"is {self.alias} up? reading goes on after it answers again",
            )


def _begin(one: Range) -> _TopicPartition:
    """Right after what was read last, for the broker to say whether it still has it: between the two is no record."""
    topic, partition = one.source.topic, one.source.partition
    if one.after is None:
        return _TopicPartition(topic, partition, one.first)
    return _TopicPartition(topic, partition, one.after.offset + 1, leader_epoch=one.after.leader_epoch)


CUT_SECONDS = 10.0


def cut_at(fetch_config: Mapping[str, str], alias: str, source: SourcePartition, read: Read) -> int | None:
    """Where a log was cut below a record that was read, as its broker knows by the record's leader epoch.

    The log's end does not tell once others were written there. None where the broker does not either.
    """
    reader, until = Reader(alias, fetch_config), time.monotonic() + CUT_SECONDS
    try:
        reader.consumer.assign([_begin(Range(source, read.offset + 1, read.offset + 2, read))])
        while time.monotonic() < until:
            for event in reader.consumer.consume(1, timeout=0.2):
                error = event.error()
                return truncated_at(error.str()) if error is not None else None
        return None
    finally:
        reader.consumer.close()


def truncated_at(said: str) -> int | None:
    """librdkafka has no code of its own for a log that was cut since and has grown again; its sentence says where."""
    found = re.search(r"log truncation detected .*broker end offset is (\d+)", said)
    return int(found[1]) if found else None


def chunk_records(records: Sequence[Message]) -> int:
    """How many records of about this size make a chunk."""
    some = records[:: 1 + len(records) // 32]
    size = sum(len(record) for record in some) // len(some)
    return max(1, min(CHUNK_RECORDS, CHUNK_BYTES // (size + 100)))


_readers: dict[tuple[str, tuple[tuple[str, str], ...]], Reader] = {}


def reader_for(fetch: Fetch) -> Reader:
    key = _reader_key(fetch)
    if key not in _readers:
        _readers[key] = Reader(fetch.source, fetch.consumer_config)
    return _readers[key]


def drop_reader(fetch: Fetch) -> None:
    if reader := _readers.pop(_reader_key(fetch), None):
        reader.consumer.close()


def _reader_key(fetch: Fetch) -> tuple[str, tuple[tuple[str, str], ...]]:
    return fetch.source, tuple(sorted(fetch.consumer_config.items()))


# --- a task ---


def fetch_files(fetch: Fetch, files: Sequence[File]) -> list[Fetched]:
    """Read and write all of them; the first that fails ends the task."""
    fetched: list[Fetched] = []
    try:
        with no_collection():
            for file in files:
                fetched.append(_fetch_file(fetch, reader_for(fetch), file))
        reader_for(fetch).consumer.unassign()  # nobody waits for what would come after
    except (KafkaException, MirrorlakeError) as error:
        drop_reader(fetch)
        fault = error if isinstance(error, MirrorlakeError) else translate(error.args[0], fetch.source, "read")
        fetched.append(_failed(fault))
    except BaseException:
        drop_reader(fetch)
        raise
    return fetched


def _failed(fault: MirrorlakeError) -> Fetched:
    if isinstance(fault, Truncated):
        return Fetched(error=f"{SourceLoss.__name__}: {fault}", truncated=(fault.source, fault.end))
    return Fetched(error=f"{type(fault).__name__}: {fault}")


def _fetch_file(fetch: Fetch, reader: Reader, file: File) -> Fetched:
    """A name of its own: what another attempt at this task left belongs to nobody."""
    path = Path(fetch.folder) / f"part-{uuid.uuid4().hex}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    count = size = 0
    read: dict[SourcePartition, Read] = {}
    with pq.ParquetWriter(path, BRONZE, **parquet_options(fetch.codec)) as writer:
        for group in _row_groups(fetch, reader, file, read):
            writer.write_table(group, row_group_size=group.num_rows)
            hit("row-group-written")
            count, size = count + group.num_rows, size + group["key"].nbytes + group["value"].nbytes
    hit("file-written")
    return Fetched(str(path), count, size, read=tuple(read.items()))


def _row_groups(fetch: Fetch, reader: Reader, file: File, read: dict[SourcePartition, Read]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for one in file:
        for messages in reader.chunks(one):
            held.append(as_bronze(messages, one.source, fetch))
            if (epoch := messages[-1].leader_epoch()) is not None:
                read[one.source] = Read(messages[-1].offset(), epoch)
            if sum(batch.nbytes for batch in held) >= ROW_GROUP_BYTES:
                yield pa.Table.from_batches(held)
                held = []
    if held:
        yield pa.Table.from_batches(held)


_CODECS = {"zstd": ("zstd", 1), "snappy": ("snappy", None), "lz4_raw": ("lz4", None), "uncompressed": ("none", None)}
# What repeats within a file; keys, values and offsets hardly do.
_REPEATED = ["topic", "partition", "timestamp_type", "headers.list.element.key", "topic_id", "ingested_at", "batch"]


def parquet_options(codec: str) -> dict[str, Any]:
    """Of zstd's levels the fastest: the next ones cost more than the disk they save."""
    name, level = _CODECS[codec]
    return {
        "compression": name,
        "compression_level": level,
        "use_dictionary": _REPEATED,
        "write_statistics": BRONZE_STATISTICS.split(","),
    }
