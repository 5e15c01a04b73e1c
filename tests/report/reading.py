"""Read a page as its reader does."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any


def words(document: str) -> str:
    """Return the text of a page."""
    body = re.sub(r"<(style|script)\b.*?</\1>", " ", document, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def first_screen(document: str) -> str:
    """Return the text above the first table."""
    header = document[document.index("<header>") : document.index("</header>")]
    return words(header)


def points(document: str) -> dict[str, Any]:
    """Return what the page's script is told of every chart, by the chart's name."""
    found = re.findall(
        r'<figure class="chart" id="chart-([\w-]+)">.*?<script type="application/json">(.*?)</script>',
        document,
        flags=re.DOTALL,
    )
    return {name: json.loads(data) for name, data in found}
