"""One source, one mm2.properties: MirrorMaker 2 to one target, Mirrorlake to another, and the two compared.

Differences that are meant, and why:
- Internal topics (`*.internal`): positions live in the ledger.
- One header of provenance on our records; it can be turned off.
- Connect's control topics are not relayed; MM2 takes those of them that do not end with `internal`.
- The ACL for all topics (`*`) is not copied; MM2 makes of it one for a topic named `A.*`, which there cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from harness import Record, Records, finish, run_command, wait_until
from test_lab_mm2 import FAST, SMALL_JVM

from mirrorlake import jars
from mirrorlake.heartbeats import decode
from mirrorlake.kafka import Acl, Cluster
from mirrorlake.lab import ClusterSpec, Lab
from mirrorlake.lab.mm2 import Mm2, mm2_properties
from mirrorlake.lab.settings import properties_text

OPEN = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "log.retention.ms": "-1",
}
TOPICS = ("orders", "eu.orders", "clicks-2024", "B.looped", "old.replica", "connect-configs", "quiet")
COPIES = {"A.orders": 43, "A.eu.orders": 44, "A.clicks-2024": 43, "A.quiet": 0, "A.connect-configs": 43}
ONLY_MM2 = {"A.connect-configs"}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory, small_brokers: None) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("differential")) as lab:
        lab.up([ClusterSpec(name, config=OPEN) for name in ("a", "theirs", "ours")])
        yield lab


def fill(records: Records) -> None:
    source = records.cluster("a")
    records.create("a", "orders", 3, cleanup_policy="compact", min_insync_replicas="1", segment_ms="86400000")
    records.create("a", "eu.orders", 2, retention_ms="-1", max_message_bytes="2000000")
    for topic in TOPICS[2:]:
        records.create("a", topic, 2)
    for topic in ("orders", "eu.orders", "clicks-2024", "B.looped", "old.replica", "connect-configs"):
        records.send("a", topic, awkward(2))
    records.send("a", "eu.orders", [Record(b"no key", None)])
    reader = Acl("topic", "orders", "User:ann", "read")
    assert not source.create_acls(
        [
            reader,
            Acl("topic", "orders", "User:app", "write"),
            Acl("topic", "orders", "User:ops", "all"),
            Acl("topic", "eu.orders", "User:eve", "describe", "deny", "10.0.0.1"),
            Acl("topic", "old.replica", "User:ann", "read"),
            Acl("topic", "or", "User:pre", "read", pattern="prefixed"),
            Acl("group", "billing", "User:ann", "read"),
        ]
    )


def awkward(partitions: int) -> list[Record]:
    headers = (("twice", b"1"), ("twice", None), ("empty", b""))
    whole = [Record(b"value-%d" % n, b"key-%d" % n, headers, 1_700_000_000_000 + n, n % partitions) for n in range(40)]
    return [*whole, Record(None, b"key-1"), Record(b"", b""), Record(b"last", b"key", partition=1)]


def topics_of(cluster: Cluster) -> set[str]:
    return {name for name in cluster.topic_names() if not name.endswith(".internal") and not name.startswith("__")}


def partitions(cluster: Cluster, topics: Sequence[str]) -> dict[str, int]:
    return {name: info.partitions for name, info in cluster.describe(topics).items()}


def own_settings(cluster: Cluster, topics: Sequence[str]) -> dict[str, dict[str, str | None]]:
    found = cluster.topic_configs(topics)
    return {
        topic: {key: setting.value for key, setting in settings.items() if setting.origin == "topic"}
        for topic, settings in found.items()
    }


def beats(records: Records, name: str, topic: str) -> set[tuple[str, str]]:
    return {decode(beat.key or b"", beat.value or b"")[:2] for beat in records.read(name, topic)[0]}


def test_mirrorlake_and_mm2_make_the_same_of_one_file(clusters: Lab, tmp_path: Path) -> None:
    records = Records(clusters)
    fill(records)
    base = mm2_properties(
        {"A": clusters.cluster("a"), "B": clusters.cluster("theirs")},
        [("A", "B")],
        {
            **FAST,
            "emit.heartbeats.enabled": "true",
            # Its heartbeats topic may come after its first look at topics; the next is after ten minutes by default.
            "refresh.topics.interval.seconds": "5",
            "sync.topic.configs.interval.seconds": "1",
            "sync.topic.acls.interval.seconds": "1",
        },
    )
    file = tmp_path / "mm2.properties"
    servers = {"B.bootstrap.servers": clusters.cluster("ours").bootstrap_servers}
    file.write_text(properties_text({**base, **servers, "mirrorlake.storage.root": str(tmp_path / "state")}))
    with Mm2(jars.resolve(jars.MM2, print), base, tmp_path / "mm2", jvm=SMALL_JVM):
        run_ours(file, tmp_path)
        theirs, ours = records.cluster("theirs"), records.cluster("ours")
        for copy, sent in COPIES.items():
            wait_until(lambda copy=copy, sent=sent: records.arrived("theirs", copy, sent), f"MM2's {copy}", 90)  # type: ignore[misc]
        wait_until(lambda: records.arrived("theirs", "A.heartbeats", 1), "MM2's heartbeats", 90)
        wait_until(lambda: theirs.acls() and ours.acls() == theirs.acls(), "the same ACLs", 60)
    assert topics_of(theirs) - ONLY_MM2 == topics_of(ours)
    shared = sorted(topics_of(ours))
    assert "A.B.looped" not in shared
    assert partitions(theirs, shared) == partitions(ours, shared)
    assert own_settings(theirs, shared) == own_settings(ours, shared)
    for topic in COPIES.keys() - ONLY_MM2:
        assert records.read("theirs", topic) == records.read("ours", topic), topic
    for topic in ("heartbeats", "A.heartbeats"):
        assert beats(records, "theirs", topic) == beats(records, "ours", topic), topic


def run_ours(file: Path, folder: Path) -> None:
    code, said = finish(run_command(folder / "ours.txt", "run", "-c", str(file), "--once"), 240)
    assert code == 0, said
