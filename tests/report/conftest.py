from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from feduhb.report.runs import RunView, read_runs
from report.folders import rivals, story

QUIETLY = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real one, where it is installed; CI installs it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed; the page is not opened")
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, args=QUIETLY)
        try:
            yield found
        finally:
            found.close()


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
