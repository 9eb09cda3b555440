"""Lets a test's own process be that of a case for a while, and sets right what a case changes."""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.core import registry
from paceline.runner import rank, stacks
from support.probing import PROVIDER


@contextmanager
def as_a_case(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, descriptors, environment, folder, handlers and limits may change."""
    monkeypatch.setattr(registry, "providers", lambda: ("paceline", PROVIDER))
    monkeypatch.setattr(rank, "die_with_parent", lambda: None)  # of whoever runs the tests
    numbers = (signal.SIGINT, signal.SIGCHLD)
    handlers = {number: signal.getsignal(number) for number in numbers}
    streams = {number: os.dup(number) for number in range(3)}
    environment, folder, temporary = dict(os.environ), Path.cwd(), tempfile.tempdir
    limit, numbers_to_come, mask = resource.getrlimit(resource.RLIMIT_DATA), random.getstate(), os.umask(0)
    source, sink = os.pipe()
    os.dup2(source, 0)  # something else than what a case should find there
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        for one, handler in handlers.items():
            signal.signal(one, handler)
        faulthandler.unregister(stacks.ASK)
        for number, stream in streams.items():
            os.dup2(stream, number)
        for descriptor in (source, sink, *streams.values()):
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        tempfile.tempdir = temporary
        resource.setrlimit(resource.RLIMIT_DATA, limit)
        random.setstate(numbers_to_come)
        os.umask(mask)
