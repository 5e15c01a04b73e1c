"""The score on the clients' held-out data, and where rules that watch it would have ended each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feduhb.report import drawing as dr
from feduhb.report.charts import Chart
from feduhb.report.curves import Line, chart_lines
from feduhb.report.runs import RunView, printable
from feduhb.runs.scores import name_score
from feduhb.stopping import DistanceStop, Patience, StopRule, replay

RULES: dict[str, StopRule] = {
    "the held-out score": Patience("held_out_score"),
    "the held-out loss": Patience("held_out_loss"),
    "the distance": DistanceStop(),
}


def chart_held_out(views: Sequence[RunView], looks: dr.Looks) -> Chart | None:
    """Describe the held-out score round by round, for the runs that recorded the one of the first such run."""
    score = next((view.held_out_score for view in views if view.held_out_score), None)
    shown = [view for view in views if score is not None and view.held_out_score == score]
    if score is None or not shown:
        return None
    lines = [
        Line(view.label, list(view.series.score), looks[view.label], not view.unlearned, view.fired)
        for view in shown
    ]
    notes = [("of the model that the clients were sent in a round", dr.SOFT)]
    notes += [(text, looks[view.label].colour) for view in shown for text in [describe_replays(view)]]
    return chart_lines(f"Held-out {printable(name_score(score))} of the clients", lines, score, notes)


def describe_replays(view: RunView) -> str:
    """Return after which round each rule, with its default settings, would have ended a run."""
    return f"{view.label} would have stopped by {'; by '.join(_list_replays(view))}"


def _list_replays(view: RunView) -> Iterator[str]:
    series = view.series
    recorded = dict(zip(RULES, (series.score, series.loss, series.distance), strict=True))
    for name, rule in RULES.items():
        if any(value is not None for value in recorded[name]):
            ended = replay(rule, series)
            yield f"{name}: " + (f"round {ended}" if ended else f"not within {len(view.rounds)} rounds")
