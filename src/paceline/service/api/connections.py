"""Connections to a leader: how many there may be, of whom, and how long each may take to say what it wants.

They are counted as they are accepted, before a handshake or a header, so that no crowd at the front takes the
descriptors that the leader needs for its store and its followers. Where there is no room, who was silent longest goes,
of the address that has the most: a crowd makes room for others, not they for it.

Until they have sent the header of a request, nothing is made for them but a socket and a few bytes, so that a crowd
that never says what it wants costs the leader a tenth of what a connection of its server costs.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Peer = tuple[Any, ...]  # the address and port at the other end

_MOST = 1000
_MOST_LEAVING = 32  # that were told to go, and still have their descriptors


def _half_of_the_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(1, min(_MOST, soft // 2))


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections there may be, and how long they may take."""

    total: int = field(default_factory=_half_of_the_descriptors)
    per_address: int = 256
    silent_seconds: float = 10.0  # for a handshake and a header, or until the next request
    busy_seconds: float = 120.0  # for a request and its answer, however slowly it is read


class Gate:
    """The connections that are open: those that wait for a request to be sent, and those that have one."""

    def __init__(
        self, limits: ConnectionLimits, proxies: Collection[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._proxies = frozenset(proxies)
        self._clock = clock
        self._waiting: OrderedDict[Peer, float] = OrderedDict()  # since when, the longest first
        self._busy: OrderedDict[Peer, float] = OrderedDict()
        self._sockets: dict[Peer, Accepted] = {}
        self._leaving: set[Peer] = set()
        self._of_address: Counter[str] = Counter()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._sockets)

    @property
    def is_pausing(self) -> bool:
        """Whether those that were told to go have to be gone before others come."""
        return len(self._leaving) >= _MOST_LEAVING

    def admit(self, peer: Peer, accepted: Accepted) -> bool:
        """Count a connection in, if need be in place of another; False if there is no room."""
        address = str(peer[0])
        is_crowded = self._of_address[address] >= self._limits.per_address and address not in self._proxies
        if is_crowded or len(self._waiting) + len(self._busy) >= self._limits.total:
            self.refused += 1
            crowd = address if is_crowded else self._largest_crowd()
            longest = next((one for one in self._waiting if one[0] == crowd), None)
            if longest is None and not is_crowded:
                longest = next(iter(self._waiting), None)
            if longest is None:
                return False
            self._dismiss(longest)
        self._sockets[peer] = accepted
        self._waiting[peer] = self._clock()
        self._of_address[address] += 1
        return True

    def note(self, peer: Peer, *, is_busy: bool) -> None:
        """Whether a connection has a request now, or waits for one."""
        here, other = (self._busy, self._waiting) if is_busy else (self._waiting, self._busy)
        if other.pop(peer, None) is not None:
            here[peer] = self._clock()

    def leave(self, peer: Peer) -> None:
        """A connection is closed."""
        if self._sockets.pop(peer, None) is not None:
            self._forget(peer)
            self._leaving.discard(peer)

    def sweep(self) -> None:
        """Let go of those that took too long."""
        limits, now = self._limits, self._clock()
        for since, seconds in ((self._waiting, limits.silent_seconds), (self._busy, limits.busy_seconds)):
            while since and now - next(iter(since.values())) > seconds:
                self._dismiss(next(iter(since)))

    def _largest_crowd(self) -> str:
        """The address with the most connections; a proxy has those of many, and is none."""
        return max(self._of_address, key=lambda address: (address not in self._proxies, self._of_address[address]))

    def _dismiss(self, peer: Peer) -> None:
        self._forget(peer)
        self._leaving.add(peer)
        self._sockets[peer].dismiss()

    def _forget(self, peer: Peer) -> None:
        was_here = self._waiting.pop(peer, None) is not None or self._busy.pop(peer, None) is not None
        if was_here:
            address = str(peer[0])
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]


class Accepted(socket.socket):
    """A connection that can be told to go, and that says when its descriptor is free."""

    on_dismiss: Callable[[], None] | None = None
    on_close: Callable[[], None] | None = None

    def __init__(self, plain: socket.socket) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())

    def dismiss(self) -> None:
        """Tell the other end, and whoever reads here, that it is over."""
        if self.on_dismiss is not None:
            self.on_dismiss()
            return
        with suppress(OSError):  # it has gone by itself
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()


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
