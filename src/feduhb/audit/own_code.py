"""Checks of code outside this package, which could carry the old model into every world: in a closure, in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from feduhb.audit.controls import MODELS, Controls, ShowRound, Step, World, redraw
from feduhb.audit.measures import compute_accuracy, compute_chance
from feduhb.audit.result import OF_METHOD, Check
from feduhb.audit.traces import Trace, draws_are_fresh, find_trace
from feduhb.audit.verdict import explain_uselessness
from feduhb.core.aggregate import is_built_in_rule, unwrap
from feduhb.core.flat import flatten
from feduhb.core.seeds import seed_for
from feduhb.engines import ENGINES, is_built_in_name
from feduhb.methods import is_built_in, rule_of
from feduhb.runs.checkpoint import read_models
from feduhb.runs.run import Run

DRAW = "From another draw of the fresh model"
OWN_SEED = "From the run's own draw, which is not the original's"
BARE = "In a federation of noise alone"
NUDGE = "With one value of each client's data changed slightly"
GUESSES = 199  # untrained models, whose best accuracy a model that learned from noise may reach by chance
GAP = 0.1  # a Retrain that is better than these by less shows nothing
JUMP = 0.05  # weights that a slight change of the data moves by more than this share of their way from w[0] are suspect
AGREEMENT = 20.0  # ... if runs on other slight changes are nearer to each other by this factor
NUDGES: tuple[World, ...] = ("nudge", "nudge-2", "nudge-3")
CONVERGED = 0.01  # two runs this near to each other, as a share of their first distance, may meet


class OwnCode:
    """The checks of a run in whose method, aggregation or engine code outside this package took part.

    Such code can give the same weights with and without the forgotten data and yet not begin afresh. So it also runs
    from another draw of the fresh model, on noise alone, and on data that is changed slightly. Its weights are compared
    after every round, because later rounds may hide what the first one shows. Methods that replay a history, or do not
    claim to be exact, run on noise alone only.
    """

    def __init__(self, run: Run, controls: Controls, checks: list[Check]) -> None:
        """Plan the checks. Their outcomes are added to ``checks``."""
        self.run, self.controls, self.checks = run, controls, checks
        self.is_suspect = False  # whether a slight change of the data moved the weights far

    def steps(self) -> list[Step]:
        """Return the steps of all checks. Once a check of the method has failed, no other is needed."""
        worlds: list[World] = ["bare-other", "bare-same"]
        if self.run.method.exact and not self.run.method.needs_history:
            if not torch.equal(self._draw("never"), self._draw("draw")):
                worlds.insert(0, "draw")
            if self.controls.federation.test.x.is_floating_point():
                worlds += NUDGES
        return [step for world in worlds for step in self._steps_in(world)]

    def _steps_in(self, world: World) -> Iterator[Step]:
        if self.run.method.needs_history:
            yield self.controls.train_step(world)
        checks = {"draw": self._check_draw, **dict.fromkeys(NUDGES, self._check_nudge)}
        work = partial(checks.get(world, self._check_bare), world)
        name, is_needed = f"{world}-{self.run.method.name}", partial(self._is_needed, world)
        yield Step(name, work, self.run.scheduled, is_needed)

    def _is_needed(self, world: World) -> bool:
        """Return whether no check of the method has failed yet; other slight changes are tried if the first moved the weights."""
        is_clean = all(check.identical for check in self.checks if check.name in OF_METHOD)
        return is_clean and (world not in NUDGES[1:] or self.is_suspect)

    def _add(self, name: Literal["draw", "bare", "nudge"], says: str, *, passed: bool) -> None:
        self.checks.append(Check(name, says, passed, 0.0))

    def _draw(self, world: World) -> Tensor:
        """Return w[0] of the audited method in a world, [P]."""
        return flatten(redraw(self.run.federation, world).fresh_model())

    def _read_models(self, world: World) -> Iterator[Tensor]:
        return read_models(self.controls.place(world, self.run) / MODELS)

    def _check_draw(self, world: World, show: ShowRound) -> None:
        """Another w[0], and everything else equal, must give other weights after every round, without traces of the original.

        If the run has another seed than the original, it began at another draw itself, and its own weights are searched.
        """
        self.controls.run_in(world, self.run, show, keep_models=True)
        starts = self._draw("never"), self._draw("draw")
        if (met := find_meeting(self._read_models("never"), self._read_models("draw"), starts)) is not None:
            says = f"{DRAW}: the same weights after round {met}, so they do not come from the fresh model."
            self._add("draw", says, passed=False)
        elif (trace := self._find_trace("draw")) is not None:
            self._add("draw", f"{DRAW}: {_describe(trace)}", passed=False)
        elif self._has_own_seed and (trace := self._find_trace("never")) is not None:
            self._add("draw", f"{OWN_SEED}: {_describe(trace)}", passed=False)
        else:
            self._add("draw", f"{DRAW}: other weights after every round{self._searched}.", passed=True)

    def _check_bare(self, world: World, show: ShowRound) -> None:
        """A model that learned from noise alone must not do well on test data, and have no traces of the original."""
        bare = self.controls.run_in(world, self.run, show, keep_models=True)
        if (says := self._explain_knowledge(bare)) is not None:
            self._add("bare", f"{BARE}: {says}", passed=False)
        elif world == "bare-other" and (trace := self._find_trace(world)) is not None:
            self._add("bare", f"{BARE}: {_describe(trace)}", passed=False)
        elif world == "bare-same":
            self._add("bare", f"{BARE}: no useful model after any round{self._searched}.", passed=True)

    def _check_nudge(self, world: World, show: ShowRound) -> None:
        """A slight change of the data must not change the weights by much, unless other slight changes do so too."""
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
        scored = (record for record in bare.rounds if "test_accuracy" in record.scores)
        scores = [(record.scores["test_accuracy"], record.round + 1) for record in scored]
        retrain = compute_accuracy(self.controls.retrain().model(), [federation.test], federation)
        if not scores or retrain is None:
            return None
        found, done = max(scores)
        if explain_uselessness(found, retrain, compute_chance(federation)) is not None:
            return None
        guess = self._best_guess
        if retrain < guess + GAP or found < (guess + retrain) / 2:
            return None
        return (
            f"test accuracy {found:.1%} after round {done}, and Retrain on real data has {retrain:.1%}. "
            "The method knows more than it was taught."
        )

    @cached_property
    def _best_guess(self) -> float:
        """The best test accuracy among untrained models."""
        federation = self.controls.federation
        drawn = (federation.reseed(seed_for(federation.seed, "guess", number)) for number in range(GUESSES))
        return max(compute_accuracy(one.fresh_model(), [federation.test], federation) or 0.0 for one in drawn)

    @cached_property
    def _is_searchable(self) -> bool:
        like = self.run.federation.fresh_model()
        return draws_are_fresh(self._draw("never"), self._draw("bare-other"), like)

    @property
    def _has_own_seed(self) -> bool:
        return self.run.seed != self.controls.train("original").seed

    @property
    def _searched(self) -> str:
        return ", and no trace of the original's weights" if self._is_searchable else ""

    def _find_trace(self, world: World) -> Trace | None:
        """Return the clearest trace of the original's weights, or of what it learned, in the models of a world."""
        if not self._is_searchable:
            return None
        original = self.controls.train("original")
        old = original.params.detach().cpu()
        olds = [old, old - flatten(original.federation.fresh_model())]
        like = self.run.federation.fresh_model()
        return find_trace(
            self._read_models(world),
            self._draw(world),
            olds,
            like,
            self.run.seed,
            noise=world == "bare-other",
        )


def find_meeting(
    some: Iterator[Tensor], others: Iterator[Tensor], starts: tuple[Tensor, Tensor]
) -> int | None:
    """Return after how many rounds two runs from different draws have the same weights, or None.

    Runs that were near each other already may meet because both have converged; that does not count.
    """
    first = before = _measure(*starts)
    for done, (one, other) in enumerate(zip(some, others, strict=False), 1):
        if torch.equal(one, other) and before > CONVERGED * first:
            return done
        before = _measure(one, other)
    return None


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
    return is_built_in_name(maker) if isinstance(maker, str) else any(maker is e for e in ENGINES.values())


def _describe(trace: Trace) -> str:
    return f"after round {trace.round}, {trace.parameter} has traces of the original's weights, which the run cannot have learned."
