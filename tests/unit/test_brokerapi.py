"""What a broker speaks, from the bytes of its answer."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.brokerapi import Spoken, parse


def answer(highest: dict[int, int], error: int = 0) -> bytes:
    rows = b"".join(struct.pack(">hhh", number, 0, version) for number, version in highest.items())
    return struct.pack(">ihi", 1, error, len(highest)) + rows


def test_an_answer_is_read_back() -> None:
    assert parse(answer({0: 9, 1: 12, 18: 3})) == {0: 9, 1: 12, 18: 3}


@pytest.mark.parametrize(("fetch", "release"), [(3, "before 0.11"), (11, "2.3"), (12, "2.7"), (14, "3.1"), (99, "4.1")])
def test_the_release_is_the_oldest_that_speaks_so(fetch: int, release: str) -> None:
    assert Spoken({1: fetch}, 1.0).release == release


def test_capabilities_are_requests_that_are_there() -> None:
    hubs = Spoken({0: 7, 1: 11, 3: 9, 22: 1}, 1.0).capabilities
    assert hubs["idempotent producers"]
    assert hubs["record headers"]
    assert not hubs["create topics"]
    assert not hubs["topic ids"]


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda tail: struct.pack(">ihi", 1, 0, 5) + tail)))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    try:
        found = parse(data)
    except (ValueError, struct.error):
        return
    assert all(isinstance(number, int) for number in found)
