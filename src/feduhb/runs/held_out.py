"""What a run records for stop rules besides movements, and the best model so far.

In every round, the clients that answer score the model that they were sent on their held-out data. The loss and the main
score are averaged by the numbers of held-out examples. A score that is not a mean over examples, such as AUROC,
is computed for each client, and clients for which it is not defined are left out. But if the value of a client is infinite,
or NaN because the model's outputs are not finite, the model has diverged there, and the round records no such value: the mean
of the other clients would make it look better than it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from torch import Tensor

from feduhb.core.scores import SCORES, Best, Score
from feduhb.core.types import Engine
from feduhb.data.federation import Federation
from feduhb.engines import device_of
from feduhb.engines.scoring import make_held_out_evaluator, try_scores
from feduhb.errors import ConfigError
from feduhb.runs.folder import Round, make_series
from feduhb.runs.loop import HeldOut, Rounds
from feduhb.stopping import Patience, Series, StopRule, list_needs

Keep = Literal["last", "best"]
Recorded = Literal["held_out", "distance"]


@runtime_checkable
class AsksHeldOut(Protocol):
    """An engine whose clients have their held-out data themselves, and score the model that they are sent."""

    def ask_held_out(self, score: str) -> HeldOut:
        """Ask the clients for the loss and this score from now on; return the function that averages those of a round."""
        ...


@dataclass(frozen=True, slots=True)
class Recording:
    """What a run records besides movements and test scores, and which model it keeps."""

    held_out: HeldOut | None = None
    best: Best = "high"  # whether more or less of the main score is better
    distance: bool = False
    keep: Keep = "last"


def plan_recording(
    federation: Federation, engine: Engine, stop: StopRule, keep: Keep, record: Collection[str]
) -> Recording:
    """Return what a run must record; raise ConfigError if that cannot be had.

    Args:
        record: "held_out" and "distance", if the user asks for them.
    """
    needs = list_recorded(stop, keep, record)
    has_distance = "distance" in needs
    if "held_out" not in needs:
        return Recording(distance=has_distance, keep=keep)
    main = next(iter(try_scores(federation, federation.fresh_model())), None)
    if main is None and (keep == "best" or (isinstance(stop, Patience) and stop.watch == "held_out_score")):
        raise ConfigError(
            "this federation has no score to watch; give it one, such as scores=['rmse'], or watch the loss: feduhb.patience('held_out_loss')"
        )
    return Recording(
        _find_held_out(federation, engine, main), "high" if main is None else main.best, has_distance, keep
    )


def list_recorded(stop: StopRule, keep: Keep, record: Collection[str]) -> set[str]:
    """Return what the rule, the user and the choice of the model need; raise ConfigError for a word that is not known."""
    if keep not in get_args(Keep):
        raise ConfigError(
            f"keep is {keep!r}; give 'last', or 'best' for the model with the best held-out score"
        )
    needs = {*list_needs(stop), *record, *(("held_out",) if keep == "best" else ())}
    if unknown := sorted(needs - {*get_args(Recorded)}):
        raise ConfigError(f"a run cannot record {unknown[0]!r}; choose from held_out and distance")
    return needs


def _find_held_out(federation: Federation, engine: Engine, score: Score | None) -> HeldOut:
    """Return the function that scores a model on held-out data of clients."""
    if isinstance(engine, AsksHeldOut):
        if score is not None and score.name not in SCORES:
            raise ConfigError(
                f"clients elsewhere cannot compute the score {score.name}; give a built-in one first: {', '.join(SCORES)}"
            )
        return engine.ask_held_out("" if score is None else score.name)
    if not any(map(len, federation.held_out.values())):
        raise ConfigError(
            "this needs held-out data of the remaining clients, and they have none; give held_out=0.25 to feduhb.load, or "
            "examples to Federation(held_out=...), or use feduhb.distance_stop(), which needs none"
        )
    evaluate = make_held_out_evaluator(federation, score, device_of(engine))
    return lambda _, params, clients: evaluate(params, clients)


def find_kept(rounds: Sequence[Round], keep: Keep, best: Best) -> int:
    """Return after how many rounds the model was the one that a run keeps: the last one, if none was scored."""
    found = make_series(rounds, best).find_best() if keep == "best" else None
    return len(rounds) if found is None else found


class BestModel:
    """The model with the best held-out score so far; None before one was scored.

    The score in a round is that of the model that was sent in it, the one before the round.
    """

    def __init__(self, before: Tensor, series: Series, params: Tensor | None) -> None:
        self.before = before  # [P]
        self.series = series
        self.params = params

    def watch(self, rounds: Rounds[Any]) -> Rounds[Any]:
        """Yield the rounds, and remember the best model."""
        for state, record in rounds:
            self.series = self.series.add(record.moved, record.distance, record.held_out)
            if self.series.find_best() == record.round:
                self.params = self.before
            self.before = state.params
            yield state, record
