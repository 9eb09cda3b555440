"""Messages between the runner, the warm server and the processes of a case: JSON in packets that keep their bounds."""

from __future__ import annotations

import json
import socket
from typing import Any

# A packet larger than the socket's buffer is refused by the kernel, so long messages travel in parts.
_PART = 60_000
_MORE, _LAST = b"+", b"."


class Channel:
    """One end of a connection on this machine; file descriptors can travel with a message."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._parts: list[bytes] = []

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two connected ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Channel:
        """An end that was inherited or received."""
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send one message; raises BrokenPipeError or ConnectionError if nobody is there."""
        data = json.dumps(message, separators=(",", ":")).encode()
        parts = [data[at : at + _PART] for at in range(0, len(data), _PART)]
        for part in parts[:-1]:
            self.connection.sendall(_MORE + part)
        socket.send_fds(self.connection, [_LAST + parts[-1]], descriptors or [])

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and what came with it; None when the other end is gone. Waits."""
        while True:
            try:
                packet, descriptors, _flags, _address = socket.recv_fds(self.connection, _PART + len(_LAST), 4)
            except ConnectionError:
                return None
            if not packet:
                return None
            self._parts.append(packet[1:])
            if packet[:1] == _LAST:
                data, self._parts = b"".join(self._parts), []
                return json.loads(data), descriptors

    def close(self) -> None:
        self.connection.close()
