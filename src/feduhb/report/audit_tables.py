"""What the audits found, as tables: each with a line on how to read it, for people who are no statisticians."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

from feduhb.audit.result import (
    MODELS,
    UNLEARNED,
    Attack,
    Audit,
    Cost,
    Difference,
    Distance,
    Interval,
    Roc,
)
from feduhb.report.audit_words import CONTROLS, NAMES, NOTES, Audited, attacked, audited, changes, points
from feduhb.report.grids import NOTHING, Grid, markdown_safe
from feduhb.report.runs import RunView
from feduhb.report.tables import verdict
from feduhb.report.words import number, percent

Row = list[str]
T = TypeVar("T")


def grids(views: Sequence[RunView]) -> dict[str, Grid]:
    """Give every table that these runs' audits fill, by name."""
    kinds: dict[str, Callable[[Sequence[Audited]], Grid]] = {
        "verdicts": verdicts, "exactness": exactness, "attacks": attacks, "misr": misr, "backdoor": backdoor,
        "accuracy": accuracy, "clients": clients, "distance": distance, "relearn": relearn, "cost": cost,
    }  # fmt: skip
    made = {name: kind(audited(views)) for name, kind in kinds.items()}
    return {name: grid for name, grid in made.items() if grid.rows}


def markdown(views: Sequence[RunView]) -> str:
    """Render every table as Markdown, with how to read it and what the audits say."""
    return "\n".join(
        f"## {grid.title}\n\n{grid.note}\n\n{grid.markdown()}"
        + "".join(f"\n- {markdown_safe(sentence)}" for sentence in grid.sentences)
        + ("\n" if grid.said else "")
        for grid in grids(views).values()
    )


def latex(views: Sequence[RunView]) -> str:
    """Render every table as a LaTeX tabular, each under comments that say what it is."""
    return "\n".join(
        "".join(f"% {' '.join(line.split())}\n" for line in (grid.title, grid.note, *grid.sentences))
        + grid.latex()
        for grid in grids(views).values()
    )


def verdicts(chosen: Sequence[Audited]) -> Grid:
    """Return each run's word, and what its parts say."""
    rows = [[view.label, verdict(view) or NOTHING, *_parts(audit)] for view, audit in chosen]
    headers = ["run", "verdict", "exactness", "membership attacks", "backdoor", "test accuracy"]
    said = [(view.label, reason) for view, audit in chosen for reason in audit.verdict.reasons]
    return Grid("Verdicts", headers, rows, frozenset(range(5)), NOTES["verdicts"], said)


def _parts(audit: Audit) -> Row:
    checks, planted = audit.exactness, audit.backdoor
    bits = NOTHING if checks is None else "bit for bit" if checks.exact else "not exact"
    found = "; ".join(membership_lines(audit))
    stamped = NOTHING if planted is None else planted.verdict
    return [bits, found or NOTHING, stamped, _share(audit.accuracy[UNLEARNED].test)]


def membership_lines(audit: Audit) -> list[str]:
    """Return the outcome of each membership attack, in words."""
    return [f"{attacked(attack)}: {attack.verdict}" for attack in audit.membership]


def exactness(chosen: Sequence[Audited]) -> Grid:
    """Return the counterfactuals: bit-identical or not."""
    rows = [
        [
            view.label,
            check.says,
            "identical" if check.identical else "different",
            f"{check.largest_difference:.3g}",
        ]
        for view, audit in chosen
        if audit.exactness
        for check in audit.exactness.checks
    ]
    headers = ["run", "check", "weights", "largest difference"]
    return Grid("Exactness", headers, rows, frozenset({0, 1, 2}), NOTES["exactness"])


def attacks(chosen: Sequence[Audited]) -> Grid:
    """Return every membership attack on every model, with its intervals."""
    found = [(view, attack) for view, audit in chosen for attack in audit.membership]
    rows = [[view.label, attacked(attack), *row] for view, attack in found for row in _attack(attack)]
    rates = ["TPR at 1% FPR", "TPR at 0.1% FPR"]
    headers = ["run", "attack", "model", "found", "AUC", *rates, "members / others", "power"]
    margins = sorted({f"{attack.margin:g}" for _, attack in found})
    note = NOTES["attacks"].format(margin=" or ".join(margins))
    said = [(view.label, f"{attacked(attack)}: {attack.says}") for view, attack in found]
    return Grid("Membership attacks", headers, rows, frozenset({0, 1, 2, 3}), note, said)


def _attack(attack: Attack) -> Iterator[Row]:
    found, power = {**CONTROLS, UNLEARNED: attack.verdict}, {UNLEARNED: percent(attack.power)}
    for model in MODELS:
        yield [NAMES[model], found[model], *_roc(attack.models[model]), power.get(model, "")]
    if attack.self_test:
        yield ["its own shadows", "what it can do", *_roc(attack.self_test), ""]


def _roc(roc: Roc) -> Row:
    return [
        f"{roc.auc:.3f} [{roc.interval.low:.3f}, {roc.interval.high:.3f}]",
        _rate(roc.tpr_1, roc.tpr_1_interval),
        _rate(roc.tpr_01, roc.tpr_01_interval),
        f"{roc.members:,} / {roc.others:,}",
    ]


def _rate(share: float, interval: Interval) -> str:
    return f"{percent(share)} [{percent(interval.low)}, {percent(interval.high)}]"


def misr(chosen: Sequence[Audited]) -> Grid:
    """Return the paper's score, with the attacker's rate on test data beside every number."""
    measured = [(view, audit.misr) for view, audit in chosen if audit.misr]
    rows = [
        [
            view.label,
            attacker,
            *(percent(rate) for m in MODELS for rate in (rates[m].misr, rates[m].on_test)),
        ]
        for view, found in measured
        for attacker, rates in found.attackers.items()
    ]
    headers = ["run", "attacker", *(head for model in MODELS for head in (NAMES[model], "on test data"))]
    said = [("", says) for says in dict.fromkeys(found.says for _, found in measured)]
    return Grid("MISR, as in the paper", headers, rows, frozenset({0, 1}), NOTES["misr"], said)


def backdoor(chosen: Sequence[Audited]) -> Grid:
    """Return how often the trigger works, against the floor."""
    found = [(view, audit.backdoor) for view, audit in chosen if audit.backdoor]
    rows = [
        [
            view.label,
            *(percent(planted.success[model]) for model in MODELS),
            _over(planted.difference),
            f"{planted.images:,}",
            planted.verdict,
        ]
        for view, planted in found
    ]
    headers = [
        "run",
        "original",
        "Retrain (floor)",
        "unlearned",
        "unlearned over the floor",
        "images",
        "verdict",
    ]
    said = [(view.label, planted.says) for view, planted in found]
    return Grid("Backdoor", headers, rows, frozenset({0, 6}), NOTES["backdoor"], said)


def _over(difference: Difference) -> str:
    return f"{points(difference.value)} [{points(difference.low)}, {points(difference.high)}] points"


def accuracy(chosen: Sequence[Audited]) -> Grid:
    """Return the accuracy on forgotten, retained and test data."""
    rows = _by_model(
        chosen,
        lambda audit: audit.accuracy,
        lambda scores: [_share(share) for share in (scores.forgotten, scores.retained, scores.test)],
    )
    rows = [row for row in rows if set(row[2:]) != {NOTHING}]
    headers = ["run", "model", "forgotten data", "retained data", "test data"]
    return Grid("Accuracy", headers, rows, frozenset({0, 1}), NOTES["accuracy"])


def clients(chosen: Sequence[Audited]) -> Grid:
    """Return a summary of how the remaining clients' accuracy changed."""
    rows = [
        [view.label, audit.clients.on, *_fared([row.gain for row in changes(audit)])]
        for view, audit in chosen
        if changes(audit)
    ]
    headers = [
        "run",
        "measured on",
        "clients",
        "better",
        "worse",
        "same",
        "median change (points)",
        "largest loss (points)",
        "largest gain (points)",
    ]
    return Grid("Those who stayed", headers, rows, frozenset({0, 1}), NOTES["clients"])


def _fared(changed: Sequence[float]) -> Row:
    counts = [
        len(changed),
        sum(c > 0 for c in changed),
        sum(c < 0 for c in changed),
        sum(c == 0 for c in changed),
    ]
    ends = (
        points(min(changed)) if min(changed) < 0 else NOTHING,
        points(max(changed)) if max(changed) > 0 else NOTHING,
    )
    return [*map(str, counts), points(median(changed)), *ends]


def distance(chosen: Sequence[Audited]) -> Grid:
    """Return how far the models are from Retrain's."""

    def cells(far: Distance) -> Row:
        return [number(far.l2), number(far.cosine), number(far.kl), percent(far.disagreement)]

    rows = _by_model(chosen, lambda audit: audit.distance, cells)
    headers = ["run", "model", "L2", "cosine", "KL", "other answers"]
    return Grid("Distance to Retrain", headers, rows, frozenset({0, 1}), NOTES["distance"])


def relearn(chosen: Sequence[Audited]) -> Grid:
    """Return the rounds until the accuracy on the forgotten data is back."""
    rows = [
        [view.label, percent(found.goal), *(_rounds(r, found.most) for r in (found.unlearned, found.retrain))]
        for view, audit in chosen
        if (found := audit.relearn)
    ]
    headers = ["run", "accuracy to reach", "unlearned: rounds", "Retrain: rounds"]
    return Grid("Relearn time", headers, rows, frozenset({0}), NOTES["relearn"])


def _rounds(count: int | None, most: int) -> str:
    return f"not within {most}" if count is None else str(count)


def cost(chosen: Sequence[Audited]) -> Grid:
    """Return what each model took to make."""
    rows = _by_model(chosen, lambda audit: audit.cost, _spent)
    headers = ["run", "model", "rounds", "client epochs", "MB down", "MB up", "history MB", "seconds"]
    return Grid("Cost", headers, rows, frozenset({0, 1}), NOTES["cost"])


def _spent(spent: Cost) -> Row:
    sizes = [
        number(size / 1e6) if size else NOTHING
        for size in (spent.bytes_down, spent.bytes_up, spent.history_bytes)
    ]
    return [f"{spent.rounds:,}", f"{spent.client_epochs:,}", *sizes, number(spent.seconds)]


def _by_model(
    chosen: Sequence[Audited], part: Callable[[Audit], Mapping[str, T]], cells: Callable[[T], Row]
) -> list[Row]:
    """Return a row for each model that a part of an audit has something of."""
    return [
        [view.label, NAMES[model], *cells(part(audit)[model])]
        for view, audit in chosen
        for model in MODELS
        if model in part(audit)
    ]


def _share(value: float | None) -> str:
    return NOTHING if value is None else percent(value)
