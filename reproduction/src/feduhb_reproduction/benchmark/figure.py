"""The figure of a benchmark: accuracy against the work of clients, every method, with error bars over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feduhb.report.drawing import (
    GREY,
    INK,
    OTHERS,
    OWN,
    SIZE,
    SMALL,
    SOFT,
    Heading,
    new_figure,
    show_percent,
    style_axes,
    write_headings,
    write_text,
)
from feduhb_reproduction.benchmark.results import Federations, is_exact, list_names, name_method, sum_costs
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.figures.parts import describe_seeds, write_over
from feduhb_reproduction.measures import final_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, LEAST = 10.2, 2.9  # inches of the figure, and of a panel at least
MARKS = "osD^vP*Xp<>hd8"
APART = 0.032  # of the widest work, between methods whose work is equal
BAND = "#F4F4F4"


def draw_work(federations: Federations) -> Figure | None:
    """Draw a panel for each federation and a mark for each method; None if there are no federations."""
    found = {label: one for label, one in federations.items() if one.tracks(RETRAIN)}
    if not found:
        return None
    every = list(found.values())
    names = [name for name in list_names(every) if any(one.tracks(name) for one in every)]
    exact = [name for name in names if is_exact(every, name)]
    looks = _choose_looks([*exact, *(name for name in names if name not in exact)])
    width = max(LEAST, WIDTH / len(found))
    figure, panels = new_figure(len(found), 1, width=width, height=3.4)
    for axes, federation in zip(panels, every, strict=True):
        _draw_panel(axes, federation, looks, exact)
    panels[0].set_ylabel("test accuracy", color=SOFT, size=SMALL)
    headings = [Heading(f"{label}\n") for label in found]  # the empty line is for the work over bands
    write_headings(figure, panels, headings, width=width)
    _add_legend(figure, looks, exact)
    caption = (
        f"Test accuracy against the epochs that clients trained; {describe_seeds(every, 'bars')}, cut at 100%. Filled marks are exact methods, hollow ones approximate. Methods "
        "in a grey band did equal work, which is written over it. The dashed line is Retrain. Up and to the left is better; what a method leaves behind is not in this figure."
    )  # fmt: skip
    write_over(figure, [caption])
    return figure


def _choose_looks(names: list[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and the mark of each method."""
    colours = [INK, *OTHERS]
    return {
        name: (OWN.get(name) or colours[place % len(colours)], MARKS[place % len(MARKS)]) for place, name in enumerate(names)
    }  # fmt: skip


def _draw_panel(
    axes: Axes, federation: Federation, looks: dict[str, tuple[str, str]], exact: list[str]
) -> None:
    style_axes(axes)
    widest = max(sum_costs(federation, name, "client_epochs").mean or 0.0 for name in looks)
    goal = final_value(federation, RETRAIN).mean
    if goal is not None:
        axes.axhline(goal, color=GREY, linewidth=0.9, linestyle="dashed", zorder=1)
    for work, names in _group_equal(federation, list(looks)).items():
        first = max(0.0, work - (len(names) - 1) / 2 * APART * widest)
        if len(names) > 1:
            last = first + (len(names) - 1) * APART * widest
            axes.axvspan(first - APART * widest, last + APART * widest, color=BAND, linewidth=0, zorder=0)
            middle = (first + last) / 2
            write_text(
                axes,
                f"{work:,.0f} each",
                (middle, 1),
                (0, 5),
                SOFT,
                within=("data", "axes fraction"),
                ha="center",
            )
        for place, name in enumerate(names):
            (colour, mark), accuracy = looks[name], final_value(federation, name)
            mean, sd = accuracy.mean or 0.0, accuracy.sd or 0.0
            axes.errorbar(
                [first + place * APART * widest], [mean], yerr=[[min(sd, mean)], [min(sd, 1 - mean)]], linestyle="", marker=mark, markersize=7,
                color=colour, ecolor=colour, elinewidth=1, markerfacecolor=colour if name in exact else "white", markeredgecolor=colour, zorder=3,
            )  # fmt: skip
    axes.set_xlim(-0.08 * widest, 1.28 * widest)
    show_percent(axes)
    axes.set_xlabel("client epochs", color=SOFT, size=SMALL)


def _group_equal(federation: Federation, names: list[str]) -> dict[float, list[str]]:
    """Return the methods with an accuracy by the mean of their client epochs."""
    found: dict[float, list[str]] = {}
    for name in names:
        work = sum_costs(federation, name, "client_epochs").mean
        if work is not None and final_value(federation, name).mean is not None:
            found.setdefault(work, []).append(name)
    return found


def _add_legend(figure: Figure, looks: dict[str, tuple[str, str]], exact: list[str]) -> None:
    from matplotlib.lines import Line2D

    dots = [
        Line2D([], [], linestyle="", marker=mark, color=colour, markersize=7, markerfacecolor=colour if name in exact else "white")
        for name, (colour, mark) in looks.items()
    ]  # fmt: skip
    columns = 6
    figure.legend(
        dots, [name_method(name) for name in looks], loc="outside lower center", ncols=columns, frameon=False, fontsize=SIZE,
        labelcolor=INK,
    )  # fmt: skip
    figure.set_figheight(figure.get_figheight() + 0.22 * -(-len(looks) // columns))
