"""What a study measured: its cells by group of seeds, and the numbers of runs and stop rules in each federation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from feduhb import replay
from feduhb.errors import RunFolderError
from feduhb.runs import find_difference
from feduhb.stopping import Series
from feduhb_reproduction.cells import RETRAIN, Cell, Place, Track, cell_file
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import ACCURACY, Spread, find_first, find_kept_from
from feduhb_reproduction.study.design import SMOOTH, Ending, Keep, Study

DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
Federations = Mapping[str, Federation]  # by label, in the order of the study


def read_seeds(study: Study, out: Path, seeds: Sequence[int]) -> Federations:
    """Return the federations with the cells of these seeds. Files of other seeds are not opened.

    Raises:
        RunFolderError: a cell is damaged, or was made with other settings than the study's.
    """
    found: dict[tuple[str, str, int | None], list[Cell]] = {}
    for place in study.places(seeds):
        path = cell_file(out / place.data, place)
        if path.exists():
            cell = read_cell(path, place)
            found.setdefault((place.data, place.partition, place.per_client), []).append(cell)
    kept = {key: Federation(*key[1:], False, tuple(sorted(cells, key=lambda one: one.place.seed))) for key, cells in found.items()}  # fmt: skip
    return {label_federation(one.cells[0].place): one for one in kept.values()}


def read_cell(path: Path, place: Place) -> Cell:
    """Return the cell of a place; raise RunFolderError if its file was made with other settings."""
    cell = Cell.read(path)
    if difference := find_difference(cell.place.as_json(), place.as_json()):
        raise RunFolderError(f"{path} was made with {difference}; choose another --out for this study")
    return cell


def label_federation(place: Place) -> str:
    """Return the name of a place's federation for tables and figures."""
    size = "all" if place.per_client is None else f"{place.per_client:,}"
    kind, _, detail = place.partition.partition(":")
    short = {"iid": "iid", "dirichlet": f"Dirichlet {detail}", "shards": f"{detail} classes"}[kind]
    return f"{DATA.get(place.data, place.data)} {size}, {short}"


def list_labels(study: Study, data: str | None = None) -> list[str]:
    """Return the names of all federations of a study, or of those with one of its data sets."""
    return [label_federation(place) for place in study.places(study.tune[:1]) if data in {None, place.data}]


def cut_tracks(federation: Federation, run: str, rounds: int | None = None) -> dict[int, Track]:
    """Return a run's first rounds by seed, as many as Retrain's by default, including those that broke off in them."""
    last = federation.rounds if rounds is None else rounds
    return {seed: cut_track(track, last) for seed, track in federation.every(run).items()}


def cut_track(track: Track, rounds: int) -> Track:
    """Return the first rounds of a run. A run that broke off later is whole."""
    if track.rounds <= rounds:
        return track
    series = {name: values[:rounds] for name, values in track.series.items()}
    sums = {name: value * rounds / track.rounds for name, value in track.sums.items() if name in {"client_epochs", "client_rounds"}}  # fmt: skip
    return replace(track, series=series, sums=sums, scores={}, weights="", failed=None)


def find_broken(federation: Federation, run: str, rounds: int | None = None) -> list[int]:
    """Return the seeds with which a run broke off in its first rounds, as many as Retrain's by default."""
    return [seed for seed, track in cut_tracks(federation, run, rounds).items() if track.failed is not None]


def find_rounds(federation: Federation, run: str, *, kept: bool = True) -> dict[int, int | None]:
    """Return the round with Retrain's final accuracy by seed, for good or for the first time; None for never.

    If Retrain broke off with a seed, no run ever has its accuracy there. Seeds without Retrain are left out.
    """
    find = find_kept_from if kept else find_first
    goals = {
        seed: math.inf if track.failed is not None else track.of(ACCURACY)[-1]
        for seed, track in cut_tracks(federation, RETRAIN).items()
    }
    return {
        seed: find(track, goals[seed]) for seed, track in cut_tracks(federation, run).items() if seed in goals
    }


def count_rounds(federation: Federation, run: str, *, kept: bool = True) -> Spread:
    """Return the rounds of `find_rounds`; one more than were run for never."""
    found = find_rounds(federation, run, kept=kept).values()
    return Spread(tuple(float(n or federation.rounds + 1) for n in found))


def count_client_epochs(federation: Federation, run: str) -> Spread:
    """Return the client epochs up to the round from which a run keeps Retrain's final accuracy, of the seeds that do."""
    found, tracks = find_rounds(federation, run), federation.every(run)
    return Spread(tuple(_epochs_a_round(tracks[seed]) * n for seed, n in found.items() if n is not None))


def score_final(federation: Federation, run: str, series: str = ACCURACY) -> Spread:
    """Return the last value of a series after as many rounds as Retrain had, of the seeds that had so many."""
    tracks = cut_tracks(federation, run).values()
    return Spread(tuple(track.of(series)[-1] for track in tracks if track.failed is None))


def subtract_at_equal_work(federation: Federation, run: str, other: str) -> Spread:
    """Return by how much an exact run's accuracy exceeds another's final one after as many client epochs, by seed.

    The exact run has as many whole rounds as the other's client epochs pay for, and not more than Retrain. Runs that broke off
    until then are left out.
    """
    ours, theirs = cut_tracks(federation, run), federation.tracks(other)
    found: list[float] = []
    for seed in sorted({*ours} & {*theirs}):
        track, rival = ours[seed], theirs[seed]
        if track.failed is None:
            paid = math.floor(rival.sums["client_epochs"] / _epochs_a_round(track) + 1e-9)
            if paid:
                found.append(track.of(ACCURACY)[min(paid, track.rounds) - 1] - rival.of(ACCURACY)[-1])
    return Spread(tuple(found))


def _epochs_a_round(track: Track) -> float:
    return track.sums["client_epochs"] / track.rounds


@dataclass(frozen=True, slots=True)
class Stopped:
    """Where a stop rule ends the runs of a federation, by seed."""

    ends: tuple[int, ...]  # rounds; all of them where the rule does not fire
    # Points of accuracy of the kept model below the best mean of five rounds; all 100 if the run broke off before the end.
    lost: tuple[float, ...]
    fired: int  # seeds

    @property
    def mean_end(self) -> float:
        """The mean round."""
        return statistics.fmean(self.ends)

    @property
    def mean_lost(self) -> float:
        """The mean of the points lost."""
        return statistics.fmean(self.lost)


def stop_federation(federation: Federation, run: str, ending: Ending, rounds: int) -> Stopped | None:
    """Replay a rule on the seeds whose run has all ``rounds`` rounds or broke off; None if there are none.

    A run that broke off may have recorded nothing for rules: no rule ends it.
    """
    tracks = [track for track in federation.every(run).values() if is_whole(track, rounds)]
    if not tracks:
        return None
    ends = [
        None
        if track.failed is not None and not track.of("held_out_loss")
        else replay(ending.rule, make_series(track))
        for track in tracks
    ]
    lost = tuple(_lose_points(track, end, ending.keep) for track, end in zip(tracks, ends, strict=True))
    return Stopped(tuple(end or rounds for end in ends), lost, sum(end is not None for end in ends))


def make_series(track: Track) -> Series:
    """Return what a run recorded for stop rules."""
    return Series(
        moved=track.of("moved"), distance=track.of("distance"), loss=track.of("held_out_loss"), score=track.of("held_out_accuracy"),
    )  # fmt: skip


def _lose_points(track: Track, end: int | None, keep: Keep) -> float:
    """Return the points of the kept model below the best mean of a run; all of them if the run broke off before its rule fired."""
    values = track.of(ACCURACY)
    if end is None and track.failed is not None:
        return 100.0
    smooth = min(SMOOTH, len(values))
    best = max(statistics.fmean(values[n - smooth : n]) for n in range(smooth, len(values) + 1))
    last = end or len(values)
    kept = make_series(track).first(last).find_best() if keep == "best" else None
    return 100 * (best - values[(kept or last) - 1])


def list_missing(
    study: Study,
    federations: Federations,
    runs: Mapping[str, int],
    seeds: Sequence[int],
    data: str | None = None,
) -> list[str]:
    """Return the federations that lack a run, by name with its rounds, with any of the seeds. A run that broke off counts as present.

    Args:
        data: look only at the federations with this data set.
    """
    return [
        label
        for label in list_labels(study, data)
        if label not in federations
        or any(not has_run(federations[label], run, rounds, seeds) for run, rounds in runs.items())
    ]


def has_run(federation: Federation, run: str, rounds: int, seeds: Sequence[int]) -> bool:
    """Whether every seed has a run of this number of rounds, or one that broke off."""
    tracks = federation.every(run)
    return all(seed in tracks and is_whole(tracks[seed], rounds) for seed in seeds)


def is_whole(track: Track, rounds: int | None) -> bool:
    """Whether a run has this number of rounds, or broke off; None asks for no number."""
    return rounds is None or track.rounds >= rounds or track.failed is not None
