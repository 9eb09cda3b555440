"""An interrupt is heard, wherever Python happens to be when it comes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from paceline.core.interrupt import catch_interrupts, check_interrupts, interrupts_held

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # which nohup ignores
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Interrupted:
    """Whose destructor is where Python is when the interrupt comes."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", NUMBERS)
def test_an_interrupt_is_raised_where_python_is(number: int) -> None:
    catch_interrupts()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", NUMBERS)
def test_an_interrupt_that_python_drops_is_raised_once_by_the_next_check(number: int) -> None:
    catch_interrupts()
    check_interrupts()
    Interrupted(number)
    with pytest.raises(KeyboardInterrupt):
        check_interrupts()
    check_interrupts()


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    catch_interrupts()
    os.kill(os.getpid(), signal.SIGHUP)
    check_interrupts()


def test_what_must_not_be_torn_ends_before_the_interrupt_is_raised() -> None:
    catch_interrupts()
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("all of it")
    assert done == ["all of it"]
    check_interrupts()
    with interrupts_held():
        done.append("undisturbed")
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_who_interrupts_twice_does_not_wait() -> None:
    catch_interrupts()
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second one was held, too")


def test_an_interrupt_that_was_held_is_not_lost_where_the_work_fails() -> None:
    catch_interrupts()
    with pytest.raises(OSError, match="full"), interrupts_held():
        os.kill(os.getpid(), signal.SIGINT)
        raise OSError("full")
    with pytest.raises(KeyboardInterrupt):
        check_interrupts()
