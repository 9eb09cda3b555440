"""A collective that delivers one wrong element to one rank."""

from __future__ import annotations

from typing import Any

from paceline.benchmarks.communication._exchange import TorchExchange
from paceline.benchmarks.communication.collective import Collective, CollectiveParameters

VICTIM = 1
ELEMENT = 7


class CorruptParameters(CollectiveParameters):
    """From which call on the data is wrong."""

    good_calls: int = 0
    """How many calls go well before"""


class CorruptExchange(TorchExchange):
    """Changes one element after the real operation."""

    good_calls = 0

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._calls = 0

    def call(self) -> None:
        super().call()
        self._calls += 1
        if self._calls > self.good_calls and self.payload.rank == VICTIM:
            self.payload.received[ELEMENT] += 1


class CorruptCollective(Collective):
    """Like the real one, but for its exchange."""

    name = "corrupt-collective"
    summary = "delivers one wrong element"
    Parameters = CorruptParameters
    exchange = CorruptExchange

    def measure(self, parameters: Any, context: Any) -> Any:
        CorruptExchange.good_calls = parameters.good_calls
        return super().measure(parameters, context)
