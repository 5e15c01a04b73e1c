"""Fuzzers: config files and command lines with odd values, which a command must refuse in words or carry out."""

from __future__ import annotations

import random
import string
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import tomli_w
import typer

from feduhb.cli import app
from hardening.damage import MISSING, check_end, list_places, replace_at
from hardening.running import LIMIT, Watch, make_scratch
from hardening.scenes import CONFIG, FEDERATION, LEAVER, SECOND, Stage
from hardening.tally import Finding

ALARM = 1.0  # seconds after which a job that is only large is interrupted
MEMORY = 4 << 30  # bytes
CODES = (0, 2, 130)
LEFT_OUT = {"theorem", "reproduce"}  # commands of another package
NUMBERS = (
    -1,
    0,
    1,
    2,
    3,
    7,
    10**6,
    10**12,
    2**31,
    2**63,
    2**64,
    10**30,
    int("9" * 400),
    0.5,
    -0.5,
    1e-320,
    1e308,
)
ODD_NUMBERS = (float("nan"), float("inf"), float("-inf"), -0.0)
TEXTS = (
    "", " ", "text", "0", "-1", "nan", "1e999", "true", "None", "null", "a\tb", "c00", "c00,c00", "c99", "c00:0-9", "c00:9-0",
    "c00:-1", "c00:0-99999999999999999999", "c00:", ":", ",", "class:3", "class:-1", "class:99", "class:", "class:x", "c00,class:3",
    "iid", "dirichlet:0", "dirichlet:-1", "dirichlet:nan", "dirichlet:1e-300", "dirichlet:1e300", "dirichlet", "shards:0", "shards:-1",
    "shards:2", "shards:99999999999", "digits", "mnist-5k", "softmax", "mlp", "cnn", "auto", "loop", "pool", "stacked", "stacked:tf32",
    "stacked:bf16", "stacked:x", "feduhb", "retrain", "federaser", "fedrecover", "feduhb,retrain", "float16", "weighted_mean",
    "median", "geometric_median", "trimmed_mean", "trimmed_mean:0.9", "krum", "never", "0.6", "correction=0", "=", "a=", "=1",
    "momentum=nan", "warmup=99999999999999999999", "0,0.3,0.9", "../..", "..", ".", "/", "/dev/null", "/dev/zero/x", "/proc/self/mem",
    "first", "first-feduhb", "first/config.toml", FEDERATION, "x" * 300, "x" * 5000, "\u202e", "ünïcödé", "🙂", "%s%n", "{}", "$(x)",
    "-", "--", "--json", "a b", "'", '"', "\\", "\n", "\udcff",
)  # fmt: skip
EXTRA: dict[str, dict[str, Any]] = {  # settings that the config of the scenes leaves out
    "federation": {
        "partition": "dirichlet:0.5",
        "seed": 3,
        "backdoor": {"clients": [LEAVER], "size": 2},
        "canaries": {"clients": [SECOND], "share": 0.25},
    },
    "train": {"l2": 0.001, "aggregate": "weighted_mean", "engine": "loop", "keep_history": "float16"},
}


@dataclass(frozen=True)
class Fuzzed:
    """A command line, and the config file that it reads."""

    config: bytes
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        text = "" if self.config == CONFIG.encode() else f" with {self.config!r}"
        return f"{' '.join(map(repr, self.arguments))}{text}"[:600]


def list_configs(seed: int, count: int) -> Iterator[Fuzzed]:
    """Yield trainings with config files that were valid before something in them was changed."""
    whole: dict[str, Any] = tomllib.loads(CONFIG)
    for number in range(count):
        draw = random.Random(f"{seed} config {number}")
        value = {**whole, "federation": dict(whole["federation"]), "train": dict(whole["train"])}
        for table, more in EXTRA.items():
            value[table] |= {key: one for key, one in more.items() if draw.random() < 0.25}
        for _ in range(draw.choice((1, 1, 2, 3))):
            value = _change(value, draw)
        text = _write(value)
        if draw.random() < 0.25:
            text = _scramble(text, draw)
        yield Fuzzed(text, ("train", FEDERATION, "--out", "new"))


def _change(value: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Change, delete or add one value."""
    place = draw.choice(list(list_places(value)) or [()])
    if draw.random() < 0.1:
        return replace_at(value, place, MISSING) if place else value
    if draw.random() < 0.1:
        return {
            **value,
            draw.choice(
                ["sed", "train", "extra", "unlearn", "clients", "flower", "remote", "block"]
            ): draw_value(draw),
        }
    return replace_at(value, place, draw_value(draw)) if place else value


def draw_value(draw: random.Random) -> Any:
    """Return an odd value of any type."""
    kinds = (
        NUMBERS,
        NUMBERS,
        ODD_NUMBERS,
        TEXTS,
        TEXTS,
        (True, False),
        ([], ["c00"], [["c00"]], [1, "a"]),
        ({}, {"a": 1}),
    )
    return draw.choice(draw.choice(kinds))


def _write(value: dict[str, Any]) -> bytes:
    return tomli_w.dumps(value).encode(errors="surrogateescape")


def _scramble(text: bytes, draw: random.Random) -> bytes:
    """Delete, insert or change a few bytes."""
    changed = bytearray(text)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(changed) + 1)
        if draw.random() < 0.5 and at < len(changed):
            del changed[at]
        else:
            changed[at:at] = draw.choice(
                [b"[", b"]", b'"', b"=", b"\n", b"\0", b"\xff", b"{", b"9" * 30, b"#"]
            )
    return bytes(changed)


def list_command_lines(seed: int, count: int) -> Iterator[Fuzzed]:
    """Yield command lines of every command, with odd arguments and options."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    context = click.Context(group)
    names = [name for name in group.list_commands(context) if name not in LEFT_OUT]
    for number in range(count):
        draw = random.Random(f"{seed} line {number}")
        name = names[number % len(names)]
        command = group.get_command(context, name)
        assert command is not None
        words = [name, *_draw_words(name, command, draw)]
        if draw.random() < 0.1:
            words.insert(draw.randrange(len(words) + 1), draw.choice(TEXTS))
        yield Fuzzed(CONFIG.encode(), tuple(word.replace("\0", "") for word in words))


def _draw_words(name: str, command: click.Command, draw: random.Random) -> Iterator[str]:
    """Yield the arguments and options of a command: needed ones almost always, others sometimes, values often valid."""
    for parameter in command.params:
        needed = parameter.required or isinstance(parameter, click.Argument)
        if draw.random() > (0.95 if needed else 0.2):
            continue
        if isinstance(parameter, click.Option):
            if parameter.name == "help":
                continue
            yield draw.choice([*parameter.opts, *parameter.secondary_opts])
            if parameter.is_flag:
                continue
        yield draw_word(name, parameter, draw)


def draw_word(name: str, parameter: click.Parameter, draw: random.Random) -> str:
    """Return a word for an argument or option: a good one, a number or a text."""
    good = {"config": FEDERATION, "out": "new", "forget": LEAVER, "original": "first", "rounds": "2"}
    run = "first" if name in {"retire", "compare", "unlearn"} else "first-feduhb"
    if draw.random() < 0.6:
        return good.get(parameter.name or "", run if isinstance(parameter, click.Argument) else "1")
    if draw.random() < 0.4:
        return str(draw.choice((*NUMBERS, *ODD_NUMBERS)))
    return draw.choice((*TEXTS, "".join(draw.choices(string.printable, k=6))))


def try_fuzzed(watch: Watch, folder: Path, case: Fuzzed, limit: float = LIMIT) -> list[Finding]:
    """Run a command line in a copy of some folders, and return what should not have happened."""
    with make_scratch() as scratch:
        place = Stage.copy(folder, scratch / "runs")
        (place / FEDERATION).write_bytes(case.config)
        ended = watch.feduhb(place, case.arguments, alarm=ALARM, memory=MEMORY, limit=limit)
        return check_end(ended, case.arguments[0], str(case), CODES)
