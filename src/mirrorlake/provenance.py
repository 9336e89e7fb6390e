"""One compact header that says where a relayed record came from.

Layout, big-endian: version 1 B, hops 1 B, epoch 4 B, flow 8 B, origin cluster 8 B, source topic id 16 B,
source partition 4 B, [origin offset 8 B when hops > 1], source offset 8 B. Names are hashed: the header
only has to be recognised. Everything but the offset is the same for a whole partition, so a sender packs the
front once.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from mirrorlake.records import branch

HEADER = "mirrorlake"
VERSION = 1
_FRONT = struct.Struct(">BBI8s8s16sI")
_OFFSET = struct.Struct(">q")
pack_offset = _OFFSET.pack


def digest(name: str) -> bytes:
    """Eight bytes that stand for a flow's or a cluster's name."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def topic_id_bytes(topic_id: str) -> bytes:
    """A topic id as 16 bytes; brokers without topic ids give an empty one. A branch of a log stands for itself."""
    if branch(topic_id):
        return hashlib.blake2b(topic_id.encode(), digest_size=16).digest()
    return uuid.UUID(topic_id).bytes if topic_id else bytes(16)


@dataclass(frozen=True)
class Provenance:
    """Where a record was read, by which flow and epoch, and where it was first written."""

    flow: bytes
    origin: bytes
    topic_id: bytes
    partition: int
    offset: int
    origin_offset: int
    hops: int
    epoch: int

    def encode(self) -> bytes:
        front = encode_front(self.flow, self.origin, self.topic_id, self.partition, self.hops, self.epoch)
        middle = pack_offset(self.origin_offset) if self.hops > 1 else b""
        return front + middle + pack_offset(self.offset)


def encode_front(flow: bytes, origin: bytes, topic_id: bytes, partition: int, hops: int, epoch: int) -> bytes:
    # A record that claims 255 hops is left out in any case; counting it must not fail.
    return _FRONT.pack(VERSION, min(hops, 255), epoch & 0xFFFFFFFF, flow, origin, topic_id, partition)


def decode(value: bytes | None) -> Provenance | None:
    """The provenance in a header's value, or None where it is not ours to read."""
    if value is None or len(value) < _FRONT.size + 8 or value[0] != VERSION:
        return None
    _, hops, epoch, flow, origin, topic_id, partition = _FRONT.unpack_from(value)
    expected_size = _FRONT.size + (16 if hops > 1 else 8)
    if hops < 1 or len(value) != expected_size:
        return None
    (origin_offset,) = _OFFSET.unpack_from(value, _FRONT.size)
    (offset,) = _OFFSET.unpack_from(value, expected_size - 8)
    return Provenance(flow, origin, topic_id, partition, offset, origin_offset, hops, epoch)


def find(headers: Sequence[tuple[str, bytes | None]] | None) -> Provenance | None:
    """The last provenance among a record's headers."""
    for key, value in reversed(headers or ()):
        if key == HEADER and (found := decode(value)):
            return found
    return None


ENCODED_BYTES = len(HEADER) + _FRONT.size + 16 + 8
"""What the header adds to a record at most, with its framing: counted against the target's limit."""
