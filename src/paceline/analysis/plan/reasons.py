"""Says in words why the first layout of a plan is the first."""

from __future__ import annotations

from paceline.analysis.plan.memory import rank_memory
from paceline.analysis.plan.search import Candidate, Plan
from paceline.analysis.plan.timing import StepTime
from paceline.core.quantity import show_size

PARTS = {
    "recompute": "computing activations again",
    "tensor": "sums over tensor-parallel ranks",
    "pipeline": "handing activations to the next stage",
    "bubble": "waiting for other pipeline stages",
    "data": "sums of gradients over data-parallel ranks",
    "optimizer": "the optimizer",
}
WORTH_TELLING = 0.02  # of a step


def reasons(plan: Plan) -> list[str]:
    """Sentences: where its time goes, why it checkpoints or not, and what the next one loses by."""
    return [_time(plan.best), _checkpointing(plan), *_next(plan)]


def _time(best: Candidate) -> str:
    lost = sorted(((best.time.share(getattr(best.time, name)), name) for name in PARTS), reverse=True)
    told = [f"{_percent(share)} goes to {PARTS[name]}" for share, name in lost if share >= WORTH_TELLING]
    rest = "; ".join(told) if told else "nothing else takes more than 2 %"
    return f"{best.layout.mesh} computes for {_percent(best.time.share(best.time.compute))} of a step: {rest}."


def _checkpointing(plan: Plan) -> str:
    best, memory = plan.best, plan.cluster.memory
    held = f"{show_size(best.memory.occupied)} of {show_size(memory)}"
    if not best.layout.checkpointing:
        return f"It needs {held} on the fullest rank, so that nothing has to be computed again."
    kept = best.layout.model_copy(update={"checkpointing": False})
    needed = rank_memory(plan.model, kept)
    if not needed.fits(memory):
        return (
            f"It needs {held} on the fullest rank; without checkpointing the same micro-batch would need "
            f"{show_size(needed.occupied)}."
        )
    return f"It needs {held} on the fullest rank."


def _next(plan: Plan) -> list[str]:
    if plan.best.layout.world_size == 1:
        return []
    if len(plan.candidates) < 2:
        return ["No other mesh of these GPUs fits."]
    best, other = plan.candidates[:2]
    behind = 1 - other.samples_per_s / best.samples_per_s
    name = _grew_most(best.time, other.time)
    told = f"{other.layout.mesh}, the next, is {_percent(behind)} slower"
    if behind < WORTH_TELLING:
        return [f"{told}: too little to tell them apart by prediction, so measure both."]
    if name is None:
        return [f"{told}."]
    return [f"{told}: {_percent(other.time.share(getattr(other.time, name)))} of its step goes to {PARTS[name]}."]


def _grew_most(best: StepTime, other: StepTime) -> str | None:
    """What the other spends the most on beyond the best one; None where it is plain compute."""
    growth = {name: getattr(other, name) - getattr(best, name) for name in PARTS}
    name = max(growth, key=lambda part: growth[part])
    return name if growth[name] > max(0.0, other.compute - best.compute) else None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"
