"""A benchmark's results as Markdown: the tables of docs/performance.md, and the comparison in the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mirrorlake.bench.results import GOALS, Measured, Spread, from_json
from mirrorlake.bench.scenarios import IDLE, LATENCY

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
CARRIED = {
    "steady_records_per_second": "records/s, steady",
    "steady_mb_per_second": "MB/s, steady",
    "records_per_second": "records/s, overall",
    "first_record_seconds": "first record, s",
    "steady_cpu_seconds_per_million": "CPU s per million, steady",
    "cpu_seconds_per_million": "CPU s per million, overall",
    "peak_memory_mib": "peak memory, MiB",
    "source_bytes_per_record": "source bytes read per record",
    "written_bytes_per_record": "disk bytes written per record",
}
PACED = {
    "latency_p50_seconds": "p50, s",
    "latency_p99_seconds": "p99, s",
    "latency_max_seconds": "max, s",
    "cpu_seconds_per_million": "CPU s per million",
    "peak_memory_mib": "memory, MiB",
}
RESTING = {"cores": "cores", "peak_memory_mib": "memory, MiB"}


def tables(document: Mapping[str, Any]) -> dict[str, Table]:
    """Title -> heading and rows."""
    measured = list(from_json(document).values())
    carried = [held for held in measured if held.scenario["kind"] not in (LATENCY, IDLE)]
    found = {
        "Throughput": _table(carried, CARRIED),
        "Latency": _table([held for held in measured if held.scenario["kind"] == LATENCY], PACED),
        "Idle topics": _table([held for held in measured if held.scenario["kind"] == IDLE], RESTING),
        "Ratios": _ratios(carried),
        "Goals": _goals(document),
    }
    return {title: table for title, table in found.items() if table[1]}


def _table(measured: Sequence[Measured], figures: Mapping[str, str]) -> Table:
    rows = [
        [held.name, contender, *(shown(held.spread(contender, figure)) for figure in figures)]
        for held in measured
        for contender in held.contenders()
    ]
    return ["scenario", "", *figures.values()], rows


def _ratios(measured: Sequence[Measured]) -> Table:
    figures = {
        "steady_records_per_second": "rate, steady",
        "records_per_second": "rate, overall",
        "steady_cpu_seconds_per_million": "CPU, steady",
        "source_bytes_per_record": "source reads",
        "first_record_seconds": "first record",
    }
    rows = [[held.name, *(shown(held.ratio(figure)) for figure in figures)] for held in measured]
    return ["mirrorlake / tuned MM2", *figures.values()], [row for row in rows if any(row[1:])]


def _goals(document: Mapping[str, Any]) -> Table:
    measured = from_json(document)
    rows: list[Sequence[str]] = []
    for goal in GOALS:
        reached = goal.reached(measured)
        wanted = f"≥ {goal.least:g}" if goal.least is not None else f"≤ {goal.most:g}"
        verdict = ("yes" if reached[1] else "no") if reached else "not measured"
        rows.append([goal.text, wanted, shown(reached[0]) if reached else "", verdict])
    return ["goal", "wanted", "reached", ""], rows


def shown(spread: Spread | None) -> str:
    """The median, and the least and the most of the rounds where there were several."""
    if spread is None:
        return ""
    if spread.least == spread.most:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.least)} to {number(spread.most)})"


def number(value: float) -> str:
    """Three figures that count."""
    if value >= 1000:
        return f"{round(value, 3 - len(str(int(value)))):,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def markdown(table: Table) -> str:
    heading, rows = table
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def page(document: Mapping[str, Any]) -> str:
    """What docs/performance.md says below its introduction."""
    parts = [f"### {title}\n\n{markdown(table)}" for title, table in tables(document).items()]
    return "\n".join([_facts(document), *parts])


def _facts(document: Mapping[str, Any]) -> str:
    machine, versions, warm = document["machine"], document["versions"], document["warm_up"]
    rounds = sorted({len(held.rounds) for held in from_json(document).values()})
    said = ", ".join(f"{name} {text}" for name, text in versions.items())
    settings = "\n".join(
        f"- `{name}`: {', '.join(f'`{key}={value}`' for key, value in held.items())}"
        for name, held in document["settings"].items()
    )
    return (
        f"`{document['command']}` on {document['at'][:10]}: {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}; {said}. {_rounds(rounds)} Steady is from {warm['steady_from_share']:.0%} to "
        f"{warm['steady_to_share']:.0%} of the records; what comes before is warm-up. Overall is from the launch of "
        f"the process. Median (least to most).\n\n{settings}\n"
    )


def _rounds(rounds: Sequence[int]) -> str:
    if rounds == [1]:
        return "**One round only: no spread, read it as a rough figure.**"
    return f"{' or '.join(map(str, rounds))} rounds, contenders taking turns."


def readme(document: Mapping[str, Any]) -> str:
    """The comparison in short."""
    found = tables(document)
    machine = document["machine"]
    intro = (
        f"Measured by `{document['command']}` on {machine['cores']} cores, all in one run, with the real MirrorMaker 2 "
        f"{document['versions']['kafka and MM2']} beside it; [how, and everything else](docs/performance.md).\n\n"
    )
    return intro + markdown(found["Goals"])
