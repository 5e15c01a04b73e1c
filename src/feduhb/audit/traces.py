"""Traces of an old model in the weights of runs that cannot have learned them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feduhb.core.flat import split
from feduhb.core.seeds import generator

ORDERS = 999  # random orders of a layer's units; chance alone gives a trace in one of 1000 searches


@dataclass(frozen=True, slots=True)
class Trace:
    """Where weights look like the old ones: after which round, and in which parameter."""

    round: int  # rounds done
    parameter: str


def find_trace(
    models: Iterable[Tensor],
    start: Tensor,
    olds: Sequence[Tensor],
    like: nn.Module,
    seed: int,
    *,
    noise: bool,
    orders: int = ORDERS,
) -> Trace | None:
    """Return the clearest trace of old weights in the models [P] of a run, or None if there is none beyond chance.

    The units of a layer are drawn alike, and training treats them alike. So if a run began at a fresh draw, any order of
    its units was as likely as the one it has, and its likeness to the old model would be as large in another order. The
    likeness of a parameter is the inner product of its change since w[0] with the old parameter, less its mean over all
    orders, in standard deviations. A trace is a likeness that is larger, in some round and parameter, than the largest
    one in each of n random orders, which happens by chance with probability 1 / (n + 1).

    Args:
        models: the model after each round.
        start: w[0] of the run, another draw than that of the old model.
        olds: the old weights, and what else the run may have taken from the old model, each [P].
        like: a module with the parameters' shapes.
        noise: whether the run learned from noise alone. Then the inputs are alike too, and a model without hidden
            units can be searched.
        orders: n.
    """
    layers = list(_list_layers(like, noise=noise))
    drawn = [_draw_orders(layer, orders, seed) for layer in layers]
    largest, others, found = 0.0, torch.zeros(orders, dtype=torch.float64), None
    for done, params in enumerate(models, 1):
        moved = split(params.detach().cpu().double() - start.double(), like)
        for old in olds:
            parts = split(old.double(), like)
            for layer, order in zip(layers, drawn, strict=True):
                likeness = _compare(moved[layer.place], parts[layer.place], layer.axis, order)
                if likeness is None:
                    continue
                others = torch.maximum(others, likeness[1:])
                if float(likeness[0]) > largest:
                    largest, found = float(likeness[0]), Trace(done, layer.name)
    return found if largest > float(others.max()) else None


def draws_are_fresh(one: Tensor, other: Tensor, like: nn.Module) -> bool:
    """Return whether two draws of w[0] [P] share no weights, such as those of a layer that was trained before.

    Layers that are drawn constant do not count. If draws share a layer, its units are not alike, and neither are those
    of the layers around it.
    """
    pairs = zip(split(one, like), split(other, like), strict=True)
    return not any(torch.equal(a, b) and bool((a != a.flatten()[0]).any()) for a, b in pairs if a.numel())


@dataclass(frozen=True, slots=True)
class _Layer:
    """A parameter that has units of a kind, along one axis."""

    name: str
    place: int  # among the parameters
    axis: int
    units: int
    made_by: str  # the parameter whose outputs the units are; parameters with the same units change their order together


def _list_layers(module: nn.Module, *, noise: bool) -> Iterator[_Layer]:
    """Yield the parameters that have units.

    The units of a parameter are its outputs, and those of a vector are the outputs of the matrix before it. The outputs of
    the last matrix are the classes, which differ. So its units are the outputs of the matrix before it, of which each may
    have several inputs of the last matrix, as a flattened channel has. If the last matrix is the only one, its units are
    the inputs of the data. Vectors after it have no units.
    """
    named = list(module.named_parameters())
    matrices = [place for place, (_, p) in enumerate(named) if p.dim() > 1]
    made_by = "inputs"
    for place, (name, p) in enumerate(named):
        if not matrices or place > matrices[-1]:
            return
        if place < matrices[-1]:
            axis, units = 0, p.shape[0] if p.dim() else 1
            made_by = name if p.dim() > 1 else made_by
        elif len(matrices) > 1:
            axis, units = 1, named[matrices[-2]][1].shape[0]
        else:
            axis, units = 1, p.shape[1] if noise else 1
        if units > 1 and p.shape[axis] % units == 0:
            yield _Layer(name, place, axis, units, made_by)


def _draw_orders(layer: _Layer, count: int, seed: int) -> Tensor:
    """Return the units' own order and some random ones, [1 + count, units]."""
    draw, units = generator(seed, "orders", layer.made_by, layer.units), layer.units
    return torch.stack([torch.arange(units), *(torch.randperm(units, generator=draw) for _ in range(count))])


def _compare(moved: Tensor, old: Tensor, axis: int, orders: Tensor) -> Tensor | None:
    """Return the likeness of two parameters in each order of the units, in standard deviations; None if all are equal."""
    a, b = (part.movedim(axis, 0).reshape(orders.shape[1], -1) for part in (moved, old))
    products = a @ b.T  # [units, units]
    centred = products - products.mean(dim=0) - products.mean(dim=1, keepdim=True) + products.mean()
    spread = float((centred.square().sum() / (len(a) - 1)).sqrt())
    if spread <= 1e-9 * float(products.abs().max()):
        return None
    sums = products[orders, torch.arange(len(a))].sum(dim=1)
    return (sums - products.mean() * len(a)).abs() / spread
