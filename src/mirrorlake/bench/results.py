"""Many runs as medians with their spread, ratios taken within one round, and the goals. Nothing here has effects."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mirrorlake.bench.scenarios import CONTENDERS, MIRRORLAKE, MM2_TUNED, MORE_PARTITIONS, MORE_RECORDS, Scenario

Rounds = list[dict[str, dict[str, float]]]
"""For each round: contender -> figures."""


@dataclass(frozen=True)
class Spread:
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Measured:
    """One scenario with all its rounds."""

    scenario: dict[str, Any]
    rounds: Rounds

    @classmethod
    def begin(cls, scenario: Scenario) -> Measured:
        return cls(asdict(scenario), [])

    @property
    def name(self) -> str:
        return str(self.scenario["name"])

    def contenders(self) -> list[str]:
        """Those that had a turn."""
        return [name for name in CONTENDERS if any(name in held for held in self.rounds)]

    def figures(self, contender: str) -> list[str]:
        return sorted({figure for held in self.rounds for figure in held.get(contender, {})})

    def spread(self, contender: str, figure: str) -> Spread | None:
        values = [held[contender][figure] for held in self.rounds if figure in held.get(contender, {})]
        return Spread.of(values) if values else None

    def ratio(self, figure: str, of: str = MIRRORLAKE, to: str = MM2_TUNED) -> Spread | None:
        """Within each round, since machines drift from round to round."""
        pairs = [(held[of][figure], held[to][figure]) for held in self.rounds if _both(held, figure, of, to)]
        return Spread.of([one / two for one, two in pairs]) if pairs else None


def _both(held: Mapping[str, Mapping[str, float]], figure: str, of: str, to: str) -> bool:
    return figure in held.get(of, {}) and bool(held.get(to, {}).get(figure))


def from_json(document: Mapping[str, Any]) -> dict[str, Measured]:
    """By name; a scenario that was only begun is left out."""
    measured = (Measured(**held) for held in document["scenarios"])
    return {held.name: held for held in measured if held.contenders()}


def rounds_of(document: Mapping[str, Any]) -> list[int]:
    """How many rounds scenarios had."""
    return sorted({len(held.rounds) for held in from_json(document).values()})


# --- goals ---


@dataclass(frozen=True)
class Goal:
    """What is reached for; `least` and `most` bound the median."""

    text: str
    scenario: str
    figure: str
    as_ratio: bool
    least: float | None = None
    most: float | None = None
    against: str = ""
    """Another scenario, where Mirrorlake is compared with itself."""

    def reached(self, measured: Mapping[str, Measured]) -> tuple[Spread, bool] | None:
        """None where the run did not measure it."""
        found = self._found(measured)
        if not found:
            return None
        well = (self.least is None or found.median >= self.least) and (self.most is None or found.median <= self.most)
        return found, well

    def _found(self, measured: Mapping[str, Measured]) -> Spread | None:
        held, base = measured.get(self.scenario), measured.get(self.against)
        if held is None or (self.against and base is None):
            return None
        if self.as_ratio:
            return held.ratio(self.figure)
        found = held.spread(MIRRORLAKE, self.figure)
        to = base.spread(MIRRORLAKE, self.figure) if base else Spread(1, 1, 1)
        return Spread(found.median / to.median, found.least / to.most, found.most / to.least) if found and to else None


RATE, OVERALL = "steady_records_per_second", "records_per_second"
READS, COST = "source_bytes_per_record", "steady_cpu_seconds_per_million"
ADDED, WHOLE = "added_cpu_ratio", "whole_cpu_ratio"
GOALS = (
    Goal("one target, 1 kB: steady rate, against tuned MM2", "base", RATE, True, least=1.0),
    Goal("three targets, 1 kB: steady rate, against tuned MM2", "3 targets", RATE, True, least=1.5),
    Goal("three targets: bytes read from the source, against tuned MM2: a third, and what prefetch wastes",
         "3 targets", READS, True, most=0.4),
    Goal("a new target from bronze: steady rate, against tuned MM2", "new target", RATE, True, least=1.5),
    Goal("a new target from bronze: overall rate, against tuned MM2", "new target", OVERALL, True, least=1.5),
    Goal("latency at 2,000 records/s, p50, seconds", "2,000 records/s", "latency_p50_seconds", False, most=1.0),
    Goal("latency at 2,000 records/s, p99, seconds", "2,000 records/s", "latency_p99_seconds", False, most=2.0),
    Goal("start until the first record, against tuned MM2", "base", "first_record_seconds", True, most=1.0),
    Goal("ten times the records: CPU that one more costs, from half on against up to half",
         MORE_RECORDS, ADDED, False, most=1.1),
    Goal("ten times the records: CPU of the whole run, against a tenth of them", MORE_RECORDS, WHOLE, False, most=10.0),
    Goal("ten times the partitions, each as full: CPU that one more costs, from half on against up to half",
         MORE_PARTITIONS, ADDED, False, most=1.1),
    Goal("ten times the partitions, each as full: CPU of the whole run, against a tenth of them",
         MORE_PARTITIONS, WHOLE, False, most=10.0),
    Goal("sixteen partitions: steady CPU for each record, against one partition", "16 partitions", COST, False,
         most=2.0, against="1 partition"),
    Goal("500 mostly idle topics, cores", "500 idle topics", "cores", False, most=0.5),
)  # fmt: skip
