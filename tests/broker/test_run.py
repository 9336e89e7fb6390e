"""`mirrorlake run` as a user starts it: progress, clean stop, restart, pause, new topics, lag."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from harness import Flow, Records, by_partition, count, finish, run_command, wait_until
from pyspark.sql import SparkSession

from mirrorlake import control, inspection


def test_it_relays_stops_cleanly_and_goes_on_where_it_stopped(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    sent = records.numbered(600, 2)
    sent[200:400] = [replace(record, value=b"%d" % n * 1500) for n, record in enumerate(sent[200:400])]
    records.create("source", topic, 2)
    records.send("source", topic, sent[:200])
    flow = make_flow([topic], ["target", "hubs"], ingest={"max_bytes_per_batch": "20kB"})
    said_aside = flow.folder / "stderr.txt"
    arguments = ("run", "-c", str(flow.write()), "--log-format", "json")
    running = run_command(flow.folder / "stdout.txt", *arguments, errors=said_aside)
    try:
        wait_until(lambda: records.arrived("target", f"source.{topic}", 200), "the first records", 120)
        records.send("source", topic, sent[200:400])
        wait_until(lambda: records.arrived("hubs", f"source.{topic}", 400), "records sent while it ran")
    finally:
        running.send_signal(signal.SIGTERM)
        code, said = finish(running)
    assert code == 0, said + said_aside.read_text()
    the_log_is_json(said)
    records.send("source", topic, sent[400:])
    flow.run_once()
    for target in ("target", "hubs"):
        assert records.read(target, f"source.{topic}") == by_partition(sent)
    assert flow.audit().ok


def the_log_is_json(said: str) -> None:
    """Each line of stdout is a document, for a log collector: what happened, and how far it is."""
    lines = [json.loads(line) for line in said.splitlines()]
    assert all(datetime.fromisoformat(line["at"]) for line in lines)
    assert {line["event"] for line in lines} == {"message", "progress"}
    messages = [line["message"] for line in lines if line["event"] == "message"]
    assert any("the size of records changed" in message for message in messages)
    assert messages[-1] == "stopped"
    progress = [line for line in lines if line["event"] == "progress"]
    assert {line["target"] for line in progress} == {"target", "hubs"}
    assert all({"flow", "table", "delivered", "behind", "waiting"} <= line.keys() for line in progress)


def test_it_ends_by_itself_after_the_time_it_was_given(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    seconds = 10
    sent = records.numbered(50)
    records.create("source", topic)
    records.send("source", topic, sent)
    flow = make_flow([topic])
    begun = time.monotonic()
    running = flow.start("--for", str(seconds))
    try:
        wait_until(lambda: records.arrived("target", f"source.{topic}", len(sent)), "the records", 120)
        arrived = time.monotonic()
    finally:
        code, said = finish(running)
    ended = time.monotonic()
    assert code == 0, said
    assert ended - begun > seconds
    assert ended - arrived < seconds + 10
    assert records.read("target", f"source.{topic}") == by_partition(sent)
    assert inspection.read_status(flow.config(), flow.root)[0]["state"] == "stopped"


@pytest.mark.parametrize(
    ("choice", "filled"),
    [
        pytest.param(("--flow", "right"), {("target", "right")}, id="a flow"),
        pytest.param(("--clusters", "hubs,source"), {("hubs", "left")}, id="clusters"),
    ],
)
def test_only_what_was_chosen_gets_records(
    make_flow: Callable[..., Flow], records: Records, topic: str, choice: tuple[str, str], filled: set[tuple[str, str]]
) -> None:
    """Of `left`, which goes to both targets, and `right`, which goes to one."""
    flow = make_flow([], ["target", "hubs"])
    content = yaml.safe_load(flow.write().read_text())
    content["flows"] = {}
    for name, targets in {"left": ["target", "hubs"], "right": ["target"]}.items():
        records.create("source", f"{topic}.{name}")
        records.send("source", f"{topic}.{name}", records.numbered(20))
        aims = [{"cluster": target} for target in targets]
        content["flows"][name] = {"source": "source", "topics": [f"{topic}.{name}"], "targets": aims}
    flow.path.write_text(yaml.safe_dump(content))
    code, said = finish(flow.command("run", "-c", str(flow.path), "--once", *choice))
    assert code == 0, said
    found = {
        (target, name): records.read(target, f"source.{topic}.{name}")
        for target in ("target", "hubs")
        for name in ("left", "right")
        if records.cluster(target).describe([f"source.{topic}.{name}"])
    }
    assert found == {chosen: {0: records.numbered(20)} for chosen in filled}


def test_runs_of_one_process_leave_no_clients_behind(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    """A notebook may run a flow many times."""
    records.create("source", topic)
    records.send("source", topic, records.numbered(20))
    flow = make_flow([topic])
    flow.run_once()
    once = client_threads()
    for _ in range(3):
        flow.run_once()
    wait_until(lambda: client_threads() <= once, f"no more than {once} threads of librdkafka")


def client_threads() -> int:
    return sum(path.read_text().startswith("rdk:") for path in Path("/proc/self/task").glob("*/comm"))


def test_new_topics_and_partitions_are_relayed_without_a_restart_and_a_pause_holds_only_what_it_names(
    make_flow: Callable[..., Flow], records: Records, topic: str, spark: SparkSession
) -> None:
    first, second = f"{topic}.first", f"{topic}.second"
    records.create("source", first)
    records.send("source", first, records.numbered(20))
    flow = make_flow([], ["target", "hubs"], patterns=[f"{topic}\\..*"])
    running = flow.start()
    try:
        wait_until(lambda: records.arrived("target", f"source.{first}", 20), "the first topic", 120)
        control.pause(flow.root, flow.name, control.Pause("hubs", None))
        records.create("source", second, 2)
        records.send("source", second, records.numbered(40, 2))
        wait_until(lambda: records.arrived("target", f"source.{second}", 40), "the second topic")
        assert not records.cluster("hubs").describe([f"source.{second}"]) or not count(
            records.read("hubs", f"source.{second}")
        )
        status = inspection.read_status(flow.config(), flow.root)[0]
        assert (status["state"], status["paused"]) == ("running", [{"target": "hubs", "topic": None}])
        control.resume(flow.root, flow.name, None, None)
        wait_until(lambda: records.arrived("hubs", f"source.{second}", 40), "what was paused")
        records.cluster("source").grow_topic(first, 3)
        wait_until(lambda: records.cluster("source").describe([first])[first].partitions == 3, "growth")
        records.send("source", first, records.numbered(30, 3, first=1))
        wait_until(lambda: records.arrived("target", f"source.{first}", 50), "the new partitions")
    finally:
        running.send_signal(signal.SIGINT)
        code, said = finish(running)
    assert code == 0, said
    assert records.read("target", f"source.{first}") == records.read("source", first)
    tables = {row["table_name"] for row in lag_rows_of_views(flow, spark, first, second)}
    assert tables == {first, second}


def lag_rows_of_views(flow: Flow, spark: SparkSession, *topics: str) -> list[dict[str, str]]:
    """A view for each topic over the shared table, by the name that its own table would have."""
    from mirrorlake.names import table_name
    from mirrorlake.tables import FolderTables

    inspection.register(spark, flow.config(), FolderTables(flow.root))
    names = [table_name("bronze.{source}__{topic}", "source", topic) for topic in topics]
    return [
        {"table_name": row["topic"]}
        for name in names
        for row in spark.sql(f"SELECT DISTINCT topic FROM {name}").collect()
    ]


def test_a_killed_java_process_is_one_message_and_no_traceback(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic)
    records.send("source", topic, records.numbered(10))
    flow = make_flow([topic])
    running = flow.start()
    try:
        wait_until(lambda: records.arrived("target", f"source.{topic}", 10), "the first records", 120)
        os.kill(java_of(running.pid), signal.SIGKILL)
    finally:
        code, said = finish(running)
    assert code == 3, said
    assert "Spark's Java process ended" in said
    assert "Traceback" not in said


def java_of(pid: int) -> int:
    """PySpark starts it from a thread, and a thread's children are listed apart."""
    children = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return next(int(child) for child in children if "java" in Path(f"/proc/{child}/comm").read_text())


def test_lag_is_right_also_when_nothing_runs(
    make_flow: Callable[..., Flow], records: Records, topic: str, spark: SparkSession
) -> None:
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(100, 2))
    flow = make_flow([topic])
    flow.run_once()
    rows = inspection.read_lag(flow.config(), spark)
    assert [(row["partition"], row["lag_records"], row["lag_seconds"]) for row in rows] == [(0, 0, 0.0), (1, 0, 0.0)]
    records.send("source", topic, records.numbered(30, 2))
    inspection.read_lag(flow.config(), spark)
    rows = inspection.read_lag(flow.config(), spark)
    assert [row["lag_records"] for row in rows] == [15, 15]
    assert [row["ingest_lag_records"] for row in rows] == [15, 15]
    assert all(row["lag_seconds"] > 0 for row in rows)
