"""How long one pass over many consumer groups takes: `benchmarks/groups_at_scale.py --groups 1000 --partitions 100`.

Two real brokers on this machine, one topic on each, a ledger with gaps, and groups that have committed in every
partition. Measured are a look (read, translate, compare), the first sync (everything is written and read back) and a
sync with nothing to do.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from confluent_kafka import Producer

from mirrorlake.config import Config, validated
from mirrorlake.consumers import Commit, Consumers
from mirrorlake.kafka import Cluster
from mirrorlake.lab import ClusterSpec, Lab
from mirrorlake.ledger import BASELINE, RELAY, Entry
from mirrorlake.links import Storage
from mirrorlake.records import BRONZE, LEDGER, SourcePartition, TopicPartition
from mirrorlake.tables import FolderTables, ensure_ops
from mirrorlake.topics import relay_specs
from mirrorlake.world import connect, now

TOPIC, RECORDS, RUN = "many", 200, 5
T = TypeVar("T")


def timed(what: str, act: Callable[[], T]) -> T:
    begun = time.perf_counter()
    found = act()
    print(f"{what}: {time.perf_counter() - begun:.1f} s", flush=True)
    return found


def configuration(lab: Lab, root: Path) -> Config:
    clusters = {alias: lab.cluster(alias).cluster_yaml() for alias in ("eu", "us")}
    flow = {"source": "eu", "topics": [TOPIC], "targets": [{"cluster": "us"}]}
    config, wrong = validated({"storage": {"root": str(root)}, "clusters": clusters, "flows": {"f": flow}})
    assert config, wrong
    return config


def fill(lab: Lab, alias: str, topic: str, partitions: int) -> Cluster:
    cluster = Cluster(alias, lab.cluster(alias).client_config())
    cluster.create_topic(topic, partitions, 1, {})
    time.sleep(2)
    producer = Producer(lab.cluster(alias).client_config())
    for number in range(partitions):
        for n in range(RECORDS):
            producer.produce(topic, b"%d" % n, partition=number)
        producer.flush()
    return cluster


def entries(source: Cluster, target: Cluster, partitions: int) -> list[Entry]:
    """Runs of a few records with a foreign one after each: translation has to search."""
    ids = source.describe([TOPIC])[TOPIC].id, target.describe([f"eu.{TOPIC}"])[f"eu.{TOPIC}"].id
    found = []
    for number in range(partitions):
        at, to = SourcePartition(TOPIC, ids[0], number), TopicPartition(f"eu.{TOPIC}", number)
        found.append(Entry("f", "us", BASELINE, 1, at, 0, -1, to, ids[1], None, 0, 0))
        for first in range(0, RECORDS * RUN // (RUN + 1), RUN):
            place = first // RUN * (RUN + 1)
            found.append(Entry("f", "us", RELAY, 1, at, first, first + RUN - 1, to, ids[1], place, RUN, place + RUN))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder) / "lab") as lab:
        lab.up([ClusterSpec("eu"), ClusterSpec("us")])
        config = configuration(lab, Path(folder) / "state")
        flow = config.flow("f")
        source, target = fill(lab, "eu", TOPIC, asked.partitions), fill(lab, "us", f"eu.{TOPIC}", asked.partitions)
        tables = FolderTables(Path(folder) / "state")
        ensure_ops(tables, "ops")
        tables.ensure(relay_specs(config, flow)[0].table, BRONZE, {})
        rows = [entry.row(now()) for entry in entries(source, target, asked.partitions)]
        tables.append("ops.ledger", pa.Table.from_pylist(rows, schema=LEDGER))
        chance = random.Random(7)  # noqa: S311
        places = [TopicPartition(TOPIC, number) for number in range(asked.partitions)]
        wanted = {
            f"group-{n}": {at: Commit(chance.randrange(RECORDS // 2)) for at in places} for n in range(asked.groups)
        }
        timed("groups made", lambda: Consumers(source).commit(wanted))
        passage = Storage(config, tables, connect(config, [flow])).passage(flow, flow.targets[0])
        lines = timed("look", passage.look)
        print(f"{len(lines)} positions of {asked.groups} groups, {len(rows)} rows in the ledger")
        done = timed("first sync, all written and read back", lambda: passage.commit(lines))
        assert {line.decision for line in done} == {"written"}
        again = timed("look and sync again, nothing to do", lambda: passage.commit(passage.look()))
        assert {line.reason for line in again} == {"stands there already"}


if __name__ == "__main__":
    main()
