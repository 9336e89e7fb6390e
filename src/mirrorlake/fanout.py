"""Delta -> Kafka: everything in bronze that lies after the ledger's position, in offset order.

The streaming query says when to look; the ledger says what to send. One round pins what bronze holds, plans
slices (files and offset ranges) onto tasks, sends them, and writes down the runs. After any doubt it recovers
before the next round.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Semaphore
from typing import TYPE_CHECKING, Any

from mirrorlake.account import Account
from mirrorlake.beginnings import Beginnings
from mirrorlake.doubts import Doubts
from mirrorlake.errors import (
    AccessRefused,
    DataAtRisk,
    DeliveryDoubt,
    MirrorlakeError,
    RecordRefused,
    TopicMissing,
    TopicNeeded,
    Transient,
    Undeliverable,
    from_text,
)
from mirrorlake.failpoints import hit
from mirrorlake.missing import MISSING_SECONDS, Missing
from mirrorlake.produce import Outcome, Slice
from mirrorlake.records import SourcePartition
from mirrorlake.rounds import Due, due_segments, one_for_each_target, plan_round
from mirrorlake.streams import reporting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEAST_SHARE = 1 / 64
"""Of a round's budget, after rounds that took longer than their lease."""


@dataclass
class Progress:
    """What the runner shows of one target."""

    rounds: int = 0
    waiting: str = ""
    """Why nothing moves, empty while it does."""


class Backoff:
    """Waits that grow, until patience ends."""

    def __init__(
        self,
        patience_seconds: float,
        refused_seconds: float,
        missing_seconds: float = MISSING_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience_seconds = patience_seconds
        self._refused_seconds = refused_seconds
        self._missing_seconds = missing_seconds
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._wait_seconds = 0.25
        self._since = self._clock()

    def next_wait(self, fault: MirrorlakeError) -> float:
        """A topic may be unknown for a moment while leaders are elected, a password wrong while it is changed."""
        if self._clock() - self._since > min(self._patience_with(fault), self._patience_seconds):
            raise fault
        self._wait_seconds = min(self._wait_seconds * 2, 10)
        return self._wait_seconds

    def _patience_with(self, fault: MirrorlakeError) -> float:
        if isinstance(fault, TopicMissing):
            return self._missing_seconds
        return self._refused_seconds if isinstance(fault, AccessRefused) else self._patience_seconds


@dataclass(frozen=True)
class Pace:
    """How much goes out at once, and how fast."""

    budget_bytes: int = 256 << 20
    """Of a round."""
    rate_limit_per_second: int | None = None
    slots: int = 2
    """Tasks of a round."""
    turns: Semaphore = field(default_factory=Semaphore)
    """Shared by all tables that send to this target: so many rounds at once."""


@dataclass(frozen=True)
class Fence:
    """Keeps those apart who may send."""

    require: Callable[[], None] = lambda: None
    """Asked before anything is sent or written down: raises where somebody else may write by now."""
    sends_until: Callable[[], float | None] = lambda: None
    """When the tasks of a round that begins now must have handed over all; None where they hold a lock."""


@dataclass
class FanOut:
    """One target of one bronze table, kept filled."""

    account: Account
    beginnings: Beginnings
    doubts: Doubts
    pace: Pace = field(default_factory=Pace)
    fence: Fence = field(default_factory=Fence)
    patience_seconds: float = float("inf")
    """How long what passes by itself may take to pass."""
    refused_seconds: float = 60
    """How long a target may refuse us that did not before: a new password or certificate is soon everywhere."""
    stopping: Event = field(default_factory=Event)
    progress: Progress = field(default_factory=Progress)
    delivered_version: int = -1
    """The version of bronze of which nothing was left to send, except of what is paused or halted."""
    _suspects: set[SourcePartition] = field(default_factory=set)
    """Partitions with a record that a broker refused."""
    _served: dict[SourcePartition, int] = field(default_factory=dict)
    """The round in which a partition last sent: those that share a target partition take turns."""
    _lock: Lock = field(default_factory=Lock)
    _next: Lock = field(default_factory=Lock)
    """Held by the one who waits for `_lock`."""
    _share: float = 1.0
    """Of the budget: a round that did not end before its lease did is too large."""
    _was_accepted: bool = False
    """The target has taken us once: where it refuses us now, a password, certificate or right was changed."""

    @property
    def target(self) -> str:
        return self.account.errand.target

    @property
    def missing(self) -> Missing:
        return self.beginnings.missing

    @property
    def certain(self) -> bool:
        """Is it known what the target has? A runner that stops in doubt has not stopped cleanly."""
        return self.doubts.settled or not self.account.book.positions

    def deliver(self) -> None:
        """Send all that bronze holds now and the ledger does not know, trying again after what passes by itself."""
        if not self._next.acquire(blocking=False):
            return  # somebody waits for the running round to end, and will find what we would
        with self._lock:
            self._next.release()
            backoff = Backoff(self.patience_seconds, self.refused_seconds, self.missing.patience_seconds)
            while not self.stopping.is_set():
                try:
                    done = self._deliver_once()
                    self._was_accepted = True
                    if done and not self._lingers():
                        return
                    backoff.reset()
                except (Transient, TopicMissing, AccessRefused) as fault:
                    if self._is_lasting(fault):
                        raise
                    self.progress.waiting = fault.what
                    self.stopping.wait(backoff.next_wait(fault))

    def _is_lasting(self, fault: MirrorlakeError) -> bool:
        """A target that never took us will not soon; and a topic that only an operator can make was waited for."""
        return isinstance(fault, TopicNeeded) or (isinstance(fault, AccessRefused) and not self._was_accepted)

    def _lingers(self) -> bool:
        """A single pass ends when missing topics are there, or patience is over; a long one is called again."""
        waits = bool(self.missing.needed) and self.missing.policy != "dead_letter"
        if waits and self.patience_seconds < float("inf"):
            self.stopping.wait(1)
            return True
        return False

    def await_end(self, timeout_seconds: float) -> bool:
        """Once asked to stop: until the round that runs has ended. False where it did not in time."""
        ended = self._lock.acquire(timeout=timeout_seconds)
        if ended:
            self._lock.release()
        return ended

    def _deliver_once(self) -> bool:
        """One round; true when nothing is left to send. Where it breaks off, whatever the cause, there is doubt."""
        try:
            return self._round()
        except FileNotFoundError as gone:
            self.doubts.settled = False
            # Compacted, and vacuumed at once: the newest version has its records elsewhere.
            raise DeliveryDoubt(f"a file of bronze is gone: {gone.filename}", "the table is looked at anew") from gone
        except BaseException:
            self.doubts.settled = False
            self._share = max(self._share / 2, LEAST_SHARE)
            raise

    def _round(self) -> bool:
        self.fence.require()
        version = self.account.bronze.refresh()
        if not self.doubts.settled:
            self.doubts.settle()
        self.beginnings()
        self.missing.require(self.patience_seconds)
        listed = self.beginnings.list_missing()
        self.account.learn_limits()
        due = self._due()
        if due:
            self._send(due)
        elif listed:
            self.delivered_version = version
        self.progress.waiting = self._said()
        return listed and not due

    def _send(self, due: Sequence[Due]) -> None:
        self.fence.require()
        begun, strictly = time.monotonic(), self.pace.rate_limit_per_second is not None
        tasks = plan_round(due, self._budget(due), self.pace.slots, strictly)
        outcomes = self._run(tasks)
        # If another runner sends by now, he has read the target and told the ledger of what we have sent.
        self.fence.require()
        sent = self._settle(tasks, outcomes)
        self._share = min(self._share * 2, 1.0)
        positions = self.account.book.positions.items()
        self.account.bronze.forget({source: position.next_offset for source, position in positions})
        self.progress.rounds += 1
        self._keep_rate(sent, time.monotonic() - begun)

    def _said(self) -> str:
        """What people should know of a target that gets the rest."""
        stopped = [f"stopped: {fault.what}" for fault in self.account.halted.values()]
        return "; ".join([*stopped, *filter(None, [self.missing.said()])])

    def _budget(self, due: Sequence[Due]) -> int:
        budget_bytes, rate = self.pace.budget_bytes, self.pace.rate_limit_per_second
        if rate is None:
            return budget_bytes if self.fence.sends_until() is None else int(budget_bytes * self._share)
        records = sum(s.records for item in due for s in item.segments)
        size = sum(s.bytes for item in due for s in item.segments)
        return max(1, min(budget_bytes, rate * size // max(1, records)))

    def _keep_rate(self, sent: int, took_seconds: float) -> None:
        if rate := self.pace.rate_limit_per_second:
            self.stopping.wait(max(0.0, sent / rate - took_seconds))

    def end(self, topic: str) -> bool:
        """Nothing more goes to this target topic; false while something is due or a round runs."""
        if not self._lock.acquire(blocking=False):
            return False
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            held = self.account.book.positions.items()
            ending = {source: position for source, position in held if position.target_partition.topic == topic}
            if due_segments(self.account.bronze.segments(), ending):
                return False
            self.account.write([self.account.end(source, position) for source, position in ending.items()])
            return True

    def _due(self) -> list[Due]:
        """What may go out now, one writer for each target partition."""
        account = self.account
        held, ends, going = account.due(), account.known_ends(), account.going()
        waiting = ((s, going[s].target_partition) for s in account.elders_first(held) if s in going)
        chosen = one_for_each_target(waiting, self.beginnings.paused, self._served)
        self._served.update(dict.fromkeys(chosen.values(), self.progress.rounds + 1))
        return [
            Due(
                source,
                replace(going[source], target_end=ends[target]),
                target in account.shared,
                tuple(held[source]),
                source in self._suspects,
            )
            for target, source in chosen.items()
        ]

    def _run(self, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        with self.pace.turns:
            errand = replace(self.account.errand, lease_ends_at=self.fence.sends_until())
            try:
                return self.account.bronze.send(errand, tasks)
            except Exception as error:
                self.doubts.abandoned_until = errand.lease_ends_at
                raise self._task_fault(error) from error

    def _task_fault(self, error: Exception) -> MirrorlakeError:
        """A worker that died is doubt; a worker that raised something we do not know is a fault of ours."""
        said = f"flow {self.account.errand.flow}, target {self.target}: a Spark task ended: {last_line(error)}"
        known = any(kind.__name__ in str(error) for kind in (DeliveryDoubt, FileNotFoundError))
        unknown = type(error).__name__ == "PythonException" and not known
        if unknown:
            return DataAtRisk(said, "see logs/spark.log below the storage root; run again to recover and go on")
        return DeliveryDoubt(said)

    def _settle(self, tasks: Sequence[Sequence[Slice]], outcomes: Sequence[Outcome]) -> int:
        """Write down what was delivered, first of all; then say what was not."""
        slices = {slice_.source: slice_ for task in tasks for slice_ in task}
        hit("settled")
        proven = [outcome for outcome in outcomes if not outcome.error]
        for outcome in proven:
            until = slices[outcome.source].until if outcome.until is None else outcome.until
            self.account.ledger.add(self.account.enter(outcome, until))
        self._require_taken(proven)
        cut_short = {outcome.source for outcome in proven if outcome.until is not None}
        if cut_short:
            self.account.ledger.flush()  # only it knows of the refusal, so nothing may follow before
        self._suspects -= {outcome.source for outcome in proven} - cut_short
        self._require_proven([outcome for outcome in outcomes if outcome.error])
        return sum(run.count for outcome in proven for run in outcome.runs)

    def _require_taken(self, proven: Sequence[Outcome]) -> None:
        """Where records that the target can never take stop it, none of them may have been met."""
        errand = self.account.errand
        for outcome in proven if not errand.dead_letters else ():
            for offset, size, reason in outcome.refused:
                limit = errand.limits.get(outcome.source.topic, errand.max_record_bytes)
                raise Undeliverable(
                    f"flow {errand.flow}, target {errand.target}: {outcome.source} offset {offset} "
                    f"({size} bytes) is {reason} ({limit} bytes)",
                    "raise the target's limit, or set on_undeliverable: dead_letter for the flow",
                )

    def _require_proven(self, failed: Sequence[Outcome]) -> None:
        """The first error that left a slice in doubt; of one that was refused it is not known yet for which record."""
        if not failed:
            return
        fault = from_text(failed[0].error)
        if isinstance(fault, RecordRefused):
            hit("record-refused")
            self._suspects |= {outcome.source for outcome in failed}
        raise fault


def last_line(error: Exception) -> str:
    """Of a traceback that travelled as text, the line that says what happened; Spark adds a stream's plan to it."""
    if isinstance(error, MirrorlakeError):
        return error.what
    said = str(error).partition("=== Streaming Query ===")[0]
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else type(error).__name__


@dataclass(frozen=True)
class Clock:
    """Where the stream of a bronze table is looked at, and how often."""

    identifier: str
    path: str | None
    """The table's folder; None where it is known by name only."""
    checkpoint: str
    name: str
    starting_version: int
    trigger_seconds: float


def start_fanout(spark: SparkSession, clock: Clock, fan_out: FanOut, failed: Callable[[Exception], None]) -> Any:
    """Follow the bronze table: every commit makes the fan-out look. Returns the StreamingQuery."""

    def on_commit(frame: DataFrame, _batch_id: int) -> None:
        fan_out.account.bronze.see(frame)
        fan_out.deliver()

    reader = (
        spark.readStream.format("delta")
        .option("startingVersion", clock.starting_version)
        .option("skipChangeCommits", "true")
    )
    stream = reader.load(clock.path) if clock.path else reader.table(clock.identifier)
    return (
        stream.writeStream.foreachBatch(reporting(on_commit, failed))
        .queryName(clock.name)
        .option("checkpointLocation", clock.checkpoint)
        .trigger(processingTime=f"{int(clock.trigger_seconds * 1000)} milliseconds")
        .start()
    )
