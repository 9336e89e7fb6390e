"""45-49: the storage root, checkpoints and tables."""

from __future__ import annotations

import contextlib
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable
from proxy import BLACKHOLE, PASS, STARVED
from stage import (
    Command,
    Flow,
    NotHere,
    Running,
    Stage,
    children,
    descriptors,
    finish,
    target_name,
    terminate,
    wait_until,
)

from mirrorlake.control import EVERYTHING, pause, resume
from mirrorlake.errors import (
    DataAtRisk,
    StateMismatch,
)
from mirrorlake.lab import ClusterSpec, LabCluster
from rows.common import EQUAL, bulk, counted, row


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[None]:
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        raise _refusal(mounted.stderr.decode())
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def _refusal(said: str) -> Exception:
    """Only a machine that says that we may not mount lacks it; whatever else goes wrong is our own fault."""
    forbidden = any(words in said.lower() for words in ("permission denied", "must be superuser", "not permitted"))
    return NotHere(f"mounting is not allowed on this machine: {said}") if forbidden else AssertionError(said)


def remount(path: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(path)], check=True)


@row(
    "45",
    "disk full",
    "tmpfs of 10 MB as the storage root",
    "stops, acknowledges nothing falsely; goes on when freed; " + EQUAL,
)
def disk_full(stage: Stage) -> str:
    topic = stage.topic("full")
    flow = stage.flow(topic, ingest={"max_records_per_batch": 2000})
    with small_disk(flow.root, 10):
        flow.run_once()
        stage.send(topic, bulk(16_000))
        code, said = finish(flow.start("--once"), 180)
        assert code in (3, 4), f"{code}: {said[-1500:]}"
        assert "Traceback" not in said, said[-1500:]
        remount(flow.root, "size=200m")
        flow.run_once()
        stage.expect_same(flow)
    return f"exit {code}"


@row(
    "45b",
    "disk full for the ledger only",
    "failpoint ledger-before-commit raises",
    "the flow stops (3), nothing is sent again; " + EQUAL,
)
def ledger_fails(stage: Stage) -> str:
    flow = stage.begun("ledger-full")
    code, said = stage.trapped(flow, "ledger-before-commit:1:raise")
    assert (code, "cannot be written" in said) == (3, True), said[-700:]
    flow.run_once()
    stage.expect_same(flow)
    return f"exit {code}"


@row(
    "45c",
    "disk full at a target's broker",
    "tmpfs as its log folder, filled while records flow",
    "waits while the broker is down, acknowledges nothing falsely; goes on when freed; " + EQUAL,
)
def broker_disk_full(stage: Stage) -> str:
    topic = stage.topic("narrow")
    with _narrow(stage, 64) as (cluster, data):
        flow = stage.flow(topic, ["narrow"])
        flow.run_once()
        _fill(data / "ballast")
        with stage.running(flow) as running:
            stage.send(topic, bulk(8000, first=200))
            wait_until(lambda: cluster.process(0) is None, "the broker to give up", 90)
            (data / "ballast").unlink()
            cluster.start_broker(0)
            stage.caught_up(flow, "narrow", running=running)
        stage.expect_same(flow)
    return "the broker ended, and took nothing in between"


@contextlib.contextmanager
def _narrow(stage: Stage, megabytes: int) -> Iterator[tuple[LabCluster, Path]]:
    """A cluster of one broker whose disk is small."""
    cluster = stage.lab.up([ClusterSpec("narrow")])["narrow"]
    cluster.stop_broker(0)
    data = cluster.folder / "broker-0" / "data"
    kept = data.rename(data.with_name("kept"))
    with small_disk(data, megabytes):
        shutil.copytree(kept, data, dirs_exist_ok=True)
        cluster.start_broker(0)
        try:
            yield cluster, data
        finally:
            stage.lab.down(["narrow"])


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


@row(
    "46", "a checkpoint's offset file cut to nothing", "truncate", "refuses (4) or goes on; never from the start again"
)
def truncated_offsets(stage: Stage) -> str:
    return _truncated(stage, "offsets")


@row(
    "46b", "a checkpoint's commit file cut to nothing", "truncate", "refuses (4) or goes on; never from the start again"
)
def truncated_commits(stage: Stage) -> str:
    return _truncated(stage, "commits")


def _truncated(stage: Stage, kind: str) -> str:
    flow = stage.begun("cut")
    flow.run_once()
    folder = next((flow.root / "checkpoints").glob(f"*/ingest.*/g0/{kind}"))
    newest = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    newest.write_bytes(b"")
    stage.more(flow.topics[0], 500, 2200)
    code, said = finish(flow.start("--once"))
    assert "Traceback" not in said, f"exit {code}: {said[-700:]}"
    assert code in (0, 4), f"exit {code}: {said[-700:]}"
    if code == 4:
        shutil.rmtree(flow.root / "checkpoints")  # what a person would do next, since the ledger is intact
        flow.run_once()
    stage.expect_same(flow)
    return f"exit {code}"


@row("46c", "storage root read-only", "tmpfs remounted ro", "exit 3, named; goes on after the fix")
def read_only(stage: Stage) -> str:
    topic = stage.topic("readonly")
    flow = stage.flow(topic)
    with small_disk(flow.root, 200):
        flow.run_once()
        stage.more(topic, 300)
        remount(flow.root, "ro")
        code, said = finish(flow.start("--once"))
        assert code == 3, f"{code}: {said[-800:]}"
        assert "Traceback" not in said, said[-800:]
        remount(flow.root, "rw")
        flow.run_once()
        stage.expect_same(flow)
    return f"exit {code}"


@row("47", "checkpoints deleted", "rm -r, twice", "begun again from bronze and ledger; " + EQUAL)
def checkpoints_deleted(stage: Stage) -> None:
    flow = stage.begun("gone")
    for round_ in range(2):
        flow.run_once()
        shutil.rmtree(flow.root / "checkpoints")
        stage.more(flow.topics[0], 300, 2200 + 300 * round_)
    flow.run_once()
    stage.expect_same(flow)


@row(
    "47b",
    "bronze table deleted, its checkpoint kept",
    "rm -r, once with a target that has yet to get its records, once without",
    "refuses (4), says what to do, sends nothing; goes on when that is done; " + EQUAL,
)
def bronze_deleted(stage: Stage) -> str:
    flow = stage.begun("no-bronze")
    pause(flow.root, flow.name, EVERYTHING)
    flow.run_once()
    resume(flow.root, flow.name, None, None)
    for first in (2200, 2500):
        shutil.rmtree(flow.root / "tables" / "bronze")
        stage.more(flow.topics[0], 300, first)
        before = stage.ends("shaky", target_name(flow))
        with pytest.raises(StateMismatch) as refused:
            flow.run_once()
        assert stage.ends("shaky", target_name(flow)) == before, "something was sent"
        _do_as_told(refused.value)
        flow.run_once()
        stage.expect_same(flow)
    return refused.value.what


def _do_as_told(refused: StateMismatch) -> None:
    told = re.search(r"move the folder (\S+) away", refused.next_step)
    assert told, f"what to do is not said: {refused}"
    shutil.rmtree(told[1])


@row(
    "47c",
    "an older copy of the checkpoints put back",
    "cp -r, some batches later and one batch later",
    "refuses (4) or goes on; never a loss in silence; " + EQUAL,
)
def checkpoints_put_back(stage: Stage) -> str:
    flow = stage.begun("older")
    checkpoints, kept = flow.root / "checkpoints", flow.folder / "kept"
    said = []
    for first in (2200, 2300):
        shutil.copytree(checkpoints, kept)
        flow.run_once()
        shutil.rmtree(checkpoints)
        kept.rename(checkpoints)
        stage.more(flow.topics[0], 100, first)
        try:
            flow.run_once()
            said.append("went on")
        except StateMismatch as refused:
            said.append(refused.what)
            _do_as_told(refused)
            flow.run_once()
        stage.expect_same(flow)
        stage.more(flow.topics[0], 100, first + 1000)
    return "; ".join(said)


@row("47d", "ledger deleted", "rm -r tables/ops/ledger", "refuses (4) before anything is sent")
def ledger_deleted(stage: Stage) -> str:
    flow = stage.begun("no-ledger")
    flow.run_once()
    before = stage.ends("shaky", target_name(flow))
    shutil.rmtree(flow.root / "tables" / "ops" / "ledger")
    stage.more(flow.topics[0], 300, 2200)
    for _ in range(2):
        with pytest.raises(DataAtRisk, match="ledger") as refused:
            flow.run_once()
        assert refused.value.next_step, refused.value
        assert stage.ends("shaky", target_name(flow)) == before, "something was sent"
    return refused.value.what


@row(
    "48",
    "Delta commit landed, Spark told otherwise",
    "failpoint bronze-committed raises",
    "not appended twice; " + EQUAL,
)
def commit_unknown(stage: Stage) -> str:
    flow = stage.begun("commit")
    code, said = stage.trapped(flow, "bronze-committed:1:raise")
    if code != 0:
        flow.run_once()
    stage.expect_same(flow)
    assert "Traceback" not in said, said[-800:]
    return f"exit {code}"


@row("49", "OPTIMIZE and VACUUM while it runs", "delta-rs, several times; a target that is behind")
def optimized(stage: Stage) -> str:
    topic = stage.topic("optimize")
    flow = stage.flow(topic, ["shaky", "hubs"], fanout={"delivery_timeout_seconds": 5})
    with stage.running(flow) as running:
        for target in flow.targets:
            stage.caught_up(flow, target, running=running)
        table = next((flow.root / "tables" / "bronze").iterdir())
        with counted(stage.proxy, STARVED):
            stage.proxy.set(BLACKHOLE)
            counts = [_optimize_under_way(stage, flow, running, table, 200 + 1200 * round_) for round_ in range(3)]
        stage.proxy.set(PASS)
        stage.more(topic, 300, 3800)
        for target in flow.targets:
            stage.caught_up(flow, target, running=running)
    stage.expect_same(flow)
    return "; ".join(f"{before} files became {after}" for before, after in counts)


def _optimize_under_way(stage: Stage, flow: Flow, running: Running, table: Path, first: int) -> tuple[int, int]:
    """Some batches, which one target has yet to get; then the files that they are in go away."""
    for batch in range(4):
        stage.more(flow.topics[0], 300, first + 300 * batch)
        stage.caught_up(flow, "hubs", running=running)
    before = len(DeltaTable(str(table)).file_uris())
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).vacuum(0, enforce_retention_duration=False, dry_run=False)
    after = len(DeltaTable(str(table)).file_uris())
    assert after < before, f"OPTIMIZE left {after} of {before} files"
    return before, after


# --- 55: what the operating system gives ---


@row(
    "55",
    "no more open files allowed",
    "prlimit of every process of a runner to what it has open, while records come in; then raised",
    "stops or waits, acknowledges nothing falsely; goes on when raised; " + EQUAL,
)
def no_open_files(stage: Stage) -> str:
    topic = stage.topic("files")
    flow = stage.flow(topic, ingest={"max_records_per_batch": 500})
    runner = flow.start()
    try:
        stage.caught_up(flow)
        limits = _forbid_files(runner.pid)
        stage.more(topic, 3000)
        ended = _wait_for_end(runner, 30)
        delivered = stage.ends("shaky", target_name(flow))
        said = runner.output.read_text()
        _allow_files(limits)
        if not ended:
            stage.caught_up(flow, seconds=120)
    finally:
        code, last_said = terminate(runner) if runner.process.poll() is None else finish(runner)
    assert "Traceback" not in last_said, last_said[-1500:]
    assert code in ((3, 4) if ended else (0,)), f"{code}: {last_said[-1500:]}"
    flow.run_once()
    stage.expect_same(flow)
    return f"{len(limits)} processes; {'ended' if ended else 'lived'} with {delivered} records; {last_line(said)}"


def _forbid_files(pid: int) -> dict[int, tuple[int, int]]:
    """No process may open one more than it has; what was allowed before."""
    return {each: _limit_files(each, len(descriptors(each))) for each in [pid, *children(pid)]}


def _limit_files(pid: int, most: int) -> tuple[int, int]:
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    return resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))


def _allow_files(limits: Mapping[int, tuple[int, int]]) -> None:
    for pid, limit in limits.items():
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


def _wait_for_end(runner: Command, seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        runner.process.wait(seconds)
    return runner.process.poll() is not None


def last_line(said: str) -> str:
    return (said.strip().splitlines() or [""])[-1][-160:]
