"""To whom to send: one file per server, one contract for all."""

from __future__ import annotations

from paceline.core.registry import Kind, Registry
from paceline.servers.base import Server

__all__ = ["SERVERS", "registry"]

SERVERS: Kind[type[Server]] = Kind("server", "servers", Server)


def registry() -> Registry[type[Server]]:
    """Every server that can be found, by name; others put theirs into `servers` of their package."""
    return SERVERS.registry()
