"""Audits made by hand, whole or with parts exchanged."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from feduhb.audit.result import Audit

KINDS = ("forgotten", "retained", "test")


def interval(middle: float, half: float) -> dict[str, float]:
    return {"low": max(0.0, middle - half), "high": min(1.0, middle + half)}


def roc(auc: float, se: float = 0.012, *, members: int = 400, others: int = 130) -> dict[str, Any]:
    """What an attack achieves: 99 % and 90 % intervals as of a normal."""
    low, lower = 0.01 + (auc - 0.5) / 3, 0.001 + (auc - 0.5) / 8
    return {
        "auc": auc, "se": se, "interval": interval(auc, 2.576 * se), "equivalence": interval(auc, 1.645 * se),
        "tpr_1": low, "tpr_1_interval": interval(low, 0.02), "tpr_01": lower, "tpr_01_interval": interval(lower, 0.01),
        "members": members, "others": others,
    }  # fmt: skip


def attack(
    name: str = "loss", on: str = "canaries", *, found: str = "not caught", unlearned: float = 0.505
) -> dict[str, Any]:
    """One attack: the original is caught, Retrain is not."""
    return {
        "attack": name,
        "on": on,
        "verdict": found,
        "says": f"the {name} attack on {on} says {found}",
        "margin": 0.05,
        "power": 0.87,
        "models": {"unlearned": roc(unlearned), "original": roc(0.82), "retrain": roc(0.497)},
        "against_retrain": apart(unlearned - 0.497),
    }


def apart(value: float, se: float = 0.01) -> dict[str, Any]:
    """The audited model's AUC minus Retrain's."""
    wide, equal = ({"low": value - z * se, "high": value + z * se} for z in (2.576, 1.645))
    return {"value": value, "se": se, "interval": wide, "equivalence": equal}


FORECAST = {
    "on": "canaries", "clients": 2, "members": 400, "others": 130, "margin": 0.05, "power": 0.21, "wanted": 0.8,
    "needed_members": 1160, "needed_others": 377, "says": "With 400 canaries the chance is 21%.",
}  # fmt: skip


def comparison(name: str = "change of confidence", on: str = "canaries") -> dict[str, Any]:
    """An attack that compares two models, with what the original reveals if it is kept."""
    apart = {
        "value": -0.05,
        "se": 0.02,
        "interval": {"low": -0.1, "high": 0.0},
        "equivalence": {"low": -0.08, "high": -0.02},
    }
    kept = {"unlearned": roc(0.86), "original": roc(0.49), "retrain": roc(0.91)}
    return attack(name, on) | {"kept": {"models": kept, "against_retrain": apart}}


def stayed(count: int) -> list[dict[str, Any]]:
    """Remaining clients: the more to the back, the more they gained."""
    rows: list[dict[str, Any]] = []
    for i in range(count):
        before, change = 0.86 + 0.1 * ((7 * i) % 10) / 10, 0.04 * (2 * i - count * 0.7) / count
        after = min(1.0, before + change)
        rows.append(
            {"client": f"c{i:02}", "examples": 30 + i, "before": before, "after": after, "retrain": before}
        )
    return rows


def audit(word: str = "forgotten", *, staying: int = 6, **changes: Any) -> dict[str, Any]:
    """A whole audit; ``changes`` replace its parts."""
    scores = {"unlearned": (0.9, 0.93, 0.899), "original": (0.99, 0.94, 0.9), "retrain": (0.89, 0.92, 0.892)}
    spent = {"client_epochs": 1728, "bytes_down": 117_250_560, "bytes_up": 117_250_560, "history_bytes": 0}
    called = {
        "unlearned": {"misr": 0.31, "on_test": 0.29},
        "original": {"misr": 0.66, "on_test": 0.33},
        "retrain": {"misr": 0.3, "on_test": 0.28},
    }
    told: dict[str, Any] = {
        "method": "feduhb",
        "exact": True,
        "forgot": "c00,c01",
        "seed": 1,
        "weights_sha256": "ab" * 32,
        "verdict": {"word": word, "reasons": ["Both checks gave the same weights to the last bit."]},
        "exactness": {
            "exact": True,
            "checks": [
                {"name": "again", "says": "done again, nothing changed", "identical": True, "largest_difference": 0.0},
                {"name": "noise", "says": "noise in place of the data", "identical": True, "largest_difference": 0.0},
                {"name": "never", "says": "a federation that never had it", "identical": True, "largest_difference": 0.0},
            ],
        },
        "membership": [attack(on="all forgotten data", found="no power here"), attack(), attack("LiRA") | {"self_test": roc(0.8)}],
        "misr": {"attackers": {"boosted trees": called, "logistic regression": called}, "says": "MISR is a recall, and chance is the rate on test data."},
        "backdoor": {
            "images": 911,
            "success": {"unlearned": 0.003, "original": 0.98, "retrain": 0.001},
            "difference": {"value": 0.002, "low": -0.004, "high": 0.009},
            "verdict": "not caught",
            "says": "the trigger works no more than on Retrain",
        },
        "accuracy": {model: dict(zip(KINDS, values, strict=True)) for model, values in scores.items()},
        "clients": {"on": "held-out data", "rows": stayed(staying)},
        "distance": {
            "unlearned": {"l2": 7.31, "cosine": 0.71, "kl": 0.112, "disagreement": 0.064},
            "original": {"l2": 5.2, "cosine": 0.8, "kl": 0.09, "disagreement": 0.05},
        },
        "relearn": {"goal": 0.99, "most": 10, "unlearned": None, "retrain": 4},
        "cost": {
            model: {**spent, "rounds": rounds, "seconds": rounds * 0.15}
            for model, rounds in (("unlearned", 32), ("original", 40), ("retrain", 40))
        },
        "forecast": [FORECAST],
        "settings": {"draws": 2000, "shadows": 16},
        "versions": {"feduhb": "0.1.0", "torch": "2.13.0"},
        "finished": "2026-11-15T12:00:00+00:00",
        "seconds": 61.2,
    }  # fmt: skip
    return {**told, **changes}


def make_checks(*names: str, failed: Collection[str] = ()) -> dict[str, Any]:
    """Return the exactness of an audit with these checks; all are passed except ``failed``."""
    checks = [
        {"name": name, "says": f"what {name} found", "identical": name not in failed, "largest_difference": 0.25 if name in failed else 0.0}
        for name in names
    ]  # fmt: skip
    return {"exact": not failed, "checks": checks}


def bare(word: str = "inconclusive") -> dict[str, Any]:
    """An audit of a model whose targets are no labels, without attacks, exactness or backdoor."""
    nothing = dict.fromkeys(KINDS)
    return audit(
        word,
        exactness=None,
        membership=[],
        forecast=[],
        misr=None,
        backdoor=None,
        relearn=None,
        accuracy=dict.fromkeys(("unlearned", "original", "retrain"), nothing),
        clients={"on": "training data", "rows": [{"client": "c02", "examples": 4, "before": None, "after": None, "retrain": None}]},
    )  # fmt: skip


def read(told: Mapping[str, Any]) -> Audit:
    """Read a hand-made audit."""
    return Audit.from_json(json.dumps(told))


def put(folder: Path, told: Mapping[str, Any]) -> Path:
    """Lay an audit into a run folder."""
    (folder / "audit.json").write_text(json.dumps(told))
    return folder
