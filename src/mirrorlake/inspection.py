"""What storage and clusters say of flows, without running them: lag, audit, status, plan, SQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mirrorlake import audit, control, lag
from mirrorlake.bronze import read_positions, read_topic_ids
from mirrorlake.config import Config, Flow, Target
from mirrorlake.deletion import read_doomed
from mirrorlake.errors import StorageUnreachable
from mirrorlake.kafka import Cluster, TopicInfo
from mirrorlake.lease import LEASE_SECONDS, is_held, read_holder
from mirrorlake.ledger import Book, Entry, fold
from mirrorlake.ledger import read as read_ledger
from mirrorlake.names import table_name
from mirrorlake.readers import BronzeInCatalog
from mirrorlake.records import SourcePartition, TopicPartition, is_elder
from mirrorlake.streams import current
from mirrorlake.tables import BronzeFiles, Readable, Tables, ensure_ops
from mirrorlake.targets import Looker, TargetPlan, make_wish, plan_target
from mirrorlake.topics import RelaySpec, flow_topics, relay_specs, spec_topics, topics_now
from mirrorlake.upkeep import read_given
from mirrorlake.world import connect, now, open_tables, storage_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- what storage holds of a relay ---


@dataclass(frozen=True)
class Stored:
    """One bronze table and its targets, as storage has them."""

    flow: Flow
    spec: RelaySpec
    ingested: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    files: Readable
    entries: Mapping[str, Sequence[Entry]]
    """Target -> its rows in the ledger."""

    def book(self, target: str) -> Book:
        return fold(self.entries[target])


def read_stored(config: Config, tables: Tables, flow: Flow, spec: RelaySpec) -> Stored:
    """The position and the ledger first, bronze after them: what arrives meanwhile is then merely not looked at."""
    root = storage_root(config)
    checkpoints = root / config.storage.checkpoints
    checkpoint = current(checkpoints, flow.name, "ingest", spec.table).checkpoint(checkpoints)
    ledger = f"{config.storage.ops_schema}.ledger"
    entries = {
        target.cluster: [
            entry
            for entry in read_ledger(tables, ledger, flow.name, target.cluster)
            if spec_topics(spec, [entry.source.topic])
        ]
        for target in flow.targets
    }
    if not tables.exists(spec.table):
        raise StorageUnreachable(
            f"flow {flow.name}: there is no table {spec.table} below {root}",
            f"run it first: mirrorlake run --flow {flow.name}",
        )
    return Stored(flow, spec, read_positions(checkpoint), read_topic_ids(checkpoint), _bronze(tables, spec), entries)


def _bronze(tables: Tables, spec: RelaySpec) -> Readable:
    folder = tables.folder(spec.table)
    if folder is not None:
        return BronzeFiles(folder)
    from pyspark.sql import SparkSession

    return BronzeInCatalog(SparkSession.builder.getOrCreate(), tables.identifier(spec.table))


def stored_relays(config: Config, tables: Tables, flow: Flow, source: Cluster) -> list[Stored]:
    known = source.topic_names() if flow.patterns else ()
    return [read_stored(config, tables, flow, spec) for spec in relay_specs(config, flow, known)]


# --- lag ---


def sample_lag(config: Config, tables: Tables, clusters: Mapping[str, Cluster]) -> None:
    """Write one sample of every flow: right also when nothing runs."""
    at = now()
    samples = [
        _sample(stored, clusters[flow.source], at)
        for flow in config.flows.values()
        for stored in stored_relays(config, tables, flow, clusters[flow.source])
    ]
    ensure_ops(tables, config.storage.ops_schema)
    tables.append(f"{config.storage.ops_schema}.lag_samples", pa.concat_tables(samples))


def _sample(stored: Stored, source: Cluster, at: datetime) -> pa.Table:
    ends = lag.bronze_ends(stored.files.segments())
    ingested = lag.ingest_positions(stored.ingested, stored.topic_ids)
    targets = {target: lag.target_positions(stored.book(target), ends, ingested) for target in stored.entries}
    topics = lag.as_known(source.describe(topics_now(stored.spec, source)).values(), stored.topic_ids)
    committed = stored.flow.isolation == "read_committed"
    return lag.sample_rows(stored.flow.name, source, topics, ingested, targets, committed, at)


def read_lag(config: Config, spark: SparkSession) -> list[dict[str, Any]]:
    """Lag per flow, target, topic and partition: a fresh sample, then the view that everybody queries."""
    tables = open_tables(config, storage_root(config), spark)
    flows = list(config.flows.values())
    sample_lag(config, tables, connect(config, flows))
    register(spark, config, tables)
    names = ", ".join(f"'{flow.name}'" for flow in flows)
    view = f"{ops_prefix(config)}.replication_lag"
    rows = spark.sql(f"SELECT * FROM {view} WHERE flow IN ({names}) ORDER BY flow, target, topic, partition")  # noqa: S608
    return [row.asDict() for row in rows.collect()]


# --- SQL ---


def ops_prefix(config: Config) -> str:
    """Where the ops tables are in SQL: `ops`, or `catalog.ops` on Databricks."""
    catalog = f"`{config.storage.catalog}`." if config.storage.catalog else ""
    return f"{catalog}{config.storage.ops_schema}"


def register(
    spark: SparkSession, config: Config, tables: Tables, known: Mapping[str, Iterable[str]] | None = None
) -> None:
    """The names of the design: tables of a folder become known to Spark, and the views are made.

    `known` are topics by table; without them those that a table holds records of get a view.
    """
    ensure_ops(tables, config.storage.ops_schema)
    for name in tables.names():
        _register_table(spark, tables, name)
    for flow in config.flows.values():
        for spec in relay_specs(config, flow):
            if spec.java_pattern and tables.exists(spec.table):
                topics = (known or {}).get(spec.table) or {s.source.topic for s in _bronze(tables, spec).segments()}
                _register_topic_views(spark, tables, flow, spec, topics)
    for name, sql in lag.views(ops_prefix(config)).items():
        spark.sql(f"CREATE OR REPLACE VIEW {ops_prefix(config)}.{name} AS {sql}")


def _register_table(spark: SparkSession, tables: Tables, name: str) -> None:
    """Dropped first: the session may know the name from another root. Only the name goes, the files stay."""
    schema, _, table = name.partition(".")
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS `{schema}`")
    kind = "VIEW" if table.lower() in _views(spark, schema) else "TABLE"
    spark.sql(f"DROP {kind} IF EXISTS {name}")
    spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{tables.folder(name)}'")


def _views(spark: SparkSession, schema: str) -> set[str]:
    return {row["viewName"].lower() for row in spark.sql(f"SHOW VIEWS IN {schema}").collect()}


def _register_topic_views(
    spark: SparkSession, tables: Tables, flow: Flow, spec: RelaySpec, topics: Iterable[str]
) -> None:
    """A view per topic over a shared table, under the name that a table of its own would have, unless it has one."""
    schema = spec.table.partition(".")[0]
    in_sql = (lambda name: name) if tables.folder(spec.table) else tables.identifier
    shared, views = in_sql(spec.table), _views(spark, in_sql(schema))
    for topic in sorted(topics):
        own_name = table_name(schema + ".{source}__{topic}", flow.source, topic)
        if tables.exists(own_name) and own_name.partition(".")[2].lower() not in views:
            continue
        view = in_sql(own_name)
        spark.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {shared} WHERE topic = '{topic}'")  # noqa: S608


# --- audit ---


def run_audit(config: Config, flow: Flow, clusters: Mapping[str, Cluster], tables: Tables) -> audit.Report:
    """Compare source, bronze and targets of a flow, and keep the result in ops.audits."""
    audits = [
        partition
        for stored in stored_relays(config, tables, flow, clusters[flow.source])
        for partition in _audit_relay(stored, clusters)
    ]
    report = audit.make_report(str(uuid.uuid4()), flow.name, now(), audits)
    tables.append(f"{config.storage.ops_schema}.audits", audit.rows(report))
    return report


def _audit_relay(stored: Stored, clusters: Mapping[str, Cluster]) -> Iterable[audit.PartitionAudit]:
    books = {target: stored.book(target) for target in stored.entries}
    stored.files.refresh()
    firsts: dict[SourcePartition, int] = {}
    for segment in stored.files.segments():
        firsts[segment.source] = min(firsts.get(segment.source, segment.first_offset), segment.first_offset)
    for source, first in sorted(firsts.items()):
        goes_on = any(is_elder(elder, source) for elder in firsts)
        side = audit.SourceSide(
            clusters[stored.flow.source],
            stored.ingested.get(source.at, 0),
            first if goes_on or stored.flow.start != "earliest" else 0,
            stored.flow.isolation == "read_committed",
            min((first for heir, first in firsts.items() if is_elder(source, heir)), default=_cut_at(stored, source)),
        )
        targets = {
            target: audit.TargetSide(
                clusters[target],
                [e for e in stored.entries[target] if e.source == source],
                book.positions[source],
            )
            for target, book in books.items()
            if source in book.positions
        }
        yield audit.audit_partition(stored.flow.name, source, side, stored.files, targets)


def _cut_at(stored: Stored, source: SourcePartition) -> int | None:
    """Where the log goes on as a later branch, of which bronze holds nothing yet."""
    known = source._replace(topic_id=stored.topic_ids.get(source.topic, source.topic_id))
    return stored.ingested.get(source.at) if is_elder(source, known) else None


# --- plan ---


@dataclass(frozen=True)
class Plan:
    """What `run` would make or change."""

    flow: str
    tables: list[str] = field(default_factory=list)
    """Bronze tables that would be made."""
    targets: list[TargetPlan] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"flow": self.flow, "tables": self.tables, "targets": [plan.to_json() for plan in self.targets]}


def make_plan(config: Config, flow: Flow, clusters: Mapping[str, Cluster], tables: Tables) -> Plan:
    """The difference between now and what the flow wants. Changes nothing."""
    source = clusters[flow.source]
    names = flow_topics(config, flow, source.topic_names())
    topics = source.describe(names)
    missing = [spec.table for spec in relay_specs(config, flow, names) if not tables.exists(spec.table)]
    return Plan(flow.name, missing, [_plan_target(config, flow, t, topics, clusters) for t in flow.targets])


def _plan_target(
    config: Config, flow: Flow, target: Target, topics: Mapping[str, TopicInfo], clusters: Mapping[str, Cluster]
) -> TargetPlan:
    given = read_given(storage_root(config), flow.name, target.cluster)
    wish = make_wish(config, flow, target, topics, given, _doomed(config, flow, target, topics))
    looker = Looker(clusters[flow.source], clusters[target.cluster], wish)
    return plan_target(wish, looker(topics, configs=True, acls=True))


def _doomed(config: Config, flow: Flow, target: Target, topics: Iterable[str]) -> dict[str, str]:
    """What a run has noticed, and when it is due."""
    root = storage_root(config)
    tables = [spec.table for spec in relay_specs(config, flow, topics)] if target.on_source_deleted == "delete" else []
    found = [doomed for table in tables for doomed in read_doomed(root, flow.name, target.cluster, table)]
    due = {doomed.topic: doomed.since + target.delete_after_seconds for doomed in found}
    return {name: datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds") for name, at in due.items()}


# --- status ---


def read_status(config: Config, root: Path) -> list[dict[str, Any]]:
    """What runs, where it stands and since when, for each flow."""
    return [_flow_status(config, root, name) for name in config.flows]


def _is_running(config: Config, root: Path, flow: str, said: Mapping[str, Any]) -> bool:
    """By the lock; where there is none to share, by what the runner itself said a moment ago."""
    if not config.storage.catalog:
        return is_held(root, flow)
    return said.get("state") == "running" and now().timestamp() - said["at"] < LEASE_SECONDS


def _flow_status(config: Config, root: Path, flow: str) -> dict[str, Any]:
    said = control.read_status(root, flow)
    running = _is_running(config, root, flow, said)
    holder = read_holder(root, flow)
    pauses = [{"target": p.target, "topic": p.topic} for p in control.read_pauses(root, flow)]
    state = (
        "running" if running else "stopped" if said.get("state") == "stopped" else "crashed" if said else "never ran"
    )
    return {
        "flow": flow,
        "state": state,
        "pid": holder.get("pid") if running else None,
        "epoch": holder.get("epoch"),
        "since": holder.get("since"),
        "said_at": said.get("at"),
        "reason": said.get("reason", ""),
        "paused": pauses,
        "targets": said.get("targets", []),
    }
