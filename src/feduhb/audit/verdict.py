"""From measurements with controls to a verdict in one word, with its reasons.

Three models are attacked alike: the one under audit, the original (which must be caught, or the attack has no
power here) and Retrain (which must not, or the attack measures something else than membership).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED, Difference, Exactness, Outcome, Roc, Verdict
from feduhb.audit.statistics import compute_power, is_equivalent

MARGIN = (
    0.05  # of an AUC around 0.5, and of a backdoor's success over its floor: less than that counts as none
)
UNEXPLAINED = (
    "The recorded procedure does not give these weights here, so its rehearsals do not speak of them."
)
COPIED = "These are the original's very weights, and Retrain's are others: nothing was done."
ALARM = "Yet an attack alarms. Weights that do not depend on the data cannot know it: chance, or others who stay hold such examples too."
OWN = "Code of one's own took part. It was also run where there is nothing to learn; code that knows when it is audited could pass all of this."
BROUGHT = "A rehearsal of a method that brings its knowledge along says nothing."
UNREHEARSED = "A rehearsal speaks of these weights only where the recorded procedure was seen to give them."
USEFUL = 0.5  # of what Retrain gains over answering the commonest label: with less a model is of no use


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one attack, as the verdict needs it."""

    verdict: Outcome
    says: str
    control_failed: bool = False  # Retrain was caught: the attack measures something else
    backdoor: bool = False  # no attack on membership
    rehearsed: bool = False  # the recorded procedure was attacked, with canaries, not these weights


def judge_membership(models: Mapping[str, Roc], margin: float = MARGIN) -> Finding:
    """Return the outcome of one membership attack.

    Caught: the 99 % interval of the AUC lies above 0.5 and above Retrain's own AUC, or below both: a model that treats
    the forgotten data unlike unseen data in any way gives it away. Not caught: the two one-sided tests find it within
    0.5 ± margin at 5 %, by an attack that catches the original by more than that margin. Where Retrain's interval lies
    below 0.5 the forgotten data is harder than the data it is compared with, and an AUC near 0.5 is not a sign.
    """
    found, original, retrain = models[UNLEARNED], models[ORIGINAL], models[RETRAIN]
    if retrain.interval.low > 0.5:
        return Finding(
            "inconclusive",
            f"The attack calls Retrain a member too (AUC {_format_auc(retrain)}), so it measures something else than membership.",
            control_failed=True,
        )
    if found.interval.low > max(0.5, retrain.auc):
        return Finding(
            "caught", f"AUC {_format_auc(found)} lies above 0.5: the model still knows the forgotten data."
        )
    if found.interval.high < min(0.5, retrain.auc):
        return Finding(
            "caught",
            f"AUC {_format_auc(found)} lies below 0.5: the model treats the forgotten data worse than unseen data, which gives it away too.",
        )
    if retrain.interval.high < 0.5:
        return Finding(
            "no power here",
            f"Retrain never saw the forgotten data and finds it harder than the held-out data (AUC {_format_auc(retrain)}), "
            "so that an AUC near 0.5 shows nothing.",
        )
    if original.interval.low <= 0.5 + margin:
        return Finding(
            "no power here",
            f"The attack does not clearly catch the original model either (AUC {_format_auc(original)}), so that it fails shows nothing.",
        )
    passed = compute_power(found.se, margin)
    if is_equivalent(found, margin):
        return Finding(
            "not caught",
            f"AUC {_format_auc(found)} is equivalent to 0.5 ± {margin:g}, and the same attack catches the original (AUC {_format_auc(original)}); "
            f"power {passed:.0%}.",
        )
    return Finding(
        "inconclusive",
        f"AUC {_format_auc(found)} is neither clearly off 0.5 nor shown to lie within 0.5 ± {margin:g}. With as many examples a model "
        f"that remembers nothing passes that test with a chance of {passed:.0%}.",
    )


def judge_backdoor(
    unlearned: Difference, original: Difference, *, floor: float, floored: bool, margin: float = MARGIN
) -> Finding:
    """Return the outcome for a backdoor, by its success over the floor, Retrain's.

    Args:
        floored: whether Retrain never saw the trigger.
    """
    if not floored:
        return _backdoor_finding(
            "no power here",
            "Some clients that stay carry the trigger too, so it may go on working whatever was forgotten.",
        )
    if unlearned.low > margin:
        return _backdoor_finding(
            "caught",
            f"The trigger works {_format_points(unlearned)} more often than by chance ({floor:.1%}).",
        )
    if original.low <= margin:
        return _backdoor_finding(
            "no power here",
            f"The trigger never worked: on the original model {_format_points(original)} over the floor.",
        )
    if unlearned.high < margin:
        return _backdoor_finding(
            "not caught",
            f"The trigger worked {_format_points(original)} over the floor before, and {_format_points(unlearned)} over it now.",
        )
    return _backdoor_finding(
        "inconclusive",
        f"The trigger works {_format_points(unlearned)} over the floor: neither clearly above {margin:.0%} nor below.",
    )


def _backdoor_finding(found: Outcome, says: str) -> Finding:
    return Finding(found, says, backdoor=True)


def explain_uselessness(test: float, retrain: float, chance: float) -> str | None:
    """Return why a model is useless, None where it is not: it gains less than half of what Retrain gains over the commonest label."""
    if test > chance and test >= chance + USEFUL * (retrain - chance):
        return None
    return (
        f"Test accuracy {test:.1%}, where Retrain has {retrain:.1%} and always answering the commonest label {chance:.1%}: "
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
) -> Verdict:
    """Return the verdict: what was caught decides first, then use, then exactness, and attacks that failed last.

    Args:
        claims_exact: what the method says of itself.
        waste: why the model is useless, None where it is not.
        copied: whether the weights are the original's, and Retrain's are not.
        own_code: whether code that is not this package's made the run.
    """
    checked = _describe_checks(exactness)
    if copied:
        return Verdict("not forgotten", (COPIED, *checked))
    if exactness and exactness.unexplained:
        findings = [f for f in findings if not f.rehearsed]
    if caught := [f.says for f in findings if f.verdict == "caught"]:
        if exactness and exactness.exact and not own_code:
            return Verdict("inconclusive", (*checked, ALARM, *caught))
        return Verdict("not forgotten", tuple(caught))
    if (
        claims_exact
        and exactness
        and not exactness.exact
        and (exactness.brought or not exactness.unexplained)
    ):
        return Verdict("not forgotten", ("The method calls itself exact, but it is not.", *checked))
    if waste is not None:
        return Verdict("useless", (waste, *checked))
    if broken := [f.says for f in findings if f.control_failed]:
        return Verdict("inconclusive", (*broken, *checked))
    if exactness and exactness.exact:
        return Verdict(
            "forgotten",
            (
                *checked,
                "Attacks are no part of this verdict: "
                + (_count_outcomes(findings) or "none was able to contradict it."),
                *([OWN] if own_code else []),
            ),
        )
    if exactness and exactness.unexplained:
        return Verdict("inconclusive", (*checked, UNEXPLAINED))
    if exactness and exactness.brought:
        return Verdict("inconclusive", (*checked, BROUGHT))
    if exactness is None and any(f.rehearsed for f in findings):
        return _judge_by_attacks([f for f in findings if not f.rehearsed], (*checked, UNREHEARSED))
    return _judge_by_attacks(findings, checked)


def _judge_by_attacks(findings: Sequence[Finding], checked: tuple[str, ...]) -> Verdict:
    """Return the verdict that attacks alone allow: not caught at best, where every attack with power fails and one on membership has power."""
    able = [f for f in findings if f.verdict != "no power here"]
    if all(f.backdoor for f in able):
        said = (f.says for f in findings)
        return Verdict("inconclusive", (*checked, "No attack on membership had the power to tell.", *said))
    open_questions = [f.says for f in able if f.verdict == "inconclusive"]
    if open_questions:
        return Verdict("inconclusive", (*checked, *open_questions))
    return Verdict(
        "not caught",
        (*checked, *(f.says for f in able), "An attack that fails shows that this attack fails, no more."),
    )


def _describe_checks(exactness: Exactness | None) -> tuple[str, ...]:
    if exactness is None:
        return ("Exactness was not checked.",)
    return tuple(check.says for check in exactness.checks)


def _count_outcomes(findings: Sequence[Finding]) -> str:
    failed = sum(f.verdict == "not caught" for f in findings)
    without = sum(f.verdict == "no power here" for f in findings)
    unsure = sum(f.verdict == "inconclusive" for f in findings)
    counts = {
        f"{'catches' if failed == 1 else 'catch'} the original and not this model": failed,
        "had no power here": without,
        "decided nothing": unsure,
    }
    said = [f"{count} {what}" for what, count in counts.items() if count]
    return (
        f"of {len(findings)} attack{'s' if len(findings) > 1 else ''}, " + ", ".join(said) + "."
        if said
        else ""
    )


def _format_auc(found: Roc) -> str:
    return f"{found.auc:.3f}, 99 % interval {found.interval.low:.3f} to {found.interval.high:.3f}"


def _format_points(found: Difference) -> str:
    return f"{100 * found.value:.1f} points ({100 * found.low:.1f} to {100 * found.high:.1f})"
