"""Cases of the command line: the JSON answer, the exit code and the files of every command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import click
from typer.main import get_command
from typer.testing import CliRunner

from feduhb.cli import app
from golden.library import Cases
from golden.masking import mask
from golden.reading import describe_folder, describe_history, digest_folder, list_files

CONFIG = """
seed = 4
[federation]
data = "digits"
clients = 4
per_client = 80
held_out = 0.5
model = "softmax"
[federation.backdoor]
clients = ["c00"]
size = 2
[train]
rounds = 4
epochs = 1
batch_size = 16
lr = 0.05
engine = "pool"
"""
GRID = """
data = "digits"
clients = 3
forget = "c00"
rounds = 4
epochs = 1
batch_size = 16
lr = 0.05
scale = 10.0
seeds = [0]
model = "softmax"
fedrecover = { warmup = 3, final = 1, correction = 2 }

[[parts]]
partitions = ["iid"]
per_client = [20]
momenta = [0.5]

[[parts]]
partitions = ["shards:2"]
per_client = [20]
"""


def run_command(*arguments: Any) -> dict[str, Any]:
    """Run a command with ``--json``; return its exit code and its answer, masked."""
    ended = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        answer = None
    return {"exit_code": ended.exit_code, "answer": mask(answer)}


def compute_commands(place: Path) -> Cases:
    """Run train, unlearn, compare, audit and report, one after the other, on one training."""
    place.mkdir(parents=True)
    config, run = place / "config.toml", place / "run"
    config.write_text(CONFIG)
    train = run_command("train", config, "--out", run, "--keep-history")
    yield "command/train", {**train, "folder": describe_folder(run)}
    loop = run_command("train", config, "--out", place / "loop", "--engine", "loop")
    yield (
        "command/train-loop",
        {**loop, "resumed": run_command("train", config, "--out", place / "loop", "--resume")},
    )
    yield from _compute_unlearnings(run)
    compared = run_command("compare", run, "--forget", "c00", "--rounds", 3, "--out", place / "compared")
    yield "command/compare", {**compared, "files": dict.fromkeys(list_files(place / "compared"), True)}
    yield from _compute_sweep(run, place / "sweep")
    new = run.with_name("run-feduhb")
    run_command("unlearn", run, "--forget", "c00", "--rounds", 4, "--out", new)
    audited = run_command("audit", new, "--original", run, "--canaries", 0.25, "--shadows", 4, "--relearn", 2)
    yield "command/audit", {**audited, "files": list_files(new)}
    both = [place / "compared" / name for name in ("federaser", "retrain")]
    few = ("--original", run, "--retrain", both[1], "--canaries", 0, "--relearn", 0)
    yield "command/audit-several", run_command("audit", *both, *few)
    report = run_command("report", run, new, both[1], "--out", place / "report")
    yield "command/report", {**report, "files": dict.fromkeys(list_files(place / "report"), True)}


UNLEARNINGS: dict[str, tuple[Any, ...]] = {
    "feduhb": ("--forget", "c00", "--rounds", 4),
    "retrain": ("--forget", "c00,c01:0-9", "--method", "retrain", "--rounds", 3),
    "federaser": ("--forget", "c01", "--method", "federaser", "--set", "interval=1"),
    "fedrecover": ("--forget", "c01", "--method", "fedrecover", "--set", "warmup=3", "--set", "correction=0"),
    "class": ("--forget", "class:3", "--momentum", 0.5, "--step-size", 0.8, "--stop", 40, "--window", 3),
    "never": ("--forget", "c02", "--stop", "never", "--rounds", 2),
}


def _compute_unlearnings(source: Path) -> Cases:
    """Unlearn in several ways, each from a copy; one is resumed, and one is followed by a second request."""
    for name, asked in UNLEARNINGS.items():
        run = shutil.copytree(source, source.parent / name / "run")
        new = run.with_name("new")
        found = run_command("unlearn", run, *asked, "--out", new)
        again = run_command("unlearn", run, *asked, "--out", new, "--resume")
        yield (
            f"command/unlearn-{name}",
            {
                **found,
                "folder": describe_folder(new),
                "old_history": describe_history(run),
                "resumed_again": again,
            },
        )
    run = shutil.copytree(source, source.parent / "chain" / "run")
    first = run_command("unlearn", run, "--forget", "c01", "--rounds", 2)
    second = run_command("unlearn", run.with_name("run-feduhb"), "--forget", "c02", "--rounds", 2)
    yield (
        "command/unlearn-chain",
        {
            "first": first,
            "second": second,
            "brings_back": run_command("unlearn", run, "--forget", "c03", "--out", run.with_name("back")),
            "folders": {path.name: digest_folder(path) for path in sorted(run.parent.iterdir())},
        },
    )


def _compute_sweep(run: Path, out: Path) -> Cases:
    """Compare momenta; the figures are drawn by ``command/compare`` already, so one momentum will do."""
    found = run_command("compare", run, "--forget", "c00", "--momenta", "0.5", "--rounds", 2, "--out", out)
    yield (
        "command/compare-momenta",
        {
            **found,
            "weights": {path.name: digest_folder(path) for path in sorted(out.iterdir()) if path.is_dir()},
        },
    )


def compute_paper(place: Path) -> Cases:
    """Measure the theorem, list missing cells, and make a grid of two cells."""
    place.mkdir(parents=True)
    small = ("--data", "digits", "--clients", 4, "--rounds", 6, "--betas", "0,0.5")
    yield (
        "command/theorem",
        {
            **run_command("theorem", *small, "--out", place / "theorem"),
            "theorem.json": mask(json.loads((place / "theorem" / "theorem.json").read_text())),
        },
    )
    for grid in ("mnist", "cifar10"):
        yield f"command/missing-{grid}", run_command("reproduce", grid, "--missing", "--out", place / grid)
    quick = ("--quick", "--missing", "--out", place / "quick")
    yield "command/missing-quick", run_command("reproduce", "mnist", *quick)
    chosen = ("--seeds", "0,2", "--only", "iid", "--missing", "--out", place / "chosen")
    yield "command/missing-chosen", run_command("reproduce", "mnist", *chosen)
    path, out = place / "small.toml", place / "grid"
    path.write_text(GRID)
    part = run_command("reproduce", path, "--engine", "pool", "--only", "iid", "--out", out)
    yield (
        "command/reproduce",
        {
            **part,
            "missing": run_command("reproduce", path, "--missing", "--out", out),
            "files": list_files(out),
            "cells": {
                cell.name: mask(json.loads(cell.read_text())) for cell in sorted((out / "cells").iterdir())
            },
            "summary": mask(json.loads((out / "summary.json").read_text())),
        },
    )


BAD_REQUESTS: dict[str, tuple[Any, ...]] = {
    "unknown-client": ("--forget", "c09"),
    "nobody-remains": ("--forget", "c00,c01,c02,c03"),
    "nobody": ("--forget", ""),
    "unknown-row": ("--forget", "c00:9999"),
    "counts-down": ("--forget", "c00:5-1"),
    "unknown-class": ("--forget", "class:77"),
    "momentum": ("--forget", "c00", "--momentum", 1.0),
    "step-size": ("--forget", "c00", "--step-size", 0),
    "method": ("--forget", "c00", "--method", "magic"),
    "setting": ("--forget", "c00", "--method", "retrain", "--momentum", 0.5),
    "set": ("--forget", "c00", "--set", "speed"),
    "rounds": ("--forget", "c00", "--rounds", 0),
    "stop": ("--forget", "c00", "--stop", "soon"),
    "window": ("--forget", "c00", "--stop", 0.6, "--window", 1),
    "no-history": ("--forget", "c00", "--method", "federaser"),
    "unknown-option": ("--forget", "c00", "--speed", 3),
}
BAD_CONFIGS = {
    "name": ("rounds", "ruonds"),
    "type": ("rounds = 4", "rounds = 'four'"),
    "lr": ("lr = 0.05", "lr = -1"),
    "data": ('data = "digits"', 'data = "letters"'),
    "toml": ("[train]", "[train"),
    "sampled": ("rounds = 4", "rounds = 4\nclients_per_round = 9"),
    "rule": ("rounds = 4", "rounds = 4\naggregate = 'mode'"),
    "engine": ('engine = "pool"', "engine = 'warp'"),
}


def compute_refusals(place: Path) -> Cases:
    """Pin the kinds of errors that commands answer bad input with, and their exit codes."""
    place.mkdir(parents=True)
    config, run = place / "config.toml", place / "run"
    config.write_text(CONFIG)
    run_command("train", config, "--out", run)
    for name, asked in BAD_REQUESTS.items():
        yield f"refusal/unlearn-{name}", run_command("unlearn", run, *asked, "--out", place / "new")
    for name, change in BAD_CONFIGS.items():
        (place / "bad.toml").write_text(CONFIG.replace(*change))
        yield f"refusal/train-{name}", run_command("train", place / "bad.toml", "--out", place / "new")
    others: dict[str, tuple[Any, ...]] = {
        "train-taken": ("train", config, "--out", run),
        "train-nowhere": ("train", place / "none.toml", "--out", place / "new"),
        "unlearn-nowhere": ("unlearn", place / "nowhere", "--forget", "c00"),
        "compare-nobody": ("compare", run, "--forget", "c00", "--methods", ","),
        "compare-momenta": ("compare", run, "--forget", "c00", "--momenta", "a"),
        "audit-training": ("audit", run),
        "audit-nowhere": ("audit", place / "nowhere"),
        "report-nowhere": ("report", place / "nowhere", "--out", place / "report"),
        "theorem-beta": ("theorem", "--betas", "0,1", "--data", "digits", "--out", place / "theorem"),
        "reproduce-unknown": ("reproduce", "magic", "--missing", "--out", place / "paper"),
        "reproduce-seed": ("reproduce", "mnist", "--seeds", 99, "--missing", "--out", place / "paper"),
        "reproduce-only": ("reproduce", "mnist", "--only", "zoo", "--missing", "--out", place / "paper"),
    }
    for name, asked in others.items():
        yield f"refusal/{name}", run_command(*asked)
    yield "refusal/left-nothing", {"new": (place / "new" / "config.toml").exists()}


def compute_options() -> Cases:
    """Pin the names and defaults of the arguments and options of every command."""
    group = get_command(app)
    assert isinstance(group, click.Group)
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"options/{name}", {str(p.name): _describe_parameter(p) for p in command.params}


def _describe_parameter(found: Any) -> dict[str, Any]:
    """Return how a parameter is spelled and its default; no default where that is not a plain value or a path."""
    default = str(found.default) if isinstance(found.default, Path) else found.default
    plain = isinstance(default, str | int | float | bool)
    return {
        "spelled": dict.fromkeys(found.opts, True),
        "required": found.required,
        "default": default if plain else None,
    }
