"""Packages with entry points, made for a test in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest


def install_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, entry_points: str
) -> None:
    """Put a package with one module on the path, as pip would install it until the test ends."""
    site = folder / f"site-{name}"
    about = site / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (site / f"{name}.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(str(site))
