"""Links, FIFOs and folders where a command is about to write: what they point to is not ours to touch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from hardening.damage import Damage, Do, References
from hardening.running import STATE
from hardening.scenes import Command, Scene

BEFORE = " before it is written"


def list_written(references: References, scene: Scene, command: Command) -> list[Path]:
    """Return the paths that a command writes, one of those that differ in numbers only."""
    found = references.get(scene, command).ended.written
    return [Path(one) for one in {re.sub(r"\d+", "N", path): path for path in found}.values()]


def list_plants(references: References, scene: Scene, command: Command) -> list[Damage]:
    """Return what can lie at every path that a command writes."""
    return [
        Damage(path, f"{name}{BEFORE}", do)
        for path in list_written(references, scene, command)
        for name, do in PLANTS.items()
        if str(path) not in (*command.arguments, STATE)  # a person who names a link means it
        and (not (scene.folder / path).is_dir() or "link" in name)
    ]


def list_cases(
    references: References, scenes: Iterable[Scene], *, more: bool
) -> list[tuple[Scene, Damage, Command]]:
    """Return what can lie where commands write, with the commands to try.

    A link to a foreign file lies at every path that each kind of command writes, whatever scenes and options lead there.
    The other plants take turns from path to path.

    Args:
        more: every plant at every path of every command in every scene.
    """
    found: list[tuple[Scene, Damage, Command]] = []
    seen: set[tuple[str, ...]] = set()
    first, *others = PLANTS
    for scene in scenes:
        for command in scene.commands:
            for one in list_plants(references, scene, command):
                path, kind = re.sub(r"\d+", "N", str(one.path)), one.name.removesuffix(BEFORE)
                key = (command.arguments[0], path, kind) if kind == first else (path,)
                is_turn = kind == first or kind == others[sum(map(ord, path)) % len(others)]
                if more or (is_turn and key not in seen):
                    seen.add(key)
                    found.append((scene, one, command))
    return found


def _plant(target: str) -> Do:
    def do(path: Path, outside: Path) -> None:
        _clear(path)
        path.symlink_to(outside / target)

    return do


def _plant_hard_link(path: Path, outside: Path) -> None:
    if not path.is_file():
        _clear(path)
        path.write_text("two names\n")
    os.link(path, outside / "hard")


def _plant_fifo(path: Path, _: Path) -> None:
    _clear(path)
    os.mkfifo(path)


def _plant_folder(path: Path, _: Path) -> None:
    _clear(path)
    path.mkdir()


def _clear(path: Path) -> None:
    """Move away what is at a path, and make the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        path.rename(path.with_name(f"{path.name}-moved-away"))


PLANTS: dict[str, Do] = {
    "a link to a foreign file": _plant("file"),
    "a link to a foreign folder": _plant("folder"),
    "a link to nothing, outside": _plant("nothing"),
    "a hard link to a foreign file": _plant_hard_link,
    "a FIFO": _plant_fifo,
    "a folder": _plant_folder,
}
