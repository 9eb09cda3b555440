"""Reads the header in which a server reports its stages."""

from __future__ import annotations

from paceline.load.trace import Stages


def stages_of(header: str) -> Stages:
    """What `str()` of the stages wrote."""
    values = dict(pair.split("=") for pair in header.strip().split(","))
    return Stages(*(int(values.get(letter, 0)) for letter in "dqbipnr"))
