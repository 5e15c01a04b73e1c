"""What the study must show: criteria, each with a verdict that follows from the cells of the reported seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from feduhb.report.words import join_names
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.study.choose import LATEST, Choice, read_choice
from feduhb_reproduction.study.design import PAPER, Ending, Study
from feduhb_reproduction.study.results import (
    Federations,
    Stopped,
    count_rounds,
    find_broken,
    list_missing,
    read_seeds,
    stop_federation,
    subtract_at_equal_work,
)

Verdict = Literal["holds", "does not hold", "cannot be judged"]
Seen = tuple[Verdict, str]  # and what was measured
MOST, AIM = 16, 13  # rounds to Retrain's accuracy for good
# Points: in every federation, in two thirds of them, in a single seed.
LOST, OFTEN_LOST, SEED_LOST = 1.0, 0.5, 3.0
OFTEN = 2 / 3  # of the federations: eight of twelve


@dataclass(frozen=True, slots=True)
class Results:
    """The part of a study that has been run: the reported seeds, and what was chosen without them."""

    study: Study
    choice: Choice | None
    reported: Federations
    tuned: Federations = field(default_factory=dict)  # the tuning seeds, as long as nothing is chosen
    confirmed: Federations = field(default_factory=dict)  # the seeds on which alone the chosen rule is judged

    @property
    def fast(self) -> str | None:
        """The fastest candidate's run; None before the choice."""
        return None if self.choice is None else self.choice.fast.run

    def stop(self, run: str, ending: Ending, federations: Federations | None = None) -> dict[str, Stopped]:
        """Return where a rule ends a run, by federation: of the reported seeds, or of others."""
        every = self.reported if federations is None else federations
        found = {label: stop_federation(one, run, ending, self.study.long) for label, one in every.items()}
        return {label: one for label, one in found.items() if one is not None}

    def list_rules(self) -> dict[str, Ending]:
        """Return the chosen rule of each family; none before the choice."""
        if self.choice is None or self.choice.rules is None:
            return {}
        chosen = self.choice.rules
        return {rules.family: rules.make()[chosen[rules.family].chosen] for rules in self.study.rules}


@dataclass(frozen=True, slots=True)
class Judged:
    """A criterion, what was measured, and whether it holds."""

    words: str
    verdict: Verdict
    measured: str


def read_results(study: Study, out: Path) -> Results:
    """Return a study from its folder. Once settings are chosen, only the cells of the reported seeds are read."""
    choice = read_choice(study, out)
    tuned = {} if choice is not None else read_seeds(study, out, study.tune)
    reported, confirmed = (read_seeds(study, out, seeds) for seeds in (study.report, study.confirm))
    return Results(study, choice, reported, tuned, confirmed)


def judge_study(results: Results) -> list[Judged]:
    """Judge every criterion."""
    n, long = results.study.count_federations(), results.study.long
    often = round(OFTEN * n)
    judges: list[tuple[str, Callable[[Results], Seen]]] = [
        (f"The recommended method keeps Retrain's accuracy from round {MOST} on or sooner, in each of {n} federations", partial(_see_rounds, most=MOST)),
        (f"The same from round {AIM} on, which is the aim", partial(_see_rounds, most=AIM)),
        (f"At FedRecover's client work, the recommended method is more accurate in each of {n} federations", partial(_see_work, rival="fedrecover")),
        ("The same at FedEraser's client work", partial(_see_work, rival="federaser")),
        (f"The chosen stop rule loses at most {LOST:g} point in each of {n} federations", partial(_see_stops, judge=partial(_judge_lost, most=LOST, least=n))),
        (f"It loses at most {OFTEN_LOST:g} points in {often} of {n} federations", partial(_see_stops, judge=partial(_judge_lost, most=OFTEN_LOST, least=often))),
        (f"It never loses more than {SEED_LOST:g} points in a single seed", partial(_see_stops, judge=_judge_seeds)),
        (f"It ends runs of {long} rounds by round {LATEST} on average", partial(_see_stops, judge=_judge_ends)),
    ]  # fmt: skip
    return [Judged(words, *judge(results)) for words, judge in judges]


def list_ahead(results: Results, run: str, rival: str) -> list[str]:
    """Return the federations in which a run is more accurate than another at that one's client work, as a mean over seeds.

    A rival that broke off with every seed is behind.
    """
    return [label for label, one in results.reported.items() if _is_ahead(one, run, rival)]


def _is_ahead(federation: Federation, run: str, rival: str) -> bool:
    if not federation.has(run) or find_broken(federation, run):
        return False
    mean = subtract_at_equal_work(federation, run, rival).mean
    return len(federation.failed(rival)) == len(federation.seeds) if mean is None else mean > 0


def _see_rounds(results: Results, *, most: float) -> Seen:
    fast, rounds = results.fast or PAPER, results.study.rounds
    missing = _explain_missing(results, {fast: rounds, RETRAIN: rounds})
    counted = {label: count_rounds(one, fast).mean for label, one in results.reported.items()}
    means = {label: mean for label, mean in counted.items() if mean is not None}
    if missing and not means:
        return "cannot be judged", missing
    late = [f"{label} ({mean:.1f})" for label, mean in means.items() if mean > most]
    broken = _name_broken(results.reported, RETRAIN)
    measured = [
        f"{min(means.values()):.1f} to {max(means.values()):.1f} rounds",
        *([f"later in {join_names(late)}"] if late else []),
        *([f"Retrain broke off {join_names(broken)}"] if broken else []),
    ]
    if missing:
        return "cannot be judged", f"{missing}; so far {'; '.join(measured)}"
    return "does not hold" if late or broken else "holds", "; ".join(measured)


def _see_work(results: Results, *, rival: str) -> Seen:
    if missing := _explain_missing(results, {results.fast or PAPER: results.study.rounds, rival: 1}):
        return "cannot be judged", missing
    n = results.study.count_federations()
    ahead, measured = len(list_ahead(results, results.fast or PAPER, rival)), ""
    if not _explain_missing(results, {PAPER: results.study.rounds}):  # its runs are made later
        measured = f"; FedUHB with the paper's settings in {len(list_ahead(results, PAPER, rival))}"
    return "holds" if ahead == n else "does not hold", f"ahead in {ahead} of {n}{measured}"


def _see_stops(results: Results, *, judge: Callable[[Mapping[str, Stopped]], Seen]) -> Seen:
    """Judge where the chosen rule ends the fastest method's runs. No criterion holds if one of them broke off."""
    judged = results.confirmed if results.study.confirm else results.reported
    seeds = results.study.confirm or results.study.report
    if missing := _explain_missing(results, {results.fast or PAPER: results.study.long}, judged, seeds):
        return "cannot be judged", missing
    if results.choice is None or results.choice.rule is None:
        return "cannot be judged", "no stop rule is chosen yet"
    if broken := _name_broken(judged, results.choice.fast.run, results.study.long):
        return "does not hold", f"a run broke off {join_names(broken)}"
    ending = results.list_rules()[results.choice.rule.family]
    return judge(results.stop(results.choice.fast.run, ending, judged))


def _judge_lost(found: Mapping[str, Stopped], *, most: float, least: int) -> Seen:
    worst = max(found, key=lambda label: found[label].mean_lost)
    kept = sum(one.mean_lost <= most for one in found.values())
    measured = f"in {kept} of {len(found)}; the most are {found[worst].mean_lost:.2f} points in {worst}"
    return "holds" if kept >= least else "does not hold", measured


def _judge_seeds(found: Mapping[str, Stopped]) -> Seen:
    worst = max(found, key=lambda label: max(found[label].lost))
    lost = max(found[worst].lost)
    return "holds" if lost <= SEED_LOST else "does not hold", f"at most {lost:.2f} points, in {worst}"


def _judge_ends(found: Mapping[str, Stopped]) -> Seen:
    mean = statistics.fmean(one.mean_end for one in found.values())
    fired, runs = sum(one.fired for one in found.values()), sum(len(one.ends) for one in found.values())
    measured = f"at round {mean:.1f} on average; it fires in {fired} of {runs} runs"
    return "holds" if mean <= LATEST else "does not hold", measured


def _name_broken(federations: Federations, run: str, rounds: int | None = None) -> list[str]:
    """Return where a run broke off within its first rounds, as many as Retrain's by default, with the seeds."""
    found = {label: find_broken(one, run, rounds) for label, one in federations.items()}
    return [
        f"in {label} with {'seed' if len(seeds) == 1 else 'seeds'} {join_names([str(seed) for seed in seeds])}"
        for label, seeds in found.items()
        if seeds
    ]


def _explain_missing(
    results: Results,
    runs: Mapping[str, int],
    federations: Federations | None = None,
    seeds: Sequence[int] | None = None,
) -> str:
    """Return what must be run before a criterion can be judged, on the reported seeds or on others; "" if nothing is missing."""
    if results.choice is None:
        return "not run: the settings are not chosen yet"
    n, wanted = results.study.count_federations(), results.study.report if seeds is None else seeds
    there = results.reported if federations is None else federations
    missing = list_missing(results.study, there, runs, wanted)
    words = f"seeds {', '.join(map(str, wanted))}"
    return f"not run: {n - len(missing)} of {n} federations have all of {words}" if missing else ""
