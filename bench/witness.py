"""A relay that notes when every byte passes: what a client says of its requests can be held against it, one by one.

`python -m bench.witness HOST PORT` prints its own port, and when its standard input ends, what passed as JSON.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time

from bench.reference_stream import Exchange, read


def main(host: str, port: int) -> None:
    """Relay until standard input ends."""
    ready = selectors.DefaultSelector()
    listening = socket.create_server(("127.0.0.1", 0))
    ready.register(listening, selectors.EVENT_READ, None)
    ready.register(sys.stdin, selectors.EVENT_READ, None)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    seen: list[Exchange] = []
    current: dict[socket.socket, Exchange] = {}  # by the connection to the server
    while True:
        for key, _ in ready.select():
            if key.fileobj is sys.stdin:
                sys.stdout.write(json.dumps([read(one) for one in seen]))
                return
            if key.fileobj is listening:
                client, _ = listening.accept()
                server = socket.create_connection((host, port))
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(client, selectors.EVENT_READ, (server, True))
                ready.register(server, selectors.EVENT_READ, (client, False))
                continue
            source, (other, is_client) = key.fileobj, key.data
            assert isinstance(source, socket.socket)
            piece, now = source.recv(1 << 16), time.monotonic()
            if not piece:
                for one in (source, other):
                    ready.unregister(one)
                    one.close()
                break  # what else was ready may be one of them
            other.sendall(piece)
            if not is_client:
                current[source].pieces.append((now, piece))
            elif other not in current or current[other].has_ended:
                current[other] = Exchange(now)
                seen.append(current[other])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
