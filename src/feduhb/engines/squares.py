"""Sums of the squared gradients of single examples, from one backward pass of their batch.

The gradient of example b for the weights of a layer y = W a is g_b a_bᵀ, with a_b the inputs of the layer and g_b the
gradient of the example's loss for its outputs. So no gradient of a single example has to be computed:

    Σ_b (g_b a_bᵀ)²  =  (g ∘ g)ᵀ (a ∘ a),    a [B, in],    g [B, out]

One backward pass gives g of all examples, because no example changes the outputs of another one. If a layer has several
places, such as tokens or pixels, the gradient of an example is a sum over them: a product of matrices for each example.

`feduhb.engines.tasks.square_gradients` computes the same for every model, and tests hold this module to it.
Letters in shapes: B examples, L places.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.func import grad, vmap
from torch.nn import functional

from feduhb.core.inputs import Inputs, call_model, map_tensors
from feduhb.core.local import LOSSES, Loss
from feduhb.core.loss import WeightedEntropy
from feduhb.core.modules import list_trained
from feduhb.core.seeds import generator

CONVOLUTIONS = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}  # axes of places
KNOWN = (nn.Linear, *CONVOLUTIONS, nn.Embedding, nn.LayerNorm, nn.GroupNorm)
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
BYTES = 1 << 28  # of temporary values
TRIED = (2, 3)  # examples; the length of another axis may be that of one batch by chance, but not of both
TOLERANCE = 1e-3  # of a trial in the precision of the model, relative
NOISE = 1e-6  # relative to the largest sum of all parameters; a smaller one may be rounding alone


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a layer in a forward pass."""

    layer: nn.Module
    inputs: Tensor  # [B, ...]
    outputs: GradientEdge  # [B, ...]


@dataclass(frozen=True, slots=True)
class Squares:
    """The gradient of a batch's loss, and the sums over its examples of the squared gradients of their own losses.

    Both hold a tensor for each trained parameter. The gradient of one that the model does not use is None, its sum 0.
    """

    gradients: tuple[Tensor | None, ...]
    sums: list[Tensor]


def find_layers(model: nn.Module) -> list[nn.Module] | None:
    """Return the layers that hold the trained parameters; None if one of them is of another kind than `KNOWN`."""
    found = [layer for layer in model.modules() if _list_own(layer)]
    owners = Counter(id(p) for layer in found for p in _list_own(layer).values())
    is_shared = max(owners.values(), default=0) > 1
    return None if is_shared or not all(map(_is_known, found)) else found


def compute_squares(
    model: nn.Module, layers: Collection[nn.Module], loss: Loss, x: Inputs, y: Tensor, most: int = BYTES
) -> Squares | None:
    """Return the squares of a batch [B, ...]; None if a parameter has another part in the loss than one call of its layer.

    Args:
        model: each of its layers computes an example [B, ...] on its own, as `is_exact` makes sure.
        layers: `find_layers` of the model.
        most: bytes of temporary values, unless one example takes more.
    """
    parameters = [p for _, p in list_trained(model)]
    with _watch_calls(layers) as calls:
        outputs = call_model(model, x)
    value = loss(outputs, y)
    if not _is_covered(value, calls, len(y)):
        return None
    edges: list[Any] = [call.outputs for call in calls]
    factors = find_factors(loss, outputs.detach(), y)
    if factors is not None:
        both = torch.autograd.grad(value, [*parameters, *edges], allow_unused=True)
        gradients, found = both[: len(parameters)], both[len(parameters) :]
    else:
        gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        alone = _differentiate_alone(loss, outputs.detach(), y)
        found = torch.autograd.grad(outputs, edges, alone, allow_unused=True) if edges else ()
    sums: dict[int, Tensor] = {}
    with torch.no_grad():
        for call, g in zip(calls, found, strict=True):
            if g is not None:
                each = g if factors is None else g * factors.view(-1, *[1] * (g.dim() - 1))
                for p in _list_own(call.layer).values():
                    sums[id(p)] = _square(call.layer, p, call.inputs, each, most)
    return Squares(gradients, [sums[id(p)] if id(p) in sums else torch.zeros_like(p) for p in parameters])


def find_factors(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor | None:
    """Return the gradient of each example's own loss [B], relative to its part in the gradient of the batch's loss.

    None if that is not known of this loss. An example all of whose labels are left out has no gradient, and the factor 0.
    """
    entropy = WeightedEntropy.read(loss, y)
    if entropy is not None:
        weights = entropy.weigh(y).to(outputs.dtype).reshape(len(y), -1).sum(1)
        counts = (y.long() != entropy.ignored).reshape(len(y), -1).any(1)
        return torch.where(counts, weights.sum() / weights, 0)
    if loss in LOSSES.values() and outputs.shape == y.shape:
        return outputs.new_full((len(y),), len(y))
    return None


def is_exact(model: nn.Module, loss: Loss, x: Inputs, y: Tensor) -> bool:
    """Return whether `compute_squares` agrees with a backward pass for each of some examples, at random weights.

    It does not if the model mixes its examples, or if their axis is not the first one in every layer.
    """
    tried = copy.deepcopy(model)
    layers = find_layers(tried)
    if layers is None:
        return False
    for number, (_, p) in enumerate(list_trained(tried)):  # a new model may hold zeros that hide an error
        draw = torch.randn(p.shape, generator=generator(0, "squares", number)) / math.sqrt(_count_inputs(p))
        p.data.add_(draw.to(p), alpha=0.5)
    try:
        for size in TRIED:
            rows = torch.arange(size) % len(y)
            some, labels = map_tensors(lambda part, rows=rows: part[rows], x), y[rows]
            found = compute_squares(tried, layers, loss, map_tensors(torch.clone, some), labels)
            if found is None or not _agree(found.sums, _square_each(tried, loss, some, labels)):
                return False
    except Exception:  # training says what is wrong with the model, or with a label
        return False
    return True


def _square_each(model: nn.Module, loss: Loss, x: Inputs, y: Tensor) -> list[Tensor]:
    """Return the sum over examples of the squared gradients for each trained parameter, by a backward pass for each."""
    parameters = [p for _, p in list_trained(model)]
    sums = [torch.zeros_like(p) for p in parameters]
    for row in range(len(y)):
        value = loss(call_model(model, map_tensors(lambda part, row=row: part[[row]], x)), y[[row]])
        found = torch.autograd.grad(value, parameters, materialize_grads=True)
        sums = [total + g.square() for total, g in zip(sums, found, strict=True)]
    return sums


def _agree(found: list[Tensor], expected: list[Tensor]) -> bool:
    noise = NOISE * max(float(part.norm()) for part in expected)
    return all(
        float((one - other).norm()) <= TOLERANCE * float(other.norm()) + noise
        for one, other in zip(found, expected, strict=True)
    )


def _list_own(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters that a layer itself holds, by name."""
    return {name: p for name, p in layer.named_parameters(recurse=False) if p.requires_grad}


def _count_inputs(p: Tensor) -> int:
    return max(1, p.numel() // len(p)) if p.dim() > 1 else 1


def _is_known(layer: nn.Module) -> bool:
    """Return whether a layer computes what its kind does, from a weight and a bias alone."""
    hooks = (
        layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks,
    )  # fmt: skip
    names = {"weight", "bias"}
    if type(layer) not in KNOWN or any(hooks) or "forward" in vars(layer) or not {*_list_own(layer)} <= names:
        return False
    if isinstance(layer, Convolution):
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return True


@contextlib.contextmanager
def _watch_calls(layers: Collection[nn.Module]) -> Generator[list[Call]]:
    """Yield a list to which the calls of some layers inside the block are added, in their order."""
    calls: list[Call] = []

    def note(layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor], outputs: Tensor) -> None:
        if outputs.requires_grad:
            inputs = args[0] if args else named["input"]
            calls.append(Call(layer, inputs.detach(), get_gradient_edge(outputs)))

    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_hook(note, with_kwargs=True).remove)
        yield calls


def _is_covered(value: Tensor, calls: Sequence[Call], count: int) -> bool:
    """Return whether the gradient of a loss passes to each parameter through one call of its layer, and in no other way."""
    uses, nodes = _walk_graph(value)
    expected = Counter(
        id(p) for call in calls if call.outputs.node in nodes for p in _list_own(call.layer).values()
    )
    return (
        uses == expected and max(uses.values(), default=0) <= 1 and all(_has_batch(c, count) for c in calls)
    )


def _walk_graph(value: Tensor) -> tuple[Counter[int], set[Node]]:
    """Return how often a result uses each parameter, by id, and the nodes of the computation."""
    uses: Counter[int] = Counter()
    begin = value.grad_fn
    nodes = set() if begin is None else {begin}
    ahead = list(nodes)
    while ahead:
        for node, _ in ahead.pop().next_functions:
            if node is None:
                continue
            if node.name().endswith("::AccumulateGrad"):
                uses[id(node.variable)] += 1  # pyright: ignore[reportAttributeAccessIssue] (of this kind of node)
            elif node not in nodes:
                nodes.add(node)
                ahead.append(node)
    return uses, nodes


def _has_batch(call: Call, count: int) -> bool:
    """Return whether the first axis of a layer's inputs has ``count`` examples, and the layer's axes come after it."""
    layer = call.layer
    inner = 0 if isinstance(layer, nn.Embedding) else CONVOLUTIONS.get(type(layer), 0) + 1
    if isinstance(layer, nn.LayerNorm):
        inner = len(layer.normalized_shape)
    return call.inputs.dim() > inner and len(call.inputs) == count


def _differentiate_alone(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of each example's own loss for its outputs [B, ...]."""
    return vmap(grad(lambda z, target: loss(z.unsqueeze(0), target.unsqueeze(0))))(outputs, y)


def _square(layer: nn.Module, p: nn.Parameter, a: Tensor, g: Tensor, most: int) -> Tensor:
    """Return the sum over examples of the squared gradients for a parameter of a layer.

    Args:
        a: [B, ...] the inputs of the layer.
        g: [B, ...] the gradients of the examples' losses for its outputs.
        most: bytes of temporary values, unless one example takes more.
    """
    if p is not layer.weight:
        return _square_sums(layer, p, g)
    if isinstance(layer, nn.GroupNorm):
        return _square_sums(layer, p, g * functional.group_norm(a, layer.num_groups, eps=layer.eps))
    if isinstance(layer, nn.LayerNorm):
        return _square_sums(layer, p, g * functional.layer_norm(a, layer.normalized_shape, eps=layer.eps))
    if isinstance(layer, Convolution):
        columns = layer.groups * p[0].numel() * g[0, 0].numel()
        square = functools.partial(_square_convolution, layer)
        return _sum_parts(square, a, g, columns + p.numel(), most)
    g = g.reshape(len(g), -1, g.shape[-1])  # [B, L, out]
    a = a.reshape(*g.shape[:2], -1)  # [B, L, in]
    if isinstance(layer, nn.Embedding):
        return _square_embedding(layer, a.squeeze(2), g)
    if g.shape[1] == 1:
        return g.squeeze(1).square().T @ a.squeeze(1).square()
    return _sum_parts(_square_products, a, g.mT, p.numel(), most)


def _square_sums(layer: nn.Module, p: nn.Parameter, each: Tensor) -> Tensor:
    """Return the sum over examples of the squares of sums over places, for values [B, ...] of each place and unit."""
    is_image = isinstance(layer, Convolution | nn.GroupNorm)  # [B, C, ...]
    sums = (
        each.reshape(len(each), len(p), -1).sum(2)
        if is_image
        else each.reshape(len(each), -1, *p.shape).sum(1)
    )
    return sums.square().sum(0)


def _sum_parts(
    square: Callable[[Tensor, Tensor], Tensor], a: Tensor, g: Tensor, numbers: int, most: int
) -> Tensor:
    """Return the sum of a function over groups of examples, whose temporary values take at most ``most`` bytes.

    Args:
        numbers: temporary values for one example.
    """
    at_once = max(1, most // (numbers * g.element_size()))
    parts = zip(a.split(at_once), g.split(at_once), strict=True)
    return functools.reduce(operator.iadd, (square(*part) for part in parts))


def _square_products(a: Tensor, g: Tensor) -> Tensor:
    """Return the sum over examples of the squares of products g a of matrices [B, ..., m, L] and [B, ..., L, k]."""
    return (g @ a).square_().sum(0)


def _square_convolution(layer: Convolution, a: Tensor, g: Tensor) -> Tensor:
    """Return the sum over examples of the squared gradients for the weight of a convolution: a product for each group."""
    columns = _unfold(layer, a).unflatten(1, (layer.groups, -1))
    rows = g.flatten(2).unflatten(1, (layer.groups, -1))
    return _square_products(columns.mT, rows).view_as(layer.weight)


def _unfold(layer: Convolution, a: Tensor) -> Tensor:
    """Return what a convolution reads at each place [B, k, L], as `torch.nn.functional.unfold` does.

    On a GPU that function starts a kernel for every example; this one copies all of them at once.
    """
    axes = a.dim() - 2
    if any(layer.padding):
        a = functional.pad(a, [int(side) for side in reversed(layer.padding) for _ in range(2)])
    for axis in range(axes):
        reach = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1
        windows = a.unfold(2 + axis, reach, layer.stride[axis])  # the last axis holds a window
        a = windows[..., :: layer.dilation[axis]]
    inside, places = range(2 + axes, 2 + 2 * axes), range(2, 2 + axes)
    return a.permute(0, 1, *inside, *places).reshape(len(a), -1, math.prod(a.shape[2 : 2 + axes]))


def _square_embedding(layer: nn.Embedding, tokens: Tensor, g: Tensor) -> Tensor:
    """Return the sum over examples of the squared gradients for a table, from tokens [B, L] and g [B, L, D].

    The gradient of an example for a row is the sum over its places with that token. Each of n such places adds 1/n of the
    square.
    """
    same = (tokens.unsqueeze(1) == tokens.unsqueeze(2)).to(g.dtype)  # [B, L, L]
    shares = (same @ g).square() / same.sum(2, keepdim=True)
    padding = -1 if layer.padding_idx is None else layer.padding_idx
    add = torch.ops.aten.embedding_dense_backward  # adds as the layer's backward pass does
    return add(shares.flatten(0, 1), tokens.flatten(), layer.num_embeddings, padding, False)
