"""Settings are chosen on tuning seeds alone, and reported on others alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feduhb.errors import ConfigError, RunFolderError
from feduhb.methods import RECOMMENDED
from feduhb_reproduction.cells import Track
from feduhb_reproduction.study import choose as module
from feduhb_reproduction.study.choose import FILE, BestRule, RuleScore, choose, find_finalists, read_choice
from feduhb_reproduction.study.criteria import read_results
from feduhb_reproduction.study.design import Candidates, Part, Rules, find_study, read_study
from feduhb_reproduction.study.make import check_study, estimate_study, list_next, plan_cell, read_known
from feduhb_reproduction.study.page import STUDIES, render_study
from study.series import GOAL, LONG, SOON, SOONER, broken, fill, longer, runs, study, track, write

GARBAGE = "not a cell"
FAST = "nesterov-momentum-0.9"
FIXED = ["retrain", "feduhb", "federaser", "fedrecover"]  # reported runs that depend on no choice


def spoil(out: Path, seeds: tuple[int, ...]) -> None:
    for path in out.glob("*/cells/*.json"):
        if path.stem.endswith(tuple(f"-s{seed}" for seed in seeds)):
            path.write_text(GARBAGE)


def test_no_seed_may_be_tuned_on_and_reported():
    with pytest.raises(
        ConfigError, match="seed 2 is in tune and in report; settings must be chosen on other seeds"
    ):
        study(report=(2, 3))


def test_the_choice_opens_no_cell_of_a_reported_seed(tmp_path):
    plan = study()
    fill(tmp_path, plan, (1, 2, 3, 4))
    spoil(tmp_path, plan.report)
    found = choose(plan, tmp_path)
    assert found is not None
    assert found.fast.run == "nesterov-momentum-0.9"
    assert found.families == {"Retrain": "retrain", "FedUHB": "feduhb", "Nesterov": "nesterov-momentum-0.9"}
    with pytest.raises(RunFolderError, match="is damaged"):
        read_results(plan, tmp_path)


def test_the_report_opens_no_cell_of_a_tuning_seed(tmp_path):
    plan = study()
    fill(tmp_path, plan, (1, 2, 3, 4))
    choose(plan, tmp_path)
    spoil(tmp_path, plan.tune)
    assert [one.seeds for one in read_results(plan, tmp_path).reported.values()] == [(3, 4), (3, 4)]
    with pytest.raises(RunFolderError, match="is damaged"):
        choose(plan, tmp_path)


def test_the_file_says_why(tmp_path):
    plan = study()
    fill(tmp_path, plan, plan.tune)
    choose(plan, tmp_path)
    record = json.loads((tmp_path / FILE).read_text())
    assert record["seeds"] == [1, 2]
    assert record["fast"]["method"] == "nesterov"
    assert record["fast"]["settings"] == {"momentum": 0.9}
    assert "needs at most 2.0 rounds in a federation and 2.0 on average over 2" in record["fast"]["why"]
    assert "the next is FedUHB with 5.0 and 5.0" in record["fast"]["why"]
    assert record["methods"]["Nesterov"]["tried"]["nesterov-momentum-0.5"]["worst"] == 5


def test_nothing_is_chosen_before_every_tuning_cell_is_there(tmp_path):
    plan = study()
    first, *others = plan.places(plan.tune)
    fill(tmp_path, plan, plan.tune)
    path = tmp_path / "digits" / "cells" / f"{others[0].name}.json"
    path.unlink()
    assert choose(plan, tmp_path) is None
    assert not (tmp_path / FILE).exists()
    reported = next(plan.places(plan.report))
    known = read_known(plan, tmp_path)
    assert [*plan_cell(plan, reported, known)] == FIXED, "these are reported whatever is chosen"
    assert len(plan_cell(plan, first, known)) == 4


def test_after_the_first_tuning_seed_only_the_best_run(tmp_path):
    """A candidate that was not among the best on the first seed is judged by that seed alone, whatever a cell of another holds."""
    plan = study(finalists=1)
    first, later = plan.places((1,)), [*plan.places((2,))]
    fill(tmp_path, plan, (1,))
    (tmp_path / "digits" / "cells" / f"{next(first).name}.json").unlink()
    assert find_finalists(plan, tmp_path) == []
    assert check_study(plan, tmp_path).later == 2 * 2 + 4
    fill(tmp_path, plan, (1,))
    assert find_finalists(plan, tmp_path) == ["retrain", "nesterov-momentum-0.9"]
    found = check_study(plan, tmp_path).missing
    assert [[*runs] for place, runs in found if place in later] == 2 * [find_finalists(plan, tmp_path)]
    assert choose(plan, tmp_path) is None
    for place in later:
        write(
            tmp_path,
            place,
            {
                "retrain": track(GOAL),
                "nesterov-momentum-0.9": track(longer(GOAL)),
                "feduhb": track([1.0] * LONG),
            },
        )
    found = choose(plan, tmp_path)
    assert found is not None
    assert found.fast.run == "nesterov-momentum-0.9"
    assert found.families == {"Retrain": "retrain", "FedUHB": "feduhb", "Nesterov": "nesterov-momentum-0.9"}
    tried = {name: one.worst for family in found.methods.values() for name, one in family.tried.items()}
    assert tried == {"retrain": 6, "feduhb": 5, "nesterov-momentum-0.5": 5, "nesterov-momentum-0.9": 4}
    assert "the next is Retrain with 6.0 and 6.0" in found.fast.why


def test_rules_are_chosen_once_the_long_runs_are_there(tmp_path):
    plan = study()
    fill(tmp_path, plan, plan.tune, {"nesterov-momentum-0.9": track(SOONER)})
    found = choose(plan, tmp_path)
    assert found is not None
    assert found.rule is None
    place = next(plan.places(plan.tune))
    known = read_known(plan, tmp_path)
    assert plan_cell(plan, place, known)["nesterov-momentum-0.9"].rounds == LONG
    assert [*plan_cell(plan, next(plan.places(plan.report)), known)] == FIXED
    assert [one.missing for one in estimate_study(plan, tmp_path)] == [4, 8, 8, 4, 0]
    fill(tmp_path, plan, plan.tune)
    found = choose(plan, tmp_path)
    assert found is not None
    assert found.rule == BestRule("accuracy", "rounds 2, smooth 1, first 1")
    assert found.rules is not None
    assert [one.chosen for one in found.rules.values()] == ["rounds 2, smooth 1, first 1", "λ 0.6"]


def test_long_runs_that_differ_choose_again_before_anything_is_reported(tmp_path):
    """The first rounds of a longer run may differ in their bits from the shorter run that it replaces, on a GPU."""
    plan = study()
    fill(tmp_path, plan, plan.tune, {"nesterov-momentum-0.9": track(SOONER)})
    choose(plan, tmp_path)
    for place in plan.places(plan.report):  # what depends on no choice is there before
        write(tmp_path, place, {name: runs()[name] for name in FIXED})
    found = check_study(plan, tmp_path)
    assert {place.seed for place, _ in found.missing} == {*plan.tune}
    assert found.later == 4
    fill(tmp_path, plan, plan.tune, {"nesterov-momentum-0.9": track(longer(GOAL))})
    chosen = choose(plan, tmp_path)
    assert chosen is not None
    assert chosen.fast.run == "feduhb"
    assert chosen.rule is not None
    assert {place.seed for place, _ in check_study(plan, tmp_path).missing} == {*plan.report}


def test_what_criteria_need_is_made_first(tmp_path):
    plan = study(candidates=(*study().candidates, Candidates(family="FedExP", method="fedexp")))
    fill(tmp_path, plan, plan.tune, {"fedexp": track(GOAL)})
    choose(plan, tmp_path)
    made: dict[str, Track] = {}
    every = {**runs(), "fedexp": track(GOAL)}
    for names in [{"retrain", "nesterov-momentum-0.9"}, {"federaser", "fedrecover"}, {"feduhb"}, {"fedexp"}]:
        missing = check_study(plan, tmp_path)
        assert [{*plans} for _, plans in list_next(plan, missing)][:4] == 4 * [names]
        assert next(one.missing for one in estimate_study(plan, tmp_path) if one.missing) == 4 * len(names)
        made |= {name: every[name] for name in names}
        for place in plan.places(plan.report):
            write(tmp_path, place, made)
    assert [one.missing for one in estimate_study(plan, tmp_path)] == [0] * 5
    assert sum(one.missing for one in estimate_study(plan, tmp_path / "empty")) == 4 * 5 + 4 * 6


def test_reported_cells_hold_the_choice(tmp_path):
    plan = study()
    fill(tmp_path, plan, (1, 2, 3, 4))
    choose(plan, tmp_path)
    fill(tmp_path, plan, plan.tune, {"nesterov-momentum-0.9": track(longer(GOAL))})
    with pytest.raises(
        RunFolderError,
        match=r"now choose nesterov-momentum-0\.5, but reported cells were made with nesterov-momentum-0\.9",
    ):
        choose(plan, tmp_path)


def test_reported_cells_hold_the_fastest_method(tmp_path):
    """Families and their choices stay, and another of them is faster: what was reported was not run long for it."""
    plan = study(
        candidates=(*study().candidates[:2], Candidates(family="Nesterov", method="nesterov", settings={"momentum": (0.9,)}))
    )  # fmt: skip
    fill(tmp_path, plan, (1, 2, 3, 4))
    before = choose(plan, tmp_path)
    fill(
        tmp_path,
        plan,
        plan.tune,
        {"feduhb": track(longer((0.9,))), "nesterov-momentum-0.9": track(longer(SOON))},
    )
    with pytest.raises(
        RunFolderError, match=r"now choose feduhb, but reported cells were made with nesterov-momentum-0\.9"
    ):
        choose(plan, tmp_path)
    assert read_choice(plan, tmp_path) == before


@pytest.mark.parametrize("places", [slice(None), slice(0, 1)])
def test_a_rule_that_does_not_fire_before_runs_break_off_loses_all(tmp_path, places):
    """All or some of the long runs diverge after round 9; a rule that ends them before loses nothing."""
    plan = study(
        rules=(
            Rules(family="late", rule="distance_stop", settings={"share": (1e-9,), "window": (5,), "first": (10,)}),
            study().rules[0],
        )
    )  # fmt: skip
    fill(tmp_path, plan, plan.tune)
    for place in [*plan.places(plan.tune)][places]:
        write(tmp_path, place, {**runs(), FAST: broken(track(longer(SOONER)[:9]))})
    found = choose(plan, tmp_path)
    assert found is not None
    assert found.fast.run == FAST
    assert found.rules is not None
    assert {one.worst_seed for one in found.rules["late"].tried.values()} == {100}
    assert found.rule == BestRule("accuracy", "rounds 2, smooth 1, first 1")


def test_where_retrain_breaks_off_no_candidate_is_ahead(tmp_path):
    plan = study(finalists=1)
    fill(tmp_path, plan, plan.tune)
    for place in [*plan.places(plan.tune)][::2]:
        write(tmp_path, place, {**runs(), "retrain": broken(track(GOAL[:2]))})
    found = choose(plan, tmp_path)
    assert found is not None
    assert {one.worst for family in found.methods.values() for one in family.tried.values()} == {7}
    assert found.fast.run == FAST


def two_data_sets(**changes: Any):
    parts = [Part(data=name, partitions=("iid",), per_client=(40,)) for name in ("digits", "mnist-5k")]
    return study(federations=tuple(parts), limit=3, **changes)


def test_what_is_slow_on_the_first_data_set_is_not_run_on_the_next(tmp_path):
    """FedExP leaves its family without a candidate, so it is not reported; FedUHB is as slow, and a control."""
    plan = two_data_sets(candidates=(*study().candidates, Candidates(family="FedExP", method="fedexp")))
    every = {**runs(), "fedexp": track(GOAL)}
    one, two = plan.places((1,))
    found = check_study(plan, tmp_path)
    assert [[*runs] for place, runs in found.missing if place.seed in plan.report] == 4 * [FIXED]
    assert [len(runs) for _, runs in found.missing] == [5, 4, 4, 4, 4]
    assert found.later == 5 + 2 * 5 + 4 * 2
    write(tmp_path, one, every)
    found = check_study(plan, tmp_path)
    assert [(place.data, [*runs]) for place, runs in found.missing if place.seed in plan.tune] == [
        ("mnist-5k", ["retrain", FAST]),
        ("digits", ["retrain", FAST]),
        ("mnist-5k", ["retrain", FAST]),
    ]
    assert found.later == 4
    write(tmp_path, two, {name: every[name] for name in ("retrain", FAST)})
    for place in plan.places((2,)):
        write(tmp_path, place, {name: every[name] for name in ("retrain", FAST)})
    chosen = choose(plan, tmp_path)
    assert chosen is not None
    assert chosen.families == {"Retrain": "retrain", "FedUHB": "feduhb", "Nesterov": FAST}
    assert (chosen.methods["FedExP"].chosen, chosen.contenders) == (None, ("retrain", FAST))
    assert "more than 3 rounds in a federation of digits" in chosen.limited_by
    assert read_choice(plan, tmp_path) == chosen
    page = "\n".join(render_study(read_results(plan, tmp_path), {}))
    assert "| FedExP | 6.0 | 6.0 | 1, digits alone |  |" in page
    missing = check_study(plan, tmp_path)
    assert {name for _, plans in missing.missing for name in plans} == {
        "retrain", "feduhb", FAST, "federaser", "fedrecover",
    }  # fmt: skip


def test_the_best_go_on_even_if_all_are_slow(tmp_path):
    plan = two_data_sets(finalists=1)
    write(tmp_path, next(plan.places((1,))), {**runs(), "retrain": broken(track(GOAL[:2]))})
    assert read_known(plan, tmp_path).contenders == ["retrain", "feduhb"]


def test_a_choice_among_other_candidates_is_refused(tmp_path):
    plan = study()
    fill(tmp_path, plan, plan.tune)
    choose(plan, tmp_path)
    more = study(candidates=(*plan.candidates, Candidates(family="FedExP", method="fedexp")))
    with pytest.raises(RunFolderError, match="was chosen among other candidates, rules or seeds"):
        read_choice(more, tmp_path)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(RunFolderError, match="is damaged"):
        read_choice(plan, tmp_path)


def test_ties_go_to_the_lower_mean_and_late_rules_come_last():
    def score(end: float, lost: float) -> RuleScore:
        return RuleScore(mean_end=end, worst_lost=lost, worst_seed=lost, fired=1)

    late, early, good = score(module.LATEST + 1, 0.0), score(20, 9.0), score(50, 0.5)
    assert sorted([late, early, good], key=lambda one: one.rank) == [good, early, late]
    assert score(40, 0.5).rank < good.rank


def test_the_built_in_studies_are_sound():
    whole, quick = (read_study(find_study(name)) for name in ("study", "study-quick"))
    assert whole.count_federations() == 12
    assert (whole.tune, whole.report, whole.confirm) == ((1, 2), (3, 4, 5, 6, 7), (8, 9, 10, 11, 12))
    assert (whole.epochs, whole.batch_size, whole.lr, whole.held_out, whole.long) == (5, 64, 0.005, 0.25, 80)
    assert {one.data for one in quick.federations} == {"mnist-5k"}
    with pytest.raises(ConfigError, match="there is no study 'nonsense'; choose study or study-quick"):
        find_study("nonsense")


def test_a_study_needs_as_many_rounds_as_the_mean_that_rules_are_compared_with():
    with pytest.raises(ConfigError, match="long is 4; give 5 or more"):
        study(rounds=2, long=4)


def test_a_study_needs_what_others_are_compared_with():
    with pytest.raises(ConfigError, match="the candidates lack retrain with its own settings"):
        study(candidates=(Candidates(family="FedUHB", method="feduhb"),))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"report": (3, 3)}, r"report is \[3, 3\]; give at least one seed, and each once"),
        ({"held_out": 0.0}, "held_out is 0.0; give a share between 0 and 1"),
        ({"lr": 0.0}, "lr is 0.0; give a positive number"),
        ({"epochs": 0}, "epochs is 0; give 1 or more"),
        ({"limit": 16}, "limit is 16, but there is one data set"),
        ({"candidates": (*study().candidates, Candidates(family="FedEraser", method="federaser"))}, "federaser cannot be a candidate"),
        ({"candidates": (*study().candidates, Candidates(family="Rollback", method="rollback"))}, "rollback cannot be a candidate"),
        ({"candidates": (*study().candidates, Candidates(family="FedNew", method="fednew"))}, "there is no method 'fednew'"),
        ({"candidates": (*study().candidates, Candidates(family="FedExP", method="fedexp", settings={"beta": (1,)}))}, "fedexp has no setting beta"),
    ],
)  # fmt: skip
def test_a_study_that_could_not_end_is_refused_when_it_is_read(changes, error):
    with pytest.raises(ConfigError, match=error):
        study(**changes)


def test_fast_is_what_the_study_chose():
    """The study of MNIST and CIFAR-10 decides if its results are there; until then, its rehearsal."""
    results = Path(__file__).parents[3] / "results"
    chosen = next(path for name in STUDIES if (path := results / name / FILE).exists())
    fast = json.loads(chosen.read_text())["fast"]
    assert (fast["method"], fast["settings"]) == RECOMMENDED
