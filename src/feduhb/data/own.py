"""Federations that a function of the user's own returns."""

from __future__ import annotations

import contextlib
import inspect
import sys

from feduhb.core.checks import name_kind
from feduhb.core.own_code import Code, describe_error, load_code
from feduhb.data.federation import Federation
from feduhb.errors import DataError


def make_federation(code: Code) -> Federation:
    """Call a function of the user's own and return its federation, described by the name of the function."""
    function = load_code(code)
    if not callable(function):
        raise DataError(
            f"{code.text} is {name_kind(function)} and not a function; name a function that returns a feduhb.Federation"
        )
    if needed := _list_needed(function):
        raise DataError(
            f"{code.text} needs arguments ({', '.join(needed)}); name a function without arguments, or give them defaults"
        )
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output carries answers in JSON
            made = function()
    except (Exception, SystemExit) as error:
        raise DataError(f"{code.text} raised {describe_error(error)}; correct it") from error
    if not isinstance(made, Federation):
        raise DataError(f"{code.text} returned {name_kind(made)}; it must return a feduhb.Federation")
    return made.replace(about=code)


def _list_needed(function: object) -> list[str]:
    """Return the names of the arguments that a call of a function must give."""
    try:
        found = inspect.signature(function).parameters.values()  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):  # some functions in C have none
        return []
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in found if one.default is one.empty and one.kind not in many]
