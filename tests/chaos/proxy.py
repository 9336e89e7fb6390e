"""A TCP proxy before a broker, whose faults can be switched while clients are connected.

The broker advertises the proxy's port and listens on another, so every byte of a client passes here. Requests are
cut into Kafka's frames, so that a fault can wait for the request it is about: a produce request whose
acknowledgement is lost is the one that matters most.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

HOST = "127.0.0.1"
CHUNK = 16_384
PRODUCE = 0  # the number of the request in Kafka's protocol

PASS, REFUSE, BLACKHOLE, RESET, DELAY, THROTTLE, HALF_CLOSE, DROP_RESPONSE, HOLD, NO_IDEMPOTENCE = MODES = (
    "pass",
    "refuse",  # nobody listens
    "blackhole",  # connections stay, nothing moves; what was sent moves on when the fault ends
    "reset",  # every connection is reset after `every_bytes`
    "delay",  # every chunk waits `seconds`
    "throttle",  # `bytes_per_second` for each connection and direction
    "half-close",  # the broker's side says it is done; the client may still send
    "drop-response",  # produce requests land, from then on the connection says nothing more
    "hold",  # a produce request does not land, and its connection stands still, until `release`
    "no-idempotence",  # to whoever connects the broker says that it does not know InitProducerId
)
CUT, STARVED, RESETS, HALF_CLOSES, HELD = "connections cut", "connections starved", "resets", "half-closes", "held"
DELAYED, THROTTLED, DROPPED, UNHEARD = "bytes delayed", "bytes throttled", "responses dropped", "answers changed"
ACCEPTED = "connections accepted"
"""What is counted, so that a row can tell that its fault was there. Who is refused is not: nobody listens then, and so
what was cut off at its start is counted instead."""

# Of the kinds that a broker knows it tells number, lowest and highest version, two bytes each.
INIT_PRODUCER_ID = re.compile(rb"\x00\x16\x00\x00(?=\x00[\x00-\x1f])")
UNHEARD_OF = b"\x7f\xff\x00\x00"


class Frames:
    """Follows a stream of requests: tells the kind of each as its header comes by."""

    def __init__(self) -> None:
        self.kind = -1  # of the request that came by last
        self.left_bytes = 0  # of it, still to come
        self._head = b""

    def heads(self, data: bytes) -> Iterator[tuple[int, int]]:
        """The kind of each request that begins in here, and where what follows its head begins."""
        size = len(data)
        while data:
            if self.left_bytes:
                skipped = min(self.left_bytes, len(data))
                self.left_bytes, data = self.left_bytes - skipped, data[skipped:]
                continue
            wanted = 6 - len(self._head)  # 4 bytes of length, 2 of kind
            self._head, data = self._head + data[:wanted], data[wanted:]
            if len(self._head) == 6:
                length, self.kind = struct.unpack(">ih", self._head)
                self._head, self.left_bytes = b"", max(0, length - 2)
                yield self.kind, size - len(data)


@dataclass(eq=False)
class Connection:
    """A client's connection and ours to the broker."""

    client: socket.socket
    broker: socket.socket
    port: int = 0
    """The client's own."""
    held: bool = False
    """Nothing moves on this connection, whatever others do."""
    deaf: bool = False
    """The client hears nothing more."""
    greeted: bool = False
    """The client heard the first answer: what the broker knows."""
    starved: bool = False
    """The client sent something that nobody took."""
    half_closed: bool = False
    moved_bytes: int = 0
    frames: Frames = field(default_factory=Frames)

    @property
    def is_sending(self) -> bool:
        return self.frames.kind == PRODUCE and self.frames.left_bytes > 0

    def reset(self) -> None:
        """RST both sides: what waits in buffers is gone."""
        for side in (self.client, self.broker):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        for side in (self.client, self.broker):
            with contextlib.suppress(OSError):
                side.close()


class Proxy:
    """Listens on `port` and forwards to `upstream_port`; `set` changes the fault for old and new connections."""

    def __init__(self, port: int, upstream_port: int) -> None:
        self.port = port
        self.upstream_port = upstream_port
        self.mode = PASS
        self.counts: Counter[str] = Counter()
        self.swallowed_bytes = 0
        self.produce_requests = 0
        self._refused_topic, self._has_refused = b"", threading.Event()
        self._options: dict[str, float] = {}
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._listener: socket.socket | None = self._listen()
        self._thread = threading.Thread(target=self._accept, name=f"proxy-{port}", daemon=True)
        self._thread.start()

    # --- switching ---

    def set(self, mode: str, **options: float) -> None:
        if mode not in MODES:
            raise ValueError(f"no mode {mode}; there are {', '.join(MODES)}")
        self._options, self.mode = options, mode
        for connection in self.connections():
            connection.starved = False
        if mode == REFUSE:
            self._close_listener()
            self._count(CUT, len(self.connections()))
            self.reset_all()
        elif self._listener is None and not self._closed.is_set():
            self._listener = self._listen()
        if mode == HALF_CLOSE:
            for connection in self.connections():
                self._half_close(connection)

    def reset_all(self) -> None:
        for connection in self.connections():
            connection.reset()

    def sending_ports(self) -> list[int]:
        """The ports of clients that are in the middle of a produce request."""
        return [connection.port for connection in self.connections() if connection.is_sending]

    def holds(self) -> bool:
        return any(connection.held for connection in self.connections())

    def release(self) -> None:
        for connection in self.connections():
            connection.held = False

    def refuse_produce(self, topic: str) -> threading.Event:
        """The next produce request to this topic goes to one that is not there, so that the broker refuses it."""
        self._refused_topic, self._has_refused = topic.encode(), threading.Event()
        return self._has_refused

    def connections(self) -> list[Connection]:
        with self._lock:
            return list(self._connections)

    def close(self) -> None:
        self._closed.set()
        self._close_listener()
        self._thread.join(5)
        self.reset_all()

    def _count(self, kind: str, more: int = 1) -> None:
        with self._lock:
            self.counts[kind] += more

    # --- moving bytes ---

    def _listen(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, self.port))
        listener.listen(128)
        return listener

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # at once, even while another thread waits on it
            listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                ready = self._listener is not None and select.select([self._listener], [], [], 0.05)[0]
                if ready and self._listener is not None:
                    # A broker that stands still lets us wait; others who knock must not wait behind.
                    client = self._listener.accept()[0]
                    threading.Thread(target=self._connect, args=(client,), daemon=True).start()
                elif self._listener is None:
                    time.sleep(0.05)
            except (OSError, ValueError):
                time.sleep(0.05)  # closed while we looked

    def _connect(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection((HOST, self.upstream_port), timeout=5)
        except OSError:
            client.close()
            return
        broker.settimeout(None)
        for side in (client, broker):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(client, broker, client.getpeername()[1])
        self._count(ACCEPTED)
        with self._lock:
            self._connections.add(connection)
        for move in (self._requests, self._responses):
            threading.Thread(target=self._pump, args=(connection, move), daemon=True).start()

    def _pump(self, connection: Connection, move: Callable[[Connection], bool]) -> None:
        try:
            while self._go_on(connection) and move(connection):
                pass
        except (OSError, ValueError):
            connection.reset()  # one side is gone
        if move == self._requests:
            # The client is done; what it sent still lands, and the broker then hangs up by itself.
            with contextlib.suppress(OSError):
                connection.broker.shutdown(socket.SHUT_WR)
            return
        connection.close()
        with self._lock:
            self._connections.discard(connection)

    def _go_on(self, connection: Connection) -> bool:
        """Wait while nothing may move."""
        while (connection.held or self.mode == BLACKHOLE) and not self._closed.is_set():
            self._note_starved(connection)
            time.sleep(0.02)
        return not self._closed.is_set()

    def _note_starved(self, connection: Connection) -> None:
        waits = self.mode == BLACKHOLE and not connection.starved
        if waits and select.select([connection.client], [], [], 0)[0]:
            connection.starved = True
            self._count(STARVED)

    def _requests(self, connection: Connection) -> bool:
        data = self._receive(connection, connection.client)
        if data is None:
            return True
        if places := [at for kind, at in connection.frames.heads(data) if kind == PRODUCE]:
            self.produce_requests += 1
            data = data[: places[0]] + self._misspelt(data[places[0] :])
            connection.deaf = connection.deaf or self.mode == DROP_RESPONSE
            connection.held = self.mode == HOLD
            self._count(HELD, int(connection.held))
            self._go_on(connection)
        return self._give(connection, connection.broker, data)

    def _misspelt(self, request: bytes) -> bytes:
        topic = self._refused_topic
        if not topic or topic not in request:
            return request
        self._refused_topic = b""
        self._has_refused.set()
        return request.replace(topic, topic[:-1] + b"?", 1)

    def _responses(self, connection: Connection) -> bool:
        data = self._receive(connection, connection.broker)
        if data is None:
            return True
        if connection.deaf:
            self.swallowed_bytes += len(data)
            self._count(DROPPED, int(bool(data)))
            return bool(data)
        if self.mode == NO_IDEMPOTENCE and not connection.greeted:
            data, changed = INIT_PRODUCER_ID.subn(UNHEARD_OF, data, count=1)
            self._count(UNHEARD, changed)
        connection.greeted = True
        try:
            return self._give(connection, connection.client, data)
        except (BrokenPipeError, ConnectionResetError):
            connection.deaf = True  # the client left; the broker may still be reading what it sent
            return True

    def _receive(self, connection: Connection, side: socket.socket) -> bytes | None:
        """None where nothing came, or where a fault began meanwhile."""
        if not select.select([side], [], [], 0.05)[0] or connection.held or self.mode == BLACKHOLE:
            return None
        return side.recv(CHUNK)

    def _give(self, connection: Connection, side: socket.socket, data: bytes) -> bool:
        connection.moved_bytes += len(data)
        if self.mode == RESET and connection.moved_bytes > self._options.get("every_bytes", 50_000):
            self._count(RESETS)
            connection.reset()
            return False
        if self.mode == HALF_CLOSE:
            self._half_close(connection)
        if self.mode == DELAY:
            self._count(DELAYED, len(data))
            time.sleep(self._options.get("seconds", 0.1))
        if self.mode == THROTTLE:
            self._count(THROTTLED, len(data))
            time.sleep(len(data) / self._options.get("bytes_per_second", 125_000))
        side.sendall(data)
        return bool(data)

    def _half_close(self, connection: Connection) -> None:
        if not connection.half_closed:
            connection.half_closed = True
            self._count(HALF_CLOSES)
        with contextlib.suppress(OSError):
            connection.client.shutdown(socket.SHUT_WR)
