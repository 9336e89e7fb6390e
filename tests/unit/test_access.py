"""The least rights, and how they are told and sorted."""

from __future__ import annotations

import json
from typing import Any

from mirrorlake.access import CLUSTER_NAME, Need, commands, needs, principal_of, sort_out
from mirrorlake.config import Config, parse

SASL = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "re lay", "password": "${env:P}"}


def config(target: dict[str, Any] | None = None, **flow: Any) -> Config:
    clusters = {"a": {"bootstrap_servers": "a:9092"}, "b": {"bootstrap_servers": "b:9093", "security": SASL}}
    quiet = {"configs": {"enabled": False}, "acls": {"enabled": False}, "groups": {"checkpoints": False}}
    targets = [{"cluster": "b", **quiet, **(target or {})}]
    flows = {"f": {"source": "a", "topics": ["t"], "targets": targets, **flow}}
    return parse(json.dumps({"clusters": clusters, "flows": flows}), "x")


def told(wanted: list[Need], optional: bool) -> set[tuple[str, str, str]]:
    return {(need.resource, need.name, need.operation) for need in wanted if need.optional is optional}


def test_a_source_is_read_and_nothing_else() -> None:
    wanted = needs(config(), "a", {})
    assert told(wanted, optional=False) == {("topic", "t", "READ"), ("group", "mirrorlake-reader", "DESCRIBE")}
    assert told(wanted, optional=True) == set()


def test_a_target_is_written_read_back_and_made() -> None:
    name = "a.t"
    least = {("topic", name, "WRITE"), ("topic", name, "READ"), ("group", "mirrorlake-reader", "DESCRIBE")}
    wanted = needs(config({"create_topics": False}), "b", {})
    assert told(wanted, optional=False) == least
    assert told(wanted, optional=True) == {("topic", name, "DESCRIBE_CONFIGS")}
    made = needs(config(), "b", {})
    assert told(made, optional=False) == least | {("topic", name, "CREATE")}
    assert ("topic", name, "ALTER") in told(made, optional=True)


def test_patterns_need_rights_on_what_they_take_now() -> None:
    wanted = needs(config(topics=[], patterns=["o.*"]), "a", {"a": ["orders", "other", "bills"]})
    assert {need.name for need in wanted if need.resource == "topic"} == {"orders", "other"}


def test_configurations_and_acls_ask_for_more_and_can_be_done_without() -> None:
    both = config({"configs": {"enabled": True}, "acls": {"enabled": True}})
    assert told(needs(both, "a", {}), optional=True) == {
        ("topic", "t", "DESCRIBE_CONFIGS"), ("cluster", CLUSTER_NAME, "DESCRIBE"),
    }  # fmt: skip
    assert {("topic", "a.t", "ALTER_CONFIGS"), ("cluster", CLUSTER_NAME, "ALTER")} <= told(
        needs(both, "b", {}), optional=True
    )


def test_groups_ask_for_rights_on_groups() -> None:
    synced = config({"groups": {"sync": True}})
    assert ("group", "*", "DESCRIBE") in told(needs(synced, "a", {}), optional=True)
    assert ("group", "*", "READ") in told(needs(synced, "b", {}), optional=True)


def test_what_is_told_is_sorted() -> None:
    read, write = Need("topic", "t", "READ", ""), Need("topic", "t", "WRITE", "", optional=True)
    make, new = Need("topic", "new", "CREATE", ""), Need("topic", "new", "WRITE", "")
    held = sort_out([read, write, make, new], {("topic", "t"): frozenset({"READ"}), ("topic", "new"): None})
    assert (held.granted, held.missing, held.untold) == ((read,), (write,), (make, new))
    assert held.lacking == ()
    everywhere = {("topic", "new"): None, ("cluster", CLUSTER_NAME): frozenset({"CREATE"})}
    assert sort_out([make], everywhere).granted == (make,)
    assert sort_out([read], {("topic", "t"): frozenset()}).lacking == (read,)


def test_commands_are_one_for_each_resource_and_quoted() -> None:
    chosen = config()
    lines = commands(chosen.clusters["b"], needs(chosen, "b", {}), principal_of(chosen.clusters["b"]))
    assert len(lines) == 2
    assert lines[0].endswith("--add --allow-principal 'User:re lay' --operation Describe --group mirrorlake-reader")
    every = " ".join(f"--operation {name}" for name in ("Alter", "Create", "DescribeConfigs", "Read", "Write"))
    assert lines[1].endswith(f"{every} --topic a.t")
    assert principal_of(chosen.clusters["a"]) == "User:ANONYMOUS"
    assert principal_of(chosen.clusters["a"], "CN=me,O=us") == "User:CN=me,O=us"
