"""To whom to send: one file per server, one contract for all."""

from __future__ import annotations

from paceline.core.registry import Kind
from paceline.servers.base import Server

__all__ = ["SERVERS"]

SERVERS: Kind[type[Server]] = Kind("server", "servers", Server)
