"""Configurations and ACLs of a target, kept as on the source; names of MM2's own scenarios where they are the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Records, wait_until

from mirrorlake import inspection
from mirrorlake.config import Config, load
from mirrorlake.heartbeats import decode
from mirrorlake.kafka import Acl, Cluster, NewTopicSpec
from mirrorlake.lab import ClusterSpec, Lab
from mirrorlake.tables import FolderTables, ensure_ops
from mirrorlake.targets import TargetPlan, make_topics
from mirrorlake.upkeep import Upkeep
from mirrorlake.world import World, connect, reach

GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
}
PASSWORDS = {"admin": "admin-secret", "relay": "relay-secret"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, small_brokers: None) -> Iterator[Lab]:
    """Two clusters with an authorizer; `admin` may do everything, `relay` what it was given."""
    with Lab(tmp_path_factory.mktemp("guarded")) as lab:
        lab.up([ClusterSpec(name, protocol="SASL_PLAINTEXT", users=PASSWORDS, config=GUARDED) for name in ("a", "b")])
        yield lab


@dataclass
class Kept:
    """One flow and what is done beside its copying, without the copying."""

    folder: Path
    lab: Lab
    topics: list[str]
    target: dict[str, Any] = field(default_factory=dict)
    flow: dict[str, Any] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    aliases: tuple[str, str] = ("a", "b")

    @property
    def config(self) -> Config:
        source, target = self.aliases
        clusters = {alias: self._cluster(alias) for alias in self.aliases}
        flow = {"source": source, "topics": self.topics, "targets": [{"cluster": target, **self.target}], **self.flow}
        path = self.folder / "flow.yml"
        content = {"storage": {"root": str(self.folder / "state")}, "clusters": clusters, "flows": {"flow": flow}}
        path.write_text(yaml.safe_dump(content))
        return load(path)

    def _cluster(self, alias: str) -> dict[str, Any]:
        made = self.lab.cluster(alias).cluster_yaml()
        if alias in self.users:
            user = self.users[alias]
            made["security"] = {**made["security"], "username": user, "password": PASSWORDS[user]}
            made["allow_literal_secrets"] = True
        return made

    def plan(self) -> TargetPlan:
        config = self.config
        flow = config.flow("flow")
        tables = FolderTables(self.folder / "state")
        (plan,) = inspection.make_plan(config, flow, connect(config, [flow]), tables).targets
        return plan

    def upkeep(self) -> Upkeep:
        config = self.config
        flow, tables = config.flow("flow"), FolderTables(self.folder / "state")
        ensure_ops(tables, "ops")
        clusters = connect(config, [flow])
        world = World(config, self.folder / "state", None, tables, clusters, reach(clusters), {})  # type: ignore[arg-type]
        return Upkeep(world, flow, flow.targets[0], self.said.append)

    def tend(self) -> None:
        self.upkeep().tend()

    def incidents(self) -> list[tuple[str, str]]:
        rows = FolderTables(self.folder / "state").read("ops.incidents").to_pylist()
        return [(row["kind"], row["topic"]) for row in rows]


@pytest.fixture
def kept(tmp_path: Path, guarded: Lab, topic: str) -> Callable[..., Kept]:
    """A topic on both sides, as after a first run."""

    def make(source: dict[str, str] | None = None, **fields: Any) -> Kept:
        records = Records(guarded)
        records.create("a", topic, 2, **(source or {}))
        records.create("b", f"a.{topic}", 2)
        return Kept(tmp_path, guarded, [topic], **fields)

    return make


@pytest.fixture
def ends(guarded: Lab) -> tuple[Cluster, Cluster]:
    records = Records(guarded)
    return records.cluster("a"), records.cluster("b")


def value(cluster: Cluster, topic: str, key: str) -> tuple[str | None, str]:
    setting = cluster.topic_configs([topic])[topic][key]
    return setting.value, setting.origin


def awaited(cluster: Cluster, topic: str, key: str, wanted: str) -> None:
    wait_until(lambda: value(cluster, topic, key)[0] == wanted, f"{key}={wanted}")


# --- configurations ---


def test_sync_topic_configs(kept: Callable[..., Kept], ends: tuple[Cluster, Cluster], topic: str) -> None:
    """What was changed by hand on the target is put right and reported; excluded keys are left alone."""
    flow = kept({"delete_retention_ms": "1000", "retention_bytes": "1000"}, target={"configs": {"every_seconds": 1}})
    flow.target["configs"]["exclude"] = [r"delete\.retention\.ms", r"min\.insync\.replicas"]
    source, target = ends
    upkeep, name = flow.upkeep(), f"a.{topic}"
    assert flow.plan().alters == {name: {"retention.bytes": "1000"}}
    upkeep.tend()
    awaited(target, name, "retention.bytes", "1000")
    assert flow.incidents() == [], "the first time it is no drift"
    assert not target.alter_configs({name: {"retention.bytes": "7", "delete.retention.ms": "7"}})
    awaited(target, name, "delete.retention.ms", "7")

    def put_right() -> bool:
        upkeep.tend()
        return value(target, name, "retention.bytes")[0] == "1000"

    wait_until(put_right, "the next round")
    assert value(target, name, "delete.retention.ms") == ("7", "topic")
    assert flow.incidents() == [("config_drift", name)]
    assert f"target b: topic {name}: retention.bytes was 7, a says 1000" in flow.said
    assert flow.plan().alters == {}
    assert not source.alter_configs({topic: {"retention.bytes": None}})
    wait_until(lambda: value(source, topic, "retention.bytes")[1] == "default", "the source's change")
    wait_until(lambda: upkeep.tend() or value(target, name, "retention.bytes")[1] == "default", "the next round")  # type: ignore[func-returns-value]
    assert flow.incidents() == [("config_drift", name)], "the source's own change is no drift"


def test_replicate_source_default(kept: Callable[..., Kept], ends: tuple[Cluster, Cluster], topic: str) -> None:
    flow, name = kept(target={"configs": {"use_defaults_from": "source"}}), f"a.{topic}"
    _, target = ends
    assert not target.alter_configs({name: {"delete.retention.ms": "2000", "unclean.leader.election.enable": "true"}})
    flow.tend()
    awaited(target, name, "delete.retention.ms", "86400000")
    assert value(target, name, "delete.retention.ms")[1] == "topic"
    assert value(target, name, "unclean.leader.election.enable") == ("true", "topic"), "excluded, as in MM2"


def test_replicate_target_default(kept: Callable[..., Kept], ends: tuple[Cluster, Cluster], topic: str) -> None:
    flow, name = kept(), f"a.{topic}"
    _, target = ends
    assert not target.alter_configs({name: {"delete.retention.ms": "2000"}})
    wait_until(lambda: value(target, name, "delete.retention.ms")[1] == "topic", "the change by hand")
    flow.tend()
    wait_until(lambda: value(target, name, "delete.retention.ms")[1] == "default", "the default")


def test_what_the_target_refuses_is_an_incident_and_no_error(
    kept: Callable[..., Kept], ends: tuple[Cluster, Cluster], topic: str
) -> None:
    flow, name = kept({"retention_bytes": "1000"}, users={"b": "relay"}), f"a.{topic}"
    source, target = ends
    assert not source.create_acls([Acl("topic", topic, "User:ann", "read")])
    rights = [Acl("topic", name, "User:relay", operation) for operation in ("describe", "describe_configs")]
    assert not target.create_acls(rights)
    wait_until(lambda: set(rights) <= set(target.acls() or ()), "the rights")
    upkeep = flow.upkeep()
    wait_until(lambda: flow.plan().alters == {name: {"retention.bytes": "1000"}}, "the rights in force")
    upkeep.tend()
    assert flow.incidents() == [("sync_refused", name)] * 2, "the configuration and the ACL"
    assert [line for line in flow.said if "uthorization failed" in line] == flow.said
    replace(upkeep, _told=upkeep._told).tend()
    assert len(flow.incidents()) == 2, "a refusal is said once"


# --- ACLs ---


def test_acls_follow_the_source(kept: Callable[..., Kept], ends: tuple[Cluster, Cluster], topic: str) -> None:
    flow, name = kept(target={"acls": {"remove": True, "prefixed": True, "groups": True}}), f"a.{topic}"
    source, target = ends
    ann = Acl("topic", topic, "User:ann", "read")
    theirs = [
        ann,
        replace(ann, principal="User:bob", operation="all"),
        replace(ann, principal="User:eve", permission="deny", host="10.0.0.1"),
        replace(ann, principal="User:app", operation="write"),
        replace(ann, name=topic[:-3], principal="User:pre", pattern="prefixed"),
        Acl("group", f"{topic}-readers", "User:ann", "read"),
    ]
    by_hand = Acl("topic", name, "User:local", "read")
    assert not source.create_acls(theirs)
    assert not target.create_acls([by_hand])
    wait_until(lambda: set(theirs) <= set(source.acls() or ()), "the source's ACLs")
    expected = {
        replace(ann, name=name),
        replace(ann, name=name, principal="User:bob"),
        replace(ann, name=name, principal="User:eve", permission="deny", host="10.0.0.1"),
        Acl("topic", f"a.{topic[:-3]}", "User:pre", "read", pattern="prefixed"),
        Acl("group", f"{topic}-readers", "User:ann", "read"),
    }

    def there() -> set[Acl]:
        return {acl for acl in target.acls() or () if topic[:-3] in acl.name}

    assert set(flow.plan().acls.give) == expected
    flow.tend()
    wait_until(lambda: there() == {*expected, by_hand}, "the ACLs on the target")
    assert flow.plan().acls.give == ()
    assert not source.delete_acls([ann])
    wait_until(lambda: ann not in (source.acls() or ()), "the revocation")
    assert flow.plan().acls.take == (replace(ann, name=name),)
    flow.tend()
    wait_until(lambda: there() == {*expected, by_hand} - {replace(ann, name=name)}, "only ours is taken away")
    assert "ACLs" not in flow.plan().declined


def test_acls_are_left_alone_where_switched_off_or_where_there_is_no_authorizer(
    kept: Callable[..., Kept], ends: tuple[Cluster, Cluster], tmp_path: Path, lab: Lab, topic: str
) -> None:
    source, _ = ends
    flow = kept(target={"acls": {"enabled": False}})
    acl = Acl("topic", topic, "User:ann", "read")
    assert not source.create_acls([acl])
    wait_until(lambda: acl in (source.acls() or ()), "the source's ACL")
    assert flow.plan().acls.give == ()
    flow.target = {}
    wait_until(lambda: len(flow.plan().acls.give) == 1, "by default they are copied")
    Records(lab).create("source", topic)
    open_source = Kept(tmp_path, lab, [topic], aliases=("source", "target"))
    assert open_source.plan().declined == {}
    open_source.tend()
    assert open_source.said == []


# --- heartbeats ---


def test_heartbeats_go_to_both_ends_in_the_format_of_mm2(kept: Callable[..., Kept], guarded: Lab, topic: str) -> None:
    flow, records = kept(flow={"heartbeats": {"enabled": True}}), Records(guarded)
    begun_ms = time.time() * 1000
    flow.upkeep().beat()
    for here, there in (("a", "b"), ("b", "a")):
        wait_until(lambda here=here: records.arrived(here, "heartbeats", 1), f"a beat on {here}")  # type: ignore[misc]
        (beat,) = records.read(here, "heartbeats")[0]
        source, target, at_ms = decode(beat.key or b"", beat.value or b"")
        assert (source, target) == (there, here)
        assert begun_ms - 1 <= at_ms == beat.timestamp_ms
        assert value(records.cluster(here), "heartbeats", "cleanup.policy") == ("compact", "topic")
    plan = flow.plan()
    assert plan.creates["a.heartbeats"] == 1
    assert plan.alters["a.heartbeats"] == {"cleanup.policy": "compact"}


def test_where_heartbeats_are_refused_it_is_said_and_the_rest_goes_on(kept: Callable[..., Kept], topic: str) -> None:
    flow = kept(flow={"heartbeats": {"enabled": True}}, users={"b": "relay"})
    flow.upkeep().beat()
    assert [line.partition(":")[0] for line in flow.said] == ["no heartbeats on b"]


# --- many topics ---


def test_many_topics_are_planned_and_made_at_once(tmp_path: Path, guarded: Lab) -> None:
    records = Records(guarded)
    source, target = records.cluster("a"), records.cluster("b")
    source.create_topics(NewTopicSpec(f"many-{n:03}", 1 + n % 3, 1, {"retention.ms": "60000"}) for n in range(100))
    flow = Kept(tmp_path, guarded, [], flow={"patterns": ["many-.*"]})
    wait_until(lambda: len(flow.plan().creates) == 100, "the source's topics")
    plan = flow.plan()
    make_topics(target, flow.config.flow("flow").targets[0], plan)
    wait_until(lambda: len(target.describe(plan.creates)) == 100, "the target's topics")
    assert {name: info.partitions for name, info in target.describe(plan.creates).items()} == plan.creates
    assert all(value(target, name, "retention.ms") == ("60000", "topic") for name in list(plan.creates)[:5])
    assert flow.plan().to_json() == TargetPlan("b").to_json(), "nothing is left"
