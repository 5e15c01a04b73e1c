"""A table of text that Markdown, LaTeX and HTML render with the same cells."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

HEADER_WIDTH = 11  # characters a broken header's line holds
TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$",  # noqa: RUF001
    "β": r"$\beta$", "λ": r"$\lambda$", "±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip
MARKS = re.compile(r"[\\|*_`<>\[\]~&$@]")  # characters with a meaning in Markdown, wherever they stand
LINKS = re.compile(r"\b(?:(?:https?|ftp|mailto|xmpp):|www\.)", re.IGNORECASE)  # links without brackets
BLOCKS = re.compile(r"^(?:[-+=#]|\d+[.)])(?=[-+=#]*(?:\s|$))")  # that begin a list, a heading or a rule


@dataclass(frozen=True, slots=True)
class Grid:
    """Headers and rows, a note on how to read them, and the sentences under them."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: frozenset[int] = frozenset({0})  # the columns of text, set to the left
    note: str = ""
    said: Sequence[tuple[str, str]] = ()  # (run, sentence); no run: of all
    groups: Mapping[int, str] = field(default_factory=dict)  # headings, by the row that they stand over

    def without_names(self) -> Grid:
        """Return the grid without its first column, which names the run."""
        left = frozenset(place - 1 for place in self.text if place)
        rows, said = [row[1:] for row in self.rows], [("", sentence) for _, sentence in self.said]
        return replace(self, headers=self.headers[1:], rows=rows, text=left, said=said)

    @property
    def sentences(self) -> list[str]:
        """The sentences under the table, each with its run's label."""
        return [f"{run}: {sentence}" if run else sentence for run, sentence in self.said]

    def to_markdown(self) -> str:
        """Render as a Markdown table."""
        rule = [":---" if place in self.text else "---:" for place in range(len(self.headers))]
        headers, *cells = [[escape_markdown(cell) for cell in row] for row in [self.headers, *self.rows]]
        empty = [""] * (len(self.headers) - 1)
        body: list[list[str]] = []
        for at, row in enumerate(cells):
            if at in self.groups:
                body.append([f"**{escape_markdown(self.groups[at])}**", *empty])
            body.append(row)
        return "".join(f"| {' | '.join(line)} |\n" for line in [headers, rule, *body])

    def to_latex(self) -> str:
        """Render as a LaTeX tabular; it needs the package booktabs."""
        sides = ["l" if place in self.text else "r" for place in range(len(self.headers))]
        top = [f"\\shortstack[{s}]{{{_stack(h)}}}" for s, h in zip(sides, self.headers, strict=True)]
        cells = [[escape_tex(cell) for cell in row] for row in self.rows]
        lines = [" & ".join(line) + r" \\" for line in [top, *cells]]
        for at, name in sorted(self.groups.items(), reverse=True):
            over = f"\\multicolumn{{{len(sides)}}}{{l}}{{\\emph{{{escape_tex(name)}}}}} \\\\"
            lines[at + 1 : at + 1] = [over]
        body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
        return f"\\begin{{tabular}}{{{''.join(sides)}}}\n{body}\n\\end{{tabular}}\n"

    def lay_out(self) -> list[list[tuple[int, str, int]]]:
        """Return the cells for HTML as (column, text, rows that it spans): a name that several rows share stands once."""
        names = [row[0] for row in self.rows]
        laid: list[list[tuple[int, str, int]]] = []
        for at, row in enumerate(self.rows):
            cells = [(place, cell, 1) for place, cell in enumerate(row)]
            if 0 in self.text:
                shared = len(list(takewhile(lambda name, own=row[0]: name == own, names[at:])))
                cells[:1] = [] if at and names[at - 1] == row[0] else [(0, row[0], shared)]
            laid.append(cells)
        return laid


def escape_markdown(text: str) -> str:
    """Escape what Markdown would read as marks, links, HTML or the beginning of a block; text is one line."""
    escaped = MARKS.sub(r"\\\g<0>", join_lines(text))
    return BLOCKS.sub(_escape_last, LINKS.sub(_escape_last, escaped))


def _escape_last(found: re.Match[str]) -> str:
    return f"{found[0][:-1]}\\{found[0][-1]}"


def escape_tex(text: str) -> str:
    """Escape the characters that LaTeX would read as commands; text is one line."""
    escaped = "".join(TEX.get(c, c) for c in join_lines(text))
    # At the beginning of a row, LaTeX would read [ or * as an argument of the \\ before it.
    return f"{{}}{escaped}" if escaped.startswith(("[", "*")) else escaped


def join_lines(text: str) -> str:
    """Return text as one line."""
    return " ".join(text.split())


def _stack(header: str) -> str:
    return r"\\".join(escape_tex(line) for line in textwrap.wrap(header, HEADER_WIDTH))
