"""Paceline benchmarks deep learning from one kernel to a whole cluster."""

from paceline.version import VERSION as __version__

__all__ = ["__version__"]
