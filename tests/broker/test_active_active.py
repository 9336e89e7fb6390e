"""No loops: clusters that send to each other, by prefixed and by identical names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Record, Records, flat
from pyspark.sql import SparkSession
from test_groups import commit

from mirrorlake import inspection
from mirrorlake.audit import Report
from mirrorlake.config import Config, load
from mirrorlake.lab import Lab
from mirrorlake.links import Storage
from mirrorlake.names import naming_policy
from mirrorlake.provenance import digest, find
from mirrorlake.records import TopicPartition
from mirrorlake.runner import Run
from mirrorlake.tables import FolderTables
from mirrorlake.world import connect

MANY, FEW, PARTITIONS = 10_000, 300, 2
Mesh = Callable[..., Config]


@pytest.fixture
def mesh(tmp_path: Path, lab: Lab) -> Mesh:
    """One configuration with a flow from each source to its targets."""

    def make(
        links: Mapping[str, Sequence[str]], naming: str, patterns: list[str], name: str = "state", **options: Any
    ) -> Config:
        flows = {
            source: {
                "source": source,
                "patterns": patterns,
                "targets": [{"cluster": alias, "naming": naming, "existing_records": "append"} for alias in targets],
                **options,
            }
            for source, targets in links.items()
        }
        aliases = {*links, *(alias for targets in links.values() for alias in targets)}
        clusters = {alias: lab.cluster(alias).cluster_yaml() for alias in sorted(aliases)}
        path = tmp_path / f"{name}.yml"
        content = {"storage": {"root": str(tmp_path / name)}, "clusters": clusters, "flows": flows}
        path.write_text(yaml.safe_dump(content))
        return load(path)

    return make


def own(cluster: str, count: int) -> list[Record]:
    """Records whose values say where they began."""
    return [
        Record(b"%s-%d" % (cluster.encode(), n), b"key-%d" % n, (), 1_700_000_000_000 + n, n % PARTITIONS)
        for n in range(count)
    ]


def begin(records: Records, topic: str, clusters: Sequence[str], count: int) -> None:
    for cluster in clusters:
        records.create(cluster, topic, PARTITIONS)
        records.send(cluster, topic, own(cluster, count))


def values(records: Records, cluster: str, topic: str) -> Counter[bytes | None]:
    return Counter(record.value for record in flat(records.read(cluster, topic)))


def everything(clusters: Sequence[str], count: int) -> Counter[bytes | None]:
    return Counter(record.value for cluster in clusters for record in own(cluster, count))


def run(config: Config, spark: SparkSession, times: int) -> None:
    for _ in range(times):
        Run(config, once=True, spark=spark)()


def audits(config: Config, tmp_path: Path) -> dict[str, Report]:
    clusters, tables = connect(config, list(config.flows.values())), FolderTables(tmp_path / "state")
    return {name: inspection.run_audit(config, flow, clusters, tables) for name, flow in config.flows.items()}


def audits_are_well(config: Config, tmp_path: Path) -> bool:
    return all(report.ok for report in audits(config, tmp_path).values())


def left_out(tmp_path: Path, flow: str) -> int:
    """Records that the ledger has as skipped."""
    rows = FolderTables(tmp_path / "state").read("ops.ledger").to_pylist()
    return sum(row["count"] for row in rows if row["kind"] == "skip" and row["flow"] == flow)


def test_replication(mesh: Mesh, records: Records, spark: SparkSession, topic: str, tmp_path: Path) -> None:
    """Both ways by default names: each cluster has its own and a copy of the other's, and no copy of a copy."""
    config = mesh({"source": ["target"], "target": ["source"]}, "default", [rf"(.*\.)?{topic}"])
    begin(records, topic, ["source", "target"], MANY)
    run(config, spark, times=2)
    for here, there in (("source", "target"), ("target", "source")):
        assert values(records, here, topic) == everything([here], MANY)
        assert values(records, here, f"{there}.{topic}") == everything([there], MANY)
        named = [name for name in records.cluster(here).topic_names() if name.split(".")[-1] == topic]
        assert sorted(named) == sorted([topic, f"{there}.{topic}"])
    assert audits_are_well(config, tmp_path)


def test_identity_replication(mesh: Mesh, records: Records, spark: SparkSession, topic: str, tmp_path: Path) -> None:
    """Both ways by identical names, which MM2 cannot: each record once on each cluster, by provenance."""
    config = mesh({"source": ["target"], "target": ["source"]}, "identity", [topic])
    begin(records, topic, ["source", "target"], MANY)
    run(config, spark, times=2)
    for cluster in ("source", "target"):
        assert values(records, cluster, topic) == everything(["source", "target"], MANY)
        assert left_out(tmp_path, cluster) == MANY, "what came from there does not go back, and the ledger says so"
    reports = audits(config, tmp_path)
    assert all(report.ok for report in reports.values())
    what_was_left_out_is_explained(config, reports["source"], records, topic, tmp_path)


def what_was_left_out_is_explained(
    config: Config, report: Report, records: Records, topic: str, tmp_path: Path
) -> None:
    """By the audit with its reason; by translation with the original, from which it came."""
    flow, each = config.flow("source"), MANY // PARTITIONS
    skipped = [(found.records, found.detail) for found in report.findings if found.kind == "skipped"]
    assert skipped == [(each, "loop: the record comes from the target")] * PARTITIONS
    commit(records, "source", f"{topic}.shop", topic, each + 2000)  # 2,000 copies after all of its own
    storage = Storage(config, FolderTables(tmp_path / "state"), connect(config, list(config.flows.values())))
    (line,) = storage.passage(flow, flow.targets[0]).look([f"{topic}.shop"])
    assert (line.target_offset, line.ahead, line.decision) == (2000, 0, "write")


@pytest.mark.parametrize("naming", ["default", "identity"])
def test_two_configurations_that_know_nothing_of_each_other(
    mesh: Mesh, records: Records, spark: SparkSession, topic: str, naming: str
) -> None:
    """A file, a root and a runner for each direction: what a record carries is all they share."""
    pattern = topic if naming == "identity" else rf"(.*\.)?{topic}"
    there = mesh({"source": ["target"]}, naming, [pattern], name="there")
    back = mesh({"target": ["source"]}, naming, [pattern], name="back")
    begin(records, topic, ["source", "target"], FEW)
    for config in (there, back, there, back):
        run(config, spark, times=1)
    for here, other in (("source", "target"), ("target", "source")):
        if naming == "identity":
            assert values(records, here, topic) == everything(["source", "target"], FEW)
        else:
            assert values(records, here, topic) == everything([here], FEW)
            assert values(records, here, f"{other}.{topic}") == everything([other], FEW)
            assert not [name for name in records.cluster(here).topic_names() if name.endswith(f".{here}.{topic}")]


THREE = ["source", "target", "hubs"]


def test_three_clusters_meshed(mesh: Mesh, records: Records, spark: SparkSession, topic: str, tmp_path: Path) -> None:
    """Every cluster sends to both others: one hop is enough, and a second would be a copy too many."""
    links = {cluster: [other for other in THREE if other != cluster] for cluster in THREE}
    config = mesh(links, "identity", [topic], max_hops=1)
    begin(records, topic, THREE, FEW)
    run(config, spark, times=2)
    for cluster in THREE:
        assert values(records, cluster, topic) == everything(THREE, FEW)
    assert audits_are_well(config, tmp_path)


def test_three_clusters_in_a_ring(
    mesh: Mesh, records: Records, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """Every cluster sends to the next: two hops reach all, and nobody gets back what began with him."""
    links = {"source": ["target"], "target": ["hubs"], "hubs": ["source"]}
    config = mesh(links, "identity", [topic], max_hops=2)
    begin(records, topic, THREE, FEW)
    run(config, spark, times=3)
    for cluster in THREE:
        assert values(records, cluster, topic) == everything(THREE, FEW)
    assert audits_are_well(config, tmp_path)


# --- a naming policy of one's own ---


@pytest.fixture
def by_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The class that docs/topics.md shows, where Python finds it."""
    page = (Path(__file__).parents[2] / "docs" / "topics.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    (tmp_path / "regions.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return "python:regions:ByRegion"


def test_two_hops_by_a_naming_policy_of_ones_own(
    mesh: Mesh, records: Records, spark: SparkSession, topic: str, tmp_path: Path, by_region: str
) -> None:
    """Names tell the way and lead back, provenance counts the hops, and the way home is cut by name."""
    links = {"source": ["target"], "target": ["hubs"], "hubs": ["source"]}
    config, policy = mesh(links, by_region, [rf"(.*-eu-)?{topic}"], max_hops=3), naming_policy(by_region, ".")
    begin(records, topic, ["source"], FEW)
    for flow in ("source", "target"):
        run(config.select([flow]), spark, times=1)
    once, twice = f"source-eu-{topic}", f"target-eu-source-eu-{topic}"
    origin = digest(records.cluster("source").cluster_id())
    for cluster, name, hops in (("target", once, 1), ("hubs", twice, 2)):
        assert values(records, cluster, name) == everything(["source"], FEW)
        assert hops_of(records, cluster, name) == {(hops, origin)}
    assert [policy.source_of(name) for name in (twice, once, topic)] == ["target", "source", None]
    assert [policy.upstream_topic(name) for name in (twice, once)] == [once, topic]
    assert audits_are_well(config.select(["source", "target"]), tmp_path)
    clusters, tables = connect(config, list(config.flows.values())), FolderTables(tmp_path / "state")
    (home,) = inspection.make_plan(config, config.flow("hubs"), clusters, tables).targets
    assert (home.creates, home.misnamed) == ({}, {}), "nothing goes home"


def hops_of(records: Records, cluster: str, topic: str) -> set[tuple[int, bytes]]:
    at = TopicPartition(topic, 0)
    messages = records.cluster(cluster).read_range(at, 0, records.cluster(cluster).log_ends([at])[at])
    found = [find(message.headers()) for message in messages]
    return {(came.hops, came.origin) for came in found if came}
