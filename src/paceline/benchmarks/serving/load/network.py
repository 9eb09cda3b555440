"""The way between user and server, emulated in the client: delay, jitter and bandwidth of a link in each direction.

Every request has a link of its own, as users at different places have. A request is really held back on its way up, so
that the server sees the arrivals that such users would cause; what the way down takes is added to the times of the
answer. Nothing is lost and nothing is sent twice, and connections open as fast as the real network lets them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from paceline.benchmarks.serving.load.trace import Times
from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration, Size


class Link(Parameters):
    """A network as one user has it."""

    delay: Duration = 0.0
    """One-way delay that every message has at least"""
    jitter: Duration = 0.0
    """Mean of what is added to it, exponentially distributed"""
    up: Size | None = Field(default=None, gt=0)
    """Bytes per second from user to server; unset is without limit"""
    down: Size | None = Field(default=None, gt=0)
    """Bytes per second from server to user; unset is without limit"""

    def way_up(self, sizes: Times, random: np.random.Generator) -> Times:
        """How long each request of so many bytes is on its way."""
        return self._delays(len(sizes), random) + (sizes / self.up if self.up else 0.0)

    def way_down(self, number: int, random: np.random.Generator) -> Times:
        """How long the first byte of each answer is on its way; the others follow at the bandwidth."""
        return self._delays(number, random)

    def _delays(self, number: int, random: np.random.Generator) -> Times:
        return self.delay + random.exponential(1.0, number) * self.jitter


# Round figures of everyday networks, not measurements; a suite may write the four numbers of its own instead.
PRESETS = {
    "lan": Link(delay="0.1ms", jitter="0.02ms", up="125MB", down="125MB"),
    "wifi": Link(delay="2ms", jitter="1ms", up="5MB", down="12MB"),
    "4g": Link(delay="25ms", jitter="10ms", up="1MB", down="4MB"),
}
Preset = Literal["lan", "wifi", "4g"]


def link_of(network: Preset | Link) -> Link:
    """The link that a user wrote or named."""
    return network if isinstance(network, Link) else PRESETS[network]
