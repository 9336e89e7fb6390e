"""Arrow -> Kafka, in the executors.

A task gets slices: a source partition, a range of its offsets, and where they go. It sends them in offset order
through one idempotent producer that the worker process keeps, then proves each slice by the log's end:
after - before = sent. Where that does not hold it reads back what it wrote. Whatever remains in doubt is said, never
guessed: the driver recovers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer

from mirrorlake.clusters import resolved
from mirrorlake.errors import DeliveryDoubt, MirrorlakeError, RecordRefused
from mirrorlake.failpoints import hit
from mirrorlake.kafka import QUIET, Cluster, no_collection, translate
from mirrorlake.lease import LEASE_SECONDS, SENDING, producing
from mirrorlake.provenance import (
    ENCODED_BYTES,
    HEADER,
    Provenance,
    decode,
    digest,
    encode_front,
    pack_offset,
    topic_id_bytes,
)
from mirrorlake.records import Run, SourcePartition, TopicPartition, runs_from_pairs, spans
from mirrorlake.tables import Segment

Headers = list[tuple[str, bytes | None]]
Row = tuple[bytes | None, bytes | None, int, Headers]
"""Value, key, timestamp in milliseconds, headers."""
TOO_LARGE = "larger than the target takes"


@dataclass(frozen=True)
class Errand:
    """What all slices of one flow and target have in common. Travels to the executors: references, no secrets."""

    flow: str
    target: str
    epoch: int
    producer_config: Mapping[str, str]
    client_config: Mapping[str, str]
    lock: str | None
    provenance: bool
    source_cluster_id: str
    target_cluster_id: str
    max_hops: int
    max_record_bytes: int
    dead_letters: bool
    delivery_timeout_seconds: float
    limits: Mapping[str, int] = field(default_factory=dict)
    """Source topic -> the largest record that its target topic takes, where that is known."""
    lease_ends_at: float | None = None
    """Seconds since 1970 after which nothing may be handed over; None where a lock says who sends. See `Term`."""


@dataclass(frozen=True)
class Slice:
    """A range of one source partition, where it goes, and where that log should end now."""

    source: SourcePartition
    first: int
    until: int
    target: TopicPartition
    expected_end: int
    shared: bool
    """Others write to the target partition too, so its end proves nothing."""
    segments: tuple[Segment, ...] = ()
    carefully: bool = False
    """A record in here was refused: send them one by one, so that it is known which."""


@dataclass
class Outcome:
    """What became of a slice."""

    source: SourcePartition
    runs: list[Run] = field(default_factory=list)
    skipped: list[tuple[int, int, str]] = field(default_factory=list)
    """(first offset, count, reason) of records left out on purpose."""
    refused: list[tuple[int, int, str]] = field(default_factory=list)
    """(offset, bytes, reason) of records that the target can never take."""
    timeless: list[tuple[int, int]] = field(default_factory=list)
    """(first offset, count) of records whose timestamp librdkafka cannot carry."""
    target_end: int = -1
    until: int | None = None
    """Where it ended before its time: after a record that the broker refused, or because a lease ends soon."""
    error: str = ""
    """Name and message of the error that left the slice in doubt."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(text: Mapping[str, Any]) -> Outcome:
        values = dict(text)
        values["source"] = SourcePartition(*values["source"])
        values["runs"] = [Run(**run) for run in values["runs"]]
        for name in ("skipped", "refused", "timeless"):
            values[name] = [tuple(item) for item in values[name]]
        return Outcome(**values)


# --- what goes out ---


@dataclass
class Outgoing:
    """The columns of one batch as Python values, and what to do with each row."""

    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]
    verdicts: dict[int, str]
    """Row -> why it is left out; rows not named go out."""
    oversize: dict[int, int]
    """Row -> its size, too large for the target."""

    def goes_out(self, row: int) -> bool:
        return row not in self.verdicts and row not in self.oversize

    def only(self, row: int) -> Outgoing:
        return Outgoing(
            [self.offsets[row]],
            [self.timestamps_ms[row]],
            [self.keys[row]],
            [self.values[row]],
            [self.headers[row]],
            {0: self.verdicts[row]} if row in self.verdicts else {},
            {0: self.oversize[row]} if row in self.oversize else {},
        )

    def before(self, row: int) -> Outgoing:
        """The rows before one: what a flow that stops at a refused record still sends."""
        return Outgoing(
            self.offsets[:row],
            self.timestamps_ms[:row],
            self.keys[:row],
            self.values[:row],
            self.headers[:row],
            {at: why for at, why in self.verdicts.items() if at < row},
            {},
        )


class Shaper:
    """Turns bronze rows of one slice into what the target gets. Sender and recovery share it, so they always agree."""

    def __init__(self, errand: Errand, source: SourcePartition) -> None:
        self.errand = errand
        self.source = source
        self._flow = digest(errand.flow)
        self._here = digest(errand.source_cluster_id)
        self._there = digest(errand.target_cluster_id)
        self._topic_id = topic_id_bytes(source.topic_id)
        self._front = encode_front(self._flow, self._here, self._topic_id, source.partition, 1, errand.epoch)

    def shape(self, batch: pa.RecordBatch) -> Outgoing:
        offsets = batch["offset"].to_pylist()
        headers = header_lists(batch["headers"])
        verdicts: dict[int, str] = {}
        if self.errand.provenance:
            headers = self._stamp(offsets, headers, _has_provenance(batch["headers"]), verdicts)
        timestamps = batch["timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        outgoing = Outgoing(
            offsets, timestamps.to_pylist(), batch["key"].to_pylist(), batch["value"].to_pylist(), headers, verdicts, {}
        )  # fmt: skip
        outgoing.oversize = self._oversize(batch, outgoing)
        return outgoing

    def _stamp(
        self, offsets: list[int], headers: list[Headers], relayed: bool, verdicts: dict[int, str]
    ) -> list[Headers]:
        front = self._front
        if not relayed:
            return [
                [*listed, (HEADER, front + pack_offset(offset))]
                for offset, listed in zip(offsets, headers, strict=True)
            ]
        return [
            self._stamp_one(row, offset, listed, verdicts)
            for row, (offset, listed) in enumerate(zip(offsets, headers, strict=True))
        ]

    def _stamp_one(self, row: int, offset: int, listed: Headers, verdicts: dict[int, str]) -> Headers:
        """A record that was relayed before keeps its origin, counts one hop more, and may have come far enough."""
        came = next((found for key, value in reversed(listed) if key == HEADER and (found := decode(value))), None)
        if came is None:
            return [*listed, (HEADER, self._front + pack_offset(offset))]
        if came.origin == self._there:
            verdicts[row] = "loop: the record comes from the target"
        elif came.hops + 1 > self.errand.max_hops:
            verdicts[row] = f"hops: the record has made {came.hops} of {self.errand.max_hops}"
        stamp = Provenance(
            self._flow, came.origin, self._topic_id, self.source.partition, offset,
            came.origin_offset, came.hops + 1, self.errand.epoch,
        )  # fmt: skip
        others = [(key, value) for key, value in listed if key != HEADER]
        return [*others, (HEADER, stamp.encode())]

    def _oversize(self, batch: pa.RecordBatch, outgoing: Outgoing) -> dict[int, int]:
        limit = self.errand.limits.get(self.source.topic, self.errand.max_record_bytes)
        if most_bytes(batch) <= limit:
            return {}
        codec = self.errand.producer_config.get("compression.type", "none")
        sizes = (
            sent_bytes(key, value, headers, limit, codec)
            for key, value, headers in zip(outgoing.keys, outgoing.values, outgoing.headers, strict=True)
        )
        return {row: size for row, size in enumerate(sizes) if size > limit and row not in outgoing.verdicts}


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """A record alone in its batch, as brokers count it: 61 B of batch, about 21 B of record, and the framing."""
    named = sum(len(name.encode()) + len(content or b"") + FRAMING_BYTES for name, content in headers)
    return 61 + 21 + len(key or b"") + len(value or b"") + named


FRAMING_BYTES = 10
"""What the lengths of a header's name and content take, at most."""


def most_bytes(batch: pa.RecordBatch) -> int:
    """No record of the batch is larger with our header: from the longest of each field, without touching a record."""
    plain = record_bytes(None, None, []) + ENCODED_BYTES + FRAMING_BYTES
    pairs = batch["headers"].flatten()
    a_header = _longest(pairs.field("key")) + _longest(pairs.field("value")) + FRAMING_BYTES
    headers = (pc.max(pc.list_value_length(batch["headers"])).as_py() or 0) * a_header
    return plain + _longest(batch["key"]) + _longest(batch["value"]) + headers


def _longest(texts: pa.Array) -> int:
    return pc.max(pc.binary_length(texts)).as_py() or 0


def sent_bytes(key: bytes | None, value: bytes | None, headers: Headers, limit: int, codec: str) -> int:
    """Brokers count what arrives, so a record that is too large as it is may still fit compressed."""
    plain = record_bytes(key, value, headers)
    if plain <= limit or codec == "none":
        return plain
    content = b"".join([key or b"", value or b"", *(text for _, text in headers if text)])
    return record_bytes(None, None, []) + len(pa.compress(content, codec, asbytes=True))


def header_lists(column: pa.Array) -> list[Headers]:
    """Each row's headers; the child arrays are taken out once, since to_pylist of structs is slow."""
    if column.null_count == len(column):
        return [[] for _ in range(len(column))]
    flat = column.values
    names, contents = flat.field("key").to_pylist(), flat.field("value").to_pylist()
    pairs = list(zip(names, contents, strict=True))
    ends = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    return [pairs[ends[row] : ends[row + 1]] if valid[row] else [] for row in range(len(column))]


def _has_provenance(column: pa.Array) -> bool:
    if column.null_count == len(column):
        return False
    return bool(pc.any(pc.equal(column.flatten().field("key"), HEADER)).as_py())


# --- sending ---


CUT_SECONDS = 1.5
"""A connection that was cut carries records again by then; a broker that died does not serve again by then."""
LEASED_BYTES = 4 << 20
"""Under a lease no more than this waits in the producer: a slow target must take it before it expires."""


class Sender:
    """One producer and one admin client, kept by the worker process between batches."""

    def __init__(self, errand: Errand) -> None:
        config = resolved(errand.producer_config)
        self.cluster = Cluster(errand.target, resolved(errand.client_config))
        self.failure: KafkaError | None = None
        self.failed_topic = ""
        self._cut = False
        self._waiting_bytes = 0
        self.met: set[TopicPartition] = set()
        """Partitions that took a record of this producer: they know it."""
        self.producer = Producer({**config, **QUIET, "on_delivery": self._on_delivery, "error_cb": self._on_error})

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        # Only errors are reported. The first is the cause, those after it are its consequence.
        if self.failure is None:
            self.failure, self.failed_topic = error, str(message.topic())

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self.failure = error if self.failure is None else self.failure
        self._cut = self._cut or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)

    def begin(self, ends: Mapping[TopicPartition, int]) -> None:
        """What was cut while nothing was on its way concerns nobody; a log that is empty knows no producer."""
        self.producer.poll(0)
        self._cut = False
        self.met -= {target for target, end in ends.items() if end == 0}

    def send(self, target: TopicPartition, outgoing: Outgoing, deadline: Deadline) -> None:
        """Hand the rows that go out to the producer; the first to a partition goes alone.

        A broker takes any sequence number from a producer that is new to a partition. Where it refuses the first
        request, as it may on a topic that was just made, and takes the one behind it, librdkafka reports the records of
        both as delivered.
        """
        left_out = outgoing.verdicts.keys() | outgoing.oversize.keys()
        rows = zip(outgoing.values, outgoing.keys, outgoing.timestamps_ms, outgoing.headers, strict=True)
        going = (row for number, row in enumerate(rows) if number not in left_out) if left_out else iter(rows)
        if target not in self.met and (first := list(islice(going, 1))):
            self._hand_over(target, first, deadline)
            self.flush(deadline)
            self.met.add(target)
            hit("first-acknowledged")
        self._hand_over(target, going, deadline)
        self._raise_failure()
        self.producer.poll(0)
        if self._cut:
            self.flush(deadline)

    def _hand_over(self, target: TopicPartition, rows: Iterable[Row], deadline: Deadline) -> None:
        (topic, partition), produce = target, self.producer.produce
        for value, key, timestamp_ms, headers in self._while_leased(rows, deadline) if deadline.term.ends else rows:
            while True:
                try:
                    produce(topic, value, key, partition, timestamp=timestamp_ms, headers=headers)
                    break
                except BufferError:
                    self._make_room(deadline)

    def _while_leased(self, rows: Iterable[Row], deadline: Deadline) -> Iterator[Row]:
        """Asked for each record: a process that stood still goes on in the middle of a batch."""
        for row in rows:
            self._waiting_bytes += len(row[0] or b"")
            if self._waiting_bytes > LEASED_BYTES:
                self.flush(deadline)
            deadline.term.require()
            yield row

    def _make_room(self, deadline: Deadline) -> None:
        if self._cut:
            return self.flush(deadline)
        deadline.term.require()
        waiting = len(self.producer)
        self.producer.poll(0.05)
        self._raise_failure()
        deadline.progress(len(self.producer) < waiting)

    def flush(self, deadline: Deadline) -> None:
        """Wait for all acknowledgements; not for long after a connection was cut.

        librdkafka would send again whenever the broker is back. One that died may have forgotten us: brokers that crash
        forget producers whose newest records are a day old, and then take the same records twice.
        """
        waiting, patience = len(self.producer), deadline
        while left := self.producer.flush(0.2):
            deadline.term.require()
            self._raise_failure()
            if self._cut and patience is deadline:
                patience = Deadline(CUT_SECONDS)
            patience.progress(left < waiting)
            waiting = left
        self._raise_failure()
        self._cut, self._waiting_bytes = False, 0

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise KafkaException(self.failure, self.failed_topic)

    def discard(self) -> None:
        """Nothing that still waits may be sent later: after doubt, only recovery decides what goes."""
        self.producer.purge(in_queue=True, in_flight=True, blocking=True)


class Term:
    """For how long a task may send where a lease is the only fence: it ends by itself, and then another may send.

    The driver says when by its own clock, since no other is known on both machines. Assumed is that theirs differ by
    less than what `lease.SENDING` and `lease.EXPIRY` leave over, ten seconds of a minute. Of a clock that is further
    behind, or is set back meanwhile, the time since we began is believed, which is never longer than a sign lasts.
    """

    def __init__(
        self,
        ends_at: float | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ends = ends_at is not None
        self._ends_at = float("inf") if ends_at is None else ends_at
        self._wall, self._clock, self._begun = wall, clock, clock()
        self._seconds = min(self._ends_at - wall(), LEASE_SECONDS * SENDING) if self.ends else float("inf")

    def require(self) -> None:
        """Before a record is handed over, and while one is waited for."""
        if self.ends and (self._clock() - self._begun > self._seconds or self._wall() > self._ends_at):
            raise DeliveryDoubt(
                "the lease was not renewed before the records were sent: another runner may send by now",
                "sending goes on if it still is ours; if this comes again, compare the clocks of driver and workers",
            )

    def is_half_over(self) -> bool:
        """Then a task begins nothing more: the rest is for acknowledgements, so that it does not end in doubt."""
        return self._clock() - self._begun > self._seconds / 2


class Deadline:
    """Time without progress, not time altogether: a slow target may take long, a dead one not."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, term: Term | None = None) -> None:
        self.term = term or Term()
        self._seconds = seconds
        self._clock = clock
        self._until = clock() + seconds

    def progress(self, made: bool) -> None:
        if made:
            self._until = self._clock() + self._seconds
        elif self._clock() > self._until:
            raise DeliveryDoubt(
                f"the target acknowledged nothing for {self._seconds:g} s",
                "is it up? sending goes on after it answers again",
            )


_senders: dict[tuple[str, str, tuple[tuple[str, str], ...]], Sender] = {}


def sender_for(errand: Errand) -> Sender:
    key = (errand.flow, errand.target, tuple(sorted(errand.producer_config.items())))
    if key not in _senders:
        _senders[key] = Sender(errand)
    return _senders[key]


def drop_sender(errand: Errand) -> None:
    key = (errand.flow, errand.target, tuple(sorted(errand.producer_config.items())))
    if sender := _senders.pop(key, None):
        sender.discard()


Batches = Iterable[pa.RecordBatch]
Work = Sequence[tuple[Slice, Callable[[], Batches]]]


def deliver(errand: Errand, work: Work) -> list[Outcome]:
    """Send all slices of a task:

    1. check that each log ends where it should;
    2. send each slice in offset order;
    3. flush, with a deadline;
    4. prove what was sent by the log ends, or by reading back.
    """
    lock = producing(Path(errand.lock), errand.flow, errand.epoch) if errand.lock else contextlib.nullcontext()
    with lock, no_collection():
        return _deliver(errand, work)


def _deliver(errand: Errand, work: Work) -> list[Outcome]:
    outcomes = {slice_.source: Outcome(slice_.source) for slice_, _ in work}
    deadline = Deadline(errand.delivery_timeout_seconds, term=Term(errand.lease_ends_at))
    try:
        deadline.term.require()
        sender = sender_for(errand)
        before = _checked_ends(sender.cluster, [slice_ for slice_, _ in work])
        sender.begin(before)
        offsets = {
            slice_.source: _send_slice(errand, slice_, batches, outcomes[slice_.source], deadline)
            for slice_, batches in work
        }
        hit("all-sent")
        sender = sender_for(errand)  # another one where a record was refused
        sender.flush(deadline)
        hit("acknowledged")
        after = sender.cluster.log_ends([slice_.target for slice_, _ in work])
        for slice_, _ in work:
            _prove(errand, sender.cluster, slice_, offsets[slice_.source], before, after, outcomes[slice_.source])
        hit("proven")
    except (KafkaException, MirrorlakeError) as error:
        drop_sender(errand)  # nothing that waits in it may be sent later
        said = str(_translated(errand, error))
        for outcome in outcomes.values():
            outcome.error = outcome.error or f"{type(_translated(errand, error)).__name__}: {said}"
    except BaseException:
        drop_sender(errand)
        raise
    return list(outcomes.values())


def _translated(errand: Errand, error: Exception) -> MirrorlakeError:
    if isinstance(error, MirrorlakeError):
        return error
    topic = error.args[1] if len(error.args) > 1 else ""
    return translate(error.args[0], errand.target, f"produce to {topic}" if topic else "produce")


def _checked_ends(cluster: Cluster, slices: Sequence[Slice]) -> dict[TopicPartition, int]:
    ends = cluster.log_ends([slice_.target for slice_ in slices])
    for slice_ in slices:
        end, expected = ends[slice_.target], slice_.expected_end
        if end < expected or (end != expected and not slice_.shared):  # others only ever make a log longer
            raise DeliveryDoubt(
                f"{slice_.target} ends at {end}, expected {expected}",
                "recovery reads what is there and goes on",
            )
    return ends


def _send_slice(
    errand: Errand, slice_: Slice, batches: Callable[[], Batches], outcome: Outcome, deadline: Deadline
) -> list[int]:
    """Returns the source offsets handed to the producer."""
    shaper, offsets = Shaper(errand, slice_.source), list[int]()
    sender = sender_for(errand)  # another one where a record of an earlier slice was refused
    if slice_.carefully:
        sender.flush(deadline)  # a refused record takes along all that waits in its producer
    reached = slice_.first
    for batch in rising(slice_, batches()):
        if deadline.term.is_half_over():
            outcome.until = reached
            break
        outgoing = shaper.shape(batch)
        reached = outgoing.offsets[-1] + 1
        stop_at = min(outgoing.oversize, default=None) if not errand.dead_letters else None
        if stop_at is not None:
            size = outgoing.oversize[stop_at]
            outcome.refused.append((outgoing.offsets[stop_at], size, TOO_LARGE))
            outgoing = outgoing.before(stop_at)
        if slice_.carefully:
            offsets += send_one_by_one(errand, slice_.target, outgoing, outcome, deadline)
        elif outgoing.offsets:
            sender.send(slice_.target, outgoing, deadline)
            hit("batch-sent")
            offsets += note(outgoing, outcome)
        if stop_at is not None or outcome.until is not None:
            break
    return offsets


def rising(slice_: Slice, batches: Batches) -> Batches:
    """The batches, as long as each offset is higher than the one before."""
    last_offset = slice_.first - 1
    for batch in batches:
        offsets = batch["offset"]
        first_offset = offsets[0].as_py()
        if first_offset <= last_offset:
            raise DeliveryDoubt(f"{slice_.source}: offset {first_offset} came after {last_offset}")
        last_offset = offsets[-1].as_py()
        if pc.any(pc.less_equal(pc.pairwise_diff(offsets), 0)).as_py():
            raise DeliveryDoubt(f"{slice_.source}: after {first_offset} an offset came after one as high")
        yield batch


def send_one_by_one(
    errand: Errand, target: TopicPartition, outgoing: Outgoing, outcome: Outcome, deadline: Deadline
) -> list[int]:
    """Each record flushed alone, so that what the broker refuses is known by its offset. Returns those that landed.

    It ends after a refused one: bronze does not tell recovery that it was refused, so what follows must not land before
    the ledger says so.
    """
    landed: list[int] = []
    for row, offset in enumerate(outgoing.offsets):
        if deadline.term.is_half_over():
            outcome.until = offset
            break
        one = outgoing.only(row)
        goes_out = note(one, outcome)
        refusal = _send_alone(errand, target, one, deadline) if goes_out else ""
        if refusal:
            outcome.refused.append((offset, record_bytes(one.keys[0], one.values[0], one.headers[0]), refusal))
            outcome.until = offset + 1
            break
        landed += goes_out
    return landed


def _send_alone(errand: Errand, target: TopicPartition, one: Outgoing, deadline: Deadline) -> str:
    """Returns why the broker refused it, nothing where it landed."""
    sender = sender_for(errand)
    try:
        sender.send(target, one, deadline)
        sender.flush(deadline)
    except KafkaException as error:
        drop_sender(errand)
        if not isinstance(_translated(errand, error), RecordRefused):
            raise
        return f"refused by the target ({error.args[0].str()})"
    return ""


def note(outgoing: Outgoing, outcome: Outcome) -> list[int]:
    """Write down what was left out and why; returns the offsets that went out."""
    for row, reason in outgoing.verdicts.items():
        outcome.skipped.append((outgoing.offsets[row], 1, reason))
    for row, size in outgoing.oversize.items():
        outcome.refused.append((outgoing.offsets[row], size, TOO_LARGE))
    if min(outgoing.timestamps_ms) <= 0:
        rows = (row for row, at_ms in enumerate(outgoing.timestamps_ms) if at_ms <= 0)
        outcome.timeless += spans([outgoing.offsets[row] for row in rows if outgoing.goes_out(row)])
    if not outgoing.verdicts and not outgoing.oversize:
        return outgoing.offsets
    return [offset for row, offset in enumerate(outgoing.offsets) if outgoing.goes_out(row)]


def _prove(
    errand: Errand,
    cluster: Cluster,
    slice_: Slice,
    offsets: list[int],
    before: Mapping[TopicPartition, int],
    after: Mapping[TopicPartition, int],
    outcome: Outcome,
) -> None:
    start, end = before[slice_.target], after[slice_.target]
    outcome.target_end = end
    if not slice_.shared and end - start == len(offsets):
        outcome.runs = runs_at(offsets, start)
        return
    outcome.runs = _read_back(errand, cluster, slice_, start, end)
    found = [offset for run in outcome.runs for offset in range(run.source_first, run.source_last + 1)]
    if found != offsets:
        raise DeliveryDoubt(
            f"{slice_.source} -> {slice_.target}: {len(offsets)} records sent, {len(found)} found in [{start}, {end})",
            "recovery compares the target's tail with bronze",
        )


def runs_at(offsets: Sequence[int], target_first: int) -> list[Run]:
    """Source offsets that stand one after the other on the target, as runs."""
    runs, at = [], target_first
    for first, count in spans(offsets):
        runs.append(Run(first, at, count))
        at += count
    return runs


def _read_back(errand: Errand, cluster: Cluster, slice_: Slice, start: int, end: int) -> list[Run]:
    ours = own_records(errand, slice_.source, cluster.read_range(slice_.target, start, end))
    return runs_from_pairs(ours)


def own_records(errand: Errand, source: SourcePartition, messages: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """(source offset, target offset) of the messages that this flow relayed from the source partition."""
    flow, topic_id = digest(errand.flow), topic_id_bytes(source.topic_id)
    for message in messages:
        for key, value in reversed(message.headers() or ()):
            came = decode(value) if key == HEADER else None
            if came and came.flow == flow and came.topic_id == topic_id and came.partition == source.partition:
                yield came.offset, message.offset()
                break
