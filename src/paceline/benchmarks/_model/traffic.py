"""The least that a model must move through memory: the other side of its arithmetic intensity.

It is a model itself: a lower bound made of the facts that a record carries, with its formula in words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.benchmarks._model.measuring import FLOP_RATE
from paceline.core.layout import Layout
from paceline.core.record import Outcome, Record
from paceline.core.subject import BYTES, Work, number_format

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.benchmarks._model.session import ModelSession


Result = TypeVar("Result")


def count_saved(session: ModelSession[Any], step: Callable[[], Result]) -> Result:
    """Take a step of training; the session's facts then say what it kept for its backward pass."""
    if not _is_countable(session):
        return step()
    import torch

    modules: list[Any] = [session.workload.module, session.workload.loss]
    modules = [module for module in modules if hasattr(module, "parameters")]
    weights = {_storage(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}
    saved: dict[int, int] = {}  # bytes by storage

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided and _storage(tensor) not in weights:
            saved[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor.detach()  # itself would make a cycle where an operator keeps its own result

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = step()
    session.facts |= {"activation_bytes": sum(saved.values()), "activations_are": "kept for the backward pass"}
    return result


def count_results(session: ModelSession[Any], step: Callable[[], Result]) -> Result:
    """Take a step forward; the session's facts then say what its operators wrote for each other."""
    if not _is_countable(session):
        return step()
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def tensors(tree: Any) -> list[Tensor]:
        return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor) and one.layout is torch.strided]

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Adds up the bytes of every result; a view of an existing tensor is not counted."""

        written = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            with self:  # an operator that is made of others is seen as these, as the device sees it
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            result = func(*args, **kwargs)
            if func.overloadpacket.__name__ not in ("empty", "empty_like", "new_empty", "empty_strided"):
                existing = set() if func._schema.is_mutable else set(map(_storage, tensors((args, kwargs))))
                self.written += sum(
                    one.numel() * one.element_size() for one in tensors(result) if _storage(one) not in existing
                )
            return result

    counter = Counter()  # type: ignore[no-untyped-call]
    try:
        with counter:
            result = step()
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        # A model of the user's may not support being observed.
        session.facts["activations_unknown_because"] = f"{type(error).__name__}: {error}"
        return step()
    session.facts |= {"activation_bytes": counter.written, "activations_are": "results of all operators"}
    return result


def _is_countable(session: ModelSession[Any]) -> bool:
    """Compiled operators are fused, and 8-bit values are not plain tensors: neither shows what it writes."""
    return not session.compiled and not session.parameters.precision.startswith("fp8")


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


MASTER = 4  # bytes of a weight, a gradient and a moment in training, which keeps them in fp32
MOMENTS = {"adamw": 2, "sgd": 1}  # numbers that an optimizer keeps for each weight
ACTIVATIONS = "activations"

TRAINING = (
    "each weight read once forward and once backward, its gradient written and read once, weights and optimizer "
    "state read and written once"
)
KEPT = "; what else was allocated at the peak, written and read once"


def counted(count: Callable[[Record], Work | None], record: Record) -> Work | None:
    """The work of a record that has all the facts for it; None for others: of another version, or not measured."""
    if record.outcome is not Outcome.OK:
        return None
    try:
        return count(record)
    except (KeyError, TypeError, ValueError):
        return None


def inference_work(record: Record) -> Work | None:
    """One forward pass."""
    word = BYTES[number_format(record.facts["precision"])]
    work = _model(record, word * float(record.facts["parameter_count"]), "each weight read once in a step")
    results = 2.0 * float(record.facts.get("activation_bytes") or 0)
    if work is None or not results:
        return work
    passed = "; at most also each operator's result, written and read once, as far as no cache holds it"
    return work.model_copy(update={"passed": results, "formula": work.formula + passed})


def training_work(record: Record) -> Work | None:
    """One training step."""
    facts = record.facts
    weights = float(facts["parameter_count"]) + float(facts.get("loss_parameter_count", 0))
    moments = MOMENTS[str(facts["optimizer"]).partition(",")[0].lower()]
    passes = 2 * BYTES[number_format(facts["precision"])]
    per_weight = passes + 2 * MASTER + 2 * MASTER * (1 + moments)
    peak = record.measurement("peak_device_memory")
    if peak is not None:
        activations = max(0.0, peak.value - weights * MASTER * (2 + moments))
        return _model(record, weights * per_weight, TRAINING + KEPT, activations)
    if facts.get("activation_bytes"):
        saved = "; what was kept for the backward pass, written and read once"
        return _model(record, weights * per_weight, TRAINING + saved, float(facts["activation_bytes"]))
    return _model(record, weights * per_weight, TRAINING)


def mesh_work(record: Record) -> Work | None:
    """One step of one rank of a mesh."""
    layout = Layout.parse(str(record.facts["layout"]))
    weights = float(record.facts["parameter_count"]) / (layout.tensor * layout.pipeline)
    passes = layout.micro_batches * (3 if layout.checkpointing else 2)
    parts = [record.measurement(f"{part}_memory") for part in ("parameter", "gradient", "optimizer")]
    held = sum(part.value for part in parts if part is not None)
    if not held:
        return None
    peak = record.measurement("activation_memory")
    reading = weights * passes * BYTES[number_format(record.facts["precision"])]
    formula = (
        "each weight of a rank read once in every pass of every micro-batch, its gradient written and read once, "
        "weights and optimizer state read and written once"
    )
    return _model(record, reading + 2 * held, formula + KEPT if peak else formula, peak.value if peak else None)


def _model(record: Record, moved: float, formula: str, activations: float | None = None) -> Work | None:
    rate = record.measurement(FLOP_RATE.name)
    flops = float(record.facts["flops_per_step"])
    if rate is None:
        return None
    return Work(
        flops=flops,
        bytes=moved + 2 * (activations or 0.0),
        # Ranks on GPUs have one each; those on a CPU share it, and its memory.
        rate=rate.value if record.case.target == "cpu" else rate.value / record.case.ranks,
        unit=rate.metric.unit,
        number_format=number_format(record.facts["precision"]),
        formula=formula,
        is_modelled=True,
        left_out=ACTIVATIONS if activations is None else "",
    )
