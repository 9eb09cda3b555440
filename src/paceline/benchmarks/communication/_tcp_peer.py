"""The other end of a TCP measurement: echoes small messages, swallows large ones.

On another host: python -m paceline.benchmarks.communication._tcp_peer --bind ADDRESS [--port 18500]
It stores nothing that it receives, and answers only those who speak its protocol.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import threading
from contextlib import suppress

DEFAULT_PORT = 18500
MAGIC = b"PACELINE"
# Magic, what to do, and the size of a message; the answer to it is the magic alone.
GREETING = struct.Struct("!8sBQ")
COUNT = struct.Struct("!Q")
ECHO, SWALLOW = 1, 2
LARGEST_ECHO = 16 * 1024**2
BUFFER = 1024**2
GREETING_SECONDS = 10.0


def receive_exactly(connection: socket.socket, buffer: memoryview) -> bool:
    """Fill the buffer; False if the other side has closed instead."""
    while buffer:
        received = connection.recv_into(buffer)
        if received == 0:
            return False
        buffer = buffer[received:]
    return True


def serve(listener: socket.socket) -> None:
    """Answer every client, each in a thread, for as long as the process lives."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(GREETING_SECONDS)
        greeting = bytearray(GREETING.size)
        if not receive_exactly(connection, memoryview(greeting)):
            return
        magic, kind, size = GREETING.unpack(greeting)
        if magic != MAGIC or kind not in (ECHO, SWALLOW) or (kind == ECHO and not 0 < size <= LARGEST_ECHO):
            return
        connection.settimeout(None)
        connection.sendall(MAGIC)
        buffer = memoryview(bytearray(size if kind == ECHO else BUFFER))
        if kind == ECHO:
            while receive_exactly(connection, buffer):
                connection.sendall(buffer)
            return
        # Again and again: a count, so many bytes, and the count back when all of them are here.
        announced = bytearray(COUNT.size)
        while receive_exactly(connection, memoryview(announced)):
            (left,) = COUNT.unpack(announced)
            while left:
                received = connection.recv_into(buffer, min(left, BUFFER))
                if received == 0:
                    return
                left -= received
            connection.sendall(announced)


def main() -> None:
    """Listen, say on which port, and serve."""
    parser = argparse.ArgumentParser(description="The other end of Paceline's tcp benchmark.")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on (default: this host alone)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on; 0 takes a free one")
    chosen = parser.parse_args()
    try:
        family = socket.getaddrinfo(chosen.bind, chosen.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((chosen.bind, chosen.port), family=family, backlog=128)
    except OSError as error:
        parser.exit(2, f"cannot listen on {chosen.bind}, port {chosen.port}: {error.strerror or error}\n")
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        serve(listener)


if __name__ == "__main__":
    main()
