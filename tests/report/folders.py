"""Run folders made by hand: plausible series, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from feduhb.runs.folder import Round, RunFolder, explain_end
from feduhb.stopping import DynamicStop

APPROXIMATE = ("federaser", "fedrecover")
CLIENTS = ("c00", "c01", "c02", "c03")
COSTS = Round(
    0, CLIENTS, CLIENTS, 0.0, client_epochs=8, bytes_down=10**6, bytes_up=2 * 10**6,
    client_seconds=1.75, server_seconds=0.25, evaluate_seconds=9.0,
)  # fmt: skip
CONFIG = """\
seed = {seed}

[federation]
data = "digits"
clients = 4

[federation.backdoor]
clients = ["c00", "c01"]

[train]
rounds = 8
epochs = 2
"""
UNLEARN = """
[unlearn]
forget = "{forget}"
method = "{method}"
rounds = {scheduled}
"""
STOP = """
[unlearn.stop]
scale = {scale}
"""


def series(
    rounds: int, *, rate: float = 0.5, top: float = 0.96, backdoor: float | None = 0.02
) -> list[Round]:
    """Rounds whose accuracy rises to ``top`` and whose movement falls, each of 2 s and 3 MB."""
    found: list[Round] = []
    for t in range(rounds):
        left = rate ** (t + 1)
        scores = {"test_loss": 2.3 * left, "test_accuracy": top * (1 - left)}
        marks = scores if backdoor is None else scores | {"backdoor": backdoor}
        found.append(replace(COSTS, round=t, moved=4 * left, scores=marks))
    return found


def unlabelled(rounds: list[Round]) -> list[Round]:
    """The rounds of a regression: targets are not labels, so there is a loss and no accuracy."""
    return [replace(record, scores={"test_loss": record.scores["test_loss"]}) for record in rounds]


def judged(rounds: list[Round], rule: DynamicStop) -> list[Round]:
    """The rounds as that stop rule would have left them."""
    kept: list[Round] = []
    for record in rounds:
        moved = [r.moved for r in kept] + [record.moved]
        kept.append(replace(record, threshold=rule.threshold(moved), stopped=rule(moved)))
        if kept[-1].stopped:
            break
    return kept


def summary(method: str, rounds: list[Round], scheduled: int) -> dict[str, Any]:
    """What result.json holds."""
    names = (
        "client_epochs",
        "bytes_down",
        "bytes_up",
        "client_seconds",
        "server_seconds",
        "evaluate_seconds",
    )
    return {
        "method": method,
        "exact": method not in APPROXIMATE,
        "needs": "each" if method in APPROXIMATE else "sum",
        "settings": {"epochs": 2},
        "rounds": len(rounds),
        "scheduled_rounds": scheduled,
        "stopped": explain_end(rounds),
        "clients": list(CLIENTS),
        "parameters": 4810,
        "weights_sha256": "ab" * 32,
        **{name: sum(getattr(record, name) for record in rounds) for name in names},
        "scores": dict(rounds[-1].scores),
        "engine": {"name": "pool", "device": "cpu", "precision": "float32", "threads": 2},
        "versions": {"feduhb": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "finished": "2026-11-15T08:27:45+00:00",
    }


def write(
    path: Path,
    method: str | None,
    rounds: list[Round],
    *,
    seed: int = 1,
    forget: str = "c00,c01",
    scheduled: int | None = None,
    scale: float | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a finished run folder; ``changes`` replace entries of its result."""
    most = scheduled or len(rounds)
    config = CONFIG.format(seed=seed)
    if method is not None:
        config += UNLEARN.format(forget=forget, method=method, scheduled=most)
    if scale is not None:
        config += STOP.format(scale=scale)
    folder = RunFolder(path)
    folder.create(config)
    for record in rounds:
        folder.append(record)
    result: Mapping[str, Any] = summary(method or "retrain", rounds, most)
    folder.prepare({**result, **(changes or {})})
    folder.publish()
    return path


def story(root: Path, *, uhb_rounds: int = 12, retrain_rounds: int = 8, scale: float = 0.6) -> list[Path]:
    """An original run with a working backdoor, FedUHB under its stop rule, and Retrain."""
    uhb = judged(series(uhb_rounds, rate=0.6), DynamicStop(scale))
    return [
        write(root / "train", None, series(8, backdoor=0.92)),
        write(root / "feduhb", "feduhb", uhb, scheduled=uhb_rounds, scale=scale),
        write(root / "retrain", "retrain", series(retrain_rounds, backdoor=0.01)),
    ]


def rivals(root: Path) -> list[Path]:
    """The story with a history of 12.5 MB, and the two methods that replay it."""
    told: dict[str, Any] = {"history_bytes_read": 12_500_000, "history_bytes_kept": 0}
    original, uhb, retrain = story(root)
    result = json.loads((original / "result.json").read_text())
    (original / "result.json").write_text(json.dumps({**result, "history_bytes_kept": 12_500_000}))
    config = original / "config.toml"
    config.write_text(config.read_text().replace("epochs = 2", "epochs = 2\nkeep_history = true"))
    eraser, recover = told | {"client_rounds_saved": 0.25}, told | {"client_rounds_saved": 0.5}
    return [
        original,
        uhb,
        retrain,
        write(root / "federaser", "federaser", series(4, rate=0.7), changes=eraser),
        write(root / "fedrecover", "fedrecover", series(8, rate=0.55), changes=recover),
    ]
