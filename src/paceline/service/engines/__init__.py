"""Where followers live, one file each: processes of the leader, nodes of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import unknown
from paceline.service.engines.base import Engine

NAMES = ("local", "ray")


@dataclass(frozen=True)
class EngineOptions:
    """What an engine needs to know; each takes what concerns it."""

    folder: Path  # the leader's own, where spools and the secrets of a cluster are kept
    labels: tuple[str, ...] = ()  # of this machine
    address: str = ""  # of a Ray cluster that exists, as HOST:PORT; empty starts one on this machine
    host: str = "127.0.0.1"  # address of the private interface that a new Ray cluster uses
    port: int = 6379  # that its followers connect to


def make(name: str, options: EngineOptions) -> Engine:
    """The engine of this name."""
    if name == "local":
        from paceline.service.engines.local import LocalEngine

        return LocalEngine(options.folder / "follower", options.labels)
    if name == "ray":
        from paceline.service.engines.ray import RayEngine

        return RayEngine(options)
    raise unknown("engine", name, NAMES)
