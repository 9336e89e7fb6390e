"""A relay under exactly the rights we print, given with Kafka's own tool; and what is named when one is missing."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from harness import Flow, Records, by_partition
from pyspark.sql import SparkSession

from mirrorlake import doctor, jars
from mirrorlake.config import load, parse
from mirrorlake.errors import AccessRefused
from mirrorlake.lab import ClusterSpec, Lab, LabCluster
from mirrorlake.lab.settings import properties_text

GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:bob",
    "log.retention.ms": "-1",
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, small_brokers: None) -> Iterator[Lab]:
    """Two clusters where bob may do everything, and ann nothing yet."""
    users = {"bob": "b", "ann": "a"}
    with Lab(tmp_path_factory.mktemp("rights")) as lab:
        lab.up([ClusterSpec(n, protocol="SASL_PLAINTEXT", users=users, config=GUARDED) for n in ("source", "target")])
        yield lab


def as_ann(flow: Flow) -> Path:
    path = flow.write()
    content = yaml.safe_load(path.read_text())
    for name in content["clusters"]:
        content["clusters"][name] = flow.lab.cluster(name).cluster_yaml("ann")
    path.write_text(yaml.safe_dump(content))
    return path


def kafka_acls(own: Lab, folder: Path, lines: list[str], verb: str = "--add") -> None:
    """Runs the printed commands as they are, with an administrator's properties."""
    admin = folder / "admin.properties"
    admin.write_text(properties_text({k: v for k, v in own.cluster("source").java_properties("bob").items()
                                      if k != "bootstrap.servers"}))  # fmt: skip
    path = jars.class_path(jars.resolve(jars.MM2, print))
    java = [str(jars.java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path]
    for line in lines:
        words = shlex.split(line.replace("admin.properties", str(admin)).replace("--add", verb))
        force = ["--force"] if verb == "--remove" else []
        done = subprocess.run([*java, "org.apache.kafka.tools.AclCommand", *words[1:], *force], capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]


def test_the_printed_rights_are_enough_and_each_is_needed(tmp_path: Path, own: Lab, spark: SparkSession) -> None:
    records, topic = Records(own), "guarded"
    quiet = {"configs": {"enabled": False}, "acls": {"enabled": False}, "groups": {"checkpoints": False}}
    flow = Flow(tmp_path, own, spark, [topic], ["target"], {"target": quiet})
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(40, 2))
    config = load(as_ann(flow))
    granted = {alias: doctor.grants(config, alias) for alias in ("source", "target")}
    for lines in granted.values():
        kafka_acls(own, tmp_path, lines)
    flow.write = lambda: flow.path  # type: ignore[method-assign]  # ann's stays
    flow.run_once()
    assert records.read("target", f"source.{topic}") == by_partition(records.numbered(40, 2))
    assert flow.audit().ok

    records.send("source", topic, records.numbered(10, 2, first=40))
    for alias, resource, operation, named in (
        ("target", f"--topic source.{topic}", "Write", f"source.{topic}"),
        ("source", f"--topic {topic}", "Read", topic),
    ):
        (line,) = (line for line in granted[alias] if line.endswith(resource))
        one = f"{line.split(' --operation')[0]} --operation {operation} {resource}"
        kafka_acls(own, tmp_path, [one], "--remove")
        with pytest.raises(AccessRefused) as refused:
            flow.run_once()
        assert alias in refused.value.what
        assert named in refused.value.what or "luster authorization" in refused.value.what
        assert "kafka-acls" in refused.value.next_step
        faults = [check for check in doctor.examine_cluster(config, alias) if check.level == "fault"]
        assert [(check.what, operation.upper() in check.detail) for check in faults] == [("rights", True)]
        kafka_acls(own, tmp_path, [one])
    flow.run_once()
    assert records.read("target", f"source.{topic}") == by_partition(records.numbered(50, 2))


def grant(cluster: LabCluster, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    wanted = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:ann", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    admin = cluster.admin()
    for future in admin.create_acls(wanted).values():
        future.result(20)


def test_the_doctor_tells_rights_one_by_one_and_gives_them_as_commands(own: Lab) -> None:
    records, target = Records(own), own.cluster("target")
    records.create("source", "doctored", 2)
    records.create("target", "source.doctored", 2)
    clusters = {"source": own.cluster("source").cluster_yaml(), "b": target.cluster_yaml("ann")}
    flow = {"source": "source", "topics": ["doctored"], "targets": [{"cluster": "b"}]}
    config = parse(yaml.safe_dump({"clusters": clusters, "flows": {"f": flow}}), "x.yml")

    def last() -> doctor.Check:
        return list(doctor.examine_cluster(config, "b"))[-1]

    nothing = last()
    assert (nothing.what, nothing.level) == ("rights", "fault")
    assert "WRITE on topic source.doctored (to send records)" in nothing.detail
    wanted = "User:ann --operation Create --operation Read --operation Write --topic source.doctored"
    assert any(line.endswith(wanted) for line in nothing.fix.splitlines())
    grant(target, ResourceType.TOPIC, "source.doctored", AclOperation.WRITE)
    grant(target, ResourceType.GROUP, "mirrorlake-reader", AclOperation.DESCRIBE)
    some = last()
    assert (some.what, some.level) == ("rights", "fault")
    assert "WRITE on topic" not in some.detail
    assert "READ on topic source.doctored" in some.detail
    grant(target, ResourceType.TOPIC, "source.doctored", AclOperation.READ)
    enough = list(doctor.examine_cluster(config, "b"))
    rights = next(check for check in enough if check.what == "rights")
    assert rights.level == "warning"  # it goes on, without what is optional
    assert enough[-1].what == "clock"
