"""What a broker speaks: Kafka's ApiVersions, the one request that needs no login, asked by hand.

librdkafka keeps the answer to itself. It tells the release as far as versions of requests do, and what the broker can
do at all: managed services leave requests out.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mirrorlake.errors import ClusterUnreachable

API_VERSIONS = 18
TIMEOUT_SECONDS = 5.0
CAPABILITIES = {
    "create topics": 19,
    "idempotent producers": 22,
    "transactions": 24,
    "ACLs": 29,
    "read configurations": 32,
    "add partitions": 37,
    "alter configurations": 44,
}
PRODUCE, FETCH, METADATA = 0, 1, 3
# The highest version of Fetch, and the release that brought it.
RELEASES = {4: "0.11", 5: "1.0", 7: "1.1", 8: "2.0", 10: "2.1", 11: "2.3", 12: "2.7", 13: "3.1", 15: "3.5", 16: "3.7",
            17: "3.9", 18: "4.1"}  # fmt: skip
TOPIC_IDS_SINCE = 10  # of Metadata: Kafka 2.8
HEADERS_SINCE = 3  # of Produce: Kafka 0.11


@dataclass(frozen=True)
class Spoken:
    """Requests by number, with their highest version; and how long the answer took."""

    highest: Mapping[int, int]
    round_trip_ms: float

    @property
    def release(self) -> str:
        """The oldest release that speaks so."""
        fetch = self.highest.get(FETCH, -1)
        known = [release for version, release in RELEASES.items() if version <= fetch]
        return known[-1] if known else "before 0.11"

    @property
    def capabilities(self) -> dict[str, bool]:
        found = {name: number in self.highest for name, number in CAPABILITIES.items()}
        found["topic ids"] = self.highest.get(METADATA, -1) >= TOPIC_IDS_SINCE
        found["record headers"] = self.highest.get(PRODUCE, -1) >= HEADERS_SINCE
        return found


def ask(host: str, port: int, tls: bool) -> Spoken:
    """One request on a connection of its own. Trust is not at stake: nothing secret is sent, nothing is acted upon."""
    try:
        with _connected(host, port, tls) as connection:
            begun = time.monotonic()
            connection.sendall(_request())
            answer = _answer(connection)
            return Spoken(parse(answer), (time.monotonic() - begun) * 1000)
    except (OSError, struct.error, ValueError) as bad:
        raise ClusterUnreachable(
            f"{host}:{port} does not speak Kafka's protocol: {bad or type(bad).__name__}",
            "is it a Kafka listener, and is security.protocol the one it has?",
        ) from None


@contextlib.contextmanager
def _connected(host: str, port: int, tls: bool) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=TIMEOUT_SECONDS) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not tls:
            yield plain
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain, server_hostname=host) as wrapped:
            yield wrapped


def _request() -> bytes:
    """Version 0, which every broker answers: request, version, correlation, client; no body."""
    name = b"mirrorlake"
    body = struct.pack(f">hhih{len(name)}s", API_VERSIONS, 0, 1, len(name), name)
    return struct.pack(">i", len(body)) + body


def _answer(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    if not 10 <= length <= 1 << 20:
        raise ValueError("an answer of an impossible length")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionError("the connection was closed")
        found += piece
    return found


def parse(answer: bytes) -> dict[int, int]:
    """Correlation, error, then number, lowest and highest version of each request."""
    _, error, count = struct.unpack_from(">ihi", answer)
    if error or not 0 <= count <= (len(answer) - 10) // 6:
        raise ValueError(f"error {error}")
    rows = (struct.unpack_from(">hhh", answer, 10 + 6 * row) for row in range(count))
    return {number: highest for number, _, highest in rows}
