"""A TCP line with a round trip: what goes in comes out later, as much of it as before.

    python -m mirrorlake.bench.delay PORT UPSTREAM_PORT SECONDS

Each direction is a queue of chunks with the time at which each is due: a reader fills it, a writer empties it. So the
delay is paid once, not once for every chunk. It runs in a process of its own, beside whom it serves.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections import deque

from mirrorlake.lab.settings import HOST

CHUNK_BYTES = 256 << 10
# More than any client sends without hearing back; beyond that the reader waits, as on a real line.
MOST_HELD_BYTES = 64 << 20


class DelayLine:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, seconds: float) -> None:
        self._source = source
        self._sink = sink
        self._seconds = seconds
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._changed = threading.Condition()

    def start(self) -> None:
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        data = b"x"
        while data:
            try:
                data = self._source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            with self._changed:
                self._changed.wait_for(lambda: self._held_bytes < MOST_HELD_BYTES)
                self._held.append((time.monotonic() + self._seconds, data))
                self._held_bytes += len(data)
                self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held)
                due, data = self._held[0]
            time.sleep(max(0.0, due - time.monotonic()))
            if not self._deliver(data):
                return
            with self._changed:
                self._held.popleft()
                self._held_bytes -= len(data)
                self._changed.notify_all()

    def _deliver(self, data: bytes) -> bool:
        """False at the end of the stream, which is passed on like everything else."""
        try:
            if data:
                self._sink.sendall(data)
                return True
            self._sink.shutdown(socket.SHUT_WR)
        except OSError:
            # The sink is gone: let the source's side hear of it.
            with contextlib.suppress(OSError):
                self._source.shutdown(socket.SHUT_RDWR)
        return False


def serve(port: int, upstream_port: int, seconds: float) -> None:
    """Until killed; `seconds` one way."""
    with socket.create_server((HOST, port), backlog=128) as listener:
        while True:
            client, _ = listener.accept()
            try:
                upstream = socket.create_connection((HOST, upstream_port))
            except OSError:
                client.close()
                continue
            for side in (client, upstream):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            DelayLine(client, upstream, seconds).start()
            DelayLine(upstream, client, seconds).start()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
