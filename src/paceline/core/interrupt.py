"""Signals: interrupts that are not lost, though Python drops an exception that is raised in a destructor."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_is_pending = False
_is_held = False


def catch_interrupts() -> None:
    """Let the terminal's interrupt, SIGTERM and SIGHUP raise KeyboardInterrupt, unless they are ignored (nohup)."""
    global _is_pending, _is_held
    _is_pending = _is_held = False
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


@contextmanager
def interrupts_caught() -> Iterator[None]:
    """The same for a while, in a process of somebody else; a thread cannot do it, and need not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    catch_interrupts()
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that Python did not set
                signal.signal(number, handler)


def check_interrupts() -> None:
    """Raise what was dropped; for loops that wait."""
    global _is_pending
    if _is_pending:
        _is_pending = False
        raise KeyboardInterrupt


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Within, an interrupt waits for the end of what must not be torn; a second one does not."""
    global _is_held
    _is_held = True
    try:
        yield
    finally:
        _is_held = False
    check_interrupts()


def signal_name(number: int) -> str:
    """Such as SIGKILL; a number where the signal has no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _interrupt(*_: object) -> None:
    global _is_pending
    is_first, _is_pending = not _is_pending, True
    if not (_is_held and is_first):
        raise KeyboardInterrupt
