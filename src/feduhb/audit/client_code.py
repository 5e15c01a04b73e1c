"""Does code outside this package and torch run at the clients, in the model, the loss or the augmentation?"""

from __future__ import annotations

import sys
from functools import partial, reduce
from typing import Any

from torch import nn

from feduhb.data.federation import Federation

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PACKAGES = ("torch", "feduhb")


def note_client_code(federation: Federation) -> list[str]:
    """Return a note if the model, the loss or the augmentation has code of its own, which could hold an old model where no check looks."""
    own = {
        "model": not _is_known_module(federation.fresh_model()),
        "loss": not _is_known_function(federation.loss),
        "augmentation": federation.augment is not None and not _is_known_function(federation.augment),
    }
    if not any(own.values()):
        return []
    which = " and ".join(f"the {part}'s" for part, is_own in own.items() if is_own)
    return [
        f"{which[0].upper()}{which[1:]} own code was trusted: it runs at the clients and could hold an old model."
    ]


def _is_known_function(function: Any) -> bool:
    if type(function) is partial:
        given = (*function.args, *function.keywords.values())
        return _is_known_function(function.func) and not any(map(callable, given))
    return _is_known_module(function) if isinstance(function, nn.Module) else _is_known(function)


def _is_known_module(module: nn.Module) -> bool:
    """Return whether all layers are classes of torch or this package, as these define them, and nothing was hung into one."""
    return all(
        _is_known(type(layer))
        and "forward" not in vars(layer)
        and not any(vars(layer).get(hooks) for hooks in HOOKS)
        for layer in module.modules()
    )


def _is_known(value: Any) -> bool:
    """Return whether a function or class is what torch or this package defines under its name."""
    home, name = str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))
    if home.split(".")[0] not in PACKAGES:
        return False
    return reduce(lambda found, part: getattr(found, part, None), name.split("."), sys.modules.get(home)) is value  # fmt: skip
