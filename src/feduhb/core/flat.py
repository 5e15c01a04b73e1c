"""Modules and flat parameters [P]: which modules can be trained exactly, fresh draws, and conversions."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from feduhb.core.seeds import fixed_draws
from feduhb.errors import ModelError

ModelSource = nn.Module | Callable[[], nn.Module]
CONSTANTS = 16  # different values, other than 0 and 1, that the constant parameters of a fresh model may have


def check_module(module: nn.Module) -> None:
    """Raise ModelError for a module that keeps state outside its parameters, draws random numbers or cannot be flattened."""
    found = {_format_layer(name, layer): _find_fault(layer) for name, layer in module.named_modules()}
    faults = {layer: fault for layer, fault in found.items() if fault}
    if faults:
        first, *others = faults
        also = f" (see also {', '.join(others)})" if others else ""
        raise ModelError(f"{first} {faults[first]}{also}")
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ModelError(f"{type(module).__name__} has no parameters to train; give a module that has some")
    if frozen := [name for name, p in parameters.items() if not p.requires_grad]:
        raise ModelError(
            f"parameter {frozen[0]} is frozen (requires_grad=False), so a fresh draw would never be trained; "
            "unfreeze it, or put the frozen part into the data as features"
        )
    if len(kinds := {p.dtype for p in parameters.values()}) > 1 or not next(iter(kinds)).is_floating_point:
        raise ModelError(f"parameters have types {sorted(map(str, kinds))}; convert them to one float type")


def _format_layer(name: str, layer: nn.Module) -> str:
    return f"layer {name or '(the module itself)'} ({type(layer).__name__})"


def _find_fault(layer: nn.Module) -> str | None:
    """Return why a layer cannot be trained exactly, and what to do; None if it can."""
    if isinstance(layer, LazyModuleMixin):
        return "does not know its shape yet; give the sizes, or pass a batch through it first"
    if buffers := [key for key, _ in layer.named_buffers(recurse=False)]:
        return (
            f"keeps buffers ({', '.join(buffers)}), and statistics in them would outlive a forgotten client; "
            "use GroupNorm or LayerNorm, or make a constant in forward"
        )
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return "scores an example by the others in its batch; use GroupNorm or LayerNorm"
    is_dropout = isinstance(layer, nn.modules.dropout._DropoutNd)
    rate = getattr(layer, "p" if is_dropout else "dropout", 0.0)  # LSTM and attention have `dropout`
    if isinstance(layer, nn.RReLU) or (isinstance(rate, int | float) and rate > 0):
        return "draws random numbers that depend on no seed of a client or round; remove it, or regularise with l2 instead"
    return None


def draw_model(source: ModelSource, seed: int, *, check: bool = True) -> nn.Module:
    """Draw the fresh model w[0] of a run. Training and every unlearning with the same seed draw the same model.

    A module is copied, and the ``reset_parameters`` of every layer draws its weights anew: none of the module's own
    weights are used. A factory is called.

    Args:
        check: draw another model too, and raise ModelError if a parameter has the same values in both. False is for a
            source that has been checked.
    """
    is_module = isinstance(source, nn.Module)
    with fixed_draws(seed, "init"):
        module = _reset_module(source) if is_module else source()
        if not check:
            return module
        if not is_module:
            _check_factory(source, module)
    with fixed_draws(seed, "another draw"):
        other = _reset_module(source) if is_module else source()
    if (name := _find_given(module, other)) is not None:
        who = "reset_parameters of a layer" if is_module else "the model's factory"
        raise ModelError(
            f"{who} returns the same weights for every seed in {name}, so they are not fresh and may hold what a training "
            "learned; draw them there, as torch's layers do. Compute a fixed table in forward, and train what is added to it"
        )
    return module


def _reset_module(source: nn.Module) -> nn.Module:
    """Return a copy of a module with new weights; raise ModelError if a layer does not draw all of its weights."""
    check_module(source)
    module = copy.deepcopy(source).cpu()
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(torch.nan)
    for name, layer in module.named_modules():
        if not list(layer.parameters(recurse=False)):
            continue
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if reset is None:
            raise ModelError(
                f"{_format_layer(name, layer)} has no reset_parameters, so a "
                "fresh model cannot be drawn; add one, or pass a factory: model=lambda: MyModule()"
            )
        reset()
    if kept := [name for name, p in module.named_parameters() if not p.isfinite().all()]:
        raise ModelError(
            f"parameter {kept[0]} is not drawn anew by its layer's reset_parameters, so what it learned would "
            "survive; reset it there, or pass a factory: model=lambda: MyModule()"
        )
    return module


def _check_factory(factory: Callable[[], nn.Module], module: nn.Module) -> None:
    """Raise ModelError if a factory's module cannot be trained exactly, or the factory returns the same one each time."""
    check_module(module)
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
        if name not in others or not torch.equal(_sort_sizes(p), _sort_sizes(others[name])):
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


def flatten(module: nn.Module) -> Tensor:
    """Copy a module's parameters into one flat tensor [P]."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def unflatten(params: Tensor, module: nn.Module) -> None:
    """Copy flat parameters [P] into a module."""
    with torch.no_grad():
        for p, part in zip(module.parameters(), split(params, module), strict=True):
            p.copy_(part)


def split(params: Tensor, module: nn.Module) -> list[Tensor]:
    """Return views of flat parameters [P] in the shapes of a module's parameters."""
    shapes = [p.shape for p in module.parameters()]
    sizes = [shape.numel() for shape in shapes]
    if params.shape != (sum(sizes),):
        raise ModelError(f"weights {list(params.shape)} do not fit this module; it needs [{sum(sizes)}]")
    return [part.view(shape) for part, shape in zip(params.split(sizes), shapes, strict=True)]


def channels_last(module: nn.Module) -> nn.Module:
    """Change the memory layout of a module's convolutions, in place, to the one that CPUs read fastest."""
    return module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def with_params(module: nn.Module, params: Tensor) -> nn.Module:
    """Return a copy of the module that holds these parameters."""
    copied = copy.deepcopy(module).to(params.device)
    unflatten(params, copied)
    return copied
