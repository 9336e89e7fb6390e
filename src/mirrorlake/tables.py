"""Delta tables: where they are, appending, reading, and which files hold which offsets.

Two homes behind one small interface: a folder (the embedded default) and a Databricks catalog. In a folder the ops
tables are written by delta-rs, whose commits on a local disk are exclusive between processes and take
milliseconds; Spark reads the same tables. Bronze's files are written by Spark's tasks in both.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from mirrorlake.commits import Commits
from mirrorlake.errors import StateMismatch, StorageUnreachable
from mirrorlake.records import BRONZE_STATISTICS, OPS_TABLES, SourcePartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT_PROPERTY = "mirrorlake.format"
FORMAT_VERSION = 2
"""1: the first. 2: ops.lag_samples has topic_id."""


Txn = tuple[str, int]
"""A transaction id and its version."""


class Tables(Protocol):
    """Where tables live. Names are `schema.table`."""

    def ensure(self, name: str, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        """Make the table unless it is there; add what one of an older format lacks; refuse one of a newer."""

    def exists(self, name: str) -> bool: ...

    def names(self) -> list[str]:
        """The tables that Spark does not know by itself."""

    def append(self, name: str, rows: pa.Table, once: Txn | None = None) -> None:
        """Under a transaction id and version, storage takes it once, however often a client tries."""

    def append_once(self, name: str, rows: pa.Table, txn_app_id: str, txn_version: int) -> None:
        """Append, unless somebody has appended under this id and version before."""

    def read(self, name: str, columns: list[str] | None = None, **equal: str) -> pa.Table:
        """The rows whose columns equal what is asked, as Arrow."""

    def append_frame(self, frame: DataFrame, name: str, txn_app_id: str, txn_version: int, codec: str = "zstd") -> None:
        """Append what Spark computed, once for each (id, version)."""

    def txn_version(self, name: str, txn_app_id: str) -> int | None: ...

    def identifier(self, name: str) -> str:
        """The table in Spark SQL."""

    def folder(self, name: str) -> Path | None:
        """Where a Python process can open the files, None where only Spark may."""


def check_format(name: str, properties: Mapping[str, str]) -> None:
    kept = int(properties.get(FORMAT_PROPERTY, FORMAT_VERSION))
    if kept > FORMAT_VERSION:
        raise StateMismatch(
            f"table {name} has format {kept}, this version of mirrorlake knows {FORMAT_VERSION}",
            "use the newer mirrorlake that wrote it",
        )


def lacking(schema: pa.Schema, columns: Iterable[str]) -> list[pa.Field]:
    """What a table of an older format has not: columns are only ever added, and may be null."""
    there = set(columns)
    return [field for field in schema if field.name not in there]


def bronze_properties(deleted_file_retention_hours: int) -> dict[str, str]:
    """Statistics only where planning needs them; no deletion vectors, since tasks read the Parquet files themselves."""
    return {
        "delta.dataSkippingStatsColumns": BRONZE_STATISTICS,
        "delta.enableDeletionVectors": "false",
        "delta.deletedFileRetentionDuration": f"interval {deleted_file_retention_hours} hours",
        "delta.logRetentionDuration": f"interval {max(720, deleted_file_retention_hours)} hours",
        "delta.checkpointInterval": "100",
    }


def ensure_ops(tables: Tables, ops_schema: str) -> None:
    for name, schema in OPS_TABLES.items():
        # Every open reads the log from the last checkpoint on: many small commits want checkpoints often.
        tables.ensure(f"{ops_schema}.{name}", schema, {"delta.checkpointInterval": "10"})


class FolderTables:
    """Tables below a folder: `<root>/tables/<schema>/<table>`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._commits: dict[str, Commits] = {}

    def _path(self, name: str) -> Path:
        schema, _, table = name.partition(".")
        return self.root / "tables" / schema / table

    def ensure(self, name: str, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        if not self.exists(name):
            self._create(name, schema, {**properties, FORMAT_PROPERTY: str(FORMAT_VERSION)})
        table = DeltaTable(self._path(name))
        kept = table.metadata().configuration
        check_format(name, kept)
        if changed := {key: value for key, value in properties.items() if kept.get(key) != value}:
            table.alter.set_table_properties(changed, raise_if_not_exists=False)
        if missing := lacking(schema, table.schema().to_arrow().names):
            self._upgrade(name, schema, missing)

    def _upgrade(self, name: str, schema: pa.Schema, missing: Sequence[pa.Field]) -> None:
        table = DeltaTable(self._path(name))
        try:
            table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
            table.alter.set_table_properties({FORMAT_PROPERTY: str(FORMAT_VERSION)}, raise_if_not_exists=False)
        except DeltaError:
            # Another process did it at the same instant.
            if lacking(schema, DeltaTable(self._path(name)).schema().to_arrow().names):
                raise

    def _create(self, name: str, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        path = self._path(name)
        try:
            path.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                path,
                schema,
                mode="ignore",
                configuration=dict(properties),
                raise_if_key_not_exists=False,
            )
        except OSError as error:
            raise StorageUnreachable(
                f"{path} cannot be written: {error.strerror}",
                "choose another --root, or mend its permissions",
            ) from error
        except DeltaError:
            # Another process made it at the same instant.
            if not self.exists(name):
                raise

    def names(self) -> list[str]:
        logs = sorted((self.root / "tables").glob("*/*/_delta_log"))
        return [f"{log.parent.parent.name}.{log.parent.name}" for log in logs]

    def exists(self, name: str) -> bool:
        return bool(DeltaTable.is_deltatable(str(self._path(name))))

    def append(self, name: str, rows: pa.Table, once: Txn | None = None) -> None:
        properties = CommitProperties(app_transactions=[Transaction(*once)]) if once else None
        write_deltalake(self._open(name), rows, mode="append", commit_properties=properties)

    def append_once(self, name: str, rows: pa.Table, txn_app_id: str, txn_version: int) -> None:
        # Looked at and written from one snapshot: whatever is committed in between makes the commit fail.
        table = self._open(name)
        kept = table.transaction_version(txn_app_id)
        if kept is not None and kept >= txn_version:
            return
        transaction = Transaction(txn_app_id, txn_version)
        try:
            properties = CommitProperties(app_transactions=[transaction], max_commit_retries=0)
            write_deltalake(table, rows, mode="append", commit_properties=properties)
        except CommitFailedError:
            return

    def read(self, name: str, columns: list[str] | None = None, **equal: str) -> pa.Table:
        wanted = [(column, "=", value) for column, value in equal.items()]
        return self._open(name).to_pyarrow_table(columns=columns, filters=wanted or None)

    def _open(self, name: str) -> DeltaTable:
        """A table that we may read and write."""
        try:
            table = DeltaTable(self._path(name))
        except TableNotFoundError:
            raise _no_table(name) from None
        check_format(name, table.metadata().configuration)
        return table

    def append_frame(self, frame: DataFrame, name: str, txn_app_id: str, txn_version: int, codec: str = "zstd") -> None:
        def write(folder: Path) -> list[Path]:
            frame.write.option("compression", codec).parquet(str(folder))
            return sorted(folder.glob("*.parquet"))

        self.append_files(write, name, txn_app_id, txn_version)

    def append_files(self, write: Callable[[Path], list[Path]], name: str, txn_app_id: str, txn_version: int) -> None:
        """Append the files that `write` leaves in a new folder of the table, once for each (id, version)."""
        commits = self._commits_to(name)
        if not commits.seen(txn_app_id, txn_version):
            # What a killed process leaves in such a folder belongs to no version: VACUUM removes it.
            commits.add(write(self._path(name) / f"batch-{uuid.uuid4().hex}"), txn_app_id, txn_version)

    def _commits_to(self, name: str) -> Commits:
        if name not in self._commits:
            self._open(name)
            self._commits[name] = Commits(self._path(name))
        return self._commits[name]

    def txn_version(self, name: str, txn_app_id: str) -> int | None:
        version: int | None = DeltaTable(self._path(name)).transaction_version(txn_app_id)
        return version

    def identifier(self, name: str) -> str:
        return f"delta.`{self._path(name)}`"

    def folder(self, name: str) -> Path | None:
        return self._path(name)


class CatalogTables:
    """Tables of a catalog, read and written by Spark alone: governed storage has no other way in."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self.spark = spark
        self.catalog = catalog
        self._known: set[str] = set()

    def ensure(self, name: str, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        if not self.exists(name):
            kept = {**properties, FORMAT_PROPERTY: str(FORMAT_VERSION)}
            clause = ", ".join(f"'{key}' = '{value}'" for key, value in kept.items())
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.identifier(name)} ({_ddl(schema)}) "
                f"USING delta TBLPROPERTIES ({clause})"
            )
        kept = self._properties(name)
        check_format(name, kept)
        self._known.add(name)
        if changed := {key: value for key, value in properties.items() if kept.get(key) != value}:
            self._set_properties(name, changed)
        missing = lacking(schema, self.spark.table(self.identifier(name)).columns)
        if missing:
            self.spark.sql(f"ALTER TABLE {self.identifier(name)} ADD COLUMNS ({_ddl(pa.schema(missing))})")
            self._set_properties(name, {FORMAT_PROPERTY: str(FORMAT_VERSION)})

    def _check_format(self, name: str) -> None:
        """Once for each table: it takes Spark a while to say."""
        if name not in self._known:
            check_format(name, self._properties(name))
            self._known.add(name)

    def _properties(self, name: str) -> dict[str, str]:
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {self.identifier(name)}").collect()
        return {row["key"]: row["value"] for row in rows}

    def _set_properties(self, name: str, properties: Mapping[str, str]) -> None:
        clause = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self.spark.sql(f"ALTER TABLE {self.identifier(name)} SET TBLPROPERTIES ({clause})")

    def names(self) -> list[str]:
        return []

    def exists(self, name: str) -> bool:
        return bool(self.spark.catalog.tableExists(self.identifier(name)))

    def append_once(self, name: str, rows: pa.Table, txn_app_id: str, txn_version: int) -> None:
        from delta.exceptions import ConcurrentTransactionException

        with contextlib.suppress(ConcurrentTransactionException):
            self.append_frame(self.spark.createDataFrame(rows), name, txn_app_id, txn_version)

    def append(self, name: str, rows: pa.Table, once: Txn | None = None) -> None:
        frame = self.spark.createDataFrame(rows)
        if once:
            return self.append_frame(frame, name, *once)
        self._check_format(name)
        frame.write.format("delta").mode("append").saveAsTable(self.identifier(name))

    def rewrite(self, name: str, flow: str, until: datetime, change: Callable[[pa.Table], pa.Table]) -> bool:
        """Replace a flow's rows up to a time by what becomes of them, in one commit; false where others are in the way.

        Who has lost the flow and does not know it yet may append a row meanwhile, which is younger.
        """
        from delta.exceptions import DeltaConcurrentModificationException

        self._check_format(name)
        chosen = f"flow = '{flow}' AND at < {_sql_time(until)}"
        rows = self.spark.read.table(self.identifier(name)).where(chosen).toArrow()
        fewer = change(rows)
        if fewer.num_rows == rows.num_rows:
            return True
        frame = self.spark.createDataFrame(fewer).write.format("delta").mode("overwrite")
        try:
            frame.option("replaceWhere", chosen).saveAsTable(self.identifier(name))
        except DeltaConcurrentModificationException:
            return False
        return True

    def read(self, name: str, columns: list[str] | None = None, **equal: str) -> pa.Table:
        self._check_format(name)
        frame = self.spark.read.table(self.identifier(name))
        for column, value in equal.items():
            frame = frame.where(frame[column] == value)
        return (frame.select(*columns) if columns else frame).toArrow()

    def append_frame(self, frame: DataFrame, name: str, txn_app_id: str, txn_version: int, codec: str = "zstd") -> None:
        self._check_format(name)
        options = {"txnAppId": txn_app_id, "txnVersion": str(txn_version), "compression": codec}
        frame.write.format("delta").mode("append").options(**options).saveAsTable(self.identifier(name))

    def txn_version(self, name: str, txn_app_id: str) -> int | None:
        # Spark has no call for this; the batch column of rows says as much for bronze.
        return None

    def identifier(self, name: str) -> str:
        return ".".join(f"`{part}`" for part in (self.catalog, *name.split(".")))

    def folder(self, name: str) -> Path | None:
        return None


def _sql_time(at: datetime) -> str:
    return f"timestamp_micros({int((at - datetime(1970, 1, 1, tzinfo=timezone.utc)) / timedelta(microseconds=1))})"


def _ddl(schema: pa.Schema) -> str:
    from pyspark.sql.pandas.types import from_arrow_schema

    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in from_arrow_schema(schema).fields)


def _no_table(name: str) -> StorageUnreachable:
    return StorageUnreachable(f"there is no table {name}", "has the flow run at least once with this --root?")


# --- which files hold which offsets ---


@dataclass(frozen=True)
class Segment:
    """What one file holds of one source partition."""

    path: str
    """Empty where only Spark may read."""
    source: SourcePartition
    first_offset: int
    last_offset: int
    records: int
    bytes: int
    alone: bool
    """Nothing else is in the file."""

    def offsets_within(self, size_bytes: int) -> int:
        """About how many of its offsets hold so many bytes."""
        return max(1, size_bytes * (self.last_offset - self.first_offset + 1) // max(1, self.bytes))


class Readable(Protocol):
    """A bronze table that can say what it holds, and give it in order."""

    def refresh(self) -> int:
        """Pin the newest version; returns it."""

    def segments(self) -> list[Segment]: ...

    def read(self, source: SourcePartition, first: int, until: int) -> Iterable[pa.RecordBatch]:
        """The records of [first, until), in offset order."""


class BronzeFiles:
    """The segments of a bronze table in a folder, kept up to date version by version."""

    _MOST_FOLLOWED = 300
    """Of more versions than this, the table itself says quicker what they come to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._version = -1
        self._segments: dict[str, list[Segment]] = {}
        self._index()

    def refresh(self) -> int:
        """Follow the log to the newest version; returns it. What is new decides the cost, not the number of files."""
        entries = list(islice(self._entries(), self._MOST_FOLLOWED + 1))
        if self._lost(entries) or not self._followed(entries):
            self._index()
        return self._version

    def _followed(self, entries: Sequence[Sequence[Mapping[str, Any]]]) -> bool:
        """False where a file is gone that some version had: compacted since, and vacuumed at once."""
        try:
            for actions in entries:
                self._follow(actions)
        except FileNotFoundError:
            return False
        self._version += len(entries)
        return True

    def reindex(self) -> None:
        """Look at all files of the newest version, also at those that were let go of."""
        self._index()

    def forget(self, delivered: Mapping[SourcePartition, int]) -> None:
        """Let go of segments before these offsets, except each partition's last: what only grows costs every round."""
        lasts: dict[SourcePartition, int] = {}
        for segment in self.segments():
            lasts[segment.source] = max(lasts.get(segment.source, -1), segment.last_offset)
        due = {source: min(delivered.get(source, 0), last) for source, last in lasts.items()}
        kept = {path: [s for s in held if s.last_offset >= due[s.source]] for path, held in self._segments.items()}
        self._segments = {path: held for path, held in kept.items() if held}

    def segments(self) -> list[Segment]:
        # Taken at once: the runner's display asks while a round brings them up to date.
        return [segment for segments in list(self._segments.values()) for segment in segments]

    def read(self, source: SourcePartition, first: int, until: int) -> Iterable[pa.RecordBatch]:
        """The records of [first, until), in offset order."""
        held = (s for s in self.segments() if s.source == source and s.last_offset >= first and s.first_offset < until)
        return read_ordered(list(held), first, until)

    def _index(self) -> None:
        """All files of the newest version, as on the first look."""
        table = DeltaTable(self.folder)
        self._version, self._segments = int(table.version()), {}
        self._add(pa.table(table.get_add_actions(flatten=True)).to_pylist())

    def _entries(self) -> Iterator[list[dict[str, Any]]]:
        """What the log says of the versions that follow, one after the other."""
        with contextlib.suppress(FileNotFoundError):
            for version in count(self._version + 1):
                yield _log_entry(self.folder, version)

    def _lost(self, entries: Sequence[Sequence[Mapping[str, Any]]]) -> bool:
        """Are these not all that is new, or more than files?"""
        kinds = {kind for actions in entries for action in actions for kind in action}
        cleaned = not entries and self._last_checkpoint() > self._version  # older entries are removed in time
        return cleaned or len(entries) > self._MOST_FOLLOWED or not kinds.isdisjoint(("protocol", "metaData"))

    def _last_checkpoint(self) -> int:
        try:
            return int(json.loads((self.folder / "_delta_log" / "_last_checkpoint").read_text())["version"])
        except (FileNotFoundError, ValueError):  # none yet, or just being written: the next look sees it
            return -1

    def _follow(self, actions: Sequence[Mapping[str, Any]]) -> None:
        self._add([_flat(action["add"]) for action in actions if "add" in action])
        for path in (action["remove"]["path"] for action in actions if "remove" in action):
            self._segments.pop(path, None)

    def _add(self, rows: Sequence[dict[str, Any]]) -> None:
        with ThreadPoolExecutor(4) as pool:
            for row, segments in zip(rows, pool.map(self._segments_of, rows), strict=True):
                self._segments[row["path"]] = segments

    def _segments_of(self, row: dict[str, Any]) -> list[Segment]:
        path = str(self.folder / unquote(row["path"]))
        single = all(
            row.get(f"min.{column}") is not None and row.get(f"min.{column}") == row.get(f"max.{column}")
            for column in ("topic", "topic_id", "partition")
        )
        if not single:
            return _segments_by_reading(path, row["size_bytes"])
        source = SourcePartition(row["min.topic"], row["min.topic_id"], row["min.partition"])
        first, last = row["min.offset"], row["max.offset"]
        return [Segment(path, source, first, last, row["num_records"], row["size_bytes"], alone=True)]


def _log_entry(folder: Path, version: int) -> list[dict[str, Any]]:
    text = (folder / "_delta_log" / f"{version:020}.json").read_text()
    return [json.loads(line) for line in text.splitlines() if line]


def _flat(add: dict[str, Any]) -> dict[str, Any]:
    """An added file as `get_add_actions` gives it."""
    statistics = json.loads(add.get("stats") or "{}")
    row = {"path": add["path"], "size_bytes": add["size"], "num_records": statistics.get("numRecords")}
    for end, name in (("min", "minValues"), ("max", "maxValues")):
        row |= {f"{end}.{column}": value for column, value in statistics.get(name, {}).items()}
    return row


def _segments_by_reading(path: str, size_bytes: int) -> list[Segment]:
    """A file of many partitions (a shared table, a compacted one): its four narrow columns say what is in it."""
    keys = ["topic", "topic_id", "partition"]
    table = pq.read_table(path, columns=[*keys, "offset"])
    grouped = table.group_by(keys).aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    return [
        Segment(
            path,
            SourcePartition(row["topic"], row["topic_id"], row["partition"]),
            row["offset_min"],
            row["offset_max"],
            row["offset_count"],
            max(1, size_bytes * row["offset_count"] // table.num_rows),
            alone=grouped.num_rows == 1,
        )
        for row in grouped.to_pylist()
    ]


# --- reading them in order ---

RECORD_COLUMNS = ["offset", "timestamp", "key", "value", "headers"]
_READ_BYTES = 2 << 20  # rows of a batch are chosen so that it stays near this, whatever the records' size


def read_ordered(segments: Sequence[Segment], first: int, until: int) -> Iterator[pa.RecordBatch]:
    """The records of one source partition with offsets in [first, until), in offset order, batch by batch."""
    for group in _overlapping(sorted(segments, key=lambda segment: segment.first_offset)):
        if len(group) == 1:
            yield from _read_one(group[0], first, until)
        else:
            yield from _sorted(group, first, until)


def _overlapping(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    group: list[Segment] = []
    for segment in segments:
        if group and segment.first_offset > max(other.last_offset for other in group):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


def _read_one(segment: Segment, first: int, until: int) -> Iterator[pa.RecordBatch]:
    if segment.alone and segment.records == segment.last_offset - segment.first_offset + 1:
        return _read_dense(segment, first, until)
    return _filtered(segment, first, until) if _ascends(segment) else _sorted([segment], first, until)


def _read_dense(segment: Segment, first: int, until: int) -> Iterator[pa.RecordBatch]:
    """No offset is missing, so each batch must begin where the last one ended; else the rest is sorted."""
    expected = max(first, segment.first_offset)
    for batch in _filtered(segment, first, until):
        offsets = batch["offset"].to_numpy()
        if offsets[0] != expected or offsets[-1] - offsets[0] != len(offsets) - 1 or not _rising(offsets):
            yield from _sorted([segment], expected, until)
            return
        expected = int(offsets[-1]) + 1
        yield batch


def _rising(offsets: Any) -> bool:
    return bool((offsets[1:] > offsets[:-1]).all())


def _ascends(segment: Segment) -> bool:
    """Do the records stand in offset order? Compaction may have joined files in any. Only narrow columns are read."""
    keys = [] if segment.alone else ["topic", "topic_id", "partition"]
    with pq.ParquetFile(segment.path) as file:
        table = file.read(columns=["offset", *keys])
    for column in keys:
        table = table.filter(pc.equal(table[column], getattr(segment.source, column)))
    return _rising(table["offset"].to_numpy())


def _sorted(segments: Sequence[Segment], first: int, until: int) -> Iterator[pa.RecordBatch]:
    batches = [batch for segment in segments for batch in _filtered(segment, first, until)]
    if not batches:
        return
    table = pa.Table.from_batches(batches).sort_by("offset")
    yield from table.to_batches(max_chunksize=max(batch.num_rows for batch in batches))


def _filtered(segment: Segment, first: int, until: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(segment.path, buffer_size=1 << 20) as file:
        groups = [g for g in range(file.num_row_groups) if _group_overlaps(file, g, first, until)]
        columns = RECORD_COLUMNS if segment.alone else [*RECORD_COLUMNS, "topic", "topic_id", "partition"]
        for batch in file.iter_batches(_rows_per_batch(file), groups, columns):
            kept = batch.filter(_wanted(batch, segment, first, until))
            if kept.num_rows:
                yield kept.select(RECORD_COLUMNS)


def _rows_per_batch(file: pq.ParquetFile) -> int:
    groups = [file.metadata.row_group(g) for g in range(file.num_row_groups)]
    rows, size = file.metadata.num_rows, sum(group.total_byte_size for group in groups)
    if any(_leaf(group, "value").has_dictionary_page for group in groups):
        # Equal values are stored once, so the file's size says nothing of the records'.
        sample = next(file.iter_batches(16, columns=["key", "value"]))
        rows, size = sample.num_rows, sample.nbytes
    return max(1, min(16384, int(_READ_BYTES * rows // max(1, size))))


def _leaf(group: Any, path: str) -> Any:
    columns = (group.column(number) for number in range(group.num_columns))
    return next(column for column in columns if column.path_in_schema == path)


def _group_overlaps(file: pq.ParquetFile, group: int, first: int, until: int) -> bool:
    statistics = _leaf(file.metadata.row_group(group), "offset").statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.max >= first and statistics.min < until)


def _wanted(batch: pa.RecordBatch, segment: Segment, first: int, until: int) -> pa.Array:
    offset = batch["offset"]
    mask = pc.and_(pc.greater_equal(offset, first), pc.less(offset, until))
    if segment.alone:
        return mask
    for column in ("topic", "topic_id", "partition"):
        mask = pc.and_(mask, pc.equal(batch[column], getattr(segment.source, column)))
    return mask
