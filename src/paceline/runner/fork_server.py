"""The warm server: has done the heavy imports, has touched no device, and forks a process for every case.

It is started by the runner, takes orders from it alone, and ends with it: when the runner is gone, however it
went, the server kills what it forked. What a case leaves behind becomes a child of the server, whichever way it was
started, and ends with the case. It runs in one thread, because a fork copies only one.
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
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.core.supervisor import become_subreaper, children_of
from paceline.runner import watcher
from paceline.runner.channel import Channel
from paceline.runner.rank import run_rank  # here, so that no case imports it again

NOISY = {"torchao"}  # complains on standard error of parts that were built for other devices
GRACE_SECONDS = 0.1  # for what ends with its parent
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT  # at children, without reaping them
END_SECONDS = 5.0  # not even SIGKILL ends a process inside the kernel


def main() -> None:
    """Serve until the runner closes its end."""
    control = Channel.of_descriptor(int(sys.argv[1]))
    for entry in sys.argv[2:]:  # of the control group
        with contextlib.suppress(OSError):  # then the runner watches what the cases take
            Path(entry).write_text(str(os.getpid()))
    become_subreaper()
    others = set(children_of(os.getpid())) if has_children() else set()
    strangers = frozenset(others)  # all others but the watching process
    # The terminal's interrupt is the runner's to handle; it says what to kill.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, Path] = {}  # process of a case: its folder
    groups: set[int] = set()  # of this case, those of ranks that have ended
    # What every case needs, so that none of them imports it again; its benchmark comes with an order.
    from paceline.models import MODELS

    MODELS.registry()
    try:
        while True:
            ready, _, _ = select.select([control.fileno(), wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, select.PIPE_BUF)
                for ended in _reap(children, others, groups):
                    control.send(ended)
            if control.fileno() in ready:
                order = control.receive()
                if order is None:
                    return
                _obey(*order, control, children, others, (wake_read, wake_write))
    except (BrokenPipeError, ConnectionError):
        return
    finally:
        kill_groups(children)
        _await_ends(children)  # only then are their orphans handed over
        end_adopted({*strangers, *children}, grace=0.0)
        for folder in set(children.values()):  # the runner would have removed it after the case
            shutil.rmtree(folder, ignore_errors=True)


def _reap(children: dict[int, Path], others: set[int], groups: set[int]) -> Iterator[dict[str, Any]]:
    """What to report of the cases that have ended; with the last rank of a case ends all that it started."""
    with contextlib.suppress(ChildProcessError):
        while children and (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            if children.pop(pid, None) is not None:
                kill_groups({pid})
                groups.add(pid)
                escaped = end_adopted(others, groups) if not children else {}
                if not children:
                    groups.clear()
                yield {"ended": pid, "status": status} | ({"escaped": escaped} if escaped else {})


def _await_ends(pids: Iterable[int]) -> None:
    deadline = time.monotonic() + END_SECONDS
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            while os.waitid(os.P_PID, pid, _LOOK) is None and time.monotonic() < deadline:
                time.sleep(0.002)


def has_children() -> bool:
    """Whether this process has any; to ask for all processes of the machine takes milliseconds."""
    try:
        os.waitid(os.P_ALL, 0, _LOOK)
    except ChildProcessError:
        return False
    return True


def end_adopted(others: Collection[int], groups: Collection[int] = (), grace: float = GRACE_SECONDS) -> dict[int, str]:
    """End the children of this process but for `others`, and what these started; the names of those that lived on.

    What ends with its parent may take a moment to do so, and so may `groups`, which were killed already.
    """
    escaped: dict[int, str] = {}
    begun = time.monotonic()
    while has_children() and time.monotonic() < begun + END_SECONDS:
        candidates = set(children_of(os.getpid())).difference(others)
        if not candidates:
            break
        # What one of them started is a child of this process as soon as it has ended itself.
        living = [process for pid in candidates if (process := _living(pid))]
        if time.monotonic() >= begun + grace:
            for pid, name in living:
                if _group(pid) not in groups and name != watcher.NAME:
                    escaped[pid] = name
                kill_groups({pid})
        time.sleep(0.002)
    return escaped


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _living(pid: int) -> tuple[int, str] | None:
    """A child by id and name; one that has ended is reaped, and is None."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            return None
    try:
        return pid, Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return None


def kill_groups(leaders: Iterable[int]) -> None:
    """End processes and everything in their process groups, whatever they are doing."""
    for pid in leaders:
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Nothing that is written to standard error meanwhile is seen."""
    sys.stderr.flush()
    heard, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(heard, 2)
        os.close(nowhere)
        os.close(heard)


def _obey(
    order: dict[str, Any],
    descriptors: list[int],
    control: Channel,
    children: dict[int, Path],
    others: set[int],
    private: Sequence[int] = (),  # descriptors that a case must not reach
) -> None:
    if order["do"] == "import":
        for name in order["modules"]:
            quietly = _unheard() if name.partition(".")[0] in NOISY else contextlib.nullcontext()
            with quietly, contextlib.suppress(Exception, SystemExit):  # the case that needs it will fail, and say why
                importlib.import_module(name)
        # What is imported now is shared by every case: keep the collector from touching (and so copying) its pages.
        gc.collect()
        gc.freeze()
        control.send({"imported": order["modules"]})
        return
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        control.close()
        for descriptor in private:
            os.close(descriptor)
        _become_case(order, descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)
    if order["do"] == "watch":
        others.add(pid)
        return
    children[pid] = Path(order["log"]).parent
    control.send({"forked": pid})


def _become_case(order: dict[str, Any], descriptor: int) -> None:
    """In the child: never returns."""
    status = 70
    try:
        os.setsid()
        with contextlib.suppress(OSError):  # should the machine run out of memory, the case is to go first
            Path("/proc/self/oom_score_adj").write_text("1000")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if order["do"] == "watch":
            watcher.serve(Channel.hidden(descriptor))
        else:
            run_rank(order, Channel.hidden(descriptor))
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
