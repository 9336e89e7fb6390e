"""A stream's name, checkpoint and transaction id move together."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlake.errors import StateMismatch
from mirrorlake.streams import StreamId, claim, current, next_generation, refuse_foreign

STREAM = StreamId("orders", "ingest", "bronze.src__orders")
FACTS = {"source": "cluster-1", "table": "table-1"}


def test_a_stream_without_storage_begins_at_generation_0(tmp_path: Path) -> None:
    assert current(tmp_path, "orders", "ingest", "bronze.src__orders") == STREAM


def test_the_generation_moves_transaction_id_and_checkpoint_together(tmp_path: Path) -> None:
    moved = next_generation(STREAM)
    assert moved.name == STREAM.name
    assert moved.txn_app_id != STREAM.txn_app_id
    assert moved.checkpoint(tmp_path) != STREAM.checkpoint(tmp_path)
    assert moved.folder(tmp_path) == STREAM.folder(tmp_path)


def test_the_newest_generation_is_found_by_number_not_by_letter(tmp_path: Path) -> None:
    for name in ("g0", "g2", "g10", "gx", "g11.json"):
        (STREAM.folder(tmp_path) / name).mkdir(parents=True)
    assert current(tmp_path, STREAM.flow, STREAM.leg, STREAM.subject).generation == 10


@pytest.mark.parametrize(
    "other",
    [
        StreamId("clicks", "ingest", "bronze.src__orders"),
        StreamId("orders", "fanout", "bronze.src__orders"),
        StreamId("orders", "ingest", "bronze.src__clicks"),
    ],
    ids=["flow", "leg", "subject"],
)
def test_streams_that_differ_share_nothing(tmp_path: Path, other: StreamId) -> None:
    assert other.txn_app_id != STREAM.txn_app_id
    assert other.checkpoint(tmp_path) != STREAM.checkpoint(tmp_path)


def test_a_claim_holds_for_the_same_facts(tmp_path: Path) -> None:
    claim(STREAM, tmp_path, FACTS)
    claim(STREAM, tmp_path, FACTS)
    assert [path.name for path in STREAM.folder(tmp_path).iterdir()] == ["g0.json"]


@pytest.mark.parametrize("key", ["source", "table"])
def test_a_checkpoint_made_for_something_else_is_refused(tmp_path: Path, key: str) -> None:
    claim(STREAM, tmp_path, FACTS)
    with pytest.raises(StateMismatch, match=f"its {key} is .*-1, this flow's is other") as refused:
        claim(STREAM, tmp_path, {**FACTS, key: "other"})
    assert refused.value.next_step


def test_a_checkpoint_of_spark_without_our_mark_is_refused(tmp_path: Path) -> None:
    STREAM.checkpoint(tmp_path).mkdir(parents=True)
    (STREAM.checkpoint(tmp_path) / "metadata").write_text("{}")
    with pytest.raises(StateMismatch, match="no mark of ours"):
        claim(STREAM, tmp_path, FACTS)


def test_a_damaged_mark_is_refused(tmp_path: Path) -> None:
    claim(STREAM, tmp_path, FACTS)
    (STREAM.folder(tmp_path) / "g0.json").write_text('{"source": ')
    with pytest.raises(StateMismatch, match="cannot be read"):
        claim(STREAM, tmp_path, FACTS)


def test_a_new_generation_is_claimed_for_itself(tmp_path: Path) -> None:
    claim(STREAM, tmp_path, FACTS)
    claim(next_generation(STREAM), tmp_path, {**FACTS, "table": "table-2"})


def test_to_refuse_is_not_to_claim(tmp_path: Path) -> None:
    refuse_foreign(STREAM, tmp_path, FACTS)
    assert not list(tmp_path.iterdir())
    claim(STREAM, tmp_path, FACTS)
    with pytest.raises(StateMismatch):
        refuse_foreign(STREAM, tmp_path, {**FACTS, "source": "other"})
