"""`mirrorlake bench` and `mirrorlake size`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mirrorlake.bench import benchmark, page, plots, scenarios, sizing, tracking
from mirrorlake.errors import UsageFault

out = Console(highlight=False, soft_wrap=True)


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="One round of the essentials: a short look.")] = False,
    scenario: Annotated[list[str] | None, typer.Option(help="Only this scenario; may be given several times.")] = None,
    contender: Annotated[
        list[str] | None, typer.Option(help="Only this contender; may be given several times.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each scenario, in the full benchmark.")] = 3,
    records: Annotated[int, typer.Option(min=10_000, help="Records of 1 kB, in the full benchmark.")] = 2_000_000,
    output: Annotated[
        Path | None, typer.Option(help="Folder for results.json, tables and plots.", show_default=".mirrorlake/bench/…")
    ] = None,
    mlflow: Annotated[
        str, typer.Option(help="MLflow's store, a folder or an address; empty for none.", show_default="mlruns")
    ] = tracking.DEFAULT_STORE,
) -> None:
    """Measure Mirrorlake and the real MirrorMaker 2 side by side, on real local brokers."""
    found = scenarios.quick() if quick else scenarios.full(records, rounds)
    wanted = [only(each, contender or ()) for each in scenarios.chosen(found, scenario or ())]
    folder = output or Path(".mirrorlake/bench") / f"{datetime.now():%Y%m%d-%H%M%S}"
    path = folder / "results.json"
    store = tracking.usable(mlflow, say)
    # As Ctrl-C does: brokers and contenders are stopped, whatever ends us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = command_line(quick, scenario or [], contender or [], rounds, records)
    document = benchmark.run(wanted, quick, asked, say, lambda held: benchmark.write_json(held, path))
    present(document, folder)
    keep_coefficients(document, folder)
    out.print(f"{path}: written, with tables and plots beside it; python docs/write_performance.py {path} keeps them")
    if store:
        out.print(f"MLflow run {tracking.track(document, folder, store)} in {store}")


def command_line(quick: bool, scenario: list[str], contender: list[str], rounds: int, records: int) -> str:
    """What decides the figures; where they are written does not."""
    given = ["--quick"] if quick else ["--rounds", str(rounds), "--records", str(records)]
    given += [word for name in scenario for word in ("--scenario", name)]
    given += [word for name in contender for word in ("--contender", name)]
    return shlex.join(["mirrorlake", "bench", *given])


def only(scenario: scenarios.Scenario, contenders: Any) -> scenarios.Scenario:
    if unknown := set(contenders) - set(scenarios.CONTENDERS):
        raise UsageFault(f"no contender {', '.join(unknown)}", f"there are: {', '.join(scenarios.CONTENDERS)}")
    kept = tuple(name for name in scenario.contenders if name in contenders)
    return replace(scenario, contenders=kept) if kept else scenario


def present(document: dict[str, Any], folder: Path) -> None:
    plots.draw(document, folder)
    (folder / "results.md").write_text(page.page(document))
    show(document)


def keep_coefficients(document: dict[str, Any], folder: Path) -> None:
    """Beside the results, for MLflow and for `size --coefficients`; a few scenarios alone do not tell."""
    with contextlib.suppress(UsageFault):
        benchmark.write_json(sizing.fit(document).to_json(), folder / "coefficients.json")


def say(text: str) -> None:
    out.print(f"[dim]{datetime.now():%H:%M:%S}[/dim] {text}")


def show(document: dict[str, Any]) -> None:
    for title, (heading, rows) in page.tables(document).items():
        table = Table(*heading, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        out.print(table)


def size(
    records_per_second: Annotated[float, typer.Option(min=0.001, help="Records per second, at the busiest.")],
    record_bytes: Annotated[float, typer.Option(min=1, help="Bytes of a record: key, value and headers.")],
    targets: Annotated[int, typer.Option(min=1, help="Targets of the flow.")] = 1,
    coefficients: Annotated[
        Path, typer.Option(help="Measured coefficients.", show_default="those of the package")
    ] = sizing.KEPT,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs instead of a table for people.")] = False,
) -> None:
    """Cores, tasks, memory, storage, partitions, latency and Event Hubs units for a load, from what was measured."""
    known = sizing.read(coefficients)
    need = sizing.size(known, records_per_second, record_bytes, targets)
    if as_json:
        sys.stdout.write(json.dumps({**asdict(need), "measured": known.measured}, indent=1) + os.linesep)
        return
    table = Table("", "needed", "how it is known")
    for row in size_rows(need):
        table.add_row(*row)
    out.print(table)
    machine = known.measured["machine"]
    out.print(f"Coefficients of {known.measured['at'][:10]}, {machine['cores']} cores, `{known.measured['command']}`.")


def size_rows(need: sizing.Need) -> list[tuple[str, str, str]]:
    """What is needed, how much of it, and how that is known."""
    unknown = need.storage_error_share is None
    storage_error = "error unknown" if unknown else f"± {need.storage_error_share:.0%}"
    return [
        ("cores", f"{need.cores} ({need.busy_cores:.2f} busy)",
         f"measured, ± {need.error_share:.0%}; planned {sizing.UTILISATION:.0%} full"),
        ("tasks of each leg", str(need.tasks), "one for each core; a partition is sent by one of them"),
        ("memory, GiB", f"{need.memory_gib:.1f}", "measured: the largest of the rounds"),
        ("storage, GiB per day", f"{need.storage_gib_per_day:,.1f}",
         f"measured on half-compressible records, {storage_error}"),
        ("partitions", str(need.partitions), "measured rate of one partition"),
        ("latency, seconds", *latency_cells(need)),
        ("read from the source, MB/s", f"{need.source_read_mb_per_second:,.1f}", "arithmetic: once, for all targets"),
        ("sent to all targets, MB/s", f"{need.sent_mb_per_second:,.1f}", "arithmetic, before compression"),
        ("Event Hubs units per target", str(need.event_hubs_units_per_target), "arithmetic on the service's limits"),
    ]  # fmt: skip


def latency_cells(need: sizing.Need) -> tuple[str, str]:
    found = need.latency
    if found is None:
        return "unknown", "not measured"
    beyond = "; a faster pace was not measured" if need.records_per_second > found.records_per_second else ""
    measured = f"measured at {found.records_per_second:,.0f} records/s of 1 kB to one target{beyond}"
    return f"p50 {found.p50_seconds:.2g}, p99 {found.p99_seconds:.2g}", measured
