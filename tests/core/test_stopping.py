"""The stop rule is the paper's formula, spoken only when it may, and says what it saw."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feduhb.errors import ConfigError
from feduhb.stopping import DynamicStop, dynamic_stop, never, replay
from toys import quick

movements = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)
rules = st.builds(
    DynamicStop,
    scale=st.floats(0, 3),
    window=st.none() | st.integers(2, 12),
    floor=st.just(0.0) | st.floats(1e-6, 10),
    momentum=st.sampled_from([0.1, 0.5, 0.9, 0.99]),
    min_rounds=st.integers(1, 6),
)
printed = st.builds(replace, rules, as_printed=st.booleans())


def square(rule: DynamicStop, moved: list[float]) -> float:
    """Return the standard deviation in the words of the formula: the bits that runs have recorded."""
    recent = moved if rule.window is None else moved[-rule.window :]
    mean = math.fsum(recent) / len(recent)
    return math.hypot(*(m - mean for m in recent)) / math.sqrt(len(recent))


@settings(quick, max_examples=200)
@given(rules, movements)
def test_the_threshold_keeps_the_bits_of_recorded_runs(rule: DynamicStop, moved: list[float]):
    threshold = rule.threshold(moved)
    if threshold is not None:
        assert threshold == max(rule.floor / rule.momentum, rule.scale * square(rule, moved))


def naive(rule: DynamicStop, moved: list[float]) -> tuple[float, float] | None:
    """Return δ[t] and max(ε, λ σ[t]) as the paper writes them; None while the rule does not apply."""
    if len(moved) < rule.min_rounds or (rule.window is not None and len(moved) < rule.window):
        return None
    delta = rule.momentum * np.array(moved)
    recent = delta if rule.window is None else delta[-rule.window :]
    return float(delta[-1]), max(rule.floor, rule.scale * float(recent.std()))


def near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


@quick
@given(rules, movements)
def test_decision_is_the_formula(rule: DynamicStop, moved: list[float]):
    expected = naive(rule, moved)
    if expected is None:
        assert rule(moved) is None
        assert rule.threshold(moved) is None
        return
    delta, limit = expected
    assume(not near(delta, limit))
    assert (rule(moved) is not None) == (delta < limit)


@quick
@given(rules, movements)
def test_threshold_is_the_limit_in_units_of_movement_and_decides(rule: DynamicStop, moved: list[float]):
    expected, threshold = naive(rule, moved), rule.threshold(moved)
    assert (expected is None) == (threshold is None)
    if expected is None or threshold is None:
        return
    assert near(rule.momentum * threshold, expected[1])
    assume(not near(moved[-1], threshold))
    assert (rule(moved) is not None) == (moved[-1] < threshold)


@quick
@given(rules, movements)
def test_the_reason_carries_the_numbers_of_the_decision(rule: DynamicStop, moved: list[float]):
    reason = rule(moved)
    assume(reason is not None)
    assert reason is not None
    assert reason.movement == moved[-1]
    assert reason.threshold is not None
    assert moved[-1] < reason.threshold
    assert reason.threshold == rule.threshold(moved)


def test_the_window_of_three_on_paper():
    """Movements 1, 1/2, 1/4: mean 7/12, variance (25 + 1 + 16) / (144 * 3) = 7/72, σ = 0.311805.

    1/4 < λ σ from λ = 0.801784 on.
    """
    moved = [1.0, 0.5, 0.25]
    sigma = math.sqrt(7 / 72)
    assert dynamic_stop(0.80, window=3)(moved) is None
    reason = dynamic_stop(0.81, window=3)(moved)
    assert reason is not None
    assert reason.threshold == pytest.approx(0.81 * sigma, rel=1e-15)
    assert str(reason) == "movement 0.25 fell below 0.81 x its standard deviation 0.312"


def test_all_rounds_so_far_looks_further_back_than_a_window():
    """10, 1, 1, 1: a window of 3 sees no spread; all four have σ = 9 sqrt(3) / 4 = 3.897, and 1 < 0.6 σ."""
    moved = [10.0, 1.0, 1.0, 1.0]
    assert dynamic_stop(0.6, window=3)(moved) is None
    assert dynamic_stop(0.6, window=3).threshold(moved) == 0.0
    assert dynamic_stop(0.6, window=None).threshold(moved) == pytest.approx(
        0.6 * 9 * math.sqrt(3) / 4, rel=1e-15
    )
    assert dynamic_stop(0.6, window=None)(moved) is not None


def test_an_integer_window_is_silent_until_it_is_full():
    moved = [100.0, 1.0, 1.0, 1.0, 1.0]
    speaks = [dynamic_stop(3.0, window=5).threshold(moved[:n]) is not None for n in range(1, 6)]
    assert speaks == [False, False, False, False, True]
    assert replay(dynamic_stop(3.0, window=4), moved) == 4
    assert replay(dynamic_stop(3.0), moved) == 3  # min_rounds


@pytest.mark.parametrize("min_rounds", [1, 2, 5])
def test_min_rounds_holds_the_rule_back(min_rounds: int):
    moved = [9.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    rule = dynamic_stop(0.0, floor=100.0, min_rounds=min_rounds)
    assert replay(rule, moved) == min_rounds


def test_the_floor_is_in_units_of_delta():
    """At β = 0.5 a movement of 1 is δ = 0.5: over a floor of 0.4, under one of 0.6, a movement of 1.2."""
    plateau = [1.0, 1.0, 1.0]
    assert dynamic_stop(0.6, floor=0.4, momentum=0.5)(plateau) is None
    reason = dynamic_stop(0.6, floor=0.6, momentum=0.5)(plateau)
    assert reason is not None
    assert str(reason) == "movement 1 fell below the floor 1.2"
    assert reason.threshold == pytest.approx(1.2)


def test_a_plateau_never_stops_without_a_floor():
    assert replay(dynamic_stop(100.0), [2.0] * 50) is None
    assert replay(dynamic_stop(100.0, window=5), [2.0] * 50) is None


@quick
@given(movements, st.floats(0, 2), st.floats(0, 10))
def test_momentum_zero_judges_the_movement_itself(moved: list[float], scale: float, floor: float):
    rule = dynamic_stop(scale, floor=floor, momentum=0.0)
    if len(moved) < 3:
        assert rule(moved) is None
        return
    limit = max(floor, scale * float(np.std(moved)))
    assume(not near(moved[-1], limit))
    assert (rule(moved) is not None) == (moved[-1] < limit)


@quick
@given(movements, st.floats(0, 2), st.none() | st.integers(2, 8), st.floats(0, 1))
def test_as_printed_judges_the_series_one_round_later(
    moved: list[float], scale: float, window: int | None, floor: float
):
    """The paper's δ[t] is the movement *into* w[t], so its series is 0, then ours one round late."""
    ours = dynamic_stop(scale, window=window, floor=floor)
    printed = dynamic_stop(scale, window=window, floor=floor, as_printed=True)
    assert printed(moved) == ours([0.0, *moved[:-1]])
    assert printed.threshold(moved) == ours.threshold([0.0, *moved[:-1]])


@quick
@given(movements, st.floats(0.01, 2), st.integers(2, 6))
def test_as_printed_fires_exactly_one_round_late_once_the_zero_has_left_the_window(
    moved: list[float], scale: float, window: int
):
    """A window that speaks after the zero has left it holds the same movements, one round later."""
    rule = {printed: DynamicStop(scale, window=window, as_printed=printed) for printed in (False, True)}
    for n in range(max(window, 3), len(moved)):
        assert rule[False](moved[:n]) == rule[True](moved[: n + 1])


def test_as_printed_on_paper():
    """4, 4, 1: as printed round 3 sees 0, 4, 4 and goes on; round 4 sees 0, 4, 4, 1 and 1 < 0.6 σ."""
    moved = [4.0, 4.0, 1.0, 1.0]
    assert replay(dynamic_stop(0.75), moved) == 3  # σ of 4, 4, 1 is sqrt(2) = 1.414; 0.75 σ = 1.06
    assert dynamic_stop(0.6, as_printed=True)(moved[:3]) is None
    reason = dynamic_stop(0.6, as_printed=True)(moved)
    assert reason is not None
    assert reason.movement == 1.0
    assert reason.threshold == pytest.approx(0.6 * math.sqrt(51 / 16), rel=1e-14)  # mean 9/4, Σx²/4 = 33/4


@quick
@given(movements, st.floats(0, 3), st.none() | st.integers(2, 8), st.integers(-60, 60))
def test_without_a_floor_the_rule_knows_no_scale(
    moved: list[float], scale: float, window: int | None, power: int
):
    """Powers of two scale floats without rounding, so the decision must be the same, not just nearly."""
    rule = dynamic_stop(scale, window=window)
    assert (rule(moved) is None) == (rule([m * 2.0**power for m in moved]) is None)


@quick
@given(movements, st.floats(0, 3), st.sampled_from([0.1, 0.5, 0.99]))
def test_momentum_cancels_without_a_floor(moved: list[float], scale: float, momentum: float):
    assert dynamic_stop(scale, momentum=momentum)(moved) == dynamic_stop(scale, momentum=0.9)(moved)


@quick
@given(st.floats(0.3, 0.99), st.integers(2, 8), st.floats(0.05, 3))
def test_a_constant_shrink_fires_when_the_window_is_full_or_never(factor: float, window: int, scale: float):
    """With δ[t] = r^t every window is the one before times r, so the ratio δ/σ never changes."""
    first = factor ** np.arange(window)
    assume(not near(float(first[-1]), scale * float(first.std())))
    fired = replay(dynamic_stop(scale, window=window), [factor**t for t in range(40)])
    assert fired == (max(window, 3) if first[-1] < scale * first.std() else None)


@settings(quick, max_examples=400)
@given(printed, movements | st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.0 + 2**-51, 1e200]), max_size=30))
def test_replay_is_the_first_round_that_speaks(rule: DynamicStop, moved: list[float]):
    fired = replay(rule, moved)
    speaks = [rule(moved[:n]) is not None for n in range(1, len(moved) + 1)]
    assert fired == (speaks.index(True) + 1 if any(speaks) else None)


@quick
@given(st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=30), st.none() | st.integers(2, 3))
def test_a_tie_is_decided_by_the_rule_itself(moved: list[float], window: int | None):
    """A movement that equals the threshold to the last bit does not stop; the next smaller λ does not either."""
    sigma = dynamic_stop(1.0, window=window).threshold(moved)
    assume(sigma)
    assert sigma is not None
    tie = moved[-1] / sigma
    for scale in (math.nextafter(tie, 0), tie, math.nextafter(tie, math.inf)):
        rule = dynamic_stop(scale, window=window)
        speaks = [rule(moved[:n]) is not None for n in range(1, len(moved) + 1)]
        assert replay(rule, moved) == (speaks.index(True) + 1 if any(speaks) else None)


class Counted(list[float]):
    """Movements that count how many of them were read."""

    read = 0

    def __iter__(self):
        for each in super().__iter__():
            self.read += 1
            yield each

    def __getitem__(self, place):
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 1
        return found


@pytest.mark.parametrize("window", [None, 3, 20])
def test_a_replay_reads_every_movement_a_fixed_number_of_times(window: int | None):
    """Twice as many rounds are twice the work, not four times."""
    work: list[int] = []
    for rounds in (500, 1000):
        moved = Counted(2 + math.sin(t) for t in range(rounds))
        assert replay(dynamic_stop(0.3, window=window), moved) is None
        work.append(moved.read)
    assert 500 <= work[0] <= 500 * (1 + (window or 0))
    assert work[1] <= 2.1 * work[0]


@quick
@given(movements)
def test_never_is_silent(moved: list[float]):
    assert never(moved) is None
    assert never.threshold(moved) is None
    assert replay(never, moved) is None


def test_no_rounds_give_no_reason():
    for rule in (dynamic_stop(floor=1.0), dynamic_stop(floor=1.0, min_rounds=1, as_printed=True), never):
        assert rule([]) is None
        assert rule.threshold([]) is None


def test_a_run_that_blows_up_is_judged_not_crashed():
    """1e200 squared is no float any more; a diverging run must not be met with a bare OverflowError."""
    assert dynamic_stop(0.6)([1e198, 1e199, 1e200]) is None
    assert dynamic_stop(0.6)([1.0, 1e200, 1.0]) is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scale": -0.1}, "the stop rule's scale (lambda) is -0.1; give 0 or more, such as 0.6"),
        (
            {"scale": math.nan},
            "the stop rule's scale (lambda) is nan; give 0 or more, such as 0.6",
        ),
        (
            {"scale": math.inf},
            "the stop rule's scale (lambda) is inf; give 0 or more, such as 0.6",
        ),
        ({"window": 1}, "the stop rule's window is 1; give a whole number, 2 or more, or leave it out"),
        ({"floor": -1.0}, "the stop rule's floor (epsilon) is -1.0; give 0 or more"),
        ({"momentum": 1.0}, "the stop rule's momentum is 1.0; give at least 0 and below 1"),
        ({"momentum": -0.5}, "the stop rule's momentum is -0.5; give at least 0 and below 1"),
        ({"min_rounds": 0}, "the stop rule's min_rounds is 0; give a whole number, 1 or more"),
        ({"min_rounds": 2.5}, "the stop rule's min_rounds is 2.5; give a whole number, 1 or more"),
        ({"window": 2.5}, "the stop rule's window is 2.5; give a whole number, 2 or more, or leave it out"),
        ({"scale": True}, "the stop rule's scale (lambda) is True; give 0 or more, such as 0.6"),
        ({"scale": "0.6"}, "the stop rule's scale (lambda) is '0.6'; give 0 or more, such as 0.6"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as error:
        DynamicStop(**settings)
    assert str(error.value) == words


def test_the_public_name_takes_every_setting():
    given = {"window": 5, "floor": 0.1, "momentum": 0.5, "min_rounds": 4, "as_printed": True}
    assert asdict(dynamic_stop(0.4, **given)) == {"scale": 0.4, **given}
    with pytest.raises(TypeError):
        dynamic_stop(0.4, 5)  # pyright: ignore[reportCallIssue]
