"""One matrix product divided over ranks, with the communication that makes its result whole again.

Two ways, as tensor-parallel layers use them. `all-reduce` splits k: every rank multiplies its columns of A with its
rows of B, and the partial results are summed. `all-gather` splits n: every rank multiplies all of A with its columns
of B, and the columns are put side by side. Either way every rank ends with the whole result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

from paceline.benchmarks import _superbench
from paceline.benchmarks._micro import formats
from paceline.benchmarks._micro.parameters import COMPUTE_RATE, TIME, TorchBenchmark, join_words, time_metric
from paceline.benchmarks._micro.session import MicroSession
from paceline.benchmarks.compute.gemm import CHECKED_ROWS, GemmParameters, Product
from paceline.benchmarks.compute.matmul import MatmulParameters, Shape
from paceline.benchmarks.ranks import Ranks, join
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, Unsupported
from paceline.core.record import Record, Result
from paceline.core.subject import Description
from paceline.devices import Device, open_device

if TYPE_CHECKING:
    from torch import Tensor

Mode = Literal["all-reduce", "all-gather"]
SPLIT = {"all-reduce": "k", "all-gather": "n"}

MULTIPLY_TIME = time_metric("multiply_time", "a rank's part of the product alone, nothing communicated")
COMMUNICATE_TIME = time_metric("communicate_time", "the collective operation alone, nothing multiplied")


class ShardingMatmulParameters(MatmulParameters):
    """The product, and how it is divided."""

    mode: Mode = "all-reduce"
    """all-reduce splits k and sums partial results; all-gather splits n and puts columns side by side"""


class ShardingMatmul(TorchBenchmark[ShardingMatmulParameters]):
    """A product over several ranks, checked against the undivided one."""

    name = "sharding-matmul"
    summary = "one matrix product divided over ranks: time, FLOP/s of all, and its parts alone"
    category = "compute"
    metrics = (TIME, COMPUTE_RATE, MULTIPLY_TIME, COMMUNICATE_TIME)
    distributed = True

    @classmethod
    def title(cls, parameters: ShardingMatmulParameters) -> str:
        return join_words(parameters.mode, parameters.precision, parameters.show_shape())

    @classmethod
    def check(cls, parameters: ShardingMatmulParameters, case: Case) -> None:
        name = SPLIT[parameters.mode]
        size = getattr(parameters, name)
        if size is not None and size % case.ranks:
            near = max(1, round(size / case.ranks)) * case.ranks
            message = (
                f"{name} = {size} cannot be divided over {case.ranks} ranks, as mode {parameters.mode} does: "
                f"use {name} = {near}"
            )
            raise InputError("not-divisible", message, key=name, value=size, suggestion=str(near))

    @classmethod
    def describe(cls, record: Record, parameters: ShardingMatmulParameters, environment: Environment) -> Description:
        key = f"{_superbench.joined(parameters.mode)}_time"
        values = _superbench.means(record, {key: ("time", _superbench.MS)})
        aliases = _superbench.alias(record, "pytorch-sharding-matmul", values, part=key, gpu=True)
        return Description(aliases=aliases)

    def measure(self, parameters: ShardingMatmulParameters, context: Context) -> Result:
        if context.world_size == 1:
            raise Unsupported("sharding-matmul divides a product over ranks, and this is one: use --ranks 2 or more")
        device = open_device(context.target)
        formats.check_device(parameters.precision, device)
        with join(context, device.kind) as ranks:
            product = ShardedProduct(parameters, device, ranks)
            product.check()
            m, n, k = product.shape
            work = 2.0 * m * n * k
            with MicroSession(parameters, context, device, ranks) as session:
                whole = session.time(product.call, TIME, work=work, rate_unit="FLOP/s")
                multiply = session.time(product.multiply, MULTIPLY_TIME)
                communicate = session.time(product.communicate, COMMUNICATE_TIME)
            product.check()
        # Each rank reports its own part of the work; merged, all of it is over the time of the slowest.
        rate = whole.rate(COMPUTE_RATE, work / ranks.world_size)
        facts = {
            "shape": {"m": m, "n": n, "k": k},
            "split": f"{SPLIT[parameters.mode]} over {ranks.world_size} ranks",
            "operations": f"2 m n k = {work:g}, of all ranks together",
            "communicated_bytes": product.communicated_bytes,
            "library_call": product.how,
            "checked": f"{CHECKED_ROWS} rows on every rank before and after, against the undivided product in fp64; "
            f"largest error {product.worst:.3g} of what the format allows",
        }
        return session.result([whole.time, rate, multiply.time, communicate.time], facts)


class ShardedProduct(Product):
    """This rank's shards of the operands, its part of the product, and what makes the result whole.

    The whole operands are made from the same seed on every rank, so that each can check the whole result.
    """

    def __init__(self, parameters: ShardingMatmulParameters, device: Device, ranks: Ranks) -> None:
        self._mode = parameters.mode
        self._ranks = ranks
        m, n, k = divisible(parameters.shape_on(device.kind), parameters.mode, ranks.world_size)
        super().__init__(GemmParameters(precision=parameters.precision, m=m, n=n, k=k, seed=parameters.seed), device)

    def _make_call(self, lead: tuple[int, ...]) -> Callable[[], Tensor]:
        import torch
        from torch import distributed

        m, n, k = self.shape
        splits_k = self._mode == "all-reduce"
        each = (k if splits_k else n) // self._ranks.world_size
        mine = slice(self._ranks.rank * each, (self._ranks.rank + 1) * each)
        if splits_k:
            left, right = self._a[:, mine].contiguous(), self._b[mine].contiguous()
            part = result = left.new_empty((m, n))
            name = "all_reduce"
            # Repeated without a product between, the sums grow beyond the format's range; an adder does not mind.
            communicate: Callable[[], object] = partial(distributed.all_reduce, result)
        else:
            # Transposed, the ranks' columns are rows, which lie one after another in the result without another copy.
            left, right = self._b[:, mine].t().contiguous(), self._a.t()
            part, whole = left.new_empty((each, m)), left.new_empty((n, m))
            # The newer name of the same operation, where torch has it: the older one warns there.
            name = "all_gather_single" if hasattr(distributed, "all_gather_single") else "all_gather_into_tensor"
            communicate, result = partial(getattr(distributed, name), whole, part), whole.t()
        self.how = f"torch.mm, then torch.distributed.{name} of the {'result' if splits_k else 'parts'}"
        self.communicated_bytes = part.numel() * part.element_size()
        self.multiply: Callable[[], object] = partial(torch.mm, left, right, out=part)
        self.communicate = communicate

        def call() -> Tensor:
            torch.mm(left, right, out=part)
            communicate()
            return result

        return call


def divisible(shape: Shape, mode: Mode, ranks: int) -> Shape:
    """The shape with the axis that is split rounded up to a multiple of the ranks."""
    m, n, k = shape
    if mode == "all-reduce":
        return m, n, k + -k % ranks
    return m, n + -n % ranks, k
