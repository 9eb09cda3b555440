"""Whether steps computed what they should: finite numbers, the same twice, and compiled the same as uncompiled.

A compiler that drops a gradient gives a faster step, a plausible loss and no message. The record says how far the two
are apart; only what is clearly missing is a warning. In 16 bits fused operators round elsewhere, which networks of many
normed convolutions with random weights magnify: an output of inception_v3 then differs by more than its norm, the norm
of a gradient of mobilenet_v2 by half. Dropout draws other numbers, too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.core.errors import CaseError, SilentCorruption
from paceline.core.kept_output import MOST_NUMBERS, Deviation, KeptOutput
from paceline.core.record import RecordWarning
from paceline.measure.memory import exhausted

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.benchmarks._model.measuring import StepSession

MOST_OF_A_GRADIENT = 0.9  # by which the norms of a parameter's gradient may differ, as a part of the larger
NEGLIGIBLE = 0.01  # of the largest norm: gradients below are rounding, some are zero in theory
MOST_OF_AN_OUTPUT = 0.5  # by which the norms of an output may differ
MOST_OF_AN_EXACT_OUTPUT = 0.05  # the norm of the difference, where outputs are computed in fp32
MORE_PASSES = 8  # of both kinds on suspicion: layers that are left out at random are there in one of them
FACT = "compared_with_uncompiled"
RANDOM = "but uncompiled it differs from itself as much"

Result = TypeVar("Result")


Finding = tuple[str, str]  # a fact for the record, and what is wrong, if anything is


@dataclass(frozen=True)
class Gradients:
    """What a backward pass gave: its loss, and the norm of each parameter's gradient."""

    loss: float
    norms: Mapping[str, float]

    @classmethod
    def of(cls, loss: Tensor, parameters: Iterable[tuple[str, nn.Parameter]], scale: float) -> Gradients:
        """Of what lies at the parameters; the loss was multiplied by `scale` before the backward pass."""
        norms = {name: _norm(one.grad) / scale for name, one in parameters if one.grad is not None}
        return cls(float(loss), norms)

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and all(map(math.isfinite, self.norms.values()))


def compare_gradients(session: StepSession[Any], backward: Callable[[], Gradients]) -> None:
    """Record as a fact, or as a warning, whether the compiled backward pass agrees with the uncompiled one."""
    _record(session, partial(_of_gradients, backward))


def compare_outputs(
    session: StepSession[Any],
    forward: Callable[[], object],
    *,
    exact: bool,
    plain: Callable[[], object] | None = None,
) -> None:
    """Record as a fact, or as a warning, whether the compiled forward pass agrees with the uncompiled one, or with
    the plain one where something else than the compiler has changed it as well."""
    _record(session, partial(_of_outputs, forward, plain or forward, exact=exact))


def _record(session: StepSession[Any], compare: Callable[[], Finding]) -> None:
    """Where something cannot be compared, the facts say why: what is measured is the compiled step all the same."""
    try:
        fact, fault = compare()
    except Exception as error:
        reason = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        if exhausted(error):
            reason = "uncompiled, a step does not fit into memory"
        fact, fault = f"no: {reason}", ""
    session.device.release_memory()  # uncompiled, a step takes more memory than the one that is measured
    session.facts[FACT] = fact
    if fault:
        remedy = "use --compile off, or another version of torch; what is faster here may compute less"
        session.warnings.append(RecordWarning(kind="miscompiled", message=fault, remedy=remedy))


def _of_gradients(backward: Callable[[], Gradients]) -> Finding:
    eager, compiled = _uncompiled(backward), backward()
    if not (compiled.is_finite and eager.is_finite):
        return "no: a loss or a gradient is not finite", ""
    if not (compiled.norms or eager.norms):
        return "no: no parameter has a gradient", ""
    name, worst = _farthest(compiled.norms, eager.norms)
    loss = abs(compiled.loss - eager.loss) / max(abs(eager.loss), 1e-12)
    fact = f"the loss differs by {loss:.2%}, the norm of a parameter's gradient by up to {worst:.2%}"
    if worst <= MOST_OF_A_GRADIENT:
        return fact, ""
    all_eager = [eager.norms, *(_uncompiled(backward).norms for _ in range(MORE_PASSES))]
    all_compiled = [compiled.norms, *(backward().norms for _ in range(MORE_PASSES))]
    most, least = _each(max, all_eager), _each(min, all_eager)
    if _farthest(most, least)[1] > MOST_OF_A_GRADIENT:
        return f"{fact}, {RANDOM}", ""
    name, worst = _farthest(_each(max, all_compiled), most)
    if worst <= MOST_OF_A_GRADIENT:
        return f"{fact}, but not in {MORE_PASSES} more passes", ""
    here, there = (f"{norms.get(name, 0.0):.3g}" for norms in (compiled.norms, eager.norms))
    return fact, f"the norm of the gradient of {name} is {here} compiled, {there} uncompiled"


def _of_outputs(forward: Callable[[], object], plain: Callable[[], object], *, exact: bool) -> Finding:
    eager = _uncompiled(plain)
    deviation = _deviation(forward(), eager)
    if not math.isfinite(deviation.apart):
        return "no: an output is not finite", ""
    fact = f"the output differs by {deviation.apart:.2%} of its norm"
    if not _is_too_much(deviation, exact=exact):
        return fact, ""
    if _is_too_much(_deviation(_uncompiled(plain), eager), exact=exact):
        return f"{fact}, {RANDOM}", ""
    return fact, f"compiled, the output is off by {deviation.apart:.0%} of its norm uncompiled"


def _is_too_much(deviation: Deviation, *, exact: bool) -> bool:
    """For outputs of one computation; exact ones were computed in fp32."""
    return deviation.apart > MOST_OF_AN_EXACT_OUTPUT if exact else deviation.longer > MOST_OF_AN_OUTPUT


def _uncompiled(compute: Callable[[], Result]) -> Result:
    """Whatever was compiled runs as it was written."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        return compute()


def _farthest(norms: Mapping[str, float], others: Mapping[str, float]) -> tuple[str, float]:
    """The parameter whose norms differ most, and by which part of the larger one."""
    least = NEGLIGIBLE * max((*norms.values(), *others.values()), default=0.0)
    worst = ("", 0.0)
    for name in {**others, **norms}:
        a, b = norms.get(name, 0.0), others.get(name, 0.0)
        if max(a, b) > least and abs(a - b) / max(a, b) > worst[1]:
            worst = (name, abs(a - b) / max(a, b))
    return worst


def _each(pick: Callable[[Iterable[float]], float], passes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Of each parameter, one of the norms that it had; a parameter without a gradient counts as zero."""
    passes = list(passes)
    return {name: pick([one.get(name, 0.0) for one in passes]) for name in {key for one in passes for key in one}}


def _deviation(compiled: object, eager: object) -> Deviation:
    """Of the tensors that differ most; not a number where one of them is not finite."""
    each = []
    for one, other in zip(float_tensors(compiled), float_tensors(eager), strict=True):
        each.append(Deviation.of(_norm(one - other), _norm(one), _norm(other)))
    if not each:
        raise ValueError("the output has no tensor of numbers")
    if not all(math.isfinite(part) for one in each for part in one):
        return Deviation(math.nan, math.nan)
    return Deviation(max(one.apart for one in each), max(one.longer for one in each))


def kept_output(output: object) -> KeptOutput | None:
    """What is kept of an output, so that another setting's can be compared; None where it has no finite numbers."""
    import torch

    tensors = [one.detach().expand(one.shape or (1,)) for one in float_tensors(output) if one.numel()]
    norm, count = math.hypot(*map(_norm, tensors)), sum(one.numel() for one in tensors)
    numbers: list[float] = []
    places = torch.linspace(0, count - 1, min(count, MOST_NUMBERS), dtype=torch.float64).round().long()
    for one in tensors:
        mine = places[(places >= 0) & (places < one.numel())].to(one.device)
        # By its coordinates: a tensor that is laid out in another order would be copied to be flat.
        numbers += one[torch.unravel_index(mine, one.shape)].double().tolist()
        places = places - one.numel()
    if not numbers or not all(map(math.isfinite, (norm, *numbers))):
        return None
    return KeptOutput(count=count, norm=norm, numbers=tuple(numbers))


def _norm(tensor: Tensor) -> float:
    import torch

    wide = torch.float32 if tensor.is_floating_point() and tensor.element_size() < 4 else None
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=wide))


def float_tensors(output: object) -> Iterator[Tensor]:
    """The tensors of numbers in a model's output, in its order."""
    import torch

    for leaf in leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            yield leaf


def leaves(output: object) -> Iterator[object]:
    """What a model's output is made of: its tensors, and anything else that holds nothing."""
    import torch

    parts = output.values() if isinstance(output, Mapping) else output
    if isinstance(parts, torch.Tensor) or not isinstance(parts, Iterable):
        yield parts
        return
    for part in parts:
        yield from leaves(part)


def loss_warnings(trace: Sequence[float]) -> list[RecordWarning]:
    """The warning about a step whose result is not a number."""
    if all(math.isfinite(loss) for loss in trace):
        return []
    message = f"the loss of the first steps or of the last one is not finite: {list(trace)}"
    remedy = "use bf16 or fp32; a step that computes nothing sensible may take another time"
    return [RecordWarning(kind="diverged", message=message, remedy=remedy)]


def scale_warnings(before: float, after: float) -> list[RecordWarning]:
    """The warning about steps that were skipped because the scaled gradients of fp16 overflowed."""
    if after >= before:
        return []
    message = (
        f"the loss scale fell from {before:g} to {after:g}: gradients overflowed and optimizer steps were skipped, "
        "which is cheaper than taking them"
    )
    remedy = "use bf16, or allow more warm-up so that the scale settles"
    return [RecordWarning(kind="skipped-steps", message=message, remedy=remedy)]


def caught_warnings(enabled: bool) -> AbstractContextManager[list[warnings.WarningMessage]]:
    """Collects the warnings of operators that have no deterministic implementation, if enabled."""
    return warnings.catch_warnings(record=True, action="always") if enabled else nullcontext([])


def excuses(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """The operators that may give another result each time, as torch names them."""
    return sorted({str(one.message).partition(".")[0] for one in caught if "deterministic" in str(one.message)})


def compare_runs(
    first: Sequence[float], second: Sequence[float], seed: int, caught: Sequence[warnings.WarningMessage]
) -> None:
    """Raise unless the numbers are the same, bit by bit; the same not-a-number is the same."""
    if len(first) == len(second) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(first, second, strict=True)
    ):
        return
    message = f"two computations from seed {seed} gave {_shown(first)} and {_shown(second)}"
    if reasons := excuses(caught):
        raise CaseError(f"{message}, but that proves nothing: {'; '.join(reasons)}")
    raise SilentCorruption(f"{message}; check the device's memory (ECC) and the model's own sources of randomness")


def _shown(numbers: Sequence[float]) -> str:
    few = ", ".join(f"{number:.9g}" for number in numbers[:5])
    return f"[{few}{', ...' if len(numbers) > 5 else ''}]"
