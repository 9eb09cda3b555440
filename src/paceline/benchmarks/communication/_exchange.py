"""One collective among the ranks of a torch process group: its data, the call that moves it, and the check."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.benchmarks._micro.formats import dtype_of
from paceline.benchmarks.communication._operations import ROOT, Operation
from paceline.benchmarks.communication._payload import Payload, Table
from paceline.benchmarks.ranks import Ranks
from paceline.core.errors import SilentCorruption, Unsupported
from paceline.devices import Device

if TYPE_CHECKING:
    from torch import Tensor

# How torch says that a backend lacks an operation, or has it in fewer formats.
_LACKING = ("not support", "not implemented", "Invalid scalar type")


class TorchExchange:
    """One operation at one size, ready to be called."""

    def __init__(
        self,
        operation: Operation,
        ranks: Ranks,
        size: int,
        device: Device,
        *,
        precision: str,
        in_place: bool,
        seed: int,
    ) -> None:
        import torch

        dtype, where = dtype_of(precision), device.torch()

        def lift(table: Table) -> Tensor:
            return torch.from_numpy(table).to(where, dtype)

        self._ranks = ranks
        self._precision = precision
        self.operation = operation
        self.payload = Payload(
            operation,
            ranks.rank,
            ranks.world_size,
            size,
            precision=precision,
            in_place=in_place,
            seed=seed,
            empty=lambda count: torch.empty(count, dtype=dtype, device=where),
            lift=lift,
        )
        self._issue = self._bound()

    def call(self) -> None:
        """Move the data, and wait as torch does: on the device's stream, or for the end on a CPU."""
        self._issue(async_op=False)

    def start(self) -> Any:
        """Begin to move the data; what is returned can be waited for."""
        return self._issue(async_op=True)

    def check(self) -> None:
        """Move fresh data once and look at every element of what arrived."""
        from torch import __version__, distributed

        self.payload.prepare()
        try:
            self.call()
        except (RuntimeError, NotImplementedError) as error:
            if not any(words in str(error) for words in _LACKING):
                raise
            raise Unsupported(
                f"{distributed.get_backend()} of torch {__version__} has no {self.operation.name} in "
                f"{self._precision}: use fp32, another operation, or backend = mpi ({error})"
            ) from None
        self.verify()

    def check_again(self) -> None:
        """Look at what the timed calls left; where they worked on changed data, at one more call on fresh data."""
        if self.payload.keeps_input:
            self.verify()
        else:
            self.check()

    def verify(self) -> None:
        """Raise on every rank when any rank received something wrong, so that nobody waits for the others."""
        mine = self.payload.complaint()
        complaints = {rank: said for rank, said in enumerate(self._ranks.gather(mine)) if said}
        if mine:
            raise SilentCorruption(mine)
        for rank, said in complaints.items():
            # In the runner's eyes what a remote process suffered is no cause: the rank itself tells it.
            raise SilentCorruption(f"the remote process of rank {rank} failed: {said}")

    def _bound(self) -> Callable[..., Any]:
        """The operation with its data: found once, for looking it up would be in the time of every small message."""
        from torch import distributed

        sent, received = self.payload.sent, self.payload.received
        match self.operation.name:
            case "all-reduce":
                return partial(distributed.all_reduce, received)
            case "broadcast":
                return partial(distributed.broadcast, received, src=ROOT)
            case "reduce":
                return partial(distributed.reduce, received, dst=ROOT)
            case "all-gather":
                return partial(_newest("all_gather_single", "all_gather_into_tensor"), received, sent)
            case "reduce-scatter":
                return partial(_newest("reduce_scatter_single", "reduce_scatter_tensor"), received, sent)
            case "all-to-all":
                return partial(distributed.all_to_all_single, received, sent)


def _newest(name: str, before: str) -> Any:
    """A function of torch.distributed that newer versions call by another name."""
    from torch import distributed

    return getattr(distributed, name, None) or getattr(distributed, before)
