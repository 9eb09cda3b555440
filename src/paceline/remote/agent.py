"""The other end of a remote shell: orders from standard input as they come, and answers to them.

The process ends, with everything it started, when its orders end: their sender is done, or has not been heard of for
too long.
"""

from __future__ import annotations

import json
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from paceline.core.errors import PacelineError

SILENCE_SECONDS = 120.0  # the sender of orders sends something every few seconds
LEAVE_SECONDS = 5.0


class Orders:
    """Reads orders as they come, because the one to stop comes while another is being obeyed."""

    def __init__(self, source: int, answers: int) -> None:
        self.stop = threading.Event()
        self._source = source
        self._answers = answers
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def of_streams(cls) -> Self:
        """From standard input to standard output; what libraries print must not stand between the answers."""
        answers = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(sys.stdin.fileno(), answers)

    def next(self) -> Message | None:
        """The next order; None when there will be no more."""
        return self._waiting.get()

    def say(self, message: Message) -> None:
        """Answer, or report something in between."""
        data = memoryview(encode(message))
        while data:
            data = data[os.write(self._answers, data) :]

    def obey(self, handlers: Mapping[str, Callable[[Message], Message]]) -> None:
        """One order after the other, until they end; `handlers` has what to do for each."""
        while (order := self.next()) is not None:
            try:
                answer = handlers[order["do"]](order)
            except PacelineError as error:
                answer = {"refused": str(error)}
            except OSError as error:  # such as a full disk
                answer = {"refused": f"cannot go on: {error}"}
            self.say(answer)

    def leave(self) -> None:
        """Something does not let go although the orders have ended; what was started here ends with it."""
        os._exit(1)

    def _read(self) -> None:
        rest = bytearray()
        while select.select([self._source], [], [], SILENCE_SECONDS)[0]:
            try:
                data = os.read(self._source, 1 << 16)
            except OSError:  # a connection that is reset is one that has ended
                break
            if not data:
                break
            rest += data
            if b"\n" in data:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    match decode(bytes(line)):
                        case None | {"do": "live"}:
                            pass
                        case {"do": "stop"}:
                            self.stop.set()
                        case order:
                            self.stop.clear()
                            self._waiting.put(order)
        self.stop.set()
        self._waiting.put(None)
        time.sleep(LEAVE_SECONDS)
        self.leave()


Message = dict[str, Any]

_MARK = b"\x1epaceline "


def encode(message: Message) -> bytes:
    """One message as one line."""
    return _MARK + json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message | None:
    """The message in a line; None if it is something else, such as a greeting of the shell."""
    # A greeting without an end of line stands before the first message.
    _, mark, data = line.partition(_MARK)
    if not mark:
        return None
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):  # the last line of a process that was killed, or somebody else's
        return None
    return message if isinstance(message, dict) else None
