"""Sleeps as `nap` does, and writes down while it does: what really happened, whoever lost sight of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from paceline.core.benchmark import Context
from paceline.core.record import Result
from paceline_test_plugin.benchmarks.nap import Nap, NapParameters

PAGES = "PACELINE_TEST_DIARY"  # the file


class DiaryParameters(NapParameters):
    """The nap's, as a class of its own: a diary is no peer of a nap."""


class Diary(Nap):
    """Does nothing for a while, and says when."""

    name = "diary"
    summary = "sleeps and writes it down"
    Parameters = DiaryParameters

    def measure(self, parameters: NapParameters, context: Context) -> Result:
        _write("begins")
        part = parameters.model_copy(update={"duration": parameters.duration / parameters.steps, "steps": 1})
        results = []
        for _ in range(parameters.steps):
            results.append(super().measure(part, context))
            _write("sleeps")
        _write("ends")
        return results[-1]


def _write(what: str) -> None:
    # The folder of an attempt is where it is measured: follower/job.attempt.
    attempt = Path.cwd()
    line = f"{time.monotonic():.6f} {attempt.parent.name} {attempt.name} {os.getpid()} {what}\n"
    with Path(os.environ[PAGES]).open("a") as file:
        file.write(line)  # one write of a short line at the end of a file: whole, whoever else writes
