"""Draw fresh models, and convert between modules and flat vectors [P] of what training changes.

The vector holds the trained parameters, then the statistics of normalisation layers (`feduhb.core.modules`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from feduhb.core.modules import (
    check_module,
    format_layer,
    is_statistic,
    list_norms,
    list_statistics,
    list_trained,
)
from feduhb.core.own_code import describe_error
from feduhb.core.seeds import fixed_draws
from feduhb.errors import FeduhbError, ModelError

ModelSource = nn.Module | Callable[[], nn.Module]
CONSTANTS = 16  # different values, other than 0 and 1, that the constant parameters of a fresh model may have


def draw_model(source: ModelSource, seed: int, *, check: bool = True, given: bool = False) -> nn.Module:
    """Return the model w[0] that a run starts from. Training and every unlearning with the same seed draw the same model.

    A module is copied, and the ``reset_parameters`` of every layer draws its weights anew: none of the module's own
    weights are used. A factory is called. Statistics start as those of a new layer.

    Args:
        check: draw another model too, and raise ModelError if a parameter has the same values in both. False is for a
            source that has been checked.
        given: copy the module with its own weights and statistics instead: a start that was declared as public.
    """
    if given:
        return _copy_given(source)
    is_module = isinstance(source, nn.Module)
    make = partial(_reset_module, source) if is_module else partial(_call_factory, source)
    with fixed_draws(seed, "init"):
        module = make()
        for _, layer in list_norms(module):
            _NormBase.reset_running_stats(layer)  # a class of its own could bring old statistics there
        if not check:
            return module
        if not is_module:
            _check_factory(source, module)
    with fixed_draws(seed, "another draw"):
        other = make()
    if (name := _find_given(module, other)) is not None:
        who = "reset_parameters of a layer" if is_module else "the model's factory"
        raise ModelError(
            f"{who} returns the same weights for every seed in {name}, so they are not fresh and may hold what a training "
            "learned; draw them there, as torch's layers do. Compute a fixed table in forward, and train what is added to it"
        )
    return module


def _copy_given(source: ModelSource) -> nn.Module:
    if not isinstance(source, nn.Module):
        raise ModelError(
            "a given start needs the module itself, with its weights, and not a factory: model=net, start='given'"
        )
    check_module(source)
    buffers = [
        pair for pair in source.named_buffers() if is_statistic(pair[0])
    ]  # others may hold a mask of -inf
    if bad := [name for name, part in [*source.named_parameters(), *buffers] if not part.isfinite().all()]:
        raise ModelError(f"{bad[0]} of the given start is not finite; give a module with weights that are")
    return copy_module(source).cpu()


def _check_unfrozen(module: nn.Module) -> None:
    """Raise ModelError if a parameter is frozen: a fresh draw of it would never be trained."""
    if frozen := [name for name, p in module.named_parameters() if not p.requires_grad]:
        raise ModelError(
            f"parameter {frozen[0]} is frozen (requires_grad=False), so a fresh draw of it would never be trained; if the module's "
            "weights are public and never saw clients' data, start from them: start='given'; else unfreeze it"
        )


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy of a module; raise ModelError if it cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        why = " ".join(str(error).split())[:160]
        raise ModelError(
            f"{type(module).__name__} cannot be copied ({why}); keep only parameters and buffers in it. For weight_norm, use "
            "torch.nn.utils.parametrizations.weight_norm"
        ) from error


def _reset_module(source: nn.Module) -> nn.Module:
    """Return a copy of a module with new weights; raise ModelError if a layer does not draw all of its weights."""
    check_module(source)
    _check_unfrozen(source)
    module = copy_module(source).cpu()
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(torch.nan)
    for name, layer in module.named_modules():
        if not list(layer.parameters(recurse=False)):
            continue
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if reset is None:
            raise ModelError(
                f"{format_layer(name, layer)} has no reset_parameters, so a "
                "fresh model cannot be drawn; add one, or pass a factory: model=lambda: MyModule()"
            )
        reset()
    if kept := [name for name, p in module.named_parameters() if not p.isfinite().all()]:
        raise ModelError(
            f"parameter {kept[0]} is not drawn anew by its layer's reset_parameters, so what it learned would "
            "survive; reset it there, or pass a factory: model=lambda: MyModule()"
        )
    return module


def _call_factory(factory: Callable[[], nn.Module]) -> nn.Module:
    """Return the module that a factory makes; raise ModelError if it fails or makes something else."""
    advice = "give a module, or a function without arguments that returns a new one: model=lambda: MyModule()"
    try:
        made = factory()
    except FeduhbError:
        raise
    except Exception as error:
        raise ModelError(f"the model's factory raised {describe_error(error)}; {advice}") from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"the model's factory returned a {type(made).__name__}; {advice}")
    return made


def _check_factory(factory: Callable[[], nn.Module], module: nn.Module) -> None:
    """Raise ModelError if a factory's module cannot be trained exactly, or the factory returns the same one each time."""
    check_module(module)
    _check_unfrozen(module)
    if factory() is module:
        raise ModelError(
            "the model's factory returns the same module each time, with what it has learned; return a new one: model=lambda: MyModule()"
        )


def _find_given(module: nn.Module, other: nn.Module) -> str | None:
    """Return the name of a parameter that two draws share and that is not a plain constant, or None.

    Draws share it if they have the same values in any order and with any signs: the units of a layer can be permuted and
    turned without a change of what the model computes. Many plain constants could hold what a training learned too, one value each: more than `CONSTANTS` are refused.
    """
    others, values = dict(other.named_parameters()), {0.0, 1.0}
    for name, p in module.named_parameters():
        if name not in others or not _have_same_sizes(p, others[name]):
            continue
        is_same = torch.equal(p, others[name])
        if not is_plain(p) and (is_same or len(_sort_sizes(p).unique()) > CONSTANTS):
            return name
        if not is_same:
            continue
        values |= {*p.detach().unique().tolist()}
        if len(values) > CONSTANTS + 2:
            return name
    return None


def _have_same_sizes(p: Tensor, other: Tensor) -> bool:
    """Return whether two parameters hold the same absolute values in any order."""
    sums = [float(torch.linalg.vector_norm(some.detach(), 1, dtype=torch.float64)) for some in (p, other)]
    if not math.isclose(*sums, rel_tol=1e-9):  # sorting a large parameter takes much memory
        return False
    return torch.equal(_sort_sizes(p), _sort_sizes(other))


def _sort_sizes(p: Tensor) -> Tensor:
    return p.detach().flatten().abs().sort().values


def is_plain(p: Tensor) -> bool:
    """Return whether a parameter is a constant that layers begin with, which says nothing about any data.

    That is one value, an identity matrix or filter (also a multiple of one), or a vector of two values in at most three
    blocks, such as an LSTM's bias with a forget gate of ones.
    """
    values = p.detach()
    if not values.numel() or bool((values == values.flatten()[0]).all()):
        return True
    if values.dim() == 1:
        return len(values.unique()) == 2 and int((values[1:] != values[:-1]).sum()) <= 2
    if values.dim() > 5:
        return False
    empty = torch.empty_like(values)
    unit = nn.init.eye_(empty) if values.dim() == 2 else nn.init.dirac_(empty)
    return torch.equal(values, unit * values.max())


def list_parts(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the names and values of the tensors that make up the flat vector, in order."""
    return [*list_trained(module), *list_statistics(module)]


def flatten(module: nn.Module) -> Tensor:
    """Copy what training changes in a module into one flat tensor [P]."""
    return torch.cat([part.detach().reshape(-1) for _, part in list_parts(module)])


def unflatten(params: Tensor, module: nn.Module) -> None:
    """Copy a flat vector [P] into a module."""
    with torch.no_grad():
        for (_, own), part in zip(list_parts(module), split(params, module), strict=True):
            own.copy_(part)


def split(params: Tensor, module: nn.Module) -> list[Tensor]:
    """Return views of a flat vector [P] in the shapes of a module's parts."""
    shapes = [part.shape for _, part in list_parts(module)]
    sizes = [shape.numel() for shape in shapes]
    if params.shape != (sum(sizes),):
        raise ModelError(f"weights {list(params.shape)} do not fit this module; it needs [{sum(sizes)}]")
    return [part.view(shape) for part, shape in zip(params.split(sizes), shapes, strict=True)]


def count_statistics(module: nn.Module) -> int:
    """Return how many numbers at the end of the flat vector are statistics."""
    return sum(value.numel() for _, value in list_statistics(module))


def channels_last(module: nn.Module) -> nn.Module:
    """Change the memory layout of a module's convolutions, in place, to the one that CPUs read fastest."""
    return module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def with_params(module: nn.Module, params: Tensor) -> nn.Module:
    """Return a copy of the module that holds these parameters."""
    copied = copy.deepcopy(module).to(params.device)
    unflatten(params, copied)
    return copied
