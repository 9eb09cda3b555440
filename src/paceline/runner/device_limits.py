"""Holds the devices of a case to a power limit or a clock, and afterwards puts back what was set before.

A process of its own does both: it restores when the other end of its pipe closes, which a runner that is killed does
as surely as one that ends. Only who kills both, or the machine, leaves a limit in place.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from paceline.core.case import Case
from paceline.core.device import ALL, split_target
from paceline.core.errors import PacelineError, Unsupported
from paceline.core.record import RecordWarning
from paceline.devices import kind_of

RESTORING_SECONDS = 30.0
NO_ANSWER = f"the driver has not answered for {RESTORING_SECONDS:g} s"


@contextmanager
def held_limits(case: Case) -> Iterator[list[RecordWarning]]:
    """Hold the case's devices to its limits; Unsupported, with the reason, where that is not allowed.

    At the end, the list has a warning if the earlier limits could not be put back.
    """
    warnings: list[RecordWarning] = []
    if not case.limits:
        yield warnings
        return
    kind, index = split_target(case.target)
    target = f"{kind}:{ALL}" if index and case.ranks > 1 else case.target
    tool = kind_of(target).tool
    order = json.dumps({"target": target, "power": case.power_limit, "clock": case.clock_limit})
    keeper = subprocess.Popen(
        [sys.executable, "-P", "-m", "paceline.runner.device_limits", order],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # so that what follows the first line is left to communicate()
        start_new_session=True,  # an interrupt from the keyboard is not for it
        env=os.environ | case.env,  # which may say what devices there are
    )
    refused = ""
    try:
        refused = _refusal(keeper, tool.name)
        if not refused:
            yield warnings
    finally:
        if trouble := _trouble(keeper):
            message = f"after {case.limits}, the limit of {target} from before could not be restored: {trouble}"
            remedy = f"set it by hand ({tool.set_power}; {tool.lock_clocks}) before anything else is measured"
            warnings.append(RecordWarning(kind="limit-not-restored", message=message, remedy=remedy))
    if refused:
        undone = "".join(f"; {one.message}; {one.remedy}" for one in warnings)
        raise Unsupported(f"{target} cannot be held to {case.limits}: {refused}{undone}")


def _refusal(keeper: subprocess.Popen[bytes], tool: str) -> str:
    """Why the limit is not set; empty if it is."""
    assert keeper.stdout is not None
    if not select.select([keeper.stdout], [], [], RESTORING_SECONDS)[0]:
        return f"{NO_ANSWER}; see {tool}"
    line = keeper.stdout.readline()
    if not line:
        return "the process that sets limits ended without a word"
    return str(json.loads(line)) if line.strip() else ""


def _trouble(keeper: subprocess.Popen[bytes]) -> str:
    """Have it restore, and say why it did not; empty if it did."""
    try:
        said, _ = keeper.communicate(timeout=RESTORING_SECONDS)  # closes the pipe, which is the sign to restore
    except subprocess.TimeoutExpired:
        return NO_ANSWER
    ended = f"the process that restores ended with {keeper.returncode}" if keeper.returncode else ""
    return said.decode().strip() or ended


def _hold(target: str, power: float | None, clock: float | None, undo: ExitStack) -> None:
    kind = kind_of(target)
    if power is not None:
        kind.limit_power(target, power, undo)
    if clock is not None:
        kind.limit_clock(target, clock, undo)


def _say(text: str) -> None:
    sys.stdout.write((json.dumps(text) if text else "") + "\n")
    sys.stdout.flush()


def main() -> None:
    """Set what the argument says, answer with an empty line or the reason why not, restore at the end of the input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order, refused = json.loads(sys.argv[1]), ""
    try:
        with ExitStack() as undo:
            try:
                _hold(**order, undo=undo)
            except Exception as error:  # the library's own as well
                refused = str(error) if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
            with suppress(BrokenPipeError):  # whoever asked is gone: then restore at once
                _say(refused)
                if not refused:
                    sys.stdin.read()
    except Exception as error:
        with suppress(BrokenPipeError):
            _say(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
