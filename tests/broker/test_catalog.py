"""Storage in a catalog: Spark alone reads and writes, the lease is a row, and checkpoints may get lost."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import Flow, Records, by_partition, wait_until
from pyspark.sql import SparkSession

from mirrorlake.config import Config
from mirrorlake.errors import LeaseHeld
from mirrorlake.lease import read_signs
from mirrorlake.repair import apply_repairs
from mirrorlake.runner import Run
from mirrorlake.tables import CatalogTables
from mirrorlake.topics import relay_specs
from mirrorlake.world import connect

CATALOG = "spark_catalog"


@dataclass
class Governed:
    """A flow whose tables are in a catalog, and whose folder stands for a volume."""

    flow: Flow
    schema: str

    @property
    def tables(self) -> CatalogTables:
        return CatalogTables(self.flow.spark, CATALOG)

    @property
    def volume(self) -> Path:
        return self.flow.folder / "volume"

    def config(self) -> Config:
        config = self.flow.config()
        places = {"root": None, "catalog": CATALOG, "volume": str(self.volume)}
        names = {"bronze": self.schema + ".{source}__{topic}", "ops_schema": self.schema}
        # Copied, not parsed: there is no /Volumes here.
        return config.model_copy(update={"storage": config.storage.model_copy(update=places | names)})

    def run_once(self) -> None:
        Run(self.config(), once=True, spark=self.flow.spark)()

    def repair(self) -> None:
        config = self.config()
        flow = config.flow(self.flow.name)
        apply_repairs(config, flow, flow.targets[0], connect(config, [flow]), self.tables)

    def offsets(self) -> dict[int, list[int]]:
        """What bronze holds, by partition."""
        config = self.config()
        (spec,) = relay_specs(config, config.flow(self.flow.name))
        rows = self.tables.read(spec.table, ["partition", "offset"]).to_pylist()
        found: dict[int, list[int]] = {}
        for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
            found.setdefault(row["partition"], []).append(row["offset"])
        return found

    def ledger(self, kind: str) -> list[tuple[int, int]]:
        """(Epoch, records) of the ledger's rows, oldest first."""
        rows = self.tables.read(f"{self.schema}.ledger", kind=kind).to_pylist()
        return sorted((row["epoch"], row["count"]) for row in rows)


@pytest.fixture
def governed(make_flow: Callable[..., Flow], spark: SparkSession, topic: str) -> Iterator[Governed]:
    """Schemas are the bundle's to make."""
    schema = f"s_{uuid.uuid4().hex}"
    spark.sql(f"CREATE SCHEMA {schema}")
    yield Governed(make_flow([topic], heartbeats={"enabled": False}), schema)
    spark.sql(f"DROP SCHEMA {schema} CASCADE")


def test_each_record_once_and_in_order_also_after_the_checkpoints_or_the_target_are_lost(
    governed: Governed, records: Records, topic: str
) -> None:
    sent, name = records.numbered(60, partitions=2), f"source.{topic}"
    records.create("source", topic, partitions=2)
    for first, upto in ((0, 30), (30, 40), (40, 60)):
        records.send("source", topic, sent[first:upto])
        if upto == 60:
            shutil.rmtree(governed.volume / "checkpoints")
        governed.run_once()
        assert records.read("target", name) == by_partition(sent[:upto])
        assert governed.offsets() == {number: list(range(upto // 2)) for number in (0, 1)}
    assert [epoch for epoch, _ in governed.ledger("baseline")] == [1, 1]
    assert governed.ledger("relay") == [(1, 15), (1, 15), (2, 5), (2, 5), (3, 10), (3, 10)]
    # A new beginning counts only if its epoch is higher than the runs': a repair holds the same lease.
    delete(records, name)
    governed.repair()
    governed.run_once()
    assert records.read("target", name) == by_partition(sent)
    assert [epoch for epoch, _ in governed.ledger("baseline")] == [1, 1, 4, 4]
    assert not (governed.volume / "leases").exists()


def delete(records: Records, topic: str) -> None:
    target = records.cluster("target")
    target.admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in target.describe([topic]), "the deletion")


def test_a_second_runner_is_refused_while_the_first_holds_the_lease(
    governed: Governed, records: Records, topic: str
) -> None:
    sent, leases = records.numbered(10), f"{governed.schema}.leases"
    records.create("source", topic)
    records.send("source", topic, sent)
    first = Run(governed.config(), spark=governed.flow.spark)
    running = threading.Thread(target=first)
    running.start()
    said: list[str] = []
    try:
        wait_until(lambda: records.arrived("target", f"source.{topic}", 10), "the first runner", 120)
        with pytest.raises(LeaseHeld, match=r"is run by another runner: process \d+ .*, epoch 1") as refused:
            Run(governed.config(), once=True, spark=governed.flow.spark, say=said.append)()
        assert refused.value.exit_code == 5
        assert any("waiting 60 s for a sign that it lives" in line for line in said)
        assert running.is_alive()
    finally:
        first.stopping.set()
        running.join()
    assert read_signs(governed.tables, leases, governed.flow.name).owner == "", "given up"
    assert records.read("target", f"source.{topic}")[0] == sent
