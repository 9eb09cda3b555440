"""Processes that measure jobs, forked from one that has imported everything: a job starts sooner by seconds.

The process that forks runs in one thread, touches no device and measures nothing. It ends with its worker; what it
forked goes on. What a case itself runs in comes from a server of its own, made for each run, as processes that are
copies of one another share their layout in memory.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core.registry import providers
from paceline.runner.channel import Channel

_FORK_SECONDS = 1.0  # that a fork may take on a busy machine


class WarmStartFailed(Exception):
    """Nothing could be forked; an interpreter of its own may still do it, or say why not."""


@dataclass
class ForkedProcess:
    """A process that measures, as its worker sees it; asked as `subprocess.Popen` is."""

    pid: int
    _of: _Forker

    @property
    def is_known(self) -> bool:
        """Whether its end would be reported."""
        self._of.hear()
        return not self._of.is_lost or self.pid in self._of.codes

    def poll(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None while it runs."""
        self._of.hear()
        return self._of.codes.get(self.pid)

    def wait(self, timeout: float | None = None) -> int | None:
        """Until it has ended."""
        until = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while (code := self.poll()) is None and self.is_known:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """To the process alone."""
        os.kill(self.pid, number)


@dataclass
class WarmStart:
    """Forks the processes of one worker; ready some time after its second job has come, as many see only one.

    What imports everything does so while the process of that job imports it as well, and not while it measures. It is
    started again when what it has imported changes.
    """

    _forker: _Forker | None = None
    _of: object = None  # what it was started with

    def start(self, folder: Path, environment: Mapping[str, str], output: int) -> ForkedProcess:
        """A process that measures what is in the folder, with these variables in addition, printing to `output`."""
        before, self._of = self._of, _imported_from()
        if before is None:
            raise WarmStartFailed
        if self._forker is None or self._forker.is_lost or self._of != before:
            self._forker = _Forker()
        return self._forker.fork({"folder": str(folder), "environment": dict(environment)}, output)


@dataclass
class _Forker:
    """The process that forks, seen from its worker; it ends when nobody holds this object any more."""

    codes: dict[int, int] = field(default_factory=dict)  # of processes that have ended
    is_lost: bool = False
    is_ready: bool = False

    def __post_init__(self) -> None:
        self._control, theirs = Channel.pair()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # what fails here fails again, and is shown, without it
            start_new_session=True,
        )
        theirs.close()

    def fork(self, order: dict[str, Any], output: int) -> ForkedProcess:
        self.hear()
        if not self.is_ready or self.is_lost:
            raise WarmStartFailed
        try:
            self._control.send(order, [output])
        except OSError:
            self._lose()
            raise WarmStartFailed from None
        deadline = time.monotonic() + _FORK_SECONDS
        while (pid := self._next(max(0.0, deadline - time.monotonic()))) is None:
            if self.is_lost or time.monotonic() > deadline:
                self._lose()  # should it be forked after all, one of the two finds the other at work, and ends
                raise WarmStartFailed
        self.codes.pop(pid, None)  # of an earlier process with this number
        return ForkedProcess(pid, self)

    def hear(self) -> None:
        """Take what was reported of ends, and notice its own: its connection may outlive it in another process."""
        is_gone = self._process.poll() is not None
        while not self.is_lost and select.select([self._control], [], [], 0)[0]:
            self._next(0.0)
        if is_gone and not self.is_lost:
            self._lose()

    def _next(self, seconds: float) -> int | None:
        """Wait so long for a message; the number of a process, if it says that one was forked."""
        if not select.select([self._control], [], [], seconds)[0]:
            return None
        received = self._control.receive()
        if received is None:
            self._lose()
            return None
        message = received[0]
        self.is_ready |= "ready" in message
        if "ended" in message:
            self.codes[int(message["ended"])] = int(message["code"])
        return int(message["forked"]) if "forked" in message else None

    def _lose(self) -> None:
        self.is_lost = True
        self._control.close()
        self._process.kill()
        self._process.wait()


def _imported_from() -> object:
    """What the imports of a process depend on.

    Installing a package changes the folder that it is in; ours and those with plug-ins may be edited where they are.
    """
    paths = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    for provider in providers():
        with contextlib.suppress(ImportError, ValueError):  # the job will say what is wrong with it
            if (spec := importlib.util.find_spec(provider)) is not None:
                folders = spec.submodule_search_locations or ()
                paths += [Path(spec.origin)] if spec.origin else []
                paths += [path for folder in folders for path in Path(folder).rglob("*.py")]
    times = []
    for path in paths:
        with contextlib.suppress(OSError):
            times.append((path, path.stat().st_mtime_ns))
    return dict(os.environ), sorted(times)


def main() -> None:
    """Fork until the worker is gone."""
    control = Channel.of_descriptor(int(sys.argv[1]))
    from paceline.core.benchmark import BENCHMARKS
    from paceline.service.follower import measuring

    BENCHMARKS.registry()
    gc.collect()
    gc.freeze()  # what is imported is shared: the collector must not touch, and so copy, its pages
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with contextlib.suppress(ConnectionError):  # nobody is there any more, which the loop finds
        control.send({"ready": True})
    while True:
        ready, _, _ = select.select([control.fileno(), wake_read], [], [])
        with contextlib.suppress(ConnectionError):
            if wake_read in ready:
                os.read(wake_read, select.PIPE_BUF)
                with contextlib.suppress(ChildProcessError):
                    while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                        control.send({"ended": ended[0], "code": os.waitstatus_to_exitcode(ended[1])})
        if control.fileno() in ready:
            received = control.receive()
            if received is None:
                return
            order, (output,) = received
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (wake_read, wake_write):
                    os.close(descriptor)
                control.close()
                _become(order, output, measuring.main)
            os.close(output)
            with contextlib.suppress(ConnectionError):
                control.send({"forked": pid})


def _become(order: Mapping[str, Any], output: int, run: Any) -> None:
    """In the child: measure as a process of its own would, and never return."""
    code = 1
    try:
        os.setsid()
        for target in (1, 2):
            os.dup2(output, target)
        os.close(output)
        os.chdir(order["folder"])
        os.environ.update(order["environment"])
        sys.argv = [sys.argv[0], order["folder"]]
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
