"""A training whose ranks are those of the case, over several hosts: each rank starts its own process of the script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from paceline.benchmarks.ranks import Ranks
from paceline.core.metric import Merge
from paceline.core.network import free_port
from paceline.core.record import Measurement, Result


def rank_variables(ranks: Ranks) -> dict[str, str]:
    """What a rank of the training needs besides the case's own variables: a port that the case does not use itself."""
    port = ranks.gather(free_port("") if ranks.rank == 0 else None)[0]
    return {"MASTER_PORT": str(port)}


@contextmanager
def heard_by_first(ranks: Ranks, read_line: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """What to call with the lines of a rank: those of the last rank, which logs iterations, the first one reads too."""
    first, last = 0, ranks.world_size - 1
    if last == first:
        yield read_line
        return
    if ranks.rank not in (first, last):
        yield lambda _line: None
        return
    from torch import distributed

    def send(line: str | None) -> None:
        distributed.send_object_list([line], dst=first, group=ranks.control)

    def listen() -> None:
        heard: list[str | None] = [None]
        with suppress(RuntimeError):  # the last rank is gone, which it says itself
            while distributed.recv_object_list(heard, src=last, group=ranks.control) >= 0 and heard[0] is not None:
                read_line(heard[0])

    if ranks.rank == first:
        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        yield lambda _line: None
        listener.join()
        return

    def read_and_send(line: str) -> None:
        read_line(line)
        send(line)

    yield read_and_send
    send(None)


def part_of(result: Result, rank: int) -> Result:
    """A rank's part of the result of all: its own memory, and of the first rank what holds for all of them."""
    own = [replace(one, scope="") for one in result.measurements if one.scope == f"rank {rank}"]
    if rank > 0:
        return Result(measurements=own)
    by_rank = {one.metric.name for one in result.measurements if one.scope}
    whole = [_of_all(one) for one in result.measurements if one.metric.name not in by_rank]
    return result.model_copy(update={"measurements": [*whole, *own]})


def _of_all(one: Measurement) -> Measurement:
    return replace(one, metric=one.metric.model_copy(update={"merge": Merge.FIRST}))
