"""How a refusal is held to its words: the kind of error, its text, and that it is one line."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from feduhb.errors import FeduhbError


@contextmanager
def refused(kind: type[FeduhbError], *words: str) -> Generator[None]:
    """Expect an error of exactly this kind, in one line that holds all of these words."""
    with pytest.raises(FeduhbError) as caught:
        yield
    text = str(caught.value)
    assert type(caught.value) is kind, f"{type(caught.value).__name__}, not {kind.__name__}: {text}"
    assert "\n" not in text, f"more than one line: {text!r}"
    assert not (missing := [some for some in words if some not in text]), f"{missing} not in {text!r}"
