"""What is measured: one factor varied at a time around 1 kB, 4 partitions, 1 target. Nothing here has effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirrorlake.errors import UsageFault

MM2_DEFAULTS, MM2_TUNED, MM2_LZ4, MIRRORLAKE = CONTENDERS = ("mm2-defaults", "mm2-tuned", "mm2-tuned-lz4", "mirrorlake")
USUAL = (MM2_DEFAULTS, MM2_TUNED, MIRRORLAKE)
BOTH = (MM2_TUNED, MIRRORLAKE)
THROUGHPUT, FILL, LATENCY, IDLE, GROWTH = "throughput", "fill", "latency", "idle", "growth"
MORE_RECORDS, MORE_PARTITIONS = "ten times the records", "ten times the partitions"
TENTH = "a tenth of the records"  # of older results, which have no growth


@dataclass(frozen=True)
class Scenario:
    """Contenders take turns within a round; rounds follow each other."""

    name: str
    kind: str = THROUGHPUT
    records: int = 0
    record_bytes: int = 1000
    partitions: int = 4
    targets: int = 1
    round_trip_ms: int = 0
    per_second: int = 0
    """Latency: the steady pace."""
    warm_up_seconds: float = 0.0
    seconds: float = 0.0
    topics: int = 1
    sizes: tuple[tuple[int, int], ...] = ()
    """Growth: records and partitions of the three runs of a round."""
    contenders: tuple[str, ...] = USUAL
    rounds: int = 3

    @property
    def topic(self) -> str:
        """Scenarios that read the same records share a topic."""
        return f"b{self.record_bytes}-p{self.partitions}-n{self.records}"

    @property
    def steps(self) -> list[Scenario]:
        """Growth: the runs of a round as scenarios of their own."""
        return [replace(self, kind=THROUGHPUT, records=n, partitions=p, sizes=()) for n, p in self.sizes]


# The share of records after which a run counts as warm, and at which its end begins to show.
WARM_SHARE, END_SHARE = 0.3, 0.95
MOST_IDLE_ROUNDS = 2  # each takes minutes, and differs little
# A tenth, a half and all of so many: one, five and ten batches, since one holds some 260,000 records of 1 kB.
GROWN_RECORDS = 2_500_000
GROWTH_PARTITIONS = (2, 10, 20)  # two at least, so that both cores of a small machine work in every run


def full(records: int = 2_000_000, rounds: int = 3) -> list[Scenario]:
    """`records` of 1 kB; of other sizes no more than four times as many records, and enough bytes for several batches.

    All contenders at the base; what is varied is measured against MM2 tuned.
    """
    base = Scenario("base", records=records, rounds=rounds, contenders=CONTENDERS)
    varied = replace(base, contenders=BOTH)
    pace = replace(base, kind=LATENCY, records=0, warm_up_seconds=30, seconds=60, contenders=USUAL)
    growth = replace(base, kind=GROWTH, records=0, contenders=(MIRRORLAKE,))
    grown = min(5 * records, GROWN_RECORDS)
    steps = (grown // 10, grown // 2, grown)
    return [
        base,
        replace(varied, name="3 targets", targets=3),
        replace(varied, name="100 B", record_bytes=100, records=records * 3),
        replace(varied, name="10 kB", record_bytes=10_000, records=records // 5),
        replace(varied, name="1 partition", partitions=1),
        replace(varied, name="16 partitions", partitions=16),
        replace(varied, name="30 ms round trip", round_trip_ms=30),
        replace(varied, name="new target", kind=FILL),
        replace(growth, name=MORE_RECORDS, sizes=tuple((step, base.partitions) for step in steps)),
        replace(growth, name=MORE_PARTITIONS, sizes=tuple(zip(steps, GROWTH_PARTITIONS, strict=True))),
        replace(pace, name="2,000 records/s", per_second=2_000),
        replace(pace, name="10,000 records/s", per_second=10_000, contenders=BOTH),
        replace(pace, name="500 idle topics", kind=IDLE, per_second=20, topics=500, partitions=1,
                rounds=min(rounds, MOST_IDLE_ROUNDS), contenders=BOTH),
    ]  # fmt: skip


def quick() -> list[Scenario]:
    """A short look, meant for five minutes on two quiet cores. One round, so its figures have no spread."""
    base = Scenario("base", records=400_000, rounds=1)
    pace = Scenario("2,000 records/s", LATENCY, per_second=2_000, warm_up_seconds=8, seconds=12, rounds=1)
    return [
        base,
        replace(base, name="new target", kind=FILL, contenders=BOTH),
        replace(pace, contenders=BOTH),
    ]


def chosen(scenarios: Sequence[Scenario], names: Sequence[str]) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in scenarios}
    if unknown := set(names) - set(known):
        raise UsageFault(f"no scenario {', '.join(sorted(unknown))}", f"there are: {', '.join(known)}")
    return [known[name] for name in names] if names else list(scenarios)
