"""A broker as before Kafka 2.8: ZooKeeper, no topic ids, topics in the message format of 0.10; and its upgrade."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from harness import Flow, Record, Records, by_partition, wait_until

from mirrorlake import jars
from mirrorlake.errors import SourceLoss, Unreachable
from mirrorlake.kafka import Cluster
from mirrorlake.lab import ClusterSpec, Lab, LabCluster
from mirrorlake.lab.brokers import make_cluster
from mirrorlake.lab.processes import Process, stop
from mirrorlake.lab.settings import HOST, properties_text, server_properties
from mirrorlake.names import table_name

KEEP = {"log.retention.ms": "-1"}
BEFORE_TOPIC_IDS = {"inter.broker.protocol.version": "2.7"}
BEFORE_HEADERS = "0.10.2"
ONLY_WITHOUT_ZOOKEEPER = ("node.id", "process.roles", "controller.quorum.voters", "controller.listener.names")


@pytest.fixture(scope="module")
def elder(lab: Lab, small_brokers: None) -> Iterator[LabCluster]:
    """A cluster of the lab, but with ZooKeeper: Kafka 3.3 that speaks and stores as 2.7 did."""
    cluster = make_cluster(lab.root / "elder", ClusterSpec("elder", old=True, config=KEEP), print)
    shutil.rmtree(cluster.folder / "broker-0" / "data")
    zookeeper = start_zookeeper(cluster)
    configure(cluster, BEFORE_TOPIC_IDS)
    try:
        cluster.start_broker(0)
        yield cluster
    finally:
        cluster.stop_broker(0)
        stop([zookeeper], 5)
        shutil.rmtree(cluster.folder)


def start_zookeeper(cluster: LabCluster) -> Process:
    home = cluster.folder
    address = {"clientPortAddress": HOST, "clientPort": str(cluster.ports[0].controller)}
    settings = {"dataDir": f"{home}/zookeeper", "admin.enableServer": "false", **address}
    (home / "zookeeper.properties").write_text(properties_text(settings))
    path = jars.class_path(jars.resolve(jars.OLD_BROKER, print))
    main = ["org.apache.zookeeper.server.ZooKeeperServerMain", f"{home}/zookeeper.properties"]
    command = [str(jars.java()), "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", path, *main]
    return Process.start(command, home / "zookeeper.log", home / "zookeeper.json")


def configure(cluster: LabCluster, changes: dict[str, str]) -> None:
    ports = cluster.ports[0]
    settings = server_properties(cluster.spec, 0, cluster.ports, cluster.folder)
    kept = {key: value for key, value in settings.items() if key not in ONLY_WITHOUT_ZOOKEEPER}
    kept["listeners"] = kept["listeners"].removesuffix(f",CONTROLLER://{HOST}:{ports.controller}")
    kept |= {"broker.id": "0", "zookeeper.connect": f"{HOST}:{ports.controller}", **changes}
    (cluster.folder / "broker-0" / "server.properties").write_text(properties_text(kept))


def without_headers(records: list[Record]) -> list[Record]:
    return [replace(record, headers=()) for record in records]


def test_a_target_without_topic_ids(
    elder: LabCluster, make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(20, 2))
    flow = make_flow([topic], ["elder"])
    flow.run_once()
    records.send("source", topic, records.numbered(10, 2, first=20))
    flow.run_once()
    assert records.read("elder", f"source.{topic}") == by_partition(records.numbered(30, 2))
    assert {row["target_topic_id"] for row in flow.rows("ops.ledger")} == {""}


def test_a_target_topic_in_an_old_format_is_refused(
    elder: LabCluster, make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    """It has no room for the numbers of an idempotent producer."""
    records.create("source", topic)
    records.send("source", topic, records.numbered(5))
    records.create("elder", f"source.{topic}", message_format_version=BEFORE_HEADERS)
    with pytest.raises(Unreachable, match="Message format") as refused:
        make_flow([topic], ["elder"]).run_once()
    assert "message.format.version" in refused.value.next_step
    assert records.read("elder", f"source.{topic}") == {0: []}


def test_a_shorter_topic_in_the_old_ones_place_is_told_from_it_as_a_branch(
    elder: LabCluster, make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("elder", topic)
    records.send("elder", topic, records.numbered(20))
    flow = make_flow([topic], source="elder")
    flow.run_once()
    records.cluster("elder").delete_topic(topic)
    wait_until(lambda: not records.cluster("elder").describe([topic]), "the topic to go")
    wait_until(lambda: made(records.cluster("elder"), topic), "the topic to come again")
    records.send("elder", topic, records.numbered(5, first=100))
    with pytest.raises(SourceLoss, match=r"offsets 5-19 \(log_truncated\)"):
        flow.run_once()
    flow.options["on_source_loss"] = "continue"
    flow.run_once()
    records.send("elder", topic, records.numbered(20, first=105))
    flow.run_once()
    assert {row["source_topic_id"] for row in flow.rows("ops.ledger")} == {"", "#1"}
    copied = records.read("target", f"elder.{topic}")[0]
    # Nobody can tell that the five were not those of before; from the cut on each is kept.
    assert copied == [*records.numbered(20), *records.numbered(20, first=105)]


def topic_id(cluster: Cluster, topic: str) -> str:
    found = cluster.describe([topic])
    return found[topic].id if topic in found else ""


def made(cluster: Cluster, topic: str) -> bool:
    """ZooKeeper forgets a deleted topic a little later, and until then it is there already."""
    cluster.create_topic(topic, 1, 1, {})
    return topic in cluster.describe([topic])


def test_a_source_of_an_old_format_and_its_upgrade_to_topic_ids(
    elder: LabCluster, make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    """Comes last: the broker is a newer one afterwards."""
    records.create("elder", topic, message_format_version=BEFORE_HEADERS)
    sent = without_headers(records.numbered(20))
    # That format has no idempotence.
    records.send("elder", topic, sent, **{"enable.idempotence": False, "max.in.flight.requests.per.connection": 1})
    flow = make_flow([topic], source="elder")
    flow.run_once()
    assert {row["topic_id"] for row in flow.rows(table_name("bronze.{source}__{topic}", "elder", topic))} == {""}
    elder.stop_broker(0)
    configure(elder, {})
    elder.start_broker(0)
    wait_until(lambda: topic_id(records.cluster("elder"), topic), "an id")
    given_id = topic_id(records.cluster("elder"), topic)
    for first, lost_checkpoint in ((20, False), (30, True)):
        if lost_checkpoint:
            shutil.rmtree(flow.root / "checkpoints")
        sent += records.numbered(10, first=first)
        records.send("elder", topic, records.numbered(10, first=first))
        flow.run_once()
        assert records.read("target", f"elder.{topic}") == by_partition(sent)
    assert {row["source_topic_id"] for row in flow.rows("ops.ledger")} == {"", given_id}
    assert flow.audit().ok
