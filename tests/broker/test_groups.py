"""Consumer groups with real brokers: read, translated, synced, explained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from handmade import Handmade
from harness import Flow, Records, finish, wait_until
from typer.testing import CliRunner

from mirrorlake.cli import app
from mirrorlake.consumers import Commit
from mirrorlake.errors import DataAtRisk
from mirrorlake.failover import away, move, prepare
from mirrorlake.groupkeeper import GroupKeeper
from mirrorlake.groups import Line, Passage, Tag, checkpoint_rows
from mirrorlake.kafka import Cluster
from mirrorlake.lab import Lab
from mirrorlake.ledger import LedgerWriter, entry_from_row
from mirrorlake.links import Storage
from mirrorlake.mm2topics import Checkpoint, OffsetSync, decode_checkpoint
from mirrorlake.records import TopicPartition
from mirrorlake.tables import FolderTables
from mirrorlake.world import World, connect, now


@pytest.fixture
def make_handmade(tmp_path: Path, lab: Lab, records: Records, topic: str) -> Callable[..., Handmade]:
    def make(partitions: int = 1, target: str = "target", **groups: object) -> Handmade:
        records.create("source", topic, partitions)
        flow = Flow(tmp_path, lab, None, [topic], [target], {"target": {"groups": groups}})  # type: ignore[arg-type]
        return Handmade(flow, records, topic)

    return make


def commit(records: Records, cluster: str, group: str, topic: str, *offsets: int) -> None:
    """As a consumer does, for partitions 0, 1, …"""
    consumer = Consumer({**records.lab.cluster(cluster).client_config(), "group.id": group})
    places = [KafkaPartition(topic, number, offset) for number, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


@contextmanager
def member(records: Records, cluster: str, group: str, topic: str) -> Iterator[None]:
    """A live member of a group."""
    settings = {"group.id": group, "enable.auto.commit": False, "session.timeout.ms": 6000}
    consumer = Consumer({**records.lab.cluster(cluster).client_config(), **settings})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "an assignment")
    try:
        yield
    finally:
        consumer.close()


def committed(records: Records, cluster: str, group: str) -> dict[TopicPartition, Commit]:
    return records.consumers(cluster).offsets([group])[group]


def look(relay: Flow, *groups: str) -> tuple[Passage, list[Line]]:
    config = relay.config()
    flow = config.flow(relay.name)
    passage = Storage(config, FolderTables(relay.root), connect(config, [flow])).passage(flow, flow.targets[0])
    return passage, passage.look(groups)


def sync(made: Handmade, *groups: str, dry: bool = False) -> list[Line]:
    passage, lines = look(made.flow, *groups)
    return lines if dry else passage.commit(lines)


def decisions(lines: Sequence[Line]) -> list[tuple[int | None, str, str]]:
    return [(line.target_offset, line.decision, line.reason) for line in lines]


def in_transactions(records: Records, topic: str, sizes: Sequence[int], abort: int) -> None:
    """Transactions of so many records; the one at `abort` is aborted. Markers take offsets."""
    producer = Producer({**records.lab.cluster("source").client_config(), "transactional.id": topic})
    producer.init_transactions(20)
    for number, size in enumerate(sizes):
        producer.begin_transaction()
        for n in range(size):
            producer.produce(topic, b"t%d-%d" % (number, n), partition=0, timestamp=1_700_000_000_000)
        producer.flush()
        producer.abort_transaction(20) if number == abort else producer.commit_transaction(20)


def test_a_group_stands_there_exactly_where_it_stands_here(
    make_handmade: Callable[..., Handmade], records: Records, topic: str
) -> None:
    made = make_handmade(2)
    records.create("target", made.copy, 2)
    records.send("target", made.copy, records.numbered(6, 2))  # others were there first
    records.send("source", topic, records.numbered(20, 2))
    in_transactions(records, topic, [3, 4, 2], abort=1)  # offsets 10-12, M, 14-17, M, 19-20, M
    made.relay()
    group = f"{topic}.shop"
    commit(records, "source", group, topic, 14, 7)
    (first, second) = sync(made, group, dry=True)
    # Before offset 14 of partition 0 stand 13 records, here; 3 of others and those 13, there. 14-17 were aborted.
    assert (first.target_offset, second.target_offset) == (3 + 13, 3 + 7)
    assert [line.decision for line in (first, second)] == ["write", "write"]
    assert committed(records, "target", group) == {}, "looking changes nothing"
    assert [line.decision for line in sync(made, group)] == ["written", "written"]
    assert committed(records, "target", group) == {
        TopicPartition(made.copy, 0): Commit(16, str(Tag("flow", 14))),
        TopicPartition(made.copy, 1): Commit(10, str(Tag("flow", 7))),
    }
    assert {line.reason for line in sync(made, group)} == {"stands there already"}
    next_here, next_there = read_from(records, "source", topic, 14), read_from(records, "target", made.copy, 16)
    assert next_there == next_here == [b"t2-0", b"t2-1"]


def read_from(records: Records, cluster: str, topic: str, offset: int) -> list[bytes | None]:
    at = TopicPartition(topic, 0)
    end = records.cluster(cluster).log_ends([at])[at]
    return [message.value() for message in records.cluster(cluster).read_range(at, offset, end, committed=True)]


def test_a_group_in_use_there_or_further_there_is_left_alone(
    make_handmade: Callable[..., Handmade], records: Records, topic: str
) -> None:
    made = make_handmade()
    records.send("source", topic, records.numbered(10))
    made.relay()
    group = f"{topic}.shop"
    commit(records, "source", group, topic, 4)
    with member(records, "target", group, made.copy):
        assert decisions(sync(made, group)) == [(4, "keep", "the group has members there (stable)")]
    sync(made, group)
    commit(records, "source", group, topic, 2)
    assert decisions(sync(made, group)) == [(2, "keep", "the group went back from 4 to 2; groups.rewind is off")]
    made.flow.options["target"]["groups"]["rewind"] = True
    assert decisions(sync(made, group)) == [(2, "written", "the group went back from 4 to 2")]
    commit(records, "target", group, made.copy, 9)
    assert decisions(sync(made, group)) == [(2, "keep", "the group itself went on there to 9")]
    assert committed(records, "target", group)[TopicPartition(made.copy, 0)].offset == 9


def test_a_target_over_ssl(make_handmade: Callable[..., Handmade], records: Records, topic: str) -> None:
    """SASL_SSL, as Event Hubs and most services are reached: read, commit, read back, and MM2's checkpoints."""
    made = make_handmade(target="hubs", sync=True)
    records.send("source", topic, records.numbered(10))
    group, at = f"{topic}.shop", TopicPartition(made.copy, 0)
    commit(records, "source", group, topic, 7)
    keeper, ledger = make_keeper(made, lambda _text: None)
    made.relay()
    keeper.work()
    ledger.close()
    assert committed(records, "hubs", group) == {at: Commit(7, str(Tag("flow", 7)))}
    assert [checkpoint.target_offset for checkpoint in checkpoints_of(records, group, "hubs")] == [7]


def test_bounds_and_incarnations_are_said(make_handmade: Callable[..., Handmade], records: Records, topic: str) -> None:
    made = make_handmade()
    group = f"{topic}.shop"
    records.send("source", topic, records.numbered(10))
    commit(records, "source", group, topic, 8)
    assert sync(made, group, dry=True)[0].reason == f"there is no topic {made.copy}"
    made.relay(until=6)
    (line,) = sync(made, group, dry=True)
    assert (line.target_offset, line.ahead) == (6, 2)
    assert line.reason == "not committed there yet; 2 offsets that it has read are not there yet"
    made.relay()
    assert decisions(sync(made, group, dry=True)) == [(8, "write", "not committed there yet")]
    recreate(records, "source", topic)
    records.send("source", topic, records.numbered(3))
    commit(records, "source", group, topic, 2)
    assert decisions(sync(made, group, dry=True)) == [(None, "none", "nothing of it was relayed yet")]
    made.relay()
    assert decisions(sync(made, group, dry=True)) == [(12, "write", "not committed there yet")]
    recreate(records, "target", made.copy)
    (line,) = sync(made, group, dry=True)
    assert line.reason.startswith(f"{made.copy} was made anew since it was filled")


def recreate(records: Records, cluster: str, topic: str) -> None:
    admin = records.cluster(cluster).admin
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: not records.cluster(cluster).describe([topic]), "the topic to be gone")
    records.create(cluster, topic)


def test_the_command_looks_and_with_sync_writes(
    make_handmade: Callable[..., Handmade], records: Records, topic: str
) -> None:
    made = make_handmade()
    records.send("source", topic, records.numbered(5))
    made.relay()
    groups = [f"{topic}.shop", f"{topic}.bank", f"console-consumer-{topic}"]
    for place, group in enumerate(groups):
        commit(records, "source", group, topic, place)
    path = str(made.flow.write())
    code, said = finish(made.flow.command("groups", "-c", path, "--json"))
    assert code == 0, said
    found = {line["group"]: line for line in json.loads(said) if line["topic"] == topic}
    assert set(found) == set(groups[:2]), "MM2's default exclusions"
    assert found[groups[1]] == expected(made, groups[1], 1, "write", "not committed there yet", None)
    code, said = finish(made.flow.command("groups", "-c", path, "--group", groups[1], "--sync", "--json"))
    assert (code, json.loads(said)) == (0, [expected(made, groups[1], 1, "written", "not committed there yet", 1)])
    assert committed(records, "target", groups[0]) == {}
    code, said = finish(made.flow.command("groups", "-c", path, "--group", groups[0]))
    assert code == 0, said
    assert "nothing was changed" in said


def expected(
    made: Handmade, group: str, offset: int, decision: str, reason: str, committed: int | None
) -> dict[str, Any]:
    return {
        "flow": "flow", "target": "target", "group": group, "topic": made.topic, "partition": 0, "offset": offset,
        "target_topic": made.copy, "target_partition": 0, "target_offset": offset, "committed": committed,
        "ahead": 0, "never": 0, "decision": decision, "reason": reason,
    }  # fmt: skip


def make_keeper(made: Handmade, say: Callable[[str], None]) -> tuple[GroupKeeper, LedgerWriter]:
    """What a running flow has for its groups; what is relayed by hand from now on goes through its ledger."""
    config = made.flow.config()
    flow, target = config.flow("flow"), config.flow("flow").targets[0]
    clusters = connect(config, [flow])
    world = World(config, made.flow.root, None, made.tables, clusters, {target.cluster: "t"}, {})  # type: ignore[arg-type]
    ledger = LedgerWriter(made.tables, "ops.ledger", 0.01)
    keeper = GroupKeeper(world, flow, target, ledger, lambda _f, _t: {}, [], lambda _ends: [], say)
    keeper.keepers = [keeper]
    made.tables = Hearing(ledger, made.tables)  # type: ignore[assignment]
    return keeper, ledger


def test_offset_syncs_topics_on_target(make_handmade: Callable[..., Handmade], records: Records, topic: str) -> None:
    """A running flow keeps groups in step: in the table, on the target, and in MM2's topics there."""
    made = make_handmade(sync=True, mm2_offset_syncs="target")
    made.relay(until=0)
    said = list[str]()
    keeper, ledger = make_keeper(made, said.append)
    group = f"{topic}.shop"
    records.send("source", topic, records.numbered(10))
    commit(records, "source", group, topic, 4)
    made.relay()
    keeper.tend()
    keeper.tend()  # not due yet
    keeper.work()
    ledger.close()
    assert said == [f"target target: 1 positions of groups written: {group}"]
    assert committed(records, "target", group)[TopicPartition(made.copy, 0)].offset == 4
    rows = checkpoint_table(made, group)
    assert [(row["source_offset"], row["target_offset"]) for row in rows] == [(4, 4), (4, 4)], "written, then kept"
    assert [row["decision"] for row in rows] == ["written: not committed there yet", "keep: stands there already"]
    assert set(checkpoints_of(records, group)) == {
        Checkpoint(group, TopicPartition(made.copy, 0), 4, 4, str(Tag("flow", 4)))
    }
    syncs = {m.key(): m.value() for m in read_topic(records, "mm2-offset-syncs.source.internal")}
    key, value = OffsetSync(TopicPartition(topic, 0), 9, 9).encode()
    assert syncs[key] == value
    there = "mm2-offset-syncs.target.internal"  # a real MM2 may have made it
    assert there not in records.cluster("source").topic_names() or key not in {
        message.key() for message in read_topic(records, there, "source")
    }


def test_no_checkpoints_if_no_records_are_mirrored(
    make_handmade: Callable[..., Handmade], records: Records, topic: str
) -> None:
    made = make_handmade(sync=True)
    keeper, ledger = make_keeper(made, lambda _text: None)
    group = f"{topic}.shop"
    records.send("source", topic, records.numbered(10))
    records.create("target", made.copy)
    commit(records, "source", group, topic, 4)
    keeper.work()
    assert [row["decision"] for row in checkpoint_table(made, group)] == ["none: nothing of it was relayed yet"]
    made.relay()
    keeper.work()
    ledger.close()
    assert [checkpoint.target_offset for checkpoint in checkpoints_of(records, group)] == [4]
    assert committed(records, "target", group)[TopicPartition(made.copy, 0)].offset == 4


def checkpoint_table(made: Handmade, group: str) -> list[dict[str, Any]]:
    rows = FolderTables(made.flow.root).read("ops.group_checkpoints", group_id=group)
    found: list[dict[str, Any]] = rows.sort_by("at").to_pylist()
    return found


def checkpoints_of(records: Records, group: str, cluster: str = "target") -> list[Checkpoint]:
    messages = read_topic(records, "source.checkpoints.internal", cluster)
    found = [decode_checkpoint(message.key(), message.value()) for message in messages]
    return [checkpoint for checkpoint in found if checkpoint.group == group]


@dataclass
class Hearing:
    """The ledger's rows go through the writer, as a running flow's do."""

    ledger: LedgerWriter
    tables: FolderTables

    def append(self, _name: str, rows: Any) -> None:
        self.ledger.add([entry_from_row(row) for row in rows.to_pylist()])


def read_topic(records: Records, topic: str, cluster: str = "target") -> list[Any]:
    at = TopicPartition(topic, 0)
    end = records.cluster(cluster).log_ends([at])[at]
    return list(records.cluster(cluster).read_range(at, 0, end))


def test_failover_refuses_where_records_would_be_lost_or_read_again_unless_told_otherwise(
    make_handmade: Callable[..., Handmade], records: Records, topic: str
) -> None:
    made = make_handmade()
    records.send("source", topic, records.numbered(10))
    made.relay(until=6)
    group = f"{topic}.shop"
    commit(records, "source", group, topic, 8)
    command = ["failover", "-c", str(made.flow.write()), "--target", "target", "--group", group]
    drill = CliRunner().invoke(app, [*command, "--json"])
    (found,) = json.loads(drill.stdout)
    assert (drill.exit_code, found["behind"], found["from_answers"]) == (1, 4, True)
    assert found["objections"] == [f"group {group}, {topic}[0] at 8: 2 offsets that it has read are not on target yet"]
    refused = CliRunner().invoke(app, [*command, "--apply"])
    assert isinstance(refused.exception, DataAtRisk)
    assert refused.exception.exit_code == 4
    assert committed(records, "target", group) == {}, "refused, so nothing moved"
    forced = CliRunner().invoke(app, [*command, "--apply", "--force"])
    assert forced.exit_code == 0, forced.output
    assert (
        f"objection: group {group}, {topic}[0] at 8: 2 offsets that it has read are not on target yet" in forced.output
    )
    assert committed(records, "target", group)[TopicPartition(made.copy, 0)].offset == 6, "it reads 6 and 7 again"
    made.relay()
    with member(records, "source", group, topic):
        (found,) = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
        assert found["objections"] == [f"group {group} still has members on source: stop its consumers first"]
    moved = CliRunner().invoke(app, [*command, "--apply"])
    assert moved.exit_code == 0, moved.output
    assert f"consumers read {made.copy} where they read {topic}" in moved.output
    assert committed(records, "target", group)[TopicPartition(made.copy, 0)].offset == 8
    # And home: it went on there by itself, to the end.
    commit(records, "target", group, made.copy, 10)
    home = CliRunner().invoke(app, [*command, "--back", "--apply", "--json"])
    assert home.exit_code == 0, home.output
    assert committed(records, "source", group)[TopicPartition(topic, 0)].offset == 10


def test_where_the_source_does_not_answer_the_last_checkpoints_count(
    make_handmade: Callable[..., Handmade], records: Records, topic: str
) -> None:
    made = make_handmade()
    records.send("source", topic, records.numbered(10))
    made.relay()
    group = f"{topic}.shop"
    commit(records, "source", group, topic, 7)
    config = made.flow.config()
    flow, clusters = config.flow("flow"), connect(config, [config.flow("flow")])
    seen = Storage(config, made.tables, clusters).passage(flow, flow.targets[0]).look([group])
    made.tables.append("ops.group_checkpoints", checkpoint_rows("flow", "target", seen, now()))
    gone = {**clusters, "source": Cluster("source", {"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=1)}
    assert away(gone.values()) == {"source"}
    storage = Storage(config, made.tables, gone, frozenset({"source"}))
    passage, drill = prepare(storage, flow, flow.targets[0], False, [group])
    assert (drill.here_answers, drill.behind, decisions(drill.lines)) == (
        False,
        None,
        [(7, "write", "not committed there yet")],
    )
    assert decisions(move(storage, passage, drill, flow.targets[0], False).lines)[0][1] == "written"
    assert committed(records, "target", group)[TopicPartition(made.copy, 0)].offset == 7
