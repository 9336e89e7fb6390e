"""An unchanged mm2.properties as `-c`: it runs, with warnings for what is unsafe; and no key of MM2 is unknown."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness import Flow, Records, by_partition, finish
from pyspark.sql import SparkSession

from mirrorlake import jars
from mirrorlake.lab import Lab
from mirrorlake.mm2keys import COMMON, KEYS, find

DEFINING = ("MirrorConnectorConfig", "MirrorSourceConfig", "MirrorCheckpointConfig", "MirrorHeartbeatConfig",
            "MirrorMakerConfig", "MirrorClientConfig", "DefaultTopicFilter$TopicFilterConfig",
            "DefaultGroupFilter$GroupFilterConfig",
            "DefaultConfigPropertyFilter$ConfigPropertyFilterConfig")  # fmt: skip


def test_an_mm2_file_runs_as_it_is(tmp_path: Path, lab: Lab, spark: SparkSession, records: Records, topic: str) -> None:
    """Kafka to a target that is reached as Event Hubs is, with MM2's own keys."""
    sent = records.numbered(60, 2)
    records.create("source", topic, 2)
    records.send("source", topic, sent)
    hubs = lab.cluster("hubs")
    (tmp_path / "access.properties").write_text(f"TGT_JAAS={jaas_of(hubs.java_properties())}\n")
    file = tmp_path / "mm2.properties"
    file.write_text(f"""# as MM2 runs it
clusters = source, target
source.bootstrap.servers = {lab.cluster("source").bootstrap_servers}
target.bootstrap.servers = {hubs.bootstrap_servers}
target.security.protocol = SASL_SSL
target.sasl.mechanism = PLAIN
target.sasl.jaas.config = ${{file:{tmp_path}/access.properties:TGT_JAAS}}
target.ssl.truststore.type = PEM
target.ssl.truststore.location = {hubs.ca_pem}
source->target.enabled = true
source->target.topics = {topic}
sync.topic.acls.enabled = false
replication.factor = 1
refresh.topics.interval.seconds = 10
tasks.max = 10
mirrorlake.storage.root = {tmp_path}/state
""")
    flow = Flow(tmp_path, lab, spark, [topic], ["hubs"], {})
    code, said = finish(flow.command("run", "-c", str(file), "--once"))
    assert code == 0, said
    assert records.read("hubs", f"source.{topic}") == by_partition(sent)


def jaas_of(properties: dict[str, str]) -> str:
    """As it stands in a .properties file: backslashes doubled."""
    return properties["sasl.jaas.config"].replace("\\", "\\\\")


def test_every_key_that_mm2_itself_defines_has_an_entry() -> None:
    """Asked of its own classes, of the release that the lab runs."""
    classes = jars.class_path(jars.resolve(jars.MM2, print))
    program = str(Path(__file__).parent / "java" / "Keys.java")
    command = [str(jars.java()), "-XX:TieredStopAtLevel=1", "-cp", classes, program, *DEFINING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    keys = set(done.stdout.split())
    assert len(keys) > 100
    assert {key for key in keys if not (find(KEYS, key) or find(COMMON, key))} == set()
