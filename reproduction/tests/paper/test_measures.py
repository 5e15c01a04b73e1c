from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feduhb.stopping import dynamic_stop, replay
from feduhb_reproduction.cells import Cell, Track
from feduhb_reproduction.federations import Federation, group_cells
from feduhb_reproduction.measures import (
    Reached,
    Spread,
    Stops,
    final_score,
    final_value,
    find_best_step,
    find_reached,
    limit_to_rule,
    list_attackers,
    list_momenta,
    list_steps,
    measure_asr,
    measure_misr,
    measure_times,
    replace_slow,
    replay_rule,
    subtract_final,
    sum_of,
)
from paper.cells import cell, failing, falling, grid, place, track


def federation(*seeds: dict[str, Track], **more: bool) -> Federation:
    """One cell a seed, with these runs in place of its own."""
    (found,) = group_cells([cell(place(seed=i), runs_too=runs, **more) for i, runs in enumerate(seeds)])
    return found


def test_mean_and_spread_over_seeds():
    assert (Spread((1.0, 2.0, 6.0)).mean, Spread((1.0, 2.0, 6.0)).sd) == (3.0, pytest.approx(math.sqrt(7)))
    assert (Spread((0.5,)).mean, Spread((0.5,)).sd, Spread((0.5,)).n) == (0.5, None, 1)
    assert (Spread().mean, Spread().sd, Spread().n) == (None, None, 0)


def test_final_takes_the_last_round_of_each_seed():
    found = federation({"retrain": track([0.2, 0.9])}, {"retrain": track([0.3, 0.4, 0.7])})
    assert final_value(found, "retrain").values == (0.9, 0.7)
    assert final_value(found, "retrain", "test_loss").values == pytest.approx((0.23, 0.69))
    assert final_value(found, "no such run") == Spread()
    assert measure_asr(found, "retrain") == Spread()


def test_what_broke_off_or_is_not_finite_is_no_number():
    (found,) = group_cells([cell(place(seed=0)), failing(cell(place(seed=1)), "retrain")])
    assert final_value(found, "retrain").n == 1
    assert final_score(found, "retrain", "forgotten").n == 1
    assert measure_misr(found, "retrain").called.n == 1
    odd = federation({"retrain": replace(track([0.5]), series={"test_loss": (math.inf,), "moved": (1.0,)})})
    assert final_value(odd, "retrain", "test_loss") == Spread()


def test_sums_and_rounds():
    found = federation({"feduhb": track([0.1, 0.2, 0.3])})
    assert sum_of(found, "feduhb", "rounds").values == (3.0,)
    assert sum_of(found, "feduhb", "client_epochs").values == (5 * 18 * 3,)
    assert sum_of(found, "feduhb", "unheard of") == Spread()


def test_each_seed_is_held_against_its_own_retrain():
    found = federation(
        {"retrain": track([0.5, 0.8]), "feduhb-on": track([0.6, 0.8, 0.9])},
        {"retrain": track([0.5, 0.95]), "feduhb-on": track([0.6, 0.8, 0.9])},
        {"retrain": track([0.5, 0.6]), "feduhb-on": track([0.6, 0.8, 0.9])},
    )
    got = find_reached(found, "feduhb-on")
    assert got.rounds == {0: 2, 1: None, 2: 1}
    assert (got.hits, got.n, got.mean, got.all) == (2, 3, 1.5, False)
    assert find_reached(found, "feduhb-on", 0.9).rounds == {0: 3, 1: 3, 2: 3}
    assert find_reached(found, "feduhb-on", 0.9).all


def test_without_its_own_retrain_a_seed_is_left_out():
    (found,) = group_cells([cell(place(seed=0)), failing(cell(place(seed=1)), "retrain")])
    assert set(find_reached(found, "feduhb-on").rounds) == {0}
    assert set(find_reached(found, "feduhb-on", 0.5).rounds) == {0, 1}
    assert not Reached({}).all
    assert Reached({}).mean is None


def test_a_run_that_broke_off_counts_with_the_rounds_it_has():
    whole = cell(place(), runs_too={"retrain": track([0.3]), "fedrecover": track([0.2, 0.4, 0.4])})
    (late,), (early,) = (group_cells([failing(whole, "fedrecover", after)]) for after in (1, 2))
    assert find_reached(late, "fedrecover").rounds == {0: None}
    assert find_reached(early, "fedrecover").rounds == {0: 2}


def test_the_rule_is_replayed_on_each_seed():
    slow, fast = track([0.1 * i for i in range(10)], [1.0] * 10), falling(40, shrink=0.8)
    quick = track([i / 40 for i in range(40)], fast)
    found = federation({"feduhb-on": slow}, {"feduhb-on": quick})
    ends = replay_rule(found)
    fired = replay(dynamic_stop(0.6), quick.of("moved"))
    assert fired is not None
    assert ends.rounds == {0: None, 1: fired}
    assert (ends.fires, ends.n) == (1, 2)
    assert ends.executed.values == (10.0, float(fired))
    assert ends.accuracy.values == pytest.approx((0.9, (fired - 1) / 40))


def test_lambda_and_window_are_the_callers_and_else_the_grids():
    moved = falling(40, shrink=0.8)
    quick = track([0.5] * 40, moved)
    found = federation({"feduhb-on": quick})
    later = replay(dynamic_stop(0.2), quick.of("moved"))
    assert replay_rule(found, scale=0.2).rounds == {0: later}
    assert replay_rule(found).rounds != {0: later}
    seen = replay(dynamic_stop(1.0, window=5), quick.of("moved"))
    assert replay_rule(found, scale=1.0, window=5).rounds == {0: seen}
    (other,) = group_cells([cell(place(scale=0.2), runs_too={"feduhb-on": quick})])
    assert replay_rule(other).rounds == {0: later}


def test_what_comes_after_the_rule_does_not_count():
    arrived = Reached({0: 5, 1: 9, 2: 9, 3: None})
    ends = Stops({0: 5, 1: 8, 2: None, 3: 4}, Spread(), Spread())
    assert limit_to_rule(arrived, ends).rounds == {0: 5, 1: None, 2: 9, 3: None}


def test_differences_are_taken_seed_by_seed():
    found = federation(
        {"retrain": track([0.5]), "feduhb": track([0.9])}, {"retrain": track([0.8]), "feduhb": track([0.7])}
    )
    assert subtract_final(found, "feduhb", "retrain").values == pytest.approx((0.4, -0.1))
    assert subtract_final(found, "feduhb", "no such run") == Spread()


def test_seconds_are_the_median_round_the_sum_and_the_sum_by_scheduled_rounds():
    base = track([0.1, 0.2, 0.3])
    uneven = replace(
        base, series={**base.series, "client_seconds": (1.0, 2.0, 9.0), "server_seconds": (0.5, 0.5, 0.5)}
    )
    took = measure_times(federation({"feduhb": uneven}), "feduhb")
    assert took is not None
    assert took.per_round.values == (2.5,)
    assert took.total.values == (13.5,)
    assert took.per_scheduled.values == (13.5 / 40,)
    assert took.rounds.values == (3.0,)


def test_seconds_come_only_from_cells_that_were_alone():
    (found,) = group_cells(grid(["dirichlet:0.1"], [525], range(3)))
    took = measure_times(found, "retrain")
    assert took is not None
    assert took.total.n == 1
    assert measure_times(federation({}, alone=False), "retrain") is None
    assert measure_times(found, "no such run") is None
    assert measure_times(federation({"feduhb": track([])}), "feduhb") is None


def test_misr_has_the_rate_on_test_data_beside_it():
    (found,) = group_cells([cell(place(seed=seed)) for seed in (0, 1)])
    got = measure_misr(found, "original", "logistic regression")
    assert got.called.values == pytest.approx((0.8, 0.81))
    assert got.on_test.values == (0.45, 0.45)
    assert measure_misr(found, "original", "nobody").called == Spread()
    assert list_attackers(found)[0] == "boosted trees"


def test_the_papers_attacker_is_named_first():
    odd = replace(cell(), misr={"a": {}, "boosted trees": {}})
    assert list_attackers(group_cells([odd])[0]) == ["boosted trees", "a"]


def test_sweeps_name_their_runs_in_order():
    (found,) = group_cells([cell(place("dirichlet:0.5"))])
    assert list_momenta(found) == {
        0.0: "retrain",
        0.3: "momentum-0.3",
        0.5: "momentum-0.5",
        0.7: "momentum-0.7",
        0.9: "feduhb-on",
    }
    assert list_steps(found) == {0.5: "step-0.5", 1.0: "retrain", 2.0: "step-2", 3.0: "step-3"}
    (plain,) = group_cells([cell()])
    assert list_momenta(plain) == {0.0: "retrain", 0.9: "feduhb-on"}
    assert list_steps(plain) == {1.0: "retrain"}


def test_the_best_step_has_the_best_mean_and_never_broke_off():
    at = [place("dirichlet:0.5", seed=seed) for seed in (0, 1)]
    runs = [{"retrain": 0.5, "step-0.5": 0.4, "step-2": 0.9, "step-3": 0.7}, {"retrain": 0.5, "step-0.5": 0.4, "step-2": 0.6, "step-3": 0.7}]  # fmt: skip
    cells = [
        cell(there, runs_too={name: track([end]) for name, end in ends.items()})
        for there, ends in zip(at, runs, strict=True)
    ]
    assert find_best_step(group_cells(cells)[0]) == 2.0
    assert find_best_step(group_cells([cells[0], failing(cells[1], "step-2", 1)])[0]) == 3.0
    assert find_best_step(group_cells([cell()])[0]) is None


ACCURACIES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(st.lists(st.tuples(ACCURACIES, ACCURACIES), min_size=1, max_size=4))
def test_first_rounds_are_first(curves: list[tuple[list[float], list[float]]]):
    seeds = [{"retrain": track(ours), "feduhb-on": track(theirs)} for ours, theirs in curves]
    cells = [Cell(place=place(seed=i), runs=runs, misr={}, made={}) for i, runs in enumerate(seeds)]
    (found,) = group_cells(cells)
    for seed, first in find_reached(found, "feduhb-on").rounds.items():
        goal, got = (seeds[seed][run].of("test_accuracy") for run in ("retrain", "feduhb-on"))
        before = got if first is None else got[: first - 1]
        assert all(value < goal[-1] for value in before)
        assert first is None or got[first - 1] >= goal[-1]
    own = find_reached(found, "retrain")
    assert own.all, "every run has its own final accuracy"


@given(st.permutations(range(4)))
def test_the_order_of_cells_changes_nothing(order: list[int]):
    cells = [
        Cell(place=place(seed=i), runs={"retrain": track([0.1 * i, 0.2 * i])}, misr={}, made={})
        for i in range(4)
    ]
    (found,) = group_cells([cells[i] for i in order])
    assert final_value(found, "retrain").values == pytest.approx((0.0, 0.2, 0.4, 0.6))


@given(
    st.dictionaries(
        st.integers(0, 5), st.tuples(st.none() | st.integers(1, 40), st.none() | st.integers(3, 40))
    )
)
def test_a_rule_never_adds_an_arrival(both: dict[int, tuple[int | None, int | None]]):
    arrived = Reached({seed: n for seed, (n, _) in both.items()})
    left = limit_to_rule(arrived, Stops({seed: end for seed, (_, end) in both.items()}, Spread(), Spread()))
    assert left.hits <= arrived.hits
    assert all(n in {None, arrived.rounds[seed]} for seed, n in left.rounds.items())
    assert all(n is None or n <= (both[seed][1] or 40) for seed, n in left.rounds.items())


def test_the_odd_slow_round_counts_as_the_usual_and_many_are_what_a_run_does():
    assert replace_slow([4.9, 1.0, 1.0]) == [4.9, 1.0, 1.0]
    assert replace_slow([5.1, 1.0, 1.0]) == [1.0, 1.0, 1.0]
    assert replace_slow([9.0, 9.0, 1.0, 1.0, 1.0]) == [
        9.0,
        9.0,
        1.0,
        1.0,
        1.0,
    ]  # asked rounds among estimates
    assert replace_slow([9.0, *[1.0] * 38, 8.0]) == [1.0] * 40
    assert replace_slow([9.0, 7.0, *[1.0] * 37, 8.0]) == [9.0, 7.0, *[1.0] * 37, 8.0]
