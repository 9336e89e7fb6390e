"""Delta -> Kafka: everything in bronze that lies after the ledger's position, in offset order.

The streaming query says when to look; the ledger says what to send. One round pins what bronze holds, plans
slices (files and offset ranges) onto tasks, sends them, and writes down the runs. After any doubt it recovers
before the next round.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event, Lock, Semaphore
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mirrorlake.errors import (
    AccessRefused,
    DataAtRisk,
    DeliveryDoubt,
    ExistingRecords,
    MirrorlakeError,
    RecordRefused,
    TargetDiverged,
    TopicMissing,
    TopicNeeded,
    TopicRemade,
    Transient,
    Undeliverable,
    from_text,
)
from mirrorlake.failpoints import hit
from mirrorlake.kafka import ABSENT_SECONDS, Cluster, TopicInfo, await_stable_ends, is_compacted
from mirrorlake.lease import EXPIRY, LEASE_SECONDS, await_no_producers
from mirrorlake.ledger import BASELINE, END, RELAY, REPAIR, SKIP, Book, Entry, LedgerWriter, Position, relay_entries
from mirrorlake.missing import MISSING_SECONDS, Missing, Places
from mirrorlake.produce import Errand, Outcome, Slice, record_bytes
from mirrorlake.readers import Bronze
from mirrorlake.records import Run, SourcePartition, TopicPartition, spans
from mirrorlake.recovery import DEAD_LETTER, Circumstances, Log, MissingRecords, Recovered, recover, set_aside
from mirrorlake.rounds import Due, due_segments, one_for_each_target, plan_round
from mirrorlake.streams import reporting
from mirrorlake.tables import Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STABLE_SECONDS = 2.0
LEAST_SHARE = 1 / 64
"""Of a round's budget, after rounds that took longer than their lease."""
LISTED_BATCHES = 16
"""Of records that are listed as dead letters, in a round: the others want to go on."""


@dataclass
class Progress:
    """What the runner shows of one target."""

    records: int = 0
    rounds: int = 0
    waiting: str = ""
    """Why nothing moves, empty while it does."""


@dataclass
class Outbox:
    """Where things that people must hear of are written."""

    incident: Callable[..., None]
    dead_letters: Callable[[Errand, SourcePartition, str, Sequence[tuple[int, int, str]]], None]
    listed: Callable[[str], dict[SourcePartition, int]] = lambda _target: {}
    """Target -> the offset after the last dead letter of each source partition."""


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


@dataclass
class FanOut:
    """One target of one bronze table."""

    errand: Errand
    bronze: Bronze
    cluster: Cluster
    ledger: LedgerWriter
    book: Book
    outbox: Outbox
    target_topics: Callable[[Mapping[str, int]], Places]
    """Of topics with so many partitions, which the source may have no more: made and grown as needed; without those
    that the target does not take."""
    limit_of: Callable[[str], int]
    """Target topic -> the largest record that it takes, in bytes."""
    paused: Callable[[str], bool]
    takes: Callable[[str], bool] = lambda _topic: True
    """Source topic -> whether it goes to this target at all."""
    begun: Callable[[], None] = lambda: None
    """Told whenever the ledger knows of the target's first record."""
    history: Callable[[], Sequence[Entry]] = list
    """All that the ledger says of this target: asked for where records landed that were not due."""
    require_lease: Callable[[], None] = lambda: None
    """Asked before anything is sent or written down: raises where somebody else may write by now."""
    sends_until: Callable[[], float | None] = lambda: None
    """When the tasks of a round that begins now must have handed over all; None where they hold a lock."""
    stopped_cleanly: bool = False
    """The runner before us ended in order, so nothing of it can still land."""
    existing_records: str = "stop"
    fold_partitions: bool = False
    """Where a target topic has fewer partitions than its source: a record goes to its partition modulo theirs."""
    mends: bool = False
    """Records that are missing before others are set aside for a repair; otherwise they stop the target."""
    recreate: bool = False
    """A target topic that was made anew is filled from bronze, by a run that has not sent to it yet."""
    latest: Callable[[SourcePartition], int] | None = None
    budget_bytes: int = 256 << 20
    rate_limit_per_second: int | None = None
    slots: int = 2
    turns: Semaphore = field(default_factory=Semaphore)
    """Shared by all tables that send to this target: so many rounds at once."""
    patience_seconds: float = float("inf")
    """How long what passes by itself may take to pass."""
    refused_seconds: float = 60
    """How long a target may refuse us that did not before: a new password or certificate is soon everywhere."""
    missing: Missing = field(default_factory=Missing)
    """Topics that only an operator can make."""
    stopping: Event = field(default_factory=Event)
    progress: Progress = field(default_factory=Progress)
    halted: dict[TopicPartition, TargetDiverged] = field(default_factory=dict)
    """Target partitions that do not hold what the ledger says. Nothing goes there until a repair; the others go on."""
    delivered_version: int = -1
    """The version of bronze of which nothing was left to send, except of what is paused."""
    _shared: set[TopicPartition] = field(default_factory=set)
    _suspects: set[SourcePartition] = field(default_factory=set)
    """Partitions with a record that a broker refused."""
    _touched: set[SourcePartition] = field(default_factory=set)
    """Partitions that the ledger knows of from this epoch: a new beginning needs the next one."""
    _served: dict[SourcePartition, int] = field(default_factory=dict)
    """The round in which a partition last sent: those that share a target partition take turns."""
    _came_at_ms: dict[SourcePartition, int] = field(default_factory=dict)
    """When bronze got them, of partitions that were due together with another incarnation of theirs."""
    _unbegun: dict[SourcePartition, int] = field(default_factory=dict)
    """Partitions of missing topics, and where bronze begins for them."""
    _listed: dict[SourcePartition, int] | None = None
    """Up to where their records are listed as dead letters; None before the first look."""
    _lock: Lock = field(default_factory=Lock)
    _next: Lock = field(default_factory=Lock)
    """Held by the one who waits for `_lock`."""
    _share: float = 1.0
    """Of the budget: a round that did not end before its lease did is too large."""
    _abandoned_until: float | None = None
    """Until then a task may still send that a round has left behind, and that holds no lock."""
    _recovered: bool = False
    _was_accepted: bool = False
    """The target has taken us once: where it refuses us now, a password, certificate or right was changed."""

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

    @property
    def certain(self) -> bool:
        """Is it known what the target has? A runner that stops in doubt has not stopped cleanly."""
        return self._recovered or not self.book.positions

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
            self._recovered = False
            # Compacted, and vacuumed at once: the newest version has its records elsewhere.
            raise DeliveryDoubt(f"a file of bronze is gone: {gone.filename}", "the table is looked at anew") from gone
        except BaseException:
            self._recovered = False
            self._share = max(self._share / 2, LEAST_SHARE)
            raise

    def _round(self) -> bool:
        self.require_lease()
        version = self.bronze.refresh()
        if not self._recovered:
            self.recover()
        self._begin_new_partitions()
        self.missing.require(self.patience_seconds)
        listed = self._list_missing()
        self._learn_limits()
        due = self._due()
        if not due:
            self.progress.waiting = self._said()
            self.delivered_version = version if listed else self.delivered_version
            return listed
        self.require_lease()
        begun = time.monotonic()
        tasks = plan_round(due, self._budget(due), self.slots, strictly=self.rate_limit_per_second is not None)
        outcomes = self._run(tasks)
        # If another runner sends by now, he has read the target and told the ledger of what we have sent.
        self.require_lease()
        sent = self._settle(tasks, outcomes)
        self._share = min(self._share * 2, 1.0)
        self.bronze.forget({source: position.next_offset for source, position in self.book.positions.items()})
        self.progress.rounds += 1
        self.progress.waiting = self._said()
        self._keep_rate(sent, time.monotonic() - begun)
        return False

    def _said(self) -> str:
        """What people should know of a target that gets the rest."""
        stopped = [f"stopped: {fault.what}" for fault in self.halted.values()]
        return "; ".join([*stopped, *filter(None, [self.missing.said()])])

    def _learn_limits(self) -> None:
        """Each target topic has its own limit; no batch may exceed the smallest, since librdkafka never splits one."""
        topics = {source.topic: p.target_partition.topic for source, p in self.book.positions.items()}
        new = {source: self.limit_of(topic) for source, topic in topics.items() if source not in self.errand.limits}
        if new:
            limits = {**self.errand.limits, **new}
            batch_bytes = min(int(self.errand.producer_config.get("batch.size", "1000000")), *limits.values())
            config = {**self.errand.producer_config, "batch.size": str(batch_bytes)}
            self.errand = replace(self.errand, limits=limits, producer_config=config)

    def _budget(self, due: Sequence[Due]) -> int:
        if self.rate_limit_per_second is None:
            return self.budget_bytes if self.sends_until() is None else int(self.budget_bytes * self._share)
        records = sum(s.records for item in due for s in item.segments)
        size = sum(s.bytes for item in due for s in item.segments)
        return max(1, min(self.budget_bytes, self.rate_limit_per_second * size // max(1, records)))

    def _keep_rate(self, sent: int, took_seconds: float) -> None:
        if self.rate_limit_per_second:
            self.stopping.wait(max(0.0, sent / self.rate_limit_per_second - took_seconds))

    def end(self, topic: str) -> bool:
        """Nothing more goes to this target topic; false while something is due or a round runs."""
        if not self._lock.acquire(blocking=False):
            return False
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            going = {s: p for s, p in self.book.positions.items() if p.target_partition.topic == topic}
            if due_segments(self.bronze.segments(), going):
                return False
            entries = [self._end(source, position) for source, position in going.items()]
            self.ledger.add(entries)
            self.ledger.flush()
            for entry in entries:
                self.book.apply(entry)
            return True

    def _end(self, source: SourcePartition, position: Position) -> Entry:
        at, end = position.next_offset, position.target_end
        return Entry(
            self.errand.flow, self.errand.target, END, self.errand.epoch, source, at, at - 1,
            position.target_partition, position.target_topic_id, None, 0, end, "the source topic was deleted",
        )  # fmt: skip

    def behind(self) -> int:
        """How many records of bronze are still to be sent, as far as was looked."""
        held = due_segments(self.bronze.segments(), self.book.positions)
        return sum(
            min(segment.records, segment.last_offset + 1 - self.book.positions[source].next_offset)
            for source, segments in held.items()
            for segment in segments
        )

    def _due(self) -> list[Due]:
        """What may go out now, one writer for each target partition."""
        held, ends = due_segments(self.bronze.segments(), self.book.positions), self._known_ends()
        waiting = ((source, self.book.positions[source].target_partition) for source in self._elders_first(held))
        going = ((source, target) for source, target in waiting if target not in self.halted)
        chosen = one_for_each_target(going, self.paused, self._served)
        self._served.update(dict.fromkeys(chosen.values(), self.progress.rounds + 1))
        return [
            Due(
                source,
                replace(self.book.positions[source], target_end=ends[target]),
                target in self._shared,
                tuple(held[source]),
                source in self._suspects,
            )
            for target, source in chosen.items()
        ]

    def _elders_first(self, held: Mapping[SourcePartition, Sequence[Segment]]) -> list[SourcePartition]:
        """Incarnations of a topic as bronze got them: neither their ids nor their offsets say which is the elder."""
        incarnations = Counter((source.topic, source.partition) for source in held)
        for source, segments in held.items():
            if incarnations[source.topic, source.partition] > 1 and source not in self._came_at_ms:
                self._came_at_ms[source] = self.bronze.came_at_ms(segments[0])
        begun = (source for source in self.book.positions if source in held)
        return sorted(begun, key=lambda source: self._came_at_ms.get(source, 0))

    def _known_ends(self) -> dict[TopicPartition, int]:
        """Where each target partition ends, as far as anybody who writes to it knows."""
        ends: dict[TopicPartition, int] = {}
        for position in self.book.positions.values():
            target = position.target_partition
            ends[target] = max(ends.get(target, 0), position.target_end)
        return ends

    def _run(self, tasks: Sequence[Sequence[Slice]]) -> list[Outcome]:
        with self.turns:
            errand = replace(self.errand, lease_ends_at=self.sends_until())
            try:
                return self.bronze.send(errand, tasks)
            except Exception as error:
                self._abandoned_until = errand.lease_ends_at
                raise self._task_fault(error) from error

    def _task_fault(self, error: Exception) -> MirrorlakeError:
        """A worker that died is doubt; a worker that raised something we do not know is a fault of ours."""
        said = f"flow {self.errand.flow}, target {self.errand.target}: a Spark task ended: {last_line(error)}"
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
            self._record(outcome, slices[outcome.source].until if outcome.until is None else outcome.until)
        refused = next((o for o in proven if o.refused and not self.errand.dead_letters), None)
        if refused:
            raise self._undeliverable(refused)
        cut_short = {outcome.source for outcome in proven if outcome.until is not None}
        if cut_short:
            self.ledger.flush()  # only it knows of the refusal, so nothing may follow before
        self._suspects -= {outcome.source for outcome in proven} - cut_short
        failed = [outcome for outcome in outcomes if outcome.error]
        if failed:
            fault = from_text(failed[0].error)
            if isinstance(fault, RecordRefused):
                hit("record-refused")
                self._suspects |= {outcome.source for outcome in failed}
            raise fault
        return sum(run.count for outcome in proven for run in outcome.runs)

    def _record(self, outcome: Outcome, until: int | None = None) -> None:
        self.ledger.add(self._entered(outcome, until))

    def _entered(self, outcome: Outcome, until: int | None = None) -> list[Entry]:
        """What the ledger is to hear of an outcome, entered in our own book."""
        position = self.book.positions[outcome.source]
        self._report(outcome, position)
        entries = self._entries(outcome, position)
        self._touched.add(outcome.source)
        for entry in entries:
            self.book.apply(entry)
        if until is not None and (self.errand.dead_letters or not outcome.refused):
            position.next_offset = max(position.next_offset, until)
        position.target_end = max(position.target_end, outcome.target_end)
        self.progress.records += sum(run.count for run in outcome.runs)
        return entries

    def _report(self, outcome: Outcome, position: Position) -> None:
        """Before the ledger is told: what a kill makes us list twice does less harm than what is never listed."""
        if outcome.refused and self.errand.dead_letters:
            self.outbox.dead_letters(self.errand, outcome.source, position.target_partition.topic, outcome.refused)
        for first, count in outcome.timeless:
            self.outbox.incident(
                "timestamp_not_kept", self.errand.target, outcome.source, first, first + count - 1,
                "timestamp 0 or less: librdkafka sends the time of sending instead",
            )  # fmt: skip

    def _entries(self, outcome: Outcome, position: Position) -> list[Entry]:
        template = Entry(
            self.errand.flow, self.errand.target, RELAY, self.errand.epoch, outcome.source, 0, 0,
            position.target_partition, position.target_topic_id, None, 0, outcome.target_end,
        )  # fmt: skip
        left_out = [*outcome.skipped]
        if self.errand.dead_letters:
            left_out += [(offset, 1, f"{DEAD_LETTER}: {reason}") for offset, _, reason in outcome.refused]
        skips = [
            replace(
                template,
                kind=SKIP,
                source_first=first,
                source_last=first + count - 1,
                count=count,
                reason=why,
            )
            for first, count, why in joined(left_out)
        ]
        return relay_entries(template, outcome.runs, outcome.target_end) + skips

    def _undeliverable(self, outcome: Outcome) -> Undeliverable:
        offset, size, reason = outcome.refused[0]
        limit = self.errand.limits.get(outcome.source.topic, self.errand.max_record_bytes)
        return Undeliverable(
            f"flow {self.errand.flow}, target {self.errand.target}: {outcome.source} offset {offset} "
            f"({size} bytes) is {reason} ({limit} bytes)",
            "raise the target's limit, or set on_undeliverable: dead_letter for the flow",
        )

    # --- beginnings ---

    def _begin_new_partitions(self) -> None:
        """A baseline for every source partition seen for the first time, committed before its first record goes out."""
        firsts = self._unknown()
        if not self.missing.is_due({source.topic for source in firsts}):
            return
        entries = self._baselines(firsts)
        if entries:
            self.ledger.add(entries)
            self.ledger.flush()
            self.begun()
            hit("baseline-committed")
        for entry in entries:
            self.book.apply(entry)
            self._touched.add(entry.source)

    def _unknown(self) -> dict[SourcePartition, int]:
        """Source partitions that the ledger does not know, and where bronze begins for them."""
        firsts: dict[SourcePartition, int] = {}
        for segment in self.bronze.segments():
            source = segment.source
            known = source in self.book.positions or source in self.book.ended
            if not known and self.takes(source.topic) and not self.paused(source.topic):
                firsts[source] = min(firsts.get(source, segment.first_offset), segment.first_offset)
        return firsts

    def _baselines(self, firsts: Mapping[SourcePartition, int]) -> list[Entry]:
        asked: dict[str, int] = {}
        for source in firsts:
            asked[source.topic] = max(asked.get(source.topic, 0), source.partition + 1)
        found = self.target_topics(asked)
        topics = found.ready
        self.missing.note({topic: need for topic, need in found.needed.items() if topic in asked})
        self._unbegun = {source: first for source, first in firsts.items() if source.topic in found.needed}
        places = {
            source: place
            for source in sorted(firsts)
            if source.topic in topics and (place := self._place(source, topics[source.topic])) not in self.halted
        }
        ends = self.cluster.log_ends(places.values())
        return [
            self._baseline(source, target, topics[source.topic].id, firsts[source], ends[target])
            for source, target in places.items()
        ]

    def _list_missing(self) -> bool:
        """True when all that bronze holds of missing topics is listed as dead letters, where the policy wants that."""
        if self.missing.policy != "dead_letter" or not self.missing.needed:
            return True
        if self._listed is None:
            self._listed = self.outbox.listed(self.errand.target)
        for source, first in self._unbegun.items():
            need = self.missing.needed[source.topic]
            left = self._read_bronze(source, max(first, self._listed.get(source, 0)), None)
            for batch in islice((batch for batch in left if batch.num_rows), LISTED_BATCHES):
                refused = [(offset, size, need.why) for offset, size in sizes(batch)]
                self.outbox.dead_letters(self.errand, source, need.topic, refused)
                self._listed[source] = refused[-1][0] + 1
        return all(self._listed.get(source, 0) >= self._bronze_end(source) for source in self._unbegun)

    def _place(self, source: SourcePartition, topic: TopicInfo) -> TopicPartition:
        """For good: the ledger keeps it, whatever becomes of the number of partitions."""
        folded = self.fold_partitions and source.partition >= topic.partitions
        return TopicPartition(topic.name, source.partition % topic.partitions if folded else source.partition)

    def _baseline(self, source: SourcePartition, target: TopicPartition, topic_id: str, first: int, end: int) -> Entry:
        known = self._known_ends().get(target)
        if known is None and end:
            first = self._beside_existing(source, target, first, end)
        elif known is not None and known != end and not self._may_be_shared(target):
            raise DeliveryDoubt(f"{target} ends at {end}, expected {known}", "recovery reads what is there and goes on")
        return Entry(
            self.errand.flow, self.errand.target, BASELINE, self.errand.epoch, source, first, first - 1,
            target, topic_id, None, 0, end,
        )  # fmt: skip

    def _beside_existing(self, source: SourcePartition, target: TopicPartition, first: int, end: int) -> int:
        if self.existing_records == "stop":
            raise ExistingRecords(
                f"flow {self.errand.flow}: {target} on {self.errand.target} ends at {end}, which the ledger does "
                "not know of; sending would repeat what another replicator may have sent",
                "choose for the target: existing_records: latest (begin at the newest), existing_records: append (send "
                f"all the same), or `mirrorlake adopt --target {self.errand.target}` (take over MM2's positions)",
            )
        self._shared.add(target)
        if self.existing_records == "latest" and self.latest is not None:
            return max(first, self.latest(source))
        return first

    # --- recovery ---

    def recover(self) -> None:
        """Compare the ledger with the target's logs; write down what landed unrecorded."""
        if self.errand.lock:
            # A failed round's other tasks may still be sending.
            await_no_producers(Path(self.errand.lock), 60)
        elif self._abandoned_until is not None:
            self.stopping.wait(max(0.0, self._abandoned_until - time.time() + LEASE_SECONDS * EXPIRY))
            self._abandoned_until = None
        if self.book.positions:
            self._check_topic_ids()
            self._learn_limits()  # what was too large was left out, and is no hole
            for found in self._recover_all():
                hit("tail-read")
                self._take(found)
            hit("tail-noted")
            self.ledger.flush()
            self._require_some()
        self._recovered = True

    def _require_some(self) -> None:
        """Where nothing is left that could go on, the target stops; and whoever mends is told at once."""
        places = {position.target_partition for position in self.book.positions.values()}
        if self.halted and (self.mends or places <= self.halted.keys()):
            raise next(iter(self.halted.values()))

    def _check_topic_ids(self) -> None:
        asked = {position.target_partition.topic for position in self._going().values()}
        seen = self.cluster.describe_patiently(asked, ABSENT_SECONDS)
        remade = {source: position for source, position in self._going().items() if is_another_topic(position, seen)}
        if self.recreate and not remade.keys() & self._touched:
            return self._begin_anew(remade)
        for source, position in remade.items():
            fault = self._remade(position, seen)
            self._halt({source: position}, position.target_partition, fault)
            if isinstance(fault, TopicRemade):
                raise fault  # the next epoch fills it

    def _going(self) -> dict[SourcePartition, Position]:
        """Those that are not halted."""
        return {source: at for source, at in self.book.positions.items() if at.target_partition not in self.halted}

    def _remade(self, position: Position, seen: Mapping[str, TopicInfo]) -> TargetDiverged:
        name, target = position.target_partition.topic, self.errand.target
        now = seen[name].id if name in seen else "(no such topic)"
        kind = TopicRemade if self.recreate else TargetDiverged
        return kind(
            f"flow {self.errand.flow}: topic {name} on {target} was made anew or deleted: "
            f"its id was {position.target_topic_id}, now {now}",
            f"`mirrorlake repair --target {target}` fills it from bronze, on_topic_deleted: recreate always does; "
            "or remove the target",
        )

    def _begin_anew(self, remade: Mapping[SourcePartition, Position]) -> None:
        """Everything that bronze has goes to the new topic; what the old one held is an incident."""
        if not remade:
            return
        for source, position in remade.items():
            del self.book.positions[source]
            self.outbox.incident(
                "target_topic_remade", self.errand.target, source, 0, position.next_offset - 1,
                f"{position.target_partition.topic} was deleted or made anew: filled from bronze",
            )  # fmt: skip
        self.bronze.reindex()  # what was delivered to the old topic was forgotten
        self._begin_new_partitions()

    def doubt(self, seen: Mapping[str, TopicInfo]) -> bool:
        """Look at the target before the next round, if its topics are not those that we fill."""
        known = [position for position in self._going().values() if position.target_partition.topic in seen]
        doubtful = any(is_another_topic(position, seen) for position in known)
        if doubtful:  # and nothing else: a round may be finding doubts of its own meanwhile
            self._recovered = False
        return doubtful

    def _recover_all(self) -> Iterator[Recovered]:
        """Of each target partition that does not end where the ledger says; one that diverged is halted instead."""
        by_target: dict[TopicPartition, dict[SourcePartition, Position]] = defaultdict(dict)
        for source, position in self._going().items():
            by_target[position.target_partition][source] = position
        known, ends = self._known_ends(), self._stable_ends(by_target)
        doubtful = [target for target in by_target if ends[target] != known[target]]
        starts = self.cluster.log_starts(doubtful)
        for target in doubtful:
            log = Log(starts[target], ends[target])
            if found := self._recover_one(target, by_target[target], log):
                yield found

    def _recover_one(
        self, target: TopicPartition, held: Mapping[SourcePartition, Position], log: Log
    ) -> Recovered | None:
        compacted = partial(is_compacted, self.cluster, target.topic)
        known = Circumstances(self._may_be_shared(target), compacted, self._waiting, self.mends)
        try:
            return recover(self.errand, self.cluster, target, self._in_turn(held), log, self._read_bronze, known)
        except TargetDiverged as fault:
            self._halt(held, target, fault)
            return None

    def _halt(self, held: Mapping[SourcePartition, Position], target: TopicPartition, fault: TargetDiverged) -> None:
        """With an incident: of records that are missing their ranges, otherwise from where on nothing goes out."""
        ranges = [(source, position.next_offset, 1) for source, position in held.items()]
        if isinstance(fault, MissingRecords):
            ranges = [(fault.source, first, count) for first, count in spans(fault.offsets)]
        for source, first, count in ranges:
            self.outbox.incident("target_diverged", self.errand.target, source, first, first + count - 1, fault.what)
        self.halted[target] = fault

    def _in_turn(self, held: Mapping[SourcePartition, Position]) -> dict[SourcePartition, Position]:
        """Those that have something to send, in the order in which they do; the others are at their end."""
        due = self._elders_first(due_segments(self.bronze.segments(), held))
        return {source: held[source] for source in (*due, *held)}

    def _waiting(self, source: SourcePartition) -> dict[int, str]:
        return set_aside(entry for entry in self.history() if entry.source == source)

    def _may_be_shared(self, target: TopicPartition) -> bool:
        return target in self._shared or self.existing_records != "stop"

    def _stable_ends(
        self, held: Mapping[TopicPartition, Mapping[SourcePartition, Position]]
    ) -> dict[TopicPartition, int]:
        """After a clean stop the ends are where the ledger says; otherwise bytes of a dead process may still land."""
        known = {target: end for target, end in self._known_ends().items() if target in held}
        clean, self.stopped_cleanly = self.stopped_cleanly, False
        if clean and self.cluster.log_ends(held) == known:
            return known
        # Others may never stop writing: there our header tells the records apart, and a while is all we can wait.
        busy = {target for target in held if self.errand.provenance and self._may_be_shared(target)}
        ours = held.keys() - busy
        ends = await_stable_ends(self.cluster, ours, STABLE_SECONDS, 60.0, time.monotonic, time.sleep)
        return ends | self.cluster.log_ends(busy)

    def _read_bronze(self, source: SourcePartition, first: int, until: int | None) -> Iterable[pa.RecordBatch]:
        return self.bronze.read(source, first, self._bronze_end(source) if until is None else until)

    def _bronze_end(self, source: SourcePartition) -> int:
        return max(
            (segment.last_offset + 1 for segment in self.bronze.segments() if segment.source == source), default=0
        )

    def _take(self, found: Recovered) -> None:
        for source, repeated in found.duplicates.items():
            for first, count in repeated:
                self.outbox.incident(
                    "duplicate", self.errand.target, source, first, first + count - 1,
                    f"landed again in {found.target} before offset {found.target_end}",
                )  # fmt: skip
        entries = [entry for source, runs in found.repaired.items() for entry in self._repairs(source, runs, found)]
        entries += [entry for outcome in found.outcomes for entry in self._entered(outcome)]
        # In one commit: each says that the log is known to its end, so none may be there without the others.
        self.ledger.add(entries)
        if found.foreign:
            self._shared.add(found.target)
        for position in self.book.positions.values():
            if position.target_partition == found.target:
                position.target_end = max(position.target_end, found.target_end)

    def _repairs(self, source: SourcePartition, runs: Sequence[Run], found: Recovered) -> list[Entry]:
        """What a repair sent that did not live to say so."""
        template = Entry(
            self.errand.flow, self.errand.target, REPAIR, self.errand.epoch, source, 0, 0, found.target,
            self.book.positions[source].target_topic_id, None, 0, found.target_end, DEAD_LETTER,
        )  # fmt: skip
        return relay_entries(template, runs, found.target_end)


def is_another_topic(position: Position, seen: Mapping[str, TopicInfo]) -> bool:
    """Is the target topic gone, or not the one that we filled? Brokers without topic ids cannot tell."""
    topic = seen.get(position.target_partition.topic)
    return bool(position.target_topic_id and (topic is None or (topic.id and topic.id != position.target_topic_id)))


def joined(left_out: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Neighbouring records left out for the same reason as one item."""
    items: list[tuple[int, int, str]] = []
    for first, count, reason in sorted(left_out):
        if items and items[-1][2] == reason and items[-1][0] + items[-1][1] == first:
            items[-1] = (items[-1][0], items[-1][1] + count, reason)
        else:
            items.append((first, count, reason))
    return items


def sizes(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """(Offset, bytes as a broker counts them) of each record."""
    columns = (batch[name].to_pylist() for name in ("offset", "key", "value", "headers"))
    return [
        (offset, record_bytes(key, value, [(h["key"], h["value"]) for h in headers or []]))
        for offset, key, value, headers in zip(*columns, strict=True)
    ]


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
        fan_out.bronze.see(frame)
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
