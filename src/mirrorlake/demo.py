"""`make demo`: real brokers, a relay and its proof, told from top to bottom.

Three Kafka clusters start on this machine. `source` is read; `dr` is a plain Kafka target; `hubs` stands for an
Azure Event Hubs namespace: SASL_SSL, PLAIN, the user `$ConnectionString`, topics that only its owner makes. Everything
lies in `.mirrorlake/demo`, which each demo begins by emptying.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich import box
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from mirrorlake import inspection
from mirrorlake.cli import cell, print_report, report_fault
from mirrorlake.config import Config, load
from mirrorlake.errors import ClusterUnreachable, MirrorlakeError
from mirrorlake.lab import ClusterSpec, Lab, LabCluster
from mirrorlake.lease import exclusive
from mirrorlake.provenance import HEADER
from mirrorlake.runner import Run
from mirrorlake.world import connect, open_tables, spark_session, storage_root

FOLDER = Path(".mirrorlake/demo")
PARTITIONS = 3
FIRST_ORDERS, MORE_ORDERS = 3000, 2000
COUNTRIES = ("DE", "FR", "IT", "PL")
COPIES = {"source": "orders", "dr": "source.orders", "hubs": "orders"}
"""Where the orders are, by cluster: `dr` prefixes the source's alias, `hubs` keeps the name."""
Clusters = Mapping[str, LabCluster]
Record = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""partition, offset, timestamp, key, value, headers"""

WIDTH = None if sys.stdout.isatty() else 110
out = Console(highlight=False, width=WIDTH)
QUIET = {"log_level": 0}  # librdkafka's own words go to stderr, between ours


class DemoFailed(MirrorlakeError):
    """The demo shows something that it should not."""


def tell(keep: bool) -> None:
    """The story."""
    begun = time.monotonic()
    with three_clusters(keep) as clusters:
        chapter("Topics, and 3,000 orders with keys, headers and tombstones")
        create_topics(clusters)
        produce_orders(clusters["source"], 0, FIRST_ORDERS)

        chapter("The configuration")
        config = write_config(clusters)

        chapter("Relay them to both targets, and end")
        relay_once()

        chapter("2,000 orders more: how far behind are the targets now?")
        produce_orders(clusters["source"], FIRST_ORDERS, MORE_ORDERS)
        with spark_for(config) as spark:
            show_lag(config, spark)

            chapter("Go on where it stopped, this time from Python, as a notebook or a job would")
            relay_from_python(config, spark)

            chapter("What a plain consumer sees on each cluster")
            show_records(clusters)

            chapter("The same records as a table, in SQL")
            show_sql(config, spark)

            chapter("Lag now")
            show_lag(config, spark)

        chapter("Audit: source, bronze and targets compared, record by record")
        show_audit(config)
    out.rule(style="green")
    out.print(f"[green]Done[/green] in {time.monotonic() - begun:.0f} s. {'' if keep else 'Nothing is left running.'}")
    if keep:
        show_commands(clusters)


# --- the clusters ---


@contextlib.contextmanager
def three_clusters(keep: bool) -> Iterator[Clusters]:
    """Running clusters; stopped and removed at the end, and stopped after any fault."""
    chapter("Three real Kafka clusters")
    lab = Lab(FOLDER / "lab", say)
    clear(lab)
    try:
        yield lab.up([*specs()])
    except BaseException:
        with undisturbed():
            lab.down()
            say(f"what happened is in {FOLDER}: state/logs, lab/*/broker-0/logs")
        raise
    if not keep:
        with undisturbed():
            clear(lab)


def specs() -> Iterator[ClusterSpec]:
    yield ClusterSpec("source")
    yield ClusterSpec("dr")
    yield ClusterSpec("hubs", protocol="SASL_SSL", users={"$ConnectionString": f"demo-{random.getrandbits(64):x}"})


def clear(lab: Lab) -> None:
    """Stop what an earlier demo may have left, and forget it."""
    if lab.names():
        lab.down()
    shutil.rmtree(FOLDER, ignore_errors=True)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not keep us from tidying up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- topics and records ---


def create_topics(clusters: Clusters) -> None:
    """On `source` as its application would, on `hubs` as its owner would; Mirrorlake makes the one on `dr`."""
    for name in ("source", "hubs"):
        admin = AdminClient({**clusters[name].client_config(), **QUIET})
        admin.create_topics([NewTopic(COPIES[name], PARTITIONS, 1)])[COPIES[name]].result(20)
        say(f"{name}: topic {COPIES[name]} with {PARTITIONS} partitions")


def produce_orders(source: LabCluster, first: int, count: int) -> None:
    """Each order is placed; every 50th is deleted later, by a tombstone."""
    producer = Producer({**source.client_config(), **QUIET, "linger.ms": 20, "enable.idempotence": True})
    opened_ms = int(time.time() * 1000) - 3_600_000
    for number in range(first, first + count):
        producer.produce(
            COPIES["source"],
            key=f"order-{number - 25 if deletes(number) else number}",
            value=None if deletes(number) else order(number),
            headers=[("trace", f"{number:08x}".encode()), ("shop", b"web"), ("coupon", None)],
            partition=number % PARTITIONS,
            timestamp=opened_ms + number * 500,
        )
        producer.poll(0)
    if unsent := producer.flush(30):
        raise ClusterUnreachable(f"{unsent} of {count} orders did not arrive on source")
    say(f"source: {count:,} records produced to {COPIES['source']}")


def deletes(number: int) -> bool:
    return number % 50 == 49


def order(number: int) -> bytes:
    content = {"order": number, "country": COUNTRIES[number % 4], "cents": 100 + number * 37 % 9000}
    return json.dumps(content).encode()


# --- the relay ---


def write_config(clusters: Clusters) -> Config:
    """A file as a user would write it."""
    hubs = clusters["hubs"].cluster_yaml()
    content = {
        "storage": {"root": str((FOLDER / "state").absolute())},
        "clusters": {
            "source": {"bootstrap_servers": clusters["source"].bootstrap_servers},
            "dr": {"bootstrap_servers": clusters["dr"].bootstrap_servers},
            "hubs": {
                "kind": "event_hubs",
                "bootstrap_servers": hubs["bootstrap_servers"],
                "security": {"password": hubs["security"]["password"], "ca": hubs["security"]["ca"]},
            },
        },
        "flows": {
            "orders": {
                "source": "source",
                "topics": ["orders"],
                "targets": [{"cluster": "dr"}, {"cluster": "hubs", "naming": "identity"}],
            }
        },
    }
    text = yaml.safe_dump(content, sort_keys=False, width=200)
    config_file().write_text(text)
    say(f"{config_file()}; the kind event_hubs fills in SASL_SSL, PLAIN and the user $ConnectionString")
    out.print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    return load(config_file())


def config_file() -> Path:
    return FOLDER / "demo.yml"


def relay_once() -> None:
    """The real command, as a process of its own."""
    arguments = ["run", "-c", str(config_file()), "--once"]
    out.print(f"[bold]$ mirrorlake {shlex.join(arguments)}[/bold]")
    command = [sys.executable, "-m", "mirrorlake.cli", *arguments]
    with subprocess.Popen(command, env=environment()) as process:
        try:
            code = process.wait()
        except BaseException:
            with undisturbed():
                end(process)
            raise
    if code:
        raise DemoFailed(f"mirrorlake run ended with exit code {code}", f"see {FOLDER}/state/logs/spark.log")


def environment() -> dict[str, str]:
    """Ours, without the root that would come before the one in the configuration."""
    width = {"COLUMNS": str(WIDTH)} if WIDTH else {}
    return {name: value for name, value in os.environ.items() if name != "MIRRORLAKE_ROOT"} | width


def relay_from_python(config: Config, spark: Any) -> None:
    out.print("[bold]>>> mirrorlake.runner.Run(config, once=True, spark=spark)()[/bold]")
    Run(config, once=True, spark=spark, say=say)()


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()


# --- what came of it ---


def show_records(clusters: Clusters) -> None:
    """An order and a tombstone as they lie on each cluster; then all, compared without any code of the relay."""
    copies = {name: read_all(clusters[name], topic) for name, topic in COPIES.items()}
    first_tombstone = [record[4] for record in copies["source"]].index(None)
    for at in (0, first_tombstone):
        out.print("cluster  topic          partition/offset  timestamp      key = value, headers", style="bold")
        for name, records in copies.items():
            out.print(described(name, records[at]), markup=False, soft_wrap=True)
    for name in ("dr", "hubs"):
        if [comparable(r) for r in copies[name]] != [comparable(r) for r in copies["source"]]:
            raise DemoFailed(f"{name} differs from source", f"mirrorlake audit -c {config_file()}")
        tombstones = sum(record[4] is None for record in copies[name])
        say(f"{name}: {len(copies[name]):,} records, {tombstones} of them tombstones, equal to source's, in order")


def read_all(cluster: LabCluster, topic: str) -> list[Record]:
    """By partition and offset."""
    settings = {"group.id": "demo", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**cluster.client_config(), **QUIET, **settings})
    records: list[Record] = []
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        open_partitions = set(range(PARTITIONS))
        while open_partitions:
            message = consumer.poll(20)
            if message is None:
                raise ClusterUnreachable(f"{cluster.name} gave no record of {topic} for 20 s")
            if message.error():
                open_partitions.discard(message.partition())  # its end is an event of its own
            else:
                at = (message.partition(), message.offset(), message.timestamp()[1])
                records.append((*at, message.key(), message.value(), message.headers() or []))
    finally:
        consumer.close()
    return sorted(records, key=lambda record: record[:2])


def comparable(record: Record) -> tuple[Any, ...]:
    """All but the offset, and but the one header that says where a record came from."""
    partition, _offset, timestamp, key, value, headers = record
    return partition, timestamp, key, value, [header for header in headers if header[0] != HEADER]


def described(cluster: str, record: Record) -> str:
    partition, offset, timestamp, key, value, headers = record
    shown = ", ".join(f"{name}={'…' if name == HEADER else text(content)}" for name, content in headers)
    place = f"{partition}/{offset}"
    return f"{cluster:8} {COPIES[cluster]:14} {place:17} {timestamp}  {text(key)} = {text(value)}, {shown}"


def text(content: bytes | None) -> str:
    return "null" if content is None else content.decode(errors="replace")


@contextlib.contextmanager
def spark_for(config: Config) -> Iterator[Any]:
    """One Spark session for all that is asked in SQL."""
    say("starting Spark for SQL")
    spark = spark_session(config, storage_root(config))

    try:
        yield spark
    finally:
        with undisturbed():
            spark.stop()


def show_lag(config: Config, spark: Any) -> None:
    rows = inspection.read_lag(config, spark)
    names = ("target", "topic", "partition", "source_end", "target_position", "lag_records")
    print_table([{name: row[name] for name in names} for row in rows])


def show_sql(config: Config, spark: Any) -> None:
    inspection.register(spark, config, open_tables(config, storage_root(config), spark))
    for query in QUERIES:
        out.print(Syntax(query, "sql", background_color="default", word_wrap=True))
        print_table([row.asDict() for row in spark.sql(query).collect()])


QUERIES = (
    """SELECT get_json_object(CAST(value AS STRING), '$.country') AS country, count(*) AS orders,
       round(sum(CAST(get_json_object(CAST(value AS STRING), '$.cents') AS INT)) / 100, 2) AS total
FROM bronze.source__orders WHERE value IS NOT NULL GROUP BY country ORDER BY country""",
    """SELECT target, source_topic, source_partition, 1234 AS source_offset,
       target_topic, target_first + (1234 - source_first) AS target_offset
FROM ops.offset_map
WHERE source_topic = 'orders' AND source_partition = 2 AND 1234 BETWEEN source_first AND source_last ORDER BY target""",
)


def show_audit(config: Config) -> None:
    tables, clusters = open_tables(config, storage_root(config)), connect(config, list(config.flows.values()))
    for flow in config.flows.values():
        report = inspection.run_audit(config, flow, clusters, tables)
        print_report(report)
        if not report.ok:
            raise DemoFailed("the audit found differences", "docs/audit.md says what each finding means")


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(*rows[0], box=box.SIMPLE, pad_edge=False)
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    out.print(table)


def show_commands(clusters: Clusters) -> None:
    """How to look around, and how to end it."""
    # A root in the environment would come before the one in the configuration.
    mirrorlake = f"{'env -u MIRRORLAKE_ROOT ' if os.environ.get('MIRRORLAKE_ROOT') else ''}{command_path()}"
    given, lab = f"-c {config_file()}", f"--root {FOLDER / 'lab'}"
    out.print("The three clusters go on running. Look around:")
    for line in (
        f"{mirrorlake} lab status {lab}",
        f"{mirrorlake} lab consume hubs orders --from-beginning --count 5 {lab}",
        f"seq 10 | {mirrorlake} lab produce source orders --key-prefix mine- {lab}",
        f"{mirrorlake} run {given}                # until Ctrl-C",
        f"{mirrorlake} lag {given}",
        f'{mirrorlake} sql {given} "SELECT * FROM ops.flow_health"',  # noqa: S608
        f"{mirrorlake} audit {given}",
    ):
        out.print(f"  {line}", soft_wrap=True, markup=False)
    out.print(f"Stop them:\n  {mirrorlake} lab down {lab}", soft_wrap=True, markup=False)


def command_path() -> str:
    """`.venv/bin/mirrorlake` where that is what runs us."""
    found = Path(sys.executable).with_name("mirrorlake")
    if not found.exists():
        return "mirrorlake"
    return str(found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found)


# --- telling ---


def chapter(title: str) -> None:
    out.print()
    out.rule(f"[bold]{title}[/bold]", align="left", style="cyan")


def say(what: str) -> None:
    out.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] ", end="")
    out.print(what, markup=False, soft_wrap=True)


# --- the door ---

# What starts fast and lives for a minute; a relay that stays does better with Java's defaults.
SHORT_LIVED = {
    "MIRRORLAKE_LAB_HEAP": "256m",
    "MIRRORLAKE_LAB_JVM": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
}
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def listen_for_signals() -> None:
    for number in STOPPING:
        signal.signal(number, stop)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mirrorlake.demo", description="Real brokers, a relay, its proof.")
    parser.add_argument("--keep", action="store_true", help="leave brokers and state running, and say how to stop")
    asked = parser.parse_args()
    listen_for_signals()
    for name, value in SHORT_LIVED.items():
        os.environ.setdefault(name, value)
    sys.exit(run(asked.keep))


def run(keep: bool) -> int:
    try:
        with exclusive(FOLDER.with_suffix(".lock"), timeout_seconds=1):
            tell(keep)
    except MirrorlakeError as fault:
        return report_fault(fault)
    except KafkaException as fault:
        return report_fault(ClusterUnreachable(f"Kafka: {fault.args[0].str()}"))
    except KeyboardInterrupt:
        out.print("\nstopped; nothing is left running")
        return 130
    return 0


if __name__ == "__main__":
    main()
