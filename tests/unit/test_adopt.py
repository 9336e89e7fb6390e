"""Aligning a target that MM2 filled with its source: position, places, duplicates, holes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.adopt import Alignment, align, parse_position
from mirrorlake.records import TopicPartition


def sides(source: str, target: str) -> Alignment:
    """Letters stand for records; a dash is an offset without one."""
    logs = [[(at, letter.encode()) for at, letter in enumerate(log) if letter != "-"] for log in (source, target)]
    return align(*logs)


@pytest.mark.parametrize(
    ("source", "target", "next_offset", "repeated", "missing"),
    [
        pytest.param("abcde", "abc", 3, [], [], id="in the middle"),
        pytest.param("abcde", "abcde", 5, [], [], id="all"),
        pytest.param("abcde", "", None, [], [], id="nothing yet"),
        pytest.param("a-b--c", "abc", 6, [], [], id="gaps"),
        pytest.param("abcdefg", "abcdbcdef", 6, [1, 2, 3], [], id="a restart"),
        pytest.param("abcdefg", "abcbcdbcde", 5, [1, 2, 1, 2, 3], [], id="two restarts"),
        pytest.param("abcdefg", "abef", 6, [], [2, 3], id="a hole"),
        pytest.param("cdef", "abcde", 3, [], [], id="the source forgot"),
        pytest.param("aaaaaa", "aaa", 3, [], [], id="all the same"),
        pytest.param("abcabc", "abca", 4, [], [], id="the same again"),
        pytest.param("abc", "xyz", None, [], [], id="strangers"),
    ],
)
def test_by_example(source: str, target: str, next_offset: int | None, repeated: list[int], missing: list[int]) -> None:
    found = sides(source, target)
    assert (found.next_offset, found.repeated, found.missing) == (next_offset, repeated, missing)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=8), st.integers(1, 40))
def test_after_any_restarts_the_position_is_the_first_record_that_never_arrived(
    runs: list[tuple[int, int]], size: int
) -> None:
    """MM2 begins again a few records before where it was, and copies on."""
    source = [(2 * at, b"%d" % at) for at in range(size)]
    target: list[tuple[int, bytes]] = []
    reached = again = position = 0
    for back, count in runs:
        position = max(0, position - back)
        for index in range(position, min(size, position + count)):
            target.append((len(target), source[index][1]))
            again += index < reached
            reached = max(reached, index + 1)
        position = min(size, position + count)
    found = align(source, target)
    assert found.next_offset == (source[reached - 1][0] + 1 if reached else None)
    assert (len(found.repeated), found.missing, found.unknown) == (again, [], [])
    assert [offset for offset, _ in found.pairs] == [offset for offset, _ in source[:reached]]
    assert all(target[place][1] == b"%d" % (offset // 2) for offset, place in found.pairs)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            b'["MirrorSourceConnector",{"cluster":"eu","partition":1,"topic":"t"}]',
            b'{"offset":5}',
            ("eu", TopicPartition("t", 1), 5),
        ),
        (
            b'["eu->us.MirrorSourceConnector",{"cluster":"eu","partition":0,"topic":"t"}]',
            b'{"offset":0}',
            ("eu", TopicPartition("t", 0), 0),
        ),
        (
            b'["MirrorSourceConnector",{"cluster":"eu","partition":1,"topic":"t"}]',
            None,
            ("eu", TopicPartition("t", 1), None),
        ),
        (b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"eu"}]', b'{"offset":5}', None),
        (b"not json", b"{}", None),
        (None, None, None),
        (b'["MirrorSourceConnector",{"topic":"t"}]', b'{"offset":5}', None),
    ],
)
def test_mm2s_notes_are_read_and_others_left(key: bytes | None, value: bytes | None, expected: object) -> None:
    assert parse_position(key, value) == expected
