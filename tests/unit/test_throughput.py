"""What was delivered is counted by the minute, until it is taken away."""

from datetime import datetime, timedelta, timezone

from test_ledger import entry

from mirrorlake.ledger import BASELINE, REPAIR, SKIP
from mirrorlake.records import DELIVERIES
from mirrorlake.throughput import Meter

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


class Clock:
    at = NOON

    def __call__(self) -> datetime:
        return self.at


def taken(meter: Meter) -> list[tuple[str, str, datetime, int]]:
    table = meter.take()
    assert table.schema == DELIVERIES
    return sorted((row["flow"], row["target"], row["at"], row["records"]) for row in table.to_pylist())


def test_records_count_in_the_minute_in_which_the_ledger_heard_of_them() -> None:
    clock = Clock()
    meter = Meter(clock)
    for seconds in (0, 59, 60, 150):
        clock.at = NOON + timedelta(seconds=seconds)
        meter.count([entry(last=9), entry(first=10, last=14, end=15)])
    assert taken(meter) == [
        ("f", "dr", NOON, 30),
        ("f", "dr", NOON + timedelta(minutes=1), 15),
        ("f", "dr", NOON + timedelta(minutes=2), 15),
    ]
    assert taken(meter) == [], "each is given once"


def test_flows_and_targets_count_apart() -> None:
    meter = Meter(Clock())
    meter.count([entry(), entry(target="hubs"), entry(flow="g")])
    assert [row[:2] for row in taken(meter)] == [("f", "dr"), ("f", "hubs"), ("g", "dr")]


def test_only_what_the_relay_delivered_counts() -> None:
    meter = Meter(Clock())
    meter.count([entry(BASELINE, 0, -1), entry(SKIP), entry(REPAIR)])
    assert taken(meter) == []
