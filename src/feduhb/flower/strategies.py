"""Flower strategies with a loop of their own, used as Flower's: `strategy.start(grid, initial_arrays, num_rounds)`.

A strategy makes a method of `feduhb.methods`; `feduhb.flower.server` plans its run and executes it over the grid.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from feduhb import methods
from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_whole
from feduhb.core.types import Method
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import ConfigError
from feduhb.flower.server import Evaluate, Options, Outcome, log, serve
from feduhb.flower.wire import OURS
from feduhb.methods import settings_of
from feduhb.stopping import StopRule, never


@dataclass(kw_only=True)
class OwnLoop(Options, Strategy):
    """A strategy with a loop of its own: it stops early, resumes, samples by its own seed and asks only the remaining clients.

    Args:
        checkpoint: a run folder; a ServerApp that is submitted again continues after the last finished round in it. Give an
            absolute path: a ServerApp does not run in your directory.
        trained: the checkpoint folder of the training that shall forget. This run must start from the same fresh weights;
            registered names of clients that are not connected are looked up there; what it forgot stays forgotten; its history
            is erased.
        keep_history: write every model and every update into the checkpoint folder, for FedEraser and FedRecover.
        seed: of batches and of sampling, by client id.
        local: batch size, learning rate and l2 of the clients; the loss is their own.
        clients_per_round: how many are sampled each round; None asks all remaining clients that are connected.
        min_clients: how many remaining clients must be connected for the run to begin; in simulation it waits for all.
        min_replies: sound answers that a round needs; None needs half of those asked.
        timeout: seconds that a round waits for answers.
        max_norm: of an update; None takes 1,000 times the median of its round, or the model's own norm if that is more.
        max_examples: that an answer may stand for; None takes 1,000 times the median of its round, and 100,000 at least.
        partitions: the clients' names in simulation, by partition id; None calls them c00, c01, ...
        tell_leavers: tell clients that are forgotten whole to delete their cache.
        evaluate_every: let the clients score the model every this many rounds; 0 never.
    """

    unlearns: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.method()
        self.request()
        for name, least in (("clients_per_round", 1), ("min_clients", 1), ("evaluate_every", 0)):
            if (value := getattr(self, name)) is not None:
                check_whole(name, value, least)
        if self.clients_per_round and self.min_replies and self.min_replies > self.clients_per_round:
            raise ConfigError(
                f"min_replies is {self.min_replies}, but only {self.clients_per_round} clients are asked each round; lower it"
            )
        places = [Path(place).resolve() for place in (self.trained, self.checkpoint) if place is not None]
        if len(places) > len({*places}):
            raise ConfigError(
                f"{self.trained} is the training that shall forget; choose another checkpoint folder"
            )

    @abstractmethod
    def method(self) -> Method[Any]:
        """Return the method that this strategy runs."""

    def request(self) -> Request | None:
        """Return what is to be forgotten, from the ``forget`` that every strategy has."""
        forget = getattr(self, "forget", None)
        return None if forget is None else as_request(forget)

    def stop_rule(self) -> StopRule:
        """Return the stop rule: ``stop`` if the strategy has one; "auto" is the method's own rule."""
        stop: StopRule | Literal["auto"] = getattr(self, "stop", "auto")
        return self.method().default_stop() if stop == "auto" else stop

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 40,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Outcome:
        """Run until the stop rule ends the run or ``num_rounds`` are done; return the model and the records.

        Args:
            initial_arrays: the fresh model. Nothing may flow from a forgotten client into an unlearning, so these must never be
                trained weights: draw them with `feduhb.flower.fresh_arrays`; ``trained`` lets the server check that.
            num_rounds: at most, unless the method has a number of its own.
            timeout: replaces the strategy's own.
            train_config: more to tell the clients with each message, under keys that are not ours.
            evaluate_fn: of (round counted from 1, arrays), scores a round's model on the server.
        """
        check_whole("num_rounds", num_rounds)
        if ours := sorted({*(train_config or {})} & {*OURS}):
            raise ConfigError(
                f"train_config says {ours[0]}, which the strategy says itself; set it there (local, epochs, seed, forget), or rename it"
            )
        options = self if timeout is None else replace(self, timeout=timeout)
        if evaluate_config:
            log.warning("evaluate_config is not sent: clients are told what to score by the model alone")
        self.summary()
        if self.request() is not None and self.trained is None:
            log.warning(
                "that the initial arrays are a fresh draw is taken on your word; trained=FOLDER would check it"
            )
        return serve(
            grid, initial_arrays, options, self.method(), request=self.request(), rounds=num_rounds, stop=self.stop_rule(),
            unlearns=self.unlearns, evaluate=evaluate_fn, train_config=dict(train_config or {}),
        )  # fmt: skip

    def summary(self) -> None:
        """Log what is about to happen."""
        request = self.request()
        without = "" if request is None else f" without {request}"
        settings = ", ".join(f"{key} {value}" for key, value in settings_of(self.method()).items())
        log.info("%s%s: %s", type(self).__name__, without, settings)

    def refuse_other_loops(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ConfigError: only `start` may drive this strategy."""
        name = type(self).__name__
        raise ConfigError(
            f"{name} owns its loop and cannot be wrapped; call its start(grid, initial_arrays, num_rounds)"
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = refuse_other_loops


@dataclass
class Train(OwnLoop):
    """Plain training: FedAvg from a fresh model on everyone.  See `feduhb.methods.Retrain`.

    ``forget`` is what earlier requests took away, which no later training may bring back.
    """

    unlearns: ClassVar[bool] = False

    _: KW_ONLY
    forget: Forget | None = None
    step_size: float = 1.0
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    def method(self) -> Method[Any]:
        """Return FedAvg."""
        return methods.Retrain(self.step_size, self.epochs, self.aggregate)


@dataclass
class Retrain(OwnLoop):
    """The reference for exact unlearning: FedAvg from a fresh model without the forgotten data.  See `feduhb.methods.Retrain`."""

    forget: Forget
    _: KW_ONLY
    step_size: float = 1.0
    epochs: int = 5
    aggregate: Aggregate = weighted_mean
    stop: StopRule = never

    def method(self) -> Method[Any]:
        """Return FedAvg."""
        return methods.Retrain(self.step_size, self.epochs, self.aggregate)


@dataclass
class FedUHB(OwnLoop):
    """Fast exact unlearning: a fresh model, the remaining clients, and heavy ball on the server.  See `feduhb.methods.FedUHB`.

    ``stop="auto"`` is the paper's dynamic rule with this momentum.
    """

    forget: Forget
    _: KW_ONLY
    momentum: float = 0.9
    stop: StopRule | Literal["auto"] = "auto"
    step_size: float = 1.0
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    def method(self) -> Method[Any]:
        """Return heavy ball."""
        return methods.FedUHB(self.step_size, self.momentum, self.epochs, self.aggregate)


@dataclass
class FedEraser(OwnLoop):
    """Approximate unlearning by calibrating the history of ``trained``.  See `feduhb.methods.FedEraser`."""

    forget: Forget
    _: KW_ONLY
    interval: int = 2
    ratio: float = 0.5
    epochs: int = 5

    def method(self) -> Method[Any]:
        """Return calibrated replay."""
        return methods.FedEraser(self.interval, self.ratio, self.epochs)


@dataclass
class FedRecover(OwnLoop):
    """Approximate unlearning by estimating updates from the history of ``trained``.  See `feduhb.methods.FedRecover`."""

    forget: Forget
    _: KW_ONLY
    warmup: int = 6
    correction: int = 5
    final: int = 4
    buffer: int = 2
    abnormal: float = 1e-6
    epochs: int = 5

    def method(self) -> Method[Any]:
        """Return estimated replay."""
        return methods.FedRecover(
            self.warmup, self.correction, self.final, self.buffer, self.abnormal, self.epochs
        )
