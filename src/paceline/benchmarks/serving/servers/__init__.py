"""To whom to send: one file per server, one contract for all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType

from paceline.benchmarks.serving.servers.base import Server
from paceline.core.registry import Registry, scan

__all__ = ["registry"]


@lru_cache(maxsize=1)
def registry() -> Registry[type[Server]]:
    """Every server that can be found, by name; others put theirs into `servers` of their package."""
    return scan("server", "benchmarks.serving.servers", _servers, "servers")


def _servers(module: ModuleType) -> Iterator[tuple[str, type[Server]]]:
    for value in vars(module).values():
        if not inspect.isclass(value) or not issubclass(value, Server) or inspect.isabstract(value):
            continue
        if value.__module__ == module.__name__:
            yield value.name, value
