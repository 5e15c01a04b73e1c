"""The page, the figure and the table of `feduhb theorem`, made from theorem.json alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feduhb.errors import RunFolderError
from feduhb.report.charts import Chart, Key, Series, compose
from feduhb.report.drawing import BLUE, GREY, SMALL, SOFT, VERMILLION, Stroke, style_axes, to_pdf, to_png
from feduhb.report.grids import Grid
from feduhb.report.page import Section, render_page
from feduhb.report.words import MACHINERY, NOTHING, format_number, format_percent, join_settings
from feduhb.runs import disk_errors, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Mapping[str, Any]  # what theorem.json holds

FILE = "theorem.json"
TITLE = "The theorem, measured"
LINES = {
    "distance": ("measured", Stroke(BLUE, "solid")),
    "tight": ("bound with β", Stroke(VERMILLION, "dashed")),
    "paper": ("paper's bound", Stroke(GREY, "dotted")),
}
SAME = "distance and bound with β: exactly 0"
CONVERGED = 100  # a distance that fell by less is not said to go to 0
ACROSS = 4  # panels in a row of the figure
HEADERS = (
    "β", "largest distance", "at round", "distance at the end", "bound with β at the end", "paper's at the end",
    "bound with β tends to", "paper's tends to", "bound with β over distance, least", "at round", "under both",
)  # fmt: skip
FORMULA = (
    "After t rounds from the same start the paper bounds the distance by α G / (1 - β) · (1 - ρᵗ) / (1 - ρ), with ρ = √(1 - α μ). "  # noqa: RUF001
    "The last step of its proof drops a factor β; the bound with β keeps it, and so goes to 0 with β, as it must: FedUHB "
    "without momentum is Retrain."
)
NOTE = "A distance is the norm of the difference of all weights. Under both: in every round."
SHOWS = "What a bound shows, and what it does not"
HOW = "How it was measured"


def write_theorem(folder: Path | str) -> list[Path]:
    """Write theorem.html, theorem.md and the figure (PNG, PDF) beside theorem.json, and return their paths."""
    target = Path(folder)
    found = read_theorem(target)
    figure = draw(found)
    made = {
        "theorem.html": page(found).encode(),
        "theorem.md": markdown(found).encode(),
        "theorem.png": to_png(figure),
        "theorem.pdf": to_pdf(figure),
    }
    with disk_errors(target):
        for name, data in made.items():
            write_atomically(target / name, data)
    return [target / name for name in made]


def read_theorem(folder: Path) -> Found:
    """Read theorem.json."""
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        _ = found["settings"]["rounds"], [run["distance"] for run in found["runs"]]
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(
            f"{folder} holds no {FILE}; make one with feduhb theorem --out {folder}"
        ) from None
    except (OSError, ValueError, TypeError, KeyError):
        raise RunFolderError(
            f"{path} is damaged; delete it and run feduhb theorem --out {folder} again"
        ) from None
    return found


def summary(found: Found) -> dict[str, Any]:
    """Return everything but the long series, for a program to read."""
    runs = [{key: value for key, value in run.items() if key not in LINES} for run in found["runs"]]
    return {**found, "runs": runs}


def headline(found: Found) -> str:
    """Return the outcome in sentences, whether the bounds were kept or broken."""
    runs, rounds = found["runs"], found["settings"]["rounds"]
    broken = [f"{run['beta']:g}" for run in runs if not (run["under_paper"] and run["under_tight"])]
    if broken:
        return f"A bound was broken at β = {', '.join(broken)}: the theorem, its constants or this program is wrong."
    apart = [run for run in runs if run["peak"] > 0]
    if not apart:
        return f"FedUHB without momentum is Retrain: for {rounds} rounds the two had the same weights, to the last bit."
    near = min(apart, key=lambda run: run["tight_closest"]["ratio"])
    return (
        f"For every β tried, FedUHB stayed under both bounds in each of {rounds} rounds. {_describe_fall(apart, rounds)} "
        f"The bound with β came as near as {format_number(near['tight_closest']['ratio'])} times the distance "
        f"(β = {near['beta']:g}, round {near['tight_closest']['round']}); the bounds do not fall."
    )


def _describe_fall(apart: Sequence[Mapping[str, Any]], rounds: int) -> str:
    """Describe how far the distance fell, if it did."""
    ends = max(run["final"] for run in apart)
    fell = min(run["peak"] / run["final"] if run["final"] else math.inf for run in apart)
    if fell < CONVERGED:
        return f"After round {rounds} its distance to Retrain is still {format_number(ends)}: give more rounds to see it go to 0."
    much = f", at least {format_number(fell)} times smaller than at its largest" if fell < math.inf else ""
    return f"Its distance to Retrain fell to {_format_distance(ends)} or less by then{much}."


def meaning(found: Found) -> dict[str, str]:
    """Return what a bound shows and does not show, with this run's numbers."""
    run, start = found["runs"][-1], found["start_from_optimum"]
    loose = (
        f"{format_number(run['tight'][-1] / run['final'])} times the distance"
        if run["final"]
        else "above a distance of 0"
    )
    return {
        "Both methods have one goal.": "They minimise the same strongly convex loss, so both end at its only optimum and their "
        "distance goes to 0. The paper says that the difference stabilizes at the limit of its bound, here "
        f"{format_number(run['paper_limit'])} for β = {run['beta']:g}. That limit is an upper bound and nothing more.",
        "Staying under a loose bound proves little.": f"For β = {run['beta']:g} the bound with β is {loose} in the last round. "
        f"It tends to {format_number(run['tight_limit'])}, while the fresh model itself stood {format_number(start)} from the optimum.",
        "G is known only afterwards.": "Over all weights the gradients of a strongly convex loss have no bound. G is the largest "
        "one met on the two paths, so it depends on the start, the step size and β: nothing was promised before the run.",
        "It speaks of full gradients of a strongly convex loss, and of steps of at most 1 / L.": "A convolutional network trained "
        "for five local epochs has no μ and no single optimum: nothing here carries over to it.",
        "It says nothing about forgetting.": "Neither path ever saw the data of those who left, and that holds with the bound or "
        "without it. That two models are near each other is not evidence of what either knows.",
    }  # fmt: skip


def table(found: Found) -> Grid:
    """Return a table with a row for every β."""
    rows = [
        [
            f"{run['beta']:g}", _format_distance(run["peak"]), str(run["peak_round"]) if run["peak"] else NOTHING,
            *(_format_distance(run[name][-1]) for name in LINES),
            *(_format_distance(run[f"{name}_limit"]) for name in ("tight", "paper")),
            *((format_number(near["ratio"]), str(near["round"])) if (near := run["tight_closest"]) else (NOTHING, NOTHING)),
            "yes" if run["under_tight"] and run["under_paper"] else "NO",
        ]
        for run in found["runs"]
    ]  # fmt: skip
    return Grid("In numbers", HEADERS, rows, note=NOTE)


def _format_distance(value: float) -> str:
    return format_number(value) if value else "0"


def facts(found: Found) -> dict[str, str]:
    """Return the settings and constants of the run."""
    how, runs = found["settings"], found["runs"]
    gaps = ", ".join(f"{run['gap']:.2g}" for run in runs)
    return {
        "data": f"{how['data']}, {how['partition']} over {how['clients']} clients, seed {how['seed']}; every example divided by its own norm",
        "forgotten": f"{how['forget']}; {found['remaining_clients']} clients with {found['remaining_examples']:,} examples remain",
        "model": f"softmax regression in float64, {found['parameters']:,} parameters, biases regularised too; full-batch gradients",
        "μ": f"{found['mu']:g}, the regulariser",
        "L": f"{found['L']:.6g} = μ + half the largest eigenvalue of X'X / n, X the examples with a 1 for the bias",
        "α": f"{found['alpha']:.6g} = 1 / L, the largest step that the theorem allows",  # noqa: RUF001
        "ρ": f"{found['rho']:.6g}",  # noqa: RUF001
        "G, for each β": ", ".join(f"{run['G']:.4g}" for run in runs),
        "from the optimum at the end, at most": f"Retrain {found['retrain']['gap']:.2g}; FedUHB, for each β: {gaps}",
        "test accuracy at the end": f"Retrain {format_percent(found['retrain']['test_accuracy'])}; FedUHB, for each β: "
        + ", ".join(format_percent(run["test_accuracy"]) for run in runs),
        "engine": join_settings({key: found["engine"][key] for key in MACHINERY}),
        "versions": join_settings(found["versions"]),
        "took": f"{format_number(found['seconds'])} s for {1 + len(runs)} runs of {how['rounds']} rounds",
    }


def markdown(found: Found) -> str:
    """Return the outcome as Markdown, with a link to the figure."""
    grid = table(found)
    listed = "\n".join(f"- {name}: {fact}" for name, fact in facts(found).items())
    said = "\n".join(f"- **{claim}** {why}" for claim, why in meaning(found).items())
    return (
        f"# {TITLE}\n\n{headline(found)}\n\n{FORMULA}\n\n![Distance and bounds, a panel for each β](theorem.png)\n\n"
        f"## {SHOWS}\n\n{said}\n\n## {grid.title}\n\n{grid.to_markdown()}\n{grid.note}\n\n## {HOW}\n\n{listed}\n"
    )


def page(found: Found) -> str:
    """Return the outcome as one self-contained HTML document."""
    lead, _, rest = headline(found).partition(". ")
    phrases = [text for text in (rest, FORMULA) if text]
    sections = [
        Section(
            "Distance between FedUHB and Retrain, round by round", phrases, charts=describe_charts(found)
        ),
        Section("In numbers", grid=table(found)),
        Section(SHOWS, points=meaning(found)),
        Section(HOW, facts=facts(found)),
    ]
    return render_page(TITLE, f"{lead.rstrip('.')}.", sections)


def describe_charts(found: Found) -> dict[str, Chart]:
    """Describe a chart for every β, all on the same axes: the distance under its two bounds."""
    return {f"beta-{place}": _describe_chart(run, found) for place, run in enumerate(found["runs"])}


def _describe_chart(run: Mapping[str, Any], found: Found) -> Chart:
    low, high = _range(found)
    rounds = found["settings"]["rounds"]

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import LogLocator

        axes.set_yscale("log")
        for name, (_, stroke) in LINES.items():
            heights = [value or math.nan for value in run[name]]  # nothing is 0 on a logarithmic axis
            width = 2.0 if name == "distance" else 1.5
            axes.plot(heights, color=stroke.colour, linestyle=stroke.dash, linewidth=width)
        style_axes(axes)
        axes.yaxis.set_major_locator(LogLocator(10.0 ** _decades(math.log10(high / low))))
        axes.yaxis.set_major_formatter(lambda value, _: _format_power(value))
        axes.minorticks_off()
        axes.set_ylim(low, high)
        axes.set_xlim(-0.02 * rounds, 1.02 * rounds)
        axes.set_xlabel("round", color=SOFT, size=SMALL)

    series = [
        Series(label, stroke.colour, range(len(run[name])), [value or math.nan for value in run[name]],
               [format_number(value) for value in run[name]])
        for name, (label, stroke) in LINES.items()
        if any(run[name])
    ]  # fmt: skip
    said = (
        f"{format_number(run['peak'])} at most, {_format_distance(run['final'])} at the end"
        if run["peak"]
        else SAME
    )
    keys = [Key(label, stroke) for label, stroke in LINES.values()]
    return Chart(f"β = {run['beta']:g}", draw, series, [(said, BLUE)], keys, head="round {:g}")


def _format_power(value: float) -> str:
    return "10" + f"{round(math.log10(value))}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def draw(found: Found) -> Figure:
    """Draw a panel for every β."""
    charts = list(describe_charts(found).values())
    across = min(ACROSS, len(charts))
    figure = compose(charts, width=max(2.55, 5.6 / across), height=2.9, columns=across)
    assert figure is not None  # noqa: S101 (there is a β)
    for place, axes in enumerate(figure.axes):
        if place % across:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel("‖w of FedUHB - w of Retrain‖", color=SOFT, size=SMALL)
    return figure


def _range(found: Found) -> tuple[float, float]:
    """Return the decades that hold every line above 0, at most twelve."""
    heights = [value for run in found["runs"] for name in LINES for value in run[name] if value > 0]
    high = math.ceil(math.log10(max(heights)) + 0.1)
    low = max(math.floor(math.log10(min(heights))), high - 12)
    return 10.0**low, 10.0**high


def _decades(count: float) -> int:
    """Return the decades between ticks that give at most eight ticks."""
    return math.ceil(count / 8)
