"""One HTML page that needs nothing else: no server, no network, no fonts from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from feduhb.report.charts import Chart, charts
from feduhb.report.runs import RunView
from feduhb.report.tables import columns, table
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
DRAW = """\
const charts = JSON.parse(document.getElementById("charts").textContent);
const how = {displayModeBar: false, displaylogo: false, responsive: true};
for (const [name, chart] of Object.entries(charts)) {
  Plotly.newPlot("chart-" + name, chart.data, chart.layout, how);
}
"""


def page(views: Sequence[RunView]) -> str:
    """Write the report on these runs as one self-contained HTML document."""
    from plotly.offline import get_plotlyjs

    drawn = charts(views)
    body = "".join([_lead(views), _costs(views), _figures(views, drawn), _meaning(views), _runs(views)])
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
    headers, rows = table(views)
    chosen = columns(views)
    kinds = [' class="text"' if column.text else "" for column in chosen]
    head = _cells("th", kinds, headers)
    body = "".join(f"<tr>{_cells('td', kinds, row)}</tr>\n" for row in rows)
    inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"
    how = " ".join(column.note for column in chosen if column.note)
    drawn = f'<div class="wide" tabindex="0"><table>\n{inner}\n</table></div>'
    return _section("What it took, and what came out", f'{drawn}\n<p class="small">{escape(how)}</p>')


def _cells(tag: str, kinds: Sequence[str], texts: Sequence[str]) -> str:
    return "".join(f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, texts, strict=True))


def _figures(views: Sequence[RunView], drawn: Mapping[str, Chart]) -> str:
    """Give each group of charts its section; groups without a chart are left out."""
    reasons = "".join(f"<li>{escape(ended(view))}.</li>" for view in watched(views))
    attack = (
        f"<p>{escape(backdoor_note(views))} One attack shows no more than that attack: a low success is not "
        "evidence that the data was forgotten.</p>"
    )
    groups = [
        ("Round by round", "", {"accuracy": "Test accuracy", "loss": "Test loss"}),
        ("Movement and the stop rule", f"<ul>{reasons}</ul>", {"movement": "Movement of the weights"}),
        ("Backdoor", attack, {"backdoor": "Stamped test images taken for the target"}),
    ]
    kept = [
        (title, text, [_chart(n, c) for n, c in names.items() if n in drawn]) for title, text, names in groups
    ]
    return "".join(_section(t, f'{text}\n<div class="charts">{"".join(c)}</div>') for t, text, c in kept if c)


def _chart(name: str, caption: str) -> str:
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f'<div id="chart-{name}" role="img" aria-label="{caption}"></div>'
        "<noscript>The chart needs JavaScript; the table above holds its numbers.</noscript></figure>"
    )


def _meaning(views: Sequence[RunView]) -> str:
    said = "".join(_paragraphs(text) for text in (EXACT, approximate(views), NOT_EXACT) if text)
    return _section("What “exact” means here, and what it does not", said)


def _runs(views: Sequence[RunView]) -> str:
    names = (
        '<p class="small">The configurations name who was forgotten: keep this page as carefully as that.</p>'
    )
    return _section("The runs", "".join(_run(view) for view in views) + names)


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


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>\n{body}\n</section>\n"


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(paragraph)}</p>\n" for paragraph in text.split("\n\n"))


def _inline_json(value: object) -> str:
    """Give JSON that cannot end the script element it stands in."""
    return json.dumps(value).replace("<", "\\u003c")
