"""The server that runs the commands, and the folders that they run in, made once for all these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hardening import scenes
from hardening.damage import References
from hardening.running import Watch, start_watch


@pytest.fixture(scope="session")
def watch() -> Iterator[Watch]:
    """Runs commands under watch."""
    with start_watch() as server:
        yield server


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for scenes."""
    return tmp_path_factory.mktemp("scenes")


@pytest.fixture(scope="session")
def known(watch: Watch, place: Path) -> dict[str, scenes.Scene]:
    """Every scene."""
    return scenes.build(watch, place)


@pytest.fixture(scope="session")
def references(watch: Watch) -> References:
    """What commands do in undamaged scenes."""
    return References(watch)
