"""The warm server: has done the heavy imports, has touched no device, and forks a process for every case.

It is started by the runner, takes orders from it alone, and ends with it: when the runner is gone, however it
went, the server kills what it forked. It runs in one thread, because a fork copies only one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.runner.channel import Channel
from paceline.runner.rank import run_rank  # here, so that no case imports it again


def main() -> None:
    """Serve until the runner closes its end."""
    control = Channel.of_descriptor(int(sys.argv[1]))
    # The terminal's interrupt is the runner's to handle; it says what to kill.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, Path] = {}  # process of a case: its folder
    # What every case needs, so that none of them imports it again; its benchmark comes with an order.
    from paceline.models import MODELS

    MODELS.registry()
    try:
        while True:
            ready, _, _ = select.select([control.fileno(), wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, select.PIPE_BUF)
                with contextlib.suppress(ChildProcessError):
                    while children and (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                        pid, status = ended
                        if children.pop(pid, None) is not None:
                            kill_groups({pid})  # what a case leaves behind in its group must not disturb the next one
                            control.send({"ended": pid, "status": status})
            if control.fileno() in ready:
                order = control.receive()
                if order is None:
                    return
                _obey(*order, control, children)
    except (BrokenPipeError, ConnectionError):
        return
    finally:
        kill_groups(children)
        for folder in set(children.values()):  # the runner would have removed it after the case
            shutil.rmtree(folder, ignore_errors=True)


def kill_groups(leaders: Iterable[int]) -> None:
    """End processes and everything in their process groups, whatever they are doing."""
    for pid in leaders:
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)


def _obey(order: dict[str, Any], descriptors: list[int], control: Channel, children: dict[int, Path]) -> None:
    if order["do"] == "import":
        for name in order["modules"]:
            with contextlib.suppress(Exception, SystemExit):  # the case that needs it will fail, and say why
                importlib.import_module(name)
        # What is imported now is shared by every case: keep the collector from touching (and so copying) its pages.
        gc.collect()
        gc.freeze()
        control.send({"imported": order["modules"]})
        return
    pid = os.fork()
    if pid == 0:
        control.close()
        _become_case(order, descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)
    children[pid] = Path(order["log"]).parent
    control.send({"forked": pid})


def _become_case(order: dict[str, Any], descriptor: int) -> None:
    """In the child: never returns."""
    status = 70
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        run_rank(order, Channel.of_descriptor(descriptor))
        status = 0
    finally:
        # Neither atexit handlers nor destructors of half-dead libraries may keep a finished case alive.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
    os._exit(0)  # the runner waits, and heavy libraries take long to be unloaded
