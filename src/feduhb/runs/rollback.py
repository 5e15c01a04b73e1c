"""Where a rollback continues: the last model on disk that a training without the leavers would have had too.

Clients are sampled by a hash of (seed, round, client). Until a round asks somebody whose data a request changes, the
training asked the same clients, which had the same data, as it would have in a federation that never held the forgotten
data. So the model before that round is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from feduhb.core.flat import flatten
from feduhb.core.types import BlockSize, ClientId, Engine
from feduhb.data.federation import Federation
from feduhb.engines import describe_engine
from feduhb.errors import ConfigError, RunFolderError
from feduhb.runs.checkpoint import digest_weights, load_params
from feduhb.runs.config import Config, TrainSettings, parse_config
from feduhb.runs.folder import KEPT_MODELS, Round, RunFolder
from feduhb.runs.kept import KeptModels, list_untouched
from feduhb.runs.run import Run
from feduhb.runs.start import SHARED_START

REFUSED = (
    "a rollback of clients elsewhere starts from a model of the old run and has its seed. The difference of the two sums of that "
    "round is the update of the clients that left. Use retrain or feduhb, which start afresh with a seed of their own; to roll "
    "back all the same: allow_shared_start=True"
)
SHARED_NOTICE = f"this run starts from a model of the old run and has its seed. {SHARED_START}"
SHARED_RECORD = f"This run started from a model of the old run and has its seed. {SHARED_START}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The model at which a rollback continues a training, and what the training recorded until then."""

    round: int  # that the rollback runs first
    sha256: str  # of the model
    # [P]; None if the rollback has begun, and its own folder has all that it needs.
    params: Tensor | None = None
    best: Tensor | None = None  # [P] the best model until then, if the training keeps that
    records: tuple[Round, ...] = ()
    made_by: str = ""  # the engine of the training
    block: BlockSize | None = None  # of that engine
    joined: tuple[ClientId, ...] = ()  # the clients whose last batch joined another in the training
    is_all: bool = False  # whether these are all rounds of the training
    is_scored: bool = True  # whether the records have test scores: not if clients have test data of their own, which requests change
    kept: KeptModels | None = None  # of the run that is continued


def find_restart(run: Run, remaining: Federation, at: int | None = None) -> Restart | None:
    """Return the last model that no leaver had touched, of a run and of those that it came from; None for the fresh model.

    Args:
        run: the run that is to forget.
        remaining: the federation without everything that is forgotten.
        at: the round of the model, if it is known already; None takes the last one.
    """
    own, held = remaining.fingerprints(), _list_held_out_changes(run.original, remaining)
    like, found = flatten(remaining.fresh_model()), list[tuple[int, RunFolder, Config]]()
    for files, config in _list_trainings(run, remaining.seed):
        changed = [client for client, text in config.clients.items() if own.get(client) != text]
        records = files.rounds()
        kept = KeptModels(files.path / KEPT_MODELS).rounds
        places = list_untouched(kept, [record.asked for record in records], [*changed, *held])
        found += [(done, files, config) for done in places if at in {None, done}]
    if not found:
        return None
    restart = _read(*max(found, key=lambda one: one[0]), like)
    if not run.original.tested:  # the server's own test set, which no request changes
        return restart
    records = tuple(replace(record, scores={}) for record in restart.records)
    return replace(restart, records=records, is_scored=False)


def _list_trainings(run: Run, seed: int) -> Iterator[tuple[RunFolder, Config]]:
    """Yield the trainings and rollbacks in the lineage of a run that have its training's settings and a seed, nearest first."""
    for path in filter(None, (run.folder, *(one.path for one in run.earlier if one.is_there))):
        files = RunFolder(path)
        values = files.config()
        if "flower" in values or not files.is_finished():  # a strategy records no fingerprints
            continue
        config = parse_config(values, str(files.config_path))
        is_training = config.unlearn is None or config.unlearn.method == "rollback"
        if is_training and config.seed == seed and _strip(config.train) == _strip(run.settings):
            yield files, config


def _strip(settings: TrainSettings) -> TrainSettings:
    """Return how a training is run, without the settings that do not change its models."""
    return replace(settings, engine="auto", keep_history=False, keep_models=None)


def _list_held_out_changes(before: Federation, after: Federation) -> list[ClientId]:
    """Return the clients with forgotten held-out examples: stop rules and the best model depend on these."""
    parts = [{client: len(own) for client, own in one.held_out.items()} for one in (before, after)]
    return [client for client in parts[0] if parts[0][client] != parts[1].get(client, 0)]


def _read(done: int, files: RunFolder, config: Config, like: Tensor) -> Restart:
    """Return the model of a run after some rounds, with the records of these rounds, which cost the rollback nothing."""
    records, kept = files.rounds(), KeptModels(files.path / KEPT_MODELS)
    if done == len(records):
        files.check_weights()
        params = load_params(files.state_path)
        best = params if config.train.keep == "best" else None
    else:
        params, best = kept.read(done, like)
    if (params.shape, params.dtype) != (like.shape, like.dtype):
        raise RunFolderError(f"{files.path} has another model than this federation; give the run's own model")
    free = {
        "client_epochs": 0, "bytes_down": 0, "bytes_up": 0, "client_seconds": 0.0, "server_seconds": 0.0, "evaluate_seconds": 0.0,
    }  # fmt: skip
    return Restart(
        round=done, sha256=digest_weights(params), params=params, best=best, made_by=config.made_by, block=config.block, kept=kept,
        joined=tuple(files.result()["engine"].get("joined_last_batch", ())), is_all=done == len(records),
        records=tuple(replace(record, **free) for record in records[:done]),
    )  # fmt: skip


def resume_restart(run: Run, remaining: Federation, folder: RunFolder) -> Restart | None:
    """Return where the rollback in a folder began, so that it can be resumed; None if it began at the fresh model."""
    recorded = folder.config().get("unlearn", {})
    if (begun := recorded.get("restart_round")) is None:
        return None
    done, sha256 = int(begun), str(recorded.get("restart_sha256"))
    if folder.state_path.exists():
        return Restart(round=done, sha256=sha256)
    found = find_restart(run, remaining, at=done)
    if found is None or found.sha256 != sha256:
        raise RunFolderError(
            f"{folder.path} was to continue from the kept model after {done} rounds, which is not there any more; choose another --out"
        )
    return found


def check_same_engine(restart: Restart, engine: Engine) -> None:
    """Raise ConfigError if no single training has the bits of a rollback on this engine.

    The stacked engine makes the batches of all clients one example wider if the last batch of any client joins another.
    """
    made_by = describe_engine(engine)
    if restart.made_by not in {"", made_by}:
        raise ConfigError(
            f"rollback continues a training that was made by {restart.made_by}, but this run would be made by {made_by}, which rounds "
            "differently; use the training's engine, or retrain"
        )
    if engine.about["name"] == "stacked" and restart.joined and not engine.about.get("joined_last_batch"):
        raise ConfigError(
            f"rollback cannot continue this training on the stacked engine: only because of client {restart.joined[0]}, whose data is "
            "forgotten, were the batches of all clients one example wider; use retrain"
        )


def explain_restart(restart: Restart | None, run: Run, rounds: int) -> str:
    """Return where a rollback continues and how much that saves, in words."""
    if restart is not None and restart.is_all:
        return (
            "no round asked anybody whose data is forgotten, so the model stays, and no round is left to do"
        )
    if restart is not None:
        return f"rollback continues after {restart.round} of {rounds} rounds, from the last model without the forgotten data"
    why = "no model was kept before the first round of what is forgotten"
    if run.settings.clients_per_round is None:
        why = "every client takes part in every round"
    elif run.folder is None:
        why = "this run has no folder"
    return f"rollback starts from the fresh model, so it saves nothing: {why}"
