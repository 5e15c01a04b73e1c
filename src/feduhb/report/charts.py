"""A chart, described once: drawn as a panel of a paper's figure, or as inline SVG that shows its values on a page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feduhb.report import drawing as dr

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND, EMPTY = "#E3EFE6", "#F1F2F4"  # where a test is passed; where there is no value
# The page's CSS variables: these colours follow the reader's colour scheme.
VARIABLES = {
    dr.INK: "ink", dr.SOFT: "soft", dr.GRID: "line", dr.FRAME: "frame", dr.GROUND: "ground", BAND: "band", EMPTY: "raised",
    dr.BLUE: "blue", dr.VERMILLION: "vermillion", dr.BROWN: "brown", dr.VIOLET: "violet",
}  # fmt: skip
PAGE_WIDTH = 4.0  # inches: text of 8 points is still read on a telephone
READ_ALOUD = 12  # series that a chart's description names
# Rows that a figure has room for; points that each other one takes.
LEGEND_COLUMNS, LEGEND_ROWS, LEGEND_LINE = 4, 3, 13.0
POINTED_AT = 300  # places along a line that a pointer can tell apart
SVG, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"


@dataclass(frozen=True, slots=True)
class Series:
    """Points with a name and a colour, and the text that a reader sees when pointing at each."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]  # not a number where a value is missing
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: a line, or a marker if one is named."""

    name: str
    stroke: dr.Stroke
    marker: str = ""  # matplotlib's letter: o, s or D

    @property
    def sign(self) -> str:
        """The marker as a character."""
        return {"o": "●", "s": "■", "D": "◆"}.get(self.marker, "")


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel: its words, its values, and how it is drawn onto a pair of axes."""

    title: str
    draw: Callable[[Axes], None]
    series: Sequence[Series] = ()
    notes: Sequence[dr.Note] = ()
    keys: Sequence[Key] = ()
    height: float = 2.5  # inches on the page
    head: str = ""  # format of x for a pointer that shows all series there; empty: only the nearest point

    @property
    def summary(self) -> str:
        """The title and the last value of every series, for readers who do not see the chart."""
        said = [f"{each.name} {each.texts[-1]}".strip() for each in self.series[:READ_ALOUD] if each.texts]
        more = len(self.series) - READ_ALOUD
        return f"{self.title}: {'; '.join(said)}" + (f"; {more} more" if more > 0 else "")

    def render(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return the chart as inline SVG, and its points in that SVG's units for the page's script."""
        figure, (axes,) = dr.new_figure(1, 1, width=PAGE_WIDTH, height=self.height)
        self.draw(axes)
        return to_svg(figure, name, self.summary), {
            "head": bool(self.head),
            "series": self._place(figure, axes),
        }

    def _place(self, figure: Figure, axes: Axes) -> list[dict[str, Any]]:
        width, height = figure.get_size_inches() * dr.POINTS_AN_INCH
        to_figure = axes.transData - figure.transFigure
        step = math.ceil(max((len(each.x) for each in self.series), default=1) / POINTED_AT)
        placed: list[dict[str, Any]] = []
        for each in self.series:
            last = len(each.x) - 1
            every = enumerate(zip(each.x, each.y, each.texts, strict=True))
            shown = [
                point
                for place, point in every
                if place == last or (place % step == 0 and last - place >= step)
            ]
            if known := [(x, y, text) for x, y, text in shown if math.isfinite(y)]:
                at = to_figure.transform([(x, y) for x, y, _ in known])
                points = [
                    [round(left * width, 1), round((1 - up) * height, 1), text, self.head.format(x)]
                    for (left, up), (x, _, text) in zip(at, known, strict=True)
                ]
                placed.append({"name": each.name, "colour": follow_scheme(each.colour), "points": points})
        return placed


def compose(
    panels: Iterable[Chart | None], *, width: float | Sequence[float], height: float, columns: int = 0
) -> Figure | None:
    """Draw charts as the panels of one figure, with their titles and notes; None where there is no chart."""
    charts = [chart for chart in panels if chart is not None]
    if not charts:
        return None
    across = columns or len(charts)
    rows = math.ceil(len(charts) / across)
    figure, every = dr.new_figure(across, rows, width=width, height=height)
    for axes, chart in zip(every, charts, strict=False):
        chart.draw(axes)
    for axes in every[len(charts) :]:
        axes.set_visible(False)
    headings = [dr.Heading(chart.title, chart.notes) for chart in charts]
    dr.write_headings(figure, every[: len(charts)], headings, width=width, rows=rows)
    add_legend(figure, list(dict.fromkeys(key for chart in charts for key in chart.keys)))
    return figure


def add_legend(figure: Figure, keys: Sequence[Key]) -> None:
    """Write a legend under the panels."""
    from matplotlib.lines import Line2D

    if not keys:
        return
    handles = [
        Line2D([], [], color=key.stroke.colour, linestyle="none", marker=key.marker)
        if key.marker
        else Line2D([], [], color=key.stroke.colour, linestyle=key.stroke.dash, linewidth=1.8)
        for key in keys
    ]
    look = {"loc": "outside lower center", "frameon": False, "fontsize": dr.SMALL, "labelcolor": dr.INK}
    rows = math.ceil(len(keys) / LEGEND_COLUMNS)
    higher = max(0, rows - LEGEND_ROWS) * LEGEND_LINE / dr.POINTS_AN_INCH
    figure.set_figheight(figure.get_figheight() + higher)
    legend = figure.legend(handles, [key.name for key in keys], ncols=min(LEGEND_COLUMNS, len(keys)), **look)
    for text in legend.get_texts():
        text.set_parse_math(False)


def to_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as SVG that can stand inside a page: it scales, follows the colour scheme and clashes with nothing."""
    from xml.etree import ElementTree

    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        made = dr.save_figure(figure, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(made)  # noqa: S314 (it was written a line above)
    _clean(root, name)
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib.clear()
    root.attrib |= {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": label}
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _clean(parent: Element, name: str) -> None:
    """Drop what a page does not need; rename ids, fonts and colours."""
    for child in list(parent):
        if child.tag in {f"{SVG}metadata", f"{SVG}style"}:
            parent.remove(child)
            continue
        own = child.attrib
        if (old := own.pop("id", None)) and child.tag in {f"{SVG}path", f"{SVG}clipPath"}:
            own["id"] = f"{name}-{old}"
        if link := own.pop(LINK, None):
            own["href"] = f"#{name}-{link[1:]}"
        if "clip-path" in own:
            own["clip-path"] = own["clip-path"].replace("#", f"#{name}-")
        if "style" in own:
            own["style"] = follow_scheme(re.sub(r"font-family: [^;]*;? ?", "", own["style"]))
        if "d" in own:
            own["d"] = re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.1f}", " ".join(own["d"].split()))
        child.tail = None
        if child.tag != f"{SVG}text":
            child.text = None
        _clean(child, name)


def follow_scheme(style: str) -> str:
    """Replace colours by the page's variables."""
    return re.sub(r"#[0-9a-fA-F]{6}", lambda found: _name_colour(found[0].upper()), style)


def _name_colour(colour: str) -> str:
    return f"var(--{VARIABLES[colour]})" if colour in VARIABLES else colour
