"""Choose the settings of a study on its tuning seeds, and write them down with the reasons.

Only the cells of the tuning seeds are read. Once there are cells of reported seeds, the choice of methods stays.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feduhb.errors import RunFolderError
from feduhb.runs import write_atomically
from feduhb.stopping import StopRule
from feduhb_reproduction.cells import RETRAIN, cell_file
from feduhb_reproduction.study.design import Candidate, Study
from feduhb_reproduction.study.results import (
    Federations,
    Stopped,
    count_rounds,
    list_missing,
    read_seeds,
    stop_federation,
)

FILE = "chosen.json"
LATEST = 60  # the mean round by which a stop rule must end runs
METHODS_BY = (
    "the fewest rounds to keep Retrain's final accuracy, in the federation where it needs the most, as a mean over the tuning "
    "seeds; then the fewest on average over federations. A run that never keeps it counts with one round more than were run."
)
FINALISTS_BY = (
    "Every candidate runs on the first tuning seed. The {n} with the fewest rounds in their worst federation there run on the others too, with "
    "Retrain, and only these are compared further. A family without any of them is reported with its best on the first seed."
)
RULES_BY = (
    f"of the settings that end by round {LATEST} on average, the one that loses the fewest points in the federation where it loses the "
    "most, as a mean over the tuning seeds; then the one that ends sooner. If none ends by then, the one that ends first."
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen: a candidate of each family, the fastest of all, and a setting of each family of stop rules."""

    record: Mapping[str, Any]  # as in the file, with the reasons

    @property
    def families(self) -> dict[str, str]:
        """The chosen run of each family of methods."""
        return {family: one["chosen"] for family, one in self.record["methods"].items()}

    @property
    def fast(self) -> str:
        """The run with the fewest rounds of all."""
        return self.record["fast"]["run"]

    @property
    def rules(self) -> dict[str, str]:
        """The chosen settings of each family of stop rules; empty before the rules were chosen."""
        return {family: one["chosen"] for family, one in (self.record["rules"] or {}).items()}

    @property
    def rule(self) -> str | None:
        """The family of the best rule; None before the rules were chosen."""
        return self.record["rule"]["family"] if self.record["rule"] else None


def read_choice(study: Study, out: Path) -> Choice | None:
    """Return what was chosen; None if nothing was; raise RunFolderError for a choice of another study."""
    path = out / FILE
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        tried = [name for one in record["methods"].values() for name in one["tried"]]
        seeds, rules = record["seeds"], record["rules"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"{path} is damaged ({error!r}); delete it, and feduhb study chooses again"
        ) from None
    known = {rules.family: [*rules.make()] for rules in study.rules}
    if (
        sorted(tried) != sorted(one.name for one in study.list_candidates())
        or seeds != list(study.tune)
        or (rules is not None and {family: [*one["tried"]] for family, one in rules.items()} != known)
    ):
        raise RunFolderError(
            f"{path} was chosen among other candidates, rules or seeds; delete it to choose again, or choose another --out"
        )
    return Choice(record)


def choose(study: Study, out: Path) -> Choice | None:
    """Choose as far as the tuning cells allow, write the file and return it; None if the tuning is not complete.

    Raises:
        RunFolderError: the tuning cells say something else than the choice with which reported cells were made.
    """
    before = read_choice(study, out)
    tuned = read_seeds(study, out, study.tune)
    finalists = find_finalists(study, out)
    if not finalists or list_missing(study, tuned, dict.fromkeys(finalists, study.rounds), study.tune):
        return before
    methods, fast = _choose_methods(study, tuned, read_seeds(study, out, study.tune[:1]), finalists)
    families = {family: one["chosen"] for family, one in methods.items()}
    if before is not None and before.families != families and _has_reported(study, out):
        other = next(family for family in families if before.families[family] != families[family])
        raise RunFolderError(
            f"the tuning cells in {out} now choose {families[other]}, but reported cells were made with {before.families[other]}; "
            f"restore the tuning cells, or delete {FILE} and the cells of seeds {', '.join(map(str, study.report))}"
        )
    rules = None
    if not list_missing(study, tuned, {fast.name: study.long}, study.tune):
        rules = _choose_rules(study, tuned, fast.name)
    best = None if rules is None else min(rules, key=lambda family: _rank_record(rules[family]))
    record = {
        "seeds": list(study.tune),
        "methods_by": METHODS_BY,
        **({} if study.finalists is None else {"finalists_by": FINALISTS_BY.format(n=study.finalists), "finalists": finalists}),
        "methods": methods,
        "fast": {"run": fast.name, "method": fast.method, "settings": dict(fast.settings), "why": _explain(study, methods, fast, finalists)},
        "rules_by": RULES_BY,
        "rules": rules,
        "rule": None if best is None or rules is None else {"family": best, "settings": rules[best]["chosen"]},
    }  # fmt: skip
    if before is None or before.record != record:
        write_atomically(
            out / FILE, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode(), private=False
        )
    return Choice(record)


def find_finalists(study: Study, out: Path) -> list[str]:
    """Return the candidates that run on every tuning seed, see `FINALISTS_BY`; none before the first seed is complete."""
    names = [one.name for one in study.list_candidates()]
    if study.finalists is None:
        return names
    first = read_seeds(study, out, study.tune[:1])
    if list_missing(study, first, dict.fromkeys(names, study.rounds), study.tune[:1]):
        return []
    others = sorted(
        (name for name in names if name != RETRAIN), key=lambda name: _rank(score_candidate(first, name))
    )
    return [RETRAIN, *others[: study.finalists]]


def score_candidate(tuned: Federations, run: str) -> dict[str, Any]:
    """Return the rounds of a candidate: in each federation, in the worst of them, and on average."""
    rounds = {label: statistics.fmean(count_rounds(one, run).values) for label, one in tuned.items()}
    return {"worst": max(rounds.values()), "mean": statistics.fmean(rounds.values()), "rounds": rounds}


def _rank(score: Mapping[str, Any]) -> tuple[float, float]:
    return score["worst"], score["mean"]


def _choose_methods(
    study: Study, tuned: Federations, first: Federations, finalists: Sequence[str]
) -> tuple[dict[str, Any], Candidate]:
    names = [one.name for one in study.list_candidates()]
    scores = {name: score_candidate(tuned if name in finalists else first, name) for name in names}

    def rank(candidate: Candidate) -> tuple[bool, float, float]:
        return candidate.name not in finalists, *_rank(scores[candidate.name])

    methods = {
        family: {"chosen": min(those, key=rank).name, "tried": {one.name: scores[one.name] for one in those}}
        for family, those in study.list_families().items()
    }
    return methods, min(study.list_candidates(), key=rank)


def _explain(study: Study, methods: Mapping[str, Any], fast: Candidate, finalists: Sequence[str]) -> str:
    found = {
        name: one for family in methods.values() for name, one in family["tried"].items() if name in finalists
    }
    mine = found[fast.name]
    others = sorted((one["worst"], one["mean"], name) for name, one in found.items() if name != fast.name)
    worst, mean, name = others[0]
    label = next(one.label for one in study.list_candidates() if one.name == name)
    return (
        f"{fast.label} needs at most {mine['worst']:.1f} rounds in a federation and {mine['mean']:.1f} on average over "
        f"{len(mine['rounds'])}, on seeds {', '.join(map(str, study.tune))}; the next is {label} with {worst:.1f} and {mean:.1f}"
    )


def _choose_rules(study: Study, tuned: Federations, run: str) -> dict[str, Any]:
    """Return the tried settings of each family of rules on the fastest method's runs, and the chosen one."""
    found: dict[str, Any] = {}
    for rules in study.rules:
        tried = {words: score_rule(study, tuned, run, rule) for words, rule in rules.make().items()}
        found[rules.family] = {
            "chosen": min(tried, key=lambda words, tried=tried: rank_rule(tried[words])),
            "tried": tried,
        }
    return found


def score_rule(study: Study, federations: Federations, run: str, rule: StopRule) -> dict[str, float]:
    """Return the mean round at which a rule ends runs, and the points that it loses in the worst federation and seed."""
    found = [one for each in federations.values() if (one := stop_federation(each, run, rule, study.long))]
    return summarise_stops(found)


def summarise_stops(found: Sequence[Stopped]) -> dict[str, float]:
    """Return the mean end over federations, the points lost in the worst of them and in the worst seed, and the seeds that fired."""
    return {
        "mean_end": statistics.fmean(one.mean_end for one in found),
        "worst_lost": max(one.mean_lost for one in found),
        "worst_seed": max(max(one.lost) for one in found),
        "fired": sum(one.fired for one in found),
    }


def rank_rule(score: Mapping[str, float]) -> tuple[bool, float, float]:
    """Return the key by which rules are ranked, see `RULES_BY`."""
    late = score["mean_end"] > LATEST
    return (
        (late, score["mean_end"], score["worst_lost"])
        if late
        else (late, score["worst_lost"], score["mean_end"])
    )


def _rank_record(family: Mapping[str, Any]) -> tuple[bool, float, float]:
    return rank_rule(family["tried"][family["chosen"]])


def _has_reported(study: Study, out: Path) -> bool:
    return any(cell_file(out / place.data, place).exists() for place in study.places(study.report))
