"""The command line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from mirrorlake import adopt as adopting
from mirrorlake import control, doctor, inspection
from mirrorlake import failover as failing
from mirrorlake import repair as repairing
from mirrorlake.bench import commands as bench_commands
from mirrorlake.config import Config, Flow, with_root
from mirrorlake.errors import MirrorlakeError, StorageUnreachable, UsageFault
from mirrorlake.fanout import last_line
from mirrorlake.files import Format, Loaded, load_any, to_yaml
from mirrorlake.groups import FAILED, Line, checkpoint_rows
from mirrorlake.lab.commands import app as lab_app
from mirrorlake.links import Storage
from mirrorlake.runner import Run, Snapshot
from mirrorlake.topics import takes
from mirrorlake.world import connect, now, open_tables, spark_session, storage_root

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Replicate Kafka topics through a Delta lakehouse: replayable, auditable, queryable.\n\n"
    "Exit codes: 0 well, 1 findings, 2 wrong use or configuration, 3 something could not be reached, "
    "4 stopped so as not to lose or repeat data, 5 another runner holds the flow.",
)
app.add_typer(lab_app, name="lab")
app.command()(bench_commands.bench)
app.command()(bench_commands.size)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class LogFormat(str, Enum):
    text = "text"
    json = "json"


ConfigFile = Annotated[
    Path, typer.Option("-c", "--config", help="The configuration: our YAML, an mm2.properties, or Strimzi's resource.")
]
Root = Annotated[
    Path | None,
    typer.Option(help="Where tables, checkpoints and locks live.", show_default="MIRRORLAKE_ROOT, else .mirrorlake"),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs instead of a table for people.")]
Flows = Annotated[list[str] | None, typer.Option("--flow", help="Only this flow; may be given several times.")]
OnlyTarget = Annotated[str | None, typer.Option(help="Only this target.")]
OnlyTopic = Annotated[str | None, typer.Option(help="Only this topic.")]


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    os.environ["MIRRORLAKE_DEBUG"] = "1" if debug else ""


def read_config(path: Path, root: Path | None, flows: Iterable[str] | None = None, clusters: str = "") -> Config:
    loaded = load_any(path)
    for warning in loaded.warnings():
        err.print(Text(warning))  # stdout may be JSON
    config = loaded.config
    if chosen := root or os.environ.get("MIRRORLAKE_ROOT"):
        config = with_root(config, str(chosen))
    return config.select(list(flows or []), [alias for alias in clusters.split(",") if alias])


@app.command(name="import")
def import_command(
    file: Annotated[Path, typer.Argument(help="An mm2.properties or a Strimzi KafkaMirrorMaker2.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write; stdout where absent.")] = None,
    secrets_dir: Annotated[
        Path | None, typer.Option(help="Folder of mounted secrets, <secret>/<key>, for Strimzi.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
) -> None:
    """MM2 properties or Strimzi YAML to our YAML, with a note on every key: taken, not needed, not supported."""
    loaded = load_any(file, secrets_dir)
    if loaded.format is Format.YAML:
        raise UsageFault(f"{file} is in our format already.", f"mirrorlake plan -c {file}")
    text = to_yaml(loaded)
    if output is None:
        sys.stdout.write(text)
        return
    write_config(output, text, force)
    print_notes(loaded)
    out.print(Text(f"{output}: written; next: mirrorlake plan -c {output}"))


def write_config(path: Path, text: str, force: bool) -> None:
    """Readable by its owner alone: a password may stand in it, as it did in the file it came from."""
    if path.exists() and not force:
        raise UsageFault(f"{path} is there already.", "choose another name, or give --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        made.replace(path)
    except OSError as bad:
        raise UsageFault(f"{path} could not be written: {bad.strerror}.") from None


def print_notes(loaded: Loaded) -> None:
    table = Table("line", Column("key", overflow="fold"), "", Column("what becomes of it", overflow="fold"))
    for note in loaded.notes:
        style = "yellow" if note.warns else "green"
        table.add_row(str(note.line), Text(note.key), Text(note.fate.value, style=style), Text(note.text))
    out.print(table)


# --- run ---


@app.command()
def run(
    config: ConfigFile,
    once: Annotated[bool, typer.Option("--once", help="Relay what is there now, then end.")] = False,
    for_seconds: Annotated[float | None, typer.Option("--for", help="Stop by itself after so many seconds.")] = None,
    flow: Flows = None,
    clusters: Annotated[str, typer.Option(help="Only flows that write to these clusters, as in MM2: A,B.")] = "",
    root: Root = None,
    log_format: Annotated[LogFormat, typer.Option(help="Progress for people, or JSON lines.")] = LogFormat.text,
) -> None:
    """Relay: ingest, fan-out and control loop, until SIGINT or SIGTERM. A restart goes on where it stopped."""
    chosen = read_config(config, root, flow, clusters)
    with progress(log_format) as reporter:
        running = Run(chosen, once, for_seconds, reporter.say, reporter.show)
        stop_on_signals(running.stopping.set)
        running()
    reporter.say("stopped" if not once else "done")


def stop_on_signals(stop: Callable[[], None]) -> None:
    def handler(_number: int, _frame: Any) -> None:
        stop()

    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


class JsonLines:
    """One JSON document per line: what a log collector wants."""

    def __init__(self) -> None:
        self._shown_at = 0.0

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, text: str) -> None:
        self._write({"event": "message", "message": text})

    def show(self, snapshots: list[Snapshot]) -> None:
        if time.monotonic() - self._shown_at > 5:
            self._shown_at = time.monotonic()
            for snapshot in snapshots:
                self._write({"event": "progress", **vars(snapshot)})

    def _write(self, fields: Mapping[str, Any]) -> None:
        at = datetime.now(timezone.utc).isoformat()
        sys.stdout.write(json.dumps({"at": at, **fields}) + "\n")
        sys.stdout.flush()


class Screen:
    """A live table on a terminal; plain lines where there is none."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._rates = Rates()
        self._said_at = 0.0

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(f"[dim]{datetime.now():%H:%M:%S}[/dim] {text}")

    def show(self, snapshots: list[Snapshot]) -> None:
        self._rates.see(snapshots)
        if self._live:
            self._live.update(Group(self._table(snapshots)))
        elif time.monotonic() - self._said_at > 5:
            self._said_at = time.monotonic()
            for s in snapshots:
                waiting = f", {s.waiting}" if s.waiting else ""
                rate = self._rates.of(s)
                self.say(
                    f"{s.flow} -> {s.target}: {s.delivered} records delivered, {rate:.0f}/s, behind {s.behind}{waiting}"
                )

    def _table(self, snapshots: list[Snapshot]) -> Table:
        table = Table("flow", "table", "target", "delivered", "records/s", "behind", "state", expand=True)
        for s in snapshots:
            state = Text(s.waiting or "relaying", style="yellow" if s.waiting else "green")
            table.add_row(
                s.flow,
                s.table,
                s.target,
                f"{s.delivered:,}",
                f"{self._rates.of(s):,.0f}",
                f"{s.behind:,}",
                state,
            )
        return table


class Rates:
    """Records per second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], list[tuple[float, int]]] = {}

    def see(self, snapshots: Iterable[Snapshot]) -> None:
        for s in snapshots:
            history = self._seen.setdefault((s.flow, s.table, s.target), [])
            history.append((time.monotonic(), s.delivered))
            del history[:-20]

    def of(self, snapshot: Snapshot) -> float:
        history = self._seen[snapshot.flow, snapshot.table, snapshot.target]
        (begun, first), (ended, last) = history[0], history[-1]
        return (last - first) / (ended - begun) if ended > begun else 0.0


def progress(log_format: LogFormat) -> JsonLines | Screen:
    return JsonLines() if log_format is LogFormat.json else Screen(out)


# --- looking ---


@app.command()
def status(config: ConfigFile, root: Root = None, as_json: AsJson = False) -> None:
    """What runs, where it stands, since when, and why not."""
    chosen = read_config(config, root)
    found = inspection.read_status(chosen, storage_root(chosen))
    if as_json:
        print_json(found)
        return
    table = Table("flow", "state", "since", "target", "delivered", "behind", "paused", "why")
    for flow in found:
        since = f"{datetime.fromtimestamp(flow['since']):%Y-%m-%d %H:%M:%S}" if flow["since"] else ""
        paused = ", ".join(f"{p['target'] or 'all targets'}/{p['topic'] or 'all topics'}" for p in flow["paused"])
        for target in flow["targets"] or [{}]:
            table.add_row(
                flow["flow"], flow["state"], since, target.get("target", ""), str(target.get("delivered", "")),
                str(target.get("behind", "")), paused, target.get("waiting") or flow["reason"],
            )  # fmt: skip
    out.print(table)


@app.command()
def pause(
    config: ConfigFile, flow: Flows = None, target: OnlyTarget = None, topic: OnlyTopic = None, root: Root = None
) -> None:
    """Stop sending per flow, target or topic, while the rest goes on. Ingest goes on too: nothing is lost."""
    chosen = read_config(config, root, flow)
    check_target(chosen, target)
    check_topic(chosen, topic)
    for name in chosen.flows:
        asked = control.Pause(target, topic)
        control.pause(storage_root(chosen), name, asked)
        out.print(f"{name}: paused {asked}; `mirrorlake resume` goes on")


@app.command()
def resume(
    config: ConfigFile, flow: Flows = None, target: OnlyTarget = None, topic: OnlyTopic = None, root: Root = None
) -> None:
    """Go on with what was paused; without --target and --topic with everything of the flow."""
    chosen = read_config(config, root, flow)
    check_target(chosen, target)
    for name in chosen.flows:
        resumed = control.resume(storage_root(chosen), name, target, topic)
        for taken_back in resumed:
            out.print(f"{name}: resumed {taken_back}")
        if not resumed:
            still = "; ".join(map(str, control.read_pauses(storage_root(chosen), name)))
            out.print(f"{name}: nothing was paused so; paused is: {still or 'nothing'}")


def check_target(config: Config, target: str | None) -> None:
    known = sorted({t.cluster for flow in config.flows.values() for t in flow.targets})
    if target is not None and target not in known:
        raise UsageFault(f"no flow here has a target {target}", f"targets are: {', '.join(known)}")


def check_topic(config: Config, topic: str | None) -> None:
    if topic is not None and not any(takes(flow, topic) for flow in config.flows.values()):
        known = ", ".join(sorted(config.flows))
        raise UsageFault(f"no flow here takes a topic {topic}", f"flows are: {known}; topics go by the source's names")


@app.command()
def lag(config: ConfigFile, flow: Flows = None, root: Root = None, as_json: AsJson = False) -> None:
    """Lag per target, topic and partition, in records and seconds, from the SQL view ops.replication_lag."""
    chosen = read_config(config, root, flow)
    with out.status("starting Spark") if not as_json else Silence():
        spark = spark_session(chosen, storage_root(chosen))
        rows = inspection.read_lag(chosen, spark)
    print_rows(rows, as_json)


@app.command()
def sql(
    config: ConfigFile,
    query: Annotated[str, typer.Argument(help='SQL, e.g. "SELECT * FROM ops.replication_lag".')],
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """SQL over bronze and ops tables, with the same names as on Databricks."""
    chosen = read_config(config, root)
    with out.status("starting Spark") if not as_json else Silence():
        spark = spark_session(chosen, storage_root(chosen))
        inspection.register(spark, chosen, open_tables(chosen, storage_root(chosen), spark))
        rows = [row.asDict(recursive=True) for row in run_sql(spark, query)]
    print_rows(rows, as_json)


def run_sql(spark: Any, query: str) -> list[Any]:
    from pyspark.errors import PySparkException

    try:
        found: list[Any] = spark.sql(query).collect()
    except PySparkException as fault:
        raise UsageFault(f"SQL: {str(fault).splitlines()[0]}", "`SHOW TABLES IN ops` lists what is there") from fault
    return found


@app.command()
def audit(config: ConfigFile, flow: Flows = None, root: Root = None, as_json: AsJson = False) -> None:
    """Compare source, bronze and each target, record by record. Exit 0 where equal, 1 with findings."""
    chosen = read_config(config, root, flow)
    tables, clusters = open_tables(chosen, storage_root(chosen)), connect(chosen, list(chosen.flows.values()))
    with out.status("comparing") if not as_json else Silence():
        reports = [inspection.run_audit(chosen, each, clusters, tables) for each in chosen.flows.values()]
    if as_json:
        print_json([report.to_json() for report in reports])
    else:
        for report in reports:
            print_report(report)
    raise typer.Exit(0 if all(report.ok for report in reports) else 1)


def print_report(report: Any) -> None:
    verdict = "[green]equal[/green]" if report.ok else "[red]findings[/red]"
    sides = {"source": report.compared.source, "bronze": report.compared.bronze, **report.compared.targets}
    compared = ", ".join(f"{side} {count:,}" for side, count in sides.items())
    out.print(f"flow {report.flow}: {verdict}; {report.partitions} partitions; records compared: {compared}")
    shown = [finding for finding in report.findings if finding.fails] or report.findings
    if shown:
        table = Table("finding", "target", "topic", "partition", "offsets", "records", "detail")
        for f in shown[:50]:
            offsets = f"{f.first_offset}-{f.last_offset}"
            table.add_row(f.kind, f.target, f.topic, str(f.partition), offsets, str(f.records), f.detail)
        out.print(table)


@app.command()
def plan(config: ConfigFile, flow: Flows = None, root: Root = None, as_json: AsJson = False) -> None:
    """What `run` would make or change on targets and in storage. Changes nothing."""
    chosen = read_config(config, root, flow)
    tables, clusters = open_tables(chosen, storage_root(chosen)), connect(chosen, list(chosen.flows.values()))
    plans = [inspection.make_plan(chosen, each, clusters, tables) for each in chosen.flows.values()]
    if as_json:
        print_json([each.to_json() for each in plans])
        return
    table = Table("flow", "where", "what")
    for each in plans:
        for name in each.tables:
            table.add_row(each.flow, "storage", f"make table {name}")
        for aim in each.targets:
            for line in aim.lines():
                table.add_row(each.flow, aim.target, Text(line))
            for name, why in {**aim.misnamed, **aim.refusals}.items():
                table.add_row(each.flow, aim.target, Text(f"refused: topic {name} {why}", style="red"))
                if name in aim.commands:
                    table.add_row("", "", Text(aim.commands[name], overflow="fold"))
            for what, why in aim.declined.items():
                table.add_row(each.flow, aim.target, Text(f"left alone: {what}: {why}", style="yellow"))
    out.print(table if table.row_count else "nothing to make or change")


@app.command(name="doctor")
def doctor_command(
    config: ConfigFile,
    root: Root = None,
    save_ca: Annotated[
        Path | None, typer.Option(help="Write the authority of a cluster that is not trusted yet into this folder.")
    ] = None,
    acls: Annotated[
        bool, typer.Option("--acls", help="Only print the commands that grant what the flows need.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Versions, Java, jars; each cluster step by step; the fix for each fault. Exit 1 with faults."""
    chosen = read_config(config, root)
    if acls:
        for line in (line for alias in chosen.clusters for line in doctor.grants(chosen, alias)):
            sys.stdout.write(line + "\n")
        return
    checks = []
    for check in doctor.examine(chosen, storage_root(chosen), save_ca):
        checks.append(check)
        if not as_json:
            print_check(check)
    if as_json:
        print_json([check.to_json() for check in checks])
    raise typer.Exit(0 if all(check.ok for check in checks) else 1)


def print_check(check: doctor.Check) -> None:
    style = {"ok": "green", "warning": "yellow", "fault": "red"}[check.level]
    out.print(Text(f"{check.level:<8}", style=style), Text(f"{check.subject}: {check.what}: {check.detail}"), sep="")
    for line in check.fix.splitlines():
        out.print(Text(f"        fix: {line}"), soft_wrap=True)


@app.command()
def repair(
    config: ConfigFile,
    target: Annotated[str, typer.Option(help="The target to mend.")],
    flow: Flows = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without this only the plan is printed.")] = False,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Send again exactly what a target misses, from bronze: a lost topic, a hole, dead letters that fit now."""
    chosen = read_config(config, root, flow)
    check_target(chosen, target)
    flows = [f for f in chosen.flows.values() if any(t.cluster == target for t in f.targets)]
    plans = [plan for each in flows for plan in repair_flow(chosen, each, target, apply)]
    if as_json:
        print_json([plan.to_json() for plan in plans])
        return
    table = Table("flow", "source", "target", "from", "to", "why")
    for plan in plans:
        for refill in plan.refills:
            table.add_row(plan.flow, str(refill.source), str(refill.target), str(refill.next_offset), "end", refill.why)
        for resend in plan.resends:
            span = (str(resend.first), str(resend.last))
            table.add_row(plan.flow, str(resend.source), str(resend.target), *span, resend.why)
    out.print(table if table.row_count else "nothing is missing")
    if table.row_count:
        out.print("done; `mirrorlake run` fills the rest" if apply else "this is the plan; --apply does it")


def repair_flow(config: Config, flow: Flow, target: str, apply: bool) -> list[repairing.RepairPlan]:
    clusters, tables = connect(config, [flow]), open_tables(config, storage_root(config))
    chosen = next(t for t in flow.targets if t.cluster == target)
    if apply:
        return repairing.apply_repairs(config, flow, chosen, clusters, tables, err.print)
    return [plan for _, plan in repairing.make_repairs(config, flow, chosen, clusters, tables)]


@app.command()
def groups(
    config: ConfigFile,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Only this group; may be given several times.")
    ] = None,
    sync: Annotated[
        bool, typer.Option("--sync", help="Commit on the target; without this nothing is changed.")
    ] = False,
    flow: Flows = None,
    target: Annotated[str | None, typer.Option(help="Only this target.")] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Where consumer groups stand on the source, exactly where that is on each target, and what a sync does."""
    whole = read_config(config, root)
    check_target(whole, target)
    # A flow in the other direction is a way too, so the whole configuration is looked at.
    storage = Storage(whole, open_tables(whole, storage_root(whole)), connect(whole, list(whole.flows.values())))
    found: list[tuple[str, str, Line]] = []
    for each in whole.select(flow or []).flows.values():
        for aim in each.targets:
            if target in (None, aim.cluster):
                passage = storage.passage(each, aim)
                lines = passage.look(group or ())
                if sync:
                    lines = passage.commit(lines)
                    rows = checkpoint_rows(each.name, aim.cluster, lines, now())
                    storage.tables.append(f"{whole.storage.ops_schema}.group_checkpoints", rows)
                found += [(each.name, aim.cluster, line) for line in lines]
    if as_json:
        print_json([{"flow": name, "target": alias, **line.to_json()} for name, alias, line in found])
    else:
        print_lines([line for _, _, line in found])
        out.print("written and read back" if sync else "nothing was changed; --sync writes what `write` stands for")
    raise typer.Exit(1 if any(line.decision == FAILED for _, _, line in found) else 0)


def print_lines(lines: Sequence[Line]) -> None:
    """One row for each group and partition, for people."""
    table = Table("group", "here", "there", "stands there at", "decision", Column("why", overflow="fold"))
    for line in lines:
        here = f"{line.topic}[{line.partition}] {line.offset}"
        there = "" if line.target_offset is None else f"{line.target} {line.target_offset}"
        committed = "" if line.committed is None else str(line.committed)
        table.add_row(*map(Text, (line.group, here, there, committed, line.decision, line.reason)))
    out.print(table if lines else "no group has committed anything that is relayed")


@app.command()
def failover(
    config: ConfigFile,
    target: Annotated[str, typer.Option(help="The target to move consumers to, or back from.")],
    back: Annotated[bool, typer.Option("--back", help="The way home: from the target to the source.")] = False,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Only this group; may be given several times.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Move the groups; without this it is a drill.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Move even where records are lost or repeated.")] = False,
    flow: Flows = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """A drill: how far the other side is behind, what each group would read again or lose; --apply moves them."""
    whole = read_config(config, root)
    check_target(whole, target)
    flows = [f for f in whole.select(flow or []).flows.values() if any(t.cluster == target for t in f.targets)]
    clusters = connect(whole, flows)
    away = failing.away(clusters[f.source] for f in flows)
    storage = Storage(whole, open_tables(whole, storage_root(whole)), clusters, away)
    drills = [fail_over_flow(storage, each, target, back, group or [], apply, force) for each in flows]
    if as_json:
        print_json([drill.to_json() for drill in drills])
    else:
        for drill in drills:
            print_drill(storage, drill, apply)
    raise typer.Exit(0 if apply or not any(drill.objections() for drill in drills) else 1)


def fail_over_flow(
    storage: Storage, flow: Flow, target: str, back: bool, only: list[str], apply: bool, force: bool
) -> failing.Drill:
    aim = next(t for t in flow.targets if t.cluster == target)
    passage, drill = failing.prepare(storage, flow, aim, back, only)
    return failing.move(storage, passage, drill, aim, force) if apply else drill


def print_drill(storage: Storage, drill: failing.Drill, applied: bool) -> None:
    behind = "nobody can tell how far" if drill.behind is None else f"{drill.behind:,} offsets"
    silent = "" if drill.here_answers else f" ({drill.here} does not answer: the last checkpoints count)"
    out.print(Text(f"flow {drill.flow}: {drill.here} -> {drill.there}{silent}; {drill.there} is behind by {behind}"))
    print_lines(drill.lines)
    for objection in drill.objections():
        out.print(Text(f"objection: {objection}", style="yellow"), soft_wrap=True)
    steps = failing.next_steps(storage, drill) if applied else ["this was a drill; --apply moves the groups"]
    for step in steps:
        out.print(Text(f"next: {step}"), soft_wrap=True)


@app.command()
def adopt(
    config: ConfigFile,
    target: Annotated[str, typer.Option(help="The target that MM2 filled.")],
    offsets_topic: Annotated[
        str | None, typer.Option(help="Where MM2 keeps its positions.", show_default="mm2-offsets.SOURCE.internal")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without this only the plan is printed.")] = False,
    flow: Flows = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Take over from a stopped MM2: go on at the next record in the target topics that it filled."""
    chosen = read_config(config, root, flow)
    check_target(chosen, target)
    flows = [f for f in chosen.flows.values() if any(t.cluster == target for t in f.targets)]
    storage = Storage(chosen, open_tables(chosen, storage_root(chosen)), connect(chosen, flows))
    found = []
    for each in flows:
        aim = next(t for t in each.targets if t.cluster == target)
        taking = adopting.Taking(storage, each, aim, offsets_topic or adopting.offsets_topic(each.source))
        plan = adopting.adopt(taking, err.print) if apply else taking.plan()
        found += [{"flow": each.name, **one.to_json()} for one in plan]
    print_rows(found, as_json)
    if not as_json and found:
        out.print("done; `mirrorlake run` goes on from here" if apply else "this is the plan; --apply does it")
    raise typer.Exit(1 if any(one["refusal"] for one in found) else 0)


# --- printing ---


class Silence:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, default=jsonable) + "\n")


def jsonable(value: Any) -> Any:
    """Times as ISO text; bytes as text where they are, else in hexadecimal."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    return str(value)


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    if not rows:
        out.print("no rows")
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    out.print(table)


def cell(value: Any) -> Text:
    """As people read it; Text, since records may hold what looks like markup."""
    if value is None:
        return Text("null", style="dim")
    return Text(
        value if isinstance(value, str) else jsonable(value) if not isinstance(value, float) else f"{value:.1f}"
    )


# --- the door ---


def main() -> None:
    """Run the command; our errors become one paragraph and the design's exit code."""
    try:
        app(prog_name="mirrorlake")  # ends the process by itself, with 2 after wrong use
    except MirrorlakeError as fault:
        sys.exit(report_fault(fault))
    except OSError as error:
        said = f"{error.filename or 'the storage root'}: {error.strerror or last_line(error)}"
        sys.exit(report_fault(StorageUnreachable(said, "is there room, and may we write? run again: it goes on")))
    except Exception as error:
        unknown = MirrorlakeError(f"{type(error).__name__}: {last_line(error)}", "--debug shows where this happened")
        sys.exit(report_fault(unknown))


def report_fault(fault: MirrorlakeError) -> int:
    if os.environ.get("MIRRORLAKE_DEBUG"):
        traceback.print_exc()
    err.print(Text(f"mirrorlake: {fault.what}"))
    if fault.next_step:
        err.print(Text(f"next: {fault.next_step}"))
    return fault.exit_code


if __name__ == "__main__":
    main()
