from __future__ import annotations

from pathlib import Path

import pytest

from feduhb.report.runs import RunView, read_runs
from report.browsing import browser
from report.folders import rivals, story

__all__ = ["browser"]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return story(tmp_path)


@pytest.fixture
def views(folders: list[Path]) -> list[RunView]:
    return read_runs(folders)


@pytest.fixture
def five(tmp_path: Path) -> list[RunView]:
    """An original run and all four methods."""
    return read_runs(rivals(tmp_path / "five"))
