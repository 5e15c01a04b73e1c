"""Flower strategies, used as Flower's own: `strategy.start(grid, num_rounds=40)`.

A strategy holds the settings of a method of `feduhb.methods`. `feduhb.flower.server` plans and executes its run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar, Literal, NoReturn

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.checks import check_whole
from feduhb.core.flat import ModelSource
from feduhb.core.types import ClientId, Local, Method
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import ConfigError
from feduhb.flower.messages import log
from feduhb.flower.server import Evaluate, Outcome, serve
from feduhb.flower.validation import Limits
from feduhb.flower.wire import OURS
from feduhb.methods import list_settings, make_method, settings_of
from feduhb.runs.files import resolve
from feduhb.runs.held_out import Keep, Recorded, list_recorded
from feduhb.stopping import Never, RecordedRule, StopRule, check_training_stop, never


@dataclass(kw_only=True)
class _Starting:
    """Lets a strategy take ``start="given"``, although `start` is also the name of the method that runs it."""

    start: InitVar[Literal["fresh", "given"]] = "fresh"
    given: bool = field(init=False, repr=False)

    def __post_init__(self, start: Any) -> None:
        if isinstance(start, MethodType):  # `dataclasses.replace` passes the method of the original
            start = "given" if getattr(start.__self__, "given", False) else "fresh"
        if start not in ("fresh", "given"):
            raise ConfigError(
                f"start is {start!r}; give 'fresh', or 'given' for a module whose weights are public"
            )
        self.given = start == "given"


@dataclass(kw_only=True)
class OwnLoop(_Starting, Strategy):
    """A strategy with its own loop: it stops early, resumes, samples by its own seed and asks only remaining clients.

    Args:
        checkpoint: the run folder. A ServerApp that is submitted again continues after the last finished round. Use an
            absolute path, because a ServerApp does not run in your directory.
        trained: the checkpoint folder of the training to unlearn from. What the training forgot stays forgotten, its
            history is erased, and clients that are not connected are found by the names registered there.
        allow_revival: serve the request although a later run has forgotten more than ``trained``, and this run would learn
            that again; the log warns. False raises RequestError.
        keep_history: keep every model and every update in the checkpoint folder, for methods that read a history.
        model: a module, whose weights are not used, or a function that makes one. The strategy draws the fresh model from it.
        start: "given" starts from the weights of the module instead; with this you declare that they are public and never saw
            clients' data. Runs that follow one another must have the same start. "fresh" is the default.
        seed: the seed of the fresh model, of batches and of sampling. None draws a new seed from the operating system's
            randomness, which ``checkpoint`` records and a resumed run keeps. Methods that read a history keep the training's.
        local: how clients train: batch size, learning rate, optimiser and so on; the loss and the augmentation are their own.
        epochs: local passes of a client in a round.
        clients_per_round: clients to sample in each round; None asks all connected remaining clients.
        min_clients: remaining clients that must be connected to begin; a simulation waits for all.
        min_replies: sound answers that a round needs; None needs half of the clients asked.
        timeout: seconds that a round waits for answers.
        max_norm: limit on the norm of an update, without statistics. None means 1.5 times the root of the number of answers, at least 10,
            times the usual norm: the longest median of a round so far. It needs three answers; fewer are only compared
            with 1,000 times the shorter one and the model.
        max_examples: limit on the examples of an answer; None means 1,000 times the median of the round, at least 100,000.
        max_share: the largest share of the weight of a client that is not in ``examples``; what it claims beyond that
            does not count. None means 1.5 over the root of the number of answers: 87 % of three, 47 % of ten.
        examples: the number of examples of clients, by id or registered name. A client counts for at most this number,
            or, if it is not listed, for the number in its first answer.
        partitions: the clients' names in simulation, by partition id; None names them c00, c01, ...
        tell_leavers: tell forgotten clients, when they are connected, to delete their cache.
        evaluate_every: let the clients score the model after every this many rounds; 0 never.
        keep: "best" keeps the model with the best accuracy on the clients' held-out data, "last" the last one.
        record: "held_out" and "distance" record these in every round, as for `feduhb.unlearn`. Held-out values need clients
            with ``client_app(held_out=...)``; they come with the answers to train messages.
    """

    name: ClassVar[str]  # of the method
    unlearns: ClassVar[bool] = True

    checkpoint: str | Path | None = None
    trained: str | Path | None = None
    allow_revival: bool = False
    keep_history: bool = False
    model: ModelSource | None = None
    seed: int | None = None
    local: Local = field(default_factory=Local)
    epochs: int = 5
    clients_per_round: int | None = None
    min_clients: int | None = None
    min_replies: int | None = None
    timeout: float = 600.0
    max_norm: float | None = None
    max_examples: float | None = None
    max_share: float | None = None
    examples: Mapping[str, float] = field(default_factory=dict)
    partitions: Sequence[ClientId] | None = None
    tell_leavers: bool = True
    evaluate_every: int = 0
    keep: Keep = "last"
    record: Sequence[Recorded] = ()

    def __post_init__(self, start: Any) -> None:
        super().__post_init__(start)
        self._check_leavers()
        self.request()
        list_recorded(self.stop_rule(), self.keep, self.record)
        if not self.unlearns:
            check_training_stop(self.stop_rule())
        if self.seed is not None:
            check_whole("seed", self.seed, least=None)
        if self.local.augment is not None:
            raise ConfigError(
                "clients augment batches by themselves, and a function is not sent; give it to client_app(augment=...)"
            )
        for name, least in (("clients_per_round", 1), ("min_clients", 1), ("evaluate_every", 0)):
            if (value := getattr(self, name)) is not None:
                check_whole(name, value, least)
        if self.clients_per_round and self.min_replies and self.min_replies > self.clients_per_round:
            raise ConfigError(
                f"min_replies is {self.min_replies}, but only {self.clients_per_round} clients are asked each round; lower it"
            )
        places = [resolve(Path(place)) for place in (self.trained, self.checkpoint) if place is not None]
        if len(places) > len({*places}):
            raise ConfigError(
                f"trained and checkpoint are both {self.trained}; choose another checkpoint folder"
            )

    def _check_leavers(self) -> None:
        """Raise ConfigError if the method asks leavers and the operator has not allowed it."""
        if self.method().asks_leaver and not getattr(self, "allow_asking_leavers", False):
            name = type(self).__name__
            raise ConfigError(
                f"{name} asks leavers to work on the data that they asked to forget; if they agreed to that, allow it: "
                f"{name}(..., allow_asking_leavers=True), else use FedUHB"
            )

    def limits(self) -> Limits:
        """Return the limits of an answer; raise ConfigError for one that is not a positive number."""
        return Limits(self.max_norm, self.max_examples, self.max_share, self.examples)

    def method(self) -> Method[Any]:
        """Return the method that this strategy runs, with the strategy's settings."""
        return make_method(self.name, **{key: getattr(self, key) for key in list_settings(self.name)})

    def request(self) -> Request | None:
        """Return the request, from the ``forget`` that every strategy has."""
        forget = getattr(self, "forget", None)
        return None if forget is None else as_request(forget)

    def stop_rule(self) -> StopRule:
        """Return the stop rule: the strategy's ``stop``, or the method's own rule for "auto" and without one."""
        stop: StopRule | Literal["auto"] = getattr(self, "stop", "auto")
        return self.method().default_stop() if stop == "auto" else stop

    def start(  # pyright: ignore[reportIncompatibleVariableOverride]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 40,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Outcome:
        """Run until the stop rule ends the run or ``num_rounds`` are done; return the model and the records.

        Args:
            initial_arrays: leave them out: the strategy draws the fresh model from ``model`` and ``seed``. Arrays are
                accepted only with ``seed``, and must equal that draw: other weights may hold what the forgotten clients
                taught. With a given start they must equal the module's weights.
            num_rounds: the maximum, unless the method has its own number.
            timeout: replaces the strategy's timeout.
            train_config: additional values to send to the clients with each train message.
            evaluate_fn: takes (round counted from 1, arrays) and scores the model of a round on the server.
        """
        check_whole("num_rounds", num_rounds)
        if not isinstance(initial_arrays, ArrayRecord | None):
            raise ConfigError(
                f"initial_arrays is {initial_arrays!r}; give the rounds by name: start(grid, num_rounds=40)"
            )
        if ours := sorted({*(train_config or {})} & {*OURS}):
            raise ConfigError(
                f"train_config sets {ours[0]}, which the strategy sends itself; set it in the strategy (local, epochs, seed, forget), or rename it"
            )
        if evaluate_config:
            log.warning("evaluate_config is ignored: clients receive only the model to score")
        self.summary()
        strategy = self if timeout is None else replace(self, timeout=timeout)
        return serve(grid, initial_arrays, strategy, num_rounds, evaluate_fn, dict(train_config or {}))

    def summary(self) -> None:
        """Log the strategy, the request and the settings."""
        request = self.request()
        without = "" if request is None else f" without {request}"
        settings = ", ".join(f"{key} {value}" for key, value in settings_of(self.method()).items())
        log.info("%s%s: %s", type(self).__name__, without, settings)

    def refuse_other_loops(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ConfigError: only `start` may drive this strategy."""
        name = type(self).__name__
        raise ConfigError(
            f"{name} runs its own loop and cannot be wrapped; call its start(grid, num_rounds=40)"
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = refuse_other_loops


@dataclass(kw_only=True)
class Train(OwnLoop):
    """Training by FedAvg, from a fresh model on all clients. See `feduhb.methods.Retrain`.

    ``forget`` is what earlier requests have forgotten, so that the training does not bring it back. ``stop`` must be a rule of
    feduhb, which config.toml can record.
    """

    name: ClassVar[str] = "retrain"
    unlearns: ClassVar[bool] = False

    forget: Forget | None = None
    step_size: float = 1.0
    aggregate: Aggregate = weighted_mean
    stop: RecordedRule | Never = never


@dataclass
class Unlearning(OwnLoop):
    """A strategy that serves a request. The request comes first, and everything else is given by name."""

    forget: Forget


@dataclass(kw_only=True)
class Aggregating(Unlearning):
    """A strategy whose method combines the updates of a round by ``aggregate``."""

    aggregate: Aggregate = weighted_mean
    stop: StopRule | Literal["auto"] = never  # "auto": the method's own rule


@dataclass(kw_only=True)
class Retrain(Aggregating):
    """The reference for exact unlearning: FedAvg from a fresh model without the forgotten data. See `feduhb.methods.Retrain`."""

    name: ClassVar[str] = "retrain"
    step_size: float = 1.0


@dataclass(kw_only=True)
class FedUHB(Aggregating):
    """Fast exact unlearning: a fresh model, the remaining clients, and heavy ball on the server. See `feduhb.methods.FedUHB`.

    ``stop="auto"`` is the paper's dynamic rule with this momentum.
    """

    name: ClassVar[str] = "feduhb"
    momentum: float = 0.9
    stop: StopRule | Literal["auto"] = "auto"
    step_size: float = 1.0


@dataclass(kw_only=True)
class Nesterov(Aggregating):
    """Exact unlearning from a fresh model, with Nesterov's momentum on the server. See `feduhb.methods.Nesterov`."""

    name: ClassVar[str] = "nesterov"
    step_size: float = 1.0
    momentum: float = 0.9


@dataclass(kw_only=True)
class FedAdam(Aggregating):
    """Exact unlearning from a fresh model, with Adam on the server. See `feduhb.methods.FedAdam`."""

    name: ClassVar[str] = "fedadam"
    lr: float = 0.01
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3


@dataclass
class FedYogi(FedAdam):
    """Exact unlearning from a fresh model, with Yogi on the server. See `feduhb.methods.FedYogi`."""

    name: ClassVar[str] = "fedyogi"


@dataclass
class FedNadam(FedAdam):
    """Exact unlearning from a fresh model, with Nadam on the server. See `feduhb.methods.FedNadam`."""

    name: ClassVar[str] = "fednadam"


@dataclass(kw_only=True)
class FedExP(Aggregating):
    """Exact unlearning from a fresh model, with extrapolated steps of the server. See `feduhb.methods.FedExP`."""

    name: ClassVar[str] = "fedexp"
    eps: float = 1e-3


@dataclass(kw_only=True)
class FedEraser(Unlearning):
    """Approximate unlearning by calibrating the history of ``trained``. See `feduhb.methods.FedEraser`."""

    name: ClassVar[str] = "federaser"
    interval: int = 2
    ratio: float = 0.5


@dataclass(kw_only=True)
class FedRecover(Unlearning):
    """Approximate unlearning by estimating updates from the history of ``trained``. See `feduhb.methods.FedRecover`."""

    name: ClassVar[str] = "fedrecover"
    warmup: int = 6
    correction: int = 5
    final: int = 4
    buffer: int = 2
    abnormal: float = 1e-6


@dataclass(kw_only=True)
class FineTune(Aggregating):
    """Approximate unlearning: the remaining clients continue to train the model of ``trained``. See `feduhb.methods.FineTune`."""

    name: ClassVar[str] = "finetune"
    step_size: float = 1.0


@dataclass
class NoT(FineTune):
    """Approximate unlearning: negate the first layer of the model of ``trained``, then fine-tune. See `feduhb.methods.NoT`."""

    name: ClassVar[str] = "not"


@dataclass(kw_only=True)
class RapidRetrain(Aggregating):
    """Exact unlearning from a fresh model, with preconditioned local steps. See `feduhb.methods.RapidRetrain`.

    Clients of earlier versions cannot do these steps and are left out with a reason.
    """

    name: ClassVar[str] = "rapidretrain"
    lr: float = 0.001
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-3


@dataclass(kw_only=True)
class PGA(Unlearning):
    """Approximate unlearning by gradient ascent at the leavers, from the model of ``trained``. See `feduhb.methods.PGA`.

    The leavers must be connected, and are told to leave after their last work. ``allow_asking_leavers`` says that they agreed.
    """

    name: ClassVar[str] = "pga"
    allow_asking_leavers: bool = False
    radius: float = 0.577
    lr: float = 0.01
    momentum: float = 0.9
    clip_norm: float = 5.0
    ascent: int = 5
    after: int = 5


@dataclass(kw_only=True)
class FedAF(Unlearning):
    """Approximate unlearning of rows by new labels, from the model of ``trained``. See `feduhb.methods.FedAF`.

    ``allow_asking_leavers`` says that the clients agreed to train on the rows that they asked to forget, before they drop them.
    """

    name: ClassVar[str] = "fedaf"
    allow_asking_leavers: bool = False
    teachers: int = 5
    penalty: float = 10.0
    overwriting: int = 1
    after: int = 5
