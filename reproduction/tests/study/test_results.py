"""Measures and verdicts of series made by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

import feduhb
from feduhb_reproduction.study import criteria
from feduhb_reproduction.study.choose import choose
from feduhb_reproduction.study.criteria import judge_study, list_ahead, read_results
from feduhb_reproduction.study.design import Ending
from feduhb_reproduction.study.figures import draw_rounds, draw_work
from feduhb_reproduction.study.make import check_study
from feduhb_reproduction.study.page import (
    describe_state,
    tabulate_rounds,
    tabulate_rules,
    tabulate_work,
    write_study,
)
from feduhb_reproduction.study.results import (
    count_client_epochs,
    count_rounds,
    cut_track,
    read_seeds,
    stop_federation,
    subtract_at_equal_work,
)
from report.looking import written
from study.series import GOAL, LONG, SOON, SOONER, broken, fill, longer, runs, study, track, write

FAST = "nesterov-momentum-0.9"


@pytest.fixture
def made(tmp_path):
    """A whole study."""
    plan = study()
    fill(tmp_path, plan, (1, 2, 3, 4))
    choose(plan, tmp_path)
    return plan, tmp_path


def verdicts(plan, out) -> list[str]:
    return [one.verdict for one in judge_study(read_results(plan, out))]


def test_rounds_are_counted_to_the_first_time_and_for_good(made):
    plan, out = made
    federation = next(iter(read_seeds(plan, out, (3, 4)).values()))
    assert count_rounds(federation, "nesterov-momentum-0.5", kept=False).values == (3, 3)
    assert count_rounds(federation, "nesterov-momentum-0.5").values == (5, 5)
    assert count_rounds(federation, "federaser").values == (7, 7)  # never: one more than were run
    assert count_client_epochs(federation, "feduhb").values == (20, 20)  # 4 epochs in each of 5 rounds


def test_only_the_first_rounds_of_a_long_run_are_compared_with_retrain(made):
    plan, out = made
    fill(out, plan, plan.report, {FAST: track((*SOONER, *[0.1] * (LONG - len(SOONER))))})
    federation = next(iter(read_seeds(plan, out, (3, 4)).values()))
    assert count_rounds(federation, FAST).values == (2, 2)
    cut = cut_track(federation.every(FAST)[3], 6)
    assert (cut.rounds, cut.sums["client_epochs"]) == (6, 24)


def test_methods_are_compared_at_equal_client_work(made):
    plan, out = made
    federation = next(iter(read_seeds(plan, out, (3, 4)).values()))
    # FedRecover's 9 epochs pay for two rounds of 4 epochs: 0.6 against its 0.65, 0.5 for the other
    assert subtract_at_equal_work(federation, FAST, "fedrecover").values == pytest.approx((-0.05, -0.05))
    assert subtract_at_equal_work(federation, "nesterov-momentum-0.5", "fedrecover").mean == pytest.approx(
        -0.15
    )
    assert subtract_at_equal_work(federation, FAST, "federaser").mean == pytest.approx(0.3)
    results = read_results(plan, out)
    assert list_ahead(results, FAST, "fedrecover") == []
    assert list_ahead(results, FAST, "federaser") == ["digits 40, iid", "digits 40, Dirichlet 0.5"]


def test_before_feduhbs_runs_are_there_nothing_is_said_of_them(made):
    plan, out = made
    for place in plan.places(plan.report):
        write(out, place, {name: run for name, run in runs().items() if name != "feduhb"})
    found = judge_study(read_results(plan, out))
    assert "**Runs are missing** in some or all of them: of FedUHB." in describe_state(
        read_results(plan, out)
    )
    assert [one.verdict for one in found] == ["holds", "holds", "does not hold", "holds", *["holds"] * 4]
    assert [one.measured for one in found[2:4]] == ["ahead in 0 of 2", "ahead in 2 of 2"]
    assert "README.md" in {path.name for path in write_study(plan, out)}


def test_figures_name_only_what_is_drawn(made):
    plan, out = made
    for place in plan.places(plan.report):
        write(out, place, {name: run for name, run in runs().items() if name in {"retrain", FAST}})
    results = read_results(plan, out)
    for figure in (draw_rounds(results), draw_work(results)):
        texts = " ".join(written(figure))
        assert "Nesterov, momentum 0.9 (recommended)" in texts
        assert not any(name in texts for name in ("FedUHB", "FedEraser", "FedRecover"))


def test_a_rival_that_broke_off_with_every_seed_is_behind(made):
    plan, out = made
    fill(out, plan, plan.report, {"fedrecover": broken(track((0.1,)))})
    assert len(list_ahead(read_results(plan, out), FAST, "fedrecover")) == 2


def test_a_stop_rule_is_replayed_on_the_long_run(made):
    plan, out = made
    rising = tuple(0.5 + 0.02 * t for t in range(LONG))
    score = (0.1, 0.2, 0.3, *[0.3] * (LONG - 3))
    fill(out, plan, plan.report, {FAST: track(rising, score=score)})
    federation = next(iter(read_seeds(plan, out, (3, 4)).values()))
    rule = feduhb.patience(rounds=2, smooth=1, first=1)
    found = stop_federation(federation, FAST, Ending(rule), LONG)
    assert found is not None
    assert found.ends == (5, 5)  # the best score is that of round 3
    best = 100 * (0.5 + 0.02 * (LONG - 3))  # the mean of the last five rounds
    assert found.lost == pytest.approx([best - 58] * 2)
    kept = stop_federation(federation, FAST, Ending(rule, "best"), LONG)
    assert kept is not None
    assert kept.ends == (5, 5)
    assert kept.lost == pytest.approx(
        [best - 52] * 2
    )  # the score of round 3 is that of the model after two rounds
    never = stop_federation(federation, FAST, Ending(feduhb.never), LONG)
    assert never is not None
    assert (never.ends, never.fired) == ((LONG, LONG), 0)
    assert stop_federation(federation, "retrain", Ending(rule), LONG) is None  # too short


def test_where_the_rule_is_confirmed_other_seeds_judge_it(made):
    """On the reported seeds the rule loses nothing; on the seeds to confirm it, too much."""
    _, out = made
    plan = study(confirm=(5, 6))
    choose(plan, out)
    assert verdicts(plan, out)[4:] == 4 * ["cannot be judged"]
    assert "have all of seeds 5, 6" in judge_study(read_results(plan, out))[4].measured
    found = check_study(plan, out)
    assert {place.seed for place, _ in found.missing} == {5, 6}
    assert {name for _, plans in found.missing for name in plans} == {FAST}
    fill(out, plan, plan.confirm, {FAST: track((*[0.2] * 9, *[0.9] * (LONG - 9)))})
    assert verdicts(plan, out)[4:] == [*3 * ["does not hold"], "holds"]
    assert verdicts(plan, out)[:4] == verdicts(study(), out)[:4]
    rows = tabulate_rules(read_results(plan, out)).rows
    assert {row[1] for row in rows} == {"5, 6", "3, 4"}
    write_study(plan, out)
    assert f"{FAST}, confirmed" in json.loads((out / "summary.json").read_text())["rules"]


def test_every_criterion_has_a_verdict(made):
    plan, out = made
    assert verdicts(plan, out) == ["holds", "holds", "does not hold", "holds", *["holds"] * 4]
    assert (
        judge_study(read_results(plan, out))[3].measured
        == "ahead in 2 of 2; FedUHB with the paper's settings in 2"
    )


def test_a_slow_method_fails_and_the_federation_is_named(made, monkeypatch):
    plan, out = made
    monkeypatch.setattr(criteria, "MOST", 3)
    for place in list(plan.places(plan.report))[::2]:  # both seeds of the iid federation
        fill(out, study(federations=(plan.federations[0].__class__(data="digits", partitions=(place.partition,), per_client=(40,)),)), plan.report, {FAST: track(longer(SOON))})  # fmt: skip
    found = judge_study(read_results(plan, out))[0]
    assert found.verdict == "does not hold"
    assert found.measured == "2.0 to 5.0 rounds; later in digits 40, iid (5.0)"


def test_a_rule_that_an_early_overshoot_fools_fails(made):
    plan, out = made
    values = (0.5, 0.6, 0.55, 0.55, *[0.9] * (LONG - 4))
    fill(out, plan, plan.report, {FAST: track(values)})
    found = judge_study(read_results(plan, out))
    assert [one.verdict for one in found[4:]] == ["does not hold"] * 3 + ["holds"]
    assert "35.00 points" in found[4].measured


@pytest.mark.parametrize("rounds", [0, 9, LONG])
def test_no_criterion_on_stop_rules_holds_if_a_run_broke_off(made, rounds):
    plan, out = made
    write(out, next(plan.places((3,))), {**runs(), FAST: broken(track(longer(SOONER)[:rounds]))})
    found = judge_study(read_results(plan, out))[4:]
    assert {(one.verdict, one.measured) for one in found} == {
        ("does not hold", "a run broke off in digits 40, iid with seed 3")
    }
    write_study(plan, out)


@pytest.mark.parametrize("seeds", [(3,), (3, 4)])
def test_where_retrain_broke_off_no_criterion_on_rounds_holds(made, seeds):
    plan, out = made
    for seed in seeds:
        write(out, next(plan.places((seed,))), {**runs(), "retrain": broken(track(GOAL[:2]))})
    found = judge_study(read_results(plan, out))[:2]
    assert {one.verdict for one in found} == {"does not hold"}
    words = "seed 3" if len(seeds) == 1 else "seeds 3 and 4"
    assert all(f"Retrain broke off in digits 40, iid with {words}" in one.measured for one in found)
    write_study(plan, out)


def test_a_run_that_breaks_off_later_than_the_work_lasts_is_ahead(made):
    """FedEraser's work pays for two rounds of six; the run breaks off in the ninth."""
    plan, out = made
    fill(out, plan, plan.report, {FAST: broken(track(longer(SOONER)[:9]))})
    results = read_results(plan, out)
    assert len(list_ahead(results, FAST, "federaser")) == 2
    fill(out, plan, plan.report, {FAST: broken(track(SOONER[:5]))})
    assert list_ahead(read_results(plan, out), FAST, "federaser") == []


def test_a_method_below_the_axis_is_drawn_at_its_edge(made):
    plan, out = made
    fill(out, plan, plan.report, {"fedrecover": track((0.1, 0.1, 0.05), epochs=3, exact=False)})
    figure = draw_work(read_results(plan, out))
    assert figure is not None
    assert "5%" in written(figure)
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "v"]
    assert [np.asarray(line.get_ydata()).tolist() for line in marks] == [pytest.approx([0.3])]


def test_what_is_not_run_cannot_be_judged(tmp_path):
    plan = study()
    assert {one.measured for one in judge_study(read_results(plan, tmp_path))} == {
        "not run: the settings are not chosen yet"
    }
    fill(tmp_path, plan, (1, 2, 3))
    choose(plan, tmp_path)
    found = judge_study(read_results(plan, tmp_path))
    assert {one.verdict for one in found} == {"cannot be judged"}
    assert found[0].measured == "not run: 0 of 2 federations have all of seeds 3, 4; so far 2.0 to 2.0 rounds"
    assert found[2].measured == "not run: 0 of 2 federations have all of seeds 3, 4"


@pytest.mark.slow
def test_the_report_is_written_from_stored_cells(made):
    plan, out = made
    written = write_study(plan, out)
    assert [path.name for path in written] == [
        "README.md",
        "summary.json",
        "rounds.png",
        "stopping.png",
        "work.png",
    ]
    text = (out / "README.md").read_text()
    assert "All 4 cells of reported seeds (3, 4) are there" in text
    assert "missing" not in text
    assert (
        "On seeds 1 and 2 alone. The fastest method there is the recommended one: Nesterov, momentum 0.9 needs at most 2.0 rounds"
        in text
    )
    assert "| Nesterov, momentum 0.9 (recommended) | 2 | 2 | 8 | 70.0% | 0.300 | 2 |" in text
    results = read_results(plan, out)
    assert len(tabulate_rounds(results).rows) == 2 * 3
    assert [row[1] for row in tabulate_work(results).rows] == ["0 of 2", "2 of 2", "2 of 2"]
    assert [row[:3] for row in tabulate_rules(results).rows][:2] == [
        ["Nesterov, momentum 0.9", "3, 4", "accuracy"], ["Nesterov, momentum 0.9", "3, 4", "paper"],
    ]  # fmt: skip
