"""The tables of audits, each with a line on how to read it for people who are not statisticians."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median
from typing import NamedTuple

from feduhb.audit.pooling import pool_seeds
from feduhb.audit.result import (
    COMPARED,
    MODELS,
    ORIGINAL,
    RETRAIN,
    UNLEARNED,
    Attack,
    AucDifference,
    Audit,
    Cost,
    Roc,
)
from feduhb.report.grids import Grid, escape_markdown, join_lines
from feduhb.report.runs import NAMES as METHODS
from feduhb.report.runs import RunView, printable, retrain_of
from feduhb.report.tables import get_verdict
from feduhb.report.words import NOTHING, format_percent, format_points, format_share
from feduhb.runs.scores import format_change, format_number, format_score, is_share, name_score

Row = list[str]
Audited = tuple[RunView, Audit]

NAMES = {ORIGINAL: "original", RETRAIN: "Retrain", UNLEARNED: "unlearned"}
BESIDE = {ORIGINAL: "itself one round later", RETRAIN: "Retrain", UNLEARNED: "the unlearned model"}
BY_MAIN_SCORE = ("verdicts", "clients", "relearn")  # tables whose words name the accuracy, or else the score
CONTROLS = {ORIGINAL: "must be caught", RETRAIN: "must not be caught"}
NOTES = {
    "verdicts": "Every audit asks three models the same questions: the original, which knew the data; Retrain, "
    "which never saw it; and the unlearned one. Attacks that cannot tell the first two apart say nothing about the third.",
    "exactness": "Training and unlearning are repeated with the forgotten data replaced by noise, or never there. "
    "A method that never looks at that data gives the same weights to the last bit. An exact method must also begin at the "
    "fresh model. Code outside the package also runs from another fresh model, on noise alone and on slightly changed data.",
    "attacks": "An attacker sees examples that the leavers trained on, and examples of theirs that nobody trained on, "
    "and guesses which are which. AUC: how often it ranks a pair correctly; 0.5 is chance, 1 is certainty; in brackets the "
    "99% interval. TPR: the share of members found while wrongly naming 1% (0.1%) of the others. “Not caught” needs the 90% "
    "interval to lie within 0.5 ± {margin}, or that of the difference from Retrain's within ± {margin} if it is the sharper test, "
    "by an attack that catches the original. Power: how often a model that gives "
    "nothing away would pass that test. Minus Retrain's: the difference of the two AUCs on the same examples, with its 99% "
    "interval; “caught” needs both the AUC and this difference to point the same way. “Mean over seeds”: of the runs of one method that "
    "were audited together and differ in nothing but their seeds.",
    "kept": "Somebody who keeps the original beside another model compares the two, example by example. The original knew the "
    "forgotten examples, so the pair reveals them even if the other model has forgotten. Beside Retrain: what any honest forgetting "
    "reveals. Beside itself one round later: nothing was removed. This does not count for the verdict; it is a reason to retire the original.",
    "misr": "The paper's score: an attacker that learned on the original model names members. Read each number beside "
    "the one on test data, its rate on examples that nobody trained on.",
    "backdoor": "The share of test images with the trigger that a model gives the backdoor's label. Retrain, which never saw the trigger, is the floor.",
    "accuracy": "Shares of correct answers: on the forgotten data, on the remaining clients' data and on test data. "
    "On the forgotten data, Retrain shows what a model reaches that never saw it.",
    "scores": "The scores that the runs were given, on the forgotten data, on the remaining clients' data and on test data; a dash "
    "where one is not defined, such as the AUROC of examples of one class.",
    "loss": "Mean losses on the same data, in the unit of the loss function; less is better. Where targets are not labels, "
    "the verdict judges by the loss on test data whether a model is of use.",
    "clients": "How unlearning changed the remaining clients' accuracy: with the original model (before) and with "
    "the unlearned one (after).",
    "distance": "How far the models are from Retrain's: weights (L2, cosine) and answers on test data (KL in nats; share of "
    "other answers). Models of other methods, or other seeds, differ without anything being remembered.",
    "apart": "How far the models are from Retrain's: weights (L2, cosine) and answers on test data (root of the mean squared "
    "difference). Models of other methods, or other seeds, differ without anything being remembered.",
    "relearn": "Rounds of training with the forgotten data until the original model's accuracy on it, without canaries, is "
    "back; 0: it was never away. A better model gets there sooner whether or not anything was left: read it beside the test "
    "accuracy.",
    "cost": "The cost of each model. MB are a million bytes; history is what training must have kept.",
}


class Change(NamedTuple):
    """The main score of a remaining client before and after; its gain is negative if the client lost."""

    gain: float
    client: str
    before: float
    after: float
    retrain: float | None


def list_audited(views: Sequence[RunView]) -> list[Audited]:
    """Return the runs that have an audit, with it."""
    return [(view, view.audit) for view in views if view.audit is not None]


def list_changes(audit: Audit) -> list[Change]:
    """Return the change of each remaining client that was measured, the largest loss first."""
    sign = -1 if audit.is_low_best else 1
    rows = [
        Change(sign * (row.after - row.before), printable(row.client), row.before, row.after, row.retrain)
        for row in audit.clients.rows
        if row.before is not None and row.after is not None
    ]
    return sorted(rows, key=lambda row: row[:2])


def describe_changes(audit: Audit) -> str:
    """Return in one sentence how the remaining clients' main score changed."""
    changed = list_changes(audit)
    if not changed:
        return f"No remaining client's {_name(audit)} was measured."
    better, worse = sum(row.gain > 0 for row in changed), sum(row.gain < 0 for row in changed)
    loser, winner = changed[0], changed[-1]
    ends = [f"{loser.client} lost most ({describe_gain(audit, loser.gain)})"] if loser.gain < 0 else []
    ends += [f"{winner.client} gained most ({describe_gain(audit, winner.gain)})"] if winner.gain > 0 else []
    above, below = ("better", "worse") if audit.is_low_best else ("higher", "lower")
    counted = f"Of {len(changed)} remaining clients, {better} score {above} on their {audit.clients.on}, {worse} {below}"
    return "; ".join([counted, *ends]) + "."


def format_gain(audit: Audit, gain: float) -> str:
    """Format how much the main score changed, with the sign of the change: an RMSE that rose by 0.1 is a loss of +0.100."""
    return format_change(audit.main_score, -gain if audit.is_low_best else gain)


def describe_gain(audit: Audit, gain: float) -> str:
    """Format how much the main score changed, with its unit if it is a share."""
    return format_gain(audit, gain) + (" points" if is_share(audit.main_score) else "")


def _name(audit: Audit) -> str:
    return printable(name_score(audit.main_score))


def name_attack(attack: Attack) -> str:
    """Return the name of an attack and of the data that it used."""
    return f"{printable(attack.attack)}, {printable(attack.on)}"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows that an audit has in one table, without the run's label, and its sentences under the table."""

    title: str
    headers: Sequence[str]
    rows: Callable[[Audit], Iterable[Row]]
    words: int = 0  # columns of text after the run's, set to the left
    said: Callable[[Audit], Iterable[str]] = lambda _: ()


def make_grids(views: Sequence[RunView], reported: Sequence[RunView] = ()) -> dict[str, Grid]:
    """Return every table that these runs' audits fill, by name.

    Args:
        reported: all runs of the report; their own record of Retrain's cost replaces that of an audit's control.
    """
    chosen = [(view, _use_own_cost(view, audit, reported or views)) for view, audit in list_audited(views)]
    has_others = any(audit.main_score != "accuracy" for _, audit in chosen)
    margins = sorted({f"{attack.margin:g}" for _, audit in chosen for attack in audit.membership})
    made: dict[str, Grid] = {}
    for name, table in TABLES.items():
        rows = [[view.label, *row] for view, audit in chosen for row in table.rows(audit)]
        said = [(view.label, sentence) for view, audit in chosen for sentence in table.said(audit)]
        if name == "verdicts":
            rows = [
                [view.label, get_verdict(view) or NOTHING, *row[2:]]
                for (view, _), row in zip(chosen, rows, strict=True)
            ]
        if name == "attacks":
            rows += _combine_seeds([audit for _, audit in chosen])
        if name == "misr":
            said = [("", sentence) for sentence in dict.fromkeys(sentence for _, sentence in said)]
        headers, note = table.headers, NOTES[name].format(margin=" or ".join(margins))
        if has_others and name in BY_MAIN_SCORE:
            headers = [one.replace("accuracy", "score").removesuffix(" (points)") for one in headers]
            note = note.replace("accuracy", "score")
        text = frozenset(range(1 + table.words)) | ({6} if name == "backdoor" else set())
        if rows:
            made[name] = Grid(table.title, ["run", *headers], rows, text, note, said)
    return made


def _use_own_cost(view: RunView, audit: Audit, reported: Sequence[RunView]) -> Audit:
    """Return the audit with the cost that the Retrain run of this report recorded, if there is one."""
    run = retrain_of(view, reported)
    if run is None:
        return audit
    names = ("client_epochs", "bytes_down", "bytes_up")
    spent = {name: run.result[name] for name in names} | {"history_bytes": run.result["history_bytes_read"]}
    own = Cost(rounds=len(run.rounds), seconds=run.seconds, **spent)
    return replace(audit, cost={**audit.cost, RETRAIN: own})


def to_markdown(views: Sequence[RunView]) -> str:
    """Render every table as Markdown, with its note and the audits' sentences."""
    return "\n".join(
        f"## {grid.title}\n\n{grid.note}\n\n{grid.to_markdown()}"
        + "".join(f"\n- {escape_markdown(sentence)}" for sentence in grid.sentences)
        + ("\n" if grid.said else "")
        for grid in make_grids(views).values()
    )


def to_latex(views: Sequence[RunView]) -> str:
    """Render every table as a LaTeX tabular, each under comments with its title and note."""
    return "\n".join(
        "".join(f"% {join_lines(line)}\n" for line in (grid.title, grid.note, *grid.sentences))
        + grid.to_latex()
        for grid in make_grids(views).values()
    )


def list_outcomes(audit: Audit) -> list[str]:
    """Return each outcome of membership attacks with the attacks that had it."""
    found: dict[str, list[str]] = {}
    for attack in audit.membership:
        found.setdefault(attack.verdict, []).append(name_attack(attack))
    return [f"{outcome.capitalize()}: {'; '.join(attacks)}." for outcome, attacks in found.items()]


def _judge(audit: Audit) -> Iterator[Row]:
    checks, planted = audit.exactness, audit.backdoor
    bits = NOTHING if checks is None else "bit for bit" if checks.exact else "not exact"
    backdoor = NOTHING if planted is None else planted.verdict
    outcomes = " ".join(list_outcomes(audit)) or NOTHING
    yield [
        audit.verdict.word,
        bits,
        outcomes,
        backdoor,
        _format_main(audit, audit.main_values[UNLEARNED].test),
    ]


def _check(audit: Audit) -> Iterator[Row]:
    for check in audit.exactness.checks if audit.exactness else ():
        is_measured = check.name in (*COMPARED, "beginning")
        yield [check.says, check.outcome, f"{check.largest_difference:.3g}" if is_measured else NOTHING]


def _attack(audit: Audit) -> Iterator[Row]:
    for attack in audit.membership:
        found, power = {**CONTROLS, UNLEARNED: attack.verdict}, {UNLEARNED: format_percent(attack.power)}
        name, apart = name_attack(attack), {UNLEARNED: _format_difference(attack.against_retrain)}
        for model in MODELS:
            area, *rates = _format_roc(attack.models[model])
            yield [name, NAMES[model], found[model], area, apart.get(model, ""), *rates, power.get(model, "")]
        if attack.self_test:
            area, *rates = _format_roc(attack.self_test)
            yield [name, "its own shadows", "what it can do", area, "", *rates, ""]


def _combine_seeds(audits: Sequence[Audit]) -> Iterator[Row]:
    """Yield the mean of each attack over the seeds of a method that were audited together."""
    for one in pool_seeds(audits):
        label = f"{METHODS.get(one.method, printable(one.method))}, {len(one.seeds)} seeds"
        name, apart = f"{printable(one.attack)}, {printable(one.on)}", _format_difference(one.against_retrain)
        counts = f"{one.members:,} / {one.others:,}"
        yield [label, name, NAMES[UNLEARNED], "mean over seeds", "", apart, "", "", counts, ""]


def _keep(audit: Audit) -> Iterator[Row]:
    for attack in audit.membership:
        if attack.kept:
            apart = {UNLEARNED: _format_difference(attack.kept.against_retrain)}
            for model in MODELS:
                area, *rates = _format_roc(attack.kept.models[model])
                yield [name_attack(attack), BESIDE[model], area, apart.get(model, ""), *rates]


def _format_difference(apart: AucDifference | None) -> str:
    if apart is None:
        return NOTHING
    return f"{apart.value:+.3f} [{apart.interval.low:+.3f}, {apart.interval.high:+.3f}]"


def _format_roc(roc: Roc) -> Row:
    rates = [(roc.tpr_1, roc.tpr_1_interval), (roc.tpr_01, roc.tpr_01_interval)]
    return [
        f"{roc.auc:.3f} [{roc.interval.low:.3f}, {roc.interval.high:.3f}]",
        *(f"{share:.1%} [{interval.low:.1%}, {interval.high:.1%}]" for share, interval in rates),
        f"{roc.members:,} / {roc.others:,}",
    ]


def _score_members(audit: Audit) -> Iterator[Row]:
    for attacker, rates in audit.misr.attackers.items() if audit.misr else ():
        shares = [share for model in MODELS for share in (rates[model].misr, rates[model].on_test)]
        yield [attacker, *map(format_percent, shares)]


def _stamp(audit: Audit) -> Iterator[Row]:
    if planted := audit.backdoor:
        value, low, high = (
            format_points(getattr(planted.difference, part)) for part in ("value", "low", "high")
        )
        shares = [format_percent(planted.success[model]) for model in MODELS]
        yield [*shares, f"{value} [{low}, {high}] points", f"{planted.images:,}", planted.verdict]


def _score(audit: Audit) -> Iterator[Row]:
    for model in MODELS:
        shares = [format_share(share) for share in astuple(audit.accuracy[model])]
        if set(shares) != {NOTHING}:
            yield [NAMES[model], *shares]


def _format_main(audit: Audit, value: float | None) -> str:
    """Format a value of the main score, with its name if it is not the accuracy."""
    if value is None:
        return NOTHING
    shown = format_score(audit.main_score, value)
    return shown if audit.main_score == "accuracy" else f"{_name(audit)} {shown}"


def _list_scores(audit: Audit) -> Iterator[Row]:
    for score, found in audit.scores.items():
        named = printable(name_score(score)) + ("" if found.best == "high" else " (less is better)")
        for model in MODELS:
            values = astuple(found.models[model])
            shown = (NOTHING if value is None else format_score(score, value) for value in values)
            yield [named, NAMES[model], *shown]


def _measure_loss(audit: Audit) -> Iterator[Row]:
    for model in MODELS:
        if found := audit.loss.get(model):
            losses = (NOTHING if loss is None else format_number(loss) for loss in astuple(found))
            yield [NAMES[model], *losses]


def _compare_clients(audit: Audit) -> Iterator[Row]:
    gains = [row.gain for row in list_changes(audit)]
    if gains:
        counts = [
            len(gains),
            sum(g > 0 for g in gains),
            sum(g < 0 for g in gains),
            sum(g == 0 for g in gains),
        ]
        loss = format_gain(audit, min(gains)) if min(gains) < 0 else NOTHING
        gain = format_gain(audit, max(gains)) if max(gains) > 0 else NOTHING
        on = audit.clients.on + ("" if audit.main_score == "accuracy" else f", {_name(audit)}")
        yield [on, *map(str, counts), format_gain(audit, median(gains)), loss, gain]


def _measure_distance(audit: Audit) -> Iterator[Row]:
    for model in MODELS:
        far = audit.distance.get(model)
        if far and far.kl is not None and far.disagreement is not None:
            numbers = [format_number(value) for value in (far.l2, far.cosine, far.kl)]
            yield [NAMES[model], *numbers, format_percent(far.disagreement)]


def _measure_number_distance(audit: Audit) -> Iterator[Row]:
    for model in MODELS:
        if (far := audit.distance.get(model)) and far.rms is not None:
            yield [NAMES[model], *map(format_number, (far.l2, far.cosine, far.rms))]


def _relearn(audit: Audit) -> Iterator[Row]:
    if found := audit.relearn:
        took = (found.unlearned, found.retrain)
        counts = [f"not within {found.most}" if count is None else str(count) for count in took]
        yield [_format_main(audit, found.goal), *counts]


def _sum_cost(audit: Audit) -> Iterator[Row]:
    for model in MODELS:
        spent = audit.cost[model]
        sizes = (spent.bytes_down, spent.bytes_up, spent.history_bytes)
        megabytes = [format_number(size / 1e6) if size else NOTHING for size in sizes]
        yield [
            NAMES[model],
            f"{spent.rounds:,}",
            f"{spent.client_epochs:,}",
            *megabytes,
            format_number(spent.seconds),
        ]


TABLES = {
    "verdicts": Table(
        "Verdicts",
        ["verdict", "exactness", "membership attacks", "backdoor", "test accuracy"],
        _judge,
        words=4,
        said=lambda audit: audit.verdict.reasons,
    ),
    "exactness": Table("Exactness", ["check", "outcome", "largest difference"], _check, words=2),
    "attacks": Table(
        "Membership attacks",
        [
            "attack",
            "model",
            "found",
            "AUC",
            "minus Retrain's",
            "TPR at 1% FPR",
            "TPR at 0.1% FPR",
            "members / others",
            "power",
        ],
        _attack,
        words=3,
        said=lambda audit: [
            *(f"{name_attack(attack)}: {attack.says}" for attack in audit.membership),
            *(one.says for one in audit.forecast),
        ],
    ),
    "kept": Table(
        "The original, if somebody keeps it",
        [
            "attack",
            "beside",
            "AUC",
            "minus Retrain's",
            "TPR at 1% FPR",
            "TPR at 0.1% FPR",
            "members / others",
        ],
        _keep,
        words=2,
    ),
    "misr": Table(
        "MISR, as in the paper",
        ["attacker", *(head for model in MODELS for head in (NAMES[model], "on test data"))],
        _score_members,
        words=1,
        said=lambda audit: [audit.misr.says] if audit.misr else [],
    ),
    "backdoor": Table(
        "Backdoor",
        ["original", "Retrain (floor)", "unlearned", "unlearned over the floor", "images", "verdict"],
        _stamp,
        said=lambda audit: [audit.backdoor.says] if audit.backdoor else [],
    ),
    "accuracy": Table("Accuracy", ["model", "forgotten data", "retained data", "test data"], _score, words=1),
    "scores": Table(
        "Scores", ["score", "model", "forgotten data", "retained data", "test data"], _list_scores, words=2
    ),
    "loss": Table("Loss", ["model", "forgotten data", "retained data", "test data"], _measure_loss, words=1),
    "clients": Table(
        "Remaining clients",
        [
            "measured on",
            "clients",
            "better",
            "worse",
            "same",
            *(f"{what} (points)" for what in ("median change", "largest loss", "largest gain")),
        ],
        _compare_clients,
        words=1,
    ),
    "distance": Table(
        "Distance to Retrain", ["model", "L2", "cosine", "KL", "other answers"], _measure_distance, words=1
    ),
    "apart": Table(
        "Distance to Retrain", ["model", "L2", "cosine", "answers (RMS)"], _measure_number_distance, words=1
    ),
    "relearn": Table("Relearn time", ["accuracy to reach", "unlearned: rounds", "Retrain: rounds"], _relearn),
    "cost": Table(
        "Cost",
        ["model", "rounds", "client epochs", "MB down", "MB up", "history MB", "seconds"],
        _sum_cost,
        words=1,
    ),
}
