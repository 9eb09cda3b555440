"""Properties are tried on few examples each, the same ones every time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("paceline", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("paceline")
