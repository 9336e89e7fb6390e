"""The header that says where a record came from: whatever bytes come in, nothing raises."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlake.provenance import (
    ENCODED_BYTES,
    HEADER,
    VERSION,
    Provenance,
    decode,
    digest,
    encode_front,
    find,
    pack_offset,
    topic_id_bytes,
)

OFFSETS = st.integers(0, 2**63 - 1)


@st.composite
def provenances(draw: st.DrawFn) -> Provenance:
    hops, offset = draw(st.integers(1, 255)), draw(OFFSETS)
    return Provenance(
        flow=draw(st.binary(min_size=8, max_size=8)),
        origin=draw(st.binary(min_size=8, max_size=8)),
        topic_id=draw(st.binary(min_size=16, max_size=16)),
        partition=draw(st.integers(0, 2**31 - 1)),
        offset=offset,
        origin_offset=draw(OFFSETS) if hops > 1 else offset,
        hops=hops,
        epoch=draw(st.integers(0, 2**32 - 1)),
    )


SAMPLE = Provenance(digest("f"), digest("c"), bytes(16), 3, 42, 42, 1, 7)


@given(provenances())
def test_what_is_encoded_decodes_to_the_same(provenance: Provenance) -> None:
    assert decode(provenance.encode()) == provenance


def test_branches_of_a_log_have_ids_of_their_own() -> None:
    plain = str(uuid.UUID(int=7))
    ids = [topic_id_bytes(each) for each in ("", "#1", plain, f"{plain}#1", f"{plain}#2")]
    assert len(set(ids)) == 5
    assert {len(each) for each in ids} == {16}
    assert ids[2] == uuid.UUID(int=7).bytes


@given(provenances())
def test_the_header_never_takes_more_room_than_is_counted(provenance: Provenance) -> None:
    assert len(HEADER) + len(provenance.encode()) <= ENCODED_BYTES


@given(provenances(), st.data())
def test_a_truncated_header_is_not_ours(provenance: Provenance, data: st.DataObject) -> None:
    encoded = provenance.encode()
    assert decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))]) is None


@given(provenances(), st.binary(min_size=1, max_size=9))
def test_a_header_with_something_behind_it_is_not_ours(provenance: Provenance, more: bytes) -> None:
    if provenance.hops == 1 and len(more) == 8:
        more += b"x"
    assert decode(provenance.encode() + more) is None


@given(provenances(), st.integers(0, 255).filter(lambda version: version != VERSION))
def test_another_version_is_not_ours(provenance: Provenance, version: int) -> None:
    assert decode(bytes([version]) + provenance.encode()[1:]) is None


@given(st.none() | st.binary(max_size=80))
def test_foreign_bytes_never_raise(value: bytes | None) -> None:
    decode(value)


def test_a_header_that_claims_no_hops_is_not_ours() -> None:
    encoded = SAMPLE.encode()
    assert decode(encoded[:1] + b"\0" + encoded[2:]) is None


def test_a_record_that_claims_255_hops_can_still_be_counted() -> None:
    front = encode_front(SAMPLE.flow, SAMPLE.origin, SAMPLE.topic_id, 0, 256, 1)
    assert front[1] == 255


def test_the_front_packed_once_plus_the_offset_is_the_whole_header() -> None:
    front = encode_front(SAMPLE.flow, SAMPLE.origin, SAMPLE.topic_id, SAMPLE.partition, 1, SAMPLE.epoch)
    assert front + pack_offset(SAMPLE.offset) == SAMPLE.encode()


def test_an_epoch_of_more_than_32_bits_keeps_its_low_bits() -> None:
    assert encode_front(SAMPLE.flow, SAMPLE.origin, bytes(16), 0, 1, 2**32 + 5)[2:6] == b"\0\0\0\5"


def test_find_takes_the_last_that_is_ours() -> None:
    newer = Provenance(digest("g"), digest("c"), bytes(16), 0, 1, 1, 1, 1)
    headers = [
        (HEADER, SAMPLE.encode()),
        ("x", b"1"),
        (HEADER, newer.encode()),
        (HEADER, b"theirs"),
        ("y", None),
    ]
    assert find(headers) == newer


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("other", SAMPLE.encode())],
        [(HEADER, None)],
        [(HEADER, b"")],
        [(HEADER.upper(), SAMPLE.encode())],
    ],
    ids=["no headers", "an empty list", "another name", "a null", "an empty value", "another case"],
)
def test_find_gives_nothing_for(headers: list[tuple[str, bytes | None]] | None) -> None:
    assert find(headers) is None


def test_topic_ids_are_16_bytes_and_an_unknown_one_is_zeros() -> None:
    topic_id = uuid.uuid4()
    assert topic_id_bytes(str(topic_id)) == topic_id.bytes
    assert topic_id_bytes(topic_id.hex) == topic_id.bytes
    assert topic_id_bytes("") == bytes(16)


def test_names_have_digests_of_8_bytes_that_differ() -> None:
    assert len(digest("a")) == 8
    assert digest("a") != digest("A")
