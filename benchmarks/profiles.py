"""Where the time goes: what docs/performance.md says of single parts of the relay, as Markdown tables.

    python benchmarks/profiles.py shape   # a record on its way in and out, between Kafka's client and a file
    python benchmarks/profiles.py files   # looking at bronze, and commits to it and the ledger, by the number of files
    python benchmarks/profiles.py idle    # a relay of many mostly idle topics, by process and by Java's threads

`shape` and `files` need no brokers. `idle` needs a JDK, for `jcmd` and `jfr`, and counts in /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import re
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from mirrorlake import jars, tables
from mirrorlake.bench.contenders import Job, running
from mirrorlake.bench.measure import delivered_to
from mirrorlake.bench.page import markdown, number, shown
from mirrorlake.bench.processes import cpu_seconds_of, tree
from mirrorlake.bench.records import Values, feeding
from mirrorlake.bench.results import Spread
from mirrorlake.bench.scenarios import IDLE, MIRRORLAKE, Scenario, full
from mirrorlake.bench.stage import set_up
from mirrorlake.consume import CHUNK_BYTES, Fetch, as_bronze, parquet_options
from mirrorlake.kafka import no_collection
from mirrorlake.lab.processes import wait_until
from mirrorlake.ledger import RELAY, Entry, Position
from mirrorlake.produce import Errand, Shaper
from mirrorlake.records import BRONZE, LEDGER, SourcePartition, TopicPartition
from mirrorlake.rounds import Due, due_segments, plan_round
from mirrorlake.tables import BronzeFiles, FolderTables, Segment, bronze_properties, read_ordered

SOURCE = SourcePartition("orders", "b3f0c1d2-0000-4000-8000-000000000001", 0)
TARGET = TopicPartition("src.orders", 0)
ERRAND = Errand("f", "dst", 1, {}, {}, None, True, "src", "dst", 1, 1_048_588, False, 60)
FETCH = Fetch("src", {}, "", "zstd", 0, 1_700_000_000_000_000)
MIB = 1 << 20


# --- a record, between Kafka's client and Parquet ---


def shape(given: argparse.Namespace) -> str:
    gc.freeze()  # as the daemon does before it forks workers
    rows = [row for size in given.bytes for row in shape_rows(given.mib * MIB // size, size, given.rounds)]
    return markdown((["record", "way", "CPU, µs for each", "with Python's collector"], rows))


def shape_rows(records: int, size: int, rounds: int) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        segment = written(Path(folder) / "bronze.parquet", records, size)
        ways: dict[str, Callable[[], float]] = {
            "in: messages to Arrow": lambda: seconds_in(records, size),
            "out: Arrow to what is produced, 2 MiB at a time": lambda: seconds_out(segment, 2),
            "the same, 8 MiB at a time": lambda: seconds_out(segment, 8),
        }
        for name, seconds in ways.items():
            yield [f"{size:,} B", name, *(each(seconds, records, rounds, on) for on in (False, True))]


def each(seconds: Callable[[], float], records: int, rounds: int, collector: bool) -> str:
    """Microseconds for a record; the first round warms up and is not counted."""
    with contextlib.nullcontext() if collector else no_collection():
        found = [seconds() for _ in range(rounds + 1)][1:]
    return shown(Spread.of([value / records * 1e6 for value in found]))


def chunks(records: int, size: int) -> Iterator[list[Message]]:
    """As many messages at once as a worker takes. By hand: what librdkafka does before is not in here."""
    values, step = Values(size), max(1, CHUNK_BYTES // size)
    for first in range(0, records, step):
        yield [made(offset, values(offset)) for offset in range(first, min(first + step, records))]


def made(offset: int, value: bytes) -> Message:
    headers = [("trace", b"%016d" % offset), ("kind", b"order")]
    return Message(SOURCE.topic, 0, offset, b"key-%d" % offset, value, headers, None, (1, 1_700_000_000_000 + offset))


def written(path: Path, records: int, size: int) -> Segment:
    with pq.ParquetWriter(path, BRONZE, **parquet_options("zstd")) as writer:
        for messages in chunks(records, size):
            writer.write_batch(as_bronze(messages, SOURCE, FETCH))
    return Segment(str(path), SOURCE, 0, records - 1, records, path.stat().st_size, alone=True)


def seconds_in(records: int, size: int) -> float:
    """Without making the messages, which comes between."""
    took = 0.0
    for messages in chunks(records, size):
        begun = time.thread_time()
        as_bronze(messages, SOURCE, FETCH)
        took += time.thread_time() - begun
    return took


def seconds_out(segment: Segment, mib: int) -> float:
    """Without reading the file, which comes between."""
    kept, tables._READ_BYTES = tables._READ_BYTES, mib * MIB  # noqa: SLF001
    shaper, took = Shaper(ERRAND, SOURCE), 0.0
    for batch in read_ordered([segment], 0, segment.records):
        begun = time.thread_time()
        shaper.shape(batch)
        took += time.thread_time() - begun
    tables._READ_BYTES = kept  # noqa: SLF001
    return took


# --- tables of many files ---


def files(given: argparse.Namespace) -> str:
    found = {count: files_figures(count, given.rounds) for count in given.files}
    rows = [[name, *(number(found[count][name]) for count in found)] for name in next(iter(found.values()))]
    return markdown((["CPU, ms", *(f"{count:,} files" for count in found)], rows))


def files_figures(count: int, rounds: int) -> dict[str, float]:
    """Medians, in milliseconds of this process, delta-rs' threads included."""
    with tempfile.TemporaryDirectory() as folder:
        held = FolderTables(Path(folder))
        bronze = filled(held, "bronze.t", BRONZE, count)
        filled(held, "ops.ledger", LEDGER, count)
        looking = BronzeFiles(bronze)
        ways: dict[str, Callable[[int], Any]] = {
            "bronze: the first look, at a start": lambda _: looking.reindex(),
            "bronze: a commit of one file": lambda n: held.append_files(one_file(n), "bronze.t", "profile", n),
            "bronze: looking for it": lambda _: looking.refresh(),
            "bronze: looking where nothing is new": lambda _: looking.refresh(),
            "bronze: planning, with all of it to send": lambda _: planned(looking),
            "ledger: a commit of one row": lambda n: held.append("ops.ledger", one_row(n)),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, way in ways.items():
                taken[name].append(cpu_ms(lambda way=way, turn=turn: way(turn)))  # type: ignore[misc]
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def cpu_ms(work: Callable[[], Any]) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) * 1e3


def filled(held: FolderTables, name: str, schema: pa.Schema, count: int) -> Path:
    """A table that says it has so many files; nobody opens them."""
    held.ensure(name, schema, bronze_properties(168))
    folder = held.root / "tables" / name.replace(".", "/")
    table = DeltaTable(folder)
    adds = [AddAction(f"{n}.parquet", 1000, {}, 0, True, json.dumps(said_of(n))) for n in range(count)]
    if adds:
        table.create_write_transaction(adds, "append", table.schema())
        DeltaTable(folder).create_checkpoint()
    return folder


def said_of(offset: int) -> dict[str, Any]:
    held = {"topic": SOURCE.topic, "topic_id": SOURCE.topic_id, "partition": 0, "offset": offset}
    return {"numRecords": 1, "minValues": held, "maxValues": held, "nullCount": {}}


def one_file(turn: int) -> Callable[[Path], list[Path]]:
    def write(folder: Path) -> list[Path]:
        folder.mkdir()
        table = pa.Table.from_batches([as_bronze([made(turn, b"v")], SOURCE, FETCH)])
        pq.write_table(table, folder / f"{turn}.parquet", **parquet_options("zstd"))
        return [folder / f"{turn}.parquet"]

    return write


def planned(bronze: BronzeFiles) -> None:
    position = Position(0, TARGET, "", 0)
    due = due_segments(bronze.segments(), {SOURCE: position})
    plan_round([Due(source, position, False, tuple(held)) for source, held in due.items()], 256 * MIB, 2)


def one_row(turn: int) -> pa.Table:
    entry = Entry("f", "dst", RELAY, 1, SOURCE, turn, turn, TARGET, "", turn, 1, turn + 1)
    return pa.Table.from_pylist([entry.row(datetime.now(timezone.utc))], schema=LEDGER)


# --- idle topics ---


def idle(given: argparse.Namespace) -> str:
    scenario = next(replace(one, topics=given.topics) for one in full() if one.kind == IDLE)
    with tempfile.TemporaryDirectory(prefix="mirrorlake-profile-") as folder:
        cores, samples = idle_figures(scenario, Path(folder), given.seconds)
    by_process = [[name, number(value)] for name, value in cores.items()]
    total = sum(samples.values())
    by_thread = [[name, f"{count / total:.0%}"] for name, count in samples.most_common(given.threads)]
    return "\n".join(
        [markdown(([f"{given.topics} topics, {given.seconds:g} s", "cores"], by_process)),
         markdown((["Java's thread", f"of {total:,} samples at work"], by_thread))]
    )  # fmt: skip


def idle_figures(scenario: Scenario, folder: Path, seconds: float) -> tuple[dict[str, float], Counter[str]]:
    """The processes first, then a recording of as long, which would be seen in their figures."""
    topics = [f"idle-{number}" for number in range(scenario.topics)]
    with set_up(folder, [scenario]) as stage:
        stage.create_many(topics)
        job = Job("src", "idle-.*", stage.source, stage.targets(scenario), folder / "relay")
        pace = feeding(stage.source.inside(), topics[0], 1, scenario.record_bytes, scenario.per_second)
        with running(MIRRORLAKE, job) as process, pace:
            target = stage.client("dst1")
            assert wait_until(lambda: delivered_to([target], job.copy_of(topics[0]), 1) > 0, 120), "nothing arrived"
            time.sleep(scenario.warm_up_seconds)
            java = next(pid for pid in tree([process.pid]) if command_of(pid) == "java")
            before = cpu_by_process(process.pid, java)
            time.sleep(seconds)
            after = cpu_by_process(process.pid, java)
            recorded(java, folder / "idle.jfr", seconds)
    return {name: (after[name] - before[name]) / seconds for name in after}, sampled(folder / "idle.jfr")


def command_of(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def cpu_by_process(driver: int, java: int) -> dict[str, float]:
    """Java is a child of the driver's Python, and workers are below Java."""
    whole, below = cpu_seconds_of([driver]), cpu_seconds_of([java])
    workers = cpu_seconds_of(tree([java]) - {java})
    return {"all": whole, "Java": below - workers, "the driver's Python": whole - below, "Python workers": workers}


def recorded(pid: int, path: Path, seconds: float) -> None:
    start = ["JFR.start", "name=idle", "settings=profile"]
    for command in (start, ["JFR.stop", "name=idle", f"filename={path}"]):
        subprocess.run([beside_java("jcmd"), str(pid), *command], check=True, capture_output=True)
        time.sleep(seconds if command is start else 0)


def beside_java(name: str) -> str:
    path = jars.java().resolve().with_name(name)
    assert path.exists(), f"{name} is missing beside java: a JDK has it"
    return str(path)


def sampled(path: Path) -> Counter[str]:
    """Samples of Java at work by thread, without what numbers the threads."""
    command = [beside_java("jfr"), "print", "--json", "--stack-depth", "1", "--events", "jdk.ExecutionSample"]
    said = subprocess.run([*command, str(path)], check=True, capture_output=True, text=True)
    events = json.loads(said.stdout)["recording"]["events"]
    threads = (event["values"]["sampledThread"] for event in events)
    return Counter(plain(thread["javaName"] or thread["osName"]) for thread in threads)


def plain(thread: str) -> str:
    return re.split(r"[\[|\d]", thread)[0].strip(" -")


# --- the command ---


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True, metavar="PART")
    one = parts.add_parser("shape", help="a record on its way in and out")
    one.add_argument("--bytes", type=numbers, default=[100, 1000, 10_000], help="sizes of a record")
    one.add_argument("--mib", type=int, default=50, help="records of so many MiB altogether")
    one.add_argument("--rounds", type=int, default=5)
    one.set_defaults(part=shape)
    two = parts.add_parser("files", help="tables of many files")
    two.add_argument("--files", type=numbers, default=[0, 4000, 40_000])
    two.add_argument("--rounds", type=int, default=10)
    two.set_defaults(part=files)
    three = parts.add_parser("idle", help="a relay of many mostly idle topics")
    three.add_argument("--topics", type=int, default=500)
    three.add_argument("--seconds", type=float, default=60, help="for the processes, and again for the recording")
    three.add_argument("--threads", type=int, default=6, help="Java's threads to name")
    three.set_defaults(part=idle)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    print(given.part(given))


if __name__ == "__main__":
    main()
