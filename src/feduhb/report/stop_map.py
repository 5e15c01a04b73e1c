"""Where each stop rule would have ended a recorded run: replayed from its movements, nothing is trained again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from feduhb.report.runs import RunView
from feduhb.report.words import listed
from feduhb.stopping import DynamicStop, dynamic_stop, replay

SCALES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # λ
WINDOWS: tuple[int | None, ...] = (None, 3, 5, 8, 10, 15, 20)  # rounds; None: all so far
BESIDE = 0.05  # of λ: half of what lies between two
LOOKED_BACK = (5, 10, 20)  # the windows that stand beside "all so far" where λ alone is drawn
PLAIN = DynamicStop()


@dataclass(frozen=True, slots=True)
class Ending:
    """Where one rule would have ended the run; ``round`` is None where it would not have."""

    scale: float
    window: int | None
    round: int | None  # counted from 1
    accuracy: float | None  # on test data, after that round


@dataclass(frozen=True, slots=True)
class StopMap:
    """Every λ and window on one run."""

    endings: dict[tuple[float, int | None], Ending]
    rounds: int  # that were run
    cut: bool  # whether the run's own rule ended it
    last: float | None  # test accuracy after the last round
    own: tuple[float, int | None] | None  # λ and window of the run's own rule, where the map has them

    def line(self, window: int | None) -> list[Ending]:
        """Give one window's endings, λ rising."""
        return [self.endings[scale, window] for scale in SCALES]

    @property
    def silent(self) -> list[float]:
        """λ at which "all so far" did not fire, in a run that its own rule did not end."""
        return [] if self.cut else self._unheard

    @property
    def unknown(self) -> list[float]:
        """λ of which nothing is known: the run's own rule ended it before they could speak."""
        return self._unheard if self.cut else []

    @property
    def _unheard(self) -> list[float]:
        return [ending.scale for ending in self.line(None) if ending.round is None]

    def told(self, ending: Ending, between: str = "\n") -> str:
        """Spell an ending: its round and the accuracy there, or that there is none."""
        if ending.round is None:
            return f"not{between}in {self.rounds}"
        return (
            f"{ending.round}" if ending.accuracy is None else f"{ending.round}{between}{ending.accuracy:.1%}"
        )


def mapped(views: Sequence[RunView]) -> list[RunView]:
    """Give the runs whose movements are worth replaying, most momentum first: FedUHB's and those under a rule, if long enough for one."""
    fit = [v for v in views if (v.role == "feduhb" or v.judged) and len(v.rounds) >= PLAIN.min_rounds]
    return sorted(fit, key=lambda view: -_momentum(view))


def stop_map(view: RunView) -> StopMap:
    """Replay every rule of the map on a run's movements."""
    endings = {place: _ending(view, *place) for place in product(SCALES, WINDOWS)}
    return StopMap(endings, len(view.rounds), view.fired is not None, view.accuracy[-1], _own(view))


def _ending(view: RunView, scale: float, window: int | None) -> Ending:
    ended = replay(dynamic_stop(scale, window=window, momentum=_momentum(view)), view.moved)
    return Ending(scale, window, ended, None if ended is None else view.accuracy[ended - 1])


def _momentum(view: RunView) -> float:
    """β of the method; the rule's own where the method has none. Without a floor it cancels."""
    told = view.result["settings"].get("momentum")
    return told if isinstance(told, int | float) and 0 <= told < 1 else PLAIN.momentum


def _own(view: RunView) -> tuple[float, int | None] | None:
    """Find the run's own rule on the map, if it is a plain one."""
    told = view.config.get("unlearn", {}).get("stop")
    if not isinstance(told, dict) or told.get("floor", 0) or told.get("as_printed", False):
        return None
    place = told.get("scale", PLAIN.scale), told.get("window")
    known = told.get("min_rounds", PLAIN.min_rounds) == PLAIN.min_rounds
    return place if known and place[0] in SCALES and place[1] in WINDOWS else None


def about(view: RunView) -> list[str]:
    """Say how many rules would have ended a run, and what its map cannot know."""
    replayed = stop_map(view)
    fires = sum(ending.round is not None for ending in replayed.endings.values())
    told = [
        f"{fires} of these {len(replayed.endings)} rules would have ended {view.label} in {replayed.rounds} rounds."
    ]
    if replayed.cut:
        told.append(
            f"Its own rule ended it, so the map only knows the {replayed.rounds} rounds run; "
            "to see further, unlearn with --stop never."
        )
    return told


def about_windows(view: RunView) -> list[str]:
    """Say what the thin lines are, and which windows have none."""
    found = stop_map(view)
    idle = [str(w) for w in LOOKED_BACK if all(ending.round is None for ending in found.line(w))]
    thin = "" if len(idle) == len(LOOKED_BACK) else " (thin: on a window of them)"
    told = [f"Replayed from one run; the rule looks back on all rounds so far{thin}."]
    if idle:
        told.append(f"With a window of {listed(idle, 'or')} rounds it fires at no λ shown.")
    if found.unknown:
        low, high = found.unknown[0], found.unknown[-1]
        which = f"from {low:g} to {high:g}" if high > low else f"{low:g}"
        told.append(
            f"What λ {which} would do is not known: the run's own rule ended it after {found.rounds} rounds; "
            "to see further, unlearn with --stop never."
        )
    return told


def about_marks(view: RunView) -> str:
    """Say which way λ goes, and what an open mark is where there is one."""
    opened = "; an open mark is a λ at which the rule did not fire" if stop_map(view).silent else ""
    return f"A larger λ stops earlier{opened}."


def spelled(window: int | None) -> str:
    """Name a window."""
    return "all so far" if window is None else str(window)
