"""Checks of code outside this package, which could carry the old model into every world: in a closure, in a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor, nn

from feduhb.audit.controls import MODELS, Controls, ShowRound, Step, World, find_floats, redraw
from feduhb.audit.measures import compute_accuracy, compute_chance, compute_constant_loss
from feduhb.audit.result import OF_METHOD, Check
from feduhb.audit.traces import FEWEST, Trace, Units, draws_are_fresh, find_trace, find_units
from feduhb.audit.verdict import explain_uselessness
from feduhb.core.aggregate import is_built_in_rule, unwrap
from feduhb.core.flat import flatten, list_parts
from feduhb.core.seeds import seed_for
from feduhb.engines import is_built_in_maker, is_built_in_name
from feduhb.engines.scoring import score_model
from feduhb.errors import RunFolderError
from feduhb.methods import Retrain, is_built_in, rule_of, values_of
from feduhb.methods.binding import uses_old_run
from feduhb.runs.folder import RunFolder
from feduhb.runs.kept import KeptModels
from feduhb.runs.run import Run

DRAW, DRAW_GIVEN = "From another draw of the fresh model", "From the given start after noise was added to it"
OWN_SEED = "From the run's own draw, which is not the original's"
BARE = "In a federation of noise alone"
NUDGE = "With one value of each client's data changed slightly"
TRACES = "Traces of the original's weights"
GUESSES = 199  # untrained models, whose best score a model that learned from noise may reach by chance
GAP = 0.1  # a Retrain that is better than these by less (of the accuracy, or of the loss) shows nothing
JUMP = 0.05  # weights that a slight change of the data moves by more than this share of their way from w[0] are suspect
AGREEMENT = 20.0  # ... if runs on other slight changes are nearer to each other by this factor
NUDGES: tuple[World, ...] = ("nudge", "nudge-2", "nudge-3")
CONVERGED = 0.01  # two runs this near to each other, as a share of their first distance, may meet
NEARER = 3.0  # two runs from different draws may come nearer in one round by this factor, or by this times Retrain's factor


class OwnCode:
    """The checks of a run in whose method, aggregation or engine code outside this package took part.

    Such code can give the same weights with and without the forgotten data and yet not begin afresh. So it also runs
    from another draw of the fresh model, on noise alone, and on data that is changed slightly. Its weights are compared
    after every round, because later rounds may hide what the first one shows. Methods that do not claim to be exact run on
    noise alone only.
    """

    def __init__(self, run: Run, controls: Controls, checks: list[Check]) -> None:
        """Plan the checks. Their outcomes are added to ``checks``."""
        self.run, self.controls, self.checks = run, controls, checks
        self.is_suspect = False  # whether a slight change of the data moved the weights far

    def steps(self) -> list[Step]:
        """Return the steps of all checks. Once a check of the method has failed, no other is needed."""
        worlds: list[World] = ["bare-other", "bare-same"]
        if self.run.method.exact:
            worlds = ["draw", *worlds, *NUDGES]
        return [step for world in worlds for step in self._steps_in(world)]

    def _steps_in(self, world: World) -> Iterator[Step]:
        name, is_needed = f"{world}-{self.run.method.name}", partial(self._is_needed, world)
        if world == "draw" and torch.equal(self._draw("never"), self._draw("draw")):
            yield Step(name, self._skip_draw, is_needed=is_needed)
            return
        # The nudged worlds are seldom all needed; each is trained when it is.
        if uses_old_run(self.run.method) and world not in NUDGES:
            yield self.controls.train_step(world)
        checks = {"draw": self._check_draw, **dict.fromkeys(NUDGES, self._check_nudge)}
        work = partial(checks.get(world, self._check_bare), world)
        yield Step(name, work, self.run.scheduled, is_needed)

    def _is_needed(self, world: World) -> bool:
        """Return whether no check of the method has failed yet; other slight changes are tried if the first moved the weights."""
        is_clean = all(check.identical for check in self.checks if check.name in OF_METHOD)
        return is_clean and (world not in NUDGES[1:] or self.is_suspect)

    def _add(self, name: Literal["draw", "bare", "nudge"], says: str, *, passed: bool) -> None:
        self.checks.append(Check(name, says, passed, 0.0))

    def _skip(self, name: Literal["draw", "nudge", "traces"], says: str) -> None:
        self.checks.append(Check(name, says, True, 0.0, skipped=True))

    def _draw(self, world: World) -> Tensor:
        """Return w[0] of the audited method in a world, [P]."""
        return flatten(redraw(self.run.federation, world).fresh_model())

    def _read_models(self, world: World, run: Run | None = None, name: str | None = None) -> Iterator[Tensor]:
        """Return the models after every round in a world; raise RunFolderError if there are fewer than rounds."""
        folder = self.controls.place(name or world, run or self.run)
        models, rounds = KeptModels(folder / MODELS), len(RunFolder(folder).rounds())
        if (kept := len(models.rounds)) != rounds:
            raise RunFolderError(
                f"{folder} has the models of {kept} rounds, not of {rounds}; delete {self.controls.folder} and audit again"
            )
        return models.read_all()

    def _skip_draw(self, show: ShowRound) -> None:  # noqa: ARG002
        self._skip("draw", f"{self._named}: not checked, because every draw of the fresh model is the same.")

    def _check_draw(self, world: World, show: ShowRound) -> None:
        """Another w[0], and everything else equal, must give other weights after every round, without traces of the original.

        If the run has another seed than the original, it began at another draw itself, and its own weights are searched.
        """
        self.controls.run_in(world, self.run, show, keep_models=True)
        starts = self._draw("never"), self._draw("draw")
        nearer, done = find_approach(self._read_models("never"), self._read_models("draw"), starts)
        if (says := self._explain_approach(nearer, done, show)) is not None:
            start = "given start" if self._is_given else "fresh model"
            self._add("draw", f"{self._named}: {says}, so they do not come from the {start}.", passed=False)
        elif (trace := self._find_trace("draw")) is not None:
            self._add("draw", f"{DRAW}: {_describe(trace)}", passed=False)
        elif self._has_own_seed and (trace := self._find_trace("never")) is not None:
            self._add("draw", f"{OWN_SEED}: {_describe(trace)}", passed=False)
        else:
            says = f"{self._named}: other weights after every round{self._say_searched('draw')}."
            self._add("draw", says, passed=True)

    def _explain_approach(self, nearer: float, done: int, show: ShowRound) -> str | None:
        """Return what is wrong if runs from two draws came nearer to each other in one round than Retrain's do, or None."""
        if nearer == math.inf:
            return f"the same weights after round {done}"
        if nearer <= NEARER or nearer <= NEARER * (usual := self._retrain_approach(show)):
            return None
        return (
            f"in round {done} the weights of the two draws come nearer to each other by a factor of {nearer:.3g}, "
            f"and Retrain's by at most {max(1.0, usual):.3g}"
        )

    def _retrain_approach(self, show: ShowRound) -> float:
        """Return by which factor Retrain from two draws comes nearer in one round, at most."""
        epochs = values_of(self.run.method).get("epochs", self.run.settings.epochs)
        retrain = replace(self.run, method=Retrain(epochs=epochs))
        worlds: tuple[World, World] = "never", "draw"
        for world in worlds:
            self.controls.run_in(world, retrain, show, keep_models=True, name=f"{world}-usual")
        one, other = (self._read_models(world, retrain, f"{world}-usual") for world in worlds)
        return find_approach(one, other, (self._draw("never"), self._draw("draw")))[0]

    def _check_bare(self, world: World, show: ShowRound) -> None:
        """A model that learned from noise alone must not do well on test data, and have no traces of the original."""
        bare = self.controls.run_in(world, self.run, show, keep_models=True)
        if (says := self._explain_knowledge(bare)) is not None:
            self._add("bare", f"{BARE}: {says}", passed=False)
        elif world == "bare-other" and (trace := self._find_trace(world)) is not None:
            self._add("bare", f"{BARE}: {_describe(trace)}", passed=False)
        elif world == "bare-same":
            says = f"{BARE}: no useful model after any round{self._say_searched('bare-other')}."
            self._add("bare", says, passed=True)
            if self.run.method.exact and (reason := self._explain_unsearched("bare-other")) is not None:
                self._skip("traces", f"{TRACES}: not searched, because {reason}.")

    def _check_nudge(self, world: World, show: ShowRound) -> None:
        """A slight change of the data must not change the weights by much, unless other slight changes do so too."""
        if find_floats(self.controls.federation.test.x) is None:
            self._skip("nudge", f"{NUDGE}: not checked, because whole numbers cannot change slightly.")
            return
        self.controls.run_in(world, self.run, show, keep_models=True)
        nudged = [self._read_models(one) for one in NUDGES[: NUDGES.index(world) + 1]]
        found = find_jump(self._read_models("never"), nudged, self._draw("never"))
        if found is None:
            says = (
                "other slight changes move the weights as far" if self.is_suspect else "the weights stay near"
            )
            self._add("nudge", f"{NUDGE}: {says}.", passed=True)
        self.is_suspect = found is not None
        if found is not None and world == NUDGES[-1]:
            done, apart = found
            says = (
                f"{NUDGE}: after round {done} the weights are elsewhere, by {apart:.0%} of their way from the fresh model. "
                "The method recognises the data."
            )
            self._add("nudge", says, passed=False)

    def _explain_knowledge(self, bare: Run) -> str | None:
        """Return how well the best of a run's models does on test data if that is more than noise can teach, or None."""
        federation = self.controls.federation
        model = self.controls.retrain().model()
        retrain = compute_accuracy(model, [federation.test], federation)
        if all("test_accuracy" not in record.scores for record in bare.rounds):  # it was given other scores
            retrain = None
        key = "test_loss" if retrain is None else "test_accuracy"
        scores = [(record.scores[key], record.round + 1) for record in bare.rounds if key in record.scores]
        if not scores:
            return None
        if retrain is None:
            found, done = min(scores)
            goal, guess = score_model(model, federation.test, federation.loss)[0], self._least_loss
            is_known = goal <= (1 - GAP) * guess and found <= (guess + goal) / 2
            says = f"test loss {found:.3g} after round {done}, and Retrain on real data has {goal:.3g}"
        else:
            (found, done), guess = max(scores), self._best_guess
            is_useful = explain_uselessness(found, retrain, compute_chance(federation)) is None
            is_known = is_useful and retrain >= guess + GAP and found >= (guess + retrain) / 2
            says = f"test accuracy {found:.1%} after round {done}, and Retrain on real data has {retrain:.1%}"
        return f"{says}. The method knows more than it was taught." if is_known else None

    @cached_property
    def _best_guess(self) -> float:
        """The best test accuracy among untrained models; of a given start, its own."""
        federation = self.controls.federation
        return max(
            compute_accuracy(one, [federation.test], federation) or 0.0 for one in self._draw_untrained()
        )

    @cached_property
    def _least_loss(self) -> float:
        """The least test loss of an untrained model, or of a model that gives the same answer to everything."""
        federation = self.controls.federation
        losses = (score_model(one, federation.test, federation.loss)[0] for one in self._draw_untrained())
        return min(compute_constant_loss(federation), *losses)

    def _draw_untrained(self) -> Iterator[nn.Module]:
        """Return untrained models: fresh draws with other seeds, or a given start alone."""
        federation, count = self.controls.federation, 1 if self._is_given else GUESSES
        drawn = (federation.reseed(seed_for(federation.seed, "guess", number)) for number in range(count))
        return (one.fresh_model() for one in drawn)

    @cached_property
    def _units(self) -> list[Units]:
        """The units that are alike; those of the inputs are so in noise only."""
        like, x = self.run.federation.fresh_model(), self.controls.federation.test.all()[0]
        return find_units(like, x, noise=True)

    def _list_units(self, world: World) -> list[Units]:
        return [units for units in self._units if world == "bare-other" or not units.of_input]

    @cached_property
    def _is_fresh(self) -> bool:
        like = self.run.federation.fresh_model()
        starts = self._draw("never"), self._draw("bare-other")
        return draws_are_fresh(*starts, like, self._units, self.run.seed)

    @property
    def _is_given(self) -> bool:
        return self.run.federation.start == "given"

    @property
    def _named(self) -> str:
        return DRAW_GIVEN if self._is_given else DRAW

    @property
    def _has_own_seed(self) -> bool:
        return self.run.seed != self.controls.train("original").seed

    def _explain_unsearched(self, world: World) -> str | None:
        """Return why the models of a world cannot be searched for traces, or None."""
        if self._is_given:
            return "the start was given, so every run has its units in the original's order"
        if not self._list_units(world):
            return f"the model has no layer with at least {FEWEST} units that are alike"
        return None if self._is_fresh else "the draws of the fresh model are alike themselves"

    def _say_searched(self, world: World) -> str:
        if self._explain_unsearched(world) is not None:
            return " (not searched for traces)"
        count = len(list_parts(self.run.federation.fresh_model()))
        searched = {place for units in self._list_units(world) for place, _ in units.parts}
        return f", and no trace of the original's weights in {len(searched)} of {count} parameters"

    def _find_trace(self, world: World) -> Trace | None:
        """Return the clearest trace of the original's weights, or of what it learned, in the models of a world."""
        if self._explain_unsearched(world) is not None:
            return None
        original = self.controls.train("original")
        old = original.params.detach().cpu()
        olds = [old, old - flatten(original.federation.fresh_model())]
        like, start = self.run.federation.fresh_model(), self._draw(world)
        groups = self._list_units(world)
        return find_trace(self._read_models(world), start, olds, like, groups, self.run.seed)


def find_approach(
    some: Iterator[Tensor], others: Iterator[Tensor], starts: tuple[Tensor, Tensor]
) -> tuple[float, int]:
    """Return by which factor two runs from different draws come nearer in one round, at most, and after how many rounds.

    The factor is infinite if they meet. Runs that were near each other already may meet because both have converged; that
    does not count.
    """
    first = before = _measure(*starts)
    found = 0.0, 0
    for done, (one, other) in enumerate(zip(some, others, strict=False), 1):
        now = _measure(one, other)
        if before > CONVERGED * first:
            found = max(found, (before / now if now else math.inf, done), key=lambda pair: pair[0])
        before = now
    return found


def find_jump(
    models: Iterator[Tensor], nudged: Sequence[Iterator[Tensor]], start: Tensor
) -> tuple[int, float] | None:
    """Return after how many rounds a run is far from all runs on slightly changed data, and how far; None if never.

    Far is more than the share `JUMP` of the weights' way from the start. Training can be so unstable that the slightest
    change does this. Then the runs on changed data are far from each other too, and that does not count: their distance
    from each other must be smaller by the factor `AGREEMENT`.
    """
    for done, (one, *others) in enumerate(zip(models, *nudged, strict=False), 1):
        way = max(_measure(model, start) for model in (one, *others))
        apart = min(_measure(one, other) for other in others)
        if apart > JUMP * way and all(_measure(a, b) < apart / AGREEMENT for a, b in combinations(others, 2)):
            return done, apart / way
    return None


def _measure(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm())


def is_ours(run: Run) -> bool:
    """Return whether all code that made a run belongs to this package: method, aggregation and engine.

    Compare by identity, because a class of the user's own can take any name and any attribute.
    """
    rule, maker = rule_of(run.method), unwrap(run.engine)
    if not is_built_in(run.method) or not (rule is None or is_built_in_rule(rule)):
        return False
    return is_built_in_name(maker) if isinstance(maker, str) else is_built_in_maker(maker)


def _describe(trace: Trace) -> str:
    return f"after round {trace.round}, {trace.parameter} has traces of the original's weights, which the run cannot have learned."
