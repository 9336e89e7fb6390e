"""Storage in a catalog: Spark alone reads and writes, the lease is a row, and checkpoints may get lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from governed import CATALOG, in_catalog, members, register, stands_still, start
from harness import Command, Flow, Records, by_partition, finish, wait_until
from pyspark.sql import SparkSession

from mirrorlake.config import Config
from mirrorlake.errors import LeaseHeld
from mirrorlake.lease import read_signs
from mirrorlake.repair import apply_repairs
from mirrorlake.runner import Run
from mirrorlake.tables import CatalogTables
from mirrorlake.topics import relay_specs
from mirrorlake.world import connect


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
        return in_catalog(self.flow.config(), self.schema, self.volume)

    def run_once(self) -> None:
        Run(self.config(), once=True, spark=self.flow.spark)()

    def repair(self) -> None:
        config = self.config()
        flow = config.flow(self.flow.name)
        apply_repairs(config, flow, flow.targets[0], connect(config, [flow]), self.tables)

    def offsets(self) -> dict[int, list[int]]:
        return offsets_in_bronze(self.config(), self.tables)

    def ledger(self, kind: str) -> list[tuple[int, int]]:
        """(Epoch, records) of the ledger's rows, oldest first."""
        rows = self.tables.read(f"{self.schema}.ledger", kind=kind).to_pylist()
        return sorted((row["epoch"], row["count"]) for row in rows)


def offsets_in_bronze(config: Config, tables: CatalogTables) -> dict[int, list[int]]:
    """By partition."""
    ((_, flow),) = config.flows.items()
    (spec,) = relay_specs(config, flow)
    rows = tables.read(spec.table, ["partition", "offset"]).to_pylist()
    found: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


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


# --- runners that are processes, on one catalog ---

LEASE_SECONDS = "45"
"""Less than usual: a test waits until it ends. Much less, and a busy machine gives its signs too late."""
PATIENCE_SECONDS = 300.0


@dataclass
class Shared:
    """A catalog that several runners see, one after the other."""

    flow: Flow
    schema: str
    started: list[Command]

    def start(self, failpoint: str = "") -> Command:
        output = self.flow.folder / f"runner-{len(self.started)}.txt"
        environment = {"MIRRORLAKE_LEASE_SECONDS": LEASE_SECONDS, "MIRRORLAKE_FAIL": failpoint}
        self.started.append(start(output, self.flow.write(), self.schema, self.flow.folder, **environment))
        return self.started[-1]

    def tables(self) -> CatalogTables:
        register(self.flow.spark, self.schema, self.flow.folder / "tables")
        return CatalogTables(self.flow.spark, CATALOG)

    def bronze(self) -> dict[int, list[int]]:
        return offsets_in_bronze(in_catalog(self.flow.config(), self.schema, self.flow.folder), self.tables())

    def ledger(self) -> list[tuple[str, int, int, int]]:
        """(Kind, epoch, partition, records) of all rows."""
        rows = self.tables().read(f"{self.schema}.ledger").to_pylist()
        return sorted((row["kind"], row["epoch"], row["source_partition"], row["count"]) for row in rows)

    def close(self) -> None:
        for command in self.started:
            for pid in members(command.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            command.process.wait()


@pytest.fixture
def shared(make_flow: Callable[..., Flow], spark: SparkSession, topic: str) -> Iterator[Shared]:
    flow = make_flow([topic], heartbeats={"enabled": False})
    flow.runner = {"lag_sample_seconds": 3600, "refresh_topics_seconds": 3600}
    made = Shared(flow, f"s_{uuid.uuid4().hex}", [])
    yield made
    made.close()
    spark.sql(f"DROP SCHEMA IF EXISTS {made.schema} CASCADE")


def signal_all(command: Command, number: int) -> None:
    for pid in members(command.pid):
        os.kill(pid, number)


def test_a_runner_that_stood_still_sends_nothing_after_another_has_taken_the_flow(
    shared: Shared, records: Records, topic: str
) -> None:
    """It stops with records in its producers, which nobody has sent; when it goes on, the next one has."""
    sent, name = records.numbered(2000, partitions=2), f"source.{topic}"
    records.create("source", topic, partitions=2)
    records.send("source", topic, sent)
    first = shared.start("batch-sent:1:stop")
    wait_until(lambda: any(map(stands_still, members(first.pid))), "a task that stops while it sends", 120)
    signal_all(first, signal.SIGSTOP)
    assert not records.arrived("target", name, 2000)
    second = shared.start()
    wait_until(lambda: records.arrived("target", name, 2000), "the second runner", 180)
    assert "taking the lease over" in second.output.read_text()
    signal_all(first, signal.SIGCONT)
    code, said = finish(first, PATIENCE_SECONDS)
    assert code in (3, 5), said
    more = records.numbered(2, partitions=2, first=2000)
    records.send("source", topic, more)
    wait_until(lambda: records.arrived("target", name, 2002), "the second runner, which goes on", 60)
    time.sleep(3)
    assert records.read("target", name) == by_partition([*sent, *more])
    second.send_signal(signal.SIGTERM)
    assert finish(second, PATIENCE_SECONDS)[0] == 0, second.output.read_text()
    delivered = [row for row in shared.ledger() if row[0] != "baseline"]
    assert sum(count for _, _, _, count in delivered) == 2002, delivered
    assert shared.bronze() == {number: list(range(1001)) for number in (0, 1)}


def test_a_runner_that_was_killed_is_followed_after_its_lease_ended(
    shared: Shared, records: Records, topic: str
) -> None:
    """Everything is on the target, and the ledger does not know it."""
    sent, name = records.numbered(500, partitions=2), f"source.{topic}"
    records.create("source", topic, partitions=2)
    records.send("source", topic, sent)
    first = shared.start("acknowledged:1:kill-driver")
    assert finish(first, PATIENCE_SECONDS)[0] == -signal.SIGKILL, first.output.read_text()
    assert records.arrived("target", name, 1)
    second = shared.start()
    more = records.numbered(10, partitions=2, first=500)
    records.send("source", topic, more)
    wait_until(lambda: records.arrived("target", name, 510), "the second runner", 180)
    assert records.read("target", name) == by_partition([*sent, *more])
    second.send_signal(signal.SIGTERM)
    assert finish(second, PATIENCE_SECONDS)[0] == 0, second.output.read_text()
    assert {epoch for kind, epoch, _, _ in shared.ledger() if kind == "relay"} == {2}
    assert shared.bronze() == {number: list(range(255)) for number in (0, 1)}
