"""What becomes of Kafka's errors; real librdkafka, against ports where no Kafka is."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as _TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from samples import FakeCluster

from mirrorlake import kafka
from mirrorlake.errors import (
    AccessRefused,
    ClusterUnreachable,
    DataAtRisk,
    MirrorlakeError,
    RecordRefused,
    TopicMissing,
    Transient,
    Unreachable,
)
from mirrorlake.kafka import Cluster, NewTopicSpec, _without_unknown, await_stable_ends, translate
from mirrorlake.records import TopicPartition

AT = TopicPartition("orders", 0)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Connections are taken, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def future_of(answer: object) -> Future[object]:
    made: Future[object] = Future()
    made.set_exception(answer) if isinstance(answer, Exception) else made.set_result(answer)
    return made


NO_CONTROLLER = KafkaException(KafkaError(KafkaError._TIMED_OUT, "Failed while waiting for controller: Timed out"))
ORDERS = SimpleNamespace(partitions=[SimpleNamespace(replicas=[0])], topic_id=None)


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_who_waits_for_a_controller_that_died_is_replaced_before_time_is_over(
    monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    """Of the brokers that may be told to a client as the controller so many are dead; each client waits for one."""
    told, waited = iter([NO_CONTROLLER] * dead + [ORDERS]), list[float]()

    def client(_config: object) -> SimpleNamespace:
        answer = future_of(next(told))

        def describe_topics(_topics: object, request_timeout: float) -> dict[str, Future[object]]:
            waited.append(request_timeout)
            return {"orders": answer}

        return SimpleNamespace(describe_topics=describe_topics, poll=lambda _seconds: 0)

    monkeypatch.setattr(kafka, "AdminClient", client)
    cluster = Cluster("a", {}, timeout_seconds=8)
    if dead < 3:
        assert cluster.describe(["orders"])["orders"].partitions == 1
    else:
        with pytest.raises(ClusterUnreachable, match="waiting for controller"):
            cluster.describe(["orders"])
    assert waited == [1, 2, 5][: dead + 1]


def test_a_client_is_not_destroyed_under_a_thread_that_waits_for_its_answer(silent_port: int) -> None:
    """Its answer would never come: not even the one that time is over."""
    cluster = Cluster("a", {"bootstrap.servers": f"127.0.0.1:{silent_port}"}, timeout_seconds=1)
    client = cluster.admin
    pending = client.list_offsets({_TopicPartition("orders", 0): OffsetSpec.latest()}, request_timeout=1)
    del client
    cluster._replace_client()
    (future,) = pending.values()
    with pytest.raises(ClusterUnreachable):
        cluster._answer("offsets", future)
    assert future.done()
    cluster.close()


def test_clients_that_were_replaced_are_let_go_once_nobody_can_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(kafka.time, "monotonic", lambda: now)
    monkeypatch.setattr(kafka, "AdminClient", lambda _config: SimpleNamespace())
    cluster = Cluster("a", {}, timeout_seconds=1)
    for second in range(10):
        now = float(second)
        assert cluster.admin
        cluster._replace_client()
    assert [at for at, _client in cluster._retired] == [8, 9]


def test_an_answer_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "GRACE_SECONDS", 0.0)
    never: Future[object] = Future()
    cluster = Cluster("a", {}, timeout_seconds=0.01)
    with pytest.raises(ClusterUnreachable, match="cluster a: offsets: no answer in time"):
        cluster._answer("offsets", never)


@pytest.mark.parametrize("wrap", [lambda error: error, KafkaException], ids=["bare", "wrapped"])
def test_groups_that_a_broker_does_not_tell_are_an_error_of_ours(wrap: Callable[[KafkaError], object]) -> None:
    """The binding gives either kind."""
    told: Future[object] = Future()
    told.set_result(SimpleNamespace(valid=[], errors=[wrap(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS))]))
    cluster = Cluster("a", {"bootstrap.servers": "127.0.0.1:1"})
    cluster._admin = cast(AdminClient, SimpleNamespace(list_consumer_groups=lambda **_: told))
    with pytest.raises(ClusterUnreachable, match="cluster a: groups: "):
        cluster.groups()


def test_a_client_that_gets_no_answer_for_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = Cluster("a", {"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=0.1)
    first = nobody.admin
    for silent_seconds, kept in ((60.0, True), (0.0, False)):
        monkeypatch.setattr(kafka, "SILENT_SECONDS", silent_seconds)
        for _ in range(2):
            with pytest.raises(ClusterUnreachable):
                nobody.topic_names()
        assert (nobody.admin is first) is kept


def test_a_port_where_nobody_answers_asks_for_advertised_listeners() -> None:
    nobody = Cluster("a", {"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=0.3)
    with pytest.raises(ClusterUnreachable, match="cluster a: metadata: ") as fault:
        nobody.topic_names()
    assert "advertised listeners" in fault.value.next_step


def test_a_read_that_stops_is_given_up(silent_port: int) -> None:
    silent = Cluster("a", {"bootstrap.servers": f"127.0.0.1:{silent_port}"}, timeout_seconds=0.3)
    with pytest.raises(ClusterUnreachable, match=r"cluster a: reading orders\[0\] stopped for 0 s"):
        list(silent.read_range(AT, 0, 10))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        # An election: another broker will lead, and answers meanwhile that it does not.
        (KafkaError.NOT_LEADER_FOR_PARTITION, ClusterUnreachable),
        (KafkaError.LEADER_NOT_AVAILABLE, ClusterUnreachable),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, ClusterUnreachable),
        (KafkaError.NOT_ENOUGH_REPLICAS, ClusterUnreachable),
        (KafkaError._TIMED_OUT, ClusterUnreachable),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, AccessRefused),
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordRefused),
        (KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, Unreachable),
        (KafkaError.INVALID_REPLICATION_FACTOR, Unreachable),
    ],
)
def test_the_kind_says_whether_trying_again_helps(code: int, kind: type[MirrorlakeError]) -> None:
    fault = translate(KafkaError(code), "a", "send")
    assert type(fault) is kind
    assert isinstance(fault, Transient) == (kind in (ClusterUnreachable, RecordRefused))
    assert fault.next_step


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("Unknown topic config name: message.format.version", {"retention.ms": "5"}),
        ("Unknown topic config name: something.else", None),
        ("Invalid value 5 for configuration retention.ms", None),
    ],
)
def test_a_setting_that_a_release_does_not_know_is_left_out(said: str, left: dict[str, str] | None) -> None:
    topic = NewTopicSpec("orders", 1, config={"message.format.version": "0.10.2", "retention.ms": "5"})
    simpler = _without_unknown(topic, said)
    assert (simpler.config if simpler else None) == left


def test_ends_that_keep_moving_stop_the_recovery() -> None:
    cluster, now = FakeCluster(), 0.0

    def sleep(_seconds: float) -> None:
        nonlocal now
        now += 1
        cluster.append(AT, b"k", b"v")

    with pytest.raises(DataAtRisk, match="the log ends kept moving for 5 s during recovery") as fault:
        await_stable_ends(cast(Cluster, cluster), [AT], 2, 5, lambda: now, sleep)
    assert "existing_records: append" in fault.value.next_step


class Electing(Cluster):
    """A cluster that answers without an offset some times, as seen during an election."""

    def __init__(self, silent: int) -> None:
        super().__init__("a", {})
        self.silent = silent

    def _list_offsets(self, asked: Any, committed: bool) -> dict[TopicPartition, int]:
        self.silent -= 1
        return dict.fromkeys([AT], -1001 if self.silent >= 0 else 7)


def test_an_offset_that_an_election_leaves_out_is_asked_for_again() -> None:
    cluster = Electing(silent=1)
    assert cluster.log_ends([AT]) == {AT: 7}
    assert cluster.silent == -1


def test_a_time_after_the_last_record_has_no_offset_and_means_the_end() -> None:
    assert Electing(silent=1).offsets_at([AT], 5) == {AT: 7}
