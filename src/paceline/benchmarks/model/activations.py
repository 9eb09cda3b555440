"""How many bytes of activations a step makes, counted in a step that is not timed: memory has to carry them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.benchmarks.model.session import Session

Result = TypeVar("Result")

KEPT = "kept for the backward pass"
RESULTS = "results of all operators"


def count_kept(session: Session, step: Callable[[], Result]) -> Result:
    """Take a step of training; the session's facts then tell what it kept for its backward pass."""
    if not _is_countable(session):
        return step()
    import torch

    weights = {_storage(tensor) for tensor in _weights(session)}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided and _storage(tensor) not in weights:
            kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor.detach()  # itself would make a cycle where an operator keeps its own result

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = step()
    session.facts |= {"activation_bytes": sum(kept.values()), "activations_are": KEPT}
    return result


def count_results(session: Session, step: Callable[[], Result]) -> Result:
    """Take a step forward; the session's facts then tell what its operators wrote for each other."""
    if not _is_countable(session):
        return step()
    counter = _counter()
    try:
        with counter:
            result = step()
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        # A user's model need not bear being looked at.
        session.facts["activations_unknown_because"] = f"{type(error).__name__}: {error}"
        return step()
    session.facts |= {"activation_bytes": counter.written, "activations_are": RESULTS}
    return result


def _is_countable(session: Session) -> bool:
    """Compiled operators are fused, and what is computed in 8 bits is no plain tensor: neither shows what it writes."""
    return not session.compiled and not session.parameters.precision.startswith("fp8")


def _counter() -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Adds up the bytes of every result; a view of something that was there is none."""

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.written = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            with self:  # an operator that is made of others is seen as these, as the device sees it
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            result = func(*args, **kwargs)
            if func.overloadpacket.__name__ not in ("empty", "empty_like", "new_empty", "empty_strided"):
                was_there = set() if func._schema.is_mutable else set(map(_storage, _tensors((args, kwargs))))
                self.written += sum(
                    one.numel() * one.element_size() for one in _tensors(result) if _storage(one) not in was_there
                )
            return result

    def _tensors(tree: Any) -> list[Tensor]:
        return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor) and one.layout is torch.strided]

    return Counter()


def _weights(session: Session) -> list[Tensor]:
    modules: list[Any] = [session.workload.module, session.workload.loss]
    found: list[Tensor] = []
    for module in modules:
        if hasattr(module, "parameters"):
            owner: nn.Module = module
            found += [*owner.parameters(), *owner.buffers()]
    return found


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
