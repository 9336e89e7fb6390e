"""A benchmark's results as Markdown: the tables of docs/performance.md, and the comparison in the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mirrorlake.bench.results import GOALS, Measured, Spread, from_json, rounds_of
from mirrorlake.bench.scenarios import FILL, GROWTH, IDLE, LATENCY, MIRRORLAKE, THROUGHPUT

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
GROWING = {
    "small_cpu_seconds": "CPU s, a tenth",
    "middle_cpu_seconds": "a half",
    "large_cpu_seconds": "all",
    "whole_cpu_ratio": "all / a tenth",
    "earlier_cpu_seconds_per_million": "CPU s per million more, to half",
    "later_cpu_seconds_per_million": "from half",
    "added_cpu_ratio": "from half / to half",
}


def tables(document: Mapping[str, Any]) -> dict[str, Table]:
    """Title -> heading and rows."""
    carried = _of_kind(document, THROUGHPUT, FILL)
    found = {
        "Throughput": _table(carried, CARRIED),
        "Latency": _table(_of_kind(document, LATENCY), PACED),
        "Growth": _table(_of_kind(document, GROWTH), GROWING),
        "Idle topics": _table(_of_kind(document, IDLE), RESTING),
        "Ratios": _ratios(carried),
        "Goals": _goals(document),
    }
    return {title: table for title, table in found.items() if table[1]}


def _of_kind(document: Mapping[str, Any], *kinds: str) -> list[Measured]:
    return [held for held in from_json(document).values() if held.scenario["kind"] in kinds]


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
    warm = document["warm_up"]
    settings = "\n".join(
        f"- `{name}`: {', '.join(f'`{key}={value}`' for key, value in held.items())}"
        for name, held in document["settings"].items()
    )
    return (
        f"{_run(document)} Steady is from {warm['steady_from_share']:.0%} to "
        f"{warm['steady_to_share']:.0%} of the records; what comes before is warm-up. Overall is from the launch of "
        f"the process. Median (least to most).\n\n{settings}\n"
    )


def _run(document: Mapping[str, Any]) -> str:
    """What was run, when, on what and with what."""
    machine, took, commit = document["machine"], document.get("took_seconds"), document.get("commit")
    said = ", ".join(f"{name} {text}" for name, text in document["versions"].items())
    return (
        f"`{document['command']}` on {document['at'][:10]}{f', in {took / 60:.0f} minutes' if took else ''}: "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}; {said}"
        f"{f', commit {commit}' if commit else ''}. {_rounds(rounds_of(document))}"
    )


def _rounds(rounds: Sequence[int]) -> str:
    if rounds == [1]:
        return "**One round only: no spread, read it as a rough figure.**"
    return f"{' or '.join(map(str, rounds))} rounds, contenders taking turns."


def scale_out(found: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """What benchmarks/scale_out.py measured, as a part of the page."""
    runs = {int(count): _spreads(held) for count, held in found["runs"].items()}
    rates = {count: held["steady_records_per_second"] for count, held in runs.items()}
    one = rates[min(rates)].median
    rows = [
        [str(count), shown(rate), number(rate.median / one), shown(runs[count]["first_record_seconds"])]
        for count, rate in rates.items()
    ]
    heading = ["executors", "records/s, steady", "against the first", "first record, s"]
    facts = (
        f"`{found['command']}` on {found['at'][:10]}: {found['records']:,} records of 1 kB, 4 partitions, one target, "
        f"on a standalone Spark cluster whose {found['cores']} cores carry brokers and driver too."
    )
    return f"### Executors\n\n{facts}\n\n{markdown((heading, rows))}\n{_beyond(rates, document)}"


def _spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    return {figure: Spread.of([run[figure] for run in runs]) for figure in runs[0]}


def _beyond(rates: Mapping[int, Spread], document: Mapping[str, Any], executors: int = 4) -> str:
    """More executors than there are cores cannot be measured; two ways to reckon bound them."""
    base = from_json(document).get("base")
    cost = base.spread(MIRRORLAKE, "steady_cpu_seconds_per_million") if base else None
    if cost is None or len(rates) < 2:
        return ""
    (few, slow), (many, fast) = min(rates.items()), max(rates.items())
    added = max(0.0, (fast.median - slow.median) / (many - few))
    least, most = fast.median + added * (executors - many), executors * 1e6 / cost.median
    return (
        f"Arithmetic, not measured: {executors} executors with a core each would carry between {number(least)} and "
        f"{number(most)} records/s. The first if each adds what the last one added here, the second if each does "
        f"nothing but what a record costs at the base, {number(cost.median)} CPU seconds for a million.\n"
    )


def readme(document: Mapping[str, Any]) -> str:
    """The comparison in short: goals, ratios, and what everyone's latency was."""
    found = tables(document)
    if "Latency" in found:
        heading, rows = found["Latency"]
        found["Latency"] = heading[:5], [row[:5] for row in rows]
    intro = f"All in one run, beside the real MirrorMaker 2: {_run(document)} [How, and the rest](docs/performance.md)."
    shown = [markdown(found[title]) for title in ("Goals", "Ratios", "Latency") if title in found]
    return "\n".join([f"{intro}\n", *shown])
