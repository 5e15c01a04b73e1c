"""A table of words, and how Markdown, LaTeX and HTML spell it: the same cells in each."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import takewhile

NOTHING = "–"  # noqa: RUF001
HEADER_WIDTH = 11  # characters a broken header's line holds
TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$",  # noqa: RUF001
    "β": r"$\beta$", "λ": r"$\lambda$", "±": r"$\pm$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grid:
    """Headers and rows, a line on how to read them, and sentences that belong under them."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: frozenset[int] = frozenset({0})  # the columns of words, set to the left
    note: str = ""
    said: Sequence[tuple[str, str]] = ()  # (run, sentence); no run: of all

    def without_names(self) -> Grid:
        """Leave the column out that names the run, where one run is all that is shown."""
        left = frozenset(place - 1 for place in self.text if place)
        rows, said = [row[1:] for row in self.rows], [("", sentence) for _, sentence in self.said]
        return replace(self, headers=self.headers[1:], rows=rows, text=left, said=said)

    @property
    def sentences(self) -> list[str]:
        """What is said under the table, each with its run's name."""
        return [f"{run}: {sentence}" if run else sentence for run, sentence in self.said]

    def markdown(self) -> str:
        """Render as a Markdown table."""
        rule = [":---" if place in self.text else "---:" for place in range(len(self.headers))]
        cells = [[markdown_safe(cell) for cell in row] for row in self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in [self.headers, rule, *cells])

    def latex(self) -> str:
        """Render as a LaTeX tabular; it needs the package booktabs."""
        sides = ["l" if place in self.text else "r" for place in range(len(self.headers))]
        top = [f"\\shortstack[{s}]{{{_stacked(h)}}}" for s, h in zip(sides, self.headers, strict=True)]
        cells = [[tex_safe(cell) for cell in row] for row in self.rows]
        lines = [" & ".join(line) + r" \\" for line in [top, *cells]]
        body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
        return f"\\begin{{tabular}}{{{''.join(sides)}}}\n{body}\n\\end{{tabular}}\n"

    def html(self, spell: Callable[[str, str], str] | None = None) -> str:
        """Render as an HTML table that scrolls within itself; ``spell(header, cell)`` gives a cell's HTML."""
        told = spell or (lambda _, cell: escape(cell))
        head = "".join(f"<th{self._kind(place)}>{escape(h)}</th>" for place, h in enumerate(self.headers))
        body = "".join(
            f"<tr>{''.join(self._cell(at, place, told) for place in range(len(self.headers)))}</tr>\n"
            for at in range(len(self.rows))
        )
        inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"
        return f'<div class="wide" tabindex="0"><table>\n{inner}\n</table></div>'

    def _kind(self, place: int) -> str:
        return "" if place not in self.text else ' class="text"' if place else ' class="text name"'

    def _cell(self, at: int, place: int, told: Callable[[str, str], str]) -> str:
        """One cell; a name that several rows share stands once, beside them all."""
        cell, names = self.rows[at][place], [row[0] for row in self.rows]
        span = ""
        if not place and 0 in self.text:
            if at and names[at - 1] == cell:
                return ""
            shared = len(list(takewhile(lambda name: name == cell, names[at:])))
            span = f' rowspan="{shared}"' if shared > 1 else ""
        return f"<td{self._kind(place)}{span}>{told(self.headers[place], cell)}</td>"


def markdown_safe(cell: str) -> str:
    """Keep Markdown from reading marks in a cell."""
    cell = cell.replace("\n", " ")
    for mark in "\\|*_`<>[]":
        cell = cell.replace(mark, f"\\{mark}")
    return cell


def tex_safe(text: str) -> str:
    """Keep LaTeX from reading commands in a text."""
    return "".join(TEX.get(c, c) for c in text)


def _stacked(header: str) -> str:
    return r"\\".join(tex_safe(line) for line in textwrap.wrap(header, HEADER_WIDTH))
