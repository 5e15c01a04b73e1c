"""Unlearnings over a grid are opened again, also after a leaver has disconnected."""

import pytest
import torch

import feduhb
from federations import ragged
from feduhb import flower
from flower.gridding import make_grid

pytestmark = pytest.mark.slow

NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()
SETTINGS = {"epochs": 1, "batch_size": 8, "lr": 0.05}


def connect(grid):
    return flower.connected(grid, FEDERATION.test, FEDERATION.model, seed=7, partitions=NAMES, timeout=5)


def train_there(grid):
    far = connect(grid)
    return feduhb.train(far, 2, engine=far.engine, **SETTINGS)


@pytest.mark.parametrize("forget", [["bee"], {"dog": [0, 7]}, "class:2", "bee,dog:0-3,class:1"])
@pytest.mark.parametrize("keyed", [False, True], ids=["simulated", "keyed"])
def test_an_unlearning_is_opened_again_and_unlearned_once_more(forget, keyed, tmp_path):
    grid = make_grid(FEDERATION, keyed=keyed)
    first = feduhb.unlearn(train_there(grid), forget, rounds=2, out=tmp_path / "first")
    opened = feduhb.open_run(tmp_path / "first", connect(grid))
    assert torch.equal(opened.params, first.params)
    assert opened.federation.fingerprints() == first.federation.fingerprints()
    far = connect(grid)
    then = feduhb.unlearn(opened, ["elk"], rounds=2, engine=far.engine)
    assert torch.equal(then.params, feduhb.unlearn(first, ["elk"], rounds=2).params)


def test_an_unlearning_is_opened_though_its_leaver_has_gone_for_good(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    bee = flower.key_id(grid.seats[101].key)
    first = feduhb.unlearn(train_there(grid), [bee], rounds=2, out=tmp_path / "first")
    del grid.seats[101]
    opened = feduhb.open_run(tmp_path / "first", connect(grid))
    assert torch.equal(opened.params, first.params)
    then = feduhb.unlearn(opened, ["cat"], rounds=2, engine=connect(grid).engine)
    assert bee not in then.rounds[0].asked
