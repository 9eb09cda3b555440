"""Requests whose tensors lie in memory that the server shares: the request only says where."""

from __future__ import annotations

import errno
import http.client
import json
import mmap
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from paceline.core.errors import CaseError, InputError, Unsupported
from paceline.core.quantity import show_size
from paceline.load import kserve
from paceline.load.kserve import Tensors
from paceline.load.request import Endpoint, Prepared

FOLDER = Path("/dev/shm")
PREFIX = "paceline-"  # of the names that the server opens: it may read more of that folder than its clients may
PATH = "/v2/systemsharedmemory/"  # where regions are registered, listed and unregistered

_ALIGNED = 4096  # bytes: every tensor begins at a multiple


def shared_requests(batches: Sequence[Tensors], endpoint: Endpoint) -> list[Prepared]:
    """Put all tensors where the server sees them, and make requests that point there.

    The memory has no name any more when this returns: it lasts as long as the server does, however either of us ends.
    """
    placed: list[tuple[Tensors, dict[str, int]]] = []  # each request, and where its tensors begin
    size = 0
    for batch in batches:
        begins: dict[str, int] = {}
        for name, array in batch.items():
            begins[name] = size
            size += -(-array.nbytes // _ALIGNED) * _ALIGNED
        placed.append((batch, begins))
    size = max(size, 1)
    path = FOLDER / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    try:
        _fill(path, size, placed)
        _register(endpoint, path.name, size)
    finally:
        with suppress(OSError):
            path.unlink()
    prepared = []
    for batch, begins in placed:
        body = kserve.encode_shared_request(batch, path.name, begins).body
        # With the length of the JSON given, a server may cache what it decodes.
        headers = {"content-type": kserve.BINARY_TYPE, kserve.JSON_LENGTH: str(len(body))}
        prepared.append(Prepared(body, headers, samples=len(next(iter(batch.values())))))
    return prepared


def _fill(path: Path, size: int, placed: Sequence[tuple[Tensors, dict[str, int]]]) -> None:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unsupported(f"{FOLDER} cannot be written to ({error.strerror}): use wire kserve-binary") from None
    try:
        os.posix_fallocate(handle, 0, size)  # otherwise a lack of memory would be a signal, later
        with mmap.mmap(handle, size) as memory:
            for batch, begins in placed:
                for name, array in batch.items():
                    memory[begins[name] : begins[name] + array.nbytes] = array.tobytes()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise CaseError(f"{FOLDER} cannot hold the requests ({error.strerror}): use wire kserve-binary") from None
        room = os.statvfs(FOLDER)
        message = (
            f"the requests take {show_size(size)}, and {FOLDER} has room for {show_size(room.f_bavail * room.f_frsize)}"
            ": lower requests.distinct or requests.samples, or give it more"
        )
        raise InputError("shared-memory-full", message, key="requests.distinct", value=len(placed)) from None
    finally:
        os.close(handle)


def _register(endpoint: Endpoint, name: str, size: int) -> None:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=60.0)
    try:
        region = json.dumps({"key": f"/{name}", "offset": 0, "byte_size": size})
        connection.request("POST", f"{PATH}region/{name}/register", region)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise CaseError(f"the server did not answer whether it maps shared memory: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise CaseError(f"the server does not map shared memory: {kserve.decode_error(body)[:500]}")
