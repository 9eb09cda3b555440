"""How the first of a gang enters its peers: `python -m paceline.service.follower.relay FOLLOWER COMMAND...`.

It takes the place of a remote shell. To the follower itself that is the command; to a peer, it is the connection to
where that waits. It runs in the folder of the attempt, whose assignment says who is where.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from paceline.service.follower.spool import Spool

CONNECT_SECONDS = 10.0
_SOON = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds until a peer that is cut off is noticed


def watch_closely(connection: socket.socket) -> None:
    """Have the system end a connection whose other side is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SOON.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def main() -> None:
    """Connect standard input and output with a peer, or become the command."""
    follower, *command = sys.argv[1:]
    assignment = Spool(Path.cwd()).assignment
    if assignment is None:
        sys.exit(f"no assignment in {Path.cwd()}")
    meeting = dict(zip(assignment.peers, assignment.meetings, strict=True)).get(follower)
    if meeting is None:  # it is not a peer, but this follower itself
        os.execv(command[0], command)
    try:
        connection = socket.create_connection((meeting.address, meeting.port), timeout=CONNECT_SECONDS)
        connection.settimeout(None)
        watch_closely(connection)
        connection.sendall(f"{meeting.secret}\n".encode())  # by which the peer knows that it is the right one
    except OSError as error:
        sys.exit(f"{follower} cannot be reached at {meeting.address}, port {meeting.port}: {error}")

    def send_orders() -> None:
        with suppress(OSError):
            while data := os.read(sys.stdin.fileno(), 1 << 16):
                connection.sendall(data)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)  # no more orders: the peer ends

    threading.Thread(target=send_orders, daemon=True).start()
    with suppress(OSError):
        while data := connection.recv(1 << 16):
            view = memoryview(data)
            while view:
                view = view[os.write(sys.stdout.fileno(), view) :]


if __name__ == "__main__":
    main()
