"""Where each stop rule would have ended a recorded run, replayed from its movements without training again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from feduhb.report import drawing as dr
from feduhb.report import runs
from feduhb.report.charts import EMPTY, Chart, Series
from feduhb.report.runs import RunView, printable
from feduhb.report.words import join_names, name_part, title
from feduhb.runs.scores import LOSS, format_score, is_share, name_score
from feduhb.stopping import DynamicStop, dynamic_stop, replay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # λ
WINDOWS: tuple[int | None, ...] = (None, 3, 5, 8, 10, 15, 20)  # rounds; None: all so far
BESIDE = 0.05  # of λ: half of what lies between two
LOOKED_BACK = (5, 10, 20)  # the windows that stand beside "all so far" where λ alone is drawn
PLAIN = DynamicStop()
HEAT = ("#E4EEF8", "#8DBBE0", "#2F7DBB", "#0B4377")  # light: few rounds; dark: many
DARK_FROM = 0.55  # of HEAT, from where light text is read better than dark text
ON_LIGHT, ON_DARK = "#1D2127", "#FEFEFE"  # text on HEAT, in either colour scheme
MIDDLE = 0.7  # λ: text stands to the right of a mark up to there


@dataclass(frozen=True, slots=True)
class Ending:
    """Where one rule would have ended the run; ``round`` is None if it would not have."""

    scale: float
    window: int | None
    round: int | None  # counted from 1
    value: float | None  # of the run's main score after that round


@dataclass(frozen=True, slots=True)
class StopMap:
    """Where a stop rule with each λ and window would have ended one run."""

    label: str  # of the run
    endings: dict[tuple[float, int | None], Ending]
    rounds: int  # that were run
    cut: bool  # whether the run's own rule ended it
    score: str  # the run's main score
    last: float | None  # that score after the last round
    own: tuple[float, int | None] | None  # λ and window of the run's own rule, where the map has them

    def line(self, window: int | None) -> list[Ending]:
        """Return one window's endings, in rising order of λ."""
        return [self.endings[scale, window] for scale in SCALES]

    @property
    def fires(self) -> bool:
        """Whether any rule would have ended the run."""
        return any(ending.round is not None for ending in self.endings.values())

    @property
    def silent(self) -> list[float]:
        """Each λ at which "all so far" did not fire, in a run that its own rule did not end."""
        return [] if self.cut else self._unfired

    @property
    def unknown(self) -> list[float]:
        """Each λ whose effect is unknown: the run's own rule ended it before a rule with that λ could fire."""
        return self._unfired if self.cut else []

    @property
    def _unfired(self) -> list[float]:
        return [ending.scale for ending in self.line(None) if ending.round is None]

    def format(self, ending: Ending, between: str = "\n") -> str:
        """Format an ending: its round and the score there, or that the rule does not fire."""
        if ending.round is None:
            return f"not{between}in {self.rounds}"
        scored = "" if ending.value is None else f"{between}{format_score(self.score, ending.value)}"
        return f"{ending.round}{scored}"

    def describe(self) -> list[str]:
        """Return how many rules would have ended the run, and what the map cannot know."""
        fires, most = sum(ending.round is not None for ending in self.endings.values()), len(self.endings)
        counted = (
            f"{fires} of {most} rules"
            if self.fires
            else f"None of {most} rules (λ {SCALES[0]:g} to {SCALES[-1]:g})"
        )
        said = [f"{counted} would have ended {self.label} in {self.rounds} rounds."]
        if self.cut:
            said.append(
                f"Its own rule ended it: the map only knows the {self.rounds} rounds run; "
                "to see further, unlearn with --stop never."
            )
        return said

    def describe_windows(self) -> list[str]:
        """Return what the thin lines are, and which windows have none."""
        idle = [str(w) for w in LOOKED_BACK if all(ending.round is None for ending in self.line(w))]
        thin = "" if len(idle) == len(LOOKED_BACK) else " (thin: on a window of them)"
        said = [f"Replayed from one run; the rule looks back on all rounds so far{thin}."]
        if idle:
            said.append(f"With a window of {join_names(idle, 'or')} rounds it fires at no λ shown.")
        if self.unknown:
            low, high = self.unknown[0], self.unknown[-1]
            which = f"from {low:g} to {high:g}" if high > low else f"{low:g}"
            said.append(
                f"λ {which}: not known, the run's own rule ended it after {self.rounds} rounds; "
                "to see further, unlearn with --stop never."
            )
        return said


def list_mapped(views: Sequence[RunView]) -> list[RunView]:
    """Return FedUHB's runs and those under a rule, if long enough for one, most momentum first."""
    fit = [v for v in views if (v.role == "feduhb" or v.judged) and len(v.rounds) >= PLAIN.min_rounds]
    return sorted(fit, key=lambda view: -_get_momentum(view))


def replay_rules(view: RunView) -> StopMap:
    """Replay every rule of the map on a run's movements."""
    series = {score: view.scored(score) for score in (*view.directions, LOSS)}
    known = (score for score, values in series.items() if any(value is not None for value in values))
    score = next(known, LOSS)
    values = series[score]
    endings = {place: _replay_rule(view, values, *place) for place in product(SCALES, WINDOWS)}
    cut = view.fired is not None
    return StopMap(view.label, endings, len(view.rounds), cut, score, values[-1], _find_own(view))


def _replay_rule(view: RunView, values: runs.Series, scale: float, window: int | None) -> Ending:
    ended = replay(dynamic_stop(scale, window=window, momentum=_get_momentum(view)), view.moved)
    return Ending(scale, window, ended, None if ended is None else values[ended - 1])


def _get_momentum(view: RunView) -> float:
    """Return the method's β, or the rule's own if the method has none. Without a floor ε, β cancels out."""
    momentum = view.result["settings"].get("momentum")
    return momentum if isinstance(momentum, int | float) and 0 <= momentum < 1 else PLAIN.momentum


def _find_own(view: RunView) -> tuple[float, int | None] | None:
    """Return the place of the run's own rule on the map, if it is a plain rule."""
    rule = view.config.get("unlearn", {}).get("stop")
    if not isinstance(rule, dict) or "watch" in rule or rule.get("floor", 0) or rule.get("as_printed", False):
        return None
    place = rule.get("scale", PLAIN.scale), rule.get("window")
    known = rule.get("min_rounds", PLAIN.min_rounds) == PLAIN.min_rounds
    return place if known and place[0] in SCALES and place[1] in WINDOWS else None


def format_window(window: int | None) -> str:
    """Name a window."""
    return "all so far" if window is None else str(window)


def chart_map(found: StopMap) -> Chart | None:
    """Describe where every rule would have ended the run, and the score there; None if no rule fires."""
    if not found.fires:
        return None

    def draw(axes: Axes) -> None:
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.patches import Rectangle

        heat = LinearSegmentedColormap.from_list("rounds", HEAT)
        for ending in found.endings.values():
            x, y = WINDOWS.index(ending.window), SCALES.index(ending.scale)
            share = None if ending.round is None else ending.round / found.rounds
            face = EMPTY if share is None else heat(share)
            look: dict[str, Any] = {"facecolor": face, "edgecolor": dr.GROUND, "linewidth": 0.8, "zorder": 1}
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **look))
            if (ending.scale, ending.window) == found.own:
                frame = {"fill": False, "edgecolor": dr.VERMILLION, "linewidth": 2.2, "zorder": 3}
                axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, **frame))
            colour = dr.SOFT if share is None else ON_DARK if share > DARK_FROM else ON_LIGHT
            look = {"ha": "center", "va": "center", "size": dr.SMALL, "linespacing": 1.05, "zorder": 4}
            axes.text(x, y, found.format(ending), color=colour, **look)
        dr.style_axes(axes)
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_xlim(-0.5, len(WINDOWS) - 0.5)
        axes.set_ylim(-0.5, len(SCALES) - 0.5)
        axes.set_xticks(range(len(WINDOWS)), ["all" if window is None else str(window) for window in WINDOWS])
        axes.set_yticks(range(len(SCALES)), [f"{scale:g}" for scale in SCALES])
        axes.set_xlabel("window: rounds the rule looks back on", color=dr.SOFT, size=dr.SMALL)
        axes.set_ylabel("λ: larger stops earlier", color=dr.SOFT, size=dr.SMALL)

    cells = list(found.endings.values())
    texts = [f"λ {e.scale:g}, window {format_window(e.window)}: {found.format(e, ' ')}" for e in cells]
    x, y = [WINDOWS.index(each.window) for each in cells], [float(SCALES.index(each.scale)) for each in cells]
    framed = "; framed: the run's own rule" if found.own else ""
    there = "" if found.last is None else f", and {printable(name_score(found.score))} there"
    key = f"each cell: the round after which that rule would have ended the run{there}{framed}"
    notes = [(text, dr.SOFT) for text in [key, *found.describe()]]
    series = [Series("", dr.SOFT, x, y, texts)]
    return Chart(f"The stop rule's map: {found.label}", draw, series, notes, height=3.9)


def chart_scales(found: StopMap) -> dict[str, Chart]:
    """Describe what λ does: the round at which the rule ends the run, and the score there."""
    if len(found.unknown) == len(SCALES) or not found.fires:
        return {}
    first, *rest = found.describe_windows()
    notes = [f"A larger λ stops earlier. {first}", *rest]
    charts = {"lambda-rounds": _chart_lines(f"Rounds by λ: {found.label}", found, "round", notes)}
    if found.last is not None:
        note = f"open: did not fire; {format_score(found.score, found.last)} after the last round"
        notes = [note] if found.silent else []
        charts[f"lambda-{name_part(found.score)}"] = _chart_lines(
            f"{title(found.score)} there", found, "value", notes
        )
    return charts


def _chart_lines(head: str, found: StopMap, what: str, notes: Sequence[str]) -> Chart:
    """Describe "all so far" in bold, open where it did not fire, and the other windows thin where they fire."""
    top, fired = found.rounds * 1.1, [each.scale for each in found.line(None) if each.round is not None]
    unfired = top if what == "round" else found.last
    drawn: list[Series] = []
    for window, colour in zip((*LOOKED_BACK, None), (*dr.OTHERS[: len(LOOKED_BACK)], dr.BLUE), strict=True):
        shown = [
            e for e in found.line(window) if e.round is not None or (not window and e.scale in found.silent)
        ]
        heights = [unfired if each.round is None else getattr(each, what) for each in shown]
        texts = [
            found.format(each, ", ") if each.round else f"did not fire in {found.rounds}" for each in shown
        ]
        if shown:
            name = f"window {window}" if window else "all so far"
            known = [math.nan if height is None else float(height) for height in heights]
            drawn.append(Series(name, colour, [each.scale for each in shown], known, texts))

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import FixedLocator

        for each in drawn[:-1]:
            axes.plot(each.x, each.y, color=each.colour, linewidth=1, marker=".", markersize=4)
        bold = dict(zip(drawn[-1].x, drawn[-1].y, strict=True))
        axes.plot(fired, [bold[scale] for scale in fired], color=dr.BLUE, linewidth=1.8, zorder=3)
        for scale, height in bold.items():
            look = {
                "markerfacecolor": dr.BLUE if scale in fired else dr.GROUND,
                "markersize": 6.5,
                "zorder": 4,
            }
            axes.plot([scale], [height], color=dr.BLUE, marker="o", **look)
        dr.style_axes(axes)
        axes.xaxis.set_major_locator(FixedLocator(SCALES))
        axes.set_xlim(SCALES[0] - BESIDE, SCALES[-1] + BESIDE)
        axes.set_xlabel("λ", color=dr.SOFT, size=dr.SMALL)
        if found.unknown:
            axes.axvspan(SCALES[0] - BESIDE, found.unknown[-1] + BESIDE, color=dr.GRID, alpha=0.6, zorder=1)
            at, within = ((SCALES[0] + found.unknown[-1]) / 2, 0.5), ("data", "axes fraction")
            dr.write_text(axes, "not known", at, (0, 0), dr.SOFT, within=within, ha="center")
        if what == "round":
            axes.set_ylim(0, top * 1.08)
            axes.set_ylabel("rounds run", color=dr.SOFT, size=dr.SMALL)
        elif is_share(found.score):
            dr.show_percent(axes)
        if what == "round" and found.silent:
            last = found.silent[-1]
            side, offset, height = ("left", 8, top) if last < MIDDLE else ("right", 0, top * 0.92)
            said = f"did not fire in {found.rounds}"
            dr.write_text(axes, said, (last, height), (offset, 0), dr.SOFT, ha=side)
        if len(drawn) > 1:
            ends = [(each.y[-1], each.name, each.colour) for each in drawn]
            dr.label_ends(axes, [end for end in ends if not math.isnan(end[0])])

    return Chart(head, draw, drawn, [(text, dr.SOFT) for text in notes], head="λ {:g}")
