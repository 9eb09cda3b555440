"""iperf3 as a client and, on this host, as its own server; and what it reports in JSON."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from paceline.benchmarks._micro.tools import ToolError, find_tool, garbled, run_tool
from paceline.core.network import free_port
from paceline.devices.timeline import monotonic

DEFAULT_PORT = 5201
PATIENCE_SECONDS = 60.0
BUSY_SECONDS = 30.0  # it has not yet ended the last test, or serves another client
# A client that connects and leaves again, as one that only looks for it does, makes it drop the next and begin anew.
SHAKEN_SECONDS = 5.0
_BUSY = "server is busy"
_SHAKEN = ("control message", "control socket", "Connection reset", "Connection refused")
RETRY_SECONDS = 0.1
STARTS = 3  # a free port may be taken by somebody else before iperf3 has it


class Moved(BaseModel):
    """What arrived at the receiver, and how long it took."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    # What is still under way is not counted, which may be all of a short transfer.
    bytes: int = Field(ge=0, validation_alias=AliasPath("end", "sum_received", "bytes"))
    seconds: float = Field(gt=0, validation_alias=AliasPath("end", "sum_received", "seconds"))


def parse(text: str) -> Moved:
    """What one run of a client moved; anything else is a ToolError."""
    try:
        document = json.loads(text)
        # It ends with exit code 0 also when it could not connect.
        if isinstance(document, dict) and "error" in document:
            raise ToolError(f"iperf3: {document['error']}")
        return Moved.model_validate(document)
    except (ValueError, RecursionError) as error:  # pydantic's and json's errors are ValueErrors
        raise garbled("iperf3", error, text) from None


def send(host: str, port: int, amount: int, streams: int) -> Moved:
    """Send about so many bytes through so many connections; a server that is busy just now is tried again."""
    command = [find(), "--client", host, "--port", str(port), "--json", "--bytes", str(amount)]
    begun = monotonic()
    while True:
        try:
            return parse(run_tool([*command, "--parallel", str(streams)], timeout=PATIENCE_SECONDS).output)
        except ToolError as error:
            passed = monotonic() - begun
            if _BUSY in str(error):
                if passed > BUSY_SECONDS:
                    message = f"iperf3 on {host}:{port} is busy with another client: it takes one at a time"
                    raise ToolError(message) from None
            elif passed > SHAKEN_SECONDS or not any(word in str(error) for word in _SHAKEN):
                raise
        time.sleep(RETRY_SECONDS)


def find() -> str:
    """Where iperf3 is; absent, the case is unsupported."""
    return find_tool("iperf3", "iperf3", purpose="sends through TCP")


@contextmanager
def local_server() -> Iterator[int]:
    """A server on the loopback device, for as long as the block lasts; its port."""
    output = ""
    for _ in range(STARTS):
        port = free_port()
        command = [find(), "--server", "--bind", "127.0.0.1", "--port", str(port), "--forceflush"]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as server:
            try:
                assert server.stdout is not None
                for line in server.stdout:
                    output = line.strip() or output
                    if "listening" in line:
                        # What it writes about every test would fill the pipe in the end, and then it would wait.
                        threading.Thread(target=server.stdout.read, daemon=True).start()
                        yield port
                        return
            finally:
                server.kill()
    raise ToolError(f"iperf3 cannot serve on the loopback device: {output}")
