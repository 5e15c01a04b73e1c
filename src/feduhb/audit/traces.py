"""Traces of an old model in the weights of runs that cannot have learned them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from feduhb.core.flat import list_parts, split, with_params
from feduhb.core.inputs import Inputs, map_tensors
from feduhb.core.modules import is_variance
from feduhb.core.seeds import generator
from feduhb.engines.scoring import compute_outputs

ORDERS = 999  # random orders of a layer's units; chance alone gives a trace in one of 1000 searches
FEWEST = 7  # units, which have more than 999 orders
TRIED = 3  # orders in which a model must compute the same
EXAMPLES = 8  # on which it must
# Of the largest output: rounding errors are below the first, real changes above the second.
SAME, OTHER = 1e-4, 1e-3


@dataclass(frozen=True, slots=True)
class Trace:
    """Where weights look like the old ones: after which round, and in which parameter."""

    round: int  # rounds done
    parameter: str


@dataclass(frozen=True, slots=True)
class Units:
    """Units of a model that are alike, such as the channels of a convolution.

    Attributes:
        parts: the parameters and statistics that have values of each unit, as positions, with the axis of the units. A
            unit has one value on that axis, or several in a row, as a flattened channel has.
        of_input: whether these are the inputs of the model, which are alike only in noise.
    """

    count: int
    parts: tuple[tuple[int, int], ...]
    of_input: bool = False


def find_units(module: nn.Module, x: Inputs, *, noise: bool = False) -> list[Units]:
    """Return the groups of at least `FEWEST` units that are alike: in any other order, the module computes the same.

    The outputs of a matrix may be such units, or the columns of an embedding, together with the vectors after it and the
    inputs of the next matrix. Whether they are is tried out, with random weights: reordered in all these parameters, the
    outputs must stay the same, and reordered in the first only, they must change. So positions of a flattened image,
    classes, tokens, and layers that others bypass are left out.

    Args:
        x: examples; the first few are used.
        noise: whether the inputs are alike too, because they are noise.
    """
    some = map_tensors(lambda part: part[:EXAMPLES], x)
    return [units for units in _list_candidates(module, some, noise=noise) if _are_alike(module, some, units)]


def find_trace(
    models: Iterable[Tensor],
    start: Tensor,
    olds: Sequence[Tensor],
    like: nn.Module,
    groups: Sequence[Units],
    seed: int,
    *,
    orders: int = ORDERS,
) -> Trace | None:
    """Return the clearest trace of old weights in the models [P] of a run, or None if there is none beyond chance.

    Some units of a model are drawn alike, and training treats them alike. So if a run began at a fresh draw, any order of
    its units was as likely as the one it has, and its likeness to the old model would be as large in another order. The
    likeness of a parameter is the inner product of its change since w[0] with the old parameter, less its mean over all
    orders, in standard deviations. A trace is a likeness that is larger, in some round and parameter, than the largest
    one in each of n random orders, which happens by chance with probability 1 / (n + 1).

    Args:
        models: the model after each round.
        start: w[0] of the run, another draw than that of the old model.
        olds: the old weights, and what else the run may have taken from the old model, each [P].
        like: a module with the parameters' shapes.
        groups: the units, from `find_units`.
        orders: n.
    """
    names = [name for name, _ in list_parts(like)]
    drawn = [
        (_draw_orders(group.count, orders, seed, names[group.parts[0][0]]), group.parts) for group in groups
    ]
    largest, others, found = 0.0, torch.zeros(orders, dtype=torch.float64), None
    for done, params in enumerate(models, 1):
        moved = split(params.detach().cpu().double() - start.double(), like)
        for old in olds:
            kept = split(old.double(), like)
            for order, place, axis in ((order, *part) for order, parts in drawn for part in parts):
                likeness = _compare(moved[place], kept[place], axis, order)
                if likeness is None:
                    continue
                others = torch.maximum(others, likeness[1:])
                if float(likeness[0]) > largest:
                    largest, found = float(likeness[0]), Trace(done, names[place])
    return found if largest > float(others.max()) else None


def draws_are_fresh(
    one: Tensor, other: Tensor, like: nn.Module, groups: Sequence[Units] = (), seed: int = 0
) -> bool:
    """Return whether two draws of w[0] [P] share no weights, such as those of a layer that was trained before.

    Layers that are drawn constant do not count. If draws share a layer, or are alike beyond chance, the units are not
    alike, because they differ in the same way in every draw.
    """
    pairs = zip(split(one, like), split(other, like), strict=True)
    if any(torch.equal(a, b) and bool((a != a.flatten()[0]).any()) for a, b in pairs if a.numel()):
        return False
    return find_trace([one], torch.zeros_like(one), [other], like, groups, seed) is None


def _list_candidates(module: nn.Module, x: Inputs, *, noise: bool) -> Iterator[Units]:
    """Yield groups of units that may be alike."""
    shapes, order = [part.shape for _, part in list_parts(module)], _order_by_layer(module)
    matrices = [place for place in order if len(shapes[place]) > 1]
    for here, there in pairwise(matrices):
        between = order[order.index(here) + 1 : order.index(there)]
        for axis in (0, 1):
            count = shapes[here][axis]
            vectors = ((place, 0) for place in between if shapes[place] == (count,))
            if count >= FEWEST and shapes[there][1] % count == 0:
                yield Units(count, ((here, axis), *vectors, (there, 1)))
    if noise and matrices and isinstance(x, Tensor) and x.is_floating_point():
        count = shapes[matrices[0]][1]
        if count >= FEWEST and x[0].numel() == count:
            yield Units(count, ((matrices[0], 1),), of_input=True)


def _order_by_layer(module: nn.Module) -> list[int]:
    """Return the places of the parameters and statistics in the order of their layers; all statistics have the last places."""
    layers = {name: number for number, (name, _) in enumerate(module.named_modules())}
    owners = [layers[name.rpartition(".")[0]] for name, _ in list_parts(module)]
    return sorted(range(len(owners)), key=lambda place: owners[place])


def _are_alike(module: nn.Module, x: Inputs, units: Units) -> bool:
    """Return whether a module with random weights computes the same in other orders of its units."""
    draw = generator(0, "units")
    parts = [torch.randn(p.shape, generator=draw) / _fan_in(p) ** 0.5 for _, p in list_parts(module)]
    for place, (name, _) in enumerate(list_parts(module)):
        if is_variance(name):
            parts[place] = 0.5 + parts[place].abs()

    def compute(order: Tensor, places: Sequence[tuple[int, int]], *, of_input: bool) -> Tensor:
        found = list(parts)
        for place, axis in places:
            found[place] = _reorder(found[place], axis, order)
        given = x.flatten(1)[:, order].view(x.shape) if of_input and isinstance(x, Tensor) else x
        weights = torch.cat([part.reshape(-1) for part in found])
        like = next(module.parameters())
        return compute_outputs(with_params(module, weights.to(like.dtype)), given).double()

    first = () if units.of_input else units.parts[:1]
    plain = compute(torch.arange(units.count), (), of_input=False)
    size = float(plain.abs().max())
    for _ in range(TRIED):
        order = torch.randperm(units.count, generator=draw)
        same = compute(order, units.parts, of_input=units.of_input)
        changed = compute(order, first, of_input=units.of_input)
        is_same = float((same - plain).abs().max()) <= SAME * size
        if not is_same or float((changed - plain).abs().max()) <= OTHER * size:
            return False
    return True


def _fan_in(p: Tensor) -> int:
    return max(1, p.numel() // p.shape[0]) if p.dim() > 1 else 1


def _reorder(part: Tensor, axis: int, order: Tensor) -> Tensor:
    """Return a parameter with its units in another order."""
    moved = part.movedim(axis, 0)
    blocks = moved.reshape(len(order), -1, *moved.shape[1:])
    return blocks[order].reshape(moved.shape).movedim(0, axis)


def _draw_orders(units: int, count: int, seed: int, name: str) -> Tensor:
    """Return the units' own order and some other ones at random, [1 + count, units]."""
    draw, own = generator(seed, "orders", name), torch.arange(units)
    found = [own]
    while len(found) <= count:
        order = torch.randperm(units, generator=draw)
        if not torch.equal(order, own):
            found.append(order)
    return torch.stack(found)


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
