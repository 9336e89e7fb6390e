"""20-23: brokers that die, stand still or refuse."""

from __future__ import annotations

import os
import threading
import time

from proxy import ACCEPTED, CUT, DROP_RESPONSE, DROPPED, PASS, REFUSE, THROTTLE, THROTTLED, Proxy
from stage import Flow, Running, Stage, source_of, target_name, wait_until

from mirrorlake.control import read_status
from mirrorlake.lab import LabCluster
from rows.common import EQUAL, bulk, counted, feeding, leader_of, row, source_proxy, trio


def _broker_dies(stage: Stage, name: str, proxy: Proxy) -> str:
    """Slowly through the proxy before it, so that a batch is under way when it dies."""
    topic = stage.topic(f"broker-{name}")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with feeding(stage, topic, 500, may_fail=name == "source"), counted(proxy, THROTTLED, 20_000):
            proxy.set(THROTTLE, bytes_per_second=200_000)
            begun = proxy.counts[THROTTLED]
            stage.send(topic, bulk(3000))
            wait_until(lambda: proxy.counts[THROTTLED] > begun + 100_000, "a batch under way")
            missing = stage.ends("source", topic) - stage.ends("shaky", target_name(flow))
            stage.cluster(name).kill_broker(0)
            proxy.set(PASS)
            time.sleep(2)
            stage.cluster(name).start_broker(0)
            time.sleep(1)
        stage.caught_up(flow, running=running, seconds=120)
    assert missing > 0, "no batch was under way"
    stage.expect_same(flow)
    return f"{missing} records were still to come when it died"


@row("20", "source broker kill -9", "SIGKILL mid-batch, started again after 2 s, while records come in")
def source_broker_dies(stage: Stage) -> str:
    return _broker_dies(stage, "source", source_proxy(stage))


@row("21", "target broker kill -9 mid-batch", "SIGKILL, started again after 2 s, while records come in")
def target_broker_dies(stage: Stage) -> str:
    return _broker_dies(stage, "shaky", stage.proxy)


@row(
    "21c",
    "acknowledgement lost, then the target broker dies; records of years ago",
    "proxy: drop-response; SIGKILL, started again",
    "brokers forget producers of old records when they crash, so nothing may be sent again blindly; " + EQUAL,
)
def target_broker_dies_after_ack_lost(stage: Stage) -> None:
    topic = stage.topic("ack-broker")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        landed, dropped = stage.ends("shaky", target_name(flow)), stage.proxy.counts[DROPPED]
        stage.proxy.set(DROP_RESPONSE)
        stage.more(topic, 500)
        wait_until(lambda: stage.ends("shaky", target_name(flow)) > landed, "records that landed")
        wait_until(lambda: stage.proxy.counts[DROPPED] > dropped, "a lost acknowledgement")
        stage.cluster().kill_broker(0)
        stage.proxy.set(PASS)
        stage.cluster().start_broker(0)
        stage.more(topic, 100, 700)
        stage.caught_up(flow, running=running)
        time.sleep(1)
    stage.expect_same(flow)


@row("21b", "target refuses connections for 8 s", "proxy: refuse")
def target_refuses(stage: Stage) -> None:
    topic = stage.topic("refuse")
    flow = stage.flow(topic)
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with counted(stage.proxy, CUT), counted(stage.proxy, ACCEPTED):
            stage.proxy.set(REFUSE)
            stage.more(topic, 2000)
            time.sleep(8)
            assert stage.ends("shaky", target_name(flow)) == 200, "something went through"
            stage.proxy.set(PASS)
            stage.caught_up(flow, running=running)
    stage.expect_same(flow)


@row(
    "22", "target broker SIGSTOP 20 s", "kill -STOP; delivery time-out 5 s", "late landings are taken for what they are"
)
def target_stops(stage: Stage) -> str:
    topic = stage.topic("pause")
    flow = stage.flow(topic, fanout={"delivery_timeout_seconds": 5})
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        with feeding(stage, topic, 1000):
            time.sleep(1)
            stage.cluster().pause_broker(0)
            time.sleep(20)
            status, asked_at = read_status(flow.root, flow.name), time.time()
            stage.cluster().resume_broker(0)
            missing = stage.ends("source", topic) - stage.ends("shaky", target_name(flow))
        stage.caught_up(flow, running=running, seconds=120)
    stage.expect_same(flow)
    assert missing > 0, "the target kept up: it did not stand still"
    (line,) = status["targets"]
    return f"{missing} records still to come; the status, {asked_at - status['at']:.0f} s old, said {line}"


@row("23", "rolling restart of all brokers", "SIGTERM and start, one after the other", "no halt; " + EQUAL)
def rolling(stage: Stage) -> None:
    topic = stage.topic("rolling")
    flow = stage.flow(topic, ["shaky", "hubs"])
    with stage.running(flow) as running:
        stage.caught_up(flow, running=running)
        for name in ("source", "shaky", "hubs"):
            stage.more(topic, 300)
            stage.cluster(name).stop_broker(0)
            time.sleep(1)
            stage.cluster(name).start_broker(0)
        stage.more(topic, 300)
        for target in flow.targets:
            stage.caught_up(flow, target, running=running, seconds=120)
    stage.expect_same(flow)


# --- leaders of replicated clusters ---


@row(
    "23b",
    "leaders of a target of three brokers die, one after the other",
    "RF 3, min.insync.replicas 2; SIGKILL to the leader and started again, three times, while records come in",
    "no halt, says why where it waits; " + EQUAL,
)
def target_leaders_die(stage: Stage) -> str:
    with trio(stage, REPLICATED) as three:
        topic = stage.topic("replicated")
        return _leaders_die(stage, stage.flow(topic, [three.name]), three, f"source.{topic}")


@row(
    "23c",
    "leaders of a source of three brokers die, one after the other",
    "RF 3, min.insync.replicas 2; SIGKILL to the leader and started again, three times, while records come in",
    "no halt, says why where it waits; " + EQUAL,
)
def source_leaders_die(stage: Stage) -> str:
    with trio(stage, REPLICATED) as three:
        topic = f"replicated-{os.getpid()}-{time.monotonic_ns()}"
        stage.records.cluster(three.name).create_topic(topic, 2, 3, {})
        wait_until(lambda: _in_sync(stage, three, topic) == 3, "the topic on all brokers")
        stage.send(topic, stage.records.numbered(200, 2), three.name)
        return _leaders_die(stage, stage.flow(topic, source=three.name), three, topic)


REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2", "log.retention.ms": "-1"}


def _leaders_die(stage: Stage, flow: Flow, three: LabCluster, replicated: str) -> str:
    (target,), killed = flow.targets, []
    with stage.running(flow) as running:
        stage.caught_up(flow, target, running=running)
        wait_until(lambda: _in_sync(stage, three, replicated) == 3, "all brokers in sync")
        with feeding(stage, flow.topics[0], 300, to=source_of(flow)), Watch(flow, running) as watch:
            for number in range(3):
                killed.append(_kill_leader(stage, three, replicated, number % 2))
                running.raise_failure()
        stage.caught_up(flow, target, running=running, seconds=120)
    stage.expect_same(flow)
    assert watch.explained, f"nothing came for {watch.longest_seconds:.1f} s, and nobody said why"
    return f"brokers {killed}; at most {watch.longest_seconds:.1f} s without progress; said: {watch.reasons}"


def _kill_leader(stage: Stage, three: LabCluster, topic: str, partition: int) -> int:
    """Another leads, then the dead one comes back and catches up: two must stay, or nobody could write."""
    leader = leader_of(three, topic, partition)
    three.kill_broker(leader)
    wait_until(lambda: leader_of(three, topic, partition, leader) not in (leader, -1), "another leader")
    time.sleep(3)  # records flow through two brokers
    three.start_broker(leader)
    wait_until(lambda: _in_sync(stage, three, topic) == 3, "all brokers in sync")
    return leader


def _in_sync(stage: Stage, three: LabCluster, topic: str) -> int:
    """How many brokers hold all of every partition."""
    there = stage.records.cluster(three.name).admin.list_topics(topic, timeout=10).topics[topic]
    return min((len(partition.isrs) for partition in there.partitions.values()), default=0)


class Watch:
    """How long a flow delivered nothing new, and which reasons for it `status` or the runner gave meanwhile."""

    PATIENCE_SECONDS = 15.0
    """A runner says after ten seconds that nothing comes."""

    def __init__(self, flow: Flow, running: Running) -> None:
        self._flow, self._running, self._heard = flow, running, len(running.said)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.longest_seconds = 0.0
        self.reasons: list[str] = []
        self.explained = True
        """Whether something was said each time that nothing came for longer than our patience."""

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(30)

    def _look(self) -> None:
        seen, since, known = -1, time.monotonic(), 0
        while not self._done.wait(0.2):
            if (delivered := self._status()) != seen:
                self._judge(time.monotonic() - since, len(self.reasons) > known)
                seen, since, known = delivered, time.monotonic(), len(self.reasons)
        self._judge(time.monotonic() - since, len(self.reasons) > known)

    def _judge(self, seconds: float, was_said: bool) -> None:
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.explained = self.explained and (was_said or seconds < self.PATIENCE_SECONDS)

    def _status(self) -> int:
        """Records delivered by this runner, as it says itself."""
        lines = read_status(self._flow.root, self._flow.name).get("targets", [])
        now = [line["waiting"] for line in lines] + self._running.said[self._heard :]
        self._heard = len(self._running.said)
        self.reasons += [reason for reason in now if reason and reason not in self.reasons[-1:]]
        return sum(line["delivered"] for line in lines)
