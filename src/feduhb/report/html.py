"""One HTML page that needs nothing else: no server, no network, no fonts from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

from feduhb.report.audit_page import audits
from feduhb.report.charts import Chart, charts
from feduhb.report.markup import Group, paragraphs, section
from feduhb.report.runs import RunView
from feduhb.report.stop_map import about, about_marks, about_windows, mapped, stop_map
from feduhb.report.sweeps import about as about_sweep
from feduhb.report.sweeps import sweep
from feduhb.report.tables import grid
from feduhb.report.words import (
    EXACT,
    NOT_EXACT,
    approximate,
    backdoor_note,
    ended,
    headline,
    notes,
    number,
    watched,
)

# Nothing may be loaded from anywhere, whatever a run's strings hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
FRAME = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>Unlearning report</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}</main>
<script type="application/json" id="charts">{charts}</script>
<script id="plotly">{plotly}</script>
<script>
{draw}</script>
</body>
</html>
"""
# What a closed <details> hides is drawn once it opens: a hidden chart has no width.
DRAW = """\
const charts = JSON.parse(document.getElementById("charts").textContent);
const how = {displayModeBar: false, displaylogo: false, responsive: true};
function draw() {
  for (const [name, chart] of Object.entries(charts)) {
    const place = document.getElementById("chart-" + name);
    if (place.closest("details:not([open])") || place.classList.contains("js-plotly-plot")) continue;
    Plotly.newPlot(place, chart.data, chart.layout, how);
  }
}
draw();
document.addEventListener("toggle", draw, true);
"""


def page(views: Sequence[RunView]) -> str:
    """Write the report on these runs as one self-contained HTML document."""
    from plotly.offline import get_plotlyjs

    drawn = charts(views)
    parts = [
        _lead(views),
        audits(views, drawn),
        _costs(views),
        _figures(views, drawn),
        _meaning(views),
        _runs(views),
    ]
    body = "".join(parts)
    style = files("feduhb.report").joinpath("page.css").read_text(encoding="utf-8")
    return FRAME.format(
        policy=POLICY, style=style, body=body, charts=_inline_json(drawn), plotly=get_plotlyjs(), draw=DRAW
    )


def _lead(views: Sequence[RunView]) -> str:
    warned = "".join(f"<li>{escape(note)}</li>" for note in notes(views))
    warning = f'<ul class="notes">{warned}</ul>\n' if warned else ""
    lead = f'<p class="lead">{escape(headline(views))}</p>\n'
    return f"<header><h1>Unlearning report</h1>\n{lead}{warning}</header>\n"


def _costs(views: Sequence[RunView]) -> str:
    shown = grid(views)
    return section(shown.title, f'{shown.html()}\n<p class="small">{escape(shown.note)}</p>')


def _figures(views: Sequence[RunView], drawn: Mapping[str, Chart]) -> str:
    """Give each group of charts its section; groups without a chart are left out."""
    attack = (
        f"{backdoor_note(views)} One attack shows no more than that attack: a low success is not "
        "evidence that the data was forgotten."
    )
    groups = [
        Group("Round by round", [], {"accuracy": "Test accuracy", "loss": "Test loss"}),
        Group(
            "Movement and the stop rule",
            [f"{ended(view)}." for view in watched(views)],
            {"movement": "Movement of the weights"},
        ),
        *_maps(views),
        *_momentum(views),
        Group("Backdoor", [attack], {"backdoor": "Stamped test images taken for the target"}),
    ]
    return "".join(group.html(drawn) for group in groups)


def _maps(views: Sequence[RunView]) -> Iterator[Group]:
    """The maps of all runs, and lambda of the one in front."""
    runs = mapped(views)
    own = " The run's own rule is framed." if any(stop_map(view).own for view in runs) else ""
    read = (
        "Each cell: the round after which that rule would have ended the run, and the test accuracy there. "
        f"Nothing was trained again: the rules were replayed on the recorded movements.{own}"
    )
    told = [sentence for view in runs for sentence in about(view)]
    maps = {f"stop-map-{place}": f"The stop rule's map: {view.label}" for place, view in enumerate(runs)}
    yield Group("The stop rule's map", [read, *told], maps)
    label = runs[0].label if runs else ""
    said = [*about_windows(runs[0]), about_marks(runs[0])] if runs else []
    names = {"lambda-rounds": f"Rounds by λ: {label}", "lambda-accuracy": "Test accuracy there"}
    yield Group("What λ does", said, names)


def _momentum(views: Sequence[RunView]) -> Iterator[Group]:
    found = sweep(views)
    if found is None:
        return
    last = "Final test accuracy by β" if found.goal is None else "Rounds to reach Retrain's final accuracy"
    names = {"beta-accuracy": "Test accuracy by β", "beta-loss": "Test loss by β", "beta-reach": last}
    yield Group("What β does", about_sweep(found), names)


def _meaning(views: Sequence[RunView]) -> str:
    said = "".join(paragraphs(text) for text in (EXACT, approximate(views), NOT_EXACT) if text)
    return section("What “exact” means here, and what it does not", said)


def _runs(views: Sequence[RunView]) -> str:
    names = (
        '<p class="small">The configurations name who was forgotten: keep this page as carefully as that.</p>'
    )
    return section("The runs", "".join(_run(view) for view in views) + names)


def _run(view: RunView) -> str:
    result = view.result
    facts = {
        "folder": str(view.path),
        "ended": result["stopped"],
        "finished": result["finished"],
        "clients that took part": f"{len(result['clients'])}",
        "parameters of the model": f"{result['parameters']:,}",
        "method": _spelled({"name": result["method"], **result["settings"]}),
        "engine": _spelled(result["engine"]),
        "versions": _spelled(result["versions"]),
        "SHA-256 of the weights": result["weights_sha256"],
    }
    kept = {"history replayed": result["history_bytes_read"], "history kept": result["history_bytes_kept"]}
    facts |= {name: f"{number(size / 1e6)} MB" for name, size in kept.items() if size}
    listed = "".join(f"<dt>{key}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
    config = f"<h3>config.toml</h3><pre>{escape(view.config_text)}</pre>"
    return f"<details><summary>{escape(view.label)}</summary>\n<dl>{listed}</dl>\n{config}</details>\n"


def _spelled(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _inline_json(value: object) -> str:
    """Give JSON that cannot end the script element it stands in."""
    return json.dumps(value).replace("<", "\\u003c")
