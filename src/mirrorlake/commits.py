"""Parquet files that tasks wrote -> one commit to a Delta table in a folder, once for each (transaction id, version).

Spark's own append finds the last transaction of an id with a job over the table's whole state, which takes longer than
everything else in a small batch. delta-rs keeps that state in memory, and its commits are exclusive between processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from mirrorlake.errors import StorageUnreachable

ATTEMPTS = 10


class Commits:
    """The commits of this process to one table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table = DeltaTable(folder)
        self._last: Written | None = None
        columns = self._table.metadata().configuration.get("delta.dataSkippingStatsColumns", "")
        self._statistics = columns.split(",")

    def seen(self, txn_app_id: str, txn_version: int) -> bool:
        """Has somebody committed under this id and version before?"""
        self._table.update_incremental()
        kept = self._table.transaction_version(txn_app_id)
        return kept is not None and kept >= txn_version

    def add(self, files: Sequence[Path], txn_app_id: str, txn_version: int) -> None:
        """All files with records in one commit. No files is a commit too: the table must know of every batch."""
        self.mend()
        read = {path: pq.read_metadata(path) for path in files}
        adds = [add_action(self.folder, path, m, self._statistics) for path, m in read.items() if m.num_rows]
        self._write(Written(adds, Transaction(txn_app_id, txn_version)))

    def _write(self, written: Written) -> None:
        """What others committed meanwhile is looked at first, then it is tried again."""
        transaction = written.transaction
        for _ in range(ATTEMPTS):
            if self.seen(transaction.app_id, transaction.version) or self._commit(written):
                return
        raise StorageUnreachable(
            f"{self.folder}: {ATTEMPTS} commits in a row met one of somebody else", "who else writes to this table?"
        )

    def _commit(self, written: Written) -> bool:
        table = self._table
        properties = CommitProperties(app_transactions=[written.transaction], max_commit_retries=0)
        try:
            table.create_write_transaction(written.adds, "append", table.schema(), commit_properties=properties)
        except CommitFailedError:
            return False
        table.update_incremental()
        written.version = table.version()
        self._last = written
        return True

    def mend(self) -> None:
        """Spark's commits to a local disk look first and then rename, so another process's may have replaced ours.

        It takes an OPTIMIZE at the same instant. The files are still there, so they are committed again.
        """
        if self._last is not None and not self._last.stands(self.folder):
            self._table = DeltaTable(self.folder)
            self._write(self._last)


@dataclass
class Written:
    """What one commit holds, to know it again."""

    adds: list[AddAction]
    transaction: Transaction
    version: int = -1

    def stands(self, folder: Path) -> bool:
        path = folder / "_delta_log" / f"{self.version:020}.json"
        # An old entry is removed in time, which says that it stood until then.
        return not path.exists() or json.dumps(self.transaction.app_id) in path.read_text()


def add_action(folder: Path, path: Path, metadata: Any, columns: Sequence[str]) -> AddAction:
    statistics = file_statistics(metadata, columns)
    relative, now_ms = str(path.relative_to(folder)), int(time.time() * 1000)
    return AddAction(relative, path.stat().st_size, {}, now_ms, True, json.dumps(statistics))


def file_statistics(metadata: Any, columns: Sequence[str]) -> dict[str, Any]:
    """What Delta keeps of a file, from the file's own footer."""
    lows, highs, nulls = {}, {}, {}
    for number in range(metadata.num_columns):
        name = metadata.schema.column(number).path
        found = [metadata.row_group(group).column(number).statistics for group in range(metadata.num_row_groups)]
        if name not in columns or not all(statistics and statistics.has_min_max for statistics in found):
            continue
        try:
            lows[name] = _as_json(min(statistics.min for statistics in found))
            highs[name] = _as_json(max(statistics.max for statistics in found), up=True)
        except (OverflowError, ValueError):
            # A timestamp beyond the year 9999, where Python's calendar ends: no statistics, so nobody skips the file.
            lows.pop(name, None)
            continue
        nulls[name] = sum(statistics.null_count or 0 for statistics in found)
    return {"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}


def _as_json(value: Any, up: bool = False) -> Any:
    """Delta keeps times in milliseconds: a greatest value must not become less."""
    if not isinstance(value, datetime):
        return value
    whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
    if up and whole != value:
        whole += timedelta(milliseconds=1)
    return whole.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
