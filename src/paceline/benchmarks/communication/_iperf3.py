"""iperf3 as a client and, on this host, as its own server; and what it tells in JSON."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.benchmarks._micro.tools import ToolError, find_tool, garbled, run_tool
from paceline.benchmarks.communication._sockets import free_port
from paceline.devices.timeline import monotonic

DEFAULT_PORT = 5201
PATIENCE_SECONDS = 60.0
BUSY_SECONDS = 30.0  # it has not yet ended the last test, or serves another client
# Whoever connects and leaves again, as a look whether it is there does, makes it drop what comes next and begin anew.
SHAKEN_SECONDS = 5.0
_BUSY = "server is busy"
_SHAKEN = ("control message", "control socket", "Connection reset", "Connection refused")
RETRY_SECONDS = 0.1
STARTS = 3  # a free port may be taken by somebody else before iperf3 has it


@dataclass(frozen=True)
class Moved:
    """What arrived at the receiver, and how long it took."""

    bytes: int
    seconds: float


class _Said(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _Sum(_Said):
    bytes: int = Field(ge=0)  # what is still under way is not counted, which may be all of a short transfer
    seconds: float = Field(gt=0)


class _End(_Said):
    sum_received: _Sum


class _Output(_Said):
    end: _End


def parse(text: str) -> Moved:
    """What one run of a client moved; anything else is a ToolError."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise garbled("iperf3", f"its JSON breaks off or is wrong ({error})", text) from None
    # It ends with exit code 0 also when it could not connect.
    if isinstance(said, dict) and "error" in said:
        raise ToolError(f"iperf3: {said['error']}")
    try:
        received = _Output.model_validate(said).end.sum_received
    except ValidationError as error:
        first = error.errors()[0]
        raise garbled("iperf3", f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}", text) from None
    return Moved(received.bytes, received.seconds)


def send(host: str, port: int, amount: int, streams: int) -> Moved:
    """Send about so many bytes through so many connections; a server that cannot just now is asked again."""
    command = [find(), "--client", host, "--port", str(port), "--json", "--bytes", str(amount)]
    begun = monotonic()
    while True:
        try:
            return parse(run_tool([*command, "--parallel", str(streams)], timeout=PATIENCE_SECONDS).output)
        except ToolError as error:
            passed = monotonic() - begun
            if _BUSY in str(error):
                if passed > BUSY_SECONDS:
                    raise ToolError(
                        f"iperf3 on {host}:{port} serves somebody else: it takes one client at a time"
                    ) from None
            elif passed > SHAKEN_SECONDS or not any(word in str(error) for word in _SHAKEN):
                raise
        time.sleep(RETRY_SECONDS)


def find() -> str:
    """Where iperf3 is; absent, the case is unsupported."""
    return find_tool("iperf3", "iperf3", purpose="sends through TCP")


@contextmanager
def local_server() -> Iterator[int]:
    """A server on the loopback device, for as long as the block lasts; its port."""
    said = ""
    for _ in range(STARTS):
        port = free_port()
        command = [find(), "--server", "--bind", "127.0.0.1", "--port", str(port), "--forceflush"]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as server:
            try:
                assert server.stdout is not None
                for line in server.stdout:
                    said = line.strip() or said
                    if "listening" in line:
                        # What it says of every test would fill the pipe in the end, and then it would wait.
                        threading.Thread(target=server.stdout.read, daemon=True).start()
                        yield port
                        return
            finally:
                server.kill()
    raise ToolError(f"iperf3 cannot serve on the loopback device: {said}")
