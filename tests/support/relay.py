"""A relay between a client and a server on the loopback device, which can be cut or made to swallow answers."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from typing import Literal

State = Literal["open", "cut", "deaf"]  # deaf: what is asked gets there, and no answer comes back


class Relay:
    """Listens at `port` and passes everything on to `target`."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._state: State = "open"
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, state: State) -> None:
        """From now on; what is open breaks when it is cut."""
        self._state = state
        if state == "cut":
            for pair in list(self._pairs):
                for end in pair:
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.set("cut")
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._state == "cut":
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target), 1.0)
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        pair = (client, server)
        self._pairs.add(pair)
        with selectors.DefaultSelector() as ready, client, server, suppress(OSError):
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while self._state != "cut":
                for key, _ in ready.select(0.2):
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is client or self._state == "open":
                        key.data.sendall(data)
        self._pairs.discard(pair)
