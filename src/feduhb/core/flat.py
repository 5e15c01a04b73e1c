"""Modules and flat vectors [P]: what may be flattened, a fresh draw, there and back."""

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
    """Refuse modules whose training leaves a trace outside the parameters or draws random numbers."""
    faults = {
        _called(name, layer): fault for name, layer in module.named_modules() if (fault := _fault(layer))
    }
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
        raise ModelError(
            f"parameters have the types {sorted(map(str, kinds))}; convert the module to one float type"
        )


def _called(name: str, layer: nn.Module) -> str:
    return f"layer {name or '(the module itself)'} ({type(layer).__name__})"


def _fault(layer: nn.Module) -> str | None:
    """Return why a layer cannot be trained exactly, and what to do; None if it can."""
    if isinstance(layer, LazyModuleMixin):
        return "does not know its shape yet; give the sizes, or pass a batch through it first"
    if buffers := [key for key, _ in layer.named_buffers(recurse=False)]:
        way_out = "use GroupNorm or LayerNorm, or make a constant in forward"
        return f"keeps buffers ({', '.join(buffers)}), and statistics gathered there would outlive a forgotten client; {way_out}"
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return "scores an example by the others in its batch; use GroupNorm or LayerNorm"
    if isinstance(layer, nn.RReLU) or _rate(layer) > 0:
        return "draws random numbers that no client or round can be held to; remove it, or regularise with l2 instead"
    return None


def _rate(layer: nn.Module) -> float:
    """The chance with which a layer drops: of a Dropout its p, of an LSTM or attention its dropout."""
    dropout = isinstance(layer, nn.modules.dropout._DropoutNd)
    rate = getattr(layer, "p" if dropout else "dropout", 0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


def fresh(source: ModelSource, seed: int) -> nn.Module:
    """Draw the fresh model w[0] of a run: the same draw in training and in every unlearning.

    A module is copied and every layer's ``reset_parameters`` drawn anew under the run's seed; a factory
    is called under it instead. Nothing of the weights that the module holds survives.
    """
    with fixed_draws(seed, "init"):
        if not isinstance(source, nn.Module):
            return _made(source, seed)
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
                    f"{_called(name, layer)} has no reset_parameters, so a "
                    "fresh model cannot be drawn; add one, or pass a factory: model=lambda: MyModule()"
                )
            reset()
        if kept := [name for name, p in module.named_parameters() if not p.isfinite().all()]:
            raise ModelError(
                f"parameter {kept[0]} is not drawn anew by its layer's reset_parameters, so what it learned would "
                "survive; reset it there, or pass a factory: model=lambda: MyModule()"
            )
    return module


def _made(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call a factory, and see that it draws its weights instead of handing out some that were learned."""
    module = factory()
    check_module(module)
    again = factory()
    if again is module:
        raise ModelError(
            "the model's factory gives the same module each time, with all it has learned; make a new one in it: model=lambda: MyModule()"
        )
    with fixed_draws(seed, "another draw"):
        other = factory()
    constant = all(bool((p == p.flatten()[0]).all()) for p in module.parameters() if p.numel())
    if torch.equal(flatten(module), flatten(other)) and not constant:
        raise ModelError(
            "the model's factory gives the same weights whatever the seed, so they are not fresh; let it draw them: model=lambda: MyModule()"
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
    """View flat parameters [P] in the shapes of a module's own."""
    shapes = [p.shape for p in module.parameters()]
    sizes = [shape.numel() for shape in shapes]
    if params.shape != (sum(sizes),):
        raise ModelError(
            f"{list(params.shape)} parameters do not fit a module of {sum(sizes)}; use the model of this run"
        )
    return [part.view(shape) for part, shape in zip(params.split(sizes), shapes, strict=True)]


def channels_last(module: nn.Module) -> nn.Module:
    """Lay a module's convolutions out channels-last, in place: the same numbers in the order that CPUs read fastest."""
    return module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def with_params(module: nn.Module, params: Tensor) -> nn.Module:
    """Return a copy of the module that holds these parameters."""
    held = copy.deepcopy(module).to(params.device)
    unflatten(params, held)
    return held
