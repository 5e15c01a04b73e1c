"""The table, the figure and the page about policies for a stream of requests, see `feduhb.batching`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from feduhb.batching import DAY, Measure, Outcome, Simulation, choose_unit, format_hours
from feduhb.report import drawing as dr
from feduhb.report import encode_files, write_files
from feduhb.report.charts import Chart, Series, compose
from feduhb.report.grids import Grid
from feduhb.report.page import Number, Section, render_page
from feduhb.report.words import NOTHING, format_percent
from feduhb.runs.scores import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (dr.VERMILLION, dr.BROWN, dr.VIOLET, dr.BLUE)  # of the policies, in their order
SMALL_ERROR = 0.01  # of the value: not shown
SHORT = {"days": "d", "hours": "h", "minutes": "min", "seconds": "s"}
NOTE = "Standard errors above 1 % are shown. A request's delay ends with the unlearning that serves it."


def write_forecast(found: Simulation, out: Path | str) -> list[Path]:
    """Write forecast.html, forecast.md, forecast.tex and the figure (PNG, PDF) into a folder; return their paths."""
    grid, charts = make_grid(found), [chart_costs(found), chart_delays(found)]
    figure = compose(charts, width=[4.4, 5.6], height=2.5)
    about = describe(found)
    texts = {
        "forecast.html": render_forecast(found),
        "forecast.md": f"{found.headline}\n\n{grid.to_markdown()}\n{' '.join(about)} {NOTE}\n",
        "forecast.tex": "".join(f"% {line}\n" for line in [found.headline, *about, NOTE]) + grid.to_latex(),
    }
    return write_files(encode_files(texts, {} if figure is None else {"forecast": figure}), Path(out))


def render_forecast(found: Simulation) -> str:
    """Return the page as one HTML document."""
    best, limit = found.best, f"deadline: {format_hours(found.deadline)}"
    numbers = [
        Number(
            "requests a year", format_number(found.requests.value), f"{format_number(found.rate)} expected"
        ),
        Number(f"unlearnings a year, {best.policy}", format_number(best.unlearnings.value), best.says),
        Number(f"mean delay, {best.policy}", format_hours(best.mean_delay.value), limit),
        Number(
            f"missed deadlines, {best.policy}", format_percent(best.missed_share.value), "of the requests"
        ),
    ]
    charts = {"costs": chart_costs(found), "delays": chart_delays(found)}
    sections = [
        Section("Costs and delays", charts=charts),
        Section("The policies", phrases=describe(found), grid=make_grid(found)),
    ]
    return render_page("Forecast of erasure requests", found.headline, sections, numbers)


def describe(found: Simulation) -> list[str]:
    """Return what was simulated, in sentences."""
    batch = found.service.says or f"one batch takes {format_hours(found.service.hours)}"
    *most, last = [f"{one.says} ({one.policy})" for one in found.outcomes]
    return [
        f"{format_number(found.rate)} requests a year are expected, with a deadline of {format_hours(found.deadline)}.",
        f"Batches start {', '.join(most)}, or {last}.",
        f"{batch[:1].upper()}{batch[1:]}.",
        f"Simulated: {found.years} years, seed {found.seed}.",
    ]


def make_grid(found: Simulation) -> Grid:
    """Return the table: a row for each measure, a column for each policy."""
    outcomes = found.outcomes
    rows = {
        "unlearnings": [_format(one.unlearnings) for one in outcomes],
        "machine time": [_format_time(one.machine_hours) for one in outcomes],
        "client epochs": [_format(one.client_epochs) for one in outcomes],
        "MB down + up": [_format(one.bytes, 1e6) for one in outcomes],
        "mean delay": [_format_time(one.mean_delay) for one in outcomes],
        "median delay": [_format_time(one.median_delay) for one in outcomes],
        "95 % wait at most": [_format_time(one.delay_95) for one in outcomes],
        "longest delay": [_format_time(Measure(one.longest_delay, None)) for one in outcomes],
        "longest possible": [_format_time(Measure(one.longest_possible, None)) for one in outcomes],
        "missed deadlines": [_format(one.missed) for one in outcomes],
        "share missed": [_format(one.missed_share, 0.01, "%") for one in outcomes],
    }
    shown = [[name, *cells] for name, cells in rows.items() if NOTHING not in cells]
    return Grid("Policies", ["in a year", *(one.policy for one in outcomes)], shown, note=NOTE)


def _format(measure: Measure | None, unit: float = 1.0, sign: str = "") -> str:
    """Format a value in three digits; with its standard error, to one digit of that, unless it is small or not known."""
    if measure is None:
        return NOTHING
    value, error = measure.value / unit, (measure.error or 0.0) / unit
    if error <= SMALL_ERROR * value:
        return f"{format_number(value) if value else 0}{sign}"
    digits = max(0, -math.floor(math.log10(error)))
    return f"{value:,.{digits}f} ± {error:,.{digits}f}{sign}"


def _format_time(measure: Measure) -> str:
    """Format a time as `format_hours` does, with short names of the units."""
    name, unit = choose_unit(measure.value)
    return _format(measure, unit, f" {SHORT[name]}")


def chart_costs(found: Simulation) -> Chart:
    """Describe how many unlearnings each policy needs in a year."""
    values = [one.unlearnings.value for one in found.outcomes]
    texts = [
        f"{format_number(one.unlearnings.value)}  ({format_hours(one.machine_hours.value)})"
        for one in found.outcomes
    ]
    rows = _list_rows(found.outcomes)

    def draw(axes: Axes) -> None:
        axes.barh(rows, values, height=0.6, color=COLOURS, zorder=2)
        for row, value, text in zip(rows, values, texts, strict=True):
            dr.write_text(axes, text, (value, row), (4, 0), dr.INK)
        _label_policies(axes, found.outcomes)
        axes.set_xlim(0, 1.45 * max(values, default=0.0) or 1.0)
        axes.set_xlabel("unlearnings a year", color=dr.SOFT, size=dr.SMALL)

    return Chart(
        "What it costs",
        draw,
        _describe(found, values, texts),
        [("in brackets: machine time a year", dr.SOFT)],
    )


def chart_delays(found: Simulation) -> Chart:
    """Describe how long requests wait: the mean, 95 % of them, and the longest; and the deadline."""
    rows, deadline = _list_rows(found.outcomes), found.deadline / DAY
    means = [one.mean_delay.value / DAY for one in found.outcomes]
    most = [one.delay_95.value / DAY for one in found.outcomes]
    longest = [one.longest_delay / DAY for one in found.outcomes]
    texts = [f"{format_hours(one.mean_delay.value)}, {_tell_missed(one)}" for one in found.outcomes]

    def draw(axes: Axes) -> None:
        end = max(deadline, *longest)
        axes.axvline(deadline, color=dr.INK, linewidth=1, linestyle="dashed", zorder=1)
        for row, mean, some, top, text, colour in zip(
            rows, means, most, longest, texts, COLOURS, strict=True
        ):
            axes.plot([0, top], [row, row], color=colour, linewidth=1.2, zorder=2)
            axes.barh(row, some, height=0.25, color=colour, alpha=0.35, zorder=2)
            dr.draw_dot(axes, mean, row, colour)
            dr.write_text(axes, text, (end, row), (8, 0), dr.INK)
        _label_policies(axes, found.outcomes)
        axes.set_xlim(-0.02 * end, 1.75 * end)
        axes.set_xlabel("days from a request to its model", color=dr.SOFT, size=dr.SMALL)

    key = "dot: mean,  bar: 95 % of requests,  line: longest,  dashed: deadline"
    return Chart("How long a request waits", draw, _describe(found, means, texts), [(key, dr.SOFT)])


def _tell_missed(outcome: Outcome) -> str:
    share = outcome.missed_share.value
    return f"{format_percent(share)} too late" if share else "none too late"


def _list_rows(outcomes: Sequence[Outcome]) -> list[int]:
    """Return the heights of the policies, the first on top."""
    return [*reversed(range(len(outcomes)))]


def _label_policies(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    dr.style_axes(axes)
    axes.set_yticks(_list_rows(outcomes), [one.policy for one in outcomes], color=dr.INK, size=dr.SIZE)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(-0.6, len(outcomes) - 0.4)


def _describe(found: Simulation, values: Sequence[float], texts: Sequence[str]) -> list[Series]:
    points = zip(found.outcomes, COLOURS, values, _list_rows(found.outcomes), texts, strict=True)
    return [Series(one.policy, colour, [value], [row], [text]) for one, colour, value, row, text in points]
