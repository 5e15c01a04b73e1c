"""What the audits found, as tables: each with a line on how to read it, for people who are no statisticians."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from feduhb.report.audit_words import CONTROLS, NAMES, NOTES, attacked, audited, changes, points
from feduhb.report.audits import MODELS
from feduhb.report.grids import NOTHING, Grid, markdown_safe
from feduhb.report.runs import RunView
from feduhb.report.tables import verdict
from feduhb.report.words import number, percent

Row = list[str]


def grids(views: Sequence[RunView]) -> dict[str, Grid]:
    """Give every table that these runs' audits fill, by name."""
    kinds: dict[str, Callable[[Sequence[RunView]], Grid]] = {
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


def verdicts(views: Sequence[RunView]) -> Grid:
    """Each run's word, and what its parts say."""
    rows = [[view.label, verdict(view) or NOTHING, *_parts(audit)] for view, audit in _each(views)]
    headers = ["run", "verdict", "exactness", "membership attacks", "backdoor", "test accuracy"]
    said = [(view.label, reason) for view, audit in _each(views) for reason in audit["verdict"]["reasons"]]
    return Grid("Verdicts", headers, rows, frozenset(range(5)), NOTES["verdicts"], said)


def _parts(audit: Mapping[str, Any]) -> Row:
    checks, planted = audit["exactness"], audit["backdoor"]
    bits = NOTHING if checks is None else "bit for bit" if checks["exact"] else "not exact"
    found = "; ".join(f"{attacked(attack)}: {attack['verdict']}" for attack in audit["membership"])
    stamped = NOTHING if planted is None else planted["verdict"]
    return [bits, found or NOTHING, stamped, _share(audit["accuracy"]["unlearned"]["test"])]


def exactness(views: Sequence[RunView]) -> Grid:
    """Both counterfactuals: bit-identical or not."""
    rows = [
        [
            view.label,
            check["says"],
            "identical" if check["identical"] else "different",
            _size(check["largest_difference"]),
        ]
        for view, audit in _each(views)
        for check in (audit["exactness"] or {"checks": ()})["checks"]
    ]
    headers = ["run", "check", "weights", "largest difference"]
    return Grid("Exactness", headers, rows, frozenset({0, 1, 2}), NOTES["exactness"])


def attacks(views: Sequence[RunView]) -> Grid:
    """Every membership attack on every model, with its intervals."""
    found = [(view, attack) for view, audit in _each(views) for attack in audit["membership"]]
    rows = [[view.label, attacked(attack), *row] for view, attack in found for row in _attack(attack)]
    rates = ["TPR at 1% FPR", "TPR at 0.1% FPR"]
    headers = ["run", "attack", "model", "found", "AUC", *rates, "members / others", "power"]
    margins = sorted({f"{attack['margin']:g}" for _, attack in found})
    note = NOTES["attacks"].format(margin=" or ".join(margins))
    said = [(view.label, f"{attacked(attack)}: {attack['says']}") for view, attack in found]
    return Grid("Membership attacks", headers, rows, frozenset({0, 1, 2, 3}), note, said)


def _attack(attack: Mapping[str, Any]) -> Iterator[Row]:
    found, power = CONTROLS | {"unlearned": attack["verdict"]}, {"unlearned": _share(attack["power"])}
    for model in MODELS:
        yield [NAMES[model], found[model], *_roc(attack["models"][model]), power.get(model, "")]
    if attack.get("self_test"):
        yield ["its own shadows", "what it can do", *_roc(attack["self_test"]), ""]


def _roc(roc: Mapping[str, Any]) -> Row:
    return [
        f"{roc['auc']:.3f} [{roc['interval']['low']:.3f}, {roc['interval']['high']:.3f}]",
        *(
            f"{_share(roc[k])} [{_share(roc[f'{k}_interval']['low'])}, {_share(roc[f'{k}_interval']['high'])}]"
            for k in ("tpr_1", "tpr_01")
        ),
        f"{roc['members']:,} / {roc['others']:,}",
    ]


def misr(views: Sequence[RunView]) -> Grid:
    """The paper's score, with the attacker's rate on test data beside every number."""
    rows = [
        [
            view.label,
            attacker,
            *(_share(models[model][key]) for model in MODELS for key in ("misr", "on_test")),
        ]
        for view, audit in _each(views)
        for attacker, models in (audit["misr"] or {"attackers": {}})["attackers"].items()
    ]
    headers = ["run", "attacker", *(head for model in MODELS for head in (NAMES[model], "on test data"))]
    said = dict.fromkeys(audit["misr"]["says"] for _, audit in _each(views) if audit["misr"])
    return Grid(
        "MISR, as in the paper",
        headers,
        rows,
        frozenset({0, 1}),
        NOTES["misr"],
        [("", each) for each in said],
    )


def backdoor(views: Sequence[RunView]) -> Grid:
    """How often the trigger works, against the floor."""
    found = [(view, audit["backdoor"]) for view, audit in _each(views) if audit["backdoor"]]
    rows = [
        [
            view.label,
            *(_share(b["success"][m]) for m in MODELS),
            _over(b["difference"]),
            f"{b['images']:,}",
            b["verdict"],
        ]
        for view, b in found
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
    said = [(view.label, planted["says"]) for view, planted in found]
    return Grid("Backdoor", headers, rows, frozenset({0, 6}), NOTES["backdoor"], said)


def _over(difference: Mapping[str, float]) -> str:
    return f"{points(difference['value'])} [{points(difference['low'])}, {points(difference['high'])}] points"


def accuracy(views: Sequence[RunView]) -> Grid:
    """Accuracy on forgotten, retained and test data."""
    kinds = ("forgotten", "retained", "test")
    rows = _by_model(views, "accuracy", MODELS, lambda scores: [_share(scores[kind]) for kind in kinds])
    rows = [row for row in rows if set(row[2:]) != {NOTHING}]
    headers = ["run", "model", "forgotten data", "retained data", "test data"]
    return Grid("Accuracy", headers, rows, frozenset({0, 1}), NOTES["accuracy"])


def clients(views: Sequence[RunView]) -> Grid:
    """How those who stayed fared, summed up."""
    rows = [
        [view.label, audit["clients"]["on"], *_fared([c for _, c in changes(audit)])]
        for view, audit in _each(views)
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


def distance(views: Sequence[RunView]) -> Grid:
    """How far the models are from Retrain's."""
    rows = _by_model(
        views,
        "distance",
        ("original", "unlearned"),
        lambda d: [_number(d["l2"]), _number(d["cosine"]), _number(d["kl"]), _share(d["disagreement"])],
    )
    headers = ["run", "model", "L2", "cosine", "KL", "other answers"]
    return Grid("Distance to Retrain", headers, rows, frozenset({0, 1}), NOTES["distance"])


def relearn(views: Sequence[RunView]) -> Grid:
    """Rounds until the accuracy on the forgotten data is back."""
    rows = [
        [
            view.label,
            percent(r["goal"]),
            *(_rounds(r[model], r["most"]) for model in ("unlearned", "retrain")),
        ]
        for view, audit in _each(views)
        if (r := audit["relearn"])
    ]
    headers = ["run", "accuracy to reach", "unlearned: rounds", "Retrain: rounds"]
    return Grid("Relearn time", headers, rows, frozenset({0}), NOTES["relearn"])


def _rounds(count: int | None, most: int) -> str:
    return f"not within {most}" if count is None else str(count)


def cost(views: Sequence[RunView]) -> Grid:
    """What each model took to make."""
    rows = _by_model(views, "cost", MODELS, _spent)
    headers = ["run", "model", "rounds", "client epochs", "MB down", "MB up", "history MB", "seconds"]
    return Grid("Cost", headers, rows, frozenset({0, 1}), NOTES["cost"])


def _spent(spent: Mapping[str, float | None]) -> Row:
    counts = [NOTHING if (n := spent[key]) is None else f"{n:,}" for key in ("rounds", "client_epochs")]
    sizes = [
        _number(n / 1e6 if (n := spent[key]) else None) for key in ("bytes_down", "bytes_up", "history_bytes")
    ]
    return [*counts, *sizes, _number(spent["seconds"])]


def _each(views: Sequence[RunView]) -> Iterator[tuple[RunView, dict[str, Any]]]:
    return ((view, view.audit) for view in views if view.audit is not None)


def _by_model(
    views: Sequence[RunView], part: str, models: Sequence[str], cells: Callable[[Any], Row]
) -> list[Row]:
    return [
        [view.label, NAMES[model], *cells(audit[part][model])]
        for view, audit in _each(views)
        for model in models
    ]


def _share(value: float | None) -> str:
    return NOTHING if value is None else percent(value)


def _number(value: float | None) -> str:
    return NOTHING if value is None else number(value)


def _size(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"
