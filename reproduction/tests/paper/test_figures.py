from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from feduhb.report.drawing import BLUE, to_pdf, to_png
from feduhb.report.words import NOTHING
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.federations import group_cells
from feduhb_reproduction.figures import draw
from feduhb_reproduction.figures.curves import draw_curves
from feduhb_reproduction.figures.forgetting import draw_forgetting
from feduhb_reproduction.figures.parts import average_series
from feduhb_reproduction.figures.scales import draw_scales
from feduhb_reproduction.figures.sweeps import draw_ablation, draw_betas
from paper.cells import cell, failing, falling, grid, place, track
from report.looking import legible, written

pytestmark = pytest.mark.slow

ALL = ["curves-525", "curves-3000", "forgetting", "beta", "lambda-525", "lambda-3000", "ablation"]


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    """The grid of MNIST: no class has enough images for 3,000 each, so there they share all."""
    return draw([*grid(["iid", "dirichlet:0.5", "dirichlet:0.1"], seeds=range(3)), *grid(["shards:2"], (525, None), range(3))])  # fmt: skip


def only(name: str, cells: list[Cell]) -> Figure:
    """One figure of those that `draw` draws."""
    found = group_cells(cells)
    kinds: dict[str, Callable[[], Figure | None]] = {
        "curves": lambda: draw_curves(found), "lambda": lambda: draw_scales(found), "beta": lambda: draw_betas(cells),
        "ablation": lambda: draw_ablation(cells), "forgetting": lambda: draw_forgetting(cells),
    }  # fmt: skip
    figure = kinds[name]()
    assert figure is not None
    return figure


def one(**runs: list[float]) -> list[Cell]:
    return [
        cell(place("dirichlet:0.5"), runs_too={name.replace("_", "-"): track(a) for name, a in runs.items()})
    ]


def said(figure: Figure) -> str:
    return " ".join(" ".join(written(figure)).split())


def test_every_figure_is_drawn(drawn):
    assert list(drawn) == ALL


@pytest.mark.parametrize("name", ALL)
def test_no_two_texts_overlap_and_none_is_cut_off(drawn, name: str):
    legible(drawn[name])


@pytest.mark.parametrize("name", ["curves", "lambda", "beta", "ablation", "forgetting"])
def test_a_single_small_cell_is_drawn_legibly_too(name: str):
    cells = [
        cell(place("dirichlet:0.5", rounds=4, data="mnist-5k")),
        cell(place(backdoor=True, rounds=4, data="mnist-5k")),
    ]
    legible(only(name, cells))


def test_figures_that_nothing_fills_are_left_out():
    assert list(draw([cell()])) == ["curves-525", "forgetting", "lambda-525"]
    assert list(draw([replace(cell(), misr={})])) == ["curves-525", "lambda-525"]
    assert list(draw([cell(place(backdoor=True))])) == ["forgetting"]


def test_the_figures_fit_a_page_of_900_pixels(drawn):
    for name, figure in drawn.items():
        small = 8 * 900 / (figure.get_figwidth() * 72)  # pixels of the small text when shown that wide
        assert small > 9, name


def test_the_mean_line_goes_as_far_as_the_shortest_run():
    mean, sd = average_series([track([0.2, 0.4, 0.6]), track([0.4, 0.8])], "test_accuracy")
    assert mean == pytest.approx([0.3, 0.6])
    assert sd == pytest.approx([0.2 / math.sqrt(2), 0.4 / math.sqrt(2)])
    assert average_series([track([0.2])], "test_accuracy") == ([0.2], [0.0])
    assert average_series([], "test_accuracy") == ([], [])


def test_curves_say_when_feduhb_has_retrains_accuracy():
    reaching = one(retrain=[0.5] * 39 + [0.8], feduhb_on=[0.4] * 9 + [0.9] * 31)
    assert "Retrain's 80.0%: round 10" in said(only("curves", reaching))
    never = one(retrain=[0.9] * 40, feduhb_on=[0.4] * 40)
    assert "Retrain's 90.0%: never" in said(only("curves", never))


def test_curves_say_how_many_seeds_get_there_where_not_all_do():
    ends = ([0.4] * 9 + [0.9] * 31, [0.4] * 40)
    cells = [
        cell(place(seed=i), runs_too={"retrain": track([0.8] * 40), "feduhb-on": track(end)})
        for i, end in enumerate(ends)
    ]
    assert "round 10 (1 of 2)" in said(only("curves", cells))


def blue_marks(figure: Figure) -> list[float]:
    """Where the first panel has dots in FedUHB's colour."""
    lines = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    found = [upright(line) for line in lines if to_hex(line.get_color()).upper() == BLUE]
    return [x for x in found if x is not None]


def test_curves_mark_the_round_where_the_rule_stops():
    fires = [cell(place(), runs_too={"feduhb-on": track([0.9] * 40, falling())})]
    figure = only("curves", fires)
    assert blue_marks(figure) == [24.0]
    assert "rule: after 24" in said(figure)
    assert "FedUHB, rule off" in said(figure)
    silent = [cell(place(), runs_too={"feduhb-on": track([0.9] * 40, [1.0] * 40)})]
    figure = only("curves", silent)
    assert blue_marks(figure) == []
    assert "rule: never fires" in said(figure)
    assert "FedUHB, rule off" not in said(figure)


def test_seeds_and_bands_are_named():
    cells = [cell(place(seed=seed)) for seed in range(2)]
    assert "mean of 2 seeds, band ± 1 standard deviation" in said(only("curves", cells))
    assert "one seed" in said(only("curves", cells[:1]))
    assert "±" not in said(only("curves", cells[:1]))
    mixed = [*cells, cell(place("shards:2"))]
    assert "mean of 1 to 2 seeds" in said(only("curves", mixed))


def test_runs_that_broke_off_are_drawn_as_far_as_they_went_and_told():
    cells = [
        failing(cell(place("dirichlet:0.5", seed=seed)), run) for seed in (0, 1) for run in ("fedrecover",)
    ]
    cells[0] = failing(failing(failing(cells[0], "step-3"), "momentum-0.7", 0), "feduhb-on")
    figures = draw(cells)
    assert "FedRecover: 2 of 2 broke off" in said(figures["curves-525"])
    assert "FedUHB, rule off: 1 of 2 broke off" in said(figures["curves-525"])
    assert "1 broke off at 0.7" in said(figures["beta"])
    assert "1 broke off at 3" in said(figures["ablation"])
    assert "broke off" in written(figures["forgetting"])
    legible(figures["curves-525"])


def test_every_run_may_have_broken_off():
    broken = cell(place("dirichlet:0.5"))
    for run in broken.runs:
        broken = failing(broken, run, 2)
    assert all(to_png(figure) for figure in draw([broken]).values())


def test_odd_numbers_are_drawn():
    base = track([0.1, 0.2, 0.1])
    odd = replace(base, series={**base.series, "test_loss": (2.3, math.inf, math.nan)})
    cells = [cell(place(seed=seed), runs_too={"fedrecover": odd}) for seed in (0, 1)]
    assert to_png(only("curves", cells))


def test_the_same_cells_give_the_same_bytes():
    cells = [cell()]
    assert to_png(only("curves", cells)) == to_png(only("curves", cells))
    assert to_pdf(only("forgetting", cells)) == to_pdf(only("forgetting", cells))


def upright(line: Line2D) -> float | None:
    """Where a line stands upright, if it does."""
    ends = np.unique(line.get_xdata())
    return float(ends[0]) if len(ends) == 1 else None


def test_forgetting_has_controls_chance_and_floor():
    figure = only("forgetting", [cell(), cell(place(backdoor=True))])
    text = written(figure)
    assert {"original", "Retrain", "FedUHB, under its rule"} <= set(text)
    assert {"80.0%", "50.0%", "92.0%", "2.0%"} <= set(text)
    misr, asr = figure.axes
    assert [upright(line) for line in misr.lines].count(0.45) == 6, "a mark on each bar"
    assert [upright(line) for line in asr.lines if line.get_linestyle() == "--"] == [0.02]


def test_forgetting_counts_the_seeds_behind_a_bar():
    cells = [cell(place(seed=seed)) for seed in (0, 1)]
    text = written(only("forgetting", [cells[0], failing(cells[1], "fedrecover")]))
    assert "50.0% (1/2)" in text
    assert any("seeds that did not break off" in each for each in text)
    assert not any("break off" in each for each in written(only("forgetting", cells)))


def test_a_run_that_no_attacker_saw_is_not_said_to_have_broken_off():
    whole = cell()
    few = {name: {k: v for k, v in by.items() if k != "federaser"} for name, by in whole.misr.items()}
    text = written(only("forgetting", [replace(whole, misr=few)]))
    assert NOTHING in text
    assert "broke off" not in text


def test_beta_marks_those_that_never_get_there():
    runs = {"retrain": track([0.8] * 40), "momentum-0.3": track([0.1] * 40)}
    text = said(only("beta", [cell(place("dirichlet:0.5"), runs_too=runs)]))
    assert "open: never" in text
    assert "β 0.9" in text


def test_beta_counts_the_seeds_that_get_there():
    ends = ([0.1] * 40, [0.9] * 40)
    cells = [
        cell(place("dirichlet:0.5", seed=i), runs_too={"retrain": track([0.8] * 40), "momentum-0.5": track(end)})
        for i, end in enumerate(ends)
    ]  # fmt: skip
    assert "1 of 2 at 0.5" in said(only("beta", cells))


def test_lambda_tells_which_windows_never_speak_and_where_the_paper_was():
    fires = [cell(place(), runs_too={"feduhb-on": track([0.9] * 40, falling())})]
    text = said(only("lambda", fires))
    assert "It fires at no λ with the window 5 or 10." in text
    assert "the paper's" in text
    silent = track([0.9] * 40, [1.0] * 40)
    never = [cell(place(data="mnist-5k"), runs_too={"feduhb-on": silent})]
    text = said(only("lambda", never))
    assert "The rule never fires" in text
    assert "a window of all rounds so far or the last 5, 10 or 20." in text
    assert "the paper's" not in text


def test_lambda_says_how_many_seeds_fire():
    moves = (falling(), falling(), [1.0] * 40)
    cells = [cell(place(seed=i), runs_too={"feduhb-on": track([0.9] * 40, m)}) for i, m in enumerate(moves)]
    assert "2" in written(only("lambda", cells))


def test_clients_that_share_all_images_stand_beside_the_largest_size(drawn):
    assert "all images" in written(drawn["curves-3000"])
    assert "all images" not in written(drawn["curves-525"])


def test_the_ablation_names_the_tuned_step():
    runs = {"step-0.5": [0.5] * 40, "step-2": [0.95] * 40, "step-3": [0.7] * 40, "retrain": [0.8] * 40}
    cells = [cell(place("dirichlet:0.5"), runs_too={name: track(ends) for name, ends in runs.items()})]
    text = said(only("ablation", cells))
    assert "step 2 95.0%" in text
    assert "chosen on the test data, which favours it" in text
    runs["retrain"] = [0.99] * 40
    cells = [cell(place("dirichlet:0.5"), runs_too={name: track(ends) for name, ends in runs.items()})]
    assert "step 2" not in said(only("ablation", cells)), "step 1 is Retrain itself"
