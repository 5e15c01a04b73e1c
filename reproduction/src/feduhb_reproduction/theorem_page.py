"""What `feduhb theorem` found, as a page, a figure and a table: made from theorem.json alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feduhb.errors import RunFolderError
from feduhb.report.chart_parts import DASHES, TEXT, Chart, layout
from feduhb.report.drawing import INK, SIZE, SMALL, SOFT, Heading, blank, quiet, write_headings
from feduhb.report.figures import pdf, png
from feduhb.report.grids import NOTHING, Grid
from feduhb.report.html import DRAW, FRAME, POLICY
from feduhb.report.markup import chart, section
from feduhb.report.style import BLUE, GREY, VERMILLION, Stroke
from feduhb.report.words import MACHINERY, number, percent
from feduhb.runs.folder import disk_errors, write_atomically

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
    """Write theorem.html, theorem.md and the figure (PNG, PDF) beside theorem.json; give their paths."""
    target = Path(folder)
    found = read_theorem(target)
    figure = draw(found)
    made = {
        "theorem.html": page(found).encode(),
        "theorem.md": markdown(found).encode(),
        "theorem.png": png(figure),
        "theorem.pdf": pdf(figure),
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
    """Give all but the long series, for a program to read."""
    runs = [{key: value for key, value in run.items() if key not in LINES} for run in found["runs"]]
    return {**found, "runs": runs}


def headline(found: Found) -> str:
    """Tell the outcome in plain sentences, kept or broken."""
    runs, rounds = found["runs"], found["settings"]["rounds"]
    broken = [f"{run['beta']:g}" for run in runs if not (run["under_paper"] and run["under_tight"])]
    if broken:
        return f"A bound was broken at β = {', '.join(broken)}: the theorem, its constants or this program is wrong."
    apart = [run for run in runs if run["peak"] > 0]
    if not apart:
        return f"FedUHB without momentum is Retrain: for {rounds} rounds the two had the same weights, to the last bit."
    near = min(apart, key=lambda run: run["tight_closest"]["ratio"])
    return (
        f"For every β tried, FedUHB stayed under both bounds in each of {rounds} rounds. {_went(apart, rounds)} "
        f"The bound with β came as near as {number(near['tight_closest']['ratio'])} times the distance "
        f"(β = {near['beta']:g}, round {near['tight_closest']['round']}); the bounds do not fall."
    )


def _went(apart: Sequence[Mapping[str, Any]], rounds: int) -> str:
    """Say how far the distance went down, if it did."""
    ends = max(run["final"] for run in apart)
    fell = min(run["peak"] / run["final"] if run["final"] else math.inf for run in apart)
    if fell < CONVERGED:
        return f"After round {rounds} its distance to Retrain is still {number(ends)}: give more rounds to see it go to 0."
    much = f", at least {number(fell)} times smaller than at its largest" if fell < math.inf else ""
    return f"Its distance to Retrain fell to {_spelled(ends)} or less by then{much}."


def meaning(found: Found) -> dict[str, str]:
    """Say what a bound shows and does not, with this run's numbers."""
    run, start = found["runs"][-1], found["start_from_optimum"]
    loose = (
        f"{number(run['tight'][-1] / run['final'])} times the distance"
        if run["final"]
        else "above a distance of 0"
    )
    return {
        "Both methods have one goal.": "They minimise the same strongly convex loss, so both end at its only optimum and their "
        "distance goes to 0. The paper says that the difference stabilizes at the limit of its bound, here "
        f"{number(run['paper_limit'])} for β = {run['beta']:g}. That limit is an upper bound and nothing more.",
        "Staying under a loose bound proves little.": f"For β = {run['beta']:g} the bound with β is {loose} in the last round. "
        f"It tends to {number(run['tight_limit'])}, while the fresh model itself stood {number(start)} from the optimum.",
        "G is known only afterwards.": "Over all weights the gradients of a strongly convex loss have no bound. G is the largest "
        "one met on the two paths, so it depends on the start, the step size and β: nothing was promised before the run.",
        "It speaks of full gradients of a strongly convex loss, and of steps of at most 1 / L.": "A convolutional network trained "
        "for five local epochs has no μ and no single optimum: nothing here carries over to it.",
        "It says nothing about forgetting.": "Neither path ever saw the data of those who left, and that holds with the bound or "
        "without it. That two models are near each other is no evidence of what either knows.",
    }  # fmt: skip


def table(found: Found) -> Grid:
    """Set the numbers of every β in a row."""
    rows = [
        [
            f"{run['beta']:g}", _spelled(run["peak"]), str(run["peak_round"]) if run["peak"] else NOTHING,
            *(_spelled(run[name][-1]) for name in LINES),
            *(_spelled(run[f"{name}_limit"]) for name in ("tight", "paper")),
            *((number(near["ratio"]), str(near["round"])) if (near := run["tight_closest"]) else (NOTHING, NOTHING)),
            "yes" if run["under_tight"] and run["under_paper"] else "NO",
        ]
        for run in found["runs"]
    ]  # fmt: skip
    return Grid("In numbers", HEADERS, rows, note=NOTE)


def _spelled(value: float) -> str:
    return number(value) if value else "0"


def facts(found: Found) -> dict[str, str]:
    """List what the run was made of."""
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
        "test accuracy at the end": f"Retrain {percent(found['retrain']['test_accuracy'])}; FedUHB, for each β: "
        + ", ".join(percent(run["test_accuracy"]) for run in runs),
        "engine": _listed({key: found["engine"][key] for key in MACHINERY}),
        "versions": _listed(found["versions"]),
        "took": f"{number(found['seconds'])} s for {1 + len(runs)} runs of {how['rounds']} rounds",
    }


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def markdown(found: Found) -> str:
    """Write the outcome as Markdown, the figure beside it."""
    grid = table(found)
    listed = "\n".join(f"- {name}: {fact}" for name, fact in facts(found).items())
    said = "\n".join(f"- **{claim}** {why}" for claim, why in meaning(found).items())
    return (
        f"# {TITLE}\n\n{headline(found)}\n\n{FORMULA}\n\n![Distance and bounds, a panel for each β](theorem.png)\n\n"
        f"## {SHOWS}\n\n{said}\n\n## {grid.title}\n\n{grid.markdown()}\n{grid.note}\n\n## {HOW}\n\n{listed}\n"
    )


def page(found: Found) -> str:
    """Write the outcome as one self-contained HTML document."""
    from plotly.offline import get_plotlyjs

    style = files("feduhb.report").joinpath("page.css").read_text(encoding="utf-8")
    drawn = json.dumps(charts(found)).replace("<", "\\u003c")  # which cannot end the script it stands in
    frame = FRAME.replace("<title>Unlearning report</title>", f"<title>{TITLE}</title>")
    return frame.format(
        policy=POLICY, style=style, body=_body(found), charts=drawn, plotly=get_plotlyjs(), draw=DRAW
    )


def _body(found: Found) -> str:
    grid = table(found)
    figures = "".join(
        chart(name, _caption(run)) for name, run in zip(charts(found), found["runs"], strict=True)
    )
    said = "".join(
        f"<li><strong>{escape(c)}</strong> {escape(why)}</li>\n" for c, why in meaning(found).items()
    )
    listed = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts(found).items())
    sections = {
        "Distance between FedUHB and Retrain, round by round": f'<p>{escape(FORMULA)}</p>\n<div class="charts">{figures}</div>',
        SHOWS: f"<ul>{said}</ul>",
        grid.title: f'{grid.html()}\n<p class="small">{escape(grid.note)}</p>',
        HOW: f"<dl>{listed}</dl>",
    }  # fmt: skip
    lead = f'<header><h1>{TITLE}</h1>\n<p class="lead">{escape(headline(found))}</p></header>\n'
    return lead + "".join(section(title, body) for title, body in sections.items())


def _caption(run: Mapping[str, Any]) -> str:
    return f"β = {run['beta']:g}" + ("" if run["peak"] else f": {SAME}")


def charts(found: Found) -> dict[str, Chart]:
    """Describe a chart for every β, all on the same axes."""
    low, high = (math.log10(edge) for edge in _range(found))
    last = found["settings"]["rounds"]
    title = {"text": "round", "standoff": 8, "font": {"size": 13}}
    rounds = {"title": title, "range": [-0.02 * last, 1.03 * last], "tickformat": "d"}
    height = {"type": "log", "range": [low, high], "exponentformat": "power", "dtick": _decades(high - low)}
    look = layout(rounds, height | {"tickfont": {"size": 11}}) | {"showlegend": True}
    return {
        f"beta-{place}": {"data": [_trace(name, run[name]) for name in LINES if any(run[name])], "layout": look}
        for place, run in enumerate(found["runs"])
    }  # fmt: skip


def _trace(name: str, series: Sequence[float]) -> Chart:
    label, stroke = LINES[name]
    colour = TEXT if name == "paper" else stroke.colour
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": list(range(len(series))),
        "y": [value or None for value in series],
        "line": {"color": colour, "dash": DASHES[stroke.dash], "width": 2.5 if name == "distance" else 1.8},
        "hovertemplate": "%{y:.3g}",
    }


def draw(found: Found) -> Figure:
    """Draw a panel for every β: the distance under its two bounds, on axes they share."""
    from matplotlib.lines import Line2D

    runs = found["runs"]
    across, down = min(ACROSS, len(runs)), math.ceil(len(runs) / ACROSS)
    width = max(3.1, 5.6 / across)
    figure, every = blank(across, down, width=width, height=2.9)
    for place, (axes, run) in enumerate(zip(every, runs, strict=False)):
        _panel(axes, run, found)
        if place % across:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel("‖w of FedUHB - w of Retrain‖", color=SOFT, size=SMALL)
    for axes in every[len(runs) :]:
        axes.set_visible(False)
    write_headings(figure, every[: len(runs)], [_heading(run) for run in runs], width=width, rows=down)
    lines = [Line2D([], [], color=s.colour, linestyle=s.dash, linewidth=1.8) for _, s in LINES.values()]
    figure.legend(
        lines, [label for label, _ in LINES.values()], loc="outside lower center", ncols=len(LINES),
        frameon=False, fontsize=SIZE, labelcolor=INK,
    )  # fmt: skip
    return figure


def _heading(run: Mapping[str, Any]) -> Heading:
    said = f"{number(run['peak'])} at most, {_spelled(run['final'])} at the end" if run["peak"] else SAME
    return Heading(f"β = {run['beta']:g}", [(said, BLUE)])


def _panel(axes: Axes, run: Mapping[str, Any], found: Found) -> None:
    from matplotlib.ticker import LogLocator

    low, high = _range(found)
    rounds = found["settings"]["rounds"]
    axes.set_yscale("log")
    for name, (_, stroke) in LINES.items():
        heights = [value or math.nan for value in run[name]]  # nothing is 0 on a logarithmic axis
        width = 2.0 if name == "distance" else 1.5
        axes.plot(heights, color=stroke.colour, linestyle=stroke.dash, linewidth=width)
    quiet(axes)
    axes.yaxis.set_major_locator(LogLocator(10.0 ** _decades(math.log10(high / low))))
    axes.minorticks_off()
    axes.set_ylim(low, high)
    axes.set_xlim(-0.02 * rounds, 1.02 * rounds)
    axes.set_xlabel("round", color=SOFT, size=SMALL)


def _range(found: Found) -> tuple[float, float]:
    """Give the decades that hold every line above 0, twelve of them at most."""
    heights = [value for run in found["runs"] for name in LINES for value in run[name] if value > 0]
    high = math.ceil(math.log10(max(heights)) + 0.1)
    low = max(math.floor(math.log10(min(heights))), high - 12)
    return 10.0**low, 10.0**high


def _decades(count: float) -> int:
    """Choose so many decades between ticks that there are eight at most."""
    return math.ceil(count / 8)
