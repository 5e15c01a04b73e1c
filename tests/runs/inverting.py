"""An attack on a folder: run the rounds without a leaver backwards from the last model, and work out its update.

The attacker has the files in the folder, and the remaining clients answer it, as they answer any server.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

import feduhb
from feduhb.core.flat import flatten
from feduhb.core.types import Engine, Work
from feduhb.engines import make_engine
from feduhb.runs.config import parse_config
from feduhb.runs.folder import Round

STEPS = 12  # of the fixed-point iteration; each reduces the error about tenfold here


def find_models(tree: Path) -> dict[Path, dict[str, Tensor]]:
    """Return the tensors in every file of a folder, whatever the file is called."""
    found: dict[Path, dict[str, Tensor]] = {}
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        try:
            with safe_open(path, "pt") as file:
                found[path] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError:
            continue
    return found


def work_out_update(tree: Path, leaver: str, remaining: feduhb.Federation) -> Tensor | None:
    """Return the update of a leaver that took part in one round of a training; None if the folder does not tell.

    With w[t] before and w[t+1] after a round, and s(w, t) the mean of the updates, w[t] is a fixed point of
    w = w[t+1] + s(w, t), and s(w, t) can be asked for in every round without the leaver.
    """
    for state, tensors in find_models(tree).items():
        config, rounds = state.with_name("config.toml"), state.with_name("rounds.jsonl")
        if "params" in tensors and config.exists() and rounds.exists():
            records = [Round.from_json(line) for line in rounds.read_text().splitlines()]
            when = [record.round for record in records if leaver in record.answered]
            if len(when) == 1:
                values = tomllib.loads(config.read_text())
                return _invert(tensors["params"], records, when[0], leaver, values, remaining)
    return None


def _invert(
    last: Tensor,
    records: list[Round],
    when: int,
    leaver: str,
    values: Mapping[str, Any],
    remaining: feduhb.Federation,
) -> Tensor:
    config = parse_config(values, "config.toml")
    clients = remaining.reseed(config.seed)
    engine = make_engine("loop", clients, config.train.local(clients))
    epochs, asked = config.train.epochs, [record.answered for record in records]
    before = flatten(clients.fresh_model())
    for t in range(when):
        before = before - _compute_mean(engine, before, epochs, asked[t], t)
    after = last
    for t in reversed(range(when + 1, len(records))):
        w = after
        for _ in range(STEPS):
            w = after + _compute_mean(engine, w, epochs, asked[t], t)
        after = w
    others = [client for client in asked[when] if client != leaver]
    known = sum(len(clients.clients[client]) for client in others)
    held = int(config.clients[leaver].split()[0])
    mean = _compute_mean(engine, before, epochs, others, when) if others else torch.zeros_like(before)
    return ((before - after) * (known + held) - mean * known) / held


def _compute_mean(engine: Engine, w: Tensor, epochs: int, clients: Any, round: int) -> Tensor:
    return feduhb.weighted_mean(engine.train(Work(w, epochs), tuple(clients), round))
