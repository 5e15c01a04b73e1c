"""From measurements with controls to a verdict in one word, with its reasons.

Every attack runs on three models: the audited one, the original, which must be caught (or the attack has no power), and
Retrain, which must not be caught (or the attack does not measure membership).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from feduhb.audit.result import (
    ORIGINAL,
    RETRAIN,
    UNLEARNED,
    AucDifference,
    Difference,
    Exactness,
    Interval,
    Outcome,
    Roc,
    Verdict,
)
from feduhb.audit.statistics import compute_power, is_equivalent

MARGIN = 0.05  # of an AUC around 0.5, and of a backdoor's success over the floor; less counts as chance
UNEXPLAINED = "The recorded procedure does not give these weights here, so its rehearsals do not count."
COPIED = "These are exactly the original's weights, and Retrain's are different: nothing was done."
ALARM = (
    "Yet an attack raised an alarm. Weights that do not depend on the data cannot know it: "
    "it is chance, or remaining clients hold such examples too."
)
OWN = (
    "The user's own code took part. These checks cannot exclude code that adds too little of the old model to be found, "
    "adds it little by little with its units in another order, or recognises the audited run, or noise, and is honest in the "
    "checks only."
)
UNSEARCHED = "The user's own code could have kept a part of the old model without showing it in any check."
UNDECLARED = "The method does not declare itself exact, so equal weights alone do not make it forgotten."
FAILED = "A rehearsal shows nothing about a method that fails its own checks."
UNREHEARSED = (
    "The rehearsals do not count: whether the recorded procedure gives these weights was not checked."
)
USEFUL = 0.5  # share of Retrain's gain over a constant answer; a model with less is useless


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one attack, for the verdict."""

    verdict: Outcome
    says: str
    control_failed: bool = False  # Retrain was caught: the attack does not measure membership
    backdoor: bool = False  # not an attack on membership
    rehearsed: bool = False  # it attacked the recorded procedure, with canaries, not these weights


def judge_membership(
    models: Mapping[str, Roc], against_retrain: AucDifference, margin: float = MARGIN
) -> Finding:
    """Return the outcome of one membership attack.

    Caught: the AUC is above 0.5 and above Retrain's on the same examples, or below both; each by its 90 % interval, and at
    least one of the two by its 99 % interval. A model that treats the forgotten data unlike unseen data in either way gives
    it away. Not caught: two one-sided tests at 5 % find the AUC within 0.5 ± margin, or its difference from Retrain's within
    ± margin, whichever has the smaller standard error; the attack catches the original by more than the margin; and the other
    of the two does not contradict. If Retrain's interval lies below 0.5, the forgotten data is harder than the data it is
    compared with, and an AUC near 0.5 shows nothing.

    Args:
        against_retrain: the audited model's AUC minus Retrain's, paired.
    """
    found, original, retrain = models[UNLEARNED], models[ORIGINAL], models[RETRAIN]
    auc, apart = f"AUC {_format_auc(found)}", _format_difference(against_retrain)
    if retrain.interval.low > 0.5:
        says = (
            f"The attack catches Retrain too (AUC {_format_auc(retrain)}), so it does not measure membership."
        )
        return Finding("inconclusive", says, control_failed=True)
    side = _find_side(found, against_retrain)
    if side > 0:
        says = f"{auc}, is above 0.5 and above Retrain's ({apart}): the model still knows the forgotten data."
        return Finding("caught", says)
    if side < 0:
        says = (
            f"{auc}, is below 0.5 and below Retrain's ({apart}): the model treats the forgotten data worse than unseen data, "
            "which gives it away too."
        )
        return Finding("caught", says)
    if retrain.interval.high < 0.5:
        says = (
            f"Retrain never saw the forgotten data and finds it harder than the held-out data (AUC {_format_auc(retrain)}), "
            "so an AUC near 0.5 shows nothing."
        )
        return Finding("no power here", says)
    if original.interval.low <= 0.5 + margin:
        says = f"The attack does not clearly catch the original either (AUC {_format_auc(original)}), so its failure shows nothing."
        return Finding("no power here", says)
    power = compute_power(min(found.se, against_retrain.se), margin)
    if not _is_equivalent(found, against_retrain, margin):
        says = (
            f"{auc}, is neither clearly different from 0.5 and from Retrain's ({apart}) nor shown to be equivalent to one of them "
            f"within {margin:g}. With this many examples, a model that remembers nothing passes that test with a chance of {power:.0%}."
        )
        return Finding("inconclusive", says)
    if _excludes(found.interval, 0.5) or (
        _excludes(against_retrain.interval, 0.0) and not _is_within(against_retrain.equivalence, margin)
    ):
        says = (
            f"{auc}, and its difference from Retrain's on the same examples ({apart}) contradict each other."
        )
        return Finding("inconclusive", says)
    what = "Retrain's" if against_retrain.se < found.se else "0.5"
    caught = f"The same attack catches the original (AUC {_format_auc(original)}); power {power:.0%}."
    return Finding("not caught", f"{auc}, is equivalent to {what} within {margin:g} ({apart}). {caught}")


def _is_equivalent(found: Roc, apart: AucDifference, margin: float) -> bool:
    """Return what the sharper of two tests says: the AUC is equivalent to 0.5, or to Retrain's on the same examples."""
    return _is_within(apart.equivalence, margin) if apart.se < found.se else is_equivalent(found, margin)


def _find_side(found: Roc, apart: AucDifference) -> int:
    """Return 1 if the AUC is above 0.5 and above Retrain's, -1 if it is below both, 0 if it is neither.

    Both must hold by a 90 % interval, which is a one-sided test at 5 %, and one of them by a 99 % interval.
    """
    if not (_excludes(found.interval, 0.5) or _excludes(apart.interval, 0.0)):
        return 0
    if found.equivalence.low > 0.5 and apart.equivalence.low > 0:
        return 1
    return -1 if found.equivalence.high < 0.5 and apart.equivalence.high < 0 else 0


def _excludes(interval: Interval, value: float) -> bool:
    return not interval.low <= value <= interval.high


def _is_within(interval: Interval, margin: float) -> bool:
    return -margin <= interval.low and interval.high <= margin


def judge_backdoor(
    unlearned: Difference, original: Difference, *, floor: float, floored: bool, margin: float = MARGIN
) -> Finding:
    """Return the outcome for a backdoor, from its success above the floor, which is Retrain's success.

    Args:
        floored: whether Retrain never saw the trigger.
    """
    finding = partial(Finding, backdoor=True)
    now, before = _format_points(unlearned), _format_points(original)
    if not floored:
        says = "Some remaining clients carry the trigger too, so it may still work, whatever was forgotten."
        return finding("no power here", says)
    if unlearned.low > margin:
        return finding("caught", f"The trigger works {now} more often than by chance ({floor:.1%}).")
    if original.low <= margin:
        return finding(
            "no power here", f"The trigger never worked: {before} above the floor on the original."
        )
    if unlearned.high < margin:
        return finding("not caught", f"The trigger worked {before} above the floor before, and {now} now.")
    says = f"The trigger works {now} above the floor: neither clearly above {margin:.0%} nor clearly below."
    return finding("inconclusive", says)


def explain_uselessness(test: float, retrain: float, chance: float) -> str | None:
    """Return why a model is useless, or None: it has less than half of Retrain's gain over the commonest label."""
    if test > chance and test >= chance + USEFUL * (retrain - chance):
        return None
    return (
        f"Test accuracy {test:.1%}; Retrain has {retrain:.1%}, and always answering the commonest label {chance:.1%}: "
        "a model that knows nothing has nothing to forget."
    )


def explain_useless_loss(test: float | None, retrain: float | None, constant: float) -> str | None:
    """Return why a model is useless, or None: its test loss has less than half of Retrain's gain over the best constant."""
    enough = math.inf if retrain is None else constant - USEFUL * (constant - retrain)
    if test is not None and test < constant and test <= enough:
        return None
    found, goal = ("not finite" if loss is None else f"{loss:.3g}" for loss in (test, retrain))
    return (
        f"Test loss {found}; Retrain has {goal}, and the best constant answer {constant:.3g}: "
        "a model that knows nothing has nothing to forget."
    )


def reach_verdict(
    claims_exact: bool,
    exactness: Exactness | None,
    findings: Sequence[Finding],
    waste: str | None,
    *,
    copied: bool = False,
    own_code: bool = False,
    doubts: Sequence[str] = (),
) -> Verdict:
    """Return the verdict. What was caught decides first, then usefulness, then exactness, and failed attacks last.

    Args:
        claims_exact: whether the method claims to be exact. Without that claim the verdict is at best "not caught".
        waste: why the model is useless, or None.
        copied: whether the weights are the original's, and Retrain's are not.
        own_code: whether code outside this package made the run.
        doubts: why the checks and attacks do not show what they seem to show. With any, the verdict is at best
            "inconclusive".
    """
    found = _weigh(claims_exact, exactness, findings, waste, copied=copied, own_code=own_code)
    if doubts and found.word in {"forgotten", "not caught"}:
        return Verdict("inconclusive", (*doubts, *found.reasons))
    if found.word == "forgotten" and exactness and exactness.unsearched:
        return Verdict("inconclusive", (UNSEARCHED, *found.reasons))
    return found


def _weigh(
    claims_exact: bool,
    exactness: Exactness | None,
    findings: Sequence[Finding],
    waste: str | None,
    *,
    copied: bool,
    own_code: bool,
) -> Verdict:
    checked = [check.says for check in exactness.checks] if exactness else ["Exactness was not checked."]
    exact = exactness is not None and exactness.exact
    unexplained = exactness is not None and exactness.unexplained
    fails_by_method = exactness is not None and exactness.fails_by_method
    if copied:
        return Verdict("not forgotten", (COPIED, *checked))
    if unexplained:
        findings = [f for f in findings if not f.rehearsed]
    if caught := [f.says for f in findings if f.verdict == "caught"]:
        if exact and not own_code:
            return Verdict("inconclusive", (*checked, ALARM, *caught))
        failed = [c.says for c in exactness.checks if not c.identical] if exactness and claims_exact else []
        return Verdict("not forgotten", (*caught, *failed))
    if claims_exact and exactness and not exact and (fails_by_method or not unexplained):
        return Verdict("not forgotten", ("The method calls itself exact, but it is not.", *checked))
    if waste is not None:
        return Verdict("useless", (waste, *checked))
    if broken := [f.says for f in findings if f.control_failed]:
        return Verdict("inconclusive", (*broken, *checked))
    if exact and claims_exact:
        return Verdict("forgotten", (*checked, _describe_attacks(findings), *([OWN] if own_code else [])))
    if exact:
        return _judge_by_attacks(findings, [*checked, UNDECLARED])
    if unexplained:
        return Verdict("inconclusive", (*checked, UNEXPLAINED))
    if fails_by_method:
        return Verdict("inconclusive", (*checked, FAILED))
    if exactness is None and any(f.rehearsed for f in findings):
        return _judge_by_attacks([f for f in findings if not f.rehearsed], [*checked, UNREHEARSED])
    return _judge_by_attacks(findings, checked)


def _judge_by_attacks(findings: Sequence[Finding], checked: Sequence[str]) -> Verdict:
    """Return the verdict that attacks alone allow.

    It is "not caught" at best: if an attack on membership has power, and every attack with power fails.
    """
    able = [f for f in findings if f.verdict != "no power here"]
    if all(f.backdoor for f in able):
        weak = "No attack on membership had the power to tell."
        return Verdict("inconclusive", (*checked, weak, *(f.says for f in findings)))
    if undecided := [f.says for f in able if f.verdict == "inconclusive"]:
        return Verdict("inconclusive", (*checked, *undecided))
    limit = "A failed attack shows only that this attack fails."
    return Verdict("not caught", (*checked, *(f.says for f in able), limit))


def _describe_attacks(findings: Sequence[Finding]) -> str:
    outcomes = [f.verdict for f in findings]
    failed = outcomes.count("not caught")
    counts = {
        f"{'catches' if failed == 1 else 'catch'} the original and not this model": failed,
        "had no power here": outcomes.count("no power here"),
        "decided nothing": outcomes.count("inconclusive"),
    }
    listed = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    summary = (
        f"of {len(findings)} attack{'s' if len(findings) > 1 else ''}, {listed}" if listed else "none ran"
    )
    return f"Attacks do not count for this verdict: {summary}."


def _format_auc(found: Roc) -> str:
    return f"{found.auc:.3f}, 99 % interval {found.interval.low:.3f} to {found.interval.high:.3f}"


def _format_difference(found: AucDifference) -> str:
    return f"difference {found.value:+.3f}, 99 % interval {found.interval.low:+.3f} to {found.interval.high:+.3f}"


def _format_points(found: Difference) -> str:
    return f"{100 * found.value:.1f} points ({100 * found.low:.1f} to {100 * found.high:.1f})"
