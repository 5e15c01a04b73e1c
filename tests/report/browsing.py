"""A page in a real browser, and everything that happened while it was open."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

QUIETLY = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a real browser, where one is installed; CI installs it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed; the page is not opened")
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, args=QUIETLY)
        try:
            yield found
        finally:
            found.close()


@dataclass(slots=True)
class Opened:
    """An open page, its requests and its complaints."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def opened(browser: Browser, document: Path, width: int, scheme: str, height: int = 900) -> Generator[Opened]:
    """Open a page at a width and in a colour scheme."""
    dark = "dark" if scheme == "dark" else "light"
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=dark)
    seen = Opened(page)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on(
        "console",
        lambda said: seen.complaints.append(said.text) if said.type in {"error", "warning"} else None,
    )
    try:
        page.goto(document.as_uri())
        yield seen
    finally:
        page.close()
