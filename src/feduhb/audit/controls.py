"""The runs that an audit makes besides the audited run, each once, and the steps of which an audit consists.

The runs are the controls, and the same training repeated in worlds without the forgotten data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from feduhb.audit.apart import run_apart, write_job
from feduhb.audit.recipes import CannotRebuild
from feduhb.core.flat import ModelSource, draw_model
from feduhb.core.inputs import Inputs, list_tensors, pack_tensors
from feduhb.core.modules import has_batch_norm, list_trained
from feduhb.core.seeds import generator, seed_for
from feduhb.core.types import RECORDED, BlockSize, ClientId, Engine, Method
from feduhb.data.canaries import Canaries, plant_canaries
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.engines import EngineMaker, name_engine
from feduhb.errors import DataError
from feduhb.methods import is_built_in, is_retrain, settings_of, values_of
from feduhb.methods.binding import get_bound, unbind, uses_old_run
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import digest_weights, load_params
from feduhb.runs.config import KeepHistory, TrainSettings, upgrade
from feduhb.runs.folder import Round, RunFolder
from feduhb.runs.held_out import Keep
from feduhb.runs.lineage import Ancestor
from feduhb.runs.prepare import bind_method, prepare_method, run_method
from feduhb.runs.rollback import Restart, find_restart
from feduhb.runs.run import Run, adapt_method
from feduhb.stopping import StopRule, never

if TYPE_CHECKING:
    from feduhb.audit.attacks.membership import Answers, KnownScores
    from feduhb.audit.attacks.misr import Attackers
    from feduhb.audit.measures import Measured
    from feduhb.audit.shadows import ShadowSet

ShowRound = Callable[[Round], None]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step: its name, its work, its number of rounds, and whether it is needed.

    Whether a step is needed may depend on earlier steps. Until those are done, ``is_needed`` returns a guess. A step that
    several audits share is one object.
    """

    name: str
    work: Callable[[ShowRound], object]
    rounds: int = 1
    is_needed: Callable[[], bool] = lambda: True


def list_once(lists: Iterable[list[Step]]) -> list[list[Step]]:
    """Return the lists of steps, with each step only in the first list that holds it."""
    listed: set[Step] = set()
    found: list[list[Step]] = []
    for steps in lists:
        found.append([step for step in steps if step not in listed])
        listed.update(steps)
    return found


def carry_out(
    steps: list[Step],
    begin: Callable[[str, int], ShowRound] = lambda *_: lambda _: None,
    end: Callable[[], object] = lambda: None,
) -> None:
    """Carry out the steps that are needed when their turn comes, and remove each from the list.

    Args:
        begin: called with a step's name and rounds; returns the function that shows its rounds.
        end: called after every step, and after one that another step has made needless.
    """
    while steps:
        step = steps.pop(0)
        if step.is_needed():
            step.work(begin(step.name, step.rounds))
        end()


# The federations in which a training can be repeated. A training has the seed of the original. What is compared with an
# audited run has the seed of that run. The data of a world is the same for both.
#   original    with all clients: this control must be caught
#   history     the same again, for its history, if the original's history is incomplete
#   noise       with noise in place of the forgotten data
#   rehearsal   with canaries among the data to be forgotten
#   never       built from the data of the others, without the forgotten data
#   draw        never, from another draw of the fresh model; everything else has the audited run's seed
#   nudge       never, with one value of one example of each client changed slightly; nudge-2 and -3: with other values
#   bare-other  with only noise, from another seed than the audited run: there is nothing to learn
#   bare-same   with only noise, from the audited run's seed
World = Literal[
    "original", "history", "noise", "rehearsal", "never", "draw", "nudge", "nudge-2", "nudge-3", "bare-other", "bare-same"
]  # fmt: skip
NOISE = 0.1  # added to a given start for another one, as a share of the mean size of each parameter's values
MODELS = "models"  # a folder in that of a run, for its model after every round


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """The runs besides the audited ones, for one federation, one request and one way to train.

    Each run trains as many clients at once as the run that it is compared with, because bits can depend on that number.
    Every run has a folder under ``folder``, so that an audit that was killed can continue.
    """

    federation: Federation  # before anything was forgotten, with the seed of the first audited run
    request: Request
    settings: TrainSettings
    engine: str | EngineMaker
    block: BlockSize | None = None  # of the first audited run
    original_seed: int | None = None  # also of its training in every world; None: that of the federation
    history: KeepHistory  # which history the trainings keep, for methods that need one
    canaries: float = 0.0  # share of the forgotten examples that a rehearsal mislabels
    misr: bool = True  # whether MISR is measured
    folder: Path
    # Folders of the old runs, out of reach of the runs here where the system allows it.
    hidden: tuple[Path, ...] = ()
    # Why a method ran in this process, by `name_run`.
    not_rebuilt: dict[str, str] = field(default_factory=dict)
    # Why the old runs were in a method's reach, by `name_run`.
    in_reach: dict[str, str] = field(default_factory=dict)
    made: dict[str, Run] = field(default_factory=dict)  # by name; at first the controls that the user gave
    shadows: dict[str, ShadowSet] = field(default_factory=dict)  # by name
    relearned: dict[str, int | None] = field(default_factory=dict)  # rounds, by the weights' digest
    continued: dict[str, Run] = field(default_factory=dict)  # after one more round, by the weights' digest
    measured: dict[str, Measured] = field(default_factory=dict)  # by the weights' digest
    # Why a fresh model may not be fresh, and notes on it, by the model's source and the run's seed.
    starts: dict[tuple[int, int], tuple[str | None, list[str]]] = field(default_factory=dict)
    answers: Answers = field(default_factory=dict)
    attackers: dict[str, Attackers] = field(default_factory=dict)  # by the digest of their original
    known: KnownScores = field(default_factory=dict)  # scores of attacks
    engines: list[Engine] = field(default_factory=list)  # of the original, if one was made
    steps: dict[str, Step] = field(default_factory=dict)  # by name

    @property
    def way(self) -> BlockSize | None:
        """The block of shadows, and of the original's training if nobody gave the original.

        They take recorded steps if the first audited run has them, so that no trial decides; None takes what fits.
        """
        return RECORDED if self.block == RECORDED else None

    def retrain(self, show: ShowRound | None = None) -> Run:
        """Return the run of FedAvg without the forgotten data: this control must not be caught.

        If the audit makes it, it has the seed of the first audited run.
        """
        if "retrain" not in self.made:
            self.made["retrain"] = self._serve(
                self.train("original").reseed(self.federation.seed), self._retrain_method(), self.folder / "retrain", show,
                rounds=self.settings.rounds, stop=never, block=self.block,
            )  # fmt: skip
        return self.made["retrain"]

    def train(self, world: World, show: ShowRound | None = None) -> Run:
        """Return the original's training, repeated in a world."""
        if world not in self.made:
            self.made[world] = self._train(world, show)
        return self.made[world]

    def train_step(self, world: World) -> Step:
        """Return the step that trains in a world, always the same object. Once done, it is not needed again."""
        method, rounds = "training", self.settings.rounds
        if (original := self._special_original()) is not None:
            method, rounds = original.method.name, original.scheduled
        return self._step(world, f"{world}: {method}", lambda show: self.train(world, show), rounds)

    def retrain_step(self) -> Step:
        """Return the step that makes the Retrain control."""
        return self._step("retrain", "retrain", self.retrain, self.settings.rounds)

    def make_engine(self, run: Run) -> Engine:
        """Return an engine for the clients of a run. That of the original, which relearns every model, is made once."""
        if run is not self.made.get("original"):
            return run.make_engine()
        if not self.engines:
            self.engines.append(run.make_engine())
        return self.engines[0]

    def lacks_history(self, run: Run) -> bool:
        """Return whether a run's method needs a history that the original no longer holds completely."""
        original = self.made.get("original")
        if original is None or not run.method.needs_history:
            return False
        kept = original.history
        return kept is None or len(kept.rounds) != len(original.rounds)

    def unlearn_in(
        self, world: World, run: Run, show: ShowRound | None = None, *, name: str | None = None
    ) -> Run:
        """Serve the request in a world by the method of a run, with the seed of that run."""
        return self._serve(
            self.train(world).reseed(run.seed), unbind(run.method), self.place(name or world, run), show,
            rounds=run.scheduled, stop=run.stop, keep=run.keep, block=run.block, audited=run,
        )  # fmt: skip

    def run_in(
        self,
        world: World,
        run: Run,
        show: ShowRound | None = None,
        *,
        keep_models: bool = False,
        name: str | None = None,
    ) -> Run:
        """Run the method of a run on all clients of a world, with the seed of that run and, if it needs one, that world's training.

        Args:
            keep_models: keep the model after every round, in the folder `MODELS` of the new run.
            name: of the new run's folder; None: that of the world.
        """
        federation, method = self.make_world(world, run.seed), unbind(run.method)
        if uses_old_run(method):
            method = bind_method(method, self.train(world), federation)
        return self._run(
            federation, method, self.place(name or world, run), show,
            settings=self.settings_in(federation), rounds=run.scheduled,
            stop=run.stop, keep=run.keep, block=run.block, audited=run, models=keep_models,
        )  # fmt: skip

    def settings_in(
        self, federation: Federation, *, keep_history: KeepHistory = False, keep_models: bool = False
    ) -> TrainSettings:
        """Return the settings for another federation: without sampling if it has fewer clients than a round samples.

        Args:
            keep_models: keep the models for rollbacks that the training kept, unless every round asks all clients.
        """
        count, clients = self.settings.clients_per_round, len(federation.clients)
        sampled = None if count is None or count > clients else count
        kept = self.settings.keep_models if keep_models and sampled not in {None, clients} else None
        return replace(self.settings, keep_history=keep_history, keep_models=kept, clients_per_round=sampled)

    def make_world(self, world: World, seed: int | None = None) -> Federation:
        """Return the federation of a world; raise ConfigError if canaries cannot be planted in it.

        Args:
            seed: of the runs in this world, not of its data; None takes that of the first audited run.
        """
        made = self._make_data(world).reseed(self.federation.seed if seed is None else seed)
        return redraw(made, world)

    def _make_data(self, world: World) -> Federation:
        if world == "noise":
            return replace_with_noise(self.federation, self.request)
        if world == "rehearsal":
            canaries = Canaries(tuple(self.federation.forgotten(self.request)), self.canaries)
            return plant_canaries(self.federation, canaries, among=self.request).replace(about=None)
        if world in {"original", "history"}:
            return self.federation
        rest = self.federation.without(self.request)
        if world in {"never", "draw"}:
            return rebuild(rest)
        if world in {"nudge", "nudge-2", "nudge-3"}:
            return nudge(rebuild(rest), world)
        return replace_with_noise(rest, Request(tuple(rest.clients)))

    def place(self, world: str, run: Run) -> Path:
        """Return the folder of a run's repetition in a world; runs that differ in their seed alone have different ones."""
        seed = "" if run.seed == self.federation.seed else f"-seed-{run.seed}"
        return self.folder / f"{world}-{name_run(run)}{seed}"

    def name_retrain(self) -> str:
        """Return the name of the Retrain control's method, also before the control is made."""
        made = self.made.get("retrain")
        return self._name_plain_retrain() if made is None else name_run(made)

    def _name_plain_retrain(self) -> str:
        return _name_method(self._retrain_method(), self.settings.rounds, never)

    def _retrain_method(self) -> Method[Any]:
        return adapt_method("retrain", self.settings)

    def _train(self, world: World, show: ShowRound | None) -> Run:
        federation, original = self.make_world(world, self.original_seed), self.made.get("original")
        method, rounds, stop = self._retrain_method(), self.settings.rounds, self.settings.stop or never
        keep: Keep = self.settings.keep or "last"
        if (special := self._special_original()) is not None:
            method, rounds, stop, keep = special.method, special.scheduled, special.stop, special.keep
        return self._run(
            federation, method, self.folder / world, show,
            settings=self.settings_in(federation, keep_history=self.history, keep_models=True),
            rounds=rounds, stop=stop, keep=keep, block=original.block if original else self.way,
        )  # fmt: skip

    def _serve(
        self,
        trained: Run,
        method: Method[Any],
        out: Path,
        show: ShowRound | None,
        *,
        rounds: int,
        **more: Any,
    ) -> Run:
        """Serve the request to a run by a method, without erasing a history."""
        remaining = trained.federation.without(self.request)
        continues = method.continues_training and bool(trained.earlier or self._repeats_training())
        restart = find_restart(trained, remaining) if continues else None
        ancestors = () if trained.folder is None else (Ancestor.at(trained.folder), *trained.earlier)
        return self._run(
            remaining, prepare_method(method, trained, self.request, remaining), out, show, rounds=method.rounds or rounds,
            settings=replace(trained.settings, engine=name_engine(self.engine), keep_history=False, keep_models=None), original=trained.original,
            forgot=self.request, ancestors=ancestors, restart=restart,
            leaving=trained.federation.forgotten(self.request) if method.asks_leaver else None, **more,
        )  # fmt: skip

    def _run(
        self,
        federation: Federation,
        method: Method[Any],
        out: Path,
        show: ShowRound | None,
        *,
        settings: TrainSettings,
        rounds: int,
        stop: StopRule,
        block: BlockSize | None,
        keep: Keep = "last",
        original: Federation | None = None,
        forgot: Request | None = None,
        ancestors: tuple[Ancestor, ...] = (),
        audited: Run | None = None,
        models: bool = False,
        restart: Restart | None = None,
        leaving: Mapping[ClientId, Examples] | None = None,
    ) -> Run:
        """Run a method in a fresh process, or in this one if it cannot be made again there.

        Args:
            audited: the run whose method this is; None for a control.
            models: keep the model after every round, in the folder `MODELS` of the new run.
            restart: where a rollback continues the training of its world; None starts from the fresh model.
        """
        more = {
            "rounds": rounds, "keep": keep, "block": block, "forgot": forgot, "ancestors": ancestors, "models": out / MODELS if models else None,
            "restart": restart, "leaving": leaving,
        }  # fmt: skip
        try:
            job = write_job(
                federation, unbind(method), stop, self.engine, settings=settings, out=out, bound=get_bound(method), **more
            )  # fmt: skip
            in_reach = run_apart(job, self.hidden, show)
        except CannotRebuild as reason:
            if audited is not None:
                self.not_rebuilt.setdefault(name_run(audited), str(reason))
            return run_method(
                federation, method, settings, stop=stop, original=original, engine=self.engine, out=out, resume=True, show=show,
                label=out.name, **more,
            )  # fmt: skip
        if audited is not None and in_reach is not None:
            self.in_reach.setdefault(name_run(audited), in_reach)
        files = RunFolder(out)
        return Run(
            federation=federation, original=original or federation, settings=settings, method=method,
            state=Plain(load_params(files.state_path)), rounds=tuple(files.rounds()), forgot=forgot, earlier=ancestors, folder=out,
            engine=self.engine, block=upgrade(files.config()).get("block"), scheduled=rounds, stop=stop, keep=keep,
        )  # fmt: skip

    def _special_original(self) -> Run | None:
        """Return the original control if its method is not plain training and can run again, else None.

        A method that used an old run cannot run again: that run is gone, or holds the forgotten data.
        """
        original = self.made.get("original")
        if original is None or uses_old_run(original.method):
            return None
        is_plain = is_retrain(original.method) and name_run(original) == self._name_plain_retrain()
        return None if is_plain else original

    def _repeats_training(self) -> bool:
        """Return whether worlds repeat the training that a rollback continues, and not a later run that is the original."""
        original = self._special_original()
        own = (self.settings.rounds, self.settings.stop or never, self.settings.keep or "last")
        return original is None or (
            (is_retrain(original.method) or original.method.continues_training)
            and (original.scheduled, original.stop, original.keep) == own
        )

    def _step(self, key: str, name: str, work: Callable[[ShowRound], object], rounds: int) -> Step:
        if key not in self.steps:
            self.steps[key] = Step(name, work, rounds, lambda: key not in self.made)
        return self.steps[key]


def name_run(run: Run) -> str:
    """Return a name for folders: a run's method, with a digest of its settings, rounds and stop rule."""
    return _name_method(run.method, run.scheduled, run.stop, run.keep)


def _name_method(method: Method[Any], scheduled: int, stop: StopRule, keep: Keep = "last") -> str:
    about: tuple[Any, ...] = (dict(settings_of(method)), scheduled, getattr(stop, "__name__", repr(stop)))
    if keep != "last":
        about += (keep,)
    if not is_built_in(method):  # it may have the name of a built-in method
        carried = (digest_weights(v) for v in values_of(method).values() if isinstance(v, Tensor))
        about += (type(method).__module__, type(method).__qualname__, *carried)
    return f"{method.name}-{sha256(repr(about).encode()).hexdigest()[:8]}"


def rebuild(federation: Federation) -> Federation:
    """Return a federation built only from copies of its clients' examples."""

    def copy(some: dict[str, Examples]) -> dict[str, tuple[Inputs, Tensor]]:
        return {client: own.all() for client, own in some.items()}

    clients, held_out = copy(federation.clients), copy(federation.held_out)
    return federation.replace(
        clients=clients, held_out=held_out, test=federation.test.all(), about=None, standardize=False
    )


def redraw(federation: Federation, world: World) -> Federation:
    """Return a federation whose first model is the one of a world, for a run with the federation's seed."""
    if world == "draw" and federation.start == "given":
        return federation.replace(model=perturb(federation.fresh_model(), federation.seed), about=None)
    if world == "draw":
        return federation.replace(model=partial(draw_again, federation.model), about=None)
    return federation.reseed(seed_for(federation.seed, "bare")) if world == "bare-other" else federation


def draw_again(source: ModelSource) -> nn.Module:
    """Return another draw of the fresh model than the one that the same seed gives."""
    return draw_model(source, int(torch.randint(2**62, ())))


def perturb(module: nn.Module, seed: int) -> nn.Module:
    """Return a module after noise was added to its trained parameters, in place: another start than a given one."""
    draw = generator(seed, "perturb")
    with torch.no_grad():
        for _, p in list_trained(module):
            size = float(p.abs().mean()) or 1.0
            p += (NOISE * size * torch.randn(p.shape, generator=draw, dtype=torch.float64)).to(p.dtype)
    return module


def find_floats(x: Inputs) -> int | None:
    """Return the place of the largest tensor of floating-point inputs; None if there is none."""
    floats = [
        (part.numel(), -place) for place, part in enumerate(list_tensors(x)) if part.is_floating_point()
    ]
    return -max(floats)[1] if floats else None


def nudge(federation: Federation, address: str) -> Federation:
    """Return a federation with one value of one example of each client changed, by 1/65536 of the values' range.

    Args:
        address: of the draw that chooses the value.
    """
    which = find_floats(federation.test.x)
    if which is None:
        raise DataError("whole numbers cannot change slightly; give inputs of a floating-point type")
    low, high = (float(edge) for edge in list_tensors(federation.test.x)[which].aminmax())
    step = (high - low) / 2**16

    def change(client: str, examples: Examples) -> tuple[Inputs, Tensor]:
        x, y = examples.all()
        values = list_tensors(x)[which].view(-1)
        place = int(torch.randint(len(values), (), generator=generator(federation.seed, address, client)))
        values[place] += step if float(values[place]) + step <= high else -step
        return x, y

    clients = {client: change(client, own) for client, own in federation.clients.items()}
    return federation.replace(clients=clients)


def replace_with_noise(federation: Federation, request: Request) -> Federation:
    """Return a federation with noise in place of a request's data; a leaver also gets another number of examples."""
    tested, targets = federation.unscaled_test.all()  # not of the tensors that others' rows share

    def noise(count: int, draw: torch.Generator) -> tuple[Inputs, Tensor]:
        several = not isinstance(tested, Tensor)
        parts = [_draw_noise(part, count, draw, several=several) for part in list_tensors(tested)]
        labels = torch.randint(0, len(targets), (count,), generator=draw)
        return pack_tensors(parts, tested), targets[labels]

    def change(client: str, examples: Examples) -> Examples | tuple[Inputs, Tensor]:
        mask = request.mask(client, examples.keys, examples.targets)
        if not mask.any():
            return examples
        draw = generator(federation.seed, "noise", client)
        if client in request.clients:
            return noise(_choose_size(len(examples), federation), draw)
        x, y = examples.unscaled.all()
        classes = request.class_mask(y)
        inputs, fresh = noise(int(mask.sum()), draw)
        for part, values in zip(list_tensors(x), list_tensors(inputs), strict=True):
            part[mask] = values
        y[mask] = torch.where(classes[mask], y[mask], fresh) if request.classes else fresh
        return Examples(x, y, torch.arange(len(examples)), examples.keys)

    clients = {client: change(client, examples) for client, examples in federation.clients.items()}
    return federation.replace(clients=clients, about=None)


def _choose_size(count: int, federation: Federation) -> int:
    """Return another number of examples for a client of noise: half as many, but enough for BatchNorm."""
    half = count // 2 or 2
    if half > 1 or not has_batch_norm(federation.fresh_model()):
        return half
    return 3 if count == 2 else 2


def _draw_noise(part: Tensor, count: int, draw: torch.Generator, *, several: bool) -> Tensor:
    """Return noise in place of one tensor of test inputs, or of several, of its type and in the range of its values.

    Whole numbers, such as ids of tokens, stay whole and in that range. A mask gets masks of test examples, in a random
    order: one at random could hide a whole example, which no model can read.
    """
    if part.is_floating_point():
        part = part.nan_to_num(0.0)  # a missing value
    low, high = part.aminmax()
    is_binary = several and bool(((part == low) | (part == high)).all())
    if part.dtype == torch.bool or is_binary:
        return part[torch.randint(0, len(part), (count,), generator=draw)]
    shape = (count, *part.shape[1:])
    if not part.is_floating_point():
        return torch.randint(int(low), int(high) + 1, shape, generator=draw, dtype=part.dtype)
    least, most = float(low), float(high)
    return (torch.rand(shape, generator=draw, dtype=torch.float64) * (most - least) + least).to(part.dtype)
