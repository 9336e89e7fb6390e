"""Records read again after a fail-over, at several distances behind the end: the real MM2 and Mirrorlake, side by side.

`python benchmarks/failover_distance.py` prints the table of docs/failover.md. One source, a target for each replicator,
one partition without gaps: so a group that stands at source offset n has read n records, and whatever it is given below
n is read again. Records are produced while MM2 runs, since it learns offsets by the way.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer

from mirrorlake import jars
from mirrorlake.config import Config, validated
from mirrorlake.consumers import Commit, Consumers
from mirrorlake.kafka import Cluster
from mirrorlake.lab import ClusterSpec, Lab, Mm2, mm2_properties
from mirrorlake.records import TopicPartition
from mirrorlake.runner import Run

TOPIC, COPY = "orders", "eu.orders"
DISTANCES = (0, 1, 10, 100, 1_000, 5_000, 20_000, 49_999)
PATIENCE_SECONDS = 120.0


def produce(lab: Lab, count: int) -> None:
    producer = Producer({**lab.cluster("eu").client_config(), "linger.ms": 5})
    for n in range(count):
        producer.produce(TOPIC, b"record %d" % n, partition=0)
        if n % 500 == 499:
            producer.flush()
            time.sleep(0.05)
    producer.flush()


def end(cluster: Cluster, topic: str) -> int:
    at = TopicPartition(topic, 0)
    return cluster.log_ends([at])[at] if topic in cluster.describe([topic]) else 0


def positions(cluster: Cluster, groups: Mapping[str, int]) -> dict[str, int]:
    found = Consumers(cluster).offsets(groups)
    return {
        group: held[TopicPartition(COPY, 0)].offset for group, held in found.items() if TopicPartition(COPY, 0) in held
    }


def settled(cluster: Cluster, groups: Mapping[str, int]) -> dict[str, int]:
    """What a replicator has synced once it has not changed for a while."""
    seen, since, begun = positions(cluster, groups), time.monotonic(), time.monotonic()
    while time.monotonic() - since < 10 and time.monotonic() - begun < PATIENCE_SECONDS:
        time.sleep(1)
        now = positions(cluster, groups)
        if now != seen:
            seen, since = now, time.monotonic()
    return seen


def with_mm2(lab: Lab, folder: Path, count: int, groups: Mapping[str, int], lag_max: str) -> dict[str, int]:
    source, target = clients(lab, "eu", "theirs")
    settings = {
        "topics": TOPIC, "plugin.discovery": "service_load", "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1", "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1", "offset.lag.max": lag_max,
    }  # fmt: skip
    named = {"eu": lab.cluster("eu"), "us": lab.cluster("theirs")}
    with Mm2(jars.resolve(jars.MM2, print), mm2_properties(named, [("eu", "us")], settings), folder):
        produce(lab, count)
        while end(target, COPY) < count:
            time.sleep(0.5)
        commit(source, groups)
        return settled(target, groups)


def with_ours(lab: Lab, root: Path, groups: Mapping[str, int]) -> dict[str, int]:
    Run(configuration(lab, root), once=True)()
    return positions(clients(lab, "ours")[0], groups)


def configuration(lab: Lab, root: Path) -> Config:
    clusters = {alias: lab.cluster(alias).cluster_yaml() for alias in ("eu", "ours")}
    aim = {"cluster": "ours", "groups": {"sync": True}}
    flows = {"f": {"source": "eu", "topics": [TOPIC], "targets": [aim]}}
    config, wrong = validated({"storage": {"root": str(root)}, "clusters": clusters, "flows": flows})
    assert config, wrong
    return config


def clients(lab: Lab, *aliases: str) -> list[Cluster]:
    return [Cluster(alias, lab.cluster(alias).client_config()) for alias in aliases]


def commit(source: Cluster, groups: Mapping[str, int]) -> None:
    wanted = {group: {TopicPartition(TOPIC, 0): Commit(offset)} for group, offset in groups.items()}
    assert not Consumers(source).commit(wanted)


def again(offset: int, place: int | None) -> str:
    return "all: not translated" if place is None else f"{offset - place:,}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--lag-max", default="100", help="offset.lag.max of MM2; 100 is its default, 0 its best")
    asked = parser.parse_args()
    groups = {f"behind-{d}": asked.records - d for d in DISTANCES if d < asked.records}
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder) / "lab") as lab:
        lab.up([ClusterSpec("eu"), ClusterSpec("theirs"), ClusterSpec("ours")])
        clients(lab, "eu")[0].create_topic(TOPIC, 1, 1, {})
        theirs = with_mm2(lab, Path(folder) / "mm2", asked.records, groups, asked.lag_max)
        ours = with_ours(lab, Path(folder) / "state", groups)
    print(
        f"| behind the end | Mirrorlake reads again | MM2 reads again (offset.lag.max={asked.lag_max}) |\n|---|---|---|"
    )
    for group, offset in groups.items():
        row = (f"{asked.records - offset:,}", again(offset, ours.get(group)), again(offset, theirs.get(group)))
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
