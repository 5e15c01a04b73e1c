"""The runs that an audit sets beside the audited one: controls, and worlds without the forgotten data. Each is made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feduhb.core.seeds import generator, seed_for
from feduhb.core.types import Method
from feduhb.data.canaries import Canaries, plant
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.errors import RunFolderError
from feduhb.experiment.api import train, unlearn
from feduhb.experiment.plans import carried_out
from feduhb.experiment.runs import EngineMaker, Run
from feduhb.experiment.settings import KeepHistory, TrainSettings
from feduhb.methods.replaying import MISSING, bound, replays
from feduhb.methods.retrain import Retrain
from feduhb.run.folder import settings_of
from feduhb.run.progress import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A place to make runs beside audited ones: all of one federation, one request and one way to train.

    Where bits depend on how many clients train at once, each run trains as many as the one it is set beside.
    Every run has a folder under ``folder``, so that an audit that was killed goes on where it stood.
    """

    federation: Federation  # before anybody was forgotten
    request: Request
    settings: TrainSettings
    engine: str | EngineMaker
    block: int | None = None  # of the first of the audited runs
    history: KeepHistory  # to be kept by trainings, for methods that replay it
    folder: Path
    step: Step
    made: dict[str, Run] = field(
        default_factory=dict
    )  # by name; a user's own controls stand here from the start
    shadows: dict[str, Any] = field(default_factory=dict)  # by name, see `feduhb.experiment.shadows`
    relearned: dict[str, int | None] = field(default_factory=dict)  # rounds, by the weights' digest

    @property
    def leavers(self) -> tuple[str, ...]:
        """Everyone who loses examples."""
        return tuple(self.federation.forgotten(self.request))

    def original(self) -> Run:
        """Give the model that had everybody: it must be caught."""
        return self._once("original", lambda: self._trained("original", self.federation))

    def replayable(self, run: Run) -> Run:
        """Give the original with all of its history where a run's method replays one, trained again if that is gone."""
        original = self.original()
        kept = original.history
        if not replays(run.method) or (kept is not None and len(kept.rounds) == len(original.rounds)):
            return original
        return self._once("history", lambda: self._trained("history", self.federation))

    def retrain(self) -> Run:
        """Give FedAvg's model without the forgotten data: it must not be caught."""
        return self._once("retrain", lambda: self._retrained(self.original()))

    def noisy(self) -> Run:
        """Train with noise in place of the forgotten data."""
        return self._once("noise", lambda: self._trained("noise", noised(self.federation, self.request)))

    def rehearsed(self, share: float) -> Run:
        """Train with canaries among what is to be forgotten."""
        planted = plant(self.federation, Canaries(self.leavers, share), among=self.request)
        return self._once("rehearsal", lambda: self._trained("rehearsal", planted.replace(about=None)))

    def unlearned(self, world: Run, name: str, run: Run) -> Run:
        """Serve the request in another world by the very method of a run."""
        show = self.step(f"{name}-{run.method.name}: unlearning", run.scheduled)
        return unlearn(
            world, self.request, method=unbound(run.method), rounds=run.scheduled, stop=run.stop, engine=self.engine, block=run.block,
            out=self.folder / f"{name}-{called(run)}", keep_history=False, erase_history=False, resume=True, show=show,
        )  # fmt: skip

    def never(self, run: Run) -> Run:
        """Run a run's method in a federation that never held the forgotten data, built anew from the others'."""
        return self._in(rebuilt(self.federation.without(self.request)), "never", run)

    def bare(self, run: Run, *, same_seed: bool) -> Run:
        """Run a run's method where every example of everybody is noise: it can learn nothing there, from this seed or another."""
        rest = self.federation.without(self.request)
        noise = noised(rest, Request(tuple(rest.clients)))
        if same_seed:
            return self._in(noise, "bare-same", run)
        return self._in(noise.replace(seed=seed_for(rest.seed, "bare")), "bare-other", run)

    def _in(self, federation: Federation, world: str, run: Run) -> Run:
        """Run a run's method in another federation, with a history of that one where it replays one."""
        method = unbound(run.method)
        if replays(method):
            kept = self._once(world, lambda: self._trained(world, federation)).history
            assert kept is not None  # noqa: S101 (it was trained to keep one)
            method = bound(method, kept, list(federation.clients))
        return self.carried_out(federation, method, f"{world}-{called(run)}", run)

    def carried_out(self, federation: Federation, method: Method[Any], name: str, like: Run) -> Run:
        """Run a method from a fresh model on all of a federation, for as long and with the stop rule of another run."""
        plan = self.planned(federation, method, name, like)
        show = self.step(name.rpartition("-")[0], like.scheduled)
        return carried_out(plan, name, resume=True, show=show)

    def planned(self, federation: Federation, method: Method[Any], name: str, like: Run) -> Run:
        """Plan such a run."""
        sampled = self._sampled(federation)
        return Run(
            federation=federation, original=federation, method=method, state=None, rounds=(),
            settings=replace(self.settings, keep_history=False, clients_per_round=sampled), engine=self.engine,
            block=like.block, folder=self.folder / name, scheduled=like.scheduled, stop=like.stop,
        )  # fmt: skip

    def _sampled(self, federation: Federation) -> int | None:
        """How many a round asks; everyone where there are fewer than that."""
        count = self.settings.clients_per_round
        return None if count is None or count > len(federation.clients) else count

    def _trained(self, name: str, federation: Federation) -> Run:
        how, original = self.settings, self.made.get("original")
        if original is not None and not _plain(original, how):
            plan = self.planned(federation, original.method, name, original)
            kept = replace(plan, settings=replace(plan.settings, keep_history=self.history))
            show = self.step(f"{name}: {original.method.name}", original.scheduled)
            return carried_out(kept, name, resume=True, show=show)
        return train(
            federation, how.rounds, epochs=how.epochs, batch_size=how.batch_size, lr=how.lr, l2=how.l2,
            aggregate=how.aggregate, clients_per_round=self._sampled(federation), engine=self.engine,
            block=original.block if original else None, keep_history=self.history, out=self.folder / name, resume=True,
            show=self.step(f"{name}: training", how.rounds),
        )  # fmt: skip

    def _retrained(self, original: Run) -> Run:
        rounds = self.settings.rounds
        return unlearn(
            original, self.request, method="retrain", rounds=rounds, engine=self.engine, block=self.block, keep_history=False,
            erase_history=False, out=self.folder / "retrain", resume=True, show=self.step("retrain", rounds),
        )  # fmt: skip

    def _once(self, name: str, make: Callable[[], Run]) -> Run:
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]


def _plain(control: Run, how: TrainSettings) -> bool:
    """Whether a control is a training like any other, or replayed a history that cannot be had again."""
    trained = isinstance(control.method, Retrain) and control.scheduled == how.rounds
    return trained or replays(control.method)


def called(run: Run) -> str:
    """Name a run's method with all that sets it apart from others of its kind, for folders."""
    about = (dict(settings_of(run.method)), run.scheduled, getattr(run.stop, "__name__", repr(run.stop)))
    return f"{run.method.name}-{sha256(repr(about).encode()).hexdigest()[:8]}"


def unbound(method: Method[Any]) -> Method[Any]:
    """Take the history away from a method that was given one."""
    return replace(method, history=MISSING, clients=()) if replays(method) else method  # pyright: ignore[reportArgumentType]


def rebuilt(federation: Federation) -> Federation:
    """Give a federation made from nothing but copies of its clients' examples."""

    def copied(some: dict[str, Examples]) -> dict[str, tuple[Tensor, Tensor]]:
        return {
            client: (examples.all()[0].clone(), examples.targets.clone()) for client, examples in some.items()
        }

    return federation.replace(
        clients=copied(federation.clients),
        held_out=copied(federation.held_out),
        test=federation.test.all(),
        about=None,
    )


def noised(federation: Federation, request: Request) -> Federation:
    """Put noise in place of what a request takes away; a client that leaves whole gets another number of examples too."""
    low, high = (float(edge) for edge in federation.test.x.aminmax())

    def noise(x: Tensor, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        values = torch.rand((count, *x.shape[1:]), generator=draw, dtype=torch.float64) * (high - low) + low
        asked = torch.randint(0, len(federation.test), (count,), generator=draw)
        return values.to(x.dtype), federation.test.targets[asked]

    def changed(client: str, examples: Examples) -> Examples | tuple[Tensor, Tensor]:
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

    clients = {client: changed(client, examples) for client, examples in federation.clients.items()}
    return federation.replace(clients=clients, about=None)


def check_control(name: str, given: Run, run: Run) -> None:
    """Refuse a control that belongs to other data, another request or another method."""
    if given.original.fingerprints() != run.original.fingerprints():
        raise RunFolderError(
            f"the {name} control was made with other data than the audited run; give the one it came from"
        )
    check_way(given, run)
    if name == "retrain" and (not isinstance(given.method, Retrain) or str(given.forgot) != str(run.forgot)):
        raise RunFolderError(
            f"the retrain control is {given.method.name}, which has forgotten {given.forgot or 'nobody'}; "
            f"give a run of retrain without {run.forgot}"
        )


def check_way(given: Run, run: Run) -> None:
    """Refuse to set runs side by side whose clients did not train alike."""
    if given.federation.seed != run.federation.seed or _way(given) != _way(run):
        raise RunFolderError(
            f"{given.folder or given} was trained with other settings or another seed than {run.folder or run}; "
            "audit together what belongs together"
        )


def _way(run: Run) -> TrainSettings:
    """How clients train, apart from what changes no weight of theirs."""
    return replace(run.settings, keep_history=False, engine="auto")
