"""Each fault of the proxy that the rows of `make chaos` stand on, and that the proxy counts what it did."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from proxy import (
    ACCEPTED,
    BLACKHOLE,
    CUT,
    DELAY,
    DELAYED,
    DROP_RESPONSE,
    DROPPED,
    HALF_CLOSE,
    HALF_CLOSES,
    HELD,
    HOLD,
    HOST,
    MODES,
    NO_IDEMPOTENCE,
    PASS,
    REFUSE,
    RESET,
    RESETS,
    STARVED,
    THROTTLE,
    THROTTLED,
    UNHEARD,
    UNHEARD_OF,
    Proxy,
)

from mirrorlake.lab.settings import free_ports

METADATA, PRODUCE = 3, 0
KNOWS_INIT_PRODUCER_ID = b"\x00\x16\x00\x00\x00\x05"


def request(kind: int, content: bytes = b"hello") -> bytes:
    """A frame of Kafka's: length, kind, the rest."""
    return struct.pack(">ih", len(content) + 2, kind) + content


class Echo:
    """A broker that gives back what it gets, and keeps it."""

    def __init__(self, port: int) -> None:
        self.received = b""
        self._listener = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._echo, args=(self._listener.accept()[0],), daemon=True).start()

    def _echo(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while data := client.recv(65_536):
                self.received += data
                client.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def ports() -> tuple[int, int]:
    port, upstream = free_ports(2)
    return port, upstream


@pytest.fixture
def broker(ports: tuple[int, int]) -> Iterator[Echo]:
    echo = Echo(ports[1])
    yield echo
    echo.close()


@pytest.fixture
def proxy(ports: tuple[int, int], broker: Echo) -> Iterator[Proxy]:
    proxy = Proxy(*ports)
    yield proxy
    proxy.close()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    """Connected, and known to the proxy."""
    with connect(proxy) as connected:
        assert ask(connected, request(METADATA)) == request(METADATA)
        yield connected


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=5)


def ask(client: socket.socket, data: bytes) -> bytes:
    """What comes back, as long as what was sent."""
    client.sendall(data)
    return receive(client, len(data))


def ask_often(client: socket.socket, data: bytes) -> None:
    for _ in range(20):
        ask(client, data)


def receive(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := client.recv(size - len(found))):
        found += data
    return found


def hears_nothing(client: socket.socket, seconds: float = 0.3) -> bool:
    client.settimeout(seconds)
    try:
        return not client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "waited 5 s"
        time.sleep(0.01)


def test_what_passes_passes_unchanged_and_counts_as_no_fault(proxy: Proxy, client: socket.socket) -> None:
    data = request(PRODUCE, bytes(100_000))
    assert ask(client, data) == data
    assert dict(proxy.counts) == {ACCEPTED: 1, HELD: 0}
    assert proxy.produce_requests == 1


def test_refuse_cuts_and_lets_nobody_in(proxy: Proxy, client: socket.socket) -> None:
    proxy.set(REFUSE)
    assert proxy.counts[CUT] == 1
    with pytest.raises(ConnectionError):
        ask_often(client, request(METADATA))
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.set(PASS)
    with connect(proxy) as again:
        assert ask(again, request(METADATA)) == request(METADATA)


def test_blackhole_keeps_what_was_sent_until_it_ends(proxy: Proxy, client: socket.socket, broker: Echo) -> None:
    before = broker.received
    proxy.set(BLACKHOLE)
    assert proxy.counts[STARVED] == 0
    client.sendall(request(METADATA))
    assert hears_nothing(client)
    soon(lambda: proxy.counts[STARVED] == 1)
    assert broker.received == before
    proxy.set(PASS)
    assert receive(client, len(request(METADATA))) == request(METADATA)


def test_reset_ends_a_connection_after_so_many_bytes(proxy: Proxy, client: socket.socket) -> None:
    proxy.set(RESET, every_bytes=1000)
    assert ask(client, request(METADATA)) == request(METADATA)
    with pytest.raises(ConnectionError):
        ask_often(client, request(METADATA, bytes(500)))
    assert proxy.counts[RESETS] == 1


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [(DELAY, DELAYED, {"seconds": 0.1}), (THROTTLE, THROTTLED, {"bytes_per_second": 10_000})],
)
def test_slow_modes_take_their_time_both_ways(
    proxy: Proxy, client: socket.socket, mode: str, kind: str, options: dict[str, float]
) -> None:
    data = request(METADATA, bytes(1000))
    proxy.set(mode, **options)
    begun = time.monotonic()
    assert ask(client, data) == data
    assert time.monotonic() - begun >= 0.19
    assert proxy.counts[kind] == 2 * len(data)


def test_half_close_ends_what_the_broker_says_and_not_what_it_hears(
    proxy: Proxy, client: socket.socket, broker: Echo
) -> None:
    proxy.set(HALF_CLOSE)
    assert client.recv(1) == b""
    client.sendall(request(METADATA, b"still heard"))
    soon(lambda: b"still heard" in broker.received)
    assert proxy.counts[HALF_CLOSES] == 1


def test_drop_response_lets_a_produce_request_land_and_says_nothing(
    proxy: Proxy, client: socket.socket, broker: Echo
) -> None:
    proxy.set(DROP_RESPONSE)
    assert ask(client, request(METADATA)) == request(METADATA)
    assert proxy.counts[DROPPED] == 0
    client.sendall(request(PRODUCE, b"landed"))
    assert hears_nothing(client)
    assert b"landed" in broker.received
    soon(lambda: proxy.counts[DROPPED] == 1)


def test_hold_keeps_a_produce_request_until_it_is_released(proxy: Proxy, client: socket.socket, broker: Echo) -> None:
    proxy.set(HOLD)
    client.sendall(request(PRODUCE, b"late"))
    soon(proxy.holds)
    proxy.set(PASS)
    assert hears_nothing(client)
    assert (b"late" in broker.received, proxy.counts[HELD]) == (False, 1)
    proxy.release()
    assert receive(client, len(request(PRODUCE, b"late"))) == request(PRODUCE, b"late")


def test_no_idempotence_changes_the_first_answer_only(proxy: Proxy, broker: Echo) -> None:
    proxy.set(NO_IDEMPOTENCE)
    data = request(18, KNOWS_INIT_PRODUCER_ID)
    with connect(proxy) as client:
        assert ask(client, data) == data.replace(KNOWS_INIT_PRODUCER_ID[:4], UNHEARD_OF)
        assert ask(client, data) == data
    assert proxy.counts[UNHEARD] == 1


def test_a_produce_request_is_misspelt_once(proxy: Proxy, client: socket.socket) -> None:
    refused = proxy.refuse_produce("topic")
    assert ask(client, request(METADATA, b"to topic")) == request(METADATA, b"to topic")
    assert not refused.is_set()
    assert ask(client, request(PRODUCE, b"to topic")) == request(PRODUCE, b"to topi?")
    assert refused.is_set()
    assert ask(client, request(PRODUCE, b"to topic")) == request(PRODUCE, b"to topic")


def test_who_is_in_the_middle_of_a_produce_request_is_known(proxy: Proxy, client: socket.socket) -> None:
    assert proxy.sending_ports() == []
    data = request(PRODUCE, bytes(1000))
    client.sendall(data[:500])
    soon(lambda: proxy.sending_ports() == [client.getsockname()[1]])
    client.sendall(data[500:])
    assert receive(client, len(data)) == data
    assert proxy.sending_ports() == []


def test_a_mode_that_there_is_not_is_refused(proxy: Proxy) -> None:
    with pytest.raises(ValueError, match="there are"):
        proxy.set("slow")
    assert proxy.mode in MODES
