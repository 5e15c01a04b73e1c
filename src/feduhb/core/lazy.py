"""Public names of a package that are imported when they are first used, so that importing the package does not import torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def import_lazily(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        homes: by module of the package, the public names that it defines.
    """
    home_of = {name: module for module, names in homes.items() for name in names}
    public = sorted(home_of)

    def find_name(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"{package} has no public name {name!r}; it has {', '.join(public)}")
        return getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)

    return find_name, lambda: public, public
