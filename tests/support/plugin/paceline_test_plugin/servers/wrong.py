"""A server that answers well-formed, quickly, and with another model's numbers."""

from __future__ import annotations

from dataclasses import replace

from paceline.servers.embedded import Embedded


class Wrong(Embedded):
    """Paceline's own server with weights that nobody asked for."""

    name = "wrong"
    summary = "answers wrongly"

    def _command(self) -> list[str]:
        right = self.artifact
        assert right is not None
        self.artifact = replace(right, seed=right.seed + 1)
        try:
            return super()._command()
        finally:
            self.artifact = right
