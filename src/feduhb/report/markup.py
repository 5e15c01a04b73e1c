"""The HTML that every part of the page is made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Group:
    """A section of charts: its title, what is said over them, and their captions by name."""

    title: str
    said: Sequence[str]
    captions: Mapping[str, str]

    def html(self, drawn: Collection[str]) -> str:
        """Render with the charts that were drawn; nothing where none was."""
        places = [chart(name, caption) for name, caption in self.captions.items() if name in drawn]
        if not places:
            return ""
        return section(self.title, f'{sentences(self.said)}\n<div class="charts">{"".join(places)}</div>')


def section(title: str, body: str) -> str:
    """Give a part of the page with its heading."""
    return f"<section><h2>{escape(title)}</h2>\n{body}\n</section>\n"


def chart(name: str, caption: str) -> str:
    """Give the place that a chart is drawn into."""
    said = escape(caption)
    return (
        f"<figure><figcaption>{said}</figcaption>"
        f'<div id="chart-{name}" role="img" aria-label="{said}"></div>'
        "<noscript>The chart needs JavaScript; the tables hold its numbers.</noscript></figure>"
    )


def sentences(said: Sequence[str], kind: str = "") -> str:
    """Give one sentence as a paragraph, several as a list."""
    look = f' class="{kind}"' if kind else ""
    if len(said) == 1:
        return f"<p{look}>{escape(said[0])}</p>"
    return f"<ul{look}>{''.join(f'<li>{escape(each)}</li>' for each in said)}</ul>" if said else ""


def paragraphs(text: str) -> str:
    """Give a text's paragraphs."""
    return "".join(f"<p>{escape(paragraph)}</p>\n" for paragraph in text.split("\n\n"))
