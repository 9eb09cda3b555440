"""Convolutions that compute what follows them: batch norm in their weights, bias, sum and ReLU in the same kernel.

A compiler leaves a convolution to cuDNN and writes its sum and its ReLU as kernels of their own, which read and write
every activation once more. cuDNN has one call for all of it.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, fx, nn


MOST_APART = 0.01  # of an output's norm: the same operators in the same order may round differently from call to call
_CHANGING = {"iadd", "isub", "imul", "itruediv", "setitem", "relu_"}


def fuse_convolutions(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[nn.Module, int]:
    """The same model with its batch norms folded, and of how many convolutions the ReLU is a part now.

    Raises whatever tracing raises, and what cuDNN does: not every model can be traced, or computed so.
    """
    import torch
    from torch import fx
    from torch.fx.experimental.optimization import fuse
    from torch.fx.passes.shape_prop import ShapeProp

    traced = fx.symbolic_trace(module)
    if any(count > 1 for count in _calls(traced).values()):
        raise ValueError("a convolution or a batch norm of it is called twice, and can be folded for one of them alone")
    if not _agree(traced(*inputs), module(*inputs)):
        raise ValueError("a trace of it computes something else, as where a sum is written over one of its terms")
    folded: Any = fuse(traced)
    shapes: Any = ShapeProp(folded)
    shapes.propagate(*inputs)
    graph, modules = folded.graph, dict(folded.named_modules())
    places = {node: place for place, node in enumerate(graph.nodes)}
    changes = [place for node, place in places.items() if _is_in_place(node, modules)]
    count = 0
    for node in list(graph.nodes):
        if not _is_relu(node, modules):
            continue
        before = node.args[0]
        if _is_convolution(before, modules) and len(before.users) == 1:
            convolution, other = before, None
        elif _is_sum(before) and (found := _branches(before, modules)):
            convolution, other = found
        else:
            continue
        if any(places[convolution] < place < places[node] and place != places[before] for place in changes):
            continue  # it is computed where the ReLU was, and by then its input may be another
        layer = modules[convolution.target]
        if other is not None and _is_convolution(other, modules) and len(other.users) == 1:
            _move_bias(modules[other.target], layer)
        with graph.inserting_before(node):
            weight, bias = (graph.get_attr(f"{convolution.target}.{name}") for name in ("weight", "bias"))
            shape = (list(layer.stride), list(layer.padding), list(layer.dilation), layer.groups)
            call: Any = torch.cudnn_convolution_relu if other is None else torch.cudnn_convolution_add_relu
            added = () if other is None else (other, 1.0)
            fused = graph.call_function(call, (convolution.args[0], weight, *added, bias, *shape))
            fused.meta = node.meta
        node.replace_all_uses_with(fused)
        graph.erase_node(node)
        if other is not None:
            graph.erase_node(before)
        graph.erase_node(convolution)
        count += 1
    graph.lint()
    folded.recompile()
    if count:
        folded(*inputs)
    return folded, count


def _agree(one: Any, other: Any) -> bool:
    """Whether two outputs are the same but for rounding."""
    from torch.utils._pytree import tree_leaves

    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(float((a - b).norm()) <= MOST_APART * float(b.norm()) for a, b in pairs)


def _calls(traced: fx.GraphModule) -> Counter[str]:
    """How often each convolution and each batch norm is called."""
    from torch import nn

    modules = dict(traced.named_modules())
    called = [str(node.target) for node in traced.graph.nodes if node.op == "call_module"]
    return Counter(name for name in called if isinstance(modules[name], nn.Conv2d | nn.BatchNorm2d))


def _is_in_place(node: fx.Node, modules: dict[str, Any]) -> bool:
    """Whether it changes what it is given."""
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_changing = node.op == "call_method" and name.endswith("_") and not name.endswith("__")
    return is_changing or name in _CHANGING or bool(node.kwargs.get("inplace")) or "out" in node.kwargs


def _is_relu(node: fx.Node, modules: dict[str, Any]) -> bool:
    import torch
    from torch import nn

    if node.op == "call_module":
        return isinstance(modules[str(node.target)], nn.ReLU)
    return node.target in (torch.relu, torch.relu_, nn.functional.relu, nn.functional.relu_, "relu", "relu_")


def _is_sum(node: fx.Node) -> bool:
    """Of two tensors of one shape, needed by nothing else."""
    import torch

    if node.target not in (operator.add, operator.iadd, torch.add, "add", "add_") or len(node.users) != 1:
        return False
    shapes = {_shape(one) for one in node.args}
    return len(node.args) == 2 and not node.kwargs and shapes == {_shape(node)} and None not in shapes


def _shape(node: Any) -> Any:
    found = getattr(node, "meta", {}).get("tensor_meta")
    return getattr(found, "shape", None)


def _branches(node: Any, modules: dict[str, Any]) -> tuple[Any, Any] | None:
    """The convolution that a sum ends, and what it is added to."""
    first, second = node.args
    for convolution, other in ((first, second), (second, first)):
        if _is_convolution(convolution, modules) and len(convolution.users) == 1:
            return convolution, other
    return None


def _is_convolution(node: Any, modules: dict[str, Any]) -> bool:
    """Of images, all channels together, with a bias once its batch norm is folded, and padded by zeros."""
    from torch import nn

    if getattr(node, "op", "") != "call_module":
        return False
    layer = modules[str(node.target)]
    return (
        isinstance(layer, nn.Conv2d)
        and layer.bias is not None
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def _move_bias(layer: nn.Conv2d, to: nn.Conv2d) -> None:
    """Of two convolutions that are added, one can add both biases; the other then needs no pass for its own."""
    from torch import nn

    assert layer.bias is not None and to.bias is not None
    to.bias = nn.Parameter(to.bias.detach() + layer.bias.detach(), requires_grad=False)
    layer.bias = None
