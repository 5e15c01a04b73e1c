"""Find out whether a module is a chain of layers that have a stacked form, by tracing it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

Chain = list[tuple[str, nn.Module]]
KNOWN = (
    nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Flatten, nn.GroupNorm, nn.LayerNorm, nn.Identity,
)  # fmt: skip


class UnfitError(Exception):
    """Why a module has no stacked form, in words."""


def traced(module: nn.Module) -> Chain:
    """Give the layers a module applies one after another, with their names; raises `UnfitError` where it does anything else."""
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules()):
        raise UnfitError("a layer has hooks")
    try:
        graph = fx.symbolic_trace(module).graph
    except Exception as error:
        why = " ".join(str(error).split())[:120]
        raise UnfitError(f"its forward cannot be traced ({why})") from error
    nodes = list(graph.nodes)
    if [node.op for node in (nodes[0], nodes[-1])] != ["placeholder", "output"]:
        raise UnfitError("it takes more than one input")
    chain = [_link(module, node, before) for before, node in itertools.pairwise(nodes[:-1])]
    if nodes[-1].args != (nodes[-2],):
        raise UnfitError("it gives more than one output")
    return _checked([(name, layer) for name, layer in chain if not isinstance(layer, nn.Identity)], module)


def _link(module: nn.Module, node: fx.Node, before: fx.Node) -> tuple[str, nn.Module]:
    if node.all_input_nodes != [before] or len(before.users) != 1 or node.args[:1] != (before,):
        raise UnfitError(f"{node.name} is not fed by the layer before it alone")
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        if type(layer) not in KNOWN:
            raise UnfitError(f"{node.target} ({type(layer).__name__}) has no stacked form")
        return str(node.target), layer
    make = FUNCTIONS.get(node.target)
    if make is None:
        raise UnfitError(f"{node.name} has no stacked form")
    try:
        return node.name, make(*node.args[1:], **node.kwargs)
    except TypeError as error:
        raise UnfitError(f"{node.name} is called in a way that has no stacked form") from error


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _relu(inplace: bool = False) -> nn.Module:  # noqa: ARG001
    return nn.ReLU()


def _max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    torch.relu: _relu,
    nn.functional.relu: _relu,
    "relu": _relu,
    torch.flatten: _flatten,
    "flatten": _flatten,
    nn.functional.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    nn.functional.avg_pool2d: nn.AvgPool2d,
}


def _checked(chain: Chain, module: nn.Module) -> Chain:
    """Refuse layers with settings that have no stacked form, and parameters used twice."""
    owned = [p for _, layer in chain for p in layer.parameters()]
    if len(owned) != len({id(p) for p in owned}):
        raise UnfitError("a layer is used twice")
    if {id(p) for p in owned} != {id(p) for p in module.parameters()}:
        raise UnfitError("a parameter is not used by any layer")
    for name, layer in chain:
        if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
            raise UnfitError(f"{name} pads with {layer.padding_mode} {layer.padding}")
        if isinstance(layer, nn.MaxPool2d) and layer.return_indices:
            raise UnfitError(f"{name} gives indices")
        if isinstance(layer, nn.Flatten) and layer.start_dim == 0:
            raise UnfitError(f"{name} mixes the examples of a batch")
    return chain
