"""The damaged-file matrix: every file and folder of a scene, in every kind of damage, read by every command of the scene.

A command may refuse a damaged file in words, or do without it. It must not show a traceback, hang, touch anything outside
the tree, leave a leaver's updates, or end well with other weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors.torch import save

from hardening.foreign import describe_change, look, plant
from hardening.running import LIMIT, STATE, WORK_OF_AUDIT, Watch, Watched, make_scratch
from hardening.scenes import (
    Command,
    Outcome,
    Scene,
    digest_params,
    list_files,
    name_work,
    observe,
    read_audit,
    read_weights,
)
from hardening.tally import Finding

NESTED = 100_000  # brackets
SOME = 1 / 3  # of the damages that are not basic
ALONE = {
    "open_run",
    "verify",
    "status",
    "report",
    "flower",
    "train",
}  # commands that read only what they name
BASIC = {  # and a flipped bit: truncated, of another shape, not UTF-8, a folder, a link
    "the first half",
    "keys renamed",
    "last line: keys renamed",
    "other shapes",
    "not UTF-8",
    "a folder in its place",
    "a file in its place",
    "a link to a copy elsewhere",
}
OWN = (STATE, f"{STATE}/audits")  # FEDUHB_STATE names it, and only the auditor may write there
TABLES = {".toml"}
TREES = {".json", ".jsonl"}
TENSORS = {".safetensors"}
# A run that is not the one it was is not erased, and the command says so.
TOLD = "delete its history and its kept models yourself"
Do = Callable[[Path, Path], object]  # of the damaged path and a folder outside the tree


@dataclass(frozen=True)
class Damage:
    """One way to damage one path of a scene."""

    path: Path  # relative to the scene
    name: str
    do: Do
    plain: bool = False  # only users who are not root notice

    @property
    def is_basic(self) -> bool:
        """Whether it is tried with every command that reads the path."""
        return self.name in BASIC or "flipped" in self.name

    @property
    def is_given(self) -> bool:
        """Whether the path is a pipe or a link that leads somewhere."""
        return "FIFO" in self.name or ("a link to a" in self.name)

    @property
    def is_moved(self) -> bool:
        """Whether a run lies elsewhere, and a link leads there: an erasure must find it, so the copy is not foreign."""
        return len(self.path.parts) == 1 and "copy" in self.name

    @property
    def is_gone(self) -> bool:
        """Whether a run was deleted: its folder, or the config that makes it one."""
        if len(self.path.parts) == 1 and (self.is_given or self.name == "a file in its place"):
            return not self.is_moved
        is_run = self.path.name == "config.toml" or len(self.path.parts) == 1
        return is_run and self.name in {"missing", "empty", "a link to nothing"}

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"


def list_damages(scene: Scene, seed: int, flips: int, keys: int) -> list[Damage]:
    """Return every damage of a scene.

    Args:
        flips: the number of places at which one bit is flipped, for each file.
        keys: the number of single values that are changed, for each file of JSON or TOML.
    """
    found: list[Damage] = []
    for path in filter(partial(is_chosen, scene), list_files(scene.folder)):
        draw = random.Random(f"{seed} {scene.name} {path}")
        whole = scene.folder / path
        own = list_of_folder() if whole.is_dir() else list_of_file(whole, draw, flips, keys)
        found += [Damage(path, name, do, plain=name == "unreadable") for name, do in own]
    return found


def is_chosen(scene: Scene, path: Path) -> bool:
    """Whether a path is damaged: of the rounds of a history the first and the last, of blocks and of an audit's runs the first."""
    if {*scene.skip} & {*path.parts} or not str(path).startswith(scene.only):
        return False
    for name, chosen in (("history", (0, -1)), ("audit-work", (0, 0))):
        if name in path.parts and len(path.parts) > (at := path.parts.index(name) + 1):
            inner = sorted(one.name for one in Path(scene.folder, *path.parts[:at]).iterdir() if one.is_dir())
            if path.parts[at] in {*inner} - {inner[number] for number in chosen if inner}:
                return False
    return not path.name.startswith("block-") or path.name.startswith("block-00000")


def list_of_folder() -> Iterator[tuple[str, Do]]:
    """Yield what can happen to a folder."""
    yield "missing", lambda path, _: shutil.rmtree(path)
    yield "empty", lambda path, _: [shutil.rmtree(path), path.mkdir()]
    yield "a file in its place", lambda path, _: [shutil.rmtree(path), path.write_text("{}")]
    yield from list_of_place()


def list_of_place() -> Iterator[tuple[str, Do]]:
    """Yield what else can lie where a file or folder was."""

    def clear(path: Path) -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def link_to_copy(path: Path, outside: Path) -> None:
        shutil.move(path, outside / "copy")
        path.symlink_to(outside / "copy")

    def link_to(name: str) -> Do:
        def do(path: Path, outside: Path) -> None:
            clear(path)
            path.symlink_to(outside / name)

        return do

    def link_to_itself(path: Path, _: Path) -> None:
        clear(path)
        path.symlink_to(path.name)

    def make_fifo(path: Path, _: Path) -> None:
        clear(path)
        os.mkfifo(path)

    yield "a link to a copy elsewhere", link_to_copy
    yield "a link to a foreign file", link_to("file")
    yield "a link to a foreign folder", link_to("folder")
    yield "a link to nothing", link_to("nothing")
    yield "a link to itself", link_to_itself
    yield "a FIFO", make_fifo
    yield "unreadable", lambda path, _: path.chmod(0)


def list_of_file(path: Path, draw: random.Random, flips: int, keys: int) -> Iterator[tuple[str, Do]]:
    """Yield what can happen to a file."""

    def be(content: bytes) -> Do:
        return lambda path, _: path.write_bytes(content)

    content = path.read_bytes()
    yield "missing", lambda path, _: path.unlink()
    yield "a folder in its place", lambda path, _: [path.unlink(), path.mkdir()]
    yield "a hard link to a file elsewhere", lambda path, outside: os.link(path, outside / "hard")
    yield from list_of_place()
    yield "empty", be(b"")
    if not content:
        return
    yield "the first half", be(content[: len(content) // 2])
    yield "without its last byte", be(content[:-1])
    yield "with noise at its end", be(content + draw.randbytes(64))
    yield "not UTF-8", be(content[: len(content) // 2] + b"\xff\xfe\x80" + content[len(content) // 2 :])
    yield "noise", be(draw.randbytes(len(content)))
    for _ in range(flips):
        at, bit = draw.randrange(len(content)), draw.randrange(8)
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        yield f"bit {bit} of byte {at} flipped", be(bytes(flipped))
    if path.suffix in TENSORS:
        shapes = reshape_tensors(content)
    elif path.suffix == ".jsonl":
        shapes = reshape_lines(content, draw, keys)
    elif path.suffix in TREES:
        shapes = reshape_tree(json.loads(content), dump_json, draw, keys)
        shapes = [*shapes, *nest(b"[", b"]"), *nest(b'{"a":', b"}", b"1")]
    elif path.suffix in TABLES:
        shapes = reshape_tree(tomllib.loads(content.decode()), dump_toml, draw, keys)
        shapes = [*shapes, *nest(b"a = " + b"[", b"]")]
    else:
        shapes = []
    for name, changed in shapes:
        yield name, be(changed)


def nest(opening: bytes, closing: bytes, inner: bytes = b"") -> Iterator[tuple[str, bytes]]:
    """Yield a deeply nested value."""
    head, bracket = (
        opening[:-1] if opening.startswith(b"a") else b"",
        opening[-1:] if opening.startswith(b"a") else opening,
    )
    yield f"{NESTED:,} times {bracket.decode()}", head + bracket * NESTED + inner + closing * NESTED


def dump_json(value: Any) -> bytes:
    """Write JSON with NaN and infinity, as Python does."""
    return json.dumps(value).encode()


def dump_toml(value: Any) -> bytes | None:
    """Write TOML; None if a value cannot be written so."""
    try:
        return tomli_w.dumps(value).encode() if isinstance(value, dict) else None
    except (TypeError, ValueError):
        return None


def reshape_tree(
    value: Any, dump: Callable[[Any], bytes | None], draw: random.Random, keys: int
) -> Iterator[tuple[str, bytes]]:
    """Yield a file of another shape: another value at its root, all keys or values changed, or one of them."""
    changes: dict[str, Any] = {
        "{}": {},
        "[]": [],
        "a list of itself": [value],
        "a number": 7,
        "null": None,
        "a text": "text",
        "a huge number": int("9" * 400),
        "inside another": {"inside": value},
        "keys renamed": change_keys(value, lambda key: f"{key}_"),
        "values null": change_leaves(value, lambda _: None),
        "values text": change_leaves(value, lambda _: "text"),
        "values in lists": change_leaves(value, lambda leaf: [leaf]),
        "values negative": change_leaves(value, lambda leaf: -1 if is_number(leaf) else leaf),
        "values huge": change_leaves(value, lambda leaf: int("9" * 400) if is_number(leaf) else leaf),
        "values infinite": change_leaves(value, lambda leaf: float("inf") if is_number(leaf) else leaf),
        "values NaN": change_leaves(value, lambda leaf: float("nan") if is_number(leaf) else leaf),
        "texts with NUL": change_leaves(value, lambda leaf: f"{leaf}\0" if isinstance(leaf, str) else leaf),
        "texts with a lone surrogate": change_leaves(
            value, lambda leaf: f"{leaf}\ud800" if isinstance(leaf, str) else leaf
        ),
        "texts of 5,000 characters": change_leaves(
            value, lambda leaf: "x" * 5000 if isinstance(leaf, str) else leaf
        ),
    }
    places = list(list_places(value))
    odd = (None, [], {}, "text", "", -1, 1e300, int("9" * 400), float("nan"), True, ["../../.."], {"a": {}})
    for place in draw.sample(places, min(keys, len(places))):
        name = ".".join(map(str, place))
        if draw.random() < 0.3:
            changes[f"without {name}"] = replace_at(value, place, MISSING)
        else:
            new = draw.choice(odd)
            changes[f"{name} = {str(new)[:20]}"] = replace_at(value, place, new)
    for name, changed in changes.items():
        if changed != value and (text := dump(changed)) is not None:
            yield name, text


MISSING = object()


def is_number(value: Any) -> bool:
    """Whether a value is a number, but not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def change_keys(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with every key changed."""
    if isinstance(value, Mapping):
        return {change(key): change_keys(inner, change) for key, inner in value.items()}
    return [change_keys(inner, change) for inner in value] if isinstance(value, list) else value


def change_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with everything in it changed that is neither a list nor a table."""
    if isinstance(value, Mapping):
        return {key: change_leaves(inner, change) for key, inner in value.items()}
    return [change_leaves(inner, change) for inner in value] if isinstance(value, list) else change(value)


def list_places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value inside a value."""
    inner = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, one in inner:
        yield (*at, key)
        yield from list_places(one, (*at, key))


def replace_at(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Return a value with what is at a place replaced, or without it if ``new`` is MISSING."""
    if not place:
        return new
    key, *rest = place
    pairs = list(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
    changed = [(k, replace_at(v, tuple(rest), new) if k == key else v) for k, v in pairs]
    changed = [(k, v) for k, v in changed if v is not MISSING]
    return dict(changed) if isinstance(value, Mapping) else [v for _, v in changed]


def reshape_lines(content: bytes, draw: random.Random, keys: int) -> Iterator[tuple[str, bytes]]:
    """Yield a file of lines that has other lines, or a line of another shape."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return
    yield "without its last line", b"".join(lines[:-1])
    yield "without its first line", b"".join(lines[1:])
    yield "its last line twice", b"".join([*lines, lines[-1]])
    yield "lines in another order", b"".join(reversed(lines))
    yield "an empty line", b"".join([lines[0], b"\n", *lines[1:]])
    yield "a deeply nested line", b"".join([*lines[:-1], b"[" * NESTED + b"]" * NESTED + b"\n"])
    for name, changed in reshape_tree(json.loads(lines[-1]), dump_json, draw, keys):
        yield f"last line: {name}", b"".join([*lines[:-1], changed, b"\n"])


def reshape_tensors(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield files of safetensors that are cut, of another shape, or of other tensors."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    body = content[8 + size :]

    def join(text: bytes) -> bytes:
        return len(text).to_bytes(8, "little") + text + body

    about = header.pop("__metadata__", None)
    names = list(header)
    yield "a huge header", (1 << 60).to_bytes(8, "little") + content[8:]
    yield "a header of {}", join(b"{}")
    yield "a header of []", join(b"[]")
    yield "a deeply nested header", join(b"[" * NESTED + b"]" * NESTED)
    yield "other metadata", join(json.dumps({"__metadata__": {"state": "0 {"}, **header}).encode())
    yield "no metadata", join(json.dumps(header).encode())
    renamed = {f"{name}_": value for name, value in header.items()}
    yield "other names", join(json.dumps({**({"__metadata__": about} if about else {}), **renamed}).encode())
    yield "other shapes", save({name: torch.zeros(3, 3) for name in names}, about)
    yield "no numbers", save({name: torch.full(header[name]["shape"], float("nan")) for name in names}, about)
    yield "zeros", save({name: torch.zeros(header[name]["shape"]) for name in names}, about)
    yield (
        "in double precision",
        save({name: torch.zeros(header[name]["shape"], dtype=torch.float64) for name in names}, about),
    )


def refers_to(command: Command, damage: Damage) -> bool:
    """Whether a command is worth trying on a damage: some read no other run than those they name, slow ones no tensors of rounds."""
    top = damage.path.parts[0]
    if str(damage.path) in (*command.arguments, *OWN) and damage.is_given:
        return False  # a person who names a pipe or a link means it
    if str(damage.path) in OWN and damage.name == "a link to nothing":
        return False  # what an auditor's own link leads to is made
    named = {Path(word).parts[0] for word in command.arguments[1:] if word not in {"", "."}}
    if command.arguments[0] in ALONE and "." not in command.arguments and top not in named:
        return False
    in_round = "history" in damage.path.parts and damage.path.parts[-2:-1] != ("history",)
    return not (command.is_slow and in_round)


class References:
    """What commands do in undamaged scenes, observed once."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self._found = watch, dict[tuple[str, Command], Outcome]()

    def get(self, scene: Scene, command: Command) -> Outcome:
        """Return what a command does in a scene."""
        if (scene.name, command) not in self._found:
            with make_scratch() as scratch:
                self._found[scene.name, command] = observe(self.watch, scene, command, scratch / "runs")
        return self._found[scene.name, command]

    def reads(self, scene: Scene, command: Command, path: Path) -> bool:
        """Whether a command reads a file of a scene, or a folder, or anything in it.

        Tensors are read by other code than Python's: whoever reads a file beside them counts as their reader.
        """
        read, place = self.get(scene, command).ended.read, path.parent if path.suffix in TENSORS else path
        return any(one == str(place) or one.startswith(f"{place}/") for one in read)


def list_cases(
    references: References, scenes: Iterable[Scene], seed: int, *, more: bool
) -> list[tuple[Scene, Damage, Command]]:
    """Return damages with the commands to try on them.

    The kinds of damage in BASIC are tried on every path with every command that reads it, in the first scene that has both.
    Every other kind is tried once on every kind of file, which has one name in all runs, with commands that take turns; of
    these the seed leaves out two thirds.

    Args:
        more: try several times as many damages, each on every path of every scene with every command that reads it.
    """
    found: list[tuple[Scene, Damage, Command]] = []
    seen: set[tuple[str, ...]] = set()
    turns: Counter[str] = Counter()
    for scene in scenes:
        for damage in list_damages(scene, seed, *((2, 6) if more else (1, 2))):
            possible = [command for command in scene.commands if refers_to(command, damage)]
            readers = [c for c in possible if references.reads(scene, c, damage.path)] or possible
            path, name, how = (
                re.sub(r"\d+", "N", text) for text in (str(damage.path), damage.path.name, damage.name)
            )
            if damage.is_basic or more:
                keys = [(path, how, str(command)) for command in readers]
            elif readers and random.Random(f"{seed} {name} {how}").random() < SOME:
                keys, readers = [(name, how)], [readers[turns[name] % len(readers)]]
                turns[name] += (name, how) not in seen
            else:
                continue
            found += [
                (scene, damage, command)
                for key, command in zip(keys, readers, strict=True)
                if more or key not in seen
            ]
            seen.update(keys)
    return found


def try_damage(
    references: References, scene: Scene, damage: Damage, command: Command, limit: float = LIMIT
) -> list[Finding]:
    """Damage a copy of a scene, run a command, and return what should not have happened."""
    expected = references.get(scene, command)
    with make_scratch() as scratch:
        outside = plant(scratch / "outside")
        place = scene.copy(scratch / "runs")
        target = Path(str(place / damage.path).replace(WORK_OF_AUDIT, name_work(place)))
        damage.do(target, outside)
        before = look(outside, damage.is_moved)
        ended = references.watch.feduhb(place, command.arguments, plain=damage.plain, limit=limit)
        case = f"{scene.name}/{damage}"
        found = check_end(ended, str(command), case)
        if changed := describe_change(before, look(outside, damage.is_moved)):
            found.append(Finding("foreign", str(command), case, changed))
        if ended.returncode == 0:
            found += [
                Finding(kind, str(command), case, detail)
                for kind, detail in check_answer(place, damage, command, expected, ended)
            ]
        with contextlib.suppress(OSError):  # so that it can be deleted
            if damage.plain:
                target.chmod(0o700)
    return found


def check_end(ended: Watched, command: str, case: str, codes: tuple[int, ...] = (0, 2)) -> list[Finding]:
    """Return what is wrong with how a command ended."""
    if ended.hung:
        return [Finding("hang", command, case, "did not end")]
    if ended.has_traceback:
        return [Finding("traceback", command, case, describe_traceback(ended.stderr + ended.stdout))]
    if ended.returncode not in (*codes, *((1,) if command.startswith(("status", "verify")) else ())):
        return [Finding("exit code", command, case, f"{ended.returncode}: {ended.last_line}")]
    if ended.returncode == 2 and not ended.stderr.strip():
        return [Finding("exit code", command, case, "refused without words")]
    return []


def describe_traceback(text: str) -> str:
    """Return the exception of a traceback, and the last function of this package in it."""
    frames = re.findall(r'File "[^"]*?/(feduhb/[^"]*)", line \d+, in (\S+)', text)
    kinds = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt|Warning))\b", text, re.MULTILINE)
    kind = kinds[-1] if kinds else text.strip().splitlines()[-1][:100]
    return f"{kind} in {frames[-1][0]} {frames[-1][1]}" if frames else kind


def check_answer(
    place: Path, damage: Damage, command: Command, expected: Outcome, ended: Watched
) -> Iterator[tuple[Any, str]]:
    """Yield what is wrong with the answer of a command that ended well."""
    if expected.ended.returncode != 0 and not damage.is_gone:
        yield "accepted", f"undamaged it is refused: {expected.ended.last_line[:80]}"
    if expected.ended.returncode != 0:
        return
    for name, weights in expected.weights.items():
        if weights is not None and (got := read_weights(place / name)) != weights:
            yield "weights", f"{name} has other weights: {got and got[:40]}"
    if command.arguments[0] == "open_run" and ended.stdout != expected.ended.stdout:
        yield "weights", "opens with other weights"
    if command.arguments[0] == "verify" and digest_params(place / command.arguments[1]) != expected.verified:
        yield "weights", "other weights are taken for those of the run"
    if command.arguments[0] == "audit" and read_audit(place / "first-feduhb") != expected.audit:
        yield "weights", "another verdict"
    left = [name for name in expected.gone if os.path.lexists(place / name)]
    if left and TOLD not in ended.stderr:
        yield "history", "updates of a leaver are left"
    if is_cut_record(damage) and reads_finished(command, damage):
        yield "accepted", "rounds are missing"


def is_cut_record(damage: Damage) -> bool:
    """Whether rounds are missing in the record of a run."""
    cut = {"empty", "missing", "the first half", "without its last line", "without its first line"}
    return damage.path.name == "rounds.jsonl" and damage.name in cut


def reads_finished(command: Command, damage: Damage) -> bool:
    """Whether a command audits or unlearns the finished run that a damaged record belongs to."""
    verb, run, *_ = command.arguments
    is_own = damage.path == Path(run) / "rounds.jsonl"
    return verb in {"audit", "unlearn"} and is_own and "--resume" not in command.arguments
