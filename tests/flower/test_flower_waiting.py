"""Replays over a grid wait for clients that are briefly away, and end without clients that are gone."""

from dataclasses import dataclass

import pytest
import torch

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.core.flat import flatten
from feduhb.core.types import Work
from feduhb.errors import AnswerError, ConfigError
from feduhb.runs.history import DiskHistory
from flower.gridding import Stage, make_grid

pytestmark = pytest.mark.slow

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
FEDERATION = ragged()
RECOVER = {"warmup": 3, "correction": 0, "final": 1, "buffer": 1}
LOOKS = 3  # looks at the federation before the clients return


def draw_start():
    return flower.fresh_arrays(FEDERATION.model, FEDERATION.seed)


def make_settings(**more):
    return {"epochs": 1, "seed": 7, "local": LOCAL, "timeout": 5.0, **more}


def train(grid, folder, rounds=6):
    flower.Train(checkpoint=folder, keep_history=True, **make_settings()).start(grid, draw_start(), rounds)
    grid.sent.clear()


def make_eraser(folder, **more):
    return flower.FedEraser("bee", interval=1, trained=folder, **make_settings(**more))


def make_recover(folder, **more):
    return flower.FedRecover("bee", **RECOVER, trained=folder, **make_settings(**more))


@dataclass
class Flickering(Stage):
    """A grid whose nodes go away when a test sets ``away``, and return after some looks."""

    away: int = 0

    def get_node_ids(self):
        self.away = max(0, self.away - 1)
        return [] if self.away else super().get_node_ids()


def make_flickering() -> Flickering:
    return Flickering(make_grid(FEDERATION, keyed=True).seats)


def leave_after(grid, *rounds):
    """Send all clients away at the end of these rounds, counted from 1."""

    def evaluate(number, _):
        if number in rounds:
            grid.away = LOOKS + 1

    return evaluate


@pytest.mark.parametrize("strategy", [make_eraser, make_recover])
def test_a_replay_waits_for_clients_that_are_away_between_two_rounds(strategy, tmp_path):
    """As after a restart of the SuperLink: the replay ends with the same weights."""
    grid = make_flickering()
    for name in ("calm", "shaken"):
        train(grid, tmp_path / name)
    calm = strategy(tmp_path / "calm").start(grid, draw_start())
    shaken = strategy(tmp_path / "shaken").start(grid, draw_start(), evaluate_fn=leave_after(grid, 1, 5))
    assert torch.equal(shaken.params, calm.params)
    assert [r.answered for r in shaken.rounds] == [r.answered for r in calm.rounds]
    assert shaken.left_out == {}


def test_a_connected_federation_waits_for_clients_that_are_away():
    grid = make_flickering()
    far = flower.connected(grid, FEDERATION.test, FEDERATION.model, seed=7, timeout=5)
    run = feduhb.train(far, 1, engine=far.engine, epochs=1, show=None)

    def leaves(_):
        grid.away = LOOKS + 1

    done = feduhb.unlearn(run, ["bee"], rounds=3, stop=feduhb.never, show=leaves)
    assert [len(r.answered) for r in done.rounds] == [4, 4, 4]


def test_clients_that_stay_away_are_named_after_the_timeout(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    train(grid, tmp_path)

    def leave(number, _):
        for node in (100, 102, 103) if number == 2 else ():
            grid.seats[node].online = False

    with pytest.raises(
        AnswerError, match=r"1 of 4 clients sent a valid update in round 2, but 2 are needed: "
    ) as e:
        make_eraser(tmp_path, timeout=0.3).start(grid, draw_start(), evaluate_fn=leave)
    assert str(e.value).count("it is not connected") == 3


def test_a_missing_remaining_client_does_not_stop_a_recovery(tmp_path):
    """It has no pairs, is asked in every estimated round, and left_out lists the rounds without it."""
    grid = make_grid(FEDERATION, keyed=True)
    train(grid, tmp_path / "first")
    grid.seats[104].online = False
    done = make_recover(tmp_path / "first", checkpoint=tmp_path / "run", timeout=0.5).start(
        grid, draw_start()
    )
    elk, others = (
        flower.key_id(grid.seats[104].key),
        {flower.key_id(grid.seats[n].key) for n in (100, 102, 103)},
    )
    assert [set(r.asked) for r in done.rounds] == [{*others, elk}] * 3 + [{elk}] * 2 + [{*others, elk}]
    assert [set(r.answered) for r in done.rounds] == [others] * 3 + [set()] * 2 + [others]
    assert done.left_out == {t: {elk: "it is not connected"} for t in range(6)}
    assert DiskHistory(tmp_path / "first" / "history").rounds == []


def test_a_silent_remaining_client_does_not_stop_a_recovery(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    train(grid, tmp_path)
    grid.seats[104].app = lambda *_: None
    done = make_recover(tmp_path, timeout=0.3).start(grid, draw_start())
    assert [len(r.answered) for r in done.rounds] == [3, 3, 3, 0, 0, 3]
    assert {tuple(found.values()) for found in done.left_out.values()} == {("no answer within 0.3 s",)}


@pytest.mark.parametrize(
    ("work", "answers", "min_replies", "enough"),
    [
        ({}, 2, None, True),
        ({}, 1, None, False),
        ({}, 3, 4, False),
        ({"clients": ("bee", "cat")}, 1, 3, False),
        ({"clients": ("bee", "cat")}, 0, None, False),
        ({"clients": ("bee", "cat"), "needed": False}, 0, 3, True),
        ({"clients": ("bee", "cat"), "needed": False}, 1, 3, True),
    ],
)
def test_how_many_answers_a_round_needs(work, answers, min_replies, enough):
    names = ("ant", "bee", "cat", "dog", "elk")
    grid = make_grid(FEDERATION)
    engine = flower.FlowerEngine(
        grid, draw_start(), LOCAL, seed=7, partitions=names, min_replies=min_replies, timeout=0.3
    )
    asked = work.get("clients") or names[:4]
    engine.roster.look()
    for client in asked[answers:]:
        grid.seats[100 + names.index(client)].online = False
    wanted = Work(flatten(FEDERATION.fresh_model()), 1, **work)
    if enough:
        assert [b.clients[0] for b in engine.train(wanted, asked, 0)] == list(asked[:answers])
    else:
        with pytest.raises(AnswerError, match=f"{answers} of {len(asked)} clients sent a valid update"):
            list(engine.train(wanted, asked, 0))


@pytest.mark.parametrize("name", ["min_replies", "clients_per_round", "min_clients", "evaluate_every"])
def test_counts_are_whole_numbers(name):
    with pytest.raises(ConfigError, match=rf"{name} is 1.5; give a whole number"):
        flower.FedUHB("bee", **make_settings(**{name: 1.5})).start(make_grid(FEDERATION), draw_start(), 1)


def test_rounds_are_whole_numbers():
    with pytest.raises(ConfigError, match=r"num_rounds is 2\.5; give a whole number, 1 or more"):
        flower.FedUHB("bee", **make_settings()).start(make_grid(FEDERATION), draw_start(), 2.5)  # pyright: ignore[reportArgumentType]
