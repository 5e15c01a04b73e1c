"""The three figures of a study: rounds to Retrain's accuracy, stop rules, accuracy against client work."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from feduhb.report.drawing import (
    GREY,
    INK,
    OTHERS,
    OWN,
    SIZE,
    SMALL,
    SOFT,
    Heading,
    Stroke,
    new_figure,
    style_axes,
    write_headings,
    write_text,
)
from feduhb.report.words import join_names
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.figures.parts import draw_legend, format_percent_axis, write_over
from feduhb_reproduction.measures import ACCURACY
from feduhb_reproduction.study.choose import LATEST
from feduhb_reproduction.study.criteria import LOST, MOST, Results
from feduhb_reproduction.study.design import BESIDE, NAMES, PAPER
from feduhb_reproduction.study.results import Stopped, count_rounds, cut_tracks, score_final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAST = OTHERS[0]
WIDTH = 10.2  # inches
BELOW, ABOVE = 0.3, 0.2  # of accuracy around Retrain's last, that is shown


def draw_study(results: Results) -> dict[str, Figure]:
    """Draw the figures for which the reported seeds have numbers, by name."""
    drawn = {"rounds": draw_rounds(results), "stopping": draw_stopping(results), "work": draw_work(results)}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def label_runs(results: Results) -> dict[str, str]:
    """Return the chosen candidates' labels by run; the recommended one is marked."""
    chosen = set() if results.choice is None else {*results.choice.families.values()}
    found = {one.name: one.label for one in results.study.list_candidates() if one.name in chosen}
    return {
        name: f"{label} (recommended)" if name == results.fast else label for name, label in found.items()
    }


def list_there(results: Results, runs: Iterable[str]) -> list[str]:
    """Return those of some runs that any federation has, not broken off."""
    return [run for run in runs if any(one.tracks(run) for one in results.reported.values())]


def choose_colours(results: Results) -> dict[str, str]:
    """Return the colour of each chosen run."""
    others = iter([*OTHERS[1:], *(["#444444"] * len(results.study.candidates))])
    known = {
        RETRAIN: OWN[RETRAIN],
        PAPER: OWN["feduhb"],
        **({} if results.fast is None else {results.fast: FAST}),
    }
    return {name: known.get(name) or next(others) for name in label_runs(results)}


def draw_rounds(results: Results) -> Figure | None:
    """Draw the round from which each method keeps Retrain's accuracy: a row for each federation, a dot for each method."""
    labels = {run: label for run, label in label_runs(results).items() if run != RETRAIN}
    rows = {label: one for label, one in results.reported.items() if one.has(RETRAIN)}
    if not rows or not labels:
        return None
    colours, never = choose_colours(results), results.study.rounds + 1
    figure, (axes,) = new_figure(1, 1, width=WIDTH, height=0.9 + 0.33 * len(rows))
    style_axes(axes)
    marks = dict(zip([run for run in labels if run != results.fast], "sDv^PX<>*", strict=False))
    for place, federation in enumerate(rows.values()):
        for run in labels:
            values = count_rounds(federation, run).values
            if values:
                look = _look(colours[run], marks.get(run))
                axes.plot(
                    [statistics.fmean(values)],
                    [place],
                    linestyle="",
                    zorder=3 if run == results.fast else 4,
                    **look,
                )
    axes.axvline(MOST, color=INK, linewidth=1, linestyle="dashed", zorder=1)
    write_text(axes, f"round {MOST}", (MOST, -0.5), (3, 5), INK)
    axes.set_yticks(range(len(rows)), list(rows), color=INK, size=SIZE)
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.set_xlim(0, never + 1)
    ticks = [t for t in range(0, never, 5) if t]
    axes.set_xticks([*ticks[:-1], never], [*map(str, ticks[:-1]), "never"])
    axes.set_xlabel(
        "round from which the test accuracy stays at Retrain's final one or above", color=SOFT, size=SMALL
    )
    there = list_there(results, labels)
    _add_marks(figure, [(labels[run], _look(colours[run], marks.get(run))) for run in there])
    write_over(
        figure,
        [
            f"Rounds to the accuracy of Retrain after {results.study.rounds} rounds; {_describe_seeds(results)}. Further left is faster."
        ],
    )
    return figure


def draw_stopping(results: Results) -> Figure | None:
    """Draw the points that each chosen rule loses against the rounds that it saves: a panel for each rule, a dot for each federation."""
    if results.choice is None or results.choice.rules is None or results.choice.rule is None:
        return None
    chosen, best, run = results.choice.rules, results.choice.rule, results.choice.fast.run
    every = {family: results.stop(run, ending) for family, ending in results.list_rules().items()}
    found = {family: stops for family, stops in every.items() if stops}
    if not found:
        return None
    width = WIDTH / len(found)
    figure, every = new_figure(len(found), 1, width=width, height=2.9)
    headings: list[Heading] = []
    top = max(2 * LOST, *(max(one.lost) for stops in found.values() for one in stops.values()))
    for axes, (family, stops) in zip(every, found.items(), strict=True):
        _draw_rule(axes, stops, results.study.long, top)
        name, _, more = family.partition(", ")
        note = ", ".join(filter(None, [more, "chosen" if family == best.family else ""]))
        lines = [note, _keep_together(chosen[family].chosen)]
        headings.append(Heading(name, [(line, SOFT) for line in lines if line]))
    every[0].set_ylabel("points lost", color=SOFT, size=SMALL)
    write_headings(figure, every, headings, width=width)
    said = (
        f"Stop rules on {label_runs(results)[run]}, {results.study.long} rounds scheduled. A dot: a federation, {_describe_seeds(results)}; "
        f"its line ends at the worst seed. Points lost: against the best mean of five rounds. White: at most {LOST:g} point lost, and ended by round {LATEST}."
    )
    write_over(figure, [said])
    return figure


def _keep_together(settings: str) -> str:
    """Return settings in words that a line breaks only between them."""
    return ", ".join(one.replace(" ", "\N{NO-BREAK SPACE}") for one in settings.split(", "))


def _draw_rule(axes: Axes, stops: dict[str, Stopped], long: int, top: float) -> None:
    style_axes(axes)
    bottom = min(-0.5, *(min(one.lost) for one in stops.values()))
    axes.axhspan(LOST, top * 1.08, color="#F3F0EE", zorder=0)
    axes.axvspan(-2, long - LATEST, color="#F3F0EE", zorder=0)
    for one in stops.values():
        saved = long - one.mean_end
        fits = one.mean_lost <= LOST
        colour = FAST if fits else OWN[RETRAIN]
        axes.plot([saved, saved], [one.mean_lost, max(one.lost)], color=colour, linewidth=1, zorder=2)
        axes.plot(
            [saved],
            [one.mean_lost],
            marker="o",
            color=colour,
            markersize=6,
            markeredgecolor="white",
            zorder=4,
        )
    axes.set_xlim(-2, long)
    axes.set_ylim(bottom, top * 1.08)
    axes.set_xlabel(f"rounds saved of {long}", color=SOFT, size=SMALL)


def draw_work(results: Results) -> Figure | None:
    """Draw the accuracy against the work of clients: a panel for each federation."""
    found = {label: one for label, one in results.reported.items() if score_final(one, RETRAIN).n}
    if not found or results.fast is None:
        return None
    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    width = WIDTH / columns
    figure, every = new_figure(columns, rows, width=width, height=2.1)
    runs = list_there(results, dict.fromkeys((RETRAIN, PAPER, results.fast)))
    rivals, colours = list_there(results, BESIDE), choose_colours(results)
    for axes, federation in zip(every, found.values(), strict=False):
        for run in runs:
            _draw_curve(axes, federation, run, colours[run])
        bottom = _set_work_axes(axes, federation)
        for name in rivals:
            _draw_point(axes, federation, name, bottom)
    for axes in every[len(found) :]:
        axes.set_visible(False)
    write_headings(
        figure,
        every,
        [*(_head(label) for label in found), *(Heading("") for _ in every[len(found) :])],
        width=width,
        rows=rows,
    )
    labels = label_runs(results)
    draw_legend(
        figure,
        [
            *((labels[run], Stroke(colours[run])) for run in runs),
            *((f"{NAMES[name]}, at its end", Stroke(OWN[name], "dotted")) for name in rivals),
        ],
    )
    said = f"Test accuracy against the epochs that clients trained; {_describe_seeds(results)}."
    if rivals:
        dots = f"{join_names([NAMES[name] for name in rivals])} {'are dots with dotted lines' if rivals[1:] else 'is a dot with a dotted line'}"
        said += f" {dots}: a curve above the dot is ahead at equal client work."
        if any(line.get_marker() == "v" for axes in every for line in axes.lines):
            said += " A triangle is a dot below the axis, with its accuracy."
    write_over(figure, [said])
    return figure


def _head(label: str) -> Heading:
    data, _, partition = label.rpartition(", ")
    name, _, size = data.rpartition(" ")
    return Heading(
        partition, [(f"{name}, all images" if size == "all" else f"{name}, {size} a client", SOFT)]
    )


def _draw_curve(axes: Axes, federation: Federation, run: str, colour: str) -> None:
    tracks = [track for track in cut_tracks(federation, run).values() if track.failed is None]
    if not tracks:
        return
    mean = [
        statistics.fmean(values) for values in zip(*(track.of(ACCURACY) for track in tracks), strict=False)
    ]
    each = tracks[0].sums["client_epochs"] / tracks[0].rounds
    axes.plot([each * n for n in range(1, len(mean) + 1)], mean, color=colour, linewidth=1.8, zorder=3)


def _draw_point(axes: Axes, federation: Federation, name: str, bottom: float) -> None:
    """Draw where a method ends: a dot, or an arrow at the bottom with the accuracy if that is further down."""
    tracks = federation.tracks(name).values()
    if not tracks:
        return
    x = statistics.fmean(track.sums["client_epochs"] for track in tracks)
    y = statistics.fmean(track.of(ACCURACY)[-1] for track in tracks)
    axes.axvline(x, color=OWN[name], linewidth=1, linestyle="dotted", zorder=1)
    if y < bottom:
        write_text(axes, f"{y:.0%}", (x, bottom), (6, 4), OWN[name])
    axes.plot(
        [x],
        [max(y, bottom)],
        marker="v" if y < bottom else "o",
        color=OWN[name],
        markersize=7,
        markeredgecolor="white",
        zorder=5,
        clip_on=False,
    )


def _set_work_axes(axes: Axes, federation: Federation) -> float:
    """Show the accuracies around Retrain's last one, and return the lowest of them."""
    style_axes(axes)
    goal = statistics.fmean(score_final(federation, RETRAIN).values)
    axes.axhline(goal, color=GREY, linewidth=0.8, linestyle="dashed", zorder=1)
    bottom = max(0.0, goal - BELOW)
    axes.set_ylim(bottom, min(1.0, goal + ABOVE))
    format_percent_axis(axes)
    axes.set_xlabel("client epochs", color=SOFT, size=SMALL)
    return bottom


def _look(colour: str, mark: str | None) -> dict[str, Any]:
    """Return how a method's mark is drawn: the recommended one, which has no mark of its own, is a ring around others."""
    if mark is None:
        return {
            "marker": "o",
            "markersize": 13,
            "markerfacecolor": "none",
            "markeredgecolor": colour,
            "markeredgewidth": 3,
        }
    return {"marker": mark, "markersize": 7, "color": colour, "markeredgecolor": "white"}


def _add_marks(figure: Figure, entries: list[tuple[str, dict[str, Any]]]) -> None:
    from matplotlib.lines import Line2D

    dots = [Line2D([], [], linestyle="", **look) for _, look in entries]
    figure.legend(
        dots, [label for label, _ in entries], loc="outside lower center", ncols=3, frameon=False, fontsize=SIZE, labelcolor=INK
    )  # fmt: skip
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(entries) // 3))


def _describe_seeds(results: Results) -> str:
    counts = sorted(
        {
            len(one.every(run))
            for one in results.reported.values()
            for run in label_runs(results)
            if one.has(run)
        }
    )
    return (
        f"mean of {counts[0]} seeds"
        if counts[0] == counts[-1]
        else f"mean of {counts[0]} to {counts[-1]} seeds"
    )
