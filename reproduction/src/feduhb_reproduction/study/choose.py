"""Choose the settings of a study on its tuning seeds, and write them down with the reasons.

Only the cells of the tuning seeds are read. Once there are cells of reported seeds, the choice of methods stays.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from feduhb.errors import RunFolderError
from feduhb.report.words import join_names
from feduhb.runs import find_json, write_atomically
from feduhb_reproduction.cells import RETRAIN, cell_file
from feduhb_reproduction.study.design import Candidate, Ending, Study
from feduhb_reproduction.study.results import (
    DATA,
    Federations,
    Stopped,
    count_rounds,
    list_labels,
    list_missing,
    read_seeds,
    stop_federation,
)

FILE = "chosen.json"
LATEST = 60  # the mean round by which a stop rule must end runs
MARGIN = 5  # rounds before that on the tuning seeds, because others may end later
METHODS_BY = (
    "the fewest rounds to keep Retrain's final accuracy, in the federation where it needs the most, as a mean over the tuning "
    "seeds; then the fewest on average over federations. A run that never keeps it counts with one round more than were run."
)
LIMITED_BY = (
    "A candidate that needs more than {limit} rounds in a federation of {first} on the first tuning seed is not run on {others}, and not compared "
    "further; at least the best {n} are. A family with no other candidate is not reported, except for the controls: FedAvg with a longer step, and FedUHB."
)
FINALISTS_BY = (
    "The {n} candidates with the fewest rounds in their worst federation on the first tuning seed run on the others too, with Retrain, and only "
    "these are compared further. Another family is reported with its best on the first seed."
)
RULES_BY = (
    f"of the settings that end by round {LATEST - MARGIN} on average, {MARGIN} before the criterion's {LATEST} because other seeds may end later, the one that loses the fewest points in the federation where it loses the "
    "most, as a mean over the tuning seeds; then the one that ends sooner. If none ends by then, the one that ends first."
)


@dataclass(frozen=True, slots=True)
class Score:
    """The rounds of a candidate: in the worst federation, on average, and in each."""

    worst: float
    mean: float
    rounds: Mapping[str, float]

    @property
    def rank(self) -> tuple[float, float]:
        """The key by which candidates are ranked, see `METHODS_BY`."""
        return self.worst, self.mean


@dataclass(frozen=True, slots=True)
class MethodFamily:
    """The run that was chosen of a family of methods, and the scores of all; None is chosen of a family that is not reported."""

    chosen: str | None
    tried: Mapping[str, Score]


@dataclass(frozen=True, slots=True)
class Fast:
    """The run with the fewest rounds of all."""

    run: str
    method: str
    settings: Mapping[str, int | float]
    why: str


@dataclass(frozen=True, slots=True)
class RuleScore:
    """The mean end of a rule over federations, the points lost in the worst of them and in the worst seed, and the seeds that fired."""

    mean_end: float
    worst_lost: float
    worst_seed: float
    fired: int

    @property
    def rank(self) -> tuple[bool, float, float]:
        """The key by which rules are ranked, see `RULES_BY`."""
        if self.mean_end > LATEST - MARGIN:
            return True, self.mean_end, self.worst_lost
        return False, self.worst_lost, self.mean_end


@dataclass(frozen=True, slots=True)
class RuleFamily:
    """The settings that were chosen of a family of stop rules, and the scores of all."""

    chosen: str
    tried: Mapping[str, RuleScore]


@dataclass(frozen=True, slots=True)
class BestRule:
    """The best of the chosen rules."""

    family: str
    settings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, with the reasons: a candidate of each family, the fastest of all, and a setting of each family of stop rules."""

    seeds: tuple[int, ...]
    methods_by: str
    limited_by: str = ""
    contenders: tuple[str, ...] = ()  # empty: all candidates
    finalists_by: str = ""
    finalists: tuple[str, ...] = ()  # empty: all candidates
    methods: Mapping[str, MethodFamily]
    fast: Fast
    rules_by: str
    rules: Mapping[str, RuleFamily] | None  # None before the rules were chosen
    rule: BestRule | None

    @property
    def families(self) -> dict[str, str]:
        """The chosen run of each family of methods that is reported."""
        return {family: one.chosen for family, one in self.methods.items() if one.chosen is not None}


def read_choice(study: Study, out: Path) -> Choice | None:
    """Return what was chosen; None if nothing was; raise RunFolderError for a choice of another study."""
    path = out / FILE
    found = find_json(path, Choice, "delete it, and feduhb study chooses again")
    if found is None:
        return None
    tried = [name for one in found.methods.values() for name in one.tried]
    known = {rules.family: [*rules.make()] for rules in study.rules}
    rules = None if found.rules is None else {family: [*one.tried] for family, one in found.rules.items()}
    if (
        sorted(tried) != sorted(one.name for one in study.list_candidates())
        or found.seeds != study.tune
        or rules not in (None, known)
    ):
        raise RunFolderError(
            f"{path} was chosen among other candidates, rules or seeds; delete it to choose again, or choose another --out"
        )
    return found


def choose(study: Study, out: Path) -> Choice | None:
    """Choose as far as the tuning cells allow, write the file and return it; None if the tuning is not complete.

    Raises:
        RunFolderError: the tuning cells say something else than the choice with which reported cells were made.
    """
    before = read_choice(study, out)
    tuned, contenders, finalists = (
        read_seeds(study, out, study.tune), find_contenders(study, out), find_finalists(study, out),
    )  # fmt: skip
    if not finalists or list_missing(study, tuned, dict.fromkeys(finalists, study.rounds), study.tune):
        return before
    methods, fast = _choose_methods(
        study, tuned, read_seeds(study, out, study.tune[:1]), contenders, finalists
    )
    rules = None
    if not list_missing(study, tuned, {fast.run: study.long}, study.tune):
        rules = _choose_rules(study, tuned, fast.run)
    best = None if rules is None else min(rules, key=lambda family: _score_chosen(rules[family]).rank)
    found = Choice(
        seeds=study.tune, methods_by=METHODS_BY, methods=methods, fast=fast, rules_by=RULES_BY, rules=rules,
        rule=None if best is None or rules is None else BestRule(best, rules[best].chosen),
        limited_by=describe_limit(study), contenders=() if study.limit is None else tuple(contenders),
        finalists_by=describe_finalists(study), finalists=() if study.finalists is None else tuple(finalists),
    )  # fmt: skip
    if before is not None and before != found:
        _refuse_change(study, out, before, found)
    if before != found:
        record = {key: value for key, value in asdict(found).items() if value not in ("", ())}
        content = json.dumps(record, indent=1, allow_nan=False) + "\n"
        write_atomically(out / FILE, content.encode(), private=False)
    return found


def _refuse_change(study: Study, out: Path, before: Choice, found: Choice) -> None:
    """Raise RunFolderError if reported cells were made with other methods, or with another as the fastest."""
    old, new = ([*one.families.values(), one.fast.run] for one in (before, found))
    # Before rules are chosen, cells of reported seeds hold only runs that depend on no choice.
    reported = before.rule is not None and any(
        cell_file(out / place.data, place).exists() for place in study.places((*study.report, *study.confirm))
    )
    if reported and old != new:
        differs = next((pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]), (old, new))
        raise RunFolderError(
            f"the tuning cells in {out} now choose {differs[1]}, but reported cells were made with {differs[0]}; "
            f"restore the tuning cells, or delete {FILE} and the cells of seeds {', '.join(map(str, (*study.report, *study.confirm)))}"
        )


def describe_limit(study: Study) -> str:
    """Return by what candidates run on the later data sets; "" if all do."""
    if study.limit is None:
        return ""
    first, *others = [DATA.get(name, name) for name in study.data]
    return LIMITED_BY.format(
        limit=study.limit, first=first, others=join_names(others), n=study.finalists or 1
    )


def describe_finalists(study: Study) -> str:
    """Return by what candidates run on the later tuning seeds; "" if all do."""
    return "" if study.finalists is None else FINALISTS_BY.format(n=study.finalists)


def find_contenders(study: Study, out: Path) -> list[str]:
    """Return the candidates that run on every data set, see `LIMITED_BY`; none before the first data set is complete."""
    names, seeds = [one.name for one in study.list_candidates()], study.tune[:1]
    first = read_seeds(study, out, seeds)
    runs = dict.fromkeys(names, study.rounds)
    if study.limit is not None and list_missing(study, first, runs, seeds, study.data[0]):
        return []
    return guess_contenders(study, out)


def guess_contenders(study: Study, out: Path) -> list[str]:
    """Return the same as `find_contenders`, as far as the first data set was run."""
    names = [one.name for one in study.list_candidates()]
    if study.limit is None:
        return names
    every, labels = read_seeds(study, out, study.tune[:1]), list_labels(study, study.data[0])
    first = {label: every[label] for label in labels if label in every}
    scores = {name: score_candidate(first, name) for name in names if name != RETRAIN}
    ranked = sorted(scores, key=lambda name: scores[name].rank)
    within = sum(one.worst <= study.limit for one in scores.values())
    return [RETRAIN, *ranked[: max(within, study.finalists or 1)]]


def find_finalists(study: Study, out: Path) -> list[str]:
    """Return the candidates that run on every tuning seed, see `FINALISTS_BY`; none before the first seed is complete."""
    contenders = find_contenders(study, out)
    if study.finalists is None:
        return contenders
    first, runs = read_seeds(study, out, study.tune[:1]), dict.fromkeys(contenders, study.rounds)
    if not contenders or list_missing(study, first, runs, study.tune[:1]):
        return []
    others = [name for name in contenders if name != RETRAIN]
    others.sort(key=lambda name: score_candidate(first, name).rank)
    return [RETRAIN, *others[: study.finalists]]


def score_candidate(tuned: Federations, run: str) -> Score:
    """Return the rounds of a candidate in the federations where it was run."""
    found = {label: count_rounds(one, run).mean for label, one in tuned.items()}
    rounds = {label: mean for label, mean in found.items() if mean is not None}
    return Score(max(rounds.values(), default=0.0), statistics.fmean(rounds.values() or [0.0]), rounds)


def _choose_methods(
    study: Study, tuned: Federations, first: Federations, contenders: Sequence[str], finalists: Sequence[str]
) -> tuple[dict[str, MethodFamily], Fast]:
    every = study.list_candidates()
    scores = {one.name: score_candidate(tuned if one.name in finalists else first, one.name) for one in every}

    def rank(one: Candidate) -> tuple[bool, bool, float, float]:
        return one.name not in finalists, one.name not in contenders, *scores[one.name].rank

    methods: dict[str, MethodFamily] = {}
    for family, those in study.list_families().items():
        best = min(those, key=rank)
        is_reported = best.name in contenders or best.is_control
        methods[family] = MethodFamily(
            best.name if is_reported else None, {one.name: scores[one.name] for one in those}
        )
    fast, second, *_ = sorted(every, key=rank)
    mine, next_one = scores[fast.name], scores[second.name]
    why = (
        f"{fast.label} needs at most {mine.worst:.1f} rounds in a federation and {mine.mean:.1f} on average over "
        f"{len(mine.rounds)}, on seeds {', '.join(map(str, study.tune))}; the next is {second.label} with {next_one.worst:.1f} and {next_one.mean:.1f}"
    )
    return methods, Fast(fast.name, fast.method, dict(fast.settings), why)


def _choose_rules(study: Study, tuned: Federations, run: str) -> dict[str, RuleFamily]:
    """Return the scores of each family of rules on the fastest method's runs, and the chosen settings."""
    found: dict[str, RuleFamily] = {}
    for rules in study.rules:
        tried = {words: score_rule(study, tuned, run, ending) for words, ending in rules.make().items()}
        found[rules.family] = RuleFamily(min(tried, key=lambda words, tried=tried: tried[words].rank), tried)
    return found


def score_rule(study: Study, federations: Federations, run: str, ending: Ending) -> RuleScore:
    """Return where a rule ends runs and what is lost. A run that broke off before the rule fired loses all points."""
    found = [stop_federation(each, run, ending, study.long) for each in federations.values()]
    return summarise_stops([one for one in found if one is not None])


def summarise_stops(found: Sequence[Stopped]) -> RuleScore:
    """Return the score of a rule that ends runs so in some federations."""
    return RuleScore(
        mean_end=statistics.fmean(one.mean_end for one in found),
        worst_lost=max(one.mean_lost for one in found),
        worst_seed=max(max(one.lost) for one in found),
        fired=sum(one.fired for one in found),
    )


def _score_chosen(family: RuleFamily) -> RuleScore:
    return family.tried[family.chosen]
