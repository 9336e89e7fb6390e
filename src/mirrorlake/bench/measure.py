"""One run of one contender, measured."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mirrorlake.bench.contenders import Job, require_alive, running
from mirrorlake.bench.processes import Usage, cpu_seconds_of, usage_of
from mirrorlake.bench.records import Arrivals, check_copy, feeding
from mirrorlake.bench.scenarios import END_SHARE, FILL, GROWTH, IDLE, LATENCY, MIRRORLAKE, WARM_SHARE, Scenario
from mirrorlake.bench.stage import Stage
from mirrorlake.errors import ClusterUnreachable, TargetDiverged, Transient
from mirrorlake.kafka import Cluster
from mirrorlake.lab.processes import Process, wait_until
from mirrorlake.records import TopicPartition
from mirrorlake.tables import BronzeFiles

SAMPLE_SECONDS = 0.2
MEMORY_SECONDS = 1.0  # asking more often would be seen in the figures
PATIENCE_SECONDS = 900
LATE_SECONDS = 120
MIB = 1 << 20
Figures = dict[str, float]


@dataclass(frozen=True)
class Sample:
    """Where a run stood at a time after its launch."""

    seconds: float
    delivered: int
    cpu_seconds: float
    memory_bytes: int
    written_bytes: int
    broker_cpu_seconds: float


# --- from samples to figures: pure ---


def throughput_figures(samples: Sequence[Sample], records: int, record_bytes: int) -> Figures:
    """`records` is what one target gets; `delivered` is its share where there are several."""
    last = samples[-1]
    begun, ended = when(samples, WARM_SHARE * records), when(samples, END_SHARE * records)
    steady = (END_SHARE - WARM_SHARE) * records
    overall = records / last.seconds
    return {
        "first_record_seconds": when(samples, 1),
        "seconds": last.seconds,
        "records_per_second": overall,
        "mb_per_second": overall * record_bytes / 1e6,
        "steady_records_per_second": steady / max(1e-9, ended - begun),
        "steady_mb_per_second": steady * record_bytes / 1e6 / max(1e-9, ended - begun),
        "cpu_seconds": last.cpu_seconds,
        "cpu_seconds_per_million": last.cpu_seconds / records * 1e6,
        "steady_cpu_seconds_per_million": (cpu_at(samples, ended) - cpu_at(samples, begun)) / steady * 1e6,
        "broker_cpu_seconds_per_million": (last.broker_cpu_seconds - samples[0].broker_cpu_seconds) / records * 1e6,
        "peak_memory_mib": max(sample.memory_bytes for sample in samples) / MIB,
        "written_bytes_per_record": last.written_bytes / records,
    }


def when(samples: Sequence[Sample], delivered: float) -> float:
    """Seconds until so many were delivered, between two samples as if evenly."""
    after = next(n for n, sample in enumerate(samples) if sample.delivered >= delivered)
    if after == 0:
        return samples[0].seconds
    one, two = samples[after - 1], samples[after]
    share = (delivered - one.delivered) / (two.delivered - one.delivered)
    return one.seconds + share * (two.seconds - one.seconds)


def cpu_at(samples: Sequence[Sample], seconds: float) -> float:
    return float(np.interp(seconds, [s.seconds for s in samples], [s.cpu_seconds for s in samples]))


def latency_figures(ages_seconds: Sequence[float]) -> Figures:
    p50, p99 = np.percentile(ages_seconds, [50, 99])
    return {
        "latency_p50_seconds": float(p50),
        "latency_p99_seconds": float(p99),
        "latency_max_seconds": max(ages_seconds),
        "records": len(ages_seconds),
    }


def growth_figures(records: Sequence[int], cpu_seconds: Sequence[float]) -> Figures:
    """Of three runs, from small to large: what a run costs but once, its start, cancels where two are subtracted."""
    whole = dict(zip(("small", "middle", "large"), cpu_seconds, strict=True))
    earlier, later = np.diff(cpu_seconds) / np.diff(records) * 1e6
    figures = {f"{name}_cpu_seconds": seconds for name, seconds in whole.items()}
    figures |= {"earlier_cpu_seconds_per_million": float(earlier), "later_cpu_seconds_per_million": float(later)}
    figures["whole_cpu_ratio"] = whole["large"] / whole["small"]
    # So few records that the start's own spread is more than they cost: there is nothing to compare with.
    return figures | ({"added_cpu_ratio": float(later / earlier)} if earlier > 0 else {})


# --- watching ---


class Watch:
    """Samples a running job until told to stop."""

    def __init__(self, stage: Stage, contender: str, process: Process, job: Job) -> None:
        self._begun = time.monotonic()
        self._stage, self._contender, self._process, self._job = stage, contender, process, job
        self._brokers = stage.broker_pids()
        self._used, self._used_at = Usage(), float("-inf")
        self.samples: list[Sample] = []

    def until(self, delivered: Callable[[], int], wanted: int) -> None:
        while not self.samples or self.samples[-1].delivered < wanted:
            self._wait(SAMPLE_SECONDS)
            self._take(delivered())

    def last(self, seconds: float) -> None:
        """So long, whatever arrives."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._wait(1.0)
            self._take(0)

    def close(self) -> None:
        """The last sample once more, with what was used until then."""
        used = usage_of([self._process.pid])
        last = self.samples[-1]
        self.samples[-1] = replace(last, memory_bytes=used.memory_bytes, written_bytes=used.written_bytes)

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        require_alive(self._contender, self._process, self._job)
        if time.monotonic() - self._begun > PATIENCE_SECONDS:
            raise ClusterUnreachable(f"{self._contender} is not done after {PATIENCE_SECONDS} s", "ask for less")

    def _take(self, delivered: int) -> None:
        at = time.monotonic() - self._begun
        if at - self._used_at >= MEMORY_SECONDS:
            self._used, self._used_at = usage_of([self._process.pid]), at
        cpu, brokers = cpu_seconds_of([self._process.pid]), cpu_seconds_of(self._brokers)
        self.samples.append(Sample(at, delivered, cpu, self._used.memory_bytes, self._used.written_bytes, brokers))


@contextlib.contextmanager
def memory_of(pid: int) -> Iterator[list[int]]:
    """Bytes of a tree of processes, asked for now and then by a thread, so that nobody who takes times is held up."""
    seen, over = [usage_of([pid]).memory_bytes], threading.Event()

    def look() -> None:
        while not over.wait(MEMORY_SECONDS):
            seen.append(usage_of([pid]).memory_bytes)

    thread = threading.Thread(target=look, name="memory", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def delivered_to(targets: Sequence[Cluster], topic: str, partitions: int) -> int:
    """Records of a copy, as the mean over the targets; a copy that is not there yet has none."""
    at = [TopicPartition(topic, number) for number in range(partitions)]
    return sum(_delivered(target, at) for target in targets) // len(targets)


def _delivered(target: Cluster, at: Sequence[TopicPartition]) -> int:
    try:
        return sum(target.log_ends(at).values()) if at[0].topic in target.describe([at[0].topic]) else 0
    except Transient:
        return 0


# --- runs ---


@dataclass
class Runs:
    """Runs that share a stage; each has an alias of its own."""

    stage: Stage
    count: int = 0
    bronze: Job | None = None
    """Of the relay whose bronze holds the topic already, for filling new targets."""

    def measure(self, scenario: Scenario, contender: str) -> Figures:
        self.count += 1
        kinds = {FILL: self._fill, LATENCY: self._latency, IDLE: self._idle, GROWTH: self._growth}
        return kinds.get(scenario.kind, self._throughput)(scenario, contender)

    def prepare(self, scenario: Scenario) -> None:
        """What is not measured: a full source, and for a fill a bronze that holds all of it."""
        if filled := scenario.steps or ([scenario] if scenario.records else []):
            self.stage.prepare(*filled)
        if scenario.kind == FILL:
            self.count += 1
            self.bronze = self._job(scenario, scenario.topic)
            self._relay(scenario, MIRRORLAKE, self.bronze)

    def finish(self, scenario: Scenario) -> None:
        if self.bronze is not None:
            self._forget(self.bronze)
            self.bronze = None

    def _job(self, scenario: Scenario, topics: str) -> Job:
        alias = f"r{self.count}"
        return Job(alias, topics, self.stage.source, self.stage.targets(scenario), self.stage.folder / alias)

    def _forget(self, job: Job) -> None:
        self.stage.forget(job.alias, sorted({cluster.name for cluster in job.targets.values()}))
        shutil.rmtree(job.folder)

    def _throughput(self, scenario: Scenario, contender: str) -> Figures:
        job = self._job(scenario, scenario.topic)
        before = self.stage.source_bytes_out(scenario.topic)
        figures = self._relay(scenario, contender, job)
        read = self.stage.source_bytes_out(scenario.topic) - before
        compared = self._check(scenario, job)
        figures |= {"source_bytes_per_record": read / scenario.records, "compared": compared}
        if contender == MIRRORLAKE:
            figures["bronze_bytes_per_record"] = bronze_bytes(job.folder / "state") / scenario.records
        self._forget(job)
        return figures

    def _growth(self, scenario: Scenario, contender: str) -> Figures:
        """All sizes in one round, since machines drift from round to round."""
        cpu_seconds, compared = [], 0
        for step in scenario.steps:
            self.count += 1
            job = self._job(step, step.topic)
            cpu_seconds.append(self._relay(step, contender, job)["cpu_seconds"])
            compared += self._check(step, job)
            self._forget(job)
        return {**growth_figures([step.records for step in scenario.steps], cpu_seconds), "compared": compared}

    def _relay(self, scenario: Scenario, contender: str, job: Job, fresh: Sequence[str] = ()) -> Figures:
        """Launch, and watch until every target (of `fresh`, where named) has all records."""
        targets = [self.stage.client(job.targets[alias].name) for alias in fresh or job.targets]
        copy = job.copy_of(scenario.topic)
        with running(contender, job) as process:
            watch = Watch(self.stage, contender, process, job)
            watch.until(lambda: delivered_to(targets, copy, scenario.partitions), scenario.records)
            watch.close()
        return throughput_figures(watch.samples, scenario.records, scenario.record_bytes)

    def _check(self, scenario: Scenario, job: Job) -> int:
        source, copy = self.stage.client("src"), job.copy_of(scenario.topic)
        clients = [self.stage.client(cluster.name) for cluster in job.targets.values()]
        return sum(check_copy(source, scenario.topic, each, copy, scenario.partitions) for each in clients)

    def _fill(self, scenario: Scenario, contender: str) -> Figures:
        """A new target: the relay sends from bronze, MM2 reads the source again."""
        new = {f"new{self.count}": self.stage.clusters["dst2"]}
        if contender == MIRRORLAKE and self.bronze is not None:
            held = self.bronze
            job = Job(held.alias, held.topics, held.source, {**held.targets, **new}, held.folder)
        else:
            job = Job(f"r{self.count}", scenario.topic, self.stage.source, new, self.stage.folder / f"r{self.count}")
        before = self.stage.source_bytes_out(scenario.topic)
        figures = self._relay(scenario, contender, job, list(new))
        read = self.stage.source_bytes_out(scenario.topic) - before
        figures |= {"source_bytes_per_record": read / scenario.records, "compared": self._check(scenario, job)}
        self.stage.forget(job.alias, ["dst2"])  # the relay's first target and its bronze stay for the next round
        if job.folder != (self.bronze and self.bronze.folder):
            shutil.rmtree(job.folder)
        return figures

    def _latency(self, scenario: Scenario, contender: str) -> Figures:
        topic = f"pace-{self.count}"
        self.stage.create(topic, scenario.partitions)
        job = self._job(scenario, topic)
        clients = self.stage.source.inside()
        with running(contender, job) as process, memory_of(process.pid) as memory_bytes:
            watch = Watch(self.stage, contender, process, job)
            with feeding(clients, topic, scenario.partitions, scenario.record_bytes, scenario.per_second):
                target = self.stage.client("dst1")
                watch.until(lambda: delivered_to([target], job.copy_of(topic), scenario.partitions), 1)
                arrivals = Arrivals(target.config, job.copy_of(topic), scenario.partitions)
                arrivals.collect(after(scenario.warm_up_seconds), 0)
                since_ns, before = time.time_ns(), usage_of([process.pid])
                ages = arrivals.collect(after(scenario.seconds), since_ns)
            sent = self._sent(topic, scenario.partitions)
            late = after(LATE_SECONDS)
            ages += arrivals.collect(lambda: arrivals.received >= sent or late(), since_ns)
            if arrivals.received < sent:
                raise TargetDiverged(f"{contender}: {sent - arrivals.received} of {sent} records did not arrive")
            used = usage_of([process.pid])
            require_alive(contender, process, job)
        arrivals.close()
        self._forget(job)
        self.stage.drop("src", topic)
        figures = latency_figures(ages)
        cpu = (used.cpu_seconds - before.cpu_seconds) / len(ages) * 1e6
        return {**figures, "cpu_seconds_per_million": cpu, "peak_memory_mib": max(memory_bytes) / MIB}

    def _sent(self, topic: str, partitions: int) -> int:
        return sum(self.stage.client("src").log_ends(TopicPartition(topic, n) for n in range(partitions)).values())

    def _idle(self, scenario: Scenario, contender: str) -> Figures:
        """Many topics of which one gets a record now and then; all of these must have come in the end."""
        topics = [f"idle{self.count}-{number}" for number in range(scenario.topics)]
        self.stage.create_many(topics)
        job = self._job(scenario, f"idle{self.count}-.*")
        copy, target = job.copy_of(topics[0]), self.stage.client("dst1")
        with running(contender, job) as process:
            watch = Watch(self.stage, contender, process, job)
            with feeding(self.stage.source.inside(), topics[0], 1, scenario.record_bytes, scenario.per_second):
                watch.until(lambda: delivered_to([target], copy, 1), 1)
                watch.last(scenario.warm_up_seconds)
                first = len(watch.samples) - 1
                watch.last(scenario.seconds)
            sent = self._sent(topics[0], 1)
            if not wait_until(lambda: delivered_to([target], copy, 1) == sent, LATE_SECONDS):
                raise TargetDiverged(f"{contender}: not all of {sent} records arrived within {LATE_SECONDS} s")
        one, two = watch.samples[first], watch.samples[-1]
        self._forget(job)
        self.stage.drop("src", *topics)
        cores = (two.cpu_seconds - one.cpu_seconds) / (two.seconds - one.seconds)
        return {"cores": cores, "peak_memory_mib": max(s.memory_bytes for s in watch.samples) / MIB}


def after(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


def bronze_bytes(root: Path) -> int:
    folders: Mapping[str, Path] = {path.parent.name: path.parent for path in root.glob("tables/bronze/*/_delta_log")}
    return sum(segment.bytes for folder in folders.values() for segment in BronzeFiles(folder).segments())
