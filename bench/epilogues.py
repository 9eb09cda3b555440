"""GELU, its gradient and the gradients of biases in the epilogues of matrix products, beside kernels of their own.

Of the feed-forward layers of GPT-2 and BERT in their sizes of `training`: each product with its epilogue, and the layer
with its norm and residual sum, compiled as usual and with fused products; in turns, each result checked. Where lines
with `step` are asked for, whole steps of GPT-2 as well. Both take the GELU's tanh form here, as cuBLASLt has no other;
in training BERT takes the exact one.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from bench.ratio import Ratio, Wanted
from bench.training import ON_A_CPU, ON_A_GPU, SMALL, TURNS, Step, _forget, sustained
from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.core.errors import Unsupported
from paceline.devices import Device, open_device

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.devices._cublaslt import Epilogue

LAYERS = 24
SHAPES = {"gpt2": (32 * 1024, 1024), "bert": (24 * 512, 1024)}  # tokens of a micro-batch, hidden size
SMALL_SHAPE = (64, 32)
ROUNDS = 8
TURN, WARM_UP = 0.05, 0.7  # on a GPU, seconds of each side in each round, and of all before the first
MOST_APART = 0.02  # of a result's norm


@dataclass(frozen=True)
class Way:
    """A way to results, which the call returns; what it writes to is invalid before a check."""

    call: Callable[[], Sequence[Tensor]]
    written: Sequence[Tensor] = ()

    def results(self) -> Sequence[Tensor]:
        for one in self.written:
            one.fill_(math.nan)
        return self.call()


Ways = Callable[[], dict[str, Way]]


@dataclass
class Part:
    """Ways to the same results, which may compute less than all of them, and what is timed beside."""

    separate: Way
    fused: dict[str, Ways]  # made one by one: any of them may be refused
    expected: Sequence[Tensor]
    beside: dict[str, Step] = field(default_factory=dict)


@dataclass
class Bed:
    """Where parts are measured, and which results were wrong."""

    device: Device
    wrong: list[str] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        return self.device.kind.is_accelerator

    def compiled(self, work: Any) -> Any:
        import torch

        return torch.compile(work, dynamic=False) if self.on_gpu else work

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        import torch

        made = torch.randn(shape, device=self.device.torch()) * scale
        return made.to(torch.bfloat16) if self.on_gpu else made

    def line(self, name: str, part: Part) -> Ratio:
        """Time of the separate way over that of the fastest fused one."""
        sides: dict[str, Step] = {**part.beside, "separate": part.separate.call}
        _, note = self._checked(name, "separate", part.separate, part.expected)
        notes, fused = [note], []
        for way, make in part.fused.items():
            try:
                for which, one in make().items():
                    side = f"{way} {which}".strip()
                    is_right, note = self._checked(name, side, one, part.expected)
                    notes.append(note)
                    sides[side] = one.call
                    fused += [side] if is_right else []
            except Exception as error:  # one that is refused must not cost the others
                notes.append(f"{way} {_said(error)}")
        times = in_turns(sides, self.device)
        found = {side: median(each) for side, each in times.items()}
        separate, best = found["separate"], min((found[side] for side in fused), default=math.nan)
        shown = (f"{side} {_shown(each)}" for side, each in times.items())
        saved = f"{LAYERS} layers save {LAYERS * (separate - best) * 1e3:.2f} ms"
        return Ratio(name, separate / best, "> 1", separate > best, "; ".join([*shown, saved, *notes]))

    def _checked(self, name: str, side: str, way: Way, expected: Sequence[Tensor]) -> tuple[bool, str]:
        most = max((apart(one, other) for one, other in zip(way.results(), expected, strict=False)), key=_badness)
        return self.is_near(f"{name}: {side}", most), f"{side} apart by {most:.2%}"

    def is_near(self, name: str, most: float) -> bool:
        """Whether results are right; those that are not end the bench with an error once all is measured."""
        if not most <= MOST_APART:
            self.wrong.append(f"{name} apart by {most:.2%}")
        return most <= MOST_APART

    def failed(self, name: str, error: Exception) -> None:
        """A line that cannot be had must not cost the others, nor count as measured."""
        self.wrong.append(f"{name} {_said(error)}")
        click.echo(self.wrong[-1], err=True)


def _badness(difference: float) -> float:
    return math.inf if math.isnan(difference) else difference


def apart(one: Tensor, expected: Tensor) -> float:
    """The norm of the difference as a part of the norm; not a number where a result was not written."""
    wide = expected.float()
    return float((one.float() - wide).norm() / wide.norm())


def in_turns(sides: dict[str, Step], device: Device) -> dict[str, list[float]]:
    """Seconds of a call of each side in each round; the order changes from round to round."""
    turn, warm_up = (TURN, WARM_UP) if device.kind.is_accelerator else (0.0, 0.0)
    counts = {}
    for name, call in sides.items():
        _seconds(call, 3, device)
        counts[name] = max(1, round(turn / max(_seconds(call, 3, device), 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    order, drawn, begun = list(sides), random.Random(0), device.clock()
    while device.clock() - begun < warm_up:
        for name in order:
            _seconds(sides[name], counts[name], device)
    for _ in range(ROUNDS):
        drawn.shuffle(order)
        for name in order:
            times[name].append(_seconds(sides[name], counts[name], device))
    return times


def _seconds(call: Step, count: int, device: Device) -> float:
    def block() -> None:
        for _ in range(count):
            call()

    if not device.kind.is_accelerator:
        return device.seconds_of(block) / count
    begin, end = device.event(), device.event()
    begin.record()
    block()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / count


def _shown(times: Sequence[float]) -> str:
    return f"{median(times) * 1e3:.3f} ({min(times) * 1e3:.3f} to {max(times) * 1e3:.3f}) ms"


def _said(error: Exception) -> str:
    kind = "unsupported" if isinstance(error, Unsupported) else f"failed: {type(error).__name__}"
    return f"{kind}: {str(error)[:200]}".partition("\n")[0]


def epilogue_ratios(wanted: Wanted) -> Iterator[Ratio]:
    """A line for each part of a layer, for whole layers, and for steps where they are asked for."""
    import torch

    bed = Bed(open_device(wanted.target or ("cuda:0" if torch.cuda.is_available() else "cpu")))
    for model, shape in SHAPES.items():
        tokens, hidden = shape if bed.on_gpu else SMALL_SHAPE
        for what, part in PARTS.items():
            if wanted(name := f"{model} {what}"):
                click.echo(f"compiling {name}", err=True)
                torch.manual_seed(0)
                try:
                    line = bed.line(name, part(bed, tokens, hidden))
                except Exception as error:
                    bed.failed(name, error)
                else:
                    yield line
                _forget(bed.device)
    if any("step" in words for words in wanted.only):
        yield from _steps(wanted, bed)
    if bed.wrong:
        raise click.ClickException(f"wrong or missing: {'; '.join(bed.wrong)}")


def _gelu(bed: Bed, tokens: int, hidden: int) -> Part:
    """The first product, with bias and GELU; what enters the GELU is kept."""
    from paceline.devices._cublaslt import GELU_AUX_BIAS, Epilogue
    from paceline.models._modules.transformer import gelu

    x, weight = bed.normal(tokens, hidden), bed.normal(4 * hidden, hidden, scale=hidden**-0.5).t()
    bias, before = bed.normal(4 * hidden), bed.normal(tokens, 4 * hidden)
    kernel = bed.compiled(lambda made: (gelu(made + bias, "tanh"),))
    return _part(bed, x, weight, kernel, {"fused": (Epilogue(GELU_AUX_BIAS, bias, before), (before,), None)})


def _gelu_gradient(bed: Bed, tokens: int, hidden: int) -> Part:
    """The gradient through the second product and the GELU, with that of the first bias."""
    from bench.fused import gelu_slope
    from paceline.devices._cublaslt import DGELU, DGELU_BGRAD, Epilogue

    gradient, weight = bed.normal(tokens, hidden), bed.normal(hidden, 4 * hidden, scale=hidden**-0.5)
    before, sums = bed.normal(tokens, 4 * hidden), bed.normal(4 * hidden)

    def kernel(made: Tensor) -> tuple[Tensor, Tensor]:
        inner = (made * gelu_slope(before)).to(made.dtype)
        return inner, inner.sum(0)

    summed = bed.compiled(lambda made: made.sum(0))
    fused = {
        "with sum": (Epilogue(DGELU_BGRAD, sums, before), (sums,), None),
        "without sum": (Epilogue(DGELU, None, before), (), summed),
    }
    return _part(bed, gradient, weight, bed.compiled(kernel), fused)


def _bias_gradient(bed: Bed, tokens: int, hidden: int, *, transposed: bool = False) -> Part:
    """The gradients of the second weight and of its bias; transposed is that of the weight lying the other way."""
    from paceline.devices._cublaslt import BGRADA, BGRADB, Epilogue

    gradient, after, sums = bed.normal(tokens, hidden), bed.normal(tokens, 4 * hidden), bed.normal(hidden)
    summed = bed.compiled(lambda: gradient.sum(0))
    a, b = (after.t(), gradient) if transposed else (gradient.t(), after)
    fused = {"fused": (Epilogue(BGRADA if transposed else BGRADB, sums), (sums,), None)}
    return _part(bed, a, b, lambda made: (made, summed()), fused)


def _part(
    bed: Bed,
    a: Tensor,
    b: Tensor,
    kernel: Callable[[Tensor], Sequence[Tensor]],
    fused: Mapping[str, tuple[Epilogue, Sequence[Tensor], Callable[[Tensor], Tensor] | None]],
) -> Part:
    """A product and a kernel after it, beside products with epilogues: what these write, what is computed after."""
    import torch

    from bench.fused import by_torch, first_and_fastest

    made = a.new_empty(a.shape[0], b.shape[1])

    def ways(epilogue: Epilogue, written: Sequence[Tensor], after: Callable[[Tensor], Tensor] | None) -> Ways:
        def called(product: Callable[[], Tensor]) -> Sequence[Tensor]:
            out = product()
            return (out, *written) if after is None else (out, after(out))

        def make() -> dict[str, Way]:
            out = torch.empty_like(made)
            calls = first_and_fastest(bed.device, a, b, out, epilogue)
            return {which: Way(partial(called, call), (out, *written)) for which, call in calls.items()}

        return make

    epilogue, written, _ = next(iter(fused.values()))
    expected = [one.clone() for one in (by_torch(a, b, made, epilogue), *written)]
    plain = first_and_fastest(bed.device, a, b, torch.empty_like(made))
    product: Step = partial(torch.mm, a, b, out=made)
    return Part(
        Way(lambda: kernel(torch.mm(a, b, out=made)), (made,)),
        {name: ways(*one) for name, one in fused.items()},
        expected,
        {"product of torch": product} | {f"product {which}": call for which, call in plain.items()},
    )


def _layer(bed: Bed, tokens: int, hidden: int) -> Part:
    """Norm, feed-forward layer and residual sum, forward and backward, replayed as a graph on a GPU."""
    import torch
    from torch import nn

    from bench.fused import WAYS, fuse
    from paceline.benchmarks._model.session import autocast
    from paceline.models._modules.transformer import FeedForward

    x, gradient = bed.normal(tokens, hidden).requires_grad_(), bed.normal(tokens, hidden)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(hidden)
            self.feed_forward = FeedForward(hidden, gelu="tanh").to(x.dtype)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.feed_forward(self.norm(x))  # type: ignore[no-any-return]

    plain = Layer().to(bed.device.torch())

    def made(way: str) -> dict[str, Way]:
        layer = copy.deepcopy(plain)
        if way:
            fuse(layer, way)
        compiled = bed.compiled(layer)
        results: list[Tensor] = []

        def step() -> list[Tensor]:
            with autocast("bf16" if bed.on_gpu else "fp32", bed.device):
                y = compiled(x)
            results[:] = [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], gradient)]
            return results

        step()
        if not bed.on_gpu:
            return {"": Way(step)}
        replay = bed.device.capture(step)
        return {"": Way(lambda: (replay(), results)[1], results)}

    separate = made("")[""]
    fused: dict[str, Ways] = {f"fused {way}": partial(made, way) for way in WAYS}
    return Part(separate, fused, [one.clone() for one in separate.results()])


PARTS: dict[str, Callable[[Bed, int, int], Part]] = {
    "gelu": _gelu,
    "gelu gradient": _gelu_gradient,
    "bias gradient": _bias_gradient,
    "bias gradient transposed": partial(_bias_gradient, transposed=True),
    "layer": _layer,
}


def _steps(wanted: Wanted, bed: Bed) -> Iterator[Ratio]:
    """Steps of GPT-2 as it is trained, over those with fused layers."""
    from bench.fused import WAYS

    plain: tuple[Step, list[float]] | None = None
    for way in WAYS:
        if not wanted(name := f"gpt2 step {way}"):
            continue
        click.echo(f"compiling {name}", err=True)
        plain = plain or _trained(bed, "")
        try:
            step, reached = _trained(bed, way)
        except Exception as error:
            bed.failed(name, error)
            _forget(bed.device)
            continue
        most = max(abs(one / other - 1) for one, other in zip(reached, plain[1], strict=True))
        bed.is_near(name, most)
        before: list[float] = []
        after: list[float] = []
        sides = [(plain[0], before), (step, after)]
        for _ in range(TURNS):
            for side, times in sides:
                times.append(sustained(side, bed.device))
            sides.reverse()
        value = median(one / other for one, other in zip(before, after, strict=True))
        made_of = f"as it is {_shown(before)}; fused {_shown(after)}; losses and norm apart by {most:.2%}"
        yield Ratio(name, value, "> 1", value > 1, made_of)
        del step, side, sides
        _forget(bed.device)


def _trained(bed: Bed, way: str) -> tuple[Step, list[float]]:
    """A step, and the losses of the first three and the norm of the last gradient."""
    from bench.fused import fuse
    from paceline.benchmarks.parallel._stage import Mesh
    from paceline.benchmarks.parallel._trainer import ParallelTrainer

    case = (ON_A_GPU if bed.on_gpu else ON_A_CPU)[0]
    parameters = ParallelParameters(case=case, **({} if bed.on_gpu else SMALL))
    mesh = Mesh.of(parameters.layout, 0, bed.device.torch().type)
    trainer = ParallelTrainer(parameters, bed.device, mesh, compiled=bed.on_gpu, capturable=bed.on_gpu)
    if way and sum(fuse(stage, way) for stage in trainer.stages.values()) != parameters.layout.layers:
        raise LookupError("not every layer has a feed-forward layer that can be fused")
    reached = [*(trainer.step() for _ in range(3)), trainer.norm]
    numbers = [float(one) for one in reached if one is not None]
    return bed.device.capture(trainer.step) if bed.on_gpu else trainer.step, numbers
