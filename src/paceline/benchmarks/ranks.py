"""Several ranks as one: joining the process group, agreeing, and sharing data."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

from paceline.core.benchmark import Context
from paceline.core.record import RecordWarning
from paceline.devices import Device, DeviceKind


def emulated(precision: str, device: Device) -> list[RecordWarning]:
    """The warning that a figure says nothing about hardware; none where it does."""
    if device.format(precision).how == "native":
        return []
    reason = f"this {device.kind.noun} has no {precision} instructions"
    message = f"{reason}, so the time says nothing about hardware that has"
    return [RecordWarning(kind="emulated", message=message, remedy="use fp32 on this machine")]


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of its case."""

    rank: int
    world_size: int
    control: Any = None  # a group on the CPU for verdicts, next to the one that carries gradients
    siblings: tuple[int, ...] = ()  # processes of the other ranks on this host

    def agree(self, mine: bool) -> bool:
        """The first rank's verdict, for all ranks."""
        if self.world_size == 1:
            return mine
        import torch
        from torch import distributed

        verdict = torch.tensor([int(mine)])
        distributed.broadcast(verdict, src=0, group=self.control)
        return bool(verdict.item())

    def meet(self) -> None:
        """Go on when every rank is here."""
        if self.world_size > 1:
            from torch import distributed

            distributed.barrier(group=self.control)

    def smallest(self, mine: int) -> int:
        """The smallest of every rank's number."""
        return int(min(self.gather(mine)))

    def all_agree(self, mine: bool) -> bool:
        """Whether every rank says yes."""
        return all(self.gather(mine))

    def gather(self, mine: Any) -> list[Any]:
        """What every rank has, in the order of ranks, on all of them."""
        if self.world_size == 1:
            return [mine]
        from torch import distributed

        values: list[Any] = [None] * self.world_size
        distributed.all_gather_object(values, mine, group=self.control)
        return values

    def with_siblings(self) -> Self:
        """The same, with the processes of the other ranks on this host."""
        host, this = socket.gethostname(), os.getpid()
        processes = self.gather((host, this))
        return replace(self, siblings=tuple(pid for where, pid in processes if where == host and pid != this))


@contextmanager
def join(context: Context, device_kind: DeviceKind, backend: str | None = None) -> Iterator[Ranks]:
    """Meet the other ranks at the rendezvous that the environment names, as torchrun sets it.

    Data moves by the backend of the device kind (nccl between GPUs, gloo between CPUs), unless another is named.
    """
    if context.world_size == 1:
        yield Ranks(0, 1)
        return
    from torch import distributed

    distributed.init_process_group(
        backend or device_kind.collective_backend,
        rank=context.rank,
        world_size=context.world_size,
        timeout=timedelta(seconds=context.case.timeout),
    )
    try:
        if not device_kind.is_accelerator:
            import torch

            # Ranks on one host divide its cores instead of fighting for them: of as many threads as one rank alone
            # would take, so that one and several ranks can be compared.
            alone = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
            torch.set_num_threads(max(1, alone // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        yield Ranks(context.rank, context.world_size, distributed.new_group(backend="gloo")).with_siblings()
    finally:
        distributed.destroy_process_group()
