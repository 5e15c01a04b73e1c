"""Tests of data sets that come over a network: they get none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from data.serving import Shelf, nobody, serving


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No data anywhere, an empty cache, and a mirror where nobody is."""
    monkeypatch.delenv("FEDUHB_DATA", raising=False)
    monkeypatch.setenv("FEDUHB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    with nobody() as url:
        monkeypatch.setenv("FEDUHB_MIRROR", url)
        yield


@pytest.fixture
def mirror(offline: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Shelf]]:  # noqa: ARG001
    """Serve files where FEDUHB_MIRROR points, until the test ends."""
    with ExitStack() as stack:

        def serve(files: dict[str, bytes], **behaviour: Any) -> Shelf:
            shelf = stack.enter_context(serving(files, **behaviour))
            monkeypatch.setenv("FEDUHB_MIRROR", shelf.url)
            return shelf

        yield serve
