"""What is drawn in the paper's panels: heights, marks, levels, and the parts that all of them share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from feduhb.report.drawing import BLUE, VERMILLION, Stroke, grade_colours, new_figure
from feduhb.report.stop_map import SCALES
from feduhb_reproduction.federations import Federation, group_cells
from feduhb_reproduction.figures.curves import MOST, draw_curves
from feduhb_reproduction.figures.forgetting import draw_forgetting
from feduhb_reproduction.figures.parts import (
    draw_band,
    draw_legend,
    draw_whisker,
    find_panel_width,
    set_accuracy_axis,
    set_round_axis,
    write_over,
)
from feduhb_reproduction.figures.scales import COLOURS, PALE, draw_scales, list_quotients
from feduhb_reproduction.figures.sweeps import GREEN, draw_ablation, draw_betas
from feduhb_reproduction.measures import Spread, replay_rule
from feduhb_reproduction.tuning import never_fires
from feduhb_reproduction.words import CORRECTED, LABELS, METHODS, ROWS, STROKES
from paper.cells import cell, falling, grid, place, track
from report.looking import legible, written

pytestmark = pytest.mark.slow

STILL = [1.0] * 40  # movements at which the rule never fires


def drawn(axes: Axes, colour: str, *, mark: str = "None") -> list[list[tuple[float, float]]]:
    """The points of every line of a colour, those with a mark or those without."""
    lines = [line for line in axes.lines if to_hex(line.get_color()).upper() == colour.upper()]
    chosen = [line for line in lines if str(line.get_marker()) == mark]
    return [[(float(x), float(y)) for x, y in np.column_stack(line.get_data())] for line in chosen]


def panel() -> tuple[Figure, Axes]:
    figure, (axes,) = new_figure(1, 1, width=4, height=2)
    return figure, axes


def said(figure: Figure | None) -> str:
    return " ".join(" ".join(written(figure)).split())


def axes_of(figure: Figure | None) -> Sequence[Axes]:
    assert figure is not None
    return figure.axes


def test_panels_share_the_page_but_are_never_too_narrow_or_too_wide():
    assert [find_panel_width(n) for n in (1, 2, 3)] == [4.6, 4.6, pytest.approx(3.4)]
    assert find_panel_width(4) == pytest.approx(2.55)
    assert find_panel_width(9) == 2.5


def test_a_band_is_one_standard_deviation_to_either_side():
    _, axes = panel()
    draw_band(axes, [0.5, 0.6], [0.1, 0.2], Stroke(BLUE, "solid"))
    (band,) = axes.collections
    corners = {tuple(np.round(point, 6)) for point in np.asarray(band.get_paths()[0].vertices)}
    assert {(1.0, 0.4), (1.0, 0.6), (2.0, 0.4), (2.0, 0.8)} <= corners


def test_one_seed_has_no_band_and_no_whisker():
    _, axes = panel()
    draw_band(axes, [0.5, 0.6], [0.0, 0.0], Stroke(BLUE, "solid"))
    draw_whisker(axes, 1, Spread((0.5,)), BLUE)
    draw_whisker(axes, 1, Spread(), BLUE)
    assert not axes.collections
    assert len(axes.lines) == 1


def test_a_whisker_is_one_standard_deviation_to_either_side():
    _, axes = panel()
    draw_whisker(axes, 3, Spread((1.0, 3.0)), BLUE)
    assert drawn(axes, BLUE) == [[(3, pytest.approx(2 - math.sqrt(2))), (3, pytest.approx(2 + math.sqrt(2)))]]


def test_the_accuracy_axis_shows_every_end_and_a_quarter_under_retrain():
    _, axes = panel()
    set_accuracy_axis(axes, [Spread((0.9,)), Spread((0.95,)), Spread()], Spread((0.9,)))
    low, high = axes.get_ylim()
    assert low < 0.65
    assert high > 0.95
    _, axes = panel()
    set_accuracy_axis(axes, [Spread((0.1,)), Spread((0.95,))], Spread((0.9,)))
    assert axes.get_ylim()[0] < 0.1, "the worst is not cut off"
    assert axes.get_ylim()[0] >= 0


def test_without_retrain_nothing_is_dashed():
    _, axes = panel()
    set_accuracy_axis(axes, [Spread((0.9,))], Spread())
    assert not axes.lines
    _, axes = panel()
    set_accuracy_axis(axes, [], Spread())
    assert axes.get_ylim() == (0, 1)


def test_rounds_are_counted_in_whole_numbers():
    for rounds in (1, 4, 40):
        _, axes = panel()
        set_round_axis(axes, rounds)
        low, high = axes.get_xlim()
        assert low < 1
        assert high > rounds
        assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_a_legend_takes_the_rows_that_the_width_asks_for():
    entries = [(name, Stroke(BLUE, "solid")) for name in "abcdef"]
    heights = []
    for width in (4.0, 12.0):
        figure, _ = new_figure(1, 1, width=width, height=2)
        draw_legend(figure, entries)
        heights.append(figure.get_figheight())
        assert [text.get_text() for text in figure.legends[0].get_texts()] == list("abcdef")
    assert heights[0] > heights[1] == 2


def test_words_over_a_figure_are_wrapped_and_make_room_for_themselves():
    figure, _ = panel()
    write_over(figure, ["short.", "word " * 40])
    said = next(text for text in written(figure) if text.startswith("short."))
    assert len(said.splitlines()) > 2
    assert max(map(len, said.splitlines())) < 4 * 16.5
    assert figure.get_figheight() > 2


def test_a_dollar_sign_over_a_figure_is_a_dollar_sign():
    figure, _ = panel()
    write_over(figure, ["$x^{"])
    figure.canvas.draw()
    assert "$x^{" in written(figure)


def test_every_method_has_a_name_and_a_stroke_of_its_own():
    assert set(METHODS) <= set(LABELS)
    assert set(LABELS) == set(STROKES)
    assert len(set(STROKES.values())) == len(STROKES)
    assert len(set(LABELS.values())) == len(LABELS)
    assert set(ROWS) == set(LABELS)
    assert len(set(ROWS.values())) == len(ROWS)


def test_feduhb_is_drawn_in_full_up_to_the_rule_and_dotted_beyond():
    accuracy = [0.02 * t for t in range(1, 41)]
    cells = [cell(place(), runs_too={"feduhb-on": track(accuracy, falling())})]
    axes = axes_of(draw_curves(group_cells(cells)))[0]
    full, dotted = drawn(axes, BLUE)
    assert [x for x, _ in full] == list(range(1, 25))
    assert [x for x, _ in dotted] == list(range(24, 41))
    assert dotted[0] == full[-1] == (24, pytest.approx(0.48))


def test_curves_are_means_over_the_seeds():
    cells = [cell(place(seed=i), runs_too={"retrain": track([end] * 40)}) for i, end in enumerate((0.6, 0.8))]
    (mean,) = drawn(axes_of(draw_curves(group_cells(cells)))[0], VERMILLION)
    assert mean == [(t, pytest.approx(0.7)) for t in range(1, 41)]


def test_a_column_for_each_federation_accuracy_over_loss():
    found = group_cells(grid(["iid", "shards:2"], [525], [0]))
    figure = draw_curves(found)
    above, below = axes_of(figure)[:2], axes_of(figure)[2:]
    assert [axes.get_title("left") for axes in above] == ["iid", "2 classes a client"]
    assert (above[0].get_ylabel(), below[0].get_ylabel()) == ("test accuracy", "test loss (log)")
    assert (above[1].get_ylabel(), below[1].get_ylabel()) == ("", "")
    assert draw_curves([]) is None


def test_a_loss_that_explodes_does_not_flatten_the_others():
    wild = track([0.1] * 40)
    series = {**wild.series, "test_loss": (1e9,) * 40}
    cells = [cell(place(), runs_too={"fedrecover": replace(wild, series=series)})]
    figure = draw_curves(group_cells(cells))
    assert axes_of(figure)[1].get_ylim()[1] < MOST
    assert "loss over 10 is not shown" in said(figure)
    assert "loss over" not in said(draw_curves(group_cells([cell()])))


def test_an_early_peak_of_the_loss_is_shown_whole():
    peaked = track([0.5] * 40)
    series = {**peaked.series, "test_loss": (2.3, 5.0, *[1.0] * 38)}
    cells = [cell(place(), runs_too={"feduhb-on": replace(peaked, series=series)})]
    axes = axes_of(draw_curves(group_cells(cells)))[1]
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[1] > 5.0


def test_panels_of_a_row_share_one_range_and_say_what_is_cut_off():
    runs = {"iid": [0.95] * 40, "shards:2": [0.6] * 40}
    cells = [cell(place(way), runs_too={"retrain": track(end)}) for way, end in runs.items()]
    figure = draw_curves(group_cells(cells))
    ranges = [axes.get_ylim() for axes in axes_of(figure)]
    assert ranges[0] == ranges[1]
    assert ranges[2] == ranges[3]
    lower = axes_of(draw_scales(group_cells(grid(["iid", "shards:2"], [525], [0]))))[2:]
    assert lower[0].get_ylim() == lower[1].get_ylim()
    assert f"share one range: accuracy under {100 * ranges[0][0]:.1f}% is not shown" in said(figure)


def test_retrain_lies_wide_under_a_line_that_is_the_same():
    """Else FedRecover is not to be seen where its estimates are right."""
    same = track([0.7] * 40)
    cells = [cell(place(), runs_too={"retrain": same, "fedrecover": same, CORRECTED: same})]
    drawn = axes_of(draw_curves(group_cells(cells)))[0].lines
    lines = [line for line in drawn if len(np.asarray(line.get_xdata())) == 40]
    look = {to_hex(line.get_color()).upper(): (line.get_zorder(), line.get_linewidth()) for line in lines}
    under, over = look[VERMILLION], look[STROKES["fedrecover"].colour.upper()]
    assert under[0] < over[0]
    assert under[1] > over[1]
    assert STROKES[CORRECTED].colour != STROKES["fedrecover"].colour


def test_betas_heights_are_their_final_accuracies_and_rounds():
    runs = {"retrain": [0.5, 0.6], "momentum-0.3": [0.5, 0.7], "momentum-0.5": [0.6, 0.8], "momentum-0.7": [0.1, 0.2], "feduhb-on": [0.7, 0.9]}  # fmt: skip
    cells = [cell(place("dirichlet:0.5", rounds=2), runs_too={n: track(a) for n, a in runs.items()})]
    _, ends, rounds = axes_of(draw_betas(cells))
    dots = [
        (x, y) for line in ends.lines if line.get_marker() == "o" for x, y in np.column_stack(line.get_data())
    ]
    assert dots == [(0, 0.6), (1, 0.7), (2, 0.8), (3, 0.2), (4, 0.9)]
    assert [label.get_text() for label in ends.get_xticklabels()] == ["0", "0.3", "0.5", "0.7", "0.9"]
    joined = rounds.lines[0].get_ydata()
    assert np.array_equal(np.asarray(joined, dtype=float), [2, 2, 1, math.nan, 1], equal_nan=True)
    (never,) = [line for line in rounds.lines if line.get_markerfacecolor() == "white"]
    assert np.asarray(never.get_xdata())[0] == 3


def test_lambdas_heights_are_rounds_and_accuracy():
    cells = [
        cell(place(data="mnist-5k"), runs_too={"feduhb-on": track([t / 40 for t in range(40)], falling())})
    ]
    found = group_cells(cells)
    above, below = axes_of(draw_scales(found))
    rounds, accuracy = drawn(above, BLUE)[0], drawn(below, BLUE)[0]
    ends = {scale: replay_rule(found[0], scale=scale).rounds[0] for scale in SCALES}
    assert dict(rounds) == ends
    assert dict(accuracy) == {s: pytest.approx(((n or 40) - 1) / 40) for s, n in ends.items()}


def test_lambdas_marks_tell_all_some_and_none():
    moves = (falling(), [1.0] * 40)
    faces = []
    for chosen in (moves[:1], moves, [[1.0, 1.0, 0.3, *[1.0] * 37]]):
        runs = [{"feduhb-on": track([0.9] * 40, moved)} for moved in chosen]
        cells = [cell(place(seed=i, data="mnist-5k"), runs_too=run) for i, run in enumerate(runs)]
        marks = [
            line for line in axes_of(draw_scales(group_cells(cells)))[0].lines if line.get_marker() == "o"
        ]
        faces.append(
            {to_hex(line.get_markerfacecolor()).upper() for line in marks if line.get_markersize() == 6}
        )
    assert BLUE in faces[0]
    assert PALE[None] in faces[1]
    assert BLUE not in faces[1]
    assert faces[2] == {BLUE, "#FFFFFF"}, "0.3 lies between 0.9 and 1 times the standard deviation 0.33"


def seeds(*moves: list[float]) -> list[Federation]:
    """A federation with these movements of FedUHB, one a seed."""
    runs = [{"feduhb-on": track([0.9] * 40, moved)} for moved in moves]
    return group_cells([cell(place(seed=i, data="mnist-5k"), runs_too=run) for i, run in enumerate(runs)])


def faces(axes: Axes) -> list[str]:
    return [to_hex(line.get_markerfacecolor()).upper() for line in axes.lines if line.get_marker() == "o"]


def test_every_pale_mark_has_its_count_beside_it_whatever_the_window():
    found = seeds(falling(), STILL, STILL)
    assert {replay_rule(found[0], scale=1.0, window=window).fires for window in (None, 20)} == {1}
    figure = draw_scales(found)
    above, below = axes_of(figure)
    assert (faces(above).count(PALE[None]), faces(above).count(PALE[20])) == (9, 5)
    assert [text.get_text() for text in above.texts].count("1") == 14
    assert "1" not in [text.get_text() for text in below.texts]
    assert "pale: in some (how many is beside it, upper row)" in said(figure)
    assert figure is not None
    legible(figure)


def test_a_mark_that_is_not_pale_has_no_count():
    above, _ = axes_of(draw_scales(seeds(falling(), falling())))
    assert not set(PALE.values()) & set(faces(above))
    assert not above.texts


def test_no_whisker_of_rounds_is_longer_than_the_schedule():
    """Ends at 8, 40, 40 and 40 are 32 ± 16."""
    found = seeds([0.4 if t == 8 else 1.0 + t % 2 for t in range(1, 41)], STILL, STILL, STILL)
    assert replay_rule(found[0], scale=1.0).executed.values == (8, 40, 40, 40)
    figure = draw_scales(found)
    bars = [ends for ends in drawn(axes_of(figure)[0], BLUE) if len({x for x, _ in ends}) == 1]
    assert bars[-1] == [(1.0, pytest.approx(16)), (1.0, 40)]
    assert "whiskers ± 1 standard deviation, cut at round 40." in said(figure)


def test_a_whisker_that_ends_below_the_schedule_is_not_said_to_be_cut():
    figure = draw_scales(seeds(falling(shrink=0.5), falling(peak=5, shrink=0.5)))
    assert "whiskers ± 1 standard deviation." in said(figure)


def test_a_shorter_window_is_drawn_where_it_fires_and_the_words_say_so():
    some = draw_scales(seeds(falling()))
    thin = [x for line in drawn(axes_of(some)[0], COLOURS[20], mark="o") for x, _ in line]
    assert thin == [0.6, 0.7, 0.8, 0.9, 1.0]
    assert "The window 20 is drawn only where it fires." in said(some)
    everywhere = draw_scales(seeds(falling(shrink=0.5)))
    assert "window: 20 rounds" in said(everywhere)
    assert "only where it fires" not in said(everywhere)


def test_where_the_rule_never_fires_one_panel_shows_how_far_it_is_from_it():
    """Movements that alternate between 3 and 5: their standard deviation is 1 after an even number of rounds."""
    runs = {"feduhb-on": track([0.9] * 40, [3.0, 5.0] * 20)}
    (found,) = group_cells([cell(place(data="cifar10"), runs_too=runs)])
    assert never_fires(found)
    seen = list_quotients(found)
    assert len(seen) == 38, "the rule is silent before round 3"
    assert seen[1::2] == pytest.approx([5.0] * 19)
    figure = draw_scales([found])
    (axes,) = axes_of(figure)
    assert axes.get_title("left") == "The rule never fires"
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [SCALES[-1]]  # pyright: ignore[reportIndexIssue]
    assert drawn(axes, grade_colours(1)[0])[0][0] == (3, pytest.approx(seen[0]))
    assert "The rule fires in no seed of iid in 40 rounds" in said(figure)


def test_names_of_lines_that_end_together_do_not_touch():
    moves = {"iid": [3.0, 5.0], "dirichlet:0.5": [3.0, 5.01], "dirichlet:0.1": [3.0, 5.02]}
    still = {way: {"feduhb-on": track([0.9] * 40, moved * 20)} for way, moved in moves.items()}
    figure = draw_scales(
        group_cells([cell(place(way, data="cifar10"), runs_too=still[way]) for way in still])
    )
    assert axes_of(figure)[0].get_title("left") == "The rule never fires"
    assert figure is not None
    legible(figure)


def test_movements_that_never_change_are_not_divided_by_nothing():
    runs = {"feduhb-on": track([0.9] * 40, [1.0] * 40)}
    (found,) = group_cells([cell(place(data="cifar10"), runs_too=runs)])
    assert all(math.isnan(each) for each in list_quotients(found))
    assert draw_scales([found]) is not None


def test_the_papers_points_are_crosses_on_mnist_alone():
    for data, count in (("mnist", 2), ("cifar10", 0)):
        figure = draw_scales(group_cells([cell(place(data=data))]))
        for axes in axes_of(figure):
            assert len(drawn(axes, VERMILLION, mark="x")) == count


def test_the_ablation_marks_where_the_rule_would_end_each_run():
    runs = {
        "retrain": track([0.5] * 40, falling(peak=3)),
        "feduhb-on": track([0.9] * 40, [1.0] * 40),
        "step-2": track([0.95] * 40, falling()),
    }
    cells = [cell(place("dirichlet:0.5"), runs_too=runs)]
    (found,) = group_cells(cells)
    lines, ends, rounds = axes_of(draw_ablation(cells))
    fired = replay_rule(found, "retrain").rounds[0]
    assert drawn(lines, VERMILLION, mark="o") == [[(fired, 0.5)]]
    assert drawn(lines, BLUE, mark="o") == [], "the rule does not fire"
    assert len(drawn(lines, GREEN, mark="o")) == 1
    assert [y for _, y in drawn(ends, BLUE)[0]] == [0.9, 0.9], "heavy ball's level"
    assert [y for _, y in drawn(rounds, BLUE)[0]] == [1, 1]


def test_bars_have_whiskers_and_numbers():
    axes = axes_of(draw_forgetting([cell(place(seed=seed)) for seed in (0, 2)]))[0]
    widths = [float(patch.get_width()) for patch in axes.patches]  # type: ignore[attr-defined]
    assert widths == pytest.approx([0.81] + [0.51] * 5)
    assert next(label.get_text() for label in axes.get_yticklabels()) == "original"


def test_names_stand_beside_the_first_panel_alone():
    figure = draw_forgetting(grid(["iid"], [525], [0]))
    first, second = axes_of(figure)
    assert [label.get_text() for label in first.get_yticklabels()][-1] == "FedUHB, under its rule"
    assert {label.get_text() for label in second.get_yticklabels()} == {""}


def test_sizes_with_fewer_federations_leave_their_panels_empty():
    cells = [*grid(["iid", "shards:2"], [525], [0]), *grid(["iid"], [3000], [0])]
    visible = [axes.get_visible() for axes in axes_of(draw_forgetting(cells))]
    assert visible == [True, True, True, True, True, False]
