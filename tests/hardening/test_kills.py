"""Commands that are killed, or refused by the disk, at some of their events; `make soak` tries every kind of event."""

from __future__ import annotations

import pytest

from hardening import modes
from hardening.kills import Stop, choose_stops, find_remains, set_up, try_stop

pytestmark = pytest.mark.slow

NAMES = (
    "train", "feduhb", "retrain", "federaser", "fedrecover", "compare", "audit", "retire", "flower train", "flower federaser",
)  # fmt: skip
STOPS = 2  # of each command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def scenarios(watch, folder):
    return {one.name: one for one in set_up(watch, folder)}


@pytest.mark.parametrize("name", NAMES)
def test_stopped_at_an_event_it_continues_and_leaves_nothing_of_the_leaver(watch, scenarios, name):
    found = [one for stop in choose_stops(scenarios[name], STOPS) for one in try_stop(watch, stop)]
    assert not found, "\n".join(map(str, found))


def test_a_replay_killed_while_it_erases_finishes_only_after_the_history_is_erased(watch, scenarios):
    one = scenarios["federaser"]
    first = one.events.index("shutil.rmtree first/history/00002") + 1
    last = one.events.index("os.rename first-federaser/.result.json") + 1
    assert first < last, "the result comes before the erasure"
    found = [
        said for number in range(first, last + 1, 6) for said in try_stop(watch, Stop(one, number, "kill"))
    ]
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("name", ["feduhb", "retrain", "federaser", "fedrecover", "flower federaser"])
def test_a_run_that_nobody_stops_leaves_nothing_of_the_leaver(scenarios, folder, name):
    assert scenarios[name].forbidden, "the training kept no update of the leaver"
    assert not find_remains(scenarios[name], folder / name)


@pytest.mark.parametrize("name", NAMES)
def test_nobody_else_may_read_updates_weights_or_audits(scenarios, folder, name):
    assert name in scenarios
    assert not modes.list_open(folder / name)
