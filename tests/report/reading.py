"""What a page says, without its machinery."""

from __future__ import annotations

import re
from html import unescape


def without_plotly(document: str) -> str:
    """The page without the library it carries, whose own text holds addresses it never loads."""
    before, found, rest = document.partition('<script id="plotly">')
    return before + rest.split("</script>", 1)[1] if found else document


def words(document: str) -> str:
    """What a reader reads."""
    body = re.sub(r"<(style|script)\b.*?</\1>", " ", without_plotly(document), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())
