"""Writes docs/api.md from the signatures and docstrings of the public names, so that the page cannot drift from them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import feduhb
from feduhb import errors

PAGE = Path(__file__).with_name("api.md")
INTRO = """# API

What can you import from `feduhb`, and what does each name take? This page is written from the signatures and
docstrings of the code. `import feduhb` loads a name when it is first used."""

ALIASES = """### Names of types in signatures

| type | what to give |
|---|---|
| `ClientId` | a client's name, `str` |
| `Forget` | client ids, `{id: rows}`, `"class:3"`, or a `Request` |
| `ModelSource` | a torch module, or a function that returns a new one |
| `Loss` | a function of (outputs, targets) that returns the mean over a batch |
| `Augment` | a function of a batch and of 16 numbers in [0, 1) for each row |
| `BlockSize` | a number of clients, or `"recorded"` |
| `StopRule` | a function of the movements so far that returns a reason to stop, or None |
| `EngineMaker` | a function of (federation, local) that returns an engine |
| `Show` | `"auto"` (a progress bar on a terminal), `"lines"`, a function of a `Round`, or None |"""


class Group(NamedTuple):
    """A section of the page. A name belongs to the group that lists it, or else to that of its module."""

    title: str
    intro: str
    names: tuple[str, ...]  # in this order; other names of the modules follow
    modules: tuple[str, ...] = ()


GROUPS = (
    Group("Data", "Clients with their data, a model and a seed; what is to be forgotten. [Data](data.md) shows what a client may hold.",
          ("Federation", "load", "Request"), ("feduhb.data", "feduhb.core.scores")),
    Group("Train and unlearn", "Each returns or reads a run. The [quickstart](quickstart.md) shows them at work.",
          ("train", "unlearn", "compare", "open_run", "retire", "Run", "Round"), ("feduhb.api", "feduhb.runs")),
    Group("Methods", "What `unlearn` and `compare` take as a method. [The methods](methods/index.md) compares them.",
          ("FedUHB", "Retrain", "Nesterov", "FedAdam", "FedYogi", "FedNadam", "FedExP", "RapidRetrain", "FedEraser", "FedRecover", "Crab",
           "FedRecovery", "WuDistillation", "PGA", "FedAF", "NoT", "FineTune", "Method"), ("feduhb.methods",)),
    Group("Stop rules", "When a run ends before its last round. [The stop rule](stop-rule.md) explains them.",
          ("dynamic_stop", "never", "replay"), ("feduhb.stopping",)),
    Group("Aggregation", "How the server combines the updates of a round into one step [P].",
          ("weighted_mean", "median", "trimmed_mean", "krum", "geometric_median"), ("feduhb.core.aggregate",)),
    Group("Engines", "How clients are trained in one process. [Speed](speed.md) compares them.",
          ("Pool", "Stacked", "Loop"), ("feduhb.engines",)),
    Group("Audit and report", "Whether a run forgot. [Audits](audit.md) explains the numbers.",
          ("audit", "Audit"), ("feduhb.audit", "feduhb.report")),
    Group("Types", "What methods, engines and clients exchange, and the error to catch.",
          ("Local", "Work", "Updates", "FeduhbError")),
)  # fmt: skip
RESULTS = {"Audit", "Round", "Run"}  # what feduhb makes: the fields matter, not the call
HIDDEN = {
    "Federation": {"share_draw", "explain_unused", "is_remote", "draws_seeds", "with_leaving"},
    "Loop": {"prepare", "answer"},
    "dynamic_stop": {"list_suspects"},
}


def write_reference() -> str:
    """Return the page."""
    index = ["| group | names |", "|---|---|"]
    parts = []
    for group, names in place_names().items():
        index.append(f"| [{group.title}](#{_slug(group.title)}) | {', '.join(map(_link, names))} |")
        parts += [f"## {group.title}", group.intro, *(_describe_name(name) for name in names)]
    return "\n\n".join([INTRO, "\n".join(index), *parts, ALIASES]) + "\n"


def place_names() -> dict[Group, list[str]]:
    """Return every public name under its group."""
    placed: dict[Group, list[str]] = {group: [] for group in GROUPS}
    order = {name: place for group in GROUPS for place, name in enumerate(group.names)}
    for name in sorted(feduhb.__all__, key=lambda name: (order.get(name, len(order)), name)):
        placed[_find_group(name)].append(name)
    return placed


def _find_group(name: str) -> Group:
    module = feduhb._MODULE.get(name, f"feduhb.{name}")
    for group in GROUPS:
        if name in group.names:
            return group
    fitting = [
        (prefix, group)
        for group in GROUPS
        for prefix in group.modules
        if f"{module}.".startswith(f"{prefix}.")
    ]
    return max(fitting)[1] if fitting else GROUPS[-1]


def find_name(name: str) -> Any:
    """Return what a public name stands for; a package that can be called stands for its function of the same name."""
    found = getattr(feduhb, name)
    return getattr(found, name) if inspect.ismodule(found) else found


def _describe_name(name: str) -> str:
    thing = find_name(name)
    parts = [f'### <a id="feduhb.{name}"></a>{name}']
    parameters = _list_parameters(thing)
    if name not in RESULTS and parameters is not None:
        parts.append(f"```python\n{_write_call(f'feduhb.{name}', parameters)}\n```")
    notes = _read_notes(thing) if inspect.isclass(thing) else {}
    parts += _describe_docs(inspect.getdoc(thing) or "", parameters or [], notes)
    if inspect.isclass(thing):
        parts += _describe_members(name, thing)
    if thing is feduhb.FeduhbError:
        kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and kind is not thing]
        parts.append(
            "\n".join(f"- `feduhb.errors.{kind.__name__}`: {inspect.getdoc(kind)}" for kind in kinds)
        )
    return "\n\n".join(parts)


def _describe_members(owner: str, kind: type) -> list[str]:
    """Return the members of a class: those with described arguments one by one, then the others as a list."""
    long, short = [], []
    for name, value in _list_members(owner, kind):
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        text, anchor = inspect.getdoc(inner) or "", f'<a id="feduhb.{owner}.{name}"></a>'
        if isinstance(value, property):
            short.append(f"- {anchor}`{owner}.{name}`: {_flatten(text)}")
            continue
        parameters = [*inspect.signature(inner).parameters.values()]
        if not isinstance(value, staticmethod):
            parameters = parameters[1:]  # self or cls
        call = _write_call(f"{owner}.{name}", parameters)
        if "Args:\n" in text or "Example:\n" in text or "\n" in call:
            title = f"#### {anchor}{owner}.{name}\n\n```python\n{call}\n```"
            long.append("\n\n".join([title, *_describe_docs(text, parameters, {})]))
        else:
            short.append(f"- {anchor}`{call}`: {_flatten(text)}")
    return [*long, *(["Methods and properties:", "\n".join(short)] if short else [])]


def _flatten(text: str) -> str:
    return _add_links(re.sub(r"\s+", " ", text))


def _list_members(owner: str, kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties, without those that a public base class has too."""
    bases = [getattr(feduhb, name) for name in feduhb.__all__ if inspect.isclass(getattr(feduhb, name))]
    inherited = {name for base in bases if base is not kind and base in kind.__mro__ for name in vars(base)}
    own = {
        name: value
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("feduhb")
        for name, value in vars(base).items()
    }
    for name, value in own.items():
        is_member = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
        if is_member and not name.startswith("_") and name not in inherited | HIDDEN.get(owner, set()):
            yield name, value


def _list_parameters(thing: Any) -> list[inspect.Parameter] | None:
    """Return the parameters of a function, of a class or of a callable; None for a protocol and for an error."""
    if getattr(thing, "_is_protocol", False):
        return None
    try:
        return [*inspect.signature(thing).parameters.values()]
    except ValueError:
        return None


def _write_call(name: str, parameters: list[inspect.Parameter]) -> str:
    """Return the call with its defaults, on one line if it fits."""
    words, starred = [], False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not starred:
            words.append("*")
        starred = starred or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        words.append(_sign(one) + ("" if one.default is one.empty else f"={_write_default(one.default)}"))
    line = f"{name}({', '.join(words)})"
    return line if len(line) <= 80 else f"{name}(\n" + "".join(f"    {word},\n" for word in words) + ")"


def _sign(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


def _write_default(value: Any) -> str:
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    text = repr(value).replace("'", '"') if isinstance(value, str) else repr(value)
    return "..." if text.startswith("<") else f"{type(value).__name__}()" if "=" in text else text


def _describe_docs(text: str, parameters: list[inspect.Parameter], notes: Mapping[str, str]) -> list[str]:
    """Return the parts of a docstring, with its arguments as a list where they stand."""
    before, arguments, after = _split(text, "Args")
    before, example, between = _split(before, "Example")
    if not example:
        after, example, rest = _split(after, "Example")
        after += rest
    said = {**notes, **_read_entries(arguments)}
    lines = [_describe_parameter(one, said.get(one.name, "")) for one in parameters]
    parts = [
        before,
        between,
        "\n".join(lines),
        after,
        f"```python\n{inspect.cleandoc(example)}\n```" if example else "",
    ]
    return [_add_links(part.strip("\n")) for part in parts if part.strip()]


def _split(text: str, title: str) -> tuple[str, str, str]:
    """Return what stands before a section of a docstring, its indented lines, and what follows."""
    found = re.search(rf"^{title}:\n((?:[ ]+.*\n|\n)*)", text + "\n", re.MULTILINE)
    return (text[: found.start()], found[1], text[found.end() :]) if found else (text, "", "")


def _read_entries(arguments: str) -> dict[str, str]:
    """Return what a section "Args:" says of each argument."""
    entries = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", arguments, re.MULTILINE)
    return {name: re.sub(r"\n +", " ", said) for names, said in entries for name in names.split(", ")}


def _read_notes(kind: type) -> dict[str, str]:
    """Return the comments beside or above the fields of a dataclass."""
    if not dataclasses.is_dataclass(kind):
        return {}
    field = re.compile(r"^((?:    # .*\n)*)    (\w+): .*?(?:  # (.*))?$", re.MULTILINE)
    found = field.findall(inspect.getsource(kind))
    return {name: beside or " ".join(re.findall("# (.*)", above)) for above, name, beside in found}


def _describe_parameter(parameter: inspect.Parameter, said: str) -> str:
    given, default = parameter.annotation, parameter.default
    kind = given.strip("\"'") if isinstance(given, str) else inspect.formatannotation(given)
    typed = "" if given is parameter.empty else f": {kind}"
    valued = "" if default is parameter.empty else f" = {_write_default(default)}"
    return f"- `{_sign(parameter)}{typed}{valued}`" + (f": {said}" if said else "")


def _add_links(text: str) -> str:
    """Return the text with a link at every public name in backquotes, outside code blocks."""
    if text.startswith("```"):
        return text
    pattern = re.compile(rf"(?<!`)`(?:feduhb\.)?({'|'.join(feduhb.__all__)})((?:\.\w+)?)`(?!`)")

    def link(found: re.Match[str]) -> str:
        owner, member = found[1], found[2].removeprefix(".")
        kind = getattr(feduhb, owner)
        known = not member or (inspect.isclass(kind) and member in dict(_list_members(owner, kind)))
        return f"[{found[0]}](#feduhb.{owner}{found[2]})" if known else found[0]

    return pattern.sub(link, text)


def _link(name: str) -> str:
    return f"[`{name}`](#feduhb.{name})"


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")
