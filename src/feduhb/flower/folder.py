"""The run folder of a strategy: where a ServerApp that was killed goes on, and what a report reads."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w
from flwr.app import ConfigRecordValues
from torch import Tensor

from feduhb.core.types import ClientId, Engine, Local, Method
from feduhb.data.request import Request
from feduhb.errors import RunFolderError
from feduhb.flower import forgetting
from feduhb.flower.forgetting import Forgotten
from feduhb.history import DiskHistory
from feduhb.methods.replaying import replays
from feduhb.methods.retrain import Plain
from feduhb.records import Round, RunFolder, write_atomically
from feduhb.run.checkpoint import save_state
from feduhb.run.folder import (
    HISTORY,
    first_difference,
    resumed,
    same_replay,
    settings_of,
    sole_writer,
    summary,
    weights_digest,
)
from feduhb.stopping import DynamicStop, StopRule

NAMES, LEFT_OUT = "names.json", "left_out.json"


def described(
    method: Method[Any],
    stop: StopRule,
    request: Request | None,
    local: Local,
    start: Tensor,
    *,
    rounds: int,
    seed: int,
    clients_per_round: int | None,
    keep_history: bool,
    unlearns: bool,
    told: Mapping[str, ConfigRecordValues] | None = None,
) -> str:
    """Write a run's config.toml: what must be the same for it to be resumed.

    Args:
        told: what clients are told beside our own settings, under the keys of the user.
    """
    settings = settings_of(method)
    sampled = {} if clients_per_round is None else {"clients_per_round": clients_per_round}
    train = {
        "rounds": rounds,
        "epochs": settings["epochs"],
        "batch_size": local.batch_size,
        "lr": local.lr,
        "l2": local.l2,
        "aggregate": settings.get("aggregate", "weighted_mean"),
        "engine": "flower",
        "keep_history": keep_history,
        **sampled,
    }
    flower: dict[str, Any] = {"start": weights_digest(start)}
    if told:
        flower["train_config"] = {key: _plain(value) for key, value in told.items()}
    config = {"seed": seed, "made_by": "flower", "train": train, "flower": flower}
    if not unlearns:
        without = {} if request is None else {"forget": str(request)}
        config["flower"] = {**config["flower"], **without, "settings": settings}
    elif request is not None:
        rule = asdict(stop) if isinstance(stop, DynamicStop) else {}
        judged = {"stop": {key: value for key, value in rule.items() if value is not None}} if rule else {}
        unlearn = {"forget": str(request), "method": method.name, "rounds": rounds, "settings": settings}
        config["unlearn"] = {**unlearn, **judged}
    return tomli_w.dumps(config)


def _plain(value: ConfigRecordValues) -> Any:
    """Spell a value as TOML can: bytes by their digest."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return f"sha256:{sha256(value).hexdigest()}" if isinstance(value, bytes) else value


def begin(folder: RunFolder, config: str, fresh: Any, forgotten: Forgotten) -> tuple[Any, list[Round]]:
    """Lay out the folder, or find where its run stands: the state after its last finished round, and all records."""
    if not folder.exists():
        note(folder.path, forgetting.FILE, forgotten.to_json())
        folder.create(config)
        return fresh, []
    if difference := first_difference(folder.config(), tomllib.loads(config)):
        raise RunFolderError(
            f"{folder.path} was begun with {difference}; resubmit with the same settings, or choose another checkpoint folder"
        )
    return resumed(folder, fresh, Plain(fresh.params))


def same_request(folder: RunFolder, method: Method[Any], request: Request | None) -> None:
    """Refuse a finished replay of another request or by another method, whose history is gone."""
    same_replay(folder, method, str(request), "choose another checkpoint folder")


def finish(
    folder: RunFolder,
    method: Method[Any],
    state: Any,
    records: Sequence[Round],
    scheduled: int,
    engine: Engine,
) -> None:
    """Write result.json. What a replaying method remembers of the history goes with the run."""
    kept = DiskHistory(folder.path / HISTORY)
    if replays(method):
        save_state(folder.state_path, Plain(state.params), len(records))
    everyone = sorted({client for record in records for client in record.asked})
    result = summary(
        method, engine, state.params, records, scheduled=scheduled, clients=everyone,
        full=len(everyone) * len(records) if replays(method) else 0,
        history_bytes=kept.bytes if kept.rounds else 0,
    )  # fmt: skip
    folder.finish(result)


def names(folder: Path) -> dict[ClientId, str]:
    """Read the registered names that a run has met."""
    return _json(folder / NAMES)


def left_out(folder: Path, before: int) -> dict[int, dict[ClientId, str]]:
    """Read who was left out of the rounds before this one, and why."""
    return {int(t): found for t, found in _json(folder / LEFT_OUT).items() if int(t) < before}


def note(folder: Path, name: str, values: Mapping[Any, Any]) -> None:
    """Write a small file beside the records, where it says something new."""
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    path = folder / name
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text.encode())


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise RunFolderError(
            f"{path} is damaged; delete it: only names and reasons for people are lost"
        ) from None


def held(folder: RunFolder | None) -> contextlib.AbstractContextManager[None]:
    """Let one ServerApp at a time write a run folder."""
    return sole_writer(folder, "ServerApp", "stop it, or choose another checkpoint folder")
