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
from feduhb_reproduction.cells import RETRAIN, Track
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.figures.parts import draw_legend, format_percent_axis, write_over
from feduhb_reproduction.measures import ACCURACY
from feduhb_reproduction.study.choose import LATEST
from feduhb_reproduction.study.criteria import LOST, MOST, Results
from feduhb_reproduction.study.design import BESIDE, NAMES, PAPER
from feduhb_reproduction.study.results import Stopped, count_rounds

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
    rows = {label: one for label, one in results.reported.items() if one.tracks(RETRAIN)}
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
    rules, run = results.list_rules(), results.fast
    found = {} if run is None else {family: results.stop(run, rule) for family, rule in rules.items()}
    found = {family: stops for family, stops in found.items() if stops}
    if not found or results.choice is None:
        return None
    width = WIDTH / len(found)
    figure, every = new_figure(len(found), 1, width=width, height=2.9)
    headings: list[Heading] = []
    top = max(2 * LOST, *(max(one.lost) for stops in found.values() for one in stops.values()))
    for axes, (family, stops) in zip(every, found.items(), strict=True):
        _draw_rule(axes, stops, results.study.long, top)
        note = " (chosen)" if family == results.choice.rule else ""
        headings.append(Heading(f"{family}{note}", [(results.choice.rules[family], SOFT)]))
    every[0].set_ylabel("points lost", color=SOFT, size=SMALL)
    write_headings(figure, every, headings, width=width)
    said = (
        f"Stop rules on {label_runs(results)[run or PAPER]}, {results.study.long} rounds scheduled: a dot for each federation, "
        f"{_describe_seeds(results)}; the line from it ends at the worst seed. Points lost: against the best mean of five rounds. "
        f"Good is low and to the right: the white corner loses at most {LOST:g} point and ends by round {LATEST}."
    )
    write_over(figure, [said])
    return figure


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
    found = {label: one for label, one in results.reported.items() if one.tracks(RETRAIN)}
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
            _draw_curve(axes, list(federation.tracks(run).values()), colours[run], results.study.rounds)
        for name in rivals:
            _draw_point(axes, federation, name)
        _set_work_axes(axes, federation)
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
    write_over(figure, [said])
    return figure


def _head(label: str) -> Heading:
    data, _, partition = label.rpartition(", ")
    return Heading(
        partition, [(f"{data} images" if data.endswith(" all") else f"{data} images a client", SOFT)]
    )


def _draw_curve(axes: Axes, tracks: list[Track], colour: str, rounds: int) -> None:
    if not tracks:
        return
    shortest = min(rounds, *(len(track.of(ACCURACY)) for track in tracks)) if tracks else 0
    mean = [statistics.fmean(track.of(ACCURACY)[t] for track in tracks) for t in range(shortest)]
    each = tracks[0].sums["client_epochs"] / tracks[0].rounds
    axes.plot([each * (t + 1) for t in range(shortest)], mean, color=colour, linewidth=1.8, zorder=3)


def _draw_point(axes: Axes, federation: Federation, name: str) -> None:
    tracks = federation.tracks(name).values()
    if tracks:
        x = statistics.fmean(track.sums["client_epochs"] for track in tracks)
        y = statistics.fmean(track.of(ACCURACY)[-1] for track in tracks)
        axes.axvline(x, color=OWN[name], linewidth=1, linestyle="dotted", zorder=1)
        axes.plot([x], [y], marker="o", color=OWN[name], markersize=7, markeredgecolor="white", zorder=5)


def _set_work_axes(axes: Axes, federation: Federation) -> None:
    style_axes(axes)
    goal = statistics.fmean(track.of(ACCURACY)[-1] for track in federation.tracks(RETRAIN).values())
    axes.axhline(goal, color=GREY, linewidth=0.8, linestyle="dashed", zorder=1)
    axes.set_ylim(goal - BELOW, min(1.0, goal + ABOVE))
    format_percent_axis(axes)
    axes.set_xlabel("client epochs", color=SOFT, size=SMALL)


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
    counts = sorted({len(one.seeds) for one in results.reported.values()})
    return (
        f"mean of {counts[0]} seeds"
        if counts[0] == counts[-1]
        else f"mean of {counts[0]} to {counts[-1]} seeds"
    )
