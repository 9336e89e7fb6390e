"""The scenarios people run MM2 for, with their files, on local stand-ins; one of the clusters is Kafka 3.3.

Event Streams: SASL_SSL, user `token`. Strimzi on OpenShift: TLS with a truststore of its CA. Event Hubs: SASL_SSL, user
`$ConnectionString`, topics made by an operator. The local cluster: plain text.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Record, Records, by_partition, wait_until
from pyspark.sql import SparkSession

from mirrorlake import doctor, jars
from mirrorlake.config import Config, with_root
from mirrorlake.errors import TopicMissing
from mirrorlake.files import load_any
from mirrorlake.lab import ClusterSpec, Lab
from mirrorlake.lab.settings import properties_text
from mirrorlake.runner import Run, Snapshot
from mirrorlake.tables import FolderTables

API_KEY = "am_985-Q\"uote'd"
CONNECTION = "Endpoint=sb://local/;SharedAccessKeyName=relay;SharedAccessKey=abc+/="
KEEP = {"log.retention.ms": "-1"}
LIMIT = {"message.max.bytes": "1048576"}  # what Event Hubs and Event Streams take


@pytest.fixture(scope="module")
def standins(tmp_path_factory: pytest.TempPathFactory, small_brokers: None) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("standins")) as lab:
        users = {"token": API_KEY, "$ConnectionString": CONNECTION}
        lab.up(
            [
                ClusterSpec("cloud", protocol="SASL_SSL", users=users, config={**KEEP, **LIMIT}),
                ClusterSpec("strimzi", protocol="SSL", config=KEEP),
                ClusterSpec("local", old=True, config=KEEP),
            ]
        )
        ca = lab.cluster("strimzi").folder / "ca.pem"
        keytool = [str(jars.java().parent / "keytool"), "-import", "-trustcacerts", "-alias", "root", "-noprompt"]
        store = ["-file", str(ca), "-keystore", str(ca.with_name("truststore.jks")), "-storepass", "password"]
        subprocess.run([*keytool, *store], check=True, capture_output=True)  # as the seed's text has it
        yield lab


def event_streams(lab: Lab, alias: str) -> str:
    """The seed's lines, with the stand-in's address and authority."""
    cluster = lab.cluster("cloud")
    login = API_KEY.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return properties_text(
        {
            f"{alias}.bootstrap.servers": cluster.bootstrap_servers,
            f"{alias}.security.protocol": "SASL_SSL",
            f"{alias}.ssl.protocol": "TLSv1.2",
            f"{alias}.ssl.truststore.type": "PEM",
            f"{alias}.ssl.truststore.location": str(cluster.folder / "ca.pem"),
            f"{alias}.sasl.mechanism": "PLAIN",
            f"{alias}.sasl.jaas.config": f'{module} required username="token" password="{login}";',
        }
    )


def strimzi(lab: Lab, alias: str) -> str:
    cluster = lab.cluster("strimzi")
    return (
        f"{alias}.bootstrap.servers={cluster.bootstrap_servers}\n{alias}.security.protocol=SSL\n"
        f"{alias}.ssl.truststore.password=password\n{alias}.ssl.truststore.location={cluster.folder}/truststore.jks\n"
    )


def local(lab: Lab, alias: str) -> str:
    return f"{alias}.bootstrap.servers={lab.cluster('local').bootstrap_servers}\n"


def mm2_file(folder: Path, source: str, target: str, topic: str) -> Path:
    path = folder / "mm2.properties"
    flow = f"source->target.enabled=true\nsource->target.topics={topic}\n"
    # Without heartbeats: they are tested elsewhere.
    path.write_text(f"clusters=source, target\n{source}{target}{flow}emit.heartbeats.enabled=false\n")
    return path


def relayed(
    path: Path, folder: Path, spark: SparkSession, watch: Callable[[list[Snapshot]], None] = lambda _lines: None
) -> Config:
    """One pass with a file of any format; afterwards nobody has anything to complain about."""
    config = with_root(load_any(path, folder / "secrets").config, folder / "state")
    Run(config, once=True, spark=spark, watch=watch)()
    return config


def check(lab: Lab, records: Records, config: Config, clusters: tuple[str, str], topics: tuple[str, str]) -> None:
    assert records.read(clusters[1], topics[1]) == records.read(clusters[0], topics[0])
    the_doctor_agrees(config)


def the_doctor_agrees(config: Config) -> None:
    for alias in config.clusters:
        assert [each for each in doctor.examine_cluster(config, alias) if not each.ok] == []


@pytest.mark.parametrize(
    ("source", "target"), [("cloud", "local"), ("strimzi", "local"), ("local", "cloud")], ids=lambda name: name
)
def test_an_unchanged_mm2_file(tmp_path: Path, standins: Lab, spark: SparkSession, source: str, target: str) -> None:
    """Event Streams to local; Strimzi with TLS to local; local to Event Streams."""
    records, topic = Records(standins), f"orders-{source}-{target}"
    words = {"cloud": event_streams, "strimzi": strimzi, "local": local}
    records.create(source, topic, 2)
    records.send(source, topic, records.numbered(50, 2))
    path = mm2_file(tmp_path, words[source](standins, "source"), words[target](standins, "target"), topic)
    config = relayed(path, tmp_path, spark)
    assert records.read(target, f"source.{topic}") == by_partition(records.numbered(50, 2))
    check(standins, records, config, (source, target), (topic, f"source.{topic}"))


def test_event_streams_to_strimzi_with_a_strimzi_resource(tmp_path: Path, standins: Lab, spark: SparkSession) -> None:
    records, topic = Records(standins), "products"
    records.create("cloud", topic)
    records.send("cloud", topic, records.numbered(30))
    secrets = {
        "es-apikey/password": API_KEY,
        "cloud-ca/ca.crt": (standins.cluster("cloud").folder / "ca.pem").read_text(),
        "my-cluster-cluster-ca-cert/ca.crt": (standins.cluster("strimzi").folder / "ca.pem").read_text(),
    }
    for name, content in secrets.items():
        (tmp_path / "secrets" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "secrets" / name).write_text(content)
    path = tmp_path / "mm2.yaml"
    path.write_text(yaml.safe_dump(resource(standins, topic)))
    config = relayed(path, tmp_path, spark)
    check(standins, records, config, ("cloud", "strimzi"), (topic, f"es.{topic}"))


def resource(lab: Lab, topic: str) -> dict[str, Any]:
    def trusted(secret: str) -> dict[str, Any]:
        return {"trustedCertificates": [{"secretName": secret, "certificate": "ca.crt"}]}

    login = {
        "type": "plain",
        "username": "token",
        "passwordSecret": {"secretName": "es-apikey", "password": "password"},
    }
    cloud, cluster = lab.cluster("cloud").bootstrap_servers, lab.cluster("strimzi").bootstrap_servers
    return {
        "apiVersion": "kafka.strimzi.io/v1beta2",
        "kind": "KafkaMirrorMaker2",
        "metadata": {"name": "es-to-strimzi"},
        "spec": {
            "connectCluster": "ocp",
            "clusters": [
                {"alias": "es", "bootstrapServers": cloud, "authentication": login, "tls": trusted("cloud-ca")},
                {"alias": "ocp", "bootstrapServers": cluster, "tls": trusted("my-cluster-cluster-ca-cert")},
            ],
            "mirrors": [
                {
                    "sourceCluster": "es",
                    "targetCluster": "ocp",
                    "sourceConnector": {"config": {"replication.factor": 1, "sync.topic.acls.enabled": "false"}},
                    "topicsPattern": topic,
                }
            ],
        },
    }


def test_kafka_to_event_hubs_and_back(tmp_path: Path, standins: Lab, spark: SparkSession) -> None:
    """Topics are made by an operator there: the run says with which command, and goes on once it is done.

    A record that Kafka takes and Event Hubs does not is set aside.
    """
    records, topic, too_large = Records(standins), "bills", Record(b"x" * 1_030_000)
    records.create("local", topic, 2)
    records.send("local", topic, [*records.numbered(40, 2), too_large], **{"message.max.bytes": 2_000_000})
    cloud = standins.cluster("cloud")
    password = tmp_path / "connection-string"
    password.write_text(CONNECTION)
    hubs = {
        "kind": "event_hubs", "tier": "standard", "bootstrap_servers": cloud.bootstrap_servers,
        "security": {"password": f"${{file:{password}}}", "ca": str(cloud.folder / "ca.pem")},
    }  # fmt: skip
    clusters = {"kafka": standins.cluster("local").cluster_yaml(), "hubs": hubs}
    there: dict[str, Any] = {"source": "kafka", "topics": [topic], "targets": [{"cluster": "hubs"}]}
    there["on_undeliverable"] = "dead_letter"
    back = {"source": "hubs", "topics": [f"kafka.{topic}"], "max_hops": 2, "targets": [{"cluster": "kafka"}]}
    path = tmp_path / "there.yml"
    path.write_text(yaml.safe_dump({"clusters": clusters, "flows": {"there": there}}))
    with pytest.raises(TopicMissing) as refused:
        relayed(path, tmp_path, spark)
    assert "az eventhubs eventhub create" in refused.value.next_step
    assert f"--name kafka.{topic} --partition-count 2" in refused.value.next_step
    there["targets"] = [{"cluster": "hubs", "missing_topics": "wait"}]
    path.write_text(yaml.safe_dump({"clusters": clusters, "flows": {"there": there}}))
    waiting: set[str] = set()
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(relayed, path, tmp_path, spark, lambda lines: waiting.update(s.waiting for s in lines))
        wait_until(lambda: any(f"topic kafka.{topic} needs 2" in each for each in waiting), "the run to wait", 90)
        records.create("cloud", f"kafka.{topic}", 2)
        config = running.result(120)
    assert records.read("cloud", f"kafka.{topic}") == by_partition(records.numbered(40, 2))
    (letter,) = FolderTables(tmp_path / "state").read("ops.dead_letters").to_pylist()
    assert (letter["target_topic"], letter["record_bytes"] > 1_030_000) == (f"kafka.{topic}", True)
    the_doctor_agrees(config)
    # Back to where it came from: under a name that MM2's policy allows only when told so.
    back["targets"] = [{"cluster": "kafka", "naming": "identity"}]
    back["provenance"], back["targets"][0]["sole_writer"] = False, True
    path.write_text(yaml.safe_dump({"clusters": clusters, "flows": {"back": back}}))
    config = relayed(path, tmp_path, spark)
    check(standins, records, config, ("cloud", "local"), (f"kafka.{topic}", f"kafka.{topic}"))
