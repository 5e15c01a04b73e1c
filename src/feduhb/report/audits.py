"""An audit as a run folder tells it, in ``audit.json``: read once, and checked to the last field a report shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feduhb.errors import RunFolderError

FILE = "audit.json"
MODELS = ("original", "retrain", "unlearned")
WORDS = ("forgotten", "not caught", "not forgotten", "useless", "inconclusive")
FOUND = ("caught", "not caught", "no power here", "inconclusive")  # by one attack


@dataclass(frozen=True, slots=True)
class Perhaps:
    """A part that may be null."""

    shape: Any


@dataclass(frozen=True, slots=True)
class Named:
    """A table of parts of one shape, whatever their names."""

    shape: Any


# A shape is a type, the words allowed, a table of shapes, or a list of one shape.
NUMBER = float  # or an integer
INTERVAL = {"low": NUMBER, "high": NUMBER}
ROC = {
    "auc": NUMBER, "se": NUMBER, "interval": INTERVAL, "equivalence": INTERVAL,
    "tpr_1": NUMBER, "tpr_1_interval": INTERVAL, "tpr_01": NUMBER, "tpr_01_interval": INTERVAL,
    "members": int, "others": int,
}  # fmt: skip
ATTACK = {
    "attack": str, "on": str, "verdict": FOUND, "says": str, "margin": NUMBER, "power": Perhaps(NUMBER),
    "models": dict.fromkeys(MODELS, ROC), "self_test": Perhaps(ROC),
}  # fmt: skip
CALLED = {"misr": NUMBER, "on_test": NUMBER}
BACKDOOR = {
    "images": int, "success": dict.fromkeys(MODELS, NUMBER), "verdict": FOUND, "says": str,
    "difference": {"value": NUMBER, **INTERVAL},
}  # fmt: skip
CLIENT = {"client": str, "examples": int, **dict.fromkeys(("before", "after", "retrain"), Perhaps(NUMBER))}
COST = dict.fromkeys(
    ("rounds", "client_epochs", "bytes_down", "bytes_up", "history_bytes", "seconds"), Perhaps(NUMBER)
)
AUDIT = {
    "method": str,
    "exact": bool,
    "forgot": str,
    "weights_sha256": str,
    "verdict": {"word": WORDS, "reasons": [str]},
    "exactness": Perhaps(
        {
            "exact": bool,
            "checks": [{"name": str, "says": str, "identical": bool, "largest_difference": Perhaps(NUMBER)}],
        }
    ),
    "membership": [ATTACK],
    "misr": Perhaps({"attackers": Named(dict.fromkeys(MODELS, CALLED)), "says": str}),
    "backdoor": Perhaps(BACKDOOR),
    "accuracy": dict.fromkeys(
        MODELS, dict.fromkeys(("forgotten", "retained", "test"), Perhaps(NUMBER))
    ),
    "clients": {"on": str, "rows": [CLIENT]},
    "distance": dict.fromkeys(
        ("original", "unlearned"), dict.fromkeys(("l2", "cosine", "kl", "disagreement"), Perhaps(NUMBER))
    ),
    "relearn": Perhaps({"goal": NUMBER, "most": int, "unlearned": Perhaps(int), "retrain": Perhaps(int)}),
    "cost": dict.fromkeys(MODELS, COST),
    "notes": Perhaps([str]),
    "settings": dict,
    "versions": dict,
    "finished": str,
    "seconds": NUMBER,
}  # fmt: skip


def read_audit(folder: Path) -> dict[str, Any] | None:
    """Read a run folder's audit, None where it has none; refuse one that is damaged or that tells less than it must."""
    path = folder / FILE
    advice = f"delete it and audit the run again: feduhb audit {folder}"
    try:
        told = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not whole JSON"
        raise RunFolderError(f"{path} cannot be read: {reason}; {advice}") from None
    if odd := _odd(told, AUDIT, "the audit"):
        raise RunFolderError(f"{path} is damaged, or another version wrote it: {odd}; {advice}")
    return told


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _odd(value: Any, shape: Any, where: str) -> str | None:
    """Hold a value against its shape, a missing part being null; say what does not fit."""
    match shape:
        case Perhaps(inner):
            return None if value is None else _odd(value, inner, where)
        case type():
            fits, parts = _is(value, shape), []
        case tuple():
            fits, parts = value in shape, []
        case [inner]:
            fits = isinstance(value, list)
            parts = [(each, inner, f"{where} {place}") for place, each in enumerate(value if fits else (), 1)]
        case Named(inner):
            fits = isinstance(value, dict)
            parts = [(each, inner, f"{where}, {name}") for name, each in (value if fits else {}).items()]
        case _:
            fits = isinstance(value, dict)
            parts = [(value.get(name), inner, f"{where}, {name}") for name, inner in shape.items() if fits]
    if not fits:
        return f"{where} is {json.dumps(value)[:40]}"
    return next((odd for part in parts if (odd := _odd(*part))), None)


def _is(value: object, kind: type) -> bool:
    """Whether a value is of a kind; integers are numbers, true and false are not."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is NUMBER else kind)
