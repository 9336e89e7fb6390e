"""What goes out of a bronze row, and what is said of the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from samples import (
    NOON_MS,
    OTHER_ID,
    SOURCE,
    TARGET,
    TOPIC_ID,
    FakeCluster,
    FakeMessage,
    Headers,
    ListSender,
    bronze_batch,
    bronze_row,
    errand,
)

from mirrorlake import produce
from mirrorlake.errors import DeliveryDoubt
from mirrorlake.lease import LEASE_SECONDS, SENDING
from mirrorlake.produce import (
    LEASED_BYTES,
    TOO_LARGE,
    Deadline,
    Outcome,
    Outgoing,
    Sender,
    Shaper,
    Slice,
    Term,
    _checked_ends,
    _prove,
    _send_slice,
    deliver,
    header_lists,
    most_bytes,
    note,
    own_records,
    record_bytes,
    runs_at,
)
from mirrorlake.provenance import HEADER, Provenance, digest, find, topic_id_bytes
from mirrorlake.records import BRONZE, Run, SourcePartition, TopicPartition

HEADERS = st.none() | st.lists(
    st.tuples(st.sampled_from(["a", "b", ""]), st.none() | st.binary(max_size=4)), max_size=4
)


def header_column(rows: list[Headers | None]) -> pa.Array:
    listed = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows]
    return pa.array(listed, BRONZE.field("headers").type)


# --- headers ---


@given(st.lists(HEADERS, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_headers_are_those_of_the_row_wherever_the_column_is_cut(
    rows: list[Headers | None], start: int, length: int
) -> None:
    column = header_column(rows).slice(min(start, len(rows)), length)
    wanted = [row or [] for row in rows[start : start + length]]
    assert header_lists(column) == wanted


@given(st.lists(HEADERS, min_size=1, max_size=12), st.integers(0, 11))
def test_headers_survive_a_filter_and_a_join_of_columns(rows: list[Headers | None], cut: int) -> None:
    column = header_column(rows)
    joined = pa.concat_arrays([column.slice(cut), column.slice(0, cut)])
    assert header_lists(joined) == [row or [] for row in [*rows[cut:], *rows[:cut]]]
    mask = [place % 2 == 0 for place in range(len(rows))]
    assert header_lists(column.filter(pa.array(mask))) == [row or [] for row in rows[::2]]


def test_repeated_names_null_and_empty_values_keep_order_and_stay_apart() -> None:
    listed: Headers = [("a", b"1"), ("a", None), ("b", b""), ("a", b"2")]
    assert header_lists(header_column([None, listed, []])) == [[], listed, []]


# --- shaping ---


def shape(*rows: dict[str, Any], source: SourcePartition = SOURCE, **fields: Any) -> Any:
    return Shaper(errand(**fields), source).shape(bronze_batch(rows))


def relayed(origin: str = "cluster-c", hops: int = 1, **fields: Any) -> bytes:
    """The provenance of a record that another flow brought to the source."""
    base = {"flow": digest("other"), "topic_id": topic_id_bytes(OTHER_ID), "partition": 5, "epoch": 3}
    return Provenance(
        origin=digest(origin), offset=77, origin_offset=70 if hops > 1 else 77, hops=hops, **base | fields
    ).encode()  # type: ignore[arg-type]


def test_a_record_goes_out_whole_with_one_header_more() -> None:
    row = bronze_row(4, key=None, value=b"", headers=[("a", None), ("a", b"x")])
    outgoing = shape(row)
    assert (outgoing.offsets, outgoing.keys, outgoing.values) == ([4], [None], [b""])
    assert outgoing.timestamps_ms == [NOON_MS]
    assert outgoing.headers[0][:-1] == [("a", None), ("a", b"x")]
    came = find(outgoing.headers[0])
    assert came == Provenance(digest("f"), digest("cluster-a"), topic_id_bytes(TOPIC_ID), 0, 4, 4, 1, 1)


def test_without_provenance_headers_stay_as_they_are() -> None:
    row = bronze_row(4, headers=[(HEADER, relayed("cluster-b"))])
    outgoing = shape(row, provenance=False)
    assert outgoing.headers == [[(HEADER, relayed("cluster-b"))]]
    assert outgoing.goes_out(0)


@pytest.mark.parametrize(
    ("header", "max_hops", "verdict"),
    [
        (relayed("cluster-c"), 1, "hops: the record has made 1 of 1"),
        (relayed("cluster-c"), 2, None),
        (relayed("cluster-c", hops=2), 2, "hops: the record has made 2 of 2"),
        (relayed("cluster-b"), 1, "loop: the record comes from the target"),
        (relayed("cluster-b"), 9, "loop: the record comes from the target"),
        (relayed("cluster-c", hops=255), 255, "hops: the record has made 255 of 255"),
        (b"somebody else's", 1, None),
        (None, 1, None),
    ],
    ids=[
        "one hop",
        "of two",
        "two of two",
        "loop",
        "loop with hops left",
        "as far as can be",
        "foreign",
        "null",
    ],
)
def test_a_record_that_came_far_enough_is_left_out(header: bytes | None, max_hops: int, verdict: str | None) -> None:
    outgoing = shape(bronze_row(0), bronze_row(1, headers=[(HEADER, header)]), max_hops=max_hops)
    assert outgoing.verdicts == ({1: verdict} if verdict else {})
    assert outgoing.goes_out(0)
    assert outgoing.goes_out(1) is (verdict is None)


def test_a_second_hop_keeps_the_origin_and_has_one_stamp() -> None:
    row = bronze_row(9, headers=[("a", b"1"), (HEADER, relayed("cluster-c"))])
    (headers,) = shape(row, max_hops=3).headers
    assert [name for name, _ in headers] == ["a", HEADER]
    came = find(headers)
    assert came is not None
    assert (came.origin, came.origin_offset, came.offset, came.hops) == (digest("cluster-c"), 77, 9, 2)


def test_the_stamp_is_found_again_by_flow_topic_and_partition() -> None:
    outgoing = shape(bronze_row(4), bronze_row(6), bronze_row(7, headers=[(HEADER, relayed())]), max_hops=2)
    messages = [FakeMessage(100 + n, b"", b"", headers) for n, headers in enumerate(outgoing.headers)]
    foreign = FakeMessage(99, b"", b"", [(HEADER, relayed())])
    found = list(own_records(errand(), SOURCE, [foreign, *messages, FakeMessage(200, b"", b"")]))
    assert found == [(4, 100), (6, 101), (7, 102)]
    for other in (SOURCE._replace(partition=1), SOURCE._replace(topic_id=OTHER_ID)):
        assert not list(own_records(errand(), other, messages))
    assert not list(own_records(errand(flow="g"), SOURCE, messages))


@pytest.mark.parametrize(
    ("at_ms", "timeless"), [(NOON_MS, False), (1, False), (0, True), (-1, True), (-86_400_000, True)]
)
def test_timestamps_that_librdkafka_cannot_carry_are_listed(at_ms: int, timeless: bool) -> None:
    outgoing, outcome = shape(bronze_row(0), bronze_row(1, at_ms=at_ms), bronze_row(2)), Outcome(SOURCE)
    assert outgoing.timestamps_ms[1] == at_ms
    assert note(outgoing, outcome) == [0, 1, 2]
    assert outcome.timeless == ([(1, 1)] if timeless else [])


def test_a_column_cut_from_a_larger_one_is_shaped_the_same() -> None:
    rows = [bronze_row(n, headers=[("n", b"%d" % n)] if n % 3 else None) for n in range(20)]
    shaper = Shaper(errand(), SOURCE)
    assert shaper.shape(bronze_batch(rows).slice(7, 6)) == shaper.shape(bronze_batch(rows[7:13]))


# --- sizes ---


def test_our_own_header_counts_against_the_limit() -> None:
    row = bronze_row(0, value=b"x" * 5000)
    bare = record_bytes(row["key"], row["value"], [])
    assert shape(row, max_record_bytes=bare, provenance=False).oversize == {}
    (size,) = shape(row, max_record_bytes=bare).oversize.values()
    assert size == record_bytes(row["key"], row["value"], shape(row).headers[0]) > bare


def test_only_the_record_that_is_too_large_is_refused() -> None:
    outgoing = shape(bronze_row(0), bronze_row(1, value=b"x" * 3000), bronze_row(2), max_record_bytes=2000)
    outcome = Outcome(SOURCE)
    assert note(outgoing, outcome) == [0, 2]
    assert [(offset, why) for offset, _, why in outcome.refused] == [(1, TOO_LARGE)]
    assert outcome.skipped == []


def test_a_record_that_is_left_out_anyway_is_not_too_large() -> None:
    row = bronze_row(1, value=b"x" * 3000, headers=[(HEADER, relayed("cluster-b"))])
    outgoing = shape(bronze_row(0), row, max_record_bytes=2000)
    assert not outgoing.oversize
    outcome = Outcome(SOURCE)
    assert note(outgoing, outcome) == [0]
    assert outcome.refused == []
    assert len(outcome.skipped) == 1


def test_what_stands_before_a_refused_record_still_goes_out() -> None:
    rows = [
        bronze_row(0),
        bronze_row(1, headers=[(HEADER, relayed())]),
        bronze_row(2, value=b"x" * 3000),
        bronze_row(3),
    ]
    cut = shape(*rows, max_record_bytes=2000).before(2)
    assert cut.offsets == [0, 1]
    assert (set(cut.verdicts), cut.oversize) == ({1}, {})
    assert len(cut.keys) == len(cut.values) == len(cut.headers) == len(cut.timestamps_ms) == 2


# --- outcomes ---


def test_an_outcome_survives_json() -> None:
    outcome = Outcome(
        SOURCE,
        [Run(1, 100, 3)],
        [(4, 1, "loop")],
        [(5, 2000, TOO_LARGE)],
        [(6, 2)],
        103,
        6,
        "DeliveryDoubt: x\n  next: y",
    )
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=30).map(sorted), st.integers(0, 10**6))
def test_records_that_stand_one_after_the_other_become_runs(offsets: list[int], start: int) -> None:
    pairs = [(run.source_first + n, run.target_first + n) for run in runs_at(offsets, start) for n in range(run.count)]
    assert pairs == [(offset, start + place) for place, offset in enumerate(offsets)]


# --- proof ---


def slice_of(first: int = 0, until: int = 3, expected_end: int = 0, shared: bool = False) -> Slice:
    return Slice(SOURCE, first, until, TARGET, expected_end, shared)


def landed(cluster: FakeCluster, *offsets: int) -> None:
    for headers in shape(*(bronze_row(offset) for offset in offsets)).headers:
        cluster.append(TARGET, b"", b"", headers)


def prove(cluster: FakeCluster, offsets: list[int], before: int = 0, shared: bool = False) -> Outcome:
    outcome = Outcome(SOURCE)
    ends = cluster.log_ends([TARGET])
    _prove(errand(), cluster, slice_of(shared=shared), offsets, {TARGET: before}, ends, outcome)  # type: ignore[arg-type]
    return outcome


def test_the_log_end_proves_a_sole_writer() -> None:
    cluster = FakeCluster()
    landed(cluster, 4, 5, 8)
    outcome = prove(cluster, [4, 5, 8])
    assert (outcome.runs, outcome.target_end) == ([Run(4, 0, 2), Run(8, 2, 1)], 3)


def test_among_others_what_is_ours_is_read_back() -> None:
    cluster = FakeCluster()
    landed(cluster, 4)
    cluster.append(TARGET, b"foreign", b"")
    landed(cluster, 5)
    assert prove(cluster, [4, 5], shared=True).runs == [Run(4, 0, 1), Run(5, 2, 1)]


@pytest.mark.parametrize("seen", [[4], [4, 5, 4], [5, 4], [4, 5, 6]], ids=["missing", "twice", "turned", "more"])
def test_whatever_is_not_exactly_what_was_sent_is_doubt(seen: list[int]) -> None:
    cluster = FakeCluster()
    landed(cluster, *seen)
    with pytest.raises(DeliveryDoubt):
        prove(cluster, [4, 5], shared=len(seen) == 2)


def test_a_log_that_does_not_end_where_expected_is_doubt_unless_others_write_there() -> None:
    cluster: Any = FakeCluster()
    landed(cluster, 1, 2)
    assert _checked_ends(cluster, [slice_of(expected_end=2)]) == {TARGET: 2}
    assert _checked_ends(cluster, [slice_of(expected_end=1, shared=True)]) == {TARGET: 2}
    with pytest.raises(DeliveryDoubt, match="ends at 2, expected 1"):
        _checked_ends(cluster, [slice_of(expected_end=1)])
    with pytest.raises(DeliveryDoubt):
        _checked_ends(cluster, [slice_of(expected_end=3)])
    with pytest.raises(DeliveryDoubt):  # others only make a log longer
        _checked_ends(cluster, [slice_of(expected_end=3, shared=True)])
    assert TopicPartition("src.orders", 0) == TARGET


# --- a task ---


def work(slice_: Slice, *batches: Sequence[int]) -> tuple[Slice, Callable[[], Iterable[pa.RecordBatch]]]:
    return slice_, lambda: [bronze_batch(bronze_row(offset, slice_.source) for offset in batch) for batch in batches]


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A cluster that refuses the record of offset 2."""
    cluster = FakeCluster()
    monkeypatch.setattr(produce, "Sender", lambda _errand: ListSender(cluster, [b"v2"]))
    yield cluster
    produce._senders.clear()


def test_a_task_ends_at_a_refused_record_so_that_it_is_known_before_anything_follows(logs: FakeCluster) -> None:
    careful = replace(slice_of(until=5), carefully=True)
    (outcome,) = deliver(errand(dead_letters=True), [work(careful, [0, 1, 2], [3, 4])])
    assert (outcome.error, outcome.runs, outcome.until) == ("", [Run(0, 0, 2)], 3)
    assert [offset for offset, _, _ in outcome.refused] == [2]
    assert [message.value() for message in logs.logs[TARGET]] == [b"v0", b"v1"]


def test_a_refused_record_takes_nothing_of_its_neighbours_along(logs: FakeCluster) -> None:
    """Its producer is given up; what the others of the task handed to it must have arrived."""
    before, after = (
        replace(slice_of(), source=SOURCE._replace(partition=n), target=TARGET._replace(partition=n)) for n in (1, 2)
    )
    careful = replace(slice_of(), carefully=True)
    outcomes = deliver(errand(dead_letters=True), [work(before, [0, 1, 3]), work(careful, [2]), work(after, [0, 1, 3])])
    assert [outcome.error for outcome in outcomes] == ["", "", ""]
    assert [sum(run.count for run in outcome.runs) for outcome in outcomes] == [3, 0, 3]


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize(
    "batches", [[[0, 1], [1]], [[0, 3], [1]], [[0, 0]], [[0, 3, 1]]], ids=["again", "back", "twice", "back inside"]
)
def test_offsets_that_do_not_rise_are_not_sent(batches: list[list[int]]) -> None:
    (outcome,) = deliver(errand(), [work(slice_of(until=9), *batches)])
    assert outcome.error.startswith("DeliveryDoubt")
    assert "came after" in outcome.error
    assert not outcome.runs


# --- the deadline ---


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_moves_the_deadline_and_silence_ends_it() -> None:
    clock = FakeClock()
    deadline = Deadline(10, clock)
    for _ in range(5):
        clock.now += 9
        deadline.progress(True)
    clock.now += 10
    deadline.progress(False)
    clock.now += 0.1
    with pytest.raises(DeliveryDoubt, match="nothing for 10 s"):
        deadline.progress(False)


class ScriptedProducer:
    """So many records wait after each look; the last number stays."""

    def __init__(self, *waiting: int) -> None:
        self._waiting = list(waiting)

    def __len__(self) -> int:
        return self._waiting[0]

    def flush(self, _seconds: float) -> int:
        self._waiting = self._waiting[1:] or self._waiting
        return self._waiting[0]

    def poll(self, _seconds: float) -> int:
        return 0


def sender(*waiting: int) -> Sender:
    made = Sender.__new__(Sender)
    made.producer, made.failure, made.failed_topic, made._cut = ScriptedProducer(*waiting), None, "", False
    made.met, made._waiting_bytes = set(), 0
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "CUT_SECONDS", 0)


def test_the_first_record_to_a_partition_goes_alone() -> None:
    """Until a broker knows the producer it takes requests in any order; an empty log has forgotten it."""
    done: list[str] = []
    made = sender(0)
    made.producer.produce = lambda _topic, value, *_, **__: done.append(value.decode())  # type: ignore[method-assign]
    made.producer.flush = lambda _seconds: done.append("flush") or 0  # type: ignore[method-assign,func-returns-value]
    outgoing = Outgoing([0, 1], [1, 1], [None, None], [b"a", b"b"], [[], []], {}, {})
    for target in (TARGET, TARGET, TopicPartition("other", 0)):
        made.send(target, outgoing, Deadline(10))
    assert done == ["a", "flush", "b", "a", "b", "a", "flush", "b"]
    del done[:]
    for end in (7, 0):
        made.begin({TARGET: end})
        made.send(TARGET, outgoing, Deadline(10))
    assert done == ["a", "b", "a", "flush", "b"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_after_a_connection_was_cut_silence_is_soon_in_doubt(code: int) -> None:
    """librdkafka must not send again to a broker that comes back and has forgotten us."""
    cut = sender(5)
    cut._on_error(KafkaError(code))
    with pytest.raises(DeliveryDoubt, match="nothing for 0 s"):
        cut.flush(Deadline(1000))


@pytest.mark.usefixtures("impatient")
def test_a_connection_that_carries_records_again_is_as_before() -> None:
    cut = sender(5, 4, 3, 0)
    cut._on_error(KafkaError(KafkaError._TRANSPORT))
    cut.flush(Deadline(1000))
    assert not cut._cut


@pytest.mark.usefixtures("impatient")
def test_what_was_cut_while_nothing_was_on_its_way_concerns_nobody() -> None:
    clock = FakeClock()
    idle = sender(5, *[5] * 30, 0)
    idle._on_error(KafkaError(KafkaError._TRANSPORT))
    idle.begin({})
    idle.flush(Deadline(1000, clock))


# --- the term of a lease ---


@dataclass
class LeaseClock:
    """The lease ends when both clocks of the machine say `at`; `behind` is how much its wall clock is late."""

    at: float = 20.0
    behind: float = 0.0
    now: float = 0.0

    def term(self) -> Term:
        return Term(self.at, wall=lambda: self.now - self.behind, clock=lambda: self.now)

    def deadline(self) -> Deadline:
        return Deadline(1000, lambda: self.now, self.term())


def test_nothing_is_handed_over_after_the_lease_has_ended() -> None:
    clock = LeaseClock()
    term = clock.term()
    clock.now = 20
    term.require()
    clock.now = 20.1
    with pytest.raises(DeliveryDoubt, match="another runner may send by now"):
        term.require()
    with pytest.raises(DeliveryDoubt):
        clock.term().require()
    Term().require()


@pytest.mark.parametrize("behind", [30.0, 10_000.0])
def test_a_clock_that_is_far_behind_gives_no_more_time_than_a_sign_does(behind: float) -> None:
    clock = LeaseClock(behind=behind)
    term = clock.term()
    clock.now = LEASE_SECONDS * SENDING + 0.1
    with pytest.raises(DeliveryDoubt):
        term.require()


def test_a_clock_that_is_set_back_meanwhile_is_not_believed() -> None:
    clock = LeaseClock()
    term = clock.term()
    clock.now, clock.behind = 20.1, 1000
    with pytest.raises(DeliveryDoubt):
        term.require()


def test_a_sender_that_stood_still_hands_over_no_record_more() -> None:
    clock, made, handed = LeaseClock(), sender(0), list[bytes]()

    def produce_one(_topic: str, value: bytes, *_: object, **__: object) -> None:
        handed.append(value)
        clock.now += 15

    made.producer.produce = produce_one
    outgoing = Outgoing([0, 1, 2], [1] * 3, [None] * 3, [b"a", b"b", b"c"], [[], [], []], {}, {})
    with pytest.raises(DeliveryDoubt, match="lease"):
        made.send(TARGET, outgoing, clock.deadline())
    assert handed == [b"a", b"b"]


def test_acknowledgements_are_waited_for_only_as_long_as_the_lease_lasts() -> None:
    """However many arrive: those that are missing must not be sent later."""
    clock, made = LeaseClock(), sender(*range(100, 0, -1), 0)
    deadline, flush = clock.deadline(), made.producer.flush

    def take_a_second(seconds: float) -> int:
        clock.now += 1
        return flush(seconds)

    made.producer.flush = take_a_second  # type: ignore[method-assign]
    with pytest.raises(DeliveryDoubt, match="lease"):
        made.flush(deadline)
    assert clock.now == 21


def test_under_a_lease_few_bytes_wait_at_a_time() -> None:
    done: list[str] = []
    made = sender(0)
    made.met.add(TARGET)
    made.producer.produce = lambda *_, **__: done.append("record")
    made.producer.flush = lambda _seconds: done.append("flush") or 0  # type: ignore[method-assign,func-returns-value]
    value = bytes(LEASED_BYTES // 2)
    outgoing = Outgoing([0] * 5, [1] * 5, [None] * 5, [value] * 5, [[]] * 5, {}, {})
    made.send(TARGET, outgoing, LeaseClock().deadline())
    assert done == ["record", "record", "flush", "record", "record", "record"]
    del done[:]
    made.send(TARGET, outgoing, Deadline(10))
    assert "flush" not in done


@pytest.mark.parametrize("carefully", [False, True])
@pytest.mark.usefixtures("logs")
def test_a_slice_ends_early_when_half_of_its_time_is_over(carefully: bool) -> None:
    """So that what was handed over is acknowledged, and no recovery is needed."""
    clock, outcome = LeaseClock(), Outcome(SOURCE)
    slice_ = replace(slice_of(until=30), carefully=carefully)

    def batches() -> Iterator[pa.RecordBatch]:
        for first in (10, 12, 14):
            yield bronze_batch(bronze_row(offset) for offset in (first, first + 1))
            clock.now += 6

    assert _send_slice(errand(), slice_, batches, outcome, clock.deadline()) == [10, 11, 12, 13]
    assert outcome.until == 14


def test_a_task_that_begins_after_its_lease_sends_nothing(logs: FakeCluster) -> None:
    (outcome,) = deliver(errand(lease_ends_at=time.time() - 0.1), [work(slice_of(until=2), [0, 1])])
    assert outcome.error.startswith("DeliveryDoubt: the lease was not renewed")
    assert not logs.logs
    (outcome,) = deliver(errand(lease_ends_at=time.time() + 20), [work(slice_of(until=2), [0, 1])])
    assert (outcome.error, outcome.runs, outcome.until) == ("", [Run(0, 0, 2)], None)


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=300),
            st.none() | st.binary(max_size=300),
            st.none() | st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=50)), max_size=4),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_bound_of_a_batch_is_never_less_than_a_record(fields: list[Any]) -> None:
    rows = [
        bronze_row(number, key=key, value=value, headers=headers) for number, (key, value, headers) in enumerate(fields)
    ]
    batch = bronze_batch(rows)
    outgoing = Shaper(errand(), SOURCE).shape(batch)
    sizes = map(record_bytes, outgoing.keys, outgoing.values, outgoing.headers)
    assert max(sizes) <= most_bytes(batch)
