"""Simple clients of a server that speaks the open inference protocol over HTTP."""

from __future__ import annotations

import http.client
import socket

from paceline.load.kserve import JSON_LENGTH, Array, decode_response, encode_request
from paceline.load.request import Endpoint


def ask(where: Endpoint, x: Array, *, name: str = "x") -> tuple[int, dict[str, Array] | bytes]:
    """One request on a connection of its own: its status, and the answer, read if it is one."""
    connection = http.client.HTTPConnection(where.host, where.port, timeout=30)
    try:
        message = encode_request({name: x}, binary=where.wire == "kserve-binary")
        headers = {} if message.json_length is None else {JSON_LENGTH: str(message.json_length)}
        connection.request("POST", where.path, message.body, headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            return answer.status, body
        length = answer.headers.get(JSON_LENGTH)
        return 200, decode_response(body, int(length) if length else None)
    finally:
        connection.close()


def raw(where: Endpoint, data: bytes) -> bytes:
    """Whatever comes back for some bytes until the server ends the connection."""
    found = b""
    with socket.create_connection((where.host, where.port), timeout=30) as connection:
        try:
            connection.sendall(data)
            while part := connection.recv(65_536):
                found += part
        except ConnectionResetError:  # it did not want to read all of it
            pass
    return found
