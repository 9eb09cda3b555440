"""Signals: interrupts that are not lost, though Python drops an exception that is raised in a destructor."""

from __future__ import annotations

import signal

_is_pending = False


def catch_interrupts() -> None:
    """Let the terminal's interrupt, SIGTERM and SIGHUP raise KeyboardInterrupt, unless they are ignored (nohup)."""
    global _is_pending
    _is_pending = False
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def check_interrupts() -> None:
    """Raise what was dropped; for loops that wait."""
    global _is_pending
    if _is_pending:
        _is_pending = False
        raise KeyboardInterrupt


def signal_name(number: int) -> str:
    """Such as SIGKILL; a number where the signal has no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _interrupt(*_: object) -> None:
    global _is_pending
    _is_pending = True
    raise KeyboardInterrupt
