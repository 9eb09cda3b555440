"""Where followers live, one file each: processes of the leader, nodes of a Ray or Slurm cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.registry import Kind
from paceline.service.credentials import Credentials
from paceline.service.engines.base import Engine


@dataclass(frozen=True)
class EngineOptions:
    """What an engine needs to know; each takes what concerns it."""

    folder: Path  # the leader's own, where spools and the secrets of a cluster are kept
    labels: tuple[str, ...] = ()  # of this machine
    address: str = ""  # of a Ray cluster that exists, as HOST:PORT; empty starts one on this machine
    host: str = "127.0.0.1"  # address of the private interface that a new Ray cluster uses
    port: int = 6379  # that its followers connect to
    partition: str = ""  # of Slurm, several with commas between them; empty is its default
    shared: Path | None = None  # that all nodes of Slurm see; None is within the leader's own
    credentials: Credentials = field(default_factory=Credentials)  # of the followers of Ray


@dataclass(frozen=True)
class EngineKind:
    """A way of having followers: its name, and what makes it."""

    name: str
    make: Callable[[EngineOptions], Engine]


ENGINES: Kind[EngineKind] = Kind("engine", "service.engines", EngineKind, others_folder="engines")
