"""The doctor against real brokers: well, and with one thing wrong at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Record, Records, wait_until
from typer.testing import CliRunner

from mirrorlake.cli import app
from mirrorlake.config import Config, parse
from mirrorlake.doctor import Check, examine_cluster
from mirrorlake.errors import Transient
from mirrorlake.lab import ClusterSpec, Lab, LabCluster, certs
from mirrorlake.lab.settings import free_ports
from mirrorlake.records import TopicPartition

DOCS = Path(__file__).parents[2] / "docs"


def configuration(lab: Lab, target: dict[str, Any], **options: Any) -> Config:
    """From the lab's `source` to one cluster, which is looked at."""
    clusters = {"source": lab.cluster("source").cluster_yaml(), "b": target}
    flow = {"source": "source", "topics": ["doctored"], "targets": [{"cluster": "b", **options}]}
    return parse(yaml.safe_dump({"clusters": clusters, "flows": {"f": flow}}), "x.yml")


@pytest.fixture(scope="module", autouse=True)
def _topic(records: Records) -> None:
    records.create("source", "doctored", 2)
    records.send("source", "doctored", [Record(), Record(partition=1)])


def last(checks: Iterator[Check]) -> Check:
    return list(checks)[-1]


def secured(cluster: LabCluster, **changes: Any) -> dict[str, Any]:
    held = cluster.cluster_yaml()
    return {**held, "security": {**held["security"], **changes}}


def test_a_cluster_that_is_well_passes_every_step(lab: Lab, hubs: LabCluster) -> None:
    checks = list(examine_cluster(configuration(lab, hubs.cluster_yaml()), "b"))
    assert [check.what for check in checks] == [
        "configuration", "name resolves", "port answers", "TLS", "round trip", "login", "advertised listeners",
        "version", "rights", "limits", "replication factor", "clock",
    ]  # fmt: skip
    assert [check for check in checks if check.level == "fault"] == []
    facts = {check.what: check.facts for check in checks}
    assert 800 < facts["TLS"]["days_left"] <= 825
    assert facts["version"]["release"] == "4.1"
    assert all(facts["version"]["capabilities"].values())
    assert facts["rights"]["missing"] == []
    assert facts["round trip"]["milliseconds"] < 1000


def test_the_first_fault_is_the_last_step_and_names_the_fix(
    lab: Lab, source: LabCluster, hubs: LabCluster, tmp_path: Path
) -> None:
    other = certs.authority("another CA")
    (tmp_path / "other.pem").write_bytes(other.certificate_pem)
    port = free_ports(1)[0]
    wrong: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
        "a secret that is not there": (
            secured(hubs, password="${file:/nowhere}"), {}, "configuration", "Check the path"),
        "a name that nobody knows": (
            {"bootstrap_servers": "no-such-host.invalid:9092"}, {}, "name resolves", "getent hosts"),
        "a port where nobody listens": ({"bootstrap_servers": f"127.0.0.1:{port}"}, {}, "port answers", "firewall"),
        "TLS to a plain port": (
            {**hubs.cluster_yaml(), "bootstrap_servers": source.bootstrap_servers}, {}, "TLS", "security.protocol"),
        "plain text to a TLS port": (
            {"bootstrap_servers": hubs.bootstrap_servers}, {}, "round trip", "security.protocol"),
        "an authority that we do not know": (secured(hubs, ca=f"{tmp_path}/other.pem"), {}, "TLS", "--save-ca"),
        "a wrong password": (
            {**secured(hubs, password="wrong"), "allow_literal_secrets": True}, {}, "login", "security.username"),
        "more replicas than brokers": (
            source.cluster_yaml(), {"replication_factor": 3}, "replication factor", "1 or less"),
    }  # fmt: skip
    for name, (cluster, options, step, fix) in wrong.items():
        found = last(examine_cluster(configuration(lab, cluster, **options), "b"))
        assert (found.what, found.level) == (step, "fault"), (name, found)
        assert fix in found.fix, (name, found)


def test_an_advertised_listener_that_does_not_answer_is_named(lab: Lab, tmp_path: Path, small_brokers: None) -> None:
    said, listening = free_ports(2)
    with Lab(tmp_path) as own:
        own.up([ClusterSpec("astray", ports=(said,), listen_ports=(listening,))])
        found = last(examine_cluster(configuration(lab, {"bootstrap_servers": f"127.0.0.1:{listening}"}), "b"))
    assert (found.what, found.level) == ("advertised listeners", "fault")
    assert f"sends clients on to 127.0.0.1:{said}" in found.detail
    assert "advertised.listeners" in found.fix


def test_an_unknown_authority_is_written_down_with_a_warning(lab: Lab, hubs: LabCluster, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_bytes(certs.authority("another CA").certificate_pem)
    config = configuration(lab, secured(hubs, ca=f"{tmp_path}/other.pem"))
    found = last(examine_cluster(config, "b", tmp_path / "saved"))
    assert "Anyone between here and there could have shown it" in found.fix
    saved = tmp_path / "saved" / "b-ca.pem"
    assert saved.read_text() == (hubs.folder / "ca.pem").read_text()
    well = list(examine_cluster(configuration(lab, secured(hubs, ca=str(saved))), "b"))
    assert [check.level for check in well if check.what == "TLS"] == ["ok"]


def test_what_is_insecure_is_reported(lab: Lab, source: LabCluster, hubs: LabCluster) -> None:
    careless = {**secured(hubs, verify_hostname=False), "allow_insecure": True}
    first = next(examine_cluster(configuration(lab, careless), "b"))
    assert (first.level, "INSECURE" in first.detail) == ("warning", True)
    plain = next(examine_cluster(configuration(lab, source.cluster_yaml()), "source"))
    assert (plain.level, "plain text" in plain.detail) == ("warning", True)


def test_records_from_the_future_and_limits_that_do_not_fit(lab: Lab, records: Records, hubs: LabCluster) -> None:
    records.create("source", "soon", 40, max_message_bytes="3000000")
    everywhere = [TopicPartition("soon", number) for number in range(40)]
    wait_until(lambda: answers(records, everywhere), "leaders of all partitions")
    records.send("source", "soon", [Record(timestamp_ms=int(time.time() * 1000) + 1_800_000)])
    config = configuration(lab, {**hubs.cluster_yaml(), "kind": "event_hubs", "tier": "standard"})
    flow = config.flows["f"].model_copy(update={"topics": ["soon"]})
    config = config.model_copy(update={"flows": {"f": flow}})
    clock = last(examine_cluster(config, "source"))
    assert (clock.what, clock.level) == ("clock", "warning")
    assert 1_700 < clock.facts["ahead_seconds"] <= 1_800
    limits = next(check for check in examine_cluster(config, "b") if check.what == "limits")
    assert "source.soon needs 40 partitions: the tier takes 32" in limits.detail
    assert "may hold records of 3000000 bytes, the target takes 1000000" in limits.detail
    assert limits.level == "warning"


def answers(records: Records, partitions: list[TopicPartition]) -> bool:
    try:
        return bool(records.cluster("source").log_ends(partitions))
    except Transient:
        return False


def test_json_has_the_documented_keys(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    clusters = {name: lab.cluster(name).cluster_yaml() for name in ("source", "hubs")}
    flow = {"source": "source", "topics": ["doctored"], "targets": [{"cluster": "hubs"}]}
    path.write_text(yaml.safe_dump({"clusters": clusters, "flows": {"f": flow}}))
    done = CliRunner().invoke(app, ["doctor", "-c", str(path), "--root", str(tmp_path / "r"), "--json"])
    checks = json.loads(done.stdout)
    assert done.exit_code == 0, checks
    page = (DOCS / "commands.md").read_text()
    documented = page[page.index("## doctor") : page.index("\n## ", page.index("## doctor") + 5)]
    types = {"subject": str, "what": str, "ok": bool, "level": str, "detail": str, "fix": str, "facts": dict}
    for check in checks:
        assert {key: type(value) for key, value in check.items()} == types
    assert all(f"| `{key}` |" in documented for key in types)
    steps = {check["what"] for check in checks if check["subject"] != "machine"}
    assert {step for step in steps if f"`{step}`" not in documented} == set()
    assert {check["subject"] for check in checks} == {"machine", "source", "hubs"}
