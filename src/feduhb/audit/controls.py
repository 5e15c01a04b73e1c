"""The runs that an audit makes beside the audited one: controls, and worlds without the forgotten data. Each is made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from feduhb.api import run_method, unlearn
from feduhb.audit.steps import ShowRound, Step
from feduhb.core.seeds import generator, seed_for
from feduhb.core.types import Method
from feduhb.data.canaries import Canaries, plant_canaries
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.engines import EngineMaker
from feduhb.methods import is_built_in, is_retrain, settings_of
from feduhb.methods.replay import bind_history, unbind_history
from feduhb.runs.config import KeepHistory, TrainSettings
from feduhb.runs.run import Run, method_for
from feduhb.stopping import StopRule, never

if TYPE_CHECKING:
    from feduhb.audit.shadows import ShadowSet

# The federations in which a training can be repeated:
#   original    with everybody: this control must be caught
#   history     the same once more, to have its whole history where the original's is gone
#   noise       with noise in place of the forgotten data
#   rehearsal   with canaries among the data to be forgotten
#   never       without the forgotten data, built anew from that of the others
#   bare-other  with nothing but noise, from another seed: nothing can be learnt there
#   bare-same   the same from the audited run's seed
World = Literal["original", "history", "noise", "rehearsal", "never", "bare-other", "bare-same"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """The runs beside the audited ones: all of one federation, one request and one way to train.

    Where bits depend on how many clients train at once, each run trains as many as the run it is compared with.
    Every run has a folder under ``folder``, so that an audit that was killed continues where it stopped.
    """

    federation: Federation  # before anybody was forgotten
    request: Request
    settings: TrainSettings
    engine: str | EngineMaker
    block: int | None = None  # of the first of the audited runs
    history: KeepHistory  # whether trainings keep one, for methods that need it
    canaries: float = 0.0  # share of the forgotten examples that a rehearsal mislabels
    folder: Path
    made: dict[str, Run] = field(
        default_factory=dict
    )  # by name; controls that the user gave are here from the start
    shadows: dict[str, ShadowSet] = field(default_factory=dict)  # by name
    relearned: dict[str, int | None] = field(default_factory=dict)  # rounds, by the weights' digest
    steps: dict[str, Step] = field(default_factory=dict)  # by name

    def original(self, show: ShowRound | None = None) -> Run:
        """Return the model that had everybody: it must be caught."""
        return self.train("original", show)

    def retrain(self, show: ShowRound | None = None) -> Run:
        """Return FedAvg's model without the forgotten data: it must not be caught."""
        return self._make_once("retrain", lambda: self._retrain(show))

    def train(self, world: World, show: ShowRound | None = None) -> Run:
        """Return the original's training, repeated in one of the worlds."""
        return self._make_once(world, lambda: self._train(world, show))

    def train_step(self, world: World) -> Step:
        """Return the step that trains in a world; it is the same object each time, and not needed once that is done."""
        original = self._special_original()
        method, rounds = (
            ("training", self.settings.rounds)
            if original is None
            else (original.method.name, original.scheduled)
        )
        return self._step(world, f"{world}: {method}", lambda show: self.train(world, show), rounds)

    def retrain_step(self) -> Step:
        """Return the step that makes the Retrain control."""
        return self._step("retrain", "retrain", self.retrain, self.settings.rounds)

    def lacks_history(self, run: Run) -> bool:
        """Return whether a run's method needs a history that is no longer whole in the original."""
        original = self.made.get("original")
        if original is None or not run.method.needs_history:
            return False
        kept = original.history
        return kept is None or len(kept.rounds) != len(original.rounds)

    def unlearn_again(self, run: Run, show: ShowRound | None = None) -> Run:
        """Serve the request once more from the real data by a run's method."""
        return self.unlearn_in("history" if self.lacks_history(run) else "original", run, show, name="again")

    def unlearn_in(
        self, world: World, run: Run, show: ShowRound | None = None, *, name: str | None = None
    ) -> Run:
        """Serve the request in a world by the method of a run."""
        return unlearn(
            self.train(world), self.request, method=unbind_history(run.method), rounds=run.scheduled, stop=run.stop, engine=self.engine,
            block=run.block, out=self.folder / f"{name or world}-{name_run(run)}", keep_history=False, erase_history=False, resume=True,
            show=show,
        )  # fmt: skip

    def run_in(self, world: World, run: Run, show: ShowRound | None = None) -> Run:
        """Run the method of a run on everybody of a world, with a history of that world where it needs one."""
        federation, method = self.make_world(world), unbind_history(run.method)
        if method.needs_history:
            kept = self.train(world).history
            assert kept is not None  # noqa: S101 (it was trained to keep one)
            method = bind_history(method, kept, list(federation.clients))
        return self._run_like(run, federation, method, f"{world}-{name_run(run)}", show)

    def settings_in(self, federation: Federation, *, keep_history: KeepHistory = False) -> TrainSettings:
        """Return how clients of another federation train: everyone is asked if a round samples more than there are."""
        count = self.settings.clients_per_round
        sampled = None if count is None or count > len(federation.clients) else count
        return replace(self.settings, keep_history=keep_history, clients_per_round=sampled)

    def _run_like(
        self,
        like: Run,
        federation: Federation,
        method: Method[Any],
        name: str,
        show: ShowRound | None,
        *,
        keep_history: KeepHistory = False,
    ) -> Run:
        """Run a method on all of a federation, for as long and with the stop rule of another run."""
        return run_method(
            federation, method, self.settings_in(federation, keep_history=keep_history), rounds=like.scheduled, stop=like.stop,
            engine=self.engine, block=like.block, out=self.folder / name, resume=True, show=show, label=name,
        )  # fmt: skip

    def make_world(self, world: World) -> Federation:
        """Return the federation of a world; raise ConfigError where canaries cannot be planted in it."""
        if world == "noise":
            return replace_with_noise(self.federation, self.request)
        if world == "rehearsal":
            leavers = Canaries(tuple(self.federation.forgotten(self.request)), self.canaries)
            return plant_canaries(self.federation, leavers, among=self.request).replace(about=None)
        if world in {"original", "history"}:
            return self.federation
        rest = self.federation.without(self.request)
        if world == "never":
            return rebuild(rest)
        noise = replace_with_noise(rest, Request(tuple(rest.clients)))
        return noise if world == "bare-same" else noise.replace(seed=seed_for(rest.seed, "bare"))

    def name_retrain(self) -> str:
        """Name the method of Retrain's control, whether or not it has been made."""
        made = self.made.get("retrain")
        return self._name_plain_retrain() if made is None else name_run(made)

    def _name_plain_retrain(self) -> str:
        return _name_method(self._retrain_method(), self.settings.rounds, never)

    def _retrain_method(self) -> Method[Any]:
        return method_for("retrain", self.settings)

    def _retrain(self, show: ShowRound | None) -> Run:
        return unlearn(
            self.original(), self.request, method=self._retrain_method(), rounds=self.settings.rounds, stop=never, engine=self.engine,
            block=self.block, keep_history=False, erase_history=False, out=self.folder / "retrain", resume=True, show=show,
        )  # fmt: skip

    def _train(self, world: World, show: ShowRound | None) -> Run:
        federation = self.make_world(world)
        if (special := self._special_original()) is not None:
            return self._run_like(special, federation, special.method, world, show, keep_history=self.history)
        original = self.made.get("original")
        return run_method(
            federation, self._retrain_method(), self.settings_in(federation, keep_history=self.history),
            rounds=self.settings.rounds, engine=self.engine, block=original.block if original else None,
            out=self.folder / world, resume=True, show=show, label=world,
        )  # fmt: skip

    def _special_original(self) -> Run | None:
        """Return the original control where its method is not the settings' plain training and can be run again.

        A method that needed a history cannot: that history is gone, or holds the forgotten data.
        """
        original = self.made.get("original")
        if original is None or original.method.needs_history:
            return None
        is_plain = is_retrain(original.method) and name_run(original) == self._name_plain_retrain()
        return None if is_plain else original

    def _make_once(self, name: str, make: Callable[[], Run]) -> Run:
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def _step(self, key: str, name: str, work: Callable[[ShowRound], object], rounds: int) -> Step:
        if key not in self.steps:
            self.steps[key] = Step(name, work, rounds, lambda: key not in self.made)
        return self.steps[key]


def name_run(run: Run) -> str:
    """Name a run's method with everything that sets it apart from others of its kind, for folders."""
    return _name_method(run.method, run.scheduled, run.stop)


def _name_method(method: Method[Any], scheduled: int, stop: StopRule) -> str:
    about: tuple[Any, ...] = (dict(settings_of(method)), scheduled, getattr(stop, "__name__", repr(stop)))
    if not is_built_in(method):  # which may have the name of one that is
        about += (type(method).__module__, type(method).__qualname__)
    return f"{method.name}-{sha256(repr(about).encode()).hexdigest()[:8]}"


def rebuild(federation: Federation) -> Federation:
    """Return a federation made from nothing but copies of its clients' examples."""

    def copy(some: dict[str, Examples]) -> dict[str, tuple[Tensor, Tensor]]:
        return {
            client: (examples.all()[0].clone(), examples.targets.clone()) for client, examples in some.items()
        }

    return federation.replace(
        clients=copy(federation.clients),
        held_out=copy(federation.held_out),
        test=federation.test.all(),
        about=None,
    )


def replace_with_noise(federation: Federation, request: Request) -> Federation:
    """Return a federation with noise in place of a request's data; a client that leaves whole also changes its number of examples."""
    low, high = (float(edge) for edge in federation.test.x.aminmax())

    def noise(x: Tensor, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        values = torch.rand((count, *x.shape[1:]), generator=draw, dtype=torch.float64) * (high - low) + low
        asked = torch.randint(0, len(federation.test), (count,), generator=draw)
        return values.to(x.dtype), federation.test.targets[asked]

    def change(client: str, examples: Examples) -> Examples | tuple[Tensor, Tensor]:
        mask = request.mask(client, examples.keys, examples.targets)
        if not mask.any():
            return examples
        draw = generator(federation.seed, "noise", client)
        x, y = (part.clone() for part in examples.all())
        if client in request.clients:
            return noise(x, len(x) // 2 or 2, draw)
        classes = request.class_mask(y)
        x[mask], fresh = noise(x, int(mask.sum()), draw)
        y[mask] = torch.where(classes[mask], y[mask], fresh) if request.classes else fresh
        return Examples(x, y, torch.arange(len(x)), examples.keys)

    clients = {client: change(client, examples) for client, examples in federation.clients.items()}
    return federation.replace(clients=clients, about=None)
