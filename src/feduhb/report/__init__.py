"""Tables, figures and one HTML page from run folders: only the folders are read, and torch is not needed.

The modules listed here are public: other reports are made with the same tables (`grids.Grid`), charts (`charts.Chart`,
`charts.compose`), drawing kit (`drawing`), formats (`words`) and pages (`page.render_page`).

The package can be called: ``feduhb.report(runs)`` is ``feduhb.report.report(runs)``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from feduhb.errors import RunFolderError, StorageError
from feduhb.report import audit_tables, charts, drawing, grids, page, stop_map, words
from feduhb.report.audit_charts import chart_attacks_by_kind, chart_clients
from feduhb.report.charts import compose
from feduhb.report.curves import chart_backdoor, chart_movement, chart_score, chart_sweep, find_sweep
from feduhb.report.held_out import chart_held_out
from feduhb.report.runs import RunView, read_runs
from feduhb.report.tables import make_grids, make_grids_of_each
from feduhb.report.work import chart_work
from feduhb.runs.files import disk_errors, write_atomically
from feduhb.runs.scores import LOSS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTACK_COLUMNS = 2  # more panels side by side cannot be read on a page


class HasFolder(Protocol):
    """A run, as far as a report needs to know it."""

    @property
    def folder(self) -> Path | None:
        """The folder of the run; None if it was not recorded."""
        ...


Runs = HasFolder | Path | str | Iterable[HasFolder | Path | str] | Mapping[str, HasFolder]


def report(runs: Runs, out: Path | str = "report") -> list[Path]:
    """Write tables, figures and one HTML page about finished runs and their audits; return the paths written.

    Args:
        runs: runs or their folders, such as what `compare` returns.
        out: a folder for the files.
    """
    given: Any = runs.values() if isinstance(runs, Mapping) else runs
    several = [given] if isinstance(given, Path | str) or hasattr(given, "folder") else [*given]
    return write_report([_find_folder(one) for one in several], out)


def _find_folder(run: HasFolder | Path | str) -> Path:
    found = Path(run) if isinstance(run, Path | str) else run.folder
    if found is None:
        raise RunFolderError(f"{run!r} has no folder to report on; make it with out='runs/first'")
    return found


def write_report(folders: Sequence[Path | str], out: Path | str) -> list[Path]:
    """Write report.html, table.md, table.tex and the figures (PNG, PDF) into ``out``, and return their paths.

    If a run was audited, write audit.md and audit.tex too.
    """
    return write_files(_make_files(read_runs(folders)), Path(out))


def write_files(made: Mapping[str, bytes], target: Path) -> list[Path]:
    """Write the files of a report into a folder, and return their paths."""
    try:
        with disk_errors(target):
            target.mkdir(parents=True, exist_ok=True)
        for name, data in made.items():
            write_atomically(target / name, data, private=False)
    except StorageError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise StorageError(
            f"cannot write the report into {target}: {reason}; choose another folder"
        ) from error
    return [target / name for name in made]


def _make_files(views: Sequence[RunView]) -> dict[str, bytes]:
    """Return the content of every file before any is written, so that a failing report leaves nothing behind."""
    notes, tables = words.list_notes(views), [*make_grids(views), *make_grids_of_each(views)]
    said = [grids.escape_markdown(note) for note in notes]
    made = {
        "report.html": page.render_report(views),
        "table.md": "\n".join(grid.to_markdown() for grid in tables)
        + "".join(f"\n{note}\n" for note in said),
        "table.tex": "".join(f"% {grids.join_lines(note)}\n" for note in notes)
        + "\n".join(grid.to_latex() for grid in tables),
    }
    if any(view.audit is not None for view in views):
        starts = "".join(f"\n{grids.escape_markdown(start)}\n" for start in words.explain_starts(views))
        made |= {
            "audit.md": audit_tables.to_markdown(views) + starts,
            "audit.tex": audit_tables.to_latex(views),
        }
    return encode_files(made, draw_figures(views))


def encode_files(texts: Mapping[str, str], figures: Mapping[str, Figure]) -> dict[str, bytes]:
    """Return the content of files with these texts, and of a PNG and a PDF of each figure."""
    files = {name: text.encode(errors="replace") for name, text in texts.items()}
    for name, figure in figures.items():
        files[f"{name}.png"] = drawing.to_png(figure)
        figure.set_layout_engine("none")  # the PNG has the layout; to find it again takes as long as to draw
        files[f"{name}.pdf"] = drawing.to_pdf(figure)
    return files


def draw_figures(views: Sequence[RunView]) -> dict[str, Figure]:
    """Return the figures for a paper, by name, for which these runs have data."""
    looks, shown = drawing.choose_strokes(views), words.choose_drawn(views)
    own = drawing.choose_strokes(shown)
    scores = {score: chart_score(shown, own, score) for score in words.list_charted(views)}
    first = next((chart for chart in scores.values() if chart), None)
    others = [chart for score, chart in scores.items() if score != LOSS]
    movement, backdoor = chart_movement(shown, own), chart_backdoor(shown, own)
    bars = sum(view.final("backdoor") is not None for view in shown)
    maps = [stop_map.replay_rules(view) for view in stop_map.list_mapped(views)[:1]]
    scales = [chart for found in maps for chart in stop_map.chart_scales(found).values()]
    sweep = find_sweep(views)
    betas = [] if sweep is None else list(chart_sweep(sweep).values())
    attacks, work = chart_attacks_by_kind(views, looks), chart_work(views, looks)
    audited = audit_tables.list_audited(views)
    clients = [chart_clients(audit, view.label) for view, audit in audited]
    drawn = {
        "overview": compose([first, movement, backdoor], width=3.7, height=max(3.1, 1.1 + 0.32 * bars)),
        "curves": compose([scores.get(LOSS), *others], width=4.9, height=3.2),
        "movement": compose([movement], width=6.4, height=3.4),
        "backdoor": compose([backdoor], width=6.4, height=1.1 + 0.4 * bars),
        "work": compose([work], width=6.4, height=3.6 if work is None else max(3.6, work.height)),
        "held-out": compose([chart_held_out(shown, own)], width=6.4, height=3.6),
        "stop-map": compose([stop_map.chart_map(found) for found in maps], width=6.6, height=5.0),
        "lambda": compose(scales, width=4.9, height=3.3),
        "beta": compose(betas, width=[3.9, 3.9, 3.0][-len(betas) :] if betas else 1, height=3.2),
        "audit": compose(
            attacks, width=4.6, height=1.1 + 0.5 * len(audited), columns=min(ATTACK_COLUMNS, len(attacks))
        ),
        "clients": compose(clients, width=8.6, height=2.6, columns=1),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


class _Package(ModuleType):
    """The type of this package, which can be called."""

    def __call__(self, runs: Runs, out: Path | str = "report") -> list[Path]:
        return report(runs, out)


sys.modules[__name__].__class__ = _Package

__all__ = [
    "RunView", "charts", "draw_figures", "drawing", "grids", "page", "read_runs", "report", "stop_map", "words",
    "write_report",
]  # fmt: skip
