"""Registered names of clients, for people: how they are shown, and when two of them are the same."""

from __future__ import annotations

import re
import unicodedata

from feduhb.flower.wire import to_line

LONGEST = 100  # letters of a name that are shown and stored
# Characters that show nothing and are not of the categories C*: joiners, fillers, variation selectors.
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def clean_name(name: str) -> str:
    """Return a registered name as one short line of characters that can be seen."""
    return to_line(_drop_invisible(name), LONGEST)


def fold_name(name: str) -> str:
    """Return the form of a name that is compared: without case, compatibility forms, invisible characters, outer spaces.

    Letters that merely look alike in two alphabets stay different.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(_drop_invisible(text).split())


def _drop_invisible(text: str) -> str:
    seen = (c for c in text if c.isspace() or not unicodedata.category(c).startswith("C"))
    return INVISIBLE.sub("", "".join(seen))
