"""Many topics: how long it takes to find, plan and make them, and what the control loop costs after that.

`python benchmarks/many_topics.py [--topics 500] [--partitions 1000]`: two local brokers, no Spark.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from mirrorlake.config import Config, load
from mirrorlake.kafka import Cluster, NewTopicSpec
from mirrorlake.lab import ClusterSpec, Lab
from mirrorlake.tables import FolderTables, ensure_ops
from mirrorlake.targets import Looker, make_topics, make_wish, plan_target
from mirrorlake.topics import flow_topics
from mirrorlake.upkeep import Upkeep
from mirrorlake.world import World, connect, reach


def configured(lab: Lab, folder: Path) -> Config:
    flow = {"source": "source", "patterns": ["many-.*"], "targets": [{"cluster": "target"}]}
    clusters = {alias: lab.cluster(alias).cluster_yaml() for alias in ("source", "target")}
    path = folder / "many.yml"
    content = {"storage": {"root": str(folder / "state")}, "clusters": clusters, "flows": {"many": flow}}
    path.write_text(yaml.safe_dump(content))
    return load(path)


def fill(source: Cluster, topics: int, partitions: int) -> None:
    """Partitions dealt out evenly; every topic says something for itself."""
    counts = [partitions // topics + (number < partitions % topics) for number in range(topics)]
    source.create_topics(
        NewTopicSpec(f"many-{number:04}", count, 1, {"retention.ms": "86400000"}) for number, count in enumerate(counts)
    )
    while len(source.describe(f"many-{number:04}" for number in range(topics))) < topics:
        time.sleep(0.1)


class Timed:
    """Seconds of each step, wall and processor time of this process."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, float]] = {}

    def __call__(self, step: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.monotonic(), time.process_time()
        result = work()
        took = {"seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}
        self.steps[step] = {name: round(value, 3) for name, value in took.items()}
        return result


def measure(lab: Lab, folder: Path, topics: int, partitions: int) -> dict[str, dict[str, float]]:
    config, timed = configured(lab, folder), Timed()
    flow = config.flow("many")
    clusters = connect(config, [flow])
    source, cluster = clusters["source"], clusters["target"]
    timed("make them on the source (not ours to do)", lambda: fill(source, topics, partitions))
    found = timed("find", lambda: source.describe(flow_topics(config, flow, source.topic_names())))
    assert sum(info.partitions for info in found.values()) == partitions
    wish = make_wish(config, flow, flow.targets[0], found)
    plan = timed("look and plan", lambda: plan_target(wish, Looker(source, cluster, wish)(found, True, True)))
    assert len(plan.creates) == topics
    timed("create", lambda: make_topics(cluster, flow.targets[0], plan))
    while len(cluster.describe(plan.creates)) < topics:
        time.sleep(0.1)
    measure_rounds(config, clusters, folder, timed)
    return timed.steps


def measure_rounds(config: Config, clusters: dict[str, Cluster], folder: Path, timed: Timed) -> None:
    """What comes back again and again while a flow runs."""
    flow, tables = config.flow("many"), FolderTables(folder / "state")
    ensure_ops(tables, "ops")
    source, cluster, target = clusters["source"], clusters["target"], flow.targets[0]
    world = World(config, folder / "state", None, tables, clusters, reach(clusters), {})  # type: ignore[arg-type]

    def refresh() -> None:
        found = source.describe(flow_topics(config, flow, source.topic_names()))
        wish = make_wish(config, flow, target, found)
        make_topics(cluster, target, plan_target(wish, Looker(source, cluster, wish)(found)))

    timed("one refresh of topics (every 30 s)", refresh)
    timed("one round of configurations and ACLs (every 60 s)", Upkeep(world, flow, target, print).tend)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder) / "lab") as lab:
        lab.up([ClusterSpec("source"), ClusterSpec("target")])
        steps = measure(lab, Path(folder), asked.topics, asked.partitions)
    print(json.dumps({"topics": asked.topics, "partitions": asked.partitions, "steps": steps}, indent=1))


if __name__ == "__main__":
    main()
