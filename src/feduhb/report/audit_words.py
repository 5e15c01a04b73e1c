"""What a report says about audits in its own words; the verdicts' words are the audits'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED, Attack, Audit
from feduhb.report.runs import RunView

NAMES = {ORIGINAL: "original", RETRAIN: "Retrain", UNLEARNED: "unlearned"}
NAMED_AT_MOST = 45  # clients a chart names; more are counted
CONTROLS = {ORIGINAL: "must be caught", RETRAIN: "must not be caught"}
INTRODUCTION = (
    "Three models are asked the same: the original, which knew the data and must be caught; Retrain, which never saw "
    "it and must not be; and the unlearned one. An attack whose controls fail says nothing of the third. Where the "
    "weights were compared to the last bit, a verdict can rest on that, not on attacks that fail. It is about this "
    "model: copies of the old one are not touched by it."
)
NOTES = {
    "verdicts": "Every audit puts the same questions to three models: the original, which knew the data; Retrain, "
    "which never saw it; and the unlearned one. Where the attacks cannot tell the former two apart, they say "
    "nothing about the third.",
    "exactness": "Training and unlearning are done again with the forgotten data exchanged for noise, or never there. "
    "A method that never looks at that data gives the same weights to the last bit.",
    "attacks": "An attacker is shown examples that the leavers trained on and examples of theirs that nobody trained "
    "on, and guesses which is which. AUC is how often it ranks a pair rightly: 0.5 is a coin, 1 is certainty; in "
    "brackets the 99% interval. TPR is the share of members it finds while wrongly naming 1% (0.1%) of the others. "
    "“Not caught” needs the 90% interval to lie within 0.5 ± {margin}, by an attack that catches the original; power is how often a model that gives nothing "
    "away would pass that test.",
    "misr": "The paper's score: an attacker that learned on the original model names members. Read each number beside "
    "the one on test data, which is what it says of examples that nobody trained on.",
    "backdoor": "How often a model takes stamped test images for the target. Retrain, which never saw the stamp, is "
    "the floor.",
    "accuracy": "The share of examples named rightly: of the forgotten data, of what the others keep, and of test data. "
    "On the forgotten data, Retrain shows what a model reaches that never saw it.",
    "clients": "What unlearning did to those who stayed: each one's accuracy with the original model (before) and with "
    "the unlearned one (after).",
    "distance": "How far a model is from Retrain's: in its weights (L2, cosine) and in its answers on test data (KL in "
    "nats; share of other answers). Models of other methods, or other seeds, differ without anything being remembered.",
    "relearn": "Rounds of training with the forgotten data until the original model's accuracy on it, canaries apart, is back; "
    "0: it was never away. A better model gets there sooner whether or not anything was left: read it beside the test accuracy.",
    "cost": "What each model took to make. MB are units of a million bytes; history is what training must have kept.",
}  # fmt: skip


Audited = tuple[RunView, Audit]


@dataclass(frozen=True, slots=True)
class Change:
    """The accuracy of a remaining client before and after."""

    client: str
    before: float
    after: float
    retrain: float | None

    @property
    def gain(self) -> float:
        """The difference: negative where the client lost."""
        return self.after - self.before


def audited(views: Sequence[RunView]) -> list[Audited]:
    """Return the runs that have an audit, with it."""
    return [(view, view.audit) for view in views if view.audit is not None]


def attacked(attack: Attack) -> str:
    """Name an attack with the data it was made on."""
    return f"{attack.attack}, {attack.on}"


def title(attack: Attack) -> str:
    """Name an attack over a chart."""
    return f"{attack.attack[:1].upper()}{attack.attack[1:]} attack on {attack.on}"


def changes(audit: Audit) -> list[Change]:
    """Return the change of each remaining client that was measured, losers first."""
    rows = [
        Change(row.client, row.before, row.after, row.retrain)
        for row in audit.clients.rows
        if row.before is not None and row.after is not None
    ]
    return sorted(rows, key=lambda row: (row.gain, row.client))


def points(share: float) -> str:
    """Spell a difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.1f}".replace("-", "−")  # noqa: RUF001


def fared(audit: Audit) -> str:
    """Say in one sentence how the remaining clients' accuracy changed."""
    changed = changes(audit)
    if not changed:
        return "No remaining client's accuracy was measured."
    better, worse = sum(row.gain > 0 for row in changed), sum(row.gain < 0 for row in changed)
    loser, winner = changed[0], changed[-1]
    ends = [f"{loser.client} lost most ({points(loser.gain)} points)"] if loser.gain < 0 else []
    ends += [f"{winner.client} gained most ({points(winner.gain)} points)"] if winner.gain > 0 else []
    counted = (
        f"Of {len(changed)} who stayed, {better} score higher on their {audit.clients.on}, {worse} lower"
    )
    return "; ".join([counted, *ends]) + "."
