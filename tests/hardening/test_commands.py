"""Odd configs and command lines, and requests at the same moment."""

from __future__ import annotations

import pytest

from hardening import fuzz, races, scenes

pytestmark = pytest.mark.slow

FUZZED = 24  # configs, and as many command lines
RACES = 2


@pytest.fixture(scope="module")
def folder(watch, tmp_path_factory):
    """The folder of scenes."""
    place = tmp_path_factory.mktemp("commands")
    scenes.build(watch, place, ["chain"])
    return place


@pytest.mark.parametrize("list_cases", [fuzz.list_configs, fuzz.list_command_lines])
def test_odd_values_are_refused_in_words(watch, folder, list_cases):
    found = [
        one for case in list_cases(0, FUZZED) for one in fuzz.try_fuzzed(watch, folder / "audited", case)
    ]
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("pair", races.PAIRS)
def test_of_two_requests_at_once_one_is_served(watch, folder, pair):
    found = [one for _ in range(RACES) for one in races.try_pair(watch, folder / "trained", pair)]
    assert not found, "\n".join(map(str, found))
