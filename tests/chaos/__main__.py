"""`make chaos [ROWS=24,26,kill] [SEED=1] [MINUTES=10]`: every row of the fault table against real brokers and runners.

Prints a line for each row as it ends, writes JSON, and exits with 1 where a promise was broken, or a row could not
bring its fault about. Only what the machine itself refuses (mounting a file system) is "not here", said, and no fault.
Rows mostly wait, so two processes share them, each with clusters and a Spark session of its own; `--jobs 1` runs one
row after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from rich.console import Console
from rich.table import Table
from rows import Row
from stage import NotHere, Stage, make_proxied
from verdicts import (
    COLOURS,
    FAILED,
    NOT_HERE,
    PASSED,
    Verdict,
    chosen,
    complete,
    exit_code,
    forget,
    known,
    remember,
    write_docs,
)

from mirrorlake.config import parse
from mirrorlake.lab import ClusterSpec, Lab
from mirrorlake.world import spark_session

KEEP = {"log.retention.ms": "-1"}  # rows send old timestamps, which the default retention would delete at once
CLEANER = {
    "log.cleaner.backoff.ms": "500",
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
}
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}
PROXIED = (ClusterSpec("source", config={**KEEP, **CLEANER}), ClusterSpec("shaky", config={**KEEP, **CLEANER}))
HUBS = ClusterSpec("hubs", protocol="SASL_SSL", users={"$ConnectionString": "chaos-secret"}, config={**KEEP, **GUARDED})
# Brokers that start fast: rows send little, so the second compiler tier would not pay.
SMALL = {"MIRRORLAKE_LAB_HEAP": "256m", "MIRRORLAKE_LAB_JVM": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


@contextlib.contextmanager
def open_stage(folder: Path, seed: int, minutes: float, waiting_records: int) -> Iterator[Stage]:
    os.environ.update(SMALL)
    config = parse(
        "clusters: {a: {bootstrap_servers: 'a:1'}, b: {bootstrap_servers: 'b:1'}}\n"
        "flows: {f: {source: a, topics: [t], targets: [{cluster: b}]}}",
        "chaos",
    )
    with Lab(folder / "lab") as lab, contextlib.ExitStack() as stack:
        proxies = {}
        for spec in PROXIED:
            proxies[spec.name] = make_proxied(lab, spec)
            stack.callback(proxies[spec.name].close)
        lab.up([*PROXIED, HUBS])
        spark = spark_session(config, folder / "spark")
        stack.callback(spark.stop)
        yield Stage(folder / "flows", lab, spark, proxies, seed, minutes, waiting_records)


def judge(stage: Stage, row: Row, seed: int) -> Verdict:
    stage.random = random.Random(seed)  # noqa: S311
    begun = time.monotonic()
    try:
        verdict, said = PASSED, row.run(stage) or ""
    except NotHere as why:
        verdict, said = NOT_HERE, str(why)
    except (Exception, pytest.fail.Exception) as error:
        verdict, said = FAILED, f"{type(error).__name__}: {error}"
        traceback.print_exc(limit=-4)
    stage.settle()
    seconds = round(time.monotonic() - begun, 1)
    return Verdict(row.number, row.name, row.injected, row.expected, verdict, seconds, seed, said)


def table_of(verdicts: Sequence[Verdict]) -> Table:
    table = Table("#", "fault", "verdict", "seconds", "seed", "said")
    for v in verdicts:
        said = " ".join(v.said.split())[:120]
        table.add_row(
            v.number, v.name, f"[{COLOURS[v.verdict]}]{v.verdict}[/]", f"{v.seconds:.1f}", str(v.seed), said, style=""
        )
    return table


def run_all(rows: Sequence[Row], options: argparse.Namespace, console: Console) -> list[Verdict]:
    verdicts: list[Verdict] = []
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="mirrorlake-chaos-", ignore_cleanup_errors=True)
        path = Path(stack.enter_context(folder))
        stage = stack.enter_context(open_stage(path, options.seed, options.minutes, options.waiting))
        console.print(f"brokers and Spark after {time.monotonic() - begun:.1f} s")
        for row in rows:
            if options.budget and time.monotonic() - begun > options.budget:
                console.print("the time is over: further rows were not run")
                break
            if options.claims and not claimed(options.claims, row):
                continue
            verdicts.append(judge(stage, row, options.seed))
            say(console, verdicts[-1])
            remember(options.json, verdicts[-1:])
    return verdicts


def claimed(claims: Path, row: Row) -> bool:
    """Whether the row is ours: each goes to the process that asks first."""
    try:
        (claims / row.number).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def share_all(rows: Sequence[Row], options: argparse.Namespace, console: Console) -> tuple[list[Verdict], list[int]]:
    """Several processes take row after row: what was found, and how each of them ended."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as claims, contextlib.ExitStack() as stack:
        given = ["--rows", ",".join(row.number for row in rows), "--seed", options.seed, "--minutes", options.minutes]
        given += ["--waiting", options.waiting, "--json", options.json, "--jobs", 1, "--claims", claims]
        given += ["--budget", options.budget] if options.budget else []
        command = [sys.executable, str(Path(__file__).parent), *map(str, given)]
        processes = [subprocess.Popen(command) for _ in range(options.jobs)]
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.terminate)
        codes = [process.wait() for process in processes]
        taken = {path.name for path in Path(claims).iterdir()}
    console.print(f"{len(taken)} rows by {options.jobs} processes in {(time.monotonic() - begun) / 60:.1f} minutes")
    found = {v["number"]: Verdict(**v) for v in known(options.json)}
    verdicts = complete(rows, found, taken, options.budget is None, options.seed)
    remember(options.json, verdicts)
    return verdicts, codes


def say(console: Console, v: Verdict) -> None:
    said = f": {' '.join(v.said.split())[:600]}" if v.said else ""
    console.print(f"{v.number:>4} [{COLOURS[v.verdict]}]{v.verdict:8}[/] {v.seconds:6.1f} s  {v.name}", end="")
    console.print(said, markup=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--rows", default="", help="numbers, or parts of names, by comma; all where absent")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))  # noqa: S311
    parser.add_argument("--minutes", type=float, default=0.5, help="how long the loop of random kills lasts")
    parser.add_argument("--waiting", type=int, default=400_000, help="records that wait for a dead target (row 57)")
    parser.add_argument("--json", type=Path, default=Path(".mirrorlake/chaos.json"), help="where verdicts are written")
    parser.add_argument("--budget", type=float, help="begin no row after so many seconds")
    parser.add_argument("--resume", action="store_true", help="leave out rows that the JSON says passed")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes share the rows")
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--docs", type=Path, help="write the table of this page from the JSON, and run nothing")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    options = parser.parse_args()
    # Whoever stops us must not leave brokers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    rows = chosen(options.rows)
    if not rows:
        parser.error(f"there is no row like {options.rows}; --list shows what there is")
    if options.resume:
        passed = {v["number"] for v in known(options.json) if v["verdict"] != FAILED}
        rows = [row for row in rows if row.number not in passed]
    if options.docs:
        write_docs(options.docs, known(options.json))
        return 0
    if options.list:
        for row in rows:
            console.print(f"{row.number:>4} {row.name} ({row.injected}): {row.expected}", soft_wrap=True)
        return 0
    if options.claims:
        return exit_code(run_all(rows, options, console), [])
    forget(options.json, rows)
    alone = options.jobs < 2 or len(rows) < 4
    verdicts, codes = (run_all(rows, options, console), []) if alone else share_all(rows, options, console)
    console.print(table_of(verdicts))
    counts = {kind: sum(v.verdict == kind for v in verdicts) for kind in COLOURS}
    console.print(", ".join(f"{count} {kind}" for kind, count in counts.items()) + f"; seed {options.seed}")
    for v in verdicts:
        if v.verdict == NOT_HERE:
            console.print(f"row {v.number} was not run: {v.said.strip()}", markup=False)
    if any(codes):
        console.print(f"the processes ended with {', '.join(map(str, codes))}")
    return exit_code(verdicts, codes)


if __name__ == "__main__":
    sys.exit(main())
