"""Where connections to a leader wait until they have sent the header of a request.

Nothing is made for them but a socket and a few bytes, so that a crowd that never says what it wants costs the leader a
tenth of what a connection of its server costs, and those who do say it are soon with the server.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from paceline.service.api.connections import Accepted, Gate, Peer

_AT_ONCE = 32  # that are accepted before others have their turn
_PAUSE = 0.01  # seconds until those that were told to go are gone
_MOST_HEADER = 1 << 16  # bytes; the server refuses a longer one by itself
_END = re.compile(rb"\n\r?\n")  # of a header, as the server takes it

Factory = Callable[[bytes], asyncio.Protocol]  # of what was sent already


class WaitingRoom:
    """Accepts whom the gate admits, and hands them over once they have something to say."""

    def __init__(
        self, listening: socket.socket, gate: Gate, factory: Factory, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listening = listening
        self._gate = gate
        self._factory = factory
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sent: dict[Accepted, bytearray] = {}
        self._handing_over: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        self._open()

    def close(self) -> None:
        """Accept nobody else; who still waits has to go."""
        self._loop.remove_reader(self._listening)
        for waiting in list(self._sent):
            waiting.close()

    def _open(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listening)
        self._loop.call_later(_PAUSE, self._open)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self._gate.is_pausing:
                return self._pause()
            try:
                plain, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return None
            except OSError:  # no descriptor is left, of this process or of the machine
                return self._pause()
            accepted = Accepted(plain)
            if self._gate.admit(peer, accepted):
                self._seat(accepted, peer)
            else:
                accepted.close()
        return None

    def _seat(self, accepted: Accepted, peer: Peer) -> None:
        accepted.setblocking(False)
        self._sent[accepted] = bytearray()

        def leave() -> None:
            self._stand_up(accepted)
            self._gate.leave(peer)

        accepted.on_dismiss = accepted.close
        accepted.on_close = leave
        self._loop.add_reader(accepted, self._read, accepted, peer)

    def _stand_up(self, accepted: Accepted) -> bytes:
        sent = self._sent.pop(accepted, None)
        if sent is None:
            return b""
        self._loop.remove_reader(accepted)
        return bytes(sent)

    def _read(self, accepted: Accepted, peer: Peer) -> None:
        """Take what was sent; with TLS that is for the handshake, of which nothing is known here."""
        if not self._tls and not self._has_header(accepted):
            return
        sent = self._stand_up(accepted)
        accepted.on_dismiss = None
        accepted.on_close = lambda: self._gate.leave(peer)
        task = self._loop.create_task(self._hand_over(accepted, sent))
        self._handing_over.add(task)
        task.add_done_callback(self._handing_over.discard)

    def _has_header(self, accepted: Accepted) -> bool:
        try:
            data = accepted.recv(_MOST_HEADER)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            accepted.close()
            return False
        sent = self._sent[accepted]
        searched = max(0, len(sent) - 2)
        sent += data
        return _END.search(sent, searched) is not None or len(sent) >= _MOST_HEADER

    async def _hand_over(self, accepted: Accepted, sent: bytes) -> None:
        with suppress(OSError, asyncio.CancelledError):
            await self._loop.connect_accepted_socket(lambda: self._factory(sent), accepted, ssl=self._tls)
            return
        accepted.close()
