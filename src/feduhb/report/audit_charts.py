"""What the audits found, for the page: the attacks with their controls, and those who stayed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from feduhb.audit.result import MODELS, ORIGINAL, RETRAIN, UNLEARNED, Attack, Interval, Roc
from feduhb.report.audit_words import NAMED_AT_MOST, NAMES, Change, audited, changes, points
from feduhb.report.chart_parts import STILL, TEXT, Chart, layout
from feduhb.report.runs import RunView
from feduhb.report.style import BLUE, GREY, VERMILLION, Looks
from feduhb.report.words import percent

COLOURS = {ORIGINAL: GREY, RETRAIN: VERMILLION}
MARKS = {ORIGINAL: "square", RETRAIN: "diamond", UNLEARNED: "circle"}
BAND = "rgba(0,158,115,0.14)"  # where a test is passed, on light and on dark pages
ROW = 0.25  # between models, where attacks are 1 apart
WORSE, BETTER = VERMILLION, BLUE


def audit_charts(views: Sequence[RunView], looks: Looks) -> dict[str, Chart]:
    """Describe both charts of every audited run; one that an audit cannot fill has no data."""
    found: dict[str, Chart] = {}
    for place, (view, audit) in enumerate(audited(views)):
        found[f"auc-{place}"] = _auc(audit.membership, looks[view.label].colour)
        found[f"clients-{place}"] = _clients(changes(audit))
    return found


def _auc(attacks: Sequence[Attack], colour: str) -> Chart:
    """Describe AUC by attack and model, with its 99 % interval (thin), the 90 % one (thick) and the band."""
    data: list[Chart] = []
    for offset, model in zip((-ROW, 0.0, ROW), MODELS, strict=True):
        rocs = [attack.models[model] for attack in attacks]
        heights = [place + offset for place in range(len(attacks))]
        paint = COLOURS.get(model, colour)
        thick = [roc.equivalence for roc in rocs]
        data.append(_dots(rocs, heights, paint, thick, 5) | {"showlegend": False, "hoverinfo": "skip"})
        shown = {"name": NAMES[model], "marker": {"symbol": MARKS[model], "size": 11, "color": paint}}
        data.append(_dots(rocs, heights, paint, [roc.interval for roc in rocs], 1.5) | shown)
    names = [f"{escape(attack.attack)},<br>{escape(attack.on)}" for attack in attacks]
    rows = {"tickvals": list(range(len(attacks))), "ticktext": names, "range": [len(attacks) - 0.45, -0.55]}
    across = {"title": {"text": "AUC (0.5: a coin)", "standoff": 8, "font": {"size": 13}}}
    look = layout(across | STILL, rows | STILL | {"showgrid": False, "zeroline": False})
    shapes = [_band(place, attack.margin) for place, attack in enumerate(attacks)]
    half = {
        "type": "line",
        "x0": 0.5,
        "x1": 0.5,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": TEXT, "width": 1.2},
    }
    sized = {"height": 130 + 90 * len(attacks), "hovermode": "closest", "shapes": [*shapes, half]}
    return {"data": data if attacks else [], "layout": look | sized}


def _dots(
    rocs: Sequence[Roc], heights: Sequence[float], colour: str, bounds: Sequence[Interval], width: float
) -> Chart:
    over = [bound.high - roc.auc for roc, bound in zip(rocs, bounds, strict=True)]
    under = [roc.auc - bound.low for roc, bound in zip(rocs, bounds, strict=True)]
    bars = {"type": "data", "symmetric": False, "array": over, "arrayminus": under}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [roc.auc for roc in rocs],
        "y": list(heights),
        "error_x": bars | {"color": colour, "thickness": width, "width": 0},
        "marker": {"size": 1, "color": colour},
        "text": [f"{roc.auc:.3f} [{roc.interval.low:.3f}, {roc.interval.high:.3f}]" for roc in rocs],
        "hovertemplate": "AUC %{text}",
    }


def _band(place: int, margin: float) -> Chart:
    edges = {"x0": 0.5 - margin, "x1": 0.5 + margin, "y0": place - 0.44, "y1": place + 0.44}
    return {"type": "rect", "layer": "below", **edges, "fillcolor": BAND, "line": {"width": 0}}


def _clients(changed: Sequence[Change]) -> Chart:
    """Describe each remaining client's accuracy before and after, the losers in front."""
    size = max(3.0, min(10.0, 320 / max(1, len(changed))))
    places = list(range(len(changed)))
    paint = [GREY if not row.gain else WORSE if row.gain < 0 else BETTER for row in changed]
    said = [_told(row) for row in changed]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": places,
        "text": said,
        "hovertemplate": "%{text}<extra></extra>",
    }
    before = {
        **dots,
        "name": "before, or unchanged",
        "y": [row.before for row in changed],
        "marker": {"size": size, "color": GREY},
    }
    after = [
        {
            **dots,
            "name": name,
            "y": [row.after if (row.gain < 0) == lower and row.gain else None for row in changed],
            "marker": {"size": size, "color": colour},
        }
        for name, lower, colour in (("after: lower", True, WORSE), ("after: higher", False, BETTER))
    ]
    stems = [_stems(changed, colour, paint, size) for colour in (WORSE, BETTER)]
    look = layout(_names(changed), {"tickformat": ".0%"} | STILL) | {"height": 340, "hovermode": "closest"}
    look["legend"] |= {"itemsizing": "constant"}
    return {"data": [*stems, before, *after] if changed else [], "layout": look}


def _stems(changed: Sequence[Change], colour: str, paint: Sequence[str], size: float) -> Chart:
    """Describe all stems of one colour as one broken line."""
    own = [(place, row) for place, row in enumerate(changed) if paint[place] == colour]
    x = [each for place, _ in own for each in (place, place, None)]
    y = [each for _, row in own for each in (row.before, row.after, None)]
    line = {"color": colour, "width": max(1.0, size / 4)}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": line,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _told(row: Change) -> str:
    known = "" if row.retrain is None else f"; Retrain {percent(row.retrain)}"
    return f"{escape(row.client)}: {percent(row.before)} → {percent(row.after)} ({points(row.gain)} points{known})"


def _names(changed: Sequence[Change]) -> Chart:
    """Name the clients where they fit, else count them."""
    axis = {"range": [-0.8, len(changed) - 0.2], "showgrid": False, "zeroline": False} | STILL
    if len(changed) <= NAMED_AT_MOST:
        return axis | {
            "tickvals": list(range(len(changed))),
            "ticktext": [escape(row.client[:14]) for row in changed],
        }
    said = f"{len(changed)} clients, losses to gains"
    return axis | {"showticklabels": False, "title": {"text": said, "standoff": 8, "font": {"size": 13}}}
