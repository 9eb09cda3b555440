"""A warm server whose ranks do exactly what a test says: real channels, and real processes that only wait."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.core.record import Measurement, Result
from paceline.runner.channel import Channel
from paceline.runner.fork_client import WarmServer
from support.probing import STEP_TIME

PATIENCE_SECONDS = 30.0  # no test waits this long unless something is wrong


class ScriptedRank:
    """What the warm server forked for one rank: a process that waits for its end."""

    def __init__(self, order: dict[str, Any], channel: Channel, control: Channel) -> None:
        self.order = order
        self.channel = channel
        self.log = Path(order["log"])
        self._control = control
        # Whoever asks where it is does not end it.
        self._process = subprocess.Popen(
            ["sh", "-c", "trap '' USR2; echo; read code; exit $code"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.pid = self._process.pid
        self._reaper = threading.Thread(target=self._reap, daemon=True)
        self._reaper.start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def tell(self, **message: Any) -> None:
        """Send a message to the runner."""
        self.channel.send(message)

    def measured(self, *samples: float, **facts: Any) -> None:
        self.tell(result=result(*samples, **facts).model_dump(mode="json"))

    def exit(self, code: int = 0) -> None:
        """Leave, and be heard of."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{code}\n".encode())
        self._process.stdin.flush()
        self._reaper.join(PATIENCE_SECONDS)

    def die(self, number: int) -> None:
        """End by a signal."""
        os.kill(self.pid, number)
        self._reaper.join(PATIENCE_SECONDS)

    def say_ended(self, status: int = 0) -> None:
        """What the server says of its end, whether it has ended or not."""
        with suppress(OSError):
            self._control.send({"ended": self.pid, "status": status})

    def close(self) -> None:
        self._process.kill()
        self._reaper.join(PATIENCE_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        self.channel.close()

    def _reap(self) -> None:
        code = self._process.wait()
        self.say_ended(-code if code < 0 else code << 8)


def result(*samples: float, **facts: Any) -> Result:
    return Result(measurements=[Measurement.of_samples(STEP_TIME, samples or [0.5])], facts=facts)


Play = Callable[[Sequence[ScriptedRank]], None]


class ScriptedServer:
    """The other end of a warm server; when all ranks are there, they do what the play says."""

    def __init__(self, size: int, play: Play, ignored: str = "") -> None:
        ours, self.control = Channel.pair()
        self.warm = WarmServer(_control=ours)
        self.imported: list[str] = []
        self.ranks: list[ScriptedRank] = []
        self._size = size
        self._play = play
        self._ignored = ignored  # an order that gets no answer
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.warm.close()
        self._thread.join(PATIENCE_SECONDS)
        for rank in self.ranks:
            rank.close()
        self.control.close()
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        try:
            while (received := self.control.receive()) is not None:
                order, descriptors = received
                if order["do"] == self._ignored:
                    continue
                if order["do"] == "watch":  # nobody does
                    Channel.of_descriptor(descriptors[0]).close()
                    continue
                if order["do"] == "import":
                    self.imported += order["modules"]
                    self.control.send({"imported": order["modules"]})
                    continue
                rank = ScriptedRank(order, Channel.of_descriptor(descriptors[0]), self.control)
                self.ranks.append(rank)
                self.control.send({"forked": rank.pid})
                if len(self.ranks) % self._size == 0:
                    self._play(self.ranks[-self._size :])
        except OSError:  # the runner has left
            pass
        except BaseException as error:
            self._error = error
            self.warm.close()


@contextmanager
def scripted(size: int, play: Play, ignored: str = "") -> Iterator[ScriptedServer]:
    server = ScriptedServer(size, play, ignored)
    try:
        yield server
    finally:
        server.close()


def progress(*samples: float, metric: str = "step_time") -> dict[str, Any]:
    """What a rank says while it measures."""
    return {"phase": "measuring", "metric": metric, "unit": "s", "samples": samples, "work": None, "rate_unit": ""}
