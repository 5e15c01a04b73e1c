"""The tensors of a module, by what happens to them in training, and which modules can be trained exactly.

- trained: parameters that require gradients. The server steps on them.
- statistics: the running means and variances of normalisation layers. The server averages the clients' values.
- carried: frozen parameters and constant buffers. They stay as they are and are never sent.

A normalisation layer whose own parameters are all frozen is carried as a whole: it normalises by the statistics that it
has. Counters of batches (`num_batches_tracked`) have no effect and are ignored.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Generator, Iterable, Iterator
from hashlib import sha256
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.lazy import LazyModuleMixin

from feduhb.core.draws import KEYED, key_dropout
from feduhb.errors import ModelError

STATISTICS = MEAN, VARIANCE = "running_mean", "running_var"
COUNTER = "num_batches_tracked"
LARGE = 1 << 26  # bytes of a model from which on memory counts more than time
OTHER = 0x5EED0DD  # the seed of another state of the global generators
NO_ADDRESS = "draws random numbers that have no address, so no seed of a client and round fixes them"
DRAWS = f"{NO_ADDRESS}; use nn.Dropout or the numbers of an augmentation, set its dropout to 0, or remove it"


def is_statistic(name: str) -> bool:
    """Return whether a tensor of this name is a running mean or variance."""
    return name.rpartition(".")[2] in STATISTICS


def is_variance(name: str) -> bool:
    """Return whether a tensor of this name is a running variance."""
    return name.rpartition(".")[2] == VARIANCE


def is_counter(name: str) -> bool:
    """Return whether a tensor of this name counts batches, which has no effect."""
    return name.rpartition(".")[2] == COUNTER


def list_trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the names and values of the parameters that are trained."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def list_statistics(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the names and values of the statistics that training gathers."""
    return [
        (f"{name}.{key}".removeprefix("."), getattr(layer, key))
        for name, layer in list_norms(module)
        for key in STATISTICS
    ]


def list_norms(module: nn.Module) -> list[tuple[str, _NormBase]]:
    """Return the names and layers that gather statistics in training."""
    return [
        (name, layer)
        for name, layer in module.named_modules()
        if _keeps_statistics(layer) and not _is_frozen(layer)
    ]


def list_carried(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the names and values of frozen parameters and constant buffers."""
    frozen = [(name, p.detach()) for name, p in module.named_parameters() if not p.requires_grad]
    norms = [name for name, layer in module.named_modules() if isinstance(layer, _NormBase)]
    others = {f"{name}.{COUNTER}".removeprefix(".") for name in norms} | {
        name for name, _ in list_statistics(module)
    }
    return frozen + [(name, buffer) for name, buffer in module.named_buffers() if name not in others]


def digest_carried(module: nn.Module) -> str | None:
    """Return the SHA-256 of everything that is carried, with names and shapes; None if nothing is."""
    carried = sorted(list_carried(module), key=lambda pair: pair[0])
    return digest_named(carried) if carried else None


def digest_named(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of tensors with their names, types and shapes, in the order given."""
    total = sha256()
    for name, value in tensors:
        total.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        total.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def is_large(module: nn.Module) -> bool:
    """Return whether a module is so large that memory counts more than time."""
    return sum(p.nbytes for p in module.parameters()) > LARGE


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether training normalises by the statistics of a batch, which needs more than one example."""
    return any(isinstance(layer, _BatchNorm) for _, layer in list_norms(module))


def has_dropout(module: nn.Module) -> bool:
    """Return whether training draws random numbers in the model's layers."""
    kinds = (*KEYED, *KEYED.values())
    return any(type(layer) in kinds and layer.p > 0 for layer in module.modules())  # pyright: ignore[reportOperatorIssue]


def prepare_training(module: nn.Module) -> nn.Module:
    """Put a module into training mode, in place: dropout draws at the step's address, frozen norms stay as they are."""
    for layer in key_dropout(module).train().modules():
        if _keeps_statistics(layer) and _is_frozen(layer):
            layer.eval()
    return module


def _keeps_statistics(layer: nn.Module) -> TypeGuard[_NormBase]:
    return isinstance(layer, _NormBase) and layer.running_mean is not None


def _is_frozen(layer: nn.Module) -> bool:
    own = list(layer.parameters(recurse=False))
    return bool(own) and not any(p.requires_grad for p in own)


def check_module(module: nn.Module) -> None:
    """Raise ModelError for a module that gathers state of another kind, draws without an address or cannot be flattened."""
    found = {format_layer(name, layer): _find_fault(layer) for name, layer in module.named_modules()}
    faults = {layer: fault for layer, fault in found.items() if fault}
    if faults:
        first, *others = faults
        also = f" (see also {', '.join(others)})" if others else ""
        raise ModelError(f"{first} {faults[first]}{also}")
    if not list(module.parameters()):
        raise ModelError(f"{type(module).__name__} has no parameters to train; give a module that has some")
    if not list_trained(module):
        raise ModelError(
            f"all parameters of {type(module).__name__} are frozen (requires_grad=False), so nothing would be trained; "
            "unfreeze the part to train, such as the head: net.head.requires_grad_(True)"
        )
    statistics = list_statistics(module)
    if twice := _find_shared(statistics):
        raise ModelError(
            f"{' and '.join(twice)} are one tensor, to which each layer would add its own batches; give each layer statistics of "
            "its own, or use one layer in both places"
        )
    kinds = {value.dtype for _, value in (*list_trained(module), *statistics)}
    if len(kinds) > 1 or not next(iter(kinds)).is_floating_point:
        raise ModelError(f"parameters have types {sorted(map(str, kinds))}; convert them to one float type")


def _find_shared(statistics: list[tuple[str, Tensor]]) -> list[str]:
    """Return the names of the first statistic that two layers share; empty if there is none."""
    names: dict[int, list[str]] = {}
    for name, value in statistics:
        names.setdefault(id(value), []).append(name)
    return next((found for found in names.values() if len(found) > 1), [])


def format_layer(name: str, layer: nn.Module) -> str:
    """Return a layer's name and type for an error."""
    return f"layer {name or '(the module itself)'} ({type(layer).__name__})"


def _find_fault(layer: nn.Module) -> str | None:
    """Return why a layer cannot be trained exactly, and what to do; None if it can."""
    if isinstance(layer, LazyModuleMixin):
        return "does not know its shape yet; give the sizes, or pass a batch through it first"
    if isinstance(layer, _BatchNorm) and layer.running_mean is None:
        return "scores an example by the others in its batch; set track_running_stats=True, or use GroupNorm or LayerNorm"
    if _keeps_statistics(layer) and layer.momentum is None and not _is_frozen(layer):
        return "averages over all batches it ever saw (momentum=None), but clients keep no state; give a number, such as momentum=0.1"
    if type(layer) in KEYED:
        return None
    if isinstance(layer, nn.RReLU):
        return f"{NO_ADDRESS}; use nn.LeakyReLU"
    if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
        return f"{NO_ADDRESS}; use nn.Dropout, or remove it"
    rate = layer.dropout if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) else 0
    if rate > 0 and not (
        isinstance(layer, nn.RNNBase) and layer.num_layers == 1
    ):  # it drops between its layers
        return f"{NO_ADDRESS}; set its dropout to 0, and use nn.Dropout as a layer of its own"
    return None


@contextlib.contextmanager
def watch_layers(module: nn.Module) -> Generator[list[str]]:
    """Yield a list to which the layers are added that draw from a global generator inside the block, innermost first.

    The state of the generators of torch, numpy and Python is restored afterwards.
    """
    drew: list[str] = []
    stack: list[tuple[object, ...]] = []

    def enter(_layer: nn.Module, _args: object) -> None:
        stack.append(read_generators())

    def leave(layer: nn.Module, _args: object, _result: object) -> None:
        if stack.pop() != read_generators():
            drew.append(format_layer(names[id(layer)], layer))

    names = {id(layer): name for name, layer in module.named_modules()}
    with contextlib.ExitStack() as hooks, _restore_generators():
        for layer in module.modules():
            hooks.callback(layer.register_forward_pre_hook(enter).remove)
            hooks.callback(layer.register_forward_hook(leave).remove)
        before = read_generators()
        yield drew
        if not drew and before != read_generators():
            drew.append("the loss, the augmentation or the backward pass")


def read_generators() -> tuple[object, ...]:
    """Return the state of the global generators of torch on the CPU, numpy and Python."""
    numpy = sys.modules.get("numpy")  # a model that draws from numpy has imported it
    kind, keys, *rest = ("", b"") if numpy is None else numpy.random.get_state()
    of_torch = torch.default_generator.get_state().numpy()
    return of_torch.tobytes(), kind, bytes(keys), *rest, random.getstate()


@contextlib.contextmanager
def _restore_generators() -> Generator[None]:
    numpy = sys.modules.get("numpy")
    of_torch, of_python = torch.default_generator.get_state(), random.getstate()
    of_numpy = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(of_torch)
        random.setstate(of_python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)


@contextlib.contextmanager
def draw_otherwise() -> Generator[None]:
    """Set the generators of torch, numpy and Python to another state inside the block; restore theirs afterwards.

    So what draws from them and then restores them itself, as `torch.random.fork_rng` does, computes something else.
    """
    with _restore_generators():
        torch.default_generator.manual_seed(OTHER)
        random.seed(OTHER)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(OTHER)
        yield


def move_parameters(module: nn.Module) -> None:
    """Change the trained parameters a little, in place, as training would."""
    with torch.no_grad():
        for _, p in list_trained(module):
            p.mul_(torch.linspace(1, 1.1, p.numel(), dtype=p.dtype, device=p.device).view(p.shape))


def find_changed(module: nn.Module, before: dict[str, Tensor]) -> Iterator[str]:
    """Yield the names of carried tensors that differ from their values before, or were not there."""
    return (
        name
        for name, value in list_carried(module)
        if name not in before or not _is_same(value, before[name])
    )


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
