"""Flower strategies that own their loop: drop-ins for `strategy.start(grid, initial_arrays, num_rounds)`.

Each is a thin shell: it makes the method of `feduhb.methods` and lets the one loop drive it over the grid.
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
from feduhb.core.checks import whole
from feduhb.core.types import Method
from feduhb.data.request import Forget, as_request
from feduhb.errors import ConfigError
from feduhb.flower.serving import Evaluate, Options, Order, Outcome, log, serve
from feduhb.flower.wire import OURS
from feduhb.run.folder import settings_of
from feduhb.stopping import StopRule, dynamic_stop, never


@dataclass(kw_only=True)
class Owned(Options, Strategy):
    """A strategy that owns its loop: it stops early, resumes, samples by its own seed and asks only those who remain.

    Args:
        checkpoint: a run folder; a ServerApp that is submitted again goes on after the last finished round in it. Give an
            absolute path: a ServerApp does not run in your directory.
        trained: the checkpoint folder of the training that shall forget. This run must begin at the same fresh weights;
            registered names of clients that are not connected are looked up there; what it forgot stays forgotten; its history
            is erased.
        keep_history: write every model and every update into the checkpoint folder, for FedEraser and FedRecover.
        seed: of batches and of sampling, by client id.
        local: batch size, learning rate and l2 of the clients; the loss is their own.
        clients_per_round: how many are sampled each round; None asks everyone who is connected and remains.
        min_clients: how many who remain must be connected for the run to begin; in simulation everyone is waited for.
        min_replies: sound answers that a round needs; None needs half of those asked.
        timeout: seconds that a round waits for answers.
        max_norm: of an update; None takes 1,000 times the median of its round, or the model's own norm where that is more.
        max_examples: that an answer may stand for; None takes 1,000 times the median of its round, and 100,000 at least.
        partitions: the clients' names in simulation, by partition id; None calls them c00, c01, ...
        tell_leavers: tell clients that are forgotten whole to delete their cache.
        evaluate_every: let the clients score the model every so many rounds; 0 never.
    """

    unlearns: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.method()
        if self.forgotten() is not None:
            as_request(self.forgotten())  # pyright: ignore[reportArgumentType]
        for name, least in (("clients_per_round", 1), ("min_clients", 1), ("evaluate_every", 0)):
            if (value := getattr(self, name)) is not None:
                whole(name, value, least)
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
        """Make the server's rule."""

    def forgotten(self) -> Forget | None:
        """Give what is to be left out: the ``forget`` that every strategy has."""
        return getattr(self, "forget", None)

    def rule(self) -> StopRule:
        """Give the stop rule."""
        return never

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
        """Run until the stop rule speaks or ``num_rounds`` are done; give the model and the records.

        Args:
            initial_arrays: the fresh model. Nothing may flow from a forgotten client into an unlearning, so these must never be
                trained weights: draw them with `feduhb.flower.fresh_arrays`; ``trained`` holds you to that.
            num_rounds: at most, unless the method has a number of its own.
            timeout: takes the place of the strategy's own.
            train_config: more to tell the clients with each message, under keys that are not ours.
            evaluate_fn: of (round counted from 1, arrays), scores a round's model on the server.
        """
        whole("num_rounds", num_rounds)
        if ours := sorted({*(train_config or {})} & {*OURS}):
            raise ConfigError(
                f"train_config says {ours[0]}, which the strategy says itself; set it there (local, epochs, seed, forget), or rename it"
            )
        options = self if timeout is None else replace(self, timeout=timeout)
        if evaluate_config:
            log.warning("evaluate_config is not sent: clients are told what to score by the model alone")
        self.summary()
        if self.forgotten() is not None and self.trained is None:
            log.warning(
                "that the initial arrays are a fresh draw is taken on your word; trained=FOLDER would check it"
            )
        order = Order(
            method=self.method(), stop=self.rule(), forget=self.forgotten(), options=options, rounds=num_rounds,
            evaluate=evaluate_fn, config=dict(train_config or {}), unlearns=self.unlearns,
        )  # fmt: skip
        return serve(order, grid, initial_arrays)

    def summary(self) -> None:
        """Log what is about to happen."""
        request = self.forgotten()
        without = "" if request is None else f" without {as_request(request)}"
        settings = ", ".join(f"{key} {value}" for key, value in settings_of(self.method()).items())
        log.info("%s%s: %s", type(self).__name__, without, settings)

    def owns_its_loop(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to be driven by another loop than `start`."""
        name = type(self).__name__
        raise ConfigError(
            f"{name} owns its loop and cannot be wrapped; call its start(grid, initial_arrays, num_rounds)"
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = owns_its_loop


@dataclass
class Train(Owned):
    """Plain training: FedAvg from a fresh model on everyone.  See `feduhb.methods.Retrain`.

    ``forget`` is what earlier requests took away, and no later training may bring back.
    """

    unlearns: ClassVar[bool] = False

    _: KW_ONLY
    forget: Forget | None = None
    step_size: float = 1.0
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    def method(self) -> Method[Any]:
        """FedAvg."""
        return methods.Retrain(self.step_size, self.epochs, self.aggregate)


@dataclass
class Retrain(Owned):
    """The yardstick of exact unlearning: FedAvg from a fresh model without the forgotten.  See `feduhb.methods.Retrain`."""

    forget: Forget
    _: KW_ONLY
    step_size: float = 1.0
    epochs: int = 5
    aggregate: Aggregate = weighted_mean
    stop: StopRule = never

    def method(self) -> Method[Any]:
        """FedAvg."""
        return methods.Retrain(self.step_size, self.epochs, self.aggregate)

    def rule(self) -> StopRule:
        """Give the stop rule."""
        return self.stop


@dataclass
class FedUHB(Owned):
    """Fast exact unlearning: a fresh model, those who remain, and heavy ball on the server.  See `feduhb.methods.FedUHB`.

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
        """Heavy ball."""
        return methods.FedUHB(self.step_size, self.momentum, self.epochs, self.aggregate)

    def rule(self) -> StopRule:
        """Give the stop rule."""
        return dynamic_stop(0.6, momentum=self.momentum) if self.stop == "auto" else self.stop


@dataclass
class FedEraser(Owned):
    """Approximate unlearning by calibrating the history of ``trained``.  See `feduhb.methods.FedEraser`."""

    forget: Forget
    _: KW_ONLY
    interval: int = 2
    ratio: float = 0.5
    epochs: int = 5

    def method(self) -> Method[Any]:
        """Calibrated replay."""
        return methods.FedEraser(self.interval, self.ratio, self.epochs)


@dataclass
class FedRecover(Owned):
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
        """Estimated replay."""
        return methods.FedRecover(
            self.warmup, self.correction, self.final, self.buffer, self.abnormal, self.epochs
        )
