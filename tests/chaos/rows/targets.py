"""50-57: targets that go back in time, lack something, or are away for long."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from proxy import CUT, NO_IDEMPOTENCE, PASS, REFUSE, UNHEARD
from stage import Flow, Stage, children, command_of, finish, target_name

from mirrorlake.errors import TargetDiverged
from rows.common import EQUAL, counted, put_back, row


@row("50", "target topic made anew", "admin", "stops (4); `repair` fills it from bronze")
def target_made_anew(stage: Stage) -> str:
    flow = stage.begun("remade")
    flow.run_once()
    stage.delete("shaky", target_name(flow))
    stage.records.create("shaky", target_name(flow), 2)
    with pytest.raises(TargetDiverged, match="made anew"):
        flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == 0, "something was sent"
    return _repaired(stage, flow)


@row(
    "50b",
    "target restored from an older copy",
    "its partitions' folders put back, broker stopped",
    "stops (4); `repair` sends exactly what is missing",
)
def target_rewound(stage: Stage) -> str:
    topic = stage.topic("rewound")
    flow = stage.flow(topic)
    flow.run_once()
    with put_back(stage, "shaky", target_name(flow)):
        stage.more(topic, 500)
        flow.run_once()
    assert stage.ends("shaky", target_name(flow)) == 200
    with pytest.raises(TargetDiverged, match="the log reached"):
        flow.run_once()
    return _repaired(stage, flow)


@row(
    "50c",
    "target topic made anew, filled again by policy; kill -9 as that is told",
    "admin; failpoint incident-written",
    "filled from bronze; " + EQUAL,
)
def refilling_dies(stage: Stage) -> None:
    flow = stage.begun("refill", target={"on_topic_deleted": "recreate"})
    flow.run_once()
    stage.delete("shaky", target_name(flow))
    stage.crash(flow, "incident-written:1:kill-driver")
    flow.run_once()
    stage.expect_same(flow, incidents=["target_topic_remade"])


def _repaired(stage: Stage, flow: Flow) -> str:
    code, said = finish(flow.command("repair", "-c", str(flow.write()), "--target", "shaky", "--apply"))
    assert code == 0, f"repair: exit {code}: {said[-1000:]}"
    stage.more(flow.topics[0], 100, 5000)
    flow.run_once()
    stage.expect_same(flow, incidents=["target_diverged"])
    return "repaired"


@row(
    "52",
    "target knows no idempotent producers",
    "proxy: InitProducerId taken out of what the broker says it knows",
    "exit 3, named; nothing sent; goes on after the fix",
)
def no_idempotence(stage: Stage) -> str:
    flow = stage.begun("plain")
    before, begun = stage.ends("shaky", target_name(flow)), time.monotonic()
    with counted(stage.proxy, UNHEARD):
        stage.proxy.set(NO_IDEMPOTENCE)
        code, said = finish(flow.start("--once"))
    assert code == 3, f"{code}: {said[-1500:]}"
    assert "Traceback" not in said, said[-1500:]
    assert "next:" in said, said[-1500:]
    assert "dempoten" in said, said[-1500:]
    assert stage.ends("shaky", target_name(flow)) == before, "something was sent"
    seconds = time.monotonic() - begun
    stage.proxy.set(PASS)
    flow.run_once()
    stage.expect_same(flow)
    return f"exit {code} after {seconds:.0f} s: {' '.join(said.split())[-300:]}"


@row("54", "one of two targets down when the runner starts", "proxy: refuse", "the other gets its records")
def down_at_start(stage: Stage) -> None:
    topic = stage.topic("down")
    flow = stage.flow(topic, ["shaky", "hubs"])
    flow.run_once()
    stage.proxy.set(REFUSE)
    stage.more(topic, 500)
    with stage.running(flow) as running:
        stage.caught_up(flow, "hubs", running=running, seconds=60)
        assert stage.ends("shaky", target_name(flow)) == 200, "something went through"
        stage.proxy.set(PASS)
        stage.caught_up(flow, running=running, seconds=60)
    stage.expect_same(flow)


# --- 57: how much may wait ---

RECORD_BYTES = 1000
HEAP = "640m"
"""Java's heap is full of what it no longer needs before long, and stays so: a small one hides no growth."""
BURSTS = 8
GROWTH_MIB = 150
"""Between two bursts and eight. The records of six weigh twice as much, where as many wait as by default."""
WAITING_MIB = 4000  # of all processes of a runner


@row(
    "57",
    "records wait for a dead target, four times as many as before",
    "proxy: refuse; records of 1 kB, in bursts; a second target; `--waiting 10000000` for ten million",
    "the other has them all; memory is bounded and does not grow with what waits; on return all in order, each once",
)
def waiting(stage: Stage) -> str:
    topic = stage.topic("waiting", partitions=4, count=4)
    flow = stage.flow(topic, ["shaky", "hubs"], runner={"driver_memory": HEAP})
    command = flow.start()
    try:
        peak, burst = _Peak(command.pid), stage.waiting_records // BURSTS
        for target in flow.targets:  # what a burst needs at all is there before anything waits
            _burst(stage, flow, peak, burst, target)
        stage.caught_up(flow)
        with counted(stage.proxy, CUT):
            stage.proxy.set(REFUSE)
        seen = stage.ends("shaky", target_name(flow))
        shares = [_burst(stage, flow, peak, burst, "hubs") for _ in range(BURSTS)]
        assert stage.ends("shaky", target_name(flow)) == seen, "something went through"
        stage.proxy.set(PASS)
        stage.caught_up(flow, seconds=900)
        sending = peak.mib()
    finally:
        command.send_signal(signal.SIGTERM)
        code, said = finish(command)
    assert code == 0, said[-1500:]
    stage.expect_same_stream(topic)
    mib = [share.total() for share in shares]
    measured = f"MiB with each burst of {burst:,} that waits: {mib}; while they are sent: {sending.total()}"
    whose = f"of whom: {dict(shares[0])}, {dict(shares[-1])}, {dict(sending)}"
    # The lower of two: a process that has just forked counts twice for a moment.
    assert min(mib[-2:]) - min(mib[:2]) < GROWTH_MIB, f"{measured}; {whose}"
    assert max(*mib, sending.total()) < WAITING_MIB, f"{measured}; {whose}"
    return f"{measured}; {whose}"


def _burst(stage: Stage, flow: Flow, peak: _Peak, count: int, target: str) -> Counter[str]:
    """The most memory, from when so many more records came until a target had them and some seconds on."""
    peak.forget()
    stage.load(flow.topics[0], count, 4, RECORD_BYTES)
    stage.caught_up(flow, target, seconds=900)
    time.sleep(2)
    return peak.mib()


class _Peak:
    """The most memory that a process and its children had together, while looked at, and who had it."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most = pid, Counter[str]()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while Path(f"/proc/{self._pid}").exists():
                self._most = max(self._most, self._now(), key=Counter.total)
                time.sleep(0.5)

    def _now(self) -> Counter[str]:
        shares = Counter({"runner": _resident_kib(self._pid)})
        for pid in children(self._pid):
            shares["java" if "java" in command_of(pid).split(" ")[0] else "workers"] += _resident_kib(pid)
        return shares

    def forget(self) -> None:
        self._most = Counter()

    def mib(self) -> Counter[str]:
        return Counter({who: kib // 1024 for who, kib in self._most.items()})


def _resident_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
    return 0
