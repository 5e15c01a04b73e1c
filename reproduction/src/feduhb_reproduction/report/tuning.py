"""Tables on beta and lambda, and the ablation that keeps momentum and stopping apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from feduhb.report.grids import NOTHING, Grid
from feduhb.report.stop_map import LOOKED_BACK, SCALES, spelled
from feduhb.report.words import listed, percent
from feduhb_reproduction.cells import RETRAIN, Cell
from feduhb_reproduction.report import printed
from feduhb_reproduction.report.federations import Federation, federations
from feduhb_reproduction.report.measures import (
    UHB_ON,
    Reached,
    Spread,
    Stops,
    best_step,
    final,
    momenta,
    reached,
    steps,
    stops,
    total,
    untried,
    within,
)
from feduhb_reproduction.report.spelling import PLUS, arrived, counts, fired, seeded, shares

WINDOWS: tuple[int | None, ...] = (None, *LOOKED_BACK)
TOLD = SCALES[::2]  # λ; the figure has those between, too


class Variant(NamedTuple):
    """One line of the ablation: a run, under the stop rule or not."""

    label: str
    run: str
    ruled: bool


class Outcome(NamedTuple):
    """What a variant comes to."""

    rounds: Spread  # executed
    accuracy: Spread
    reaches: Reached  # Retrain's final accuracy, in the rounds executed
    ends: Stops | None  # None: no rule


def swept(cells: Sequence[Cell]) -> list[Federation]:
    """Give the federations in which more betas were run than Retrain's and FedUHB's."""
    return [each for each in federations(cells) if len(momenta(each)) > 2]


def betas(cells: Sequence[Cell]) -> Grid:
    """What each beta comes to without the rule."""
    rows = [
        [each.label, f"{beta:g}", shares(final(each, run)), arrived(reached(each, run)), NOTHING, seeded(each, run)]
        for each in swept(cells)
        for beta, run in momenta(each).items()
    ]  # fmt: skip
    headers = [
        "federation",
        "β",
        "final test accuracy",
        "first round with Retrain's final",
        "paper",
        "seeds",
    ]
    note = (
        "No stop rule, which would end a low β early. β 0 is Retrain, whose row is when it first had its own final accuracy. The paper "
        f"prints a figure and no numbers: “a higher momentum parameter β accelerates convergence speed”. {PLUS}"
    )
    return Grid("β: momentum", headers, rows, frozenset({0}), note)


def lambdas(cells: Sequence[Cell]) -> Grid:
    """Where each lambda and window would end FedUHB."""
    there = [each for each in federations(cells) if each.has(UHB_ON)]
    mute = [each for each in there if never_fires(each) and each.cells[0].place.data not in printed.LAMBDA]
    rows = [
        [
            each.label,
            f"{scale:g}",
            *(_ending(stops(each, scale=scale, window=window), each.rounds) for window in WINDOWS),
            _paper(each, scale),
            str(len(each.tracks(UHB_ON))),
        ]
        for each in there
        if each not in mute
        for scale in TOLD
    ]
    rows += [_never(each) for each in mute]
    windows = [f"window: {spelled(window)}" for window in WINDOWS]
    headers = ["federation", "λ", *windows, "paper", "seeds"]
    note = (
        "Rounds that are run, and test accuracy after them, replayed from the movements of FedUHB with the rule off. A seed in which the "
        "rule does not fire counts with all scheduled rounds; how many fire is in brackets where not all do. The paper does not state "
        f"its window. {f'{silent(mute)} ' if mute else ''}{PLUS}"
    )
    return Grid("λ: the stop rule", headers, rows, frozenset({0}), note)


def never_fires(federation: Federation) -> bool:
    """Whether no rule that is replayed ends FedUHB in any seed."""
    return not any(stops(federation, scale=scale, window=w).fires for scale in SCALES for w in WINDOWS)


def silent(found: Sequence[Federation]) -> str:
    """Say that no rule that is replayed fires in these federations."""
    windows = listed([str(window) for window in LOOKED_BACK], "or")
    return (
        f"In no seed of {listed([each.short for each in found])} does the rule fire in {found[0].rounds} rounds with a λ from "
        f"{SCALES[0]:g} to {SCALES[-1]:g}, be it judged by all rounds so far or by the last {windows}."
    )


def _never(federation: Federation) -> list[str]:
    """Put all λ of a federation in which the rule never fires into one line; the paper has no numbers there."""
    told = [f"not in {federation.rounds}"] * len(WINDOWS)
    every = f"{TOLD[0]:g} to {TOLD[-1]:g}"
    return [federation.label, every, *told, NOTHING, str(len(federation.tracks(UHB_ON)))]


def _ending(found: Stops, scheduled: int) -> str:
    if not found.n:
        return NOTHING
    if not found.fires:
        return f"not in {scheduled}"
    few = "" if found.fires == found.n else f" ({fired(found)} fire)"
    return f"{counts(found.executed)}{few}; {shares(found.accuracy)}"


def _paper(federation: Federation, scale: float) -> str:
    told = printed.LAMBDA.get(federation.cells[0].place.data, {}).get(scale)
    return NOTHING if told is None else f"{told[0]}; {told[1]:.2%}"


def variants(federation: Federation) -> list[Variant]:
    """Momentum and rule, each with and without the other, and FedAvg with its best server step."""
    own = federation.cells[0].place.momentum
    found = [
        Variant(f"β {beta:g}, {'with the rule' if ruled else 'no rule'}", run, ruled)
        for beta, run in ((0.0, RETRAIN), (own, UHB_ON))
        for ruled in (False, True)
        if federation.tracks(run)
    ]
    best = best_step(federation)
    if best is None:
        return found
    return [*found, Variant(f"FedAvg, server step {best:g}", steps(federation)[best], ruled=False)]


def outcome(federation: Federation, variant: Variant) -> Outcome:
    """Replay the rule where a variant is under it."""
    run, arrives = variant.run, reached(federation, variant.run)
    if not variant.ruled:
        return Outcome(total(federation, run, "rounds"), final(federation, run), arrives, None)
    ends = stops(federation, run)
    return Outcome(ends.executed, ends.accuracy, within(arrives, ends), ends)


def ablation(cells: Sequence[Cell]) -> Grid:
    """What momentum does, and what the rule does."""
    rows = [row for each in federations(cells) for row in _variants(each)]
    headers = [
        "federation", "variant", "rounds executed", "the rule fires", "test accuracy", "first round with Retrain's final accuracy",
        "paper", "seeds",
    ]  # fmt: skip
    note = (
        "β 0 without the rule is Retrain, β 0.9 with it is FedUHB; the rule is replayed on recorded movements. FedAvg's server step is the one "
        "with the best mean final test accuracy: it was chosen on the test data, which favours it, and β 0.9 was not chosen. "
        f"{_coarse(cells)}The paper has no such table; its FedUHB's number stands beside ours. {PLUS}"
    )
    return Grid("Ablation: momentum and stopping apart", headers, rows, frozenset({0, 1}), note)


def _coarse(cells: Sequence[Cell]) -> str:
    """Say where the step was hardly tuned."""
    found = [(each, step) for each in federations(cells) if (step := best_step(each)) is not None]
    told = {each.label: untried(each, step) for each, step in found}
    return "".join(
        f"{label}: step {step:g} is best {told[label]}. "
        for (each, step) in found
        if told[label := each.label]
    )


def _variants(federation: Federation) -> Iterator[list[str]]:
    told = printed.LAMBDA.get(federation.cells[0].place.data, {}).get(federation.cells[0].place.scale)
    paper = NOTHING if told is None else f"{told[0]} rounds, {percent(told[1])}"
    for variant in variants(federation):
        found = outcome(federation, variant)
        yield [
            federation.label,
            variant.label,
            counts(found.rounds),
            NOTHING if found.ends is None else fired(found.ends),
            shares(found.accuracy),
            arrived(found.reaches),
            paper if variant.run == UHB_ON and variant.ruled else NOTHING,
            seeded(federation, variant.run),
        ]
