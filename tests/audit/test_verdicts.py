"""From findings to a word: "forgotten" rests on exactness alone, and a control that fails decides nothing."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.auditing import compare_rocs, make_roc
from feduhb.audit.result import OF_METHOD, AucDifference, Check, Difference, Exactness, Interval, Outcome, Roc
from feduhb.audit.verdict import (
    OWN,
    UNDECLARED,
    UNEXPLAINED,
    UNREHEARSED,
    Finding,
    explain_uselessness,
    judge_backdoor,
    judge_membership,
    reach_verdict,
)
from toys import quick

CAUGHT, FAILED, BLIND, UNSURE = (
    Finding(word, word) for word in ("caught", "not caught", "no power here", "inconclusive")
)
BROKEN = Finding("inconclusive", "Retrain too", control_failed=True)


def exactness(noise: bool = True, never: bool = True, again: bool | None = None) -> Exactness:
    said = {"noise": noise, "never": never, "again": again}
    checks = [Check(name, name, same, 0.0) for name, same in said.items() if same is not None]  # pyright: ignore[reportArgumentType]
    return Exactness(all(check.identical for check in checks), tuple(checks))


EXACT, LEAKS, ELSEWHERE = (
    exactness(),
    exactness(False, False, again=True),
    exactness(False, False, again=False),
)


def test_attacks_that_fail_beside_exactness_are_counted_in_plain_words():
    one, two = (
        reach_verdict(True, EXACT, findings, None).reasons[-1]
        for findings in ([FAILED], [FAILED, FAILED, BLIND])
    )
    assert one.endswith("of 1 attack, 1 catches the original and not this model.")
    assert two.endswith("of 3 attacks, 2 catch the original and not this model, 1 had no power here.")


def judge(models: dict[str, Roc], margin: float = 0.05) -> Finding:
    """Judge models whose errors are independent."""
    return judge_membership(models, compare_rocs(models["unlearned"], models["retrain"]), margin)


@pytest.mark.parametrize(
    ("unlearned", "original", "retrain", "found"),
    [
        ((0.50, 0.01), (0.90, 0.01), (0.50, 0.01), "not caught"),
        ((0.60, 0.01), (0.90, 0.01), (0.50, 0.01), "caught"),
        ((0.60, 0.01), (0.60, 0.01), (0.60, 0.01), "inconclusive"),  # Retrain is caught too
        ((0.50, 0.01), (0.90, 0.01), (0.60, 0.01), "inconclusive"),
        ((0.50, 0.01), (0.54, 0.01), (0.50, 0.01), "no power here"),  # caught, but by less than the margin
        ((0.50, 0.01), (0.60, 0.05), (0.50, 0.01), "no power here"),
        ((0.50, 0.04), (0.90, 0.01), (0.50, 0.01), "inconclusive"),  # too few examples
        ((0.56, 0.04), (0.90, 0.01), (0.50, 0.01), "inconclusive"),
        ((0.40, 0.01), (0.90, 0.01), (0.50, 0.01), "caught"),  # far below 0.5 gives it away too
        ((0.40, 0.01), (0.90, 0.01), (0.39, 0.06), "inconclusive"),  # unless Retrain may lie as low
        ((0.50, 0.01), (0.60, 0.01), (0.40, 0.01), "no power here"),  # the forgotten data is harder
        ((0.60, 0.01), (0.60, 0.01), (0.40, 0.01), "caught"),
    ],
)
def test_membership(unlearned, original, retrain, found):
    models = {
        "unlearned": make_roc(*unlearned),
        "original": make_roc(*original),
        "retrain": make_roc(*retrain),
    }
    assert judge(models).verdict == found


def test_only_a_caught_retrain_is_a_failed_control():
    fine = {"unlearned": make_roc(0.6), "original": make_roc(0.9), "retrain": make_roc(0.5)}
    assert not judge(fine).control_failed
    said = judge({**fine, "retrain": make_roc(0.6)})
    assert said.control_failed
    assert "does not measure membership" in said.says


def test_not_caught_states_its_power_and_a_wider_margin_takes_more_to_be_able():
    models = {"unlearned": make_roc(0.5, 0.02), "original": make_roc(0.65), "retrain": make_roc(0.5)}
    said = judge(models)
    assert said.verdict == "not caught"
    assert "power 61%" in said.says  # 2 Phi(0.05 / 0.02 - 1.645) - 1 = 2 Phi(0.855) - 1
    assert judge(models, 0.2).verdict == "no power here"


numbers = st.tuples(st.floats(0.0, 1.0), st.floats(0.001, 0.2))


@quick
@given(unlearned=numbers, original=numbers, retrain=numbers, margin=st.floats(0.01, 0.2))
def test_not_caught_needs_both_controls_and_equivalence(unlearned, original, retrain, margin):
    models = {
        "unlearned": make_roc(*unlearned),
        "original": make_roc(*original),
        "retrain": make_roc(*retrain),
    }
    said = judge(models, margin)
    if said.verdict == "not caught":
        apart, error = abs(unlearned[0] - retrain[0]), math.hypot(unlearned[1], retrain[1])
        assert error > unlearned[1]  # independent errors: the AUC alone is the sharper test
        assert abs(unlearned[0] - 0.5) + 1.645 * unlearned[1] <= margin + 1e-9
        assert original[0] - 2.576 * original[1] > 0.5 + margin
        assert abs(retrain[0] - 0.5) <= 2.576 * retrain[1] + 1e-9
        assert apart <= 2.576 * error + 1e-9 or apart + 1.645 * error <= margin + 1e-9
    if said.verdict == "caught":
        assert retrain[0] - 2.576 * retrain[1] <= 0.5
        assert abs(unlearned[0] - 0.5) > 1.645 * unlearned[1] - 1e-9
        assert (unlearned[0] > retrain[0]) == (unlearned[0] > 0.5)
        apart, error = abs(unlearned[0] - retrain[0]), math.hypot(unlearned[1], retrain[1])
        assert apart > 1.645 * error - 1e-9
        assert apart > 2.576 * error - 1e-9 or abs(unlearned[0] - 0.5) > 2.576 * unlearned[1] - 1e-9
    if retrain[0] - 2.576 * retrain[1] > 0.5:
        assert said.verdict == "inconclusive"
        assert said.control_failed


def make_difference(value: float, se: float) -> AucDifference:
    wide, equal = (Interval(value - z * se, value + z * se) for z in (2.576, 1.645))
    return AucDifference(value, se, wide, equal)


@pytest.mark.parametrize(
    ("auc", "apart", "found"),
    [
        ((0.57, 0.03), (0.06, 0.01), "caught"),  # the paired test is the sharper one
        ((0.43, 0.03), (-0.06, 0.01), "caught"),
        ((0.57, 0.03), (-0.06, 0.01), "inconclusive"),  # above 0.5, but below Retrain's
        ((0.54, 0.03), (0.06, 0.01), "inconclusive"),  # not even the 90 % interval is above 0.5
        ((0.58, 0.03), (0.04, 0.03), "inconclusive"),  # above 0.5, but not clearly above Retrain's
        ((0.58, 0.03), (0.06, 0.03), "caught"),  # by 99 % above 0.5, by 90 % above Retrain's
        ((0.505, 0.01), (0.12, 0.02), "inconclusive"),  # near 0.5, and yet unlike Retrain's
        ((0.505, 0.01), (0.08, 0.04), "not caught"),
        ((0.505, 0.03), (0.01, 0.01), "not caught"),  # too few examples to be near 0.5, but near Retrain's
        ((0.505, 0.03), (0.03, 0.01), "not caught"),  # unlike Retrain's by less than the margin
        ((0.505, 0.03), (0.04, 0.01), "inconclusive"),
        ((0.59, 0.03), (0.01, 0.01), "inconclusive"),  # near Retrain's, but not near 0.5
    ],
)
def test_the_paired_test_counts(auc, apart, found):
    models = {"unlearned": make_roc(*auc), "original": make_roc(0.9), "retrain": make_roc(0.5, 0.03)}
    said = judge_membership(models, make_difference(*apart))
    assert said.verdict == found
    assert f"{apart[0]:+.3f}" in said.says


def points(value: float, half: float = 0.02) -> Difference:
    return Difference(value, value - half, value + half)


@pytest.mark.parametrize(
    ("unlearned", "original", "floored", "found"),
    [
        (points(0.0), points(0.9), True, "not caught"),
        (points(0.9), points(0.9), True, "caught"),
        (points(0.0), points(0.05), True, "no power here"),  # the trigger never worked
        (points(0.04), points(0.9), True, "inconclusive"),
        (points(0.9), points(0.9), False, "no power here"),  # clients that stay carry it too
        (points(0.0), points(0.9), False, "no power here"),
    ],
)
def test_backdoors(unlearned, original, floored, found):
    said = judge_backdoor(unlearned, original, floor=0.01, floored=floored)
    assert said.verdict == found
    assert not said.control_failed


@pytest.mark.parametrize(
    ("test", "retrain", "chance", "of_use"),
    [
        (0.90, 0.92, 0.1, True),
        (0.52, 0.92, 0.1, True),
        (0.50, 0.92, 0.1, False),
        (0.10, 0.92, 0.1, False),
        (0.10, 0.10, 0.1, False),  # where Retrain learnt nothing either, nothing is of use
        (0.09, 0.05, 0.1, False),
        (0.30, 0.05, 0.1, True),
    ],
)
def test_use(test, retrain, chance, of_use):
    said = explain_uselessness(test, retrain, chance)
    assert (said is None) is of_use
    assert said is None or f"Test accuracy {test:.1%}" in said


@pytest.mark.parametrize(
    ("claims", "exact", "findings", "waste", "word"),
    [
        (True, EXACT, [BLIND, UNSURE], None, "forgotten"),
        (True, EXACT, [], None, "forgotten"),
        (
            True,
            EXACT,
            [FAILED, CAUGHT],
            None,
            "inconclusive",
        ),  # a false alarm, or examples that others hold too
        (True, EXACT, [BROKEN], None, "inconclusive"),
        (True, EXACT, [FAILED, BROKEN], None, "inconclusive"),
        (True, EXACT, [FAILED], "9 %", "useless"),
        (True, LEAKS, [FAILED], None, "not forgotten"),  # calls itself exact
        (True, LEAKS, [FAILED], "9 %", "not forgotten"),
        (True, ELSEWHERE, [FAILED], None, "inconclusive"),  # not the weights that its procedure gives
        (True, ELSEWHERE, [CAUGHT], None, "not forgotten"),
        (True, ELSEWHERE, [FAILED], "9 %", "useless"),
        (False, LEAKS, [FAILED, BLIND], None, "not caught"),
        (False, LEAKS, [FAILED, UNSURE], None, "inconclusive"),
        (False, LEAKS, [FAILED, BROKEN], None, "inconclusive"),
        (False, LEAKS, [BLIND], None, "inconclusive"),
        (False, LEAKS, [], None, "inconclusive"),
        (True, None, [FAILED], None, "not caught"),
        (True, None, [BLIND], None, "inconclusive"),
        (False, EXACT, [BLIND], None, "inconclusive"),  # FedRecover warmed up over all rounds
        (False, EXACT, [FAILED], None, "not caught"),
        (False, EXACT, [FAILED], "9 %", "useless"),
    ],
)
def test_words(claims, exact, findings, waste, word):
    found = reach_verdict(claims, exact, findings, waste)
    assert found.word == word
    assert found.reasons
    assert all(found.reasons)


findings_of = st.lists(
    st.builds(Finding, st.sampled_from(get_args(Outcome)), st.just("said"), st.booleans(), st.booleans()),
    max_size=5,
)
exactnesses = st.sampled_from(
    [
        None,
        *(exactness(*some) for some in itertools.product((True, False), (True, False), (True, False, None))),
    ]
)


@quick
@given(claims=st.booleans(), exact=exactnesses, findings=findings_of, waste=st.sampled_from([None, "9 %"]))
def test_what_each_word_takes(claims, exact, findings, waste):
    word = reach_verdict(claims, exact, findings, waste).word
    caught = any(f.verdict == "caught" for f in findings)
    failed = any(f.control_failed for f in findings)
    if word == "forgotten":
        assert claims
        assert exact is not None
        assert all(check.identical for check in exact.checks)
        assert not caught
        assert not failed
        assert waste is None
    if word == "not caught":
        on_these = [f for f in findings if exact is not None or not f.rehearsed]
        assert any(f.verdict == "not caught" for f in on_these)
        assert all(f.verdict in ("not caught", "no power here") for f in on_these)
        assert not failed
        assert waste is None
        assert exact is None or not exact.unexplained
    if caught and exact is not None and exact.exact:
        assert word == "inconclusive"
    elif [f for f in findings if f.verdict == "caught" and not (f.rehearsed and exact and exact.unexplained)]:
        assert word == "not forgotten"
    elif failed:
        assert word in ("inconclusive", "useless", "not forgotten")
    if waste and not caught:
        assert word in ("useless", "not forgotten")


def test_a_copy_and_the_users_own_code():
    assert reach_verdict(True, EXACT, [], None, copied=True).word == "not forgotten"
    assert reach_verdict(True, EXACT, [CAUGHT], None, own_code=True).word == "not forgotten"
    assert reach_verdict(True, EXACT, [BLIND], None, own_code=True).reasons[-1] == OWN


@pytest.mark.parametrize("name", OF_METHOD)
def test_a_method_that_fails_a_check_of_its_own_is_no_success(name):
    """Equal weights in both worlds do not help it."""
    found = Exactness(False, (*EXACT.checks, Check(name, "begins elsewhere", False, 0.0)))
    assert found.fails_by_method
    claimed = reach_verdict(True, found, [FAILED], None, own_code=True)
    assert claimed.word == "not forgotten"
    assert claimed.reasons[-1] == "begins elsewhere"
    assert reach_verdict(False, found, [FAILED], None, own_code=True).word == "inconclusive"


def test_forgotten_is_only_for_methods_that_declare_themselves_exact():
    said = reach_verdict(False, EXACT, [FAILED], None)
    assert said.word == "not caught"
    assert UNDECLARED in said.reasons


@pytest.mark.parametrize(
    ("claims", "exact", "findings", "word"),
    [
        (True, EXACT, [FAILED], "inconclusive"),
        (False, LEAKS, [FAILED], "inconclusive"),
        (True, LEAKS, [FAILED], "not forgotten"),
        (False, LEAKS, [CAUGHT], "not forgotten"),
    ],
)
def test_a_method_that_cannot_be_rebuilt_is_at_best_inconclusive(claims, exact, findings, word):
    found = reach_verdict(claims, exact, findings, None, doubts=["It is local to a function."])
    assert found.word == word
    assert (found.reasons[0] == "It is local to a function.") is (word == "inconclusive")
    assert reach_verdict(True, EXACT, [], "9 %", doubts=["It is local."]).word == "useless"


def test_a_removed_backdoor_shows_nothing_about_membership():
    trigger = Finding("not caught", "gone", backdoor=True)
    assert reach_verdict(False, LEAKS, [trigger, BLIND], None).word == "inconclusive"
    assert reach_verdict(False, LEAKS, [trigger, FAILED], None).word == "not caught"


def test_a_rehearsals_catch_condemns_no_weights_it_does_not_speak_of():
    caught = Finding("caught", "canaries", rehearsed=True)
    assert reach_verdict(True, ELSEWHERE, [caught], None).word == "inconclusive"
    assert reach_verdict(False, LEAKS, [caught], None).word == "not forgotten"
    assert reach_verdict(True, None, [caught], None).word == "not forgotten"


def test_a_rehearsal_counts_only_where_the_procedure_gave_the_weights():
    rehearsed = Finding("not caught", "canaries", rehearsed=True)
    assert reach_verdict(False, LEAKS, [rehearsed, BLIND], None).word == "not caught"
    unchecked = reach_verdict(True, None, [rehearsed, BLIND], None)
    assert unchecked.word == "inconclusive"
    assert UNREHEARSED in unchecked.reasons
    other = reach_verdict(True, ELSEWHERE, [rehearsed, BLIND], None)
    assert other.word == "inconclusive"
    assert other.reasons[-1] == UNEXPLAINED
    assert reach_verdict(True, None, [rehearsed, FAILED], None).word == "not caught"


def test_an_attack_without_power_is_counted_as_such():
    said = reach_verdict(True, EXACT, [BLIND, BLIND, FAILED, UNSURE], None).reasons[-1]
    assert said.startswith("Attacks do not count for this verdict: of 4")
    assert "1 catches the original and not this model" in said
    assert said.endswith("2 had no power here, 1 decided nothing.")
    assert reach_verdict(True, EXACT, [], None).reasons[-1].endswith("none ran.")
