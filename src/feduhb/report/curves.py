"""The charts of runs: scores and movement round by round, the backdoor, and what the momentum β does."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from feduhb.report import drawing as dr
from feduhb.report import runs
from feduhb.report.charts import Chart, Key, Series
from feduhb.report.runs import RunView, printable, retrain_of
from feduhb.report.tables import find_reaching_round
from feduhb.report.words import (
    choose_score,
    describe_end,
    describe_floor,
    format_final,
    format_percent,
    join_names,
    name_part,
    title,
    watched,
    with_score,
)
from feduhb.runs.scores import LOSS, format_number, format_score, is_share, name_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECT_AT_MOST, DIRECT_LENGTH = 6, 15  # runs, and characters of a label, that still fit beside their lines
ROUND = "round {:g}"


@dataclass(frozen=True, slots=True)
class Line:
    """A series over the rounds, with a dot where a stop rule ended the run."""

    name: str
    values: runs.Series
    stroke: dr.Stroke
    faint: bool = False
    fired: int | None = None

    def describe(self, format: Callable[[float], str]) -> Series:
        """Return the values with their texts."""
        texts = ["" if value is None else format(value) for value in self.values]
        heights = [math.nan if value is None else value for value in self.values]
        return Series(self.name, self.stroke.colour, range(1, len(heights) + 1), heights, texts)


def chart_score(views: Sequence[RunView], looks: dr.Looks, score: str) -> Chart | None:
    """Describe a score round by round, a line for each run."""
    lines = [
        Line(view.label, view.scored(score), looks[view.label], not view.unlearned, view.fired)
        for view in views
        if any(value is not None for value in view.scored(score))
    ]
    marks = {
        "● ended by its stop rule": any(line.fired for line in lines),
        "grey: before unlearning": any(line.faint for line in lines),
    }
    key = ",  ".join(text for text, used in marks.items() if used)
    return chart_lines(title(score), lines, score, [(key, dr.SOFT)] if key else [])


def chart_lines(
    head: str, lines: Sequence[Line], score: str, notes: Sequence[dr.Note], goal: float | None = None
) -> Chart | None:
    """Describe lines over the rounds, named at their ends where that fits, else in a legend."""
    if not lines:
        return None
    form = partial(format_score, score)
    direct = len(lines) <= DIRECT_AT_MOST and all(len(line.name) <= DIRECT_LENGTH for line in lines)

    def draw(axes: Axes) -> None:
        ends: list[tuple[float, str, str]] = []
        for line in lines:
            dr.draw_line(axes, line.values, line.stroke, faint=line.faint)
            if (end := line.values[-1]) is not None:
                ends.append((end, f"{line.name}  {form(end)}", line.stroke.colour))
                if line.fired is not None:
                    dr.draw_dot(axes, line.fired, end, line.stroke.colour)
        dr.style_axes(axes)
        dr.label_rounds(axes, max(len(line.values) for line in lines))
        if goal is not None:
            axes.axhline(goal, color=dr.GREY, linewidth=1, linestyle="dashed", zorder=1)
        if is_share(score):
            dr.show_percent(axes)
        if direct:
            dr.label_ends(axes, ends)

    keys = [] if direct else [Key(line.name, line.stroke) for line in lines]
    return Chart(head, draw, [line.describe(form) for line in lines], notes, keys, head=ROUND)


def chart_movement(views: Sequence[RunView], looks: dr.Looks) -> Chart | None:
    """Describe how far the weights moved each round, the stop rule's threshold, and where it fired."""
    shown = watched(views)
    if not shown:
        return None
    moved = [Line(view.label, list(view.moved), looks[view.label], fired=view.fired) for view in shown]
    thresholds = [
        Line(f"{view.label}: threshold", view.threshold, dr.Stroke(looks[view.label].colour, "dashed"))
        for view in shown
        if any(value is not None for value in view.threshold)
    ]

    def draw(axes: Axes) -> None:
        for line in moved:
            dr.draw_line(axes, line.values, line.stroke)
            if line.fired is not None:
                axes.axvline(line.fired, color=line.stroke.colour, linewidth=0.7, alpha=0.5, zorder=1)
                dr.draw_dot(axes, line.fired, line.values[line.fired - 1] or 0.0, line.stroke.colour)
        for line in thresholds:
            dr.draw_line(axes, line.values, line.stroke, thin=True)
        dr.style_axes(axes)
        top = max(value or 0.0 for line in (*moved, *thresholds) for value in line.values)
        axes.set_ylim(0, 1.06 * top or 1)
        named = len(shown) == 1 and _label_threshold(axes, shown[0], looks[shown[0].label].colour)
        key = "dashed: threshold of the stop rule" if thresholds and not named else ""
        dr.label_rounds(axes, max(len(line.values) for line in moved), key)

    notes = [(describe_end(view), looks[view.label].colour) for view in shown]
    series = [line.describe(format_number) for line in (*moved, *thresholds)]
    return Chart("Movement of the weights, ‖Δw‖", draw, series, notes, head=ROUND)


def _label_threshold(axes: Axes, view: RunView, colour: str) -> bool:
    """Name the threshold over its line where the movement is farthest above it, if there is room."""
    both = enumerate(zip(view.moved, view.threshold, strict=True), 1)
    gap, x, height = max(((m - t, x, t) for x, (m, t) in both if t is not None), default=(0.0, 0, 0.0))
    if gap < 2 * dr.LABEL_GAP * axes.get_ylim()[1]:
        return False
    dr.write_text(axes, "threshold", (x, height), (0, 3), colour, va="bottom")
    return True


def chart_backdoor(views: Sequence[RunView], looks: dr.Looks) -> Chart | None:
    """Describe how often the planted trigger works on each run's final model."""
    shown = with_score(views, "backdoor")
    if not shown:
        return None
    shares = [view.final("backdoor") or 0.0 for view in shown]
    colours, places = [looks[view.label].colour for view in shown], range(len(shown))

    def draw(axes: Axes) -> None:
        axes.barh(places, shares, height=0.62, color=colours, zorder=2)
        for place, share in zip(places, shares, strict=True):
            dr.write_text(axes, format_percent(share), (share, place), (5, 0), dr.INK, size=dr.SIZE)
        dr.style_axes(axes)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, 1)
        axes.set_ylim(len(shown) - 0.45, -0.55)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
        names = [textwrap.fill(view.label, DIRECT_LENGTH) for view in shown]
        axes.set_yticks(places, names, color=dr.INK, parse_math=False)
        axes.set_xlabel("test images with the trigger that get its label", color=dr.SOFT, size=dr.SMALL)

    series = [
        Series(view.label, colour, [share], [place], [format_percent(share)])
        for view, colour, share, place in zip(shown, colours, shares, places, strict=True)
    ]
    height = max(2.5, 1.0 + 0.28 * len(shown))
    return Chart("Backdoor success", draw, series, [(describe_floor(views), dr.SOFT)], height=height)


@dataclass(frozen=True, slots=True)
class Sweep:
    """One FedUHB run for each β, in rising order, and Retrain on the same data if there is one."""

    runs: dict[float, RunView]
    retrain: RunView | None

    @property
    def reached(self) -> dict[float, int | None]:
        """The round at which each β has Retrain's final score; None for never."""
        found = {beta: find_reaching_round(v, self.retrain, self.score) for beta, v in self.runs.items()}
        return {beta: n if isinstance(n, int) else None for beta, n in found.items()}

    @property
    def score(self) -> str:
        """The score by which the runs are compared."""
        return choose_score(list(self.runs.values()))

    @property
    def goal(self) -> float | None:
        """Retrain's final score."""
        return None if self.retrain is None else self.retrain.final(self.score)

    @property
    def cut(self) -> list[float]:
        """Each β whose run a stop rule ended."""
        return [beta for beta, view in self.runs.items() if view.fired is not None]

    def describe(self) -> list[str]:
        """Return what was swept, and what a stop rule did to it."""
        phrases = [f"FedUHB with β {_join_betas(self.runs)}; β 0 is plain averaging."]
        if self.cut:
            phrases.append(
                f"A stop rule cut β {_join_betas(self.cut)} short, and it fires early at a low β: "
                "for a fair figure, run each β with --stop never."
            )
        return phrases


def find_sweep(views: Sequence[RunView]) -> Sweep | None:
    """Return the largest group of FedUHB runs that differ only in momentum; None if there are not two."""
    worlds: dict[str, dict[float, RunView]] = {}
    for view in views:
        beta = view.result["settings"].get("momentum")
        if view.role == "feduhb" and isinstance(beta, int | float):
            rest = {key: value for key, value in view.result["settings"].items() if key != "momentum"}
            group = worlds.setdefault(json.dumps((view.world, rest), sort_keys=True, default=str), {})
            # Of two runs with one β the one that no rule ended is taken, then the longer.
            both = group.get(float(beta), view), view
            group[float(beta)] = max(both, key=lambda v: (v.fired is None, len(v.rounds)))
    most = max(worlds.values(), key=len, default={})
    if len(most) < 2:
        return None
    ordered = dict(sorted(most.items()))
    return Sweep(ordered, retrain_of(next(iter(ordered.values())), views))


def _join_betas(betas: Iterable[float]) -> str:
    return join_names([f"{beta:g}" for beta in betas])


def chart_sweep(found: Sweep) -> dict[str, Chart]:
    """Describe the main score and the loss by round with a line for each β, and the rounds that each β needs."""
    colours = dr.grade_colours(len(found.runs))
    charts: dict[str, Chart] = {}
    for score in dict.fromkeys((found.score, LOSS)):
        level = found.goal if score == found.score else None
        notes = [] if charts else found.describe()
        if level is not None:
            notes.append(f"Dashed: Retrain's final {format_score(score, level)}.")
        lines = [
            Line(f"β {beta:g}", view.scored(score), dr.Stroke(colour))
            for (beta, view), colour in zip(found.runs.items(), colours, strict=True)
            if any(value is not None for value in view.scored(score))
        ]
        head = f"{title(score)} by β"
        if chart := chart_lines(head, lines, score, [(text, dr.SOFT) for text in notes], level):
            charts[f"beta-{name_part(score)}"] = chart
    return charts | {"beta-reach": _chart_needed(found, colours)}


def _chart_needed(found: Sweep, colours: Sequence[str]) -> Chart:
    """Describe the round at which each β has Retrain's score (open mark: never), or without Retrain its score."""
    betas, goal = list(found.runs), found.goal is not None
    top = max(len(view.rounds) for view in found.runs.values()) * 1.08 + 1
    if goal:
        heights = [top if n is None else float(n) for n in found.reached.values()]
        texts = ["never" if n is None else f"round {n}" for n in found.reached.values()]
        head, note = "Rounds to reach Retrain", "open: never in the rounds run" if "never" in texts else ""
    else:
        ends = [view.final(found.score) for view in found.runs.values()]
        heights = [math.nan if end is None else end for end in ends]
        texts = [format_final(view, found.score) for view in found.runs.values()]
        head, note = f"Final {printable(name_score(found.score))}", "no Retrain run here to compare with"

    def draw(axes: Axes) -> None:
        axes.plot(betas, heights, color=dr.GREY, linewidth=1, zorder=2)
        for x, y, colour, text in zip(betas, heights, colours, texts, strict=True):
            face = dr.GROUND if text == "never" else colour
            axes.plot([x], [y], marker="o", markersize=7, color=colour, markerfacecolor=face, zorder=3)
        dr.style_axes(axes)
        axes.set_xticks(betas, [f"{beta:g}" for beta in betas])
        axes.margins(x=0.1)
        axes.set_xlabel("β", color=dr.SOFT, size=dr.SMALL)
        if goal:
            axes.set_ylim(0, top * 1.08)
            axes.set_ylabel("rounds", color=dr.SOFT, size=dr.SMALL)
        elif is_share(found.score):
            dr.show_percent(axes)

    points = zip(betas, heights, colours, texts, strict=True)
    series = [Series(f"β {beta:g}", colour, [beta], [y], [text]) for beta, y, colour, text in points]
    return Chart(head, draw, series, [(note, dr.SOFT)] if note else [])
