"""What a load needs: arithmetic on coefficients that the benchmark measured. Nothing here has effects but `read`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mirrorlake.bench.results import Measured, from_json
from mirrorlake.bench.scenarios import FILL, LATENCY, MIRRORLAKE, TENTH, THROUGHPUT
from mirrorlake.errors import UsageFault

KEPT = Path(__file__).with_name("coefficients.json")
# How full a core may be planned: the rest is for catching up after an outage.
UTILISATION = 0.7
SECONDS_PER_DAY = 86_400
# What one throughput unit of Event Hubs (standard tier) takes in, by its documentation: not measured here.
UNIT_BYTES_PER_SECOND = 1_000_000
UNIT_RECORDS_PER_SECOND = 1000


@dataclass(frozen=True)
class Line:
    """A fixed part, and one for each kilobyte of a record."""

    fixed: float
    per_kb: float

    def at(self, record_bytes: float) -> float:
        return self.fixed + self.per_kb * record_bytes / 1000


@dataclass(frozen=True)
class Latency:
    """What was measured at a steady pace: medians of the rounds."""

    records_per_second: float
    p50_seconds: float
    p99_seconds: float


@dataclass(frozen=True)
class Coefficients:
    ingest_cpu_seconds_per_million: Line
    fanout_cpu_seconds_per_million: Line
    """For each target."""
    floor_cores: float
    """What many small batches cost beyond that, at a slow pace."""
    bronze_bytes_per_record: Line
    memory_mib: float
    memory_mib_per_target: float
    partition_records_per_second: float
    partition_bytes_per_second: float
    error_share: float
    """Of cores: the worst of a measured point and its prediction, and the spread of a point's rounds."""
    measured: dict[str, Any]
    """When, where and with what."""
    storage_error_share: float | None = None
    """Of storage, in the same way; None where it was not kept."""
    latencies: tuple[Latency, ...] = ()
    """By pace, the slowest first."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Coefficients:
        lines = {key: Line(**value) for key, value in raw.items() if isinstance(value, dict) and "per_kb" in value}
        return cls(**{**raw, **lines, "latencies": tuple(Latency(**held) for held in raw.get("latencies", ()))})


def read(path: Path = KEPT) -> Coefficients:
    try:
        return Coefficients.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        raise UsageFault(
            f"no measured coefficients at {path}",
            "`make bench` measures them; python docs/write_performance.py keeps them",
        ) from None


# --- from a benchmark to coefficients ---


@dataclass(frozen=True)
class Point:
    """What one scenario cost: how often each leg ran for a record, how large the record was, and the CPU."""

    ingests: int
    targets: int
    record_bytes: int
    cpu_seconds_per_million: float
    spread_share: float


def fit(document: Mapping[str, Any]) -> Coefficients:
    measured = from_json(document)
    points = list(filter(None, map(_point, measured.values())))
    if len({(p.ingests, p.targets, p.record_bytes) for p in points}) < 4:
        raise UsageFault(
            "too few scenarios to tell ingest from fan-out, and bytes from records",
            "measure at least: base, 3 targets, 100 B, 10 kB",
        )
    ingest, fanout = _legs(points)
    missed = max(abs(_predict(ingest, fanout, p) / p.cpu_seconds_per_million - 1) for p in points)
    bronze, bronze_missed = _bronze(measured)
    memory, each = _memory(measured)
    rate, rate_bytes = _one_partition(measured)
    return Coefficients(
        ingest,
        fanout,
        _kept(_floor(measured, ingest, fanout)),
        bronze,
        memory,
        each,
        rate,
        rate_bytes,
        _kept(max([missed, *(p.spread_share for p in points)])),
        {key: document[key] for key in ("at", "command", "quick", "machine", "versions")},
        bronze_missed,
        _latencies(measured),
    )


def _kept(value: float) -> float:
    """Six figures: what comes after them differs from one library of linear algebra to the next."""
    return float(f"{value:.6g}")


def _point(held: Measured) -> Point | None:
    spread = held.spread(MIRRORLAKE, "steady_cpu_seconds_per_million")
    scenario = held.scenario
    # Too few records are all start and end: they say nothing of the steady pace.
    plain = scenario["partitions"] == 4 and not scenario["round_trip_ms"] and scenario["name"] != TENTH
    if spread is None or scenario["kind"] not in (THROUGHPUT, FILL) or not plain:
        return None
    share = (spread.most - spread.least) / 2 / spread.median
    ingests = 0 if scenario["kind"] == FILL else 1
    return Point(ingests, scenario["targets"], scenario["record_bytes"], spread.median, share)


def _legs(points: Sequence[Point]) -> tuple[Line, Line]:
    """Least squares of relative errors; what would cost less than nothing costs nothing."""
    rows = np.array([[p.ingests, p.ingests * _kb(p), p.targets, p.targets * _kb(p)] for p in points], float)
    costs = np.array([p.cpu_seconds_per_million for p in points])
    found = _not_negative(rows / costs[:, None], np.ones(len(points)))
    return Line(*map(_kept, found[:2])), Line(*map(_kept, found[2:]))


def _kb(point: Point) -> float:
    return point.record_bytes / 1000


def _not_negative(rows: Any, wanted: Any) -> list[float]:
    used = list(range(rows.shape[1]))
    while used:
        found = np.linalg.lstsq(rows[:, used], wanted, rcond=None)[0]
        if found.min() >= 0:
            break
        del used[int(found.argmin())]
    by_column = dict(zip(used, found.tolist(), strict=True)) if used else {}
    return [by_column.get(column, 0.0) for column in range(rows.shape[1])]


def _predict(ingest: Line, fanout: Line, point: Point) -> float:
    return point.ingests * ingest.at(point.record_bytes) + point.targets * fanout.at(point.record_bytes)


def _floor(measured: Mapping[str, Measured], ingest: Line, fanout: Line) -> float:
    beyond = [0.0]
    for held in measured.values():
        spread = held.spread(MIRRORLAKE, "cpu_seconds_per_million") if held.scenario["kind"] == LATENCY else None
        if spread:
            size, per_second = held.scenario["record_bytes"], held.scenario["per_second"]
            linear = _predict(ingest, fanout, Point(1, held.scenario["targets"], size, 0, 0))
            beyond.append((spread.median - linear) * per_second / 1e6)
    return max(beyond)


def _bronze(measured: Mapping[str, Measured]) -> tuple[Line, float]:
    """Bytes of a record, and by how much the worst of the scenarios differs from that."""
    found = [
        (held.scenario["record_bytes"], spread)
        for held in measured.values()
        if (spread := held.spread(MIRRORLAKE, "bronze_bytes_per_record"))
    ]
    rows = np.array([[1 / spread.median, size / 1000 / spread.median] for size, spread in found])
    line = Line(*map(_kept, _not_negative(rows, np.ones(len(found)))))
    missed = (abs(line.at(size) / stored - 1) for size, spread in found for stored in (spread.least, spread.most))
    return line, _kept(max(missed))


def _latencies(measured: Mapping[str, Measured]) -> tuple[Latency, ...]:
    found = []
    for held in measured.values():
        p50, p99 = (held.spread(MIRRORLAKE, f"latency_{name}_seconds") for name in ("p50", "p99"))
        if p50 and p99:
            found.append(Latency(held.scenario["per_second"], _kept(p50.median), _kept(p99.median)))
    return tuple(sorted(found, key=lambda latency: latency.records_per_second))


def _memory(measured: Mapping[str, Measured]) -> tuple[float, float]:
    peaks: dict[int, float] = {}
    for held in measured.values():
        if held.scenario["kind"] == THROUGHPUT and (spread := held.spread(MIRRORLAKE, "peak_memory_mib")):
            targets = held.scenario["targets"]
            peaks[targets] = max(peaks.get(targets, 0.0), spread.most)
    few, many = min(peaks), max(peaks)
    each = max(0.0, (peaks[many] - peaks[few]) / (many - few)) if many > few else 0.0
    return peaks[few] - each * few, each


def _one_partition(measured: Mapping[str, Measured]) -> tuple[float, float]:
    """The rate of a single partition; where that was not measured, an even share of the base."""
    held = measured.get("1 partition") or measured["base"]
    rate, size = held.spread(MIRRORLAKE, "steady_records_per_second"), held.spread(MIRRORLAKE, "steady_mb_per_second")
    if rate is None or size is None:
        raise UsageFault("the base scenario has no steady rate", "measure it with `mirrorlake bench --scenario base`")
    partitions = held.scenario["partitions"]
    return rate.median / partitions, size.median * 1e6 / partitions


# --- from coefficients to a need ---


@dataclass(frozen=True)
class Need:
    """What a load needs; `error_share` is how far off cores may be, `storage_error_share` storage."""

    records_per_second: float
    record_bytes: float
    targets: int
    busy_cores: float
    cores: int
    memory_gib: float
    storage_gib_per_day: float
    partitions: int
    source_read_mb_per_second: float
    sent_mb_per_second: float
    event_hubs_units_per_target: int
    error_share: float
    storage_error_share: float | None
    tasks: int
    """Of each leg at once, which is what `runner.parallelism` sets."""
    latency: Latency | None
    """Of the nearest pace that was measured and is no slower; the fastest, where this one is faster."""


def size(known: Coefficients, records_per_second: float, record_bytes: float, targets: int) -> Need:
    per_million = known.ingest_cpu_seconds_per_million.at(record_bytes)
    per_million += targets * known.fanout_cpu_seconds_per_million.at(record_bytes)
    busy = records_per_second * per_million / 1e6 + known.floor_cores
    cores = math.ceil(busy / UTILISATION)
    load_bytes = records_per_second * record_bytes
    return Need(
        records_per_second,
        record_bytes,
        targets,
        busy,
        cores,
        (known.memory_mib + targets * known.memory_mib_per_target) / 1024,
        known.bronze_bytes_per_record.at(record_bytes) * records_per_second * SECONDS_PER_DAY / (1 << 30),
        max(_over(records_per_second, known.partition_records_per_second),
            _over(load_bytes, known.partition_bytes_per_second)),
        load_bytes / 1e6,
        load_bytes * targets / 1e6,
        max(_over(load_bytes, UNIT_BYTES_PER_SECOND), _over(records_per_second, UNIT_RECORDS_PER_SECOND)),
        known.error_share,
        known.storage_error_share,
        cores,
        _latency_at(known.latencies, records_per_second),
    )  # fmt: skip


def _latency_at(latencies: Sequence[Latency], records_per_second: float) -> Latency | None:
    no_slower = (latency for latency in latencies if latency.records_per_second >= records_per_second)
    return next(no_slower, latencies[-1] if latencies else None)


def _over(load: float, each: float) -> int:
    return max(1, math.ceil(load / each))
