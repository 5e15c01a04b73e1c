"""Describe runs by what they leave behind: weights, round records, histories and files."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

import feduhb
from golden.masking import mask, round_number

COUNTED = ("client_epochs", "bytes_down", "bytes_up")


class Interruption(BaseException):
    """Stop a run from its own ``show`` function; no handler in the package catches it."""


def interrupt_after(round: int) -> Callable[[feduhb.Round], None]:
    """Return a ``show`` function that stops a run once it has shown this round."""

    def show(record: feduhb.Round) -> None:
        if record.round == round:
            raise Interruption

    return show


def digest_weights(params: Tensor) -> str:
    """Return the SHA-256 of the bytes of a tensor."""
    return sha256(
        params.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    ).hexdigest()


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the round records of a run folder."""
    path = folder / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def describe_records(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers of round records, one list a field; the last record says whether the rule ended the run."""
    scores = sorted({name for record in records for name in record["scores"]})
    stop = records[-1]["stopped"] if records else None
    return {
        "rounds": [record["round"] for record in records],
        "asked": [" ".join(record["asked"]) for record in records],
        "silent": [[record["round"], _list_silent(record)] for record in records if _list_silent(record)],
        **{name: [round_number(record[name]) for record in records] for name in ("moved", "threshold")},
        **{name: [record[name] for record in records] for name in COUNTED},
        "scores": {name: [round_number(r["scores"].get(name)) for r in records] for name in scores},
        "ended_by_rule": stop is not None,
        "stop": None if stop is None else mask(stop),
    }


def _list_silent(record: Mapping[str, Any]) -> str:
    return " ".join(client for client in record["asked"] if client not in record["answered"])


def describe_run(run: feduhb.Run) -> dict[str, Any]:
    """Return what is pinned of a run: of its folder where it has one, else of the value."""
    about = {
        "method": run.method.name,
        "forgot": None if run.forgot is None else str(run.forgot),
        "clients": " ".join(run.federation.clients),
    }
    if run.folder is None:
        records = [asdict(record) for record in run.rounds]
        return {"weights": digest_weights(run.params), **about, **describe_records(records)}
    found = describe_folder(run.folder)
    same = found["weights"] == digest_weights(run.params) and len(run.rounds) == len(found["rounds"])
    return {**found, **about, "value_equals_folder": same}


def describe_folder(folder: Path) -> dict[str, Any]:
    """Return what is pinned of a run folder, finished or not."""
    result = folder / "result.json"
    recorded = json.loads(result.read_text())["weights_sha256"] if result.exists() else None
    weights = digest_folder(folder)
    return {
        "weights": weights,
        "finished": recorded is not None,
        "recorded_weights_agree": recorded in {None, weights},
        **describe_records(read_records(folder)),
        "history": describe_history(folder),
        "files": list_files(folder),
    }


def digest_folder(folder: Path) -> str | None:
    """Return the digest of the weights in a run folder's checkpoint; None before its first."""
    state = folder / "state.safetensors"
    if not state.exists():
        return None
    with safe_open(state, "pt") as file:
        return digest_weights(file.get_tensor("params"))


def describe_history(folder: Path) -> list[str]:
    """Return the rounds that are left of a history on disk, each with the clients whose updates it holds.

    A list is compared whole: a round that an erasure should have taken is a difference.
    """
    found: list[str] = []
    for place in sorted(path for path in (folder / "history").glob("*") if path.is_dir()):
        marker = place / "round.json"
        blocks = json.loads(marker.read_text())["blocks"] if marker.exists() else None
        clients = ["(incomplete)"] if blocks is None else [c for block in blocks for c in block["clients"]]
        found.append(" ".join([place.name, *clients]))
    return found


def list_files(folder: Path) -> list[str]:
    """Return the names of the files in a folder, all of them: what should have been deleted is a difference.

    Those of a history are described by `describe_history`.
    """
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in inside if path.parts[0] != "history")


def describe_contents(folder: Path) -> dict[str, Any]:
    """Return what the files of a run folder hold, its history included: values, masked, and the layout of tensors."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _describe_file(path) for path in paths}


def _describe_file(path: Path) -> Any:
    if path.suffix == ".json":
        return mask(json.loads(path.read_text()))
    if path.suffix == ".toml":
        return mask(tomllib.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return {key: True for line in path.read_text().splitlines() for key in json.loads(line)}
    return _describe_tensors(path) if path.suffix == ".safetensors" else True


def _describe_tensors(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        _, _, state = (file.metadata() or {}).get("state", "").partition(" ")
    layout = {
        name: {"type": str(found.dtype), "shape": list(found.shape), "digest": digest_weights(found)}
        for name, found in tensors.items()
    }
    return {"tensors": layout, "state": mask(json.loads(state)) if state else None}


def describe_error(action: Callable[[], object]) -> dict[str, Any]:
    """Return the kind of the error that an action raises; what is not one of ours is marked so."""
    try:
        action()
    except Exception as error:
        return {"error": type(error).__name__, "ours": isinstance(error, feduhb.FeduhbError)}
    return {"error": None}


def interrupted(action: Callable[[], object]) -> bool:
    """Run an action that is interrupted; return whether it was."""
    with contextlib.suppress(Interruption):
        action()
        return False
    return True
