"""Rules on held-out values and distances, on series whose answers fit on paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import feduhb
from feduhb.errors import ConfigError
from feduhb.stopping import DistanceStop, Patience, Series, StopReason, decide, never
from toys import quick

values = st.lists(st.none() | st.floats(0, 1), max_size=30)


def make_series(
    score: Sequence[float | None] = (),
    loss: Sequence[float | None] = (),
    distance: Sequence[float | None] = (),
    best: Any = "high",
) -> Series:
    """Return a series with these values, one movement of 1 for each round."""
    rounds = max(map(len, (score, loss, distance)))
    distances, losses, scores = (
        tuple(some) if some else (None,) * rounds for some in (distance, loss, score)
    )
    return Series((1.0,) * rounds, distances, losses, scores, best)


# A heavy ball: the score rises until round 4, falls, and rises again from round 9 on to a plateau from round 20 on.
OVERSHOOT = [0.1, 0.5, 0.7, 0.8, 0.7, 0.6, 0.5, 0.5]
OVERSHOOT += [min(0.9, 0.55 + 0.03 * t) for t in range(40)]


def test_an_overshoot_fools_a_patience_of_three_but_not_the_smoothed_rule():
    series = make_series(OVERSHOOT)
    hasty = feduhb.replay(feduhb.patience("held_out_score", rounds=3, smooth=1, first=1), series)
    steady = feduhb.replay(feduhb.patience("held_out_score"), series)
    assert hasty == 7, "three rounds after the peak"
    assert steady is not None
    assert OVERSHOOT[hasty - 1] == 0.5
    assert OVERSHOOT[steady - 1] == 0.9
    assert steady == 34, "the mean of five is 0.9, within 0.005, from round 24 on"


def test_patience_on_paper():
    """Means of two: 0.15, 0.25, 0.30, 0.30, 0.30. The third is the last that gains 0.05; two rounds later it is round 6."""
    score = [0.1, 0.2, 0.3, 0.3, 0.3, 0.3]
    rule = feduhb.patience("held_out_score", rounds=2, gain=0.04, smooth=2, first=1)
    assert [decide(rule, make_series(score).first(n)) is not None for n in range(1, 7)] == [False] * 5 + [
        True
    ]
    assert str(decide(rule, make_series(score))) == (
        "the held-out score, as a mean of 2 rounds, has not become better by 0.04 since round 4, when it was 0.3"
    )


def test_a_loss_must_fall_by_a_share_of_itself():
    """100, 99.4, 99.1: the second is 0.6 % below the first, a gain of 0.5 % but not of 1 %; 0.9 % is none of 1 % either."""
    series = make_series(loss=[100.0, 99.4, 99.1])
    rule = {
        gain: feduhb.patience("held_out_loss", rounds=2, gain=gain, smooth=1, first=1)
        for gain in (0.005, 0.01)
    }
    assert feduhb.replay(rule[0.005], series) is None
    assert feduhb.replay(rule[0.01], series) == 3
    reason = decide(rule[0.01], series)
    assert (
        str(reason) == "the held-out loss has not become better by 0.01 of it since round 1, when it was 100"
    )


def test_a_score_of_which_less_is_better_is_turned_round():
    """An RMSE that falls gains; judged as a score of which more is better, it has its best value in the first round."""
    falling = [1.0 - 0.1 * t for t in range(6)]
    rule = feduhb.patience("held_out_score", rounds=3, smooth=1, first=1)
    assert feduhb.replay(rule, make_series(falling, best="low")) is None
    assert feduhb.replay(rule, make_series(falling, best="high")) == 4


def test_nothing_before_the_first_round_counts():
    score = [0.9, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert (
        feduhb.replay(feduhb.patience("held_out_score", rounds=3, smooth=1, first=1), make_series(score)) == 4
    )
    assert (
        feduhb.replay(feduhb.patience("held_out_score", rounds=3, smooth=1, first=2), make_series(score))
        is None
    )


def test_a_round_without_a_value_neither_counts_nor_stops():
    """Rounds in which a method asks nobody, or no asked client has held-out data."""
    rule = feduhb.patience("held_out_score", rounds=2, smooth=1, first=1)
    score = [None, 0.5, None, None, 0.5]
    stops = [decide(rule, make_series(score).first(n)) is not None for n in range(1, 6)]
    assert stops == [False, False, False, False, True]


def test_the_growth_of_the_distance_on_paper():
    """1, 2, 2.9, 3.0: over two rounds it grows by 190 %, then by 50 %; then by 3.2 / 2.9 - 1 = 10.3 %."""
    series = make_series(distance=[1.0, 2.0, 2.9, 3.0, 3.2])
    assert feduhb.replay(feduhb.distance_stop(0.5, window=2, first=1), series) == 5
    assert feduhb.replay(feduhb.distance_stop(0.51, window=2, first=1), series) == 4
    assert feduhb.replay(feduhb.distance_stop(0.51, window=2, first=5), series) == 5
    assert feduhb.replay(feduhb.distance_stop(0.10, window=2, first=1), series) is None
    reason = decide(feduhb.distance_stop(0.5, window=2, first=1), series)
    assert str(reason) == "the distance to the fresh model grew by 10.34% in 2 rounds, less than 0.5 of it"
    back = make_series(distance=[1.0, 2.0, 1.5])
    assert "did not grow in 1 rounds" in str(decide(feduhb.distance_stop(0.1, window=1, first=1), back))


@quick
@given(values, st.integers(1, 6), st.integers(1, 4), st.integers(1, 6), st.floats(0, 0.3))
def test_patience_is_the_sentence_of_its_docstring(
    score: list[float | None], rounds: int, smooth: int, first: int, gain: float
):
    """The rule as a person would write it, with a list of all means."""
    rule = Patience("held_out_score", rounds=rounds, smooth=smooth, first=first, gain=gain)
    means: list[tuple[int, float]] = []
    seen: list[float] = []
    for t, value in enumerate(score, 1):
        if value is not None:
            seen.append(value)
            if len(seen) >= smooth and t >= first:
                means.append((t, math.fsum(seen[-smooth:]) / smooth))
    since = best = None
    for t, mean in means:
        if best is None or mean > best + gain:
            since, best = t, mean
    fires = since is not None and score[-1] is not None and len(score) - since >= rounds
    assert (rule(make_series(score)) is not None) == fires


@quick
@given(values)
def test_the_best_model_is_the_first_of_equals_and_never_the_fresh_one(score: list[float | None]):
    known = [value for value in score[1:] if value is not None]
    expected = None if not known else score.index(max(known), 1)
    assert make_series(score).find_best() == expected
    low = None if not known else score.index(min(known), 1)
    assert make_series(score, best="low").find_best() == low


def test_accuracy_is_another_word_for_the_main_score():
    assert feduhb.patience("held_out_accuracy") == feduhb.patience() == Patience("held_out_score")
    assert feduhb.patience() == Patience(rounds=10, gain=0.005, smooth=5, first=10)


class Own:
    """A rule of the user's own, on movements: it must see a list, as it always did."""

    def __call__(self, moved: Sequence[float], /) -> StopReason | None:
        assert type(moved) is list
        return StopReason("three", moved[-1], 0.0) if len(moved) == 3 else None

    def threshold(self, moved: Sequence[float], /) -> float | None:  # noqa: ARG002
        return None


class OwnOnScores(Own):
    """A rule of the user's own that needs held-out values."""

    needs = ("held_out",)

    def __call__(self, moved: Sequence[float], /) -> StopReason | None:
        assert isinstance(moved, Series)
        return StopReason("good") if (moved.score[-1] or 0) > 0.5 else None


def test_rules_of_the_users_own_see_movements_or_what_they_need():
    series = make_series([0.1, 0.6, 0.2])
    assert decide(Own(), series) == StopReason("three", 1.0, 0.0)
    assert feduhb.replay(Own(), list(series)) == 3
    assert feduhb.replay(OwnOnScores(), series) == 2
    assert decide(never, series) is None
    assert list(series) == [1.0] * 3
    assert series[-2:] == (1.0, 1.0)


def test_a_replay_without_the_recorded_series_is_refused():
    with pytest.raises(
        ConfigError, match=r"^Patience needs more than movements; give it the series of a run"
    ):
        feduhb.replay(feduhb.patience(), [1.0, 2.0])
    with pytest.raises(
        ConfigError,
        match=r"did not record distance, which DistanceStop needs; run again with record=\('distance',\)$",
    ):
        feduhb.replay(feduhb.distance_stop(), make_series([0.1, 0.2]))
    with pytest.raises(ConfigError, match="did not record held_out_loss, which Patience needs; run again"):
        feduhb.replay(feduhb.patience("held_out_loss"), make_series([0.1, 0.2]))


def test_a_score_that_is_not_a_number_is_not_the_best():
    assert make_series([0.1, math.nan, 0.5, 0.9]).find_best() == 3
    assert make_series([0.1, math.nan]).find_best() is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Patience("test_accuracy"), "patience watches 'test_accuracy'; give 'held_out_score', 'held_out_accuracy' or 'held_out_loss'"),
        (lambda: Patience(rounds=0), "patience's rounds is 0; give a whole number, 1 or more"),
        (lambda: Patience(smooth=2.5), "patience's smooth is 2.5; give a whole number, 1 or more"),  # pyright: ignore[reportArgumentType]
        (lambda: Patience(gain=-1), "patience's gain is -1; give 0 or more, such as 0.005"),
        (lambda: Patience(gain=None), "patience's gain is None; give 0 or more, such as 0.005"),  # pyright: ignore[reportArgumentType]
        (lambda: DistanceStop("0.03"), "the distance rule's share is '0.03'; give 0 or more, such as 0.03"),  # pyright: ignore[reportArgumentType]
        (lambda: DistanceStop(math.nan), "the distance rule's share is nan; give 0 or more, such as 0.03"),
        (lambda: DistanceStop(window=0), "the distance rule's window is 0; give a whole number, 1 or more"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(make: Any, words: str):
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == words
