"""Heartbeats as MM2 writes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.heartbeats import decode, encode_key, encode_value, family

# What Kafka's own HeartbeatFormatter reads: two strings with their lengths; a version and a time.
KEY = b"\x00\x01A\x00\x06backup"
VALUE = b"\x00\x00\x00\x00\x01\x8b\xcf\xe5h\x00"


def test_the_bytes_are_those_of_mm2() -> None:
    assert encode_key("A", "backup") == KEY
    assert encode_value(1_700_000_000_000) == VALUE
    assert decode(KEY, VALUE) == ("A", "backup", 1_700_000_000_000)


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 2**62))
def test_a_beat_comes_back(source: str, target: str, at_ms: int) -> None:
    assert decode(encode_key(source, target), encode_value(at_ms)) == (source, target, at_ms)


@pytest.mark.parametrize(("key", "value"), [(KEY, b"\x00\x01" + VALUE[2:]), (KEY + b"x", VALUE)])
def test_what_is_no_beat_is_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match="not a heartbeat"):
        decode(key, value)


@pytest.mark.parametrize(
    ("topic", "is_one"),
    [("heartbeats", True), ("a.heartbeats", True), ("b_a.heartbeats", True), ("a.b.heartbeats", True),
     ("user.heartbeats", False), ("a.user.heartbeats", False), ("heartbeats.a", False), ("axheartbeats", False)],
)  # fmt: skip
def test_copies_are_known_by_the_aliases_before_them(topic: str, is_one: bool) -> None:
    assert bool(re.fullmatch(family(["a", "b"], [".", "_"]), topic)) == is_one
