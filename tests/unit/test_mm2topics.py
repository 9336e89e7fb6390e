"""MM2's binary formats, byte by byte; the real Java client reads them in tests/broker/test_failover.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.config import parse
from mirrorlake.mm2topics import (
    Checkpoint,
    Mm2Topics,
    OffsetSync,
    checkpoints_topic,
    decode_checkpoint,
    offset_syncs_topic,
)
from mirrorlake.records import TopicPartition

texts = st.text(max_size=20)
numbers = st.integers(-1, 2**62)


def test_a_checkpoint_byte_by_byte() -> None:
    key, value = Checkpoint("g", TopicPartition("eu.t", 3), 5, 7, "m").encode()
    assert key == b"\0\1g" + b"\0\4eu.t" + b"\0\0\0\3"
    assert value == b"\0\0" + bytes(7) + b"\5" + bytes(7) + b"\7" + b"\0\1m"


def test_an_offset_sync_byte_by_byte() -> None:
    key, value = OffsetSync(TopicPartition("t", 1), 256, 2).encode()
    assert (key, value) == (b"\0\1t" + b"\0\0\0\1", bytes(6) + b"\1\0" + bytes(7) + b"\2")


@given(st.builds(Checkpoint, texts, st.builds(TopicPartition, texts, st.integers(0, 9999)), numbers, numbers, texts))
def test_a_checkpoint_is_read_back(checkpoint: Checkpoint) -> None:
    assert decode_checkpoint(*checkpoint.encode()) == checkpoint


def test_topics_are_named_as_mm2_names_them() -> None:
    assert checkpoints_topic("eu") == "eu.checkpoints.internal"
    assert offset_syncs_topic("us") == "mm2-offset-syncs.us.internal"
    assert checkpoints_topic("eu", "_") == "eu_checkpoints_internal"


@pytest.mark.parametrize(
    ("kind", "asked", "wanted"),
    [("kafka", None, True), ("event_hubs", None, False), ("event_hubs", True, True), ("kafka", False, False)],
)
def test_where_topics_are_few_checkpoints_are_written_only_where_asked_for(
    kind: str, asked: bool | None, wanted: bool
) -> None:
    login = ", security: {password: '${env:P}'}" if kind == "event_hubs" else ""
    groups = "" if asked is None else f", groups: {{mm2_checkpoints: {str(asked).lower()}}}"
    config = parse(
        f"clusters: {{a: {{bootstrap_servers: 'a:1'}}, b: {{kind: {kind}, bootstrap_servers: 'b:1'{login}}}}}\n"
        f"flows: {{f: {{source: a, topics: [t], targets: [{{cluster: b{groups}}}]}}}}",
        "x",
    )
    flow = config.flow("f")
    assert Mm2Topics(config, flow, flow.targets[0], {}).wants_checkpoints is wanted
