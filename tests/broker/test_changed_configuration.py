"""A flow that starts again with another configuration goes on where it stopped, each record once, or says why not."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from harness import Flow, Records, by_partition, drop_before

from mirrorlake import control
from mirrorlake.errors import StateMismatch


@pytest.fixture
def family(records: Records, topic: str) -> tuple[str, str]:
    """Two topics that one pattern takes, with a few records each."""
    names = f"{topic}-one", f"{topic}-two"
    for name in names:
        records.create("source", name, 2)
        records.send("source", name, records.numbered(20, 2))
    return names


def restart(flow: Flow, records: Records, topics: Iterable[str], first: int, **options: Any) -> None:
    """Ten more records for each topic, then a run with these options."""
    for topic in topics:
        records.send("source", topic, records.numbered(10, 2, first))
    flow.options.update(options)
    flow.run_once()


def arrived(records: Records, topic: str, target: str = "target") -> dict[int, Any]:
    return records.read(target, f"source.{topic}")


def numbered(records: Records, count: int) -> dict[int, Any]:
    return by_partition(records.numbered(count, 2))


def expect_offsets_once(flow: Flow, table: str = "bronze.flow") -> None:
    held = Counter((row["topic"], row["partition"], row["offset"]) for row in flow.rows(table))
    assert set(held.values()) == {1}, [place for place, times in held.items() if times > 1][:5]
    report = flow.audit()
    assert report.ok, report.findings
    assert not flow.rows("ops.incidents")


@pytest.mark.parametrize("narrowed", ["exclude", "patterns"])
def test_a_target_that_is_narrowed_and_widened_again_goes_on_where_it_stopped(
    make_flow: Callable[..., Flow], records: Records, topic: str, family: tuple[str, str], narrowed: str
) -> None:
    one, two = family
    flow = make_flow([], patterns=[f"{topic}-.*"])
    flow.run_once()
    restart(flow, records, family, 20, target={narrowed: [".*-two" if narrowed == "exclude" else ".*-one"]})
    assert arrived(records, one) == numbered(records, 30)
    assert arrived(records, two) == numbered(records, 20), "it takes it no more"
    restart(flow, records, family, 30, target={})
    assert arrived(records, one) == arrived(records, two) == numbered(records, 40)
    expect_offsets_once(flow)


def test_a_topic_that_leaves_a_shared_table_and_comes_back_is_read_once(
    make_flow: Callable[..., Flow], records: Records, topic: str, family: tuple[str, str]
) -> None:
    one, two = family
    flow = make_flow([], patterns=[f"{topic}-.*"])
    flow.run_once()
    restart(flow, records, family, 20, exclude=[".*-two"])
    assert arrived(records, one) == numbered(records, 30)
    assert arrived(records, two) == numbered(records, 20)
    restart(flow, records, family, 30, exclude=[])
    assert arrived(records, one) == arrived(records, two) == numbered(records, 40)
    expect_offsets_once(flow)


@pytest.mark.parametrize("change", [{"naming": "identity"}, {"separator": "-"}])
def test_other_names_for_topics_that_were_relayed_are_refused(
    make_flow: Callable[..., Flow], records: Records, topic: str, change: dict[str, str]
) -> None:
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(20, 2))
    flow = make_flow([topic])
    flow.run_once()
    with pytest.raises(StateMismatch, match="now calls it") as refused:
        restart(flow, records, [topic], 20, target=change)
    assert refused.value.exit_code == 4
    assert not records.cluster("target").describe([topic, f"source-{topic}"]), "nothing was made"
    assert arrived(records, topic) == numbered(records, 20), "nothing was sent"
    restart(flow, records, [topic], 30, target={})
    assert arrived(records, topic) == numbered(records, 40)
    assert flow.audit().ok


def test_a_target_that_is_taken_away_and_added_again_goes_on_where_it_stopped(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(20, 2))
    flow = make_flow([topic], ["target", "hubs"])
    flow.run_once()
    flow.targets = ["target"]
    restart(flow, records, [topic], 20)
    assert arrived(records, topic, "hubs") == numbered(records, 20)
    flow.targets = ["target", "hubs"]
    restart(flow, records, [topic], 30)
    for target in flow.targets:
        assert arrived(records, topic, target) == numbered(records, 40)
    assert flow.audit().ok


def test_a_new_trigger_bound_and_rate_hold_from_the_next_start(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic, 2)
    records.send("source", topic, records.numbered(20, 2))
    flow = make_flow([topic], bronze="bronze.paced")
    flow.run_once()
    records.send("source", topic, records.numbered(70, 2, 20))
    ingest = {"trigger_seconds": 2, "max_records_per_batch": 30}
    begun = time.monotonic()
    restart(flow, records, [topic], 90, ingest=ingest, target={"rate_limit_records_per_second": 20})
    assert time.monotonic() - begun > 3, "80 records at 20 a second, of which the first go at once"
    assert max(Counter(row["batch"] for row in flow.rows("bronze.paced")).values()) <= 30
    restart(flow, records, [topic], 100, ingest={}, target={})
    assert arrived(records, topic) == numbered(records, 110)
    expect_offsets_once(flow, "bronze.paced")


def test_a_topic_moves_to_another_table_unless_only_the_old_one_has_what_a_target_misses(
    make_flow: Callable[..., Flow], records: Records, topic: str
) -> None:
    records.create("source", topic, 1)
    records.send("source", topic, records.numbered(20))
    flow = make_flow([topic], bronze="bronze.before")
    flow.run_once()
    control.pause(flow.root, flow.name, control.Pause("target", None))
    records.send("source", topic, records.numbered(10, first=20))
    flow.run_once()
    drop_before(records, topic, 25)
    control.resume(flow.root, flow.name, None, None)
    flow.options["bronze"] = "bronze.after"
    with pytest.raises(StateMismatch, match=r"up to offset 20, .* would begin at 25"):
        flow.run_once()
    assert not (flow.root / "tables" / "bronze" / "after").exists()
    flow.options["bronze"] = "bronze.before"
    flow.run_once()
    flow.options["bronze"] = "bronze.after"
    records.send("source", topic, records.numbered(5, first=30))
    flow.run_once()
    assert arrived(records, topic) == by_partition(records.numbered(35))


@pytest.mark.parametrize("existing", ["stop", "append", "latest"])
def test_a_ledger_that_was_removed_is_not_taken_for_a_new_target(
    make_flow: Callable[..., Flow], records: Records, topic: str, existing: str
) -> None:
    """Where others may write to the target too, everything would be sent once more."""
    records.create("source", topic, 1)
    records.send("source", topic, records.numbered(20))
    flow = make_flow([topic], target={"existing_records": existing})
    flow.run_once()
    ledger, kept = flow.root / "tables" / "ops" / "ledger", flow.folder / "kept"
    ledger.rename(kept)
    records.send("source", topic, records.numbered(5, first=20))
    with pytest.raises(StateMismatch, match="the ledger knows nothing of target target"):
        flow.run_once()
    assert arrived(records, topic) == by_partition(records.numbered(20))
    shutil.rmtree(ledger)
    kept.rename(ledger)
    flow.run_once()
    assert arrived(records, topic) == by_partition(records.numbered(25))
