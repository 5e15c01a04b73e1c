"""Exactness of a finished run, by two counterfactuals: noise in place of the forgotten data, and a world that never had it."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal

import torch

from feduhb.core.aggregate import weighted_mean
from feduhb.core.types import Method
from feduhb.engines import Loop, Pool, Stacked
from feduhb.evaluate.verdicts import Check, Exactness, useless
from feduhb.experiment.bench import Bench
from feduhb.experiment.measures import commonest, share_right
from feduhb.experiment.plans import engine_of, made_by
from feduhb.experiment.runs import Run
from feduhb.methods import METHODS
from feduhb.methods.replaying import replays
from feduhb.records import RunFolder
from feduhb.run.folder import weights_digest

NOISE = "With noise in place of the forgotten data, trained and unlearned again"
NEVER = "In a federation that never held the forgotten data"
AGAIN = "Unlearned again from the same data"
BARE = "In a federation that holds nothing but noise"


def exactness(run: Run, bench: Bench) -> Exactness:
    """Make the counterfactual runs and compare weights, bit for bit.

    A run whose weights differ is unlearned once more from the real data, to tell a leak of the forgotten data
    from weights that this machine does not reproduce at all. Code of the user's own could give the same weights in every
    world by bringing them along, in a closure or a file; so it is also run where there is nothing to learn.
    """
    noise = bench.unlearned(bench.noisy(), "noise", run)
    never = bench.never(run)
    checks = [_check("noise", NOISE, noise, run), _check("never", NEVER, never, run)]
    if not all(check.identical for check in checks):
        again = bench.unlearned(bench.replayable(run), "again", run)
        checks.append(_check("again", AGAIN, again, run, _where(run)))
    if not ours(run) and (said := _brought(run, bench)):
        checks.append(Check("bare", said, identical=False, largest_difference=0.0))
    return Exactness(all(check.identical for check in checks), tuple(checks))


def ours(run: Run) -> bool:
    """Whether all code that made a run is this package's: method, aggregation and engine."""
    rule = getattr(run.method, "aggregate", weighted_mean)
    maker = run.engine.func if isinstance(run.engine, partial) else run.engine
    plain = rule.func if isinstance(rule, partial) else rule
    known = plain.__module__ == weighted_mean.__module__ and (
        isinstance(maker, str) or maker in {Loop, Pool, Stacked}
    )
    return known and type(run.method) in METHODS.values()


def _brought(run: Run, bench: Bench) -> str | None:
    """Say so where a method does well on test data after training on noise alone."""
    federation = bench.federation
    retrain = share_right(bench.retrain().model(), [federation.test], federation)
    for same_seed in (False, True):
        found = share_right(bench.bare(run, same_seed=same_seed).model(), [federation.test], federation)
        if found is not None and retrain is not None and not useless(found, retrain, commonest(federation)):
            return f"{BARE}: test accuracy {found:.1%}, where Retrain has {retrain:.1%} on real data. It brings along what it knows."
    return None


def carries(method: Method[Any]) -> str | None:
    """Name what a method of the user's own holds that is no setting; a counterfactual with it inside would show nothing."""
    held = ((field.name, getattr(method, field.name)) for field in fields(method))  # pyright: ignore[reportArgumentType]
    return next(
        (
            name
            for name, value in held
            if not (name in {"history", "clients"} and replays(method)) and not _setting(value)
        ),
        None,
    )


def _setting(value: Any) -> bool:
    """Whether a value is a number, a text, none, or a plain function, such as a rule to aggregate by."""
    if isinstance(value, partial):
        return all(map(_setting, (value.func, *value.args, *value.keywords.values())))
    return value is None or isinstance(value, int | float | str | FunctionType | BuiltinFunctionType)


def _check(
    name: Literal["again", "noise", "never"], what: str, other: Run, run: Run, where: str = ""
) -> Check:
    mine, theirs = run.params.detach().cpu(), other.params.detach().cpu()
    identical = torch.equal(mine, theirs) and len(run.rounds) == len(other.rounds)
    apart = float((mine.double() - theirs.double()).abs().max())
    if identical:
        return Check(name, f"{what}: the same weights, bit for bit.", identical, 0.0)
    rounds = (
        ""
        if len(run.rounds) == len(other.rounds)
        else f" after {len(other.rounds)} rounds, not {len(run.rounds)}"
    )
    return Check(name, f"{what}: other weights{rounds}, up to {apart:.2g} apart{where}.", identical, apart)


def _where(run: Run) -> str:
    """Say on what the bits of a run depend, where its folder tells of another engine than this one."""
    if run.folder is None:
        return ""
    before, now = RunFolder(run.folder).config().get("made_by", ""), made_by(engine_of(run))
    if before == now:
        return ""
    return f" (the run was made by {before}, this audit by {now}: audit it where it was made)"


def as_recorded(run: Run) -> bool:
    """Whether the weights are those whose digest the run's folder holds; runs without a folder have none to differ from."""
    return run.folder is None or RunFolder(run.folder).result()["weights_sha256"] == weights_digest(
        run.params
    )
