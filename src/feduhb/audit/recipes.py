"""How a method is made again in another process: by the name of its module, its own name, and plain settings.

What somebody changed in this process does not travel with a recipe: patches, attributes of classes, closures, fields.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from feduhb.core.checks import name_kind
from feduhb.core.types import Method
from feduhb.methods import values_of

MAIN, LOADED_MAIN = "__main__", "__script__"  # the names of a script, and of its module in a fresh process
LONGEST = 1000  # characters of a text that counts as a setting; more could be stored weights
LARGEST = 2**63  # of an integer that counts as a setting


class CannotRebuild(Exception):  # noqa: N818 (it is an answer and not an error)
    """Something cannot be made again in another process, and why."""


@dataclass(frozen=True, slots=True)
class Name:
    """A function or a class: where it is defined, and its name there."""

    module: str = field(compare=False)  # a script has another name where it is only imported
    name: str
    file: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """A value that is made by a call with plain settings: of a class, or of `functools.partial` for a function."""

    made_by: Name | Recipe
    settings: Mapping[str, Any]
    arguments: tuple[Any, ...] = ()
    is_partial: bool = False


def write_method(method: Method[Any]) -> Recipe:
    """Return the recipe of a method without its history; raise CannotRebuild if it has none."""
    settings = {
        name: write_recipe(value, f"its setting {name!r}") for name, value in values_of(method).items()
    }
    return Recipe(_name(type(method), f"the class of {method.name}"), settings)


def write_recipe(value: Any, what: str) -> Any:
    """Return a plain value as it is, and a recipe for a rule, an engine or a class; raise CannotRebuild for anything else.

    Args:
        what: names the value in the error.
    """
    if _is_plain(value):
        return value
    if type(value) is partial:
        settings = {key: write_recipe(each, what) for key, each in value.keywords.items()}
        arguments = tuple(write_recipe(each, what) for each in value.args)
        return Recipe(write_recipe(value.func, what), settings, arguments, is_partial=True)
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return _name(value, what)
    if is_dataclass(value):
        found = {part.name: getattr(value, part.name) for part in fields(value) if part.init}
        return Recipe(
            _name(type(value), what), {key: write_recipe(each, what) for key, each in found.items()}
        )
    raise CannotRebuild(f"{what} is {name_kind(value)}, which is not a plain setting")


def follow(recipe: Any) -> Any:
    """Return the value that a recipe describes, made in this process."""
    if isinstance(recipe, Name):
        return _find(recipe)
    if not isinstance(recipe, Recipe):
        return recipe
    make = follow(recipe.made_by)
    arguments = [follow(each) for each in recipe.arguments]
    settings = {key: follow(each) for key, each in recipe.settings.items()}
    return partial(make, *arguments, **settings) if recipe.is_partial else make(*arguments, **settings)


def follow_method(recipe: Recipe) -> Method[Any]:
    """Return the method that a recipe describes; raise CannotRebuild if it does not get the settings of the recipe."""
    method = follow(recipe)
    if write_method(method) != recipe:
        raise CannotRebuild("it does not keep the settings that it is made with")
    return method


def _is_plain(value: Any) -> bool:
    """Return whether a value is None, a number or a short text. The exact type counts: a subclass could carry more."""
    if type(value) is int:
        return -LARGEST <= value < LARGEST
    return value is None or type(value) in {bool, float} or (type(value) is str and len(value) <= LONGEST)


def _name(value: Any, what: str) -> Name:
    """Return the name of a function or class, by which another process can find it."""
    module, name = str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))
    if "<" in name:
        raise CannotRebuild(f"{what} is defined inside a function; define it in a module")
    home = sys.modules.get(module)
    file = getattr(home, "__file__", None)
    if home is None or file is None:
        raise CannotRebuild(f"{what} is not defined in a file; define it in a module")
    if module == MAIN and not _is_guarded(Path(file)):
        raise CannotRebuild(
            f"{what} is defined in the script {file}, which would run whole if it were imported; "
            'define it in a module, or put the work under if __name__ == "__main__"'
        )
    if _look_up(home, name) is not value:
        raise CannotRebuild(f"{what} is not what {module} defines as {name}")
    return Name(module, name, str(Path(file).resolve()))


def _is_guarded(script: Path) -> bool:
    """Return whether a script does its work under a test of ``__name__``, so that it can be imported."""
    tests = [node.test for node in ast.parse(script.read_text()).body if isinstance(node, ast.If)]
    return any(
        isinstance(part, ast.Name) and part.id == "__name__" for test in tests for part in ast.walk(test)
    )


def _find(name: Name) -> Any:
    module = _import(name)
    file = getattr(module, "__file__", None)
    if file is None or str(Path(file).resolve()) != name.file:
        raise CannotRebuild(f"{name.module} is {file} in a fresh process, and not {name.file}")
    found = _look_up(module, name.name)
    if found is None:
        raise CannotRebuild(f"{name.module} does not define {name.name} in a fresh process")
    return found


def _import(name: Name) -> ModuleType:
    known = LOADED_MAIN if name.module == MAIN else name.module
    if known in sys.modules:
        return sys.modules[known]
    if known != LOADED_MAIN:
        try:
            return importlib.import_module(known)
        except ModuleNotFoundError as error:
            # If the error is about another module, the file imports something that is not here.
            if error.name is None or not known.startswith(error.name):
                raise
    spec = importlib.util.spec_from_file_location(known, name.file)
    if spec is None or spec.loader is None:
        raise CannotRebuild(f"{name.file} cannot be imported")
    module = sys.modules[known] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _look_up(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
