"""Code of the user's own that a config or a command names: ``package.module:name``, or ``file.py:name``.

Naming it is the permission to import it. A run folder names its code too, but may come from somebody else:
`feduhb.runs.trust` finds out whether this user permitted that.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from feduhb.errors import ConfigError

ADDED: set[str] = set()  # folders of code of the user's own, at the end of sys.path
EXAMPLE = "my_data.py:make or my_package.my_data:make"


@dataclass(frozen=True, slots=True)
class Code:
    """A function, class or instance in a module, and the folder in which the module was found.

    A federation that such a function returned has it as its description, ``Federation.about``.
    """

    text: str  # "package.module:name" or "file.py:name", as config.toml records it
    folder: str

    @property
    def module(self) -> str:
        """The name under which the module is imported."""
        return self.text.partition(":")[0].removesuffix(".py")

    @property
    def name(self) -> str:
        """The name in the module."""
        return self.text.partition(":")[2]

    def keep_data(self, seed: int) -> Code:  # noqa: ARG002 (the seed of a run does not change data from code)
        """Return the same code: its data does not depend on the seed of a run."""
        return self


def is_code(text: str) -> bool:
    """Whether a text is meant as code of the user's own, and not as the name of a data set or a method."""
    return ":" in text or "/" in text or text.endswith(".py")


def find_code(text: str, base: Path) -> Code:
    """Return the code that a text names, without importing it.

    Args:
        base: the folder of files, which is also searched for modules, after the installed ones.
    """
    place, name = _split(text)
    here = Path(os.path.realpath(base))
    if place.endswith(".py"):
        file = here / place
        code = Code(f"{file.name}:{name}", os.path.realpath(file.parent))
    else:
        top = place.partition(".")[0]
        home = _find_home(_find_first(top, str(here))) or str(here)
        own = PathFinder.find_spec(top, [str(here)])
        if home in ADDED and own is not None and _find_home(own) != home:
            raise ConfigError(
                f"{text} is in {here} and in {home}, which is in use; rename one of the two modules"
            )
        code = Code(text, home)
    locate(code)
    return code


def locate(code: Code) -> Path:
    """Return the file from which code would be imported, without importing it; raise ConfigError if there is none."""
    _split(code.text)
    file = Path(code.folder, f"{code.module}.py") if code.text.startswith(f"{code.module}.py:") else None
    if file is not None and not file.is_file():
        raise ConfigError(f"there is no file {file}, which {code.text} names; check the path")
    found = _find_origin(code)
    if found is None:
        raise ConfigError(
            f"there is no module {code.module}, which {code.text} names, among the installed ones or in {code.folder}; "
            "check its name, or install it"
        )
    if file is not None and not _is_same(found, file):
        raise ConfigError(f"{file} has the name of another module, {found}; rename the file")
    if not found.is_file():
        raise ConfigError(
            f"the module {code.module} is not a file but {found}; name a module with code of its own"
        )
    if Path(os.path.realpath(code.folder)) not in Path(os.path.realpath(found)).parents:
        raise ConfigError(
            f"{code.text} is {found} here, and not in {code.folder}, where it was found first; rename one of the two modules"
        )
    return found


def load_code(code: Code) -> Any:
    """Import the module of some code and return what its name stands for.

    The module's folder is added to the end of ``sys.path``, also for the processes that this one starts, so that
    nothing in it takes the place of an installed module.
    """
    file = locate(code)
    if code.folder not in sys.path:
        sys.path.append(code.folder)
        ADDED.add(code.folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output carries answers in JSON
            found: Any = importlib.import_module(code.module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{file} cannot be imported: {describe_error(error)}; correct it") from error
    for part in code.name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{file} does not define {code.name}; check the name in {code.text}")
        found = getattr(found, part)
    return found


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _split(text: str) -> tuple[str, str]:
    """Return the module or file and the name; raise ConfigError unless a text has both."""
    place, colon, name = text.partition(":")
    if not colon or not text.isprintable() or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f"{text!r} does not name a function or class after a colon; write for example {EXAMPLE}"
        )
    module = Path(place).stem if place.endswith(".py") else place
    if "/" in module or "\\" in module:
        raise ConfigError(f"{place!r} has a slash but does not end in .py; write for example {EXAMPLE}")
    is_name = all(part.isidentifier() for part in module.split(".")) and module != "__main__"
    if not is_name or (place != module and "." in module):
        raise ConfigError(f"{place!r} cannot be the name of a module; write for example {EXAMPLE}")
    return place, name


def _find_origin(code: Code) -> Path | None:
    """Return the file of a module, which may be imported already; None if there is none."""
    importlib.invalidate_caches()
    if code.module in sys.modules:
        origin = getattr(sys.modules[code.module], "__file__", None)
        return Path(origin or f"<{code.module}>")
    first, *inner = code.module.split(".")
    spec = _find_first(first, code.folder)
    for name in inner:
        spec = PathFinder.find_spec(name, [*((spec and spec.submodule_search_locations) or ())])
    return None if spec is None else Path(spec.origin or f"<{code.module}>")


def _find_first(name: str, folder: str) -> ModuleSpec | None:
    """Return where a module or package is, among the installed ones or else in a folder, without importing it."""
    for finder in sys.meta_path:
        places = [*sys.path, folder] if finder is PathFinder else None
        if (spec := finder.find_spec(name, places)) is not None:
            return spec
    return None


def _find_home(spec: ModuleSpec | None) -> str | None:
    """Return the folder from which a module or package is imported; None if it is not in a folder."""
    if spec is None:
        return None
    inner = [*(spec.submodule_search_locations or ())]
    place = inner[0] if inner else spec.origin if spec.has_location else None
    return None if place is None else os.path.realpath(Path(place).parent)


def _is_same(found: Path, file: Path) -> bool:
    return os.path.realpath(found) == os.path.realpath(file)
