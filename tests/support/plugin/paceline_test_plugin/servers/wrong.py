"""A server that answers well-formed, quickly, and with another model's numbers."""

from __future__ import annotations

from dataclasses import replace

from paceline.servers._embedded.app import ServerConfiguration
from paceline.servers.base import Artifact
from paceline.servers.embedded import Embedded


class Wrong(Embedded):
    """Paceline's own server with weights that nobody asked for."""

    name = "wrong"
    summary = "answers wrongly"

    def _configuration(self, artifact: Artifact) -> ServerConfiguration:
        return super()._configuration(replace(artifact, seed=artifact.seed + 1))
