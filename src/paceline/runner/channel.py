"""Messages between the runner, the warm server and the processes of a case: JSON in checked packets."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import zlib
from typing import Any

# A packet larger than the socket's buffer is refused by the kernel, so long messages travel in parts.
_PART = 60_000
_MOST = 1 << 30  # bytes of a message; what claims to be longer is not one
_HEADER = struct.Struct("!8s?II")  # the mark, whether more parts follow, length and checksum of this one
_MARK = b"paceline"
_HIDDEN = 1000  # above what code that goes through its descriptors usually tries, in a table of the usual size


class Channel:
    """One end of a connection on this machine; file descriptors can travel with a message.

    The process of a case has its end among its descriptors, where the code that it runs can write anything. What is not
    a whole packet of ours is counted in `rubbish` and passed over.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rubbish = 0  # packets that were passed over
        self._owner = os.getpid()
        self._parts: list[bytes] = []
        self._length = 0  # of the parts so far

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two connected ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Channel:
        """An end that was inherited or received."""
        return cls(socket.socket(fileno=descriptor))

    @classmethod
    def hidden(cls, descriptor: int) -> Channel:
        """An end that was received, out of the way of careless code: with a high number, and closed by exec."""
        try:
            moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIDDEN)
        except OSError:  # this process may not have so many
            os.set_inheritable(descriptor, False)
            return cls.of_descriptor(descriptor)
        os.close(descriptor)
        return cls.of_descriptor(moved)

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send one message; raises BrokenPipeError or ConnectionError if nobody is there."""
        if os.getpid() != self._owner:
            raise PermissionError("a fork of the process that has the channel may not send")
        data = json.dumps(message, separators=(",", ":")).encode()
        parts = [data[at : at + _PART] for at in range(0, len(data), _PART)]
        for part in parts[:-1]:
            self.connection.sendall(_packet(part, more=True))
        socket.send_fds(self.connection, [_packet(parts[-1], more=False)], descriptors or [])

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and what came with it; None when the other end is gone. Waits."""
        try:
            while (received := self.read_packet()) is None:
                pass
        except EOFError:
            return None
        return received

    def read_packet(self) -> tuple[dict[str, Any], list[int]] | None:
        """One packet more: the message that it completes, if any. Raises EOFError when the other end is gone."""
        try:
            size = _HEADER.size + _PART
            packet, descriptors, _flags, _address = socket.recv_fds(self.connection, size, 4)
        except ConnectionError:
            raise EOFError from None
        if not packet and self._is_hung_up():
            raise EOFError
        message = self._complete(packet)
        if message is not None:
            return message, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def close(self) -> None:
        self.connection.close()

    def _is_hung_up(self) -> bool:
        """Whether the other end is closed; if not, somebody has sent an empty packet."""
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _complete(self, packet: bytes) -> dict[str, Any] | None:
        """The message of which this is the last part; None if more follow, or if it is rubbish."""
        part = packet[_HEADER.size :]
        is_ours = len(packet) > _HEADER.size
        mark, more, length, check = _HEADER.unpack_from(packet) if is_ours else (b"", False, 0, 0)
        if mark != _MARK or length != len(part) or check != zlib.crc32(part):
            self.rubbish += 1
            return None
        self._parts.append(part)
        self._length += length
        if more and self._length <= _MOST:
            return None
        data, self._parts, self._length = b"" if more else b"".join(self._parts), [], 0
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self.rubbish += 1
            return None
        return message


def _packet(part: bytes, *, more: bool) -> bytes:
    return _HEADER.pack(_MARK, more, len(part), zlib.crc32(part)) + part
