"""Methods, engines and data sets that other packages register as entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from feduhb.errors import ConfigError


def find_plugin(group: str, name: str) -> Any | None:
    """Return the object that another package registered under a name; None if there is none."""
    found = [*{entry.value: entry for entry in entry_points(group=group, name=name)}.values()]
    if not found:
        return None
    packages = ", ".join(sorted(_format_package(entry) for entry in found))
    if len(found) > 1:
        raise ConfigError(f"{name!r} is registered in {group} by several packages ({packages}); keep one")
    try:
        return found[0].load()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"{name!r} of {group} cannot be imported from {packages} ({reason}); repair or uninstall that package"
        ) from error


def list_plugins(group: str) -> list[str]:
    """Return the names that other packages registered in a group, sorted."""
    return sorted({entry.name for entry in entry_points(group=group)})


def _format_package(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
