"""The look that figures and page share: colours safe for colour-blind readers, one for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from feduhb.report.runs import ORIGINAL, RETRAIN, RunView

# Blue and vermillion are Okabe and Ito's (2008). Brown and violet were searched for: with grey, any two stay apart for the
# colour-blind, and all can be read on white and on the page's dark ground. The others come after Tol 2021.
BLUE, VERMILLION, BROWN, VIOLET = "#0072B2", "#D55E00", "#8C5433", "#9933EE"
GREY = "#8C8C8C"
OWN = {"feduhb": BLUE, RETRAIN: VERMILLION, "federaser": BROWN, "fedrecover": VIOLET}
RAMP = (
    "#B87400",
    "#B0457F",
    "#2A6FC0",
)  # low to high; all three can be read on white and on the page's dark ground
HEAT = ("#E4EEF8", "#8DBBE0", "#2F7DBB", "#0B4377")  # light: few rounds; dark: many
BAND = "#E3EFE6"  # where a test is passed
DARK_FROM = 0.55  # of HEAT, from where white words are read better than dark ones
OTHERS = ("#009E73", "#C2679A", "#B58300", "#7A6FD6", "#5E7F8C")

Dash = Literal["solid", "dashed", "dashdot", "dotted"]
DASHES: tuple[Dash, ...] = ("solid", "dashdot", "dotted")


class Stroke(NamedTuple):
    """How a run is drawn everywhere."""

    colour: str
    dash: Dash
    wide: bool = False  # and under the others, so that one that lies on it is seen


Looks = dict[str, Stroke]  # by a run's label


def strokes(views: Sequence[RunView]) -> Looks:
    """Give each run its stroke: every method its own colour, original grey, others as they come."""
    chosen: Looks = {}
    for view in views:
        supply = _supply(view.role)
        chosen[view.label] = next((stroke for stroke in supply if stroke not in chosen.values()), supply[-1])
    return chosen


def _supply(role: str) -> list[Stroke]:
    if role == ORIGINAL:
        return [Stroke(GREY, dash) for dash in ("dashed", "dotted", "dashdot")]
    own = [OWN[role]] if role in OWN else []
    return [Stroke(colour, dash) for dash in DASHES for colour in (*own, *OTHERS)]


def graded(count: int) -> list[str]:
    """Give colours in order, from amber for the least to blue for the most."""
    places = [len(RAMP) - 1 if count < 2 else i * (len(RAMP) - 1) / (count - 1) for i in range(count)]
    return [
        _between(RAMP[int(place)], RAMP[min(int(place) + 1, len(RAMP) - 1)], place % 1) for place in places
    ]


def _between(one: str, other: str, share: float) -> str:
    parts = [(int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in parts)
