"""The main score against the work of clients: a line for each run, or a point with error bars for the seeds of a method."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from feduhb.report import drawing as dr
from feduhb.report.charts import Chart, Key, Series
from feduhb.report.curves import DIRECT_AT_MOST, DIRECT_LENGTH
from feduhb.report.runs import RunView, group_seeds
from feduhb.report.words import choose_score, title
from feduhb.runs.scores import format_score, is_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPOCHS = "client epochs {:,.0f}"
EXACT, APPROXIMATE = "o", "s"  # markers of matplotlib
NAMED_AT_MOST = 20  # points that still have room for their names
STEP = 0.016  # of the most work, between points that are drawn side by side
HEIGHT, HIGHER = 2.5, 4.2  # inches of a chart of few and of many points


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one method with the same settings and request, which differ only in their seed."""

    name: str
    views: Sequence[RunView]
    stroke: dr.Stroke
    score: str
    among_many: bool = False

    @property
    def marker(self) -> str:
        """The marker of the group's end: a circle if the method is exact, else a square."""
        return EXACT if self.views[0].exact else APPROXIMATE

    @property
    def work(self) -> list[float]:
        """The client epochs of each run."""
        return [float(view.result["client_epochs"]) for view in self.views]

    @property
    def ends(self) -> list[float]:
        """The final score of each run."""
        return [value for view in self.views if (value := view.final(self.score)) is not None]

    def follow(self) -> tuple[list[float], list[float]]:
        """Return the client epochs and the score after each scored round of a group's only run."""
        (view,) = self.views
        spent = itertools.accumulate(record.client_epochs for record in view.rounds)
        known = [(x, y) for x, y in zip(spent, view.scored(self.score), strict=True) if y is not None]
        return [float(x) for x, _ in known], [y for _, y in known]

    def describe(self) -> Series:
        """Return the points of the chart with their texts."""
        if len(self.views) == 1:
            x, y = self.follow()
            if self.among_many:
                x, y = x[-1:], y[-1:]
            texts = [format_score(self.score, value) for value in y]
        else:
            x, y = [statistics.fmean(self.work)], [statistics.fmean(self.ends)]
            spread = format_score(self.score, statistics.stdev(self.ends))
            texts = [f"{format_score(self.score, y[0])} ± {spread}, {len(self.views)} seeds"]
        return Series(self.name, self.stroke.colour, x, y, texts)


def chart_work(views: Sequence[RunView], looks: dr.Looks) -> Chart | None:
    """Describe what each method reached by how much client work; None if there are not two unlearnings of one request."""
    unlearned = [view for view in views if view.unlearned]
    score = choose_score(unlearned) if unlearned else ""
    groups = list_groups([view for view in unlearned if view.final(score) is not None], looks, score)
    if len(groups) < 2 or len({json.dumps(group.views[0].world[1:], default=str) for group in groups}) > 1:
        return None
    has_seeds = any(len(group.views) > 1 for group in groups)
    is_many = len(groups) > DIRECT_AT_MOST
    groups = [replace(group, among_many=is_many) for group in groups]
    short = all(len(group.name) <= DIRECT_LENGTH for group in groups)
    direct, named = short and not is_many, short and DIRECT_AT_MOST < len(groups) <= NAMED_AT_MOST
    exactly = [group.describe() for group in groups]
    series = set_apart(exactly) if is_many else exactly

    def draw(axes: Axes) -> None:
        for group, one in zip(groups, series, strict=True):
            if len(group.views) > 1:
                _draw_spread(axes, group, one.x[-1])
            elif not has_seeds and not is_many:
                axes.plot(
                    one.x, one.y, color=one.colour, linestyle=group.stroke.dash, linewidth=1.6, zorder=3
                )
            edge = {"markeredgecolor": dr.GROUND, "markeredgewidth": 1.0}
            if named and not group.views[0].exact:  # a point beneath it is seen
                edge = {"fillstyle": "none", "markeredgewidth": 1.6}
            look = {"marker": group.marker, "markersize": 6.5, "color": one.colour, "zorder": 5, **edge}
            axes.plot(one.x[-1:], one.y[-1:], **look)
        dr.style_axes(axes)
        axes.set_xlim(left=0)
        for mark in axes.lines:  # a marker at no work is drawn whole
            mark.set_clip_on(False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("client epochs", color=dr.SOFT, size=dr.SMALL)
        if is_share(score):
            dr.show_percent(axes)
        if direct:
            ends = zip(groups, series, strict=True)
            dr.label_ends(
                axes, [(s.y[-1], f"{g.name}  {format_score(score, s.y[-1])}", s.colour) for g, s in ends]
            )
        if named:
            dr.label_points(
                axes,
                [(one.x[-1], one.y[-1], one.name, one.colour) for one in series],
                _find_edges(groups, series),
            )

    notes = [f"● exact,  {'□' if named else '■'} approximate"]
    if any(one.x != other.x for one, other in zip(series, exactly, strict=True)):
        notes.append("points of equal work are drawn side by side")
    if has_seeds:
        notes.append("points: means over seeds; bars: one standard deviation")
    keys = [] if direct or named else [Key(group.name, group.stroke, group.marker) for group in groups]
    return Chart(
        f"{title(score)} against client work", draw, series, [(text, dr.SOFT) for text in notes], keys,
        height=HIGHER if named else HEIGHT, head="" if is_many else EPOCHS,
    )  # fmt: skip


def _draw_spread(axes: Axes, group: Group, x: float) -> None:
    """Draw one standard deviation in both directions around the mean of a group, at this place."""
    y = statistics.fmean(group.ends)
    axes.errorbar(
        [x], [y], xerr=statistics.stdev(group.work), yerr=statistics.stdev(group.ends), color=group.stroke.colour,
        linewidth=1.2, capsize=2.5, zorder=4,
    )  # fmt: skip


def _find_edges(groups: Sequence[Group], series: Sequence[Series]) -> list[float]:
    """Return the work at which a name beside each point begins: right of its bar, and of all points beside it."""
    step = 2 * STEP * max(one.x[-1] for one in series)
    bars = [statistics.stdev(group.work) if len(group.views) > 1 else 0.0 for group in groups]
    ends = {one.name: one.x[-1] + bar for one, bar in zip(series, bars, strict=True)}
    clusters = _list_clusters(series, 4 * step)
    edges = {one.name: max(ends[o.name] for o in cluster) for cluster in clusters for one in cluster}
    return [edges[one.name] for one in series]


def list_groups(views: Sequence[RunView], looks: dr.Looks, score: str) -> list[Group]:
    """Return the runs of each method with the same settings and request, over their seeds."""
    named = group_seeds(views)
    if len(named) < len(views):  # the colours of every seed would soon run out
        looks = dr.choose_strokes([runs[0] for _, runs in named])
    return [Group(name, runs, looks[runs[0].label], score) for name, runs in named]


def set_apart(series: Sequence[Series]) -> list[Series]:
    """Move points of nearly the same work apart sideways, the highest to the left, so that all bars are seen.

    They stay nearer to their own work than to that of others, so no two methods change places.
    """
    step = STEP * max(one.x[-1] for one in series) or 1.0
    placed = {one.name: one for one in series}
    clusters = _list_clusters(series, step)
    middles = [statistics.fmean(one.x[-1] for one in cluster) for cluster in clusters]
    for at, (cluster, middle) in enumerate(zip(clusters, middles, strict=True)):
        if len(cluster) == 1:
            continue
        room = min((abs(middle - other) for other in middles[:at] + middles[at + 1 :]), default=math.inf)
        apart = min(step, room / len(cluster))
        left = max(0.0, middle - apart * (len(cluster) - 1) / 2)
        ordered = sorted(cluster, key=lambda one: -one.y[-1])
        placed |= {one.name: replace(one, x=[left + apart * number]) for number, one in enumerate(ordered)}
    return list(placed.values())


def _list_clusters(series: Sequence[Series], step: float) -> list[list[Series]]:
    clusters: list[list[Series]] = []
    for one in sorted(series, key=lambda one: one.x[-1]):
        if clusters and one.x[-1] - clusters[-1][-1].x[-1] < step / 4:
            clusters[-1].append(one)
        else:
            clusters.append([one])
    return clusters
