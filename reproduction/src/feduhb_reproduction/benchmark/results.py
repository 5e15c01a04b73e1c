"""The numbers of a benchmark: its cells by federation, and what each method left behind and cost, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feduhb.methods import METHODS, list_needs, make_method
from feduhb_reproduction.benchmark.make import REFUSED, UNLEARNED
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, Place, Track, read_cells
from feduhb_reproduction.claims import parts
from feduhb_reproduction.federations import Federation, group_cells
from feduhb_reproduction.measures import ACCURACY, Spread

DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "breast-cancer": "breast cancer"}
LOSS, CHANGE, LIRA = "loss", "change of confidence", "LiRA"
ATTACKS = LOSS, CHANGE  # those on every model
CHANCE = 0.5  # AUC
CLOSE = 0.01  # of accuracy below Retrain's that is still close
PLANTED = 0.05  # of triggered images above Retrain's share: the backdoor is still there
Federations = Mapping[str, Federation]  # by label


def read_federations(folder: Path) -> Federations:
    """Return the federations of a benchmark's folder by label; none if it has no cells."""
    cells = read_cells(folder / "cells")
    found = (
        [one for backdoor in (False, True) for one in group_cells(cells, backdoor=backdoor)] if cells else []
    )
    return {label_federation(one.cells[0].place, one): one for one in found}


def label_federation(place: Place, federation: Federation) -> str:
    """Return the name of a federation for tables and figures."""
    return f"{DATA.get(place.data, place.data)} ({federation.short})"


def list_names(federations: Sequence[Federation]) -> list[str]:
    """Return the names of all runs, in the order of the methods, then those of others."""
    there = {name for one in federations for cell in one.cells for name in cell.runs}
    return [name for name in METHODS if name in there] + sorted(name for name in there if name not in METHODS)


def name_method(run: str) -> str:
    """Return the name of a method for tables."""
    return METHODS[run].__name__ if run in METHODS else run


def is_exact(federations: Sequence[Federation], run: str) -> bool:
    """Whether the method of a run claims to be exact."""
    return any(track.exact for one in federations for track in one.tracks(run).values())


def explain_refusal(federation: Federation, run: str) -> str | None:
    """Return why a method refused the request; None if it did not."""
    refused = [track.failed for track in federation.every(run).values() if track.stopped == REFUSED]
    return refused[0] if refused else None


def has_served(federation: Federation, run: str) -> bool:
    """Whether a method was run, and did not refuse the request."""
    return federation.has(run) and explain_refusal(federation, run) is None


def list_served(federation: Federation) -> list[str]:
    """Return the names of the runs whose methods did not refuse the request."""
    return [name for name in list_names([federation]) if has_served(federation, name)]


def list_broken(federation: Federation) -> list[str]:
    """Return a line for each method that refused the request, broke off in some seeds, or was not run with all of them."""
    lines = []
    for name in list_names([federation]):
        if why := explain_refusal(federation, name):
            lines.append(f"{name_method(name)} refused: {why}.")
        elif failed := federation.failed(name):
            lines.append(
                f"{name_method(name)} broke off in {len(failed)} of {len(federation.every(name))} seeds: {next(iter(failed.values()))}."
            )
        if (count := len(federation.every(name))) < len(federation.cells):
            lines.append(
                f"{name_method(name)} was run with {count} of {len(federation.cells)} seeds; its row is not over the seeds of the others."
            )
    return lines


def measure_membership(federation: Federation, run: str, attack: str = LOSS) -> Spread:
    """Return the AUC of an attack on the canaries minus what it is for a model that never saw them, by seed.

    That is Retrain's on the same examples, or 1/2 if the attack itself compares the model with Retrain.
    """
    return _collect(federation, run, lambda track: _pair(track, attack, UNLEARNED))


def measure_original(federation: Federation, attack: str = LOSS) -> Spread:
    """Return the same of the model that forgot nothing: what there is to find."""
    return _collect(federation, RETRAIN, lambda track: _pair(track, attack, ORIGINAL))


def _pair(track: Track, attack: str, model: str) -> float | None:
    found = [one for one in track.audit["membership"] if one["attack"] == attack and one["canaries"]]
    if not found:
        return None
    return found[0]["auc"][model] - (CHANCE if attack == CHANGE else found[0]["auc"][RETRAIN])


def measure_backdoor(federation: Federation, run: str, model: str = UNLEARNED) -> Spread:
    """Return the share of triggered test images with the target as their label, for a run's model or for a control."""
    return _collect(federation, run, lambda track: (track.audit["backdoor"] or {}).get(model))


def measure_planted(federation: Federation, run: str) -> Spread:
    """Return by how much the backdoor works more often than in Retrain, by seed."""
    pairs = zip(measure_backdoor(federation, run).values, measure_backdoor(federation, run, RETRAIN).values, strict=True)  # fmt: skip
    return Spread(tuple(left - base for left, base in pairs))


def measure_distance(federation: Federation, run: str) -> Spread:
    """Return the distance of the weights to Retrain's."""
    return _collect(federation, run, lambda track: (track.audit["distance"] or {}).get("l2"))


def measure_relearn(federation: Federation, run: str) -> Spread:
    """Return the rounds to relearn the forgotten data; one more than were tried for never."""

    def count(track: Track) -> float | None:
        found = track.audit["relearn"]
        if found is None:
            return None
        return float(found["most"] + 1 if found[UNLEARNED] is None else found[UNLEARNED])

    return _collect(federation, run, count)


def sum_costs(federation: Federation, run: str, *names: str) -> Spread:
    """Return the sum of some costs, by seed."""
    return _collect(federation, run, lambda track: float(sum(track.sums[name] for name in names)))


def list_requirements(federations: Sequence[Federation], run: str) -> list[str]:
    """Return in words what a method needs beyond sums of updates and the training's settings."""
    if run in METHODS:
        return list_needs(make_method(run))
    found = [track.audit for one in federations for track in one.tracks(run).values() if track.audit]
    return list(dict.fromkeys(need for audit in found for need in audit["requires"]))


def _collect(federation: Federation, run: str, measure: Callable[[Track], Any]) -> Spread:
    values = [measure(track) for track in federation.tracks(run).values() if track.audit]
    return Spread(tuple(value for value in values if value is not None))


def is_clear(difference: Spread) -> bool:
    """Whether a mean over seeds is above 0 by Student's 95 % interval. One seed alone shows nothing."""
    return difference.n > 1 and parts.is_clear(difference)


def leaks(federation: Federation, run: str) -> bool:
    """Whether one of the attacks clearly finds the canaries, and has the power to."""
    return any(
        has_power(federation, attack) and is_clear(measure_membership(federation, run, attack))
        for attack in ATTACKS
    )


def has_power(federation: Federation, attack: str = LOSS) -> bool:
    """Whether an attack clearly finds the canaries in the original."""
    return is_clear(measure_original(federation, attack))


def keeps_backdoor(federation: Federation, run: str) -> bool:
    """Whether the backdoor works clearly, and by some points, more often than in Retrain."""
    found = measure_planted(federation, run)
    return found.mean is not None and found.mean > PLANTED and is_clear(found)


def measure_gain(federation: Federation, run: str) -> Spread:
    """Return the final accuracy minus Retrain's of the same seed."""
    goals = federation.tracks(RETRAIN)
    pairs = [
        (t.of(ACCURACY), goals[seed].of(ACCURACY))
        for seed, t in federation.tracks(run).items()
        if seed in goals
    ]
    return Spread(tuple(mine[-1] - goal[-1] for mine, goal in pairs if mine and goal))


def is_close(federation: Federation, run: str) -> bool:
    """Whether the accuracy is at most a point below Retrain's of the same seeds, on average, and no seed broke off."""
    gain = measure_gain(federation, run).mean
    return gain is not None and gain >= -CLOSE and not federation.failed(run)
