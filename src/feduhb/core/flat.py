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


def draw_model(source: ModelSource, seed: int) -> nn.Module:
    """Draw the fresh model w[0] of a run. Training and every unlearning with the same seed draw the same model.

    A module is copied, and the ``reset_parameters`` of every layer draws its weights anew: none of the module's own
    weights are used. A factory is called.
    """
    with fixed_draws(seed, "init"):
        if not isinstance(source, nn.Module):
            return _call_factory(source, seed)
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


def _call_factory(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a factory's module; raise ModelError if the factory does not draw new weights."""
    module = factory()
    check_module(module)
    if factory() is module:
        raise ModelError(
            "the model's factory returns the same module each time, with what it has learned; return a new one: model=lambda: MyModule()"
        )
    with fixed_draws(seed, "another draw"):
        other = factory()
    is_constant = all(bool((p == p.flatten()[0]).all()) for p in module.parameters() if p.numel())
    if torch.equal(flatten(module), flatten(other)) and not is_constant:
        raise ModelError(
            "the model's factory returns the same weights for every seed, so they are not fresh; draw them in the factory: model=lambda: MyModule()"
        )
    return module


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
