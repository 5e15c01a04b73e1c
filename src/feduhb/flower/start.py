"""The start of a run over a grid: its seed, and the fresh model that the seed draws, or a given one.

Every run draws its own seed. If training and unlearning shared it, the remaining clients would send the same first
updates in both, and the difference of the two first sums would be the update of the forgotten clients. A run that
replays a history keeps the seed and the start of the training.

A given start is a module's own weights, which the operator declares to be public. All runs that follow one another must
have the same, so that no run starts from what another one learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from feduhb.core.flat import ModelSource
from feduhb.core.fresh import draw_several, find_shared
from feduhb.core.seeds import draw_seed
from feduhb.core.types import Method
from feduhb.errors import ConfigError, ModelError, RunFolderError
from feduhb.flower.messages import log
from feduhb.flower.wire import Layout, MalformedError, fresh_arrays, get_carried, get_source
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.config import validate
from feduhb.runs.folder import HISTORY, RunFolder
from feduhb.runs.history import DiskHistory
from feduhb.runs.lineage import explain_shared_seed, read_ancestors
from feduhb.runs.start import GIVEN_NOTICE, StartSettings, check_start, record_start

GIVEN = "model=net, start='given'"
DRAW = "let the strategy draw the fresh model: strategy = FedUHB(..., model=Net); strategy.start(grid, num_rounds=40)"


@dataclass(frozen=True, slots=True)
class Start:
    """The seed of a run and the model that it starts from."""

    seed: int
    arrays: ArrayRecord
    given: bool = False  # whether these are a module's own weights, declared as public

    @property
    def params(self) -> Tensor:
        """The weights w[0], flat [P]."""
        return Layout.of(self.arrays).flatten(self.arrays)

    @property
    def settings(self) -> StartSettings | None:
        """The table [start] of config.toml: what was not drawn, with its digests; None if everything was drawn."""
        return record_start(self.params if self.given else None, *get_carried(self.arrays))


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The seed and the digest of w[0] that a run folder records.

    `feduhb.train` writes no digest; then the history has w[0]. None if there is no history either.
    """

    path: Path
    seed: int
    digest: str | None
    given: bool  # whether w[0] was given

    @classmethod
    def of(cls, folder: RunFolder) -> _Recorded:
        config, history = folder.config(), DiskHistory(folder.path / HISTORY)
        digest = config.get("flower", {}).get("start")
        if digest is None and 0 in history.rounds:
            digest = digest_weights(history.params(0))
        given = bool(config.get("start", {}).get("given"))
        return cls(folder.path, int(config.get("seed", 0)), digest, given)


def choose_start(
    method: Method[Any],
    model: ModelSource | None,
    seed: int | None,
    initial: ArrayRecord | None,
    folder: RunFolder | None,
    trained: RunFolder | None,
    *,
    forgets: bool = False,
    given: bool = False,
) -> Start:
    """Return the seed and the fresh model of a run; raise an error if the initial arrays are not that model.

    Args:
        model: draws the fresh model. None takes the model that drew the initial arrays.
        given: start from the weights that the model has instead. The runs before must have had the same start.
        seed: None takes the recorded one if the run is resumed or replays a training, and else draws one.
        initial: the arrays that the user gave. They need a seed, and must be the model that it draws.
        folder: the run's own folder.
        trained: the folder of the run to unlearn from.
        forgets: whether the run serves a request. Then draws of its model must not share weights that a training may
            have learned.
    """
    recorded = _find_recorded(method, folder, trained)
    if recorded is not None:
        if seed not in {None, recorded.seed}:
            raise RunFolderError(_explain_other_seed(method, recorded, folder, seed))
        seed = recorded.seed
    elif seed is None:
        if initial is not None and not given:
            raise ConfigError(
                f"the initial arrays were given without a seed, so they cannot be compared with a fresh draw; {DRAW}. "
                "To repeat a run, also give its seed: FedUHB(..., model=Net, seed=1)"
            )
        seed = draw_seed()
    if given:
        start = _copy_given(model, seed, initial)
        _check_same_start(start, model, folder, trained)
        return start
    if initial is not None and recorded is not None and not recorded.given and _is_start(initial, recorded):
        return Start(seed, initial)  # earlier versions accepted arrays that another seed had drawn
    source = get_source(initial) if model is None and initial is not None else model
    if source is None:
        missing = "no model is given" if initial is None else "the initial arrays were given without a model"
        raise ConfigError(f"{missing}, so a fresh model cannot be drawn; {DRAW}")
    drawn = fresh_arrays(source, seed)
    if forgets and not method.needs_history:  # a replay starts at the recorded weights of its training
        _check_draws(source, seed, trained)
    if initial is not None and not _are_equal(initial, drawn):
        raise RunFolderError(
            f"the initial arrays are not the fresh model that seed {seed} draws, so they may hold what another run learned; {DRAW}"
        )
    start = Start(seed, drawn)
    _check_same_start(start, source, folder, trained)
    if recorded is not None and recorded.digest not in {None, digest_weights(start.params)}:
        raise RunFolderError(
            f"{recorded.path} started from other weights than seed {seed} draws; give the model that it trained. If it was "
            "started by an earlier version, pass the same arrays again: strategy.start(grid, initial_arrays)"
        )
    return start


def _copy_given(model: ModelSource | None, seed: int, initial: ArrayRecord | None) -> Start:
    """Return the start from a module's own weights; raise an error if other arrays are given."""
    if model is None:
        raise ConfigError(
            f"a given start needs the module with its weights; give it to the strategy: {GIVEN}"
        )
    start = Start(seed, fresh_arrays(model, seed, given=True), given=True)
    if initial is not None and not _are_equal(initial, start.arrays):
        raise RunFolderError(f"the initial arrays are not the weights of the module; leave them out: {GIVEN}")
    return start


def _check_same_start(start: Start, source: ModelSource | None, *folders: RunFolder | None) -> None:
    """Raise RunFolderError unless the runs in these folders had the same given start, frozen parameters and constants.

    Args:
        source: draws the constants of another seed, if the start is fresh.
    """
    for folder in (folder for folder in folders if folder is not None and folder.exists()):
        config = folder.config()
        table, seed = config.get("start"), int(config.get("seed", 0))
        if table is None and start.settings is None:
            continue
        before = None if table is None else validate(StartSettings, table, f"[start] of {folder.path}")
        if source is not None and not start.given and seed != start.seed:
            start = Start(seed, fresh_arrays(source, seed))
        check_start(folder.path, before, start.settings, "this strategy")


def warn_of_shared_start(start: Start) -> None:
    """Warn of what a given start reveals, once per run."""
    if start.given:
        log.warning("%s", GIVEN_NOTICE)


def _check_draws(source: ModelSource, seed: int, trained: RunFolder | None) -> None:
    """Raise ModelError if draws of a model share weights, unless the training started from a draw of the same model."""
    shared = find_shared(draw_several(source, seed))
    if not shared.names:
        return
    before = None if trained is None else _Recorded.of(trained)
    if before is None:
        advice = (
            "name the run that this one replaces, trained=..., or draw all weights in the model's factory"
        )
        raise ModelError(
            f"fresh draws of the model share weights in {shared}, which a training may have learned; {advice}"
        )
    first = Start(before.seed, fresh_arrays(source, before.seed))
    if before.digest != digest_weights(first.params):
        started = "did not start" if before.digest else "does not record that it started"
        raise ModelError(
            f"fresh draws of the model share weights in {shared}, and {before.path} {started} from this model, so it may "
            "have learned them; give the model that it trained, or draw all weights in the model's factory"
        )


def warn_of_shared_seed(method: Method[Any], seed: int, trained: RunFolder | None) -> None:
    """Warn if an exact run has the seed of a run that it replaces: its first sum would reveal the forgotten update."""
    if trained is None or method.needs_history:
        return
    before = (trained.path, *(one.path for one in read_ancestors(trained.path)))
    if (warning := explain_shared_seed(seed, before)) is not None:
        log.warning("%s", warning)


def _find_recorded(
    method: Method[Any], folder: RunFolder | None, trained: RunFolder | None
) -> _Recorded | None:
    """Return the start that the run must have: its own if it is resumed, that of the training if it replays one."""
    if folder is not None and folder.exists():
        return _Recorded.of(folder)
    return _Recorded.of(trained) if trained is not None and method.needs_history else None


def _explain_other_seed(
    method: Method[Any], recorded: _Recorded, folder: RunFolder | None, seed: int | None
) -> str:
    if folder is not None and recorded.path == folder.path:
        return (
            f"{recorded.path} was started with seed = {recorded.seed}, not {seed}; resubmit with the same settings, "
            "or choose another checkpoint folder"
        )
    return f"{method.name} replays the training in {recorded.path} with its seed {recorded.seed}, not {seed}; leave seed out"


def _is_start(initial: ArrayRecord, recorded: _Recorded) -> bool:
    return digest_weights(Layout.of(initial).flatten(initial)) == recorded.digest


def _are_equal(initial: ArrayRecord, drawn: ArrayRecord) -> bool:
    """Whether two models have the same names, shapes and bits."""
    layout, other = Layout.of(drawn), Layout.of(initial)
    if (layout.dtype, list(layout.shapes)) != (other.dtype, list(other.shapes)):
        return False
    try:
        return torch.equal(layout.flatten(initial), layout.flatten(drawn))
    except MalformedError:
        return False
