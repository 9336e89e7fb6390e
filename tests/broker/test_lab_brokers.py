"""Real brokers: reached over each protocol, broken on purpose, and gone at the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from mirrorlake import jars
from mirrorlake.errors import ClusterUnreachable, UsageFault
from mirrorlake.lab import ClusterSpec, Lab, LabCluster, certs
from mirrorlake.lab.commands import app
from mirrorlake.lab.settings import free_ports

QUIET = {"log_level": 0}


@pytest.fixture
def own_lab(tmp_path: Path, small_brokers: None) -> Iterator[Lab]:
    """A lab that a test may break."""
    with Lab(tmp_path / "lab") as lab:
        yield lab


def make_topic(cluster: LabCluster, partitions: int = 1, replicas: int = 1) -> str:
    topic = f"t-{uuid4().hex[:8]}"
    admin = AdminClient({**cluster.client_config(), **QUIET})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(20)
    return topic


def send(cluster: LabCluster, topic: str, *values: str, user: str | None = None) -> None:
    producer = Producer({**cluster.client_config(user), **QUIET, "message.timeout.ms": 20_000})
    errors: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda e, _: errors.append(e))
    assert producer.flush(25) == 0
    assert errors == [None] * len(values)


def read(cluster: LabCluster, topic: str, count: int) -> list[str]:
    consumer = Consumer({**cluster.client_config(), **QUIET, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, timeout=20)
    consumer.close()
    return [message.value().decode() for message in messages]


@pytest.mark.parametrize("name", ["source", "target", "hubs"])
def test_records_come_back_from_each_cluster(lab: Lab, name: str) -> None:
    cluster = lab.cluster(name)
    topic = make_topic(cluster)
    send(cluster, topic, "one", "two")
    assert read(cluster, topic, 2) == ["one", "two"]


def test_a_wrong_password_is_refused(hubs: LabCluster) -> None:
    errors: list[str] = []
    wrong = {"sasl.password": "wrong", "error_cb": lambda error: errors.append(error.name())}
    client = AdminClient({**hubs.client_config(), **QUIET, **wrong})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    client.poll(0)
    assert "_AUTHENTICATION" in errors


def test_another_authority_is_not_trusted(hubs: LabCluster, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(certs.authority().certificate_pem)
    errors: list[str] = []
    wrong = {
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "error_cb": lambda error: errors.append(error.name()),
    }
    client = AdminClient({**hubs.client_config(), **QUIET, **wrong})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    client.poll(0)
    assert "_SSL" in errors


def test_ssl_takes_client_certificates_and_sasl_plaintext_many_users(own_lab: Lab) -> None:
    mutual = ClusterSpec("mutual", protocol="SSL", config={"ssl.client.auth": "required"})
    plain = ClusterSpec("plain", protocol="SASL_PLAINTEXT", users={"ann": "a", "bob": "b"})
    for cluster, user in zip(own_lab.up([mutual, plain]).values(), [None, "bob"], strict=True):
        topic = make_topic(cluster)
        send(cluster, topic, "x", user=user)
        assert read(cluster, topic, 1) == ["x"]


def test_a_stopped_and_a_killed_cluster_keep_their_data(own_lab: Lab) -> None:
    spec = ClusterSpec("keeps")
    cluster = own_lab.up([spec])["keeps"]
    topic = make_topic(cluster)
    send(cluster, topic, "before")
    own_lab.down()
    assert [status.state for status in own_lab.status()] == ["stopped"]
    # Another process would see what a second Lab sees.
    assert Lab(own_lab.root).up([spec])["keeps"] == cluster
    cluster.kill_broker(0)
    assert cluster.process(0) is None
    cluster.start_broker(0)
    send(cluster, topic, "after")
    assert read(cluster, topic, 2) == ["before", "after"]
    with pytest.raises(UsageFault, match="differs"):
        own_lab.up([ClusterSpec("keeps", brokers=2)])
    fresh = own_lab.up([spec], fresh=True)["keeps"]
    assert topic not in AdminClient(fresh.client_config()).list_topics(timeout=10).topics


def test_a_paused_broker_does_not_answer_until_it_is_resumed(target: LabCluster) -> None:
    topic = make_topic(target)
    target.pause_broker(0)
    try:
        assert [status.state for status in target.status()] == ["running"]
    finally:
        target.resume_broker(0)
    send(target, topic, "x")


def test_three_brokers_go_on_without_one(own_lab: Lab) -> None:
    cluster = own_lab.up([ClusterSpec("three", brokers=3)])["three"]
    assert [status.state for status in cluster.status()] == ["ready"] * 3
    topic = make_topic(cluster, replicas=3)
    send(cluster, topic, "one")
    cluster.kill_broker(1)
    send(cluster, topic, "two")
    cluster.start_broker(1)
    assert read(cluster, topic, 2) == ["one", "two"]


def test_a_broker_that_cannot_start_says_why_and_leaves_no_process(own_lab: Lab) -> None:
    specs = [ClusterSpec("well"), ClusterSpec("ill", config={"log.segment.bytes": "nonsense"})]
    with pytest.raises(ClusterUnreachable, match=r"ill died at start(?s:.*)log.segment.bytes"):
        own_lab.up(specs)
    assert {status.state for status in own_lab.status()} == {"stopped"}


def test_nothing_is_left_when_the_lab_ends(tmp_path: Path, small_brokers: None) -> None:
    with Lab(tmp_path) as lab:
        cluster = lab.up([ClusterSpec("brief")])["brief"]
        process = cluster.process(0)
    assert process is not None
    assert not process.alive()
    homes = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(tmp_path).encode() in command for command in homes)


def test_the_commands_make_topics_send_and_show(lab: Lab, source: LabCluster) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    root = ["--root", str(lab.root)]
    assert topic in run("topics", "source", "--create", topic, "--config", "retention.ms=-1", *root)
    run("produce", "source", topic, "--count", "3", "--key-prefix", "k", "--header", "a=1", *root)
    run("produce", "source", topic, "--partition", "0", *root, stdin="line one\nline two\n")
    shown = run("consume", "source", topic, "--from-beginning", "--count", "5", "--json", *root).splitlines()
    first, last = json.loads(shown[0]), json.loads(shown[-1])
    assert (first["key"], first["value"], first["headers"]) == ("k0", "value-0", [["a", "1"]])
    assert (last["offset"], last["key"], last["value"]) == (4, None, "line two")
    assert "ready" in run("status", *root)
    assert "SASL_SSL" in run("up", "hubs", *root)  # runs already: stays as it is


def test_kafkas_own_tools_read_the_client_properties(lab: Lab, hubs: LabCluster, tmp_path: Path) -> None:
    """The password of `hubs` has quotes, a backslash and an equals sign."""
    topic, file = make_topic(hubs), tmp_path / "hubs.properties"
    file.write_text(run("client-properties", "hubs", "--root", str(lab.root)))
    asked = ["--bootstrap-server", hubs.bootstrap_servers, "--command-config", str(file), "--list"]
    listed = kafka_tool("org.apache.kafka.tools.TopicCommand", *asked)
    assert topic in listed.splitlines()


def kafka_tool(main_class: str, *arguments: str) -> str:
    """What one of Kafka's console tools prints, which are among the jars of MirrorMaker 2."""
    java = [str(jars.java()), "-XX:TieredStopAtLevel=1", "-cp", jars.class_path(jars.resolve(jars.MM2, print))]
    done = subprocess.run([*java, main_class, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    return done.stdout


def test_a_cluster_serves_on_the_port_that_was_chosen_and_keeps_it(own_lab: Lab) -> None:
    port, other = free_ports(2)
    root = ["--root", str(own_lab.root)]
    assert f"127.0.0.1:{port}" in run("up", "chosen", "--port", f"chosen={port}", *root)
    cluster = own_lab.cluster("chosen")
    assert cluster.client_config()["bootstrap.servers"] == f"127.0.0.1:{port}"
    topic = make_topic(cluster)
    send(cluster, topic, "x")
    assert f"127.0.0.1:{port}" in run("up", "chosen", "--port", f"chosen={port}", *root)  # runs already
    assert read(cluster, topic, 1) == ["x"]
    with pytest.raises(UsageFault, match="chosen exists and differs"):
        run("up", "chosen", "--port", f"chosen={other}", *root)
    with pytest.raises(UsageFault, match=f"another cannot listen on 127.0.0.1:{port}"):
        run("up", "another", "--port", f"another={port}", *root)
    assert f"127.0.0.1:{other}" in run("up", "chosen", "--port", f"chosen={other}", "--fresh", *root)


def test_consume_ends_well_when_interrupted(lab: Lab, source: LabCluster) -> None:
    topic = make_topic(source)
    send(source, topic, "one")
    words = ["lab", "consume", "source", topic, "--from-beginning", "--root", str(lab.root)]
    with subprocess.Popen([sys.executable, "-m", "mirrorlake.cli", *words], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"one" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0


def run(*arguments: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
