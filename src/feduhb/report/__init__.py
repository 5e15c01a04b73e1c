"""Tables, figures and one HTML page from run folders: nothing but the folders is read, and never torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feduhb.errors import StorageError
from feduhb.report.runs import RunView, read_runs
from feduhb.runs.folder import disk_errors, write_atomically


def write_report(folders: Sequence[Path | str], out: Path | str) -> list[Path]:
    """Write report.html, table.md, table.tex and the figures (PNG, PDF) into ``out``; give their paths.

    Where a run was audited, audit.md and audit.tex too.
    """
    target = Path(out)
    made = _made(read_runs(folders))
    try:
        with disk_errors(target):
            target.mkdir(parents=True, exist_ok=True)
        for name, data in made.items():
            write_atomically(target / name, data)
    except StorageError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise StorageError(
            f"cannot write the report into {target}: {reason}; choose another folder"
        ) from error
    return [target / name for name in made]


def _made(views: Sequence[RunView]) -> dict[str, bytes]:
    """Make every file before any is written, so that a report that fails leaves nothing behind."""
    from feduhb.report import audit_tables
    from feduhb.report.audit_words import audited
    from feduhb.report.figures import draw, pdf, png
    from feduhb.report.html import page
    from feduhb.report.tables import latex, markdown
    from feduhb.report.words import notes

    said = notes(views)
    made = {
        "report.html": page(views),
        "table.md": markdown(views) + "".join(f"\n{note}\n" for note in said),
        "table.tex": "".join(f"% {note}\n" for note in said) + latex(views),
    }
    if audited(views):
        made |= {"audit.md": audit_tables.markdown(views), "audit.tex": audit_tables.latex(views)}
    figures = draw(views)
    pictures = {
        f"{name}.{kind.__name__}": kind(figure) for name, figure in figures.items() for kind in (png, pdf)
    }
    return {name: text.encode(errors="replace") for name, text in made.items()} | pictures


__all__ = ["RunView", "read_runs", "write_report"]
