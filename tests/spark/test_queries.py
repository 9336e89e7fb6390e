"""What real streaming queries say of themselves: how large their batches were, and how they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mirrorlake.bronze import RECORD_OVERHEAD_BYTES, BatchSize, batch_size, measured, shape_bronze
from mirrorlake.streams import ending
from mirrorlake.tables import FolderTables

from .frames import ORDERS_ID, TABLE, kafka_frame, kafka_row, make_bronze


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Any:
    """A query that waits for batches, until a test ends it."""
    stream = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    started = stream.writeStream.foreachBatch(lambda _frame, _number: None)
    running = started.option("checkpointLocation", str(tmp_path / "rate")).start()
    yield running
    running.stop()


def test_a_query_that_runs_has_not_ended(query: Any) -> None:
    assert ending(query) is None


def test_a_query_that_nobody_asked_to_end_has_failed(query: Any) -> None:
    query.stop()
    assert "ended by itself" in str(ending(query))
    assert ending(query, may_end=True) is None


def test_what_made_a_query_end_is_told(spark: SparkSession, tmp_path: Path) -> None:
    def fail(_frame: DataFrame, _number: int) -> None:
        raise RuntimeError("a fault of ours")

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "x")).start()
    with pytest.raises(Exception, match="a fault of ours"):
        query.awaitTermination(60)
    assert "a fault of ours" in str(ending(query, may_end=True))


def test_a_batch_is_measured_while_it_is_written(spark: SparkSession, tables: FolderTables, tmp_path: Path) -> None:
    """Keys and values count, nulls are empty; nothing is read for it a second time."""
    make_bronze(tables)
    contents = [(b"kk", b"v" * 1000), (None, b"v" * 500), (b"k2", None)]
    rows = [kafka_row(number, key=key, value=value) for number, (key, value) in enumerate(contents)]
    source, ids = str(tmp_path / "source"), {"orders": ORDERS_ID}
    kafka_frame(spark, rows).write.format("delta").save(source)

    def append(frame: DataFrame, number: int) -> None:
        tables.append_frame(shape_bronze(frame, ids, number).coalesce(8), TABLE, "ingest", number)

    writing = measured(spark.readStream.format("delta").load(source)).writeStream.foreachBatch(append)
    query = writing.option("checkpointLocation", str(tmp_path / "x")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert tables.read(TABLE).num_rows == 3
    assert batch_size(query) == BatchSize(3, 2 + 1000 + 500 + 2 + 3 * RECORD_OVERHEAD_BYTES)
