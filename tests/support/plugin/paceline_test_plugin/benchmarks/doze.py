"""A peer of `nap`: the same parameters, another benchmark."""

from __future__ import annotations

from paceline_test_plugin.benchmarks.nap import Nap


class Doze(Nap):
    """Does nothing for a while, as nap does."""

    name = "doze"
    summary = "sleeps as nap does"
