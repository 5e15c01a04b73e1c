"""Tables on β and λ, and the ablation that separates momentum from stopping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from feduhb.report.grids import Grid
from feduhb.report.stop_map import LOOKED_BACK, SCALES, format_window
from feduhb.report.words import NOTHING, format_percent, join_names
from feduhb_reproduction import words
from feduhb_reproduction.cells import RETRAIN, Cell
from feduhb_reproduction.federations import Federation, group_cells
from feduhb_reproduction.measures import (
    UHB_ON,
    Reached,
    Spread,
    Stops,
    describe_untried,
    final_value,
    find_best_step,
    find_reached,
    limit_to_rule,
    list_momenta,
    list_steps,
    replay_rule,
    sum_of,
)
from feduhb_reproduction.words import (
    PLUS,
    format_counts,
    format_fired,
    format_reached,
    format_seeds,
    format_shares,
)

WINDOWS: tuple[int | None, ...] = (None, *LOOKED_BACK)
TABULATED = SCALES[::2]  # λ; the figure has those between, too


class Variant(NamedTuple):
    """One line of the ablation: a run, with or without the stop rule."""

    label: str
    run: str
    ruled: bool


class Outcome(NamedTuple):
    """The result of a variant."""

    rounds: Spread  # executed
    accuracy: Spread
    reaches: Reached  # Retrain's final accuracy, in the rounds executed
    ends: Stops | None  # None: no rule


def select_swept(cells: Sequence[Cell]) -> list[Federation]:
    """Return the federations in which more β were run than Retrain's and FedUHB's."""
    return [each for each in group_cells(cells) if len(list_momenta(each)) > 2]


def tabulate_betas(cells: Sequence[Cell]) -> Grid:
    """Return the accuracy and the rounds of each β, without the rule."""
    rows = [
        [each.label, f"{beta:g}", format_shares(final_value(each, run)), format_reached(find_reached(each, run)), NOTHING, format_seeds(each, run)]
        for each in select_swept(cells)
        for beta, run in list_momenta(each).items()
    ]  # fmt: skip
    headers = ["federation", "β", "final test accuracy", "first round with Retrain's final", "paper", "seeds"]
    note = (
        "No stop rule, which would end a low β early. β 0 is Retrain. The paper prints a figure and no numbers: “a higher momentum "
        f"parameter β accelerates convergence speed”. {PLUS}"
    )
    return Grid("β: momentum", headers, rows, frozenset({0}), note)


def tabulate_lambdas(cells: Sequence[Cell]) -> Grid:
    """Return where each λ and window would end FedUHB."""
    there = [each for each in group_cells(cells) if each.has(UHB_ON)]
    mute = [each for each in there if never_fires(each) and each.cells[0].place.data not in words.LAMBDA]
    rows = [
        [
            each.label,
            f"{scale:g}",
            *(_format_end(replay_rule(each, scale=scale, window=window), each.rounds) for window in WINDOWS),
            _format_printed(each, scale),
            str(len(each.tracks(UHB_ON))),
        ]
        for each in there
        if each not in mute
        for scale in TABULATED
    ]
    rows += [_list_never(each) for each in mute]
    windows = [f"window: {format_window(window)}" for window in WINDOWS]
    headers = ["federation", "λ", *windows, "paper", "seeds"]
    note = (
        "Rounds run and test accuracy after them, replayed from the movements of FedUHB, rule off. A seed in which the rule does not "
        "fire counts with all scheduled rounds; in brackets, how many fire if not all do. The paper does not give "
        f"its window. {f'{describe_silence(mute)} ' if mute else ''}{PLUS}"
    )
    return Grid("λ: the stop rule", headers, rows, frozenset({0}), note)


def never_fires(federation: Federation) -> bool:
    """Whether none of the replayed rules ends FedUHB in any seed."""
    return not any(replay_rule(federation, scale=scale, window=w).fires for scale in SCALES for w in WINDOWS)


def describe_silence(found: Sequence[Federation]) -> str:
    """Return the sentence that none of the replayed rules fires in these federations."""
    windows = join_names([str(window) for window in LOOKED_BACK], "or")
    return (
        f"The rule fires in no seed of {join_names([each.short for each in found])} in {found[0].rounds} rounds, with λ from "
        f"{SCALES[0]:g} to {SCALES[-1]:g} and a window of all rounds so far or the last {windows}."
    )


def _list_never(federation: Federation) -> list[str]:
    """Return one row for all λ of a federation in which the rule never fires."""
    never = [f"not in {federation.rounds}"] * len(WINDOWS)
    every = f"{TABULATED[0]:g} to {TABULATED[-1]:g}"
    return [federation.label, every, *never, NOTHING, str(len(federation.tracks(UHB_ON)))]


def _format_end(found: Stops, scheduled: int) -> str:
    if not found.n:
        return NOTHING
    if not found.fires:
        return f"not in {scheduled}"
    few = "" if found.fires == found.n else f" ({format_fired(found)} fire)"
    return f"{format_counts(found.executed)}{few}; {format_shares(found.accuracy)}"


def _format_printed(federation: Federation, scale: float) -> str:
    printed = words.LAMBDA.get(federation.cells[0].place.data, {}).get(scale)
    return NOTHING if printed is None else f"{printed[0]}; {printed[1]:.2%}"


def list_variants(federation: Federation) -> list[Variant]:
    """Return every combination of with or without momentum and stop rule, and FedAvg with its best server step."""
    own = federation.cells[0].place.momentum
    found = [
        Variant(f"β {beta:g}, {'with the rule' if ruled else 'no rule'}", run, ruled)
        for beta, run in ((0.0, RETRAIN), (own, UHB_ON))
        for ruled in (False, True)
        if federation.tracks(run)
    ]
    best = find_best_step(federation)
    if best is None:
        return found
    return [*found, Variant(f"FedAvg, server step {best:g}", list_steps(federation)[best], ruled=False)]


def replay_variant(federation: Federation, variant: Variant) -> Outcome:
    """Return the result of a variant; if the variant has the stop rule, replay that rule on its run."""
    run, arrives = variant.run, find_reached(federation, variant.run)
    if not variant.ruled:
        return Outcome(sum_of(federation, run, "rounds"), final_value(federation, run), arrives, None)
    ends = replay_rule(federation, run)
    return Outcome(ends.executed, ends.accuracy, limit_to_rule(arrives, ends), ends)


def tabulate_ablation(cells: Sequence[Cell]) -> Grid:
    """Return the effects of momentum and of the stop rule, a row for each variant."""
    rows = [row for each in group_cells(cells) for row in _list_variants(each)]
    headers = [
        "federation", "variant", "rounds executed", "the rule fires", "test accuracy", "first round with Retrain's final accuracy",
        "paper", "seeds",
    ]  # fmt: skip
    note = (
        "β 0 without the rule is Retrain, β 0.9 with it is FedUHB. The rule is replayed on recorded movements. FedAvg's server step is the one "
        "with the best mean final test accuracy, chosen on the test data, which favours it; β 0.9 was not chosen. "
        f"{_describe_coarse(cells)}The paper has no such table. {PLUS}"
    )
    return Grid("Ablation: momentum and stopping apart", headers, rows, frozenset({0, 1}), note)


def _describe_coarse(cells: Sequence[Cell]) -> str:
    """Return a note on federations in which too few server steps were tried."""
    found = [(each, step) for each in group_cells(cells) if (step := find_best_step(each)) is not None]
    notes = {each.label: describe_untried(each, step) for each, step in found}
    return "".join(
        f"{label}: step {step:g} is best {notes[label]}. "
        for (each, step) in found
        if notes[label := each.label]
    )


def _list_variants(federation: Federation) -> Iterator[list[str]]:
    printed = words.LAMBDA.get(federation.cells[0].place.data, {}).get(federation.cells[0].place.scale)
    paper = NOTHING if printed is None else f"{printed[0]} rounds, {format_percent(printed[1])}"
    for variant in list_variants(federation):
        found = replay_variant(federation, variant)
        yield [
            federation.label,
            variant.label,
            format_counts(found.rounds),
            NOTHING if found.ends is None else format_fired(found.ends),
            format_shares(found.accuracy),
            format_reached(found.reaches),
            paper if variant.run == UHB_ON and variant.ruled else NOTHING,
            format_seeds(federation, variant.run),
        ]
