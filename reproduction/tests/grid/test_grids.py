"""Grids: what their files may say, and the cells they come to."""

from __future__ import annotations

import pytest

from feduhb.errors import ConfigError
from feduhb.methods import FedRecover
from feduhb_reproduction.cell_plan import plan_runs
from feduhb_reproduction.grids import Grid, Part, find_grid, read_grid
from grid.small import TEXT, written

PART = Part(partitions=("iid",))


def test_cells_come_seed_by_seed_and_those_to_be_timed_first(tmp_path):
    names = [place.name for place in read_grid(written(tmp_path)).places()]
    assert names == [
        "iid-40-s0", "iid-40-s1",
        "dirichlet-0.5-40-s0", "iid-40-backdoor-s0", "dirichlet-0.5-40-s1", "iid-40-backdoor-s1",
    ]  # fmt: skip
    timed = [place.name for place in read_grid(written(tmp_path)).places() if place.timed]
    assert timed == ["iid-40-s0", "iid-40-s1"]


def test_a_cell_knows_all_that_its_numbers_depend_on(tmp_path):
    place = next(p for p in read_grid(written(tmp_path)).places() if p.partition == "dirichlet:0.5")
    assert (place.momenta, place.steps, place.backdoor) == ((0.5,), (2.0,), False)
    assert (place.rounds, place.epochs, place.batch_size, place.lr, place.scale) == (6, 1, 16, 0.05, 10.0)
    assert dict(place.fedrecover) == {"warmup": 3, "final": 1, "correction": 2}


def test_whole_numbers_of_fedrecover_stay_whole(tmp_path):
    text = TEXT.replace("warmup = 3", "buffer = 3, warmup = 4")
    place = next(read_grid(written(tmp_path, text)).places())
    method = plan_runs(place)["fedrecover"].method
    assert isinstance(method, FedRecover)
    assert isinstance(method.buffer, int)


def test_without_a_size_all_images_are_shared_out():
    (place,) = Grid(data="digits", parts=(PART,), seeds=(3,)).places()
    assert place.per_client is None
    assert place.name == "iid-all-s3"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("seeds = [0, 1]", "seed = [0, 1]", "no setting seed; did you mean seeds?"),
        ("timed = true", "time = true", "no setting parts.time; did you mean timed?"),
        ("rounds = 6", 'rounds = "6"', "rounds = '6' is invalid"),
        ("rounds = 6", "rounds = 0", "rounds is 0; give 1 or more"),
        ('"iid"]', '"idd"]', "no partition 'idd'"),
        ('"digits"', '"digit"', "no data set 'digit'"),
        ("seeds = [0, 1]", "seeds = []", "needs seeds"),
        ("backdoor = true", "backdoor = false", "two parts make the cell iid-40-s0"),
        ("seeds = [0, 1]", "seeds = [0, 1, 0]", "seeds has 0 twice; name it once"),
        ('["dirichlet:0.5"]', '["iid", "iid"]', "partitions has iid twice; name it once"),
        ("per_client = [40]\ntimed", "per_client = [40, 40]\ntimed", "per_client has 40 twice; name it once"),
        ("momenta = [0.5]", "momenta = [0.5, 0.3, 0.5]", "momenta has 0.5 twice; name it once"),
        ("momenta = [0.5]", "momenta = [0.5, 0.50000001]", "momenta has 0.5 twice; name it once"),
        ("steps = [2.0]", "steps = [2.0, 2]", "steps has 2 twice; name it once"),
        (
            "momenta = [0.5]",
            "momenta = [0.5, 0.0]",
            "momenta has 0, which is Retrain and always run; leave it out",
        ),
        ("steps = [2.0]", "steps = [1.0000001]", "steps has 1, which is Retrain and always run"),
        ("steps = [2.0]", "steps = [1.0]", "steps has 1, which is Retrain and always run; leave it out"),
        (
            "momenta = [0.5]",
            "momenta = [0.9]",
            "momenta has 0.9, which is FedUHB's own here and always run; leave it out",
        ),
        ("clients = 5", 'clients = 5\nforget = "class:3"', "cannot forget; name clients"),
        ('["dirichlet:0.5"]', "[]", "a part has no partitions"),
        ("clients = 5", "clients = 0", "clients is 0; give 1 or more"),
        ("clients = 5", "clients = -3", "clients is -3; give 1 or more"),
        (
            "clients = 5",
            "clients = 1",
            "forget names 'c01', which is not a client; the clients are c00 to c00",
        ),
        ("clients = 5", "clients = 2", "no client would remain of 2"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path, before, after, says):
    assert before in TEXT
    path = written(tmp_path, TEXT.replace(before, after))
    with pytest.raises(ConfigError) as refused:
        read_grid(path)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)


def test_the_paper_comes_along():
    mnist, cifar = (read_grid(find_grid(name)) for name in ("mnist", "cifar10"))
    for grid in (mnist, cifar):
        assert (grid.clients, grid.forget, grid.rounds, grid.epochs) == (20, "c00,c01", 40, 5)
        assert (grid.batch_size, grid.lr, grid.momentum, grid.scale) == (64, 0.005, 0.9, 0.6)
        assert len(grid.seeds) == 5
        assert {"iid", "dirichlet:0.1", "dirichlet:0.5", "shards:2"} == {p.partition for p in grid.places()}
        assert any(place.backdoor for place in grid.places())
        assert any(place.steps for place in grid.places())
        assert any(place.momenta for place in grid.places())
    assert {place.per_client for place in mnist.places()} == {525, 3000, None}
    assert {place.per_client for place in cifar.places()} == {2500}


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_quick_look_is_one_seed_of_525_images(name):
    places = list(read_grid(find_grid(name, quick=True)).places())
    assert {(place.seed, place.per_client) for place in places} == {(0, 525)}
    assert places[0].rounds < 40


def test_a_grid_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"no grid 'imagenet'; choose cifar10 or mnist"):
        find_grid("imagenet")
    with pytest.raises(
        ConfigError, match=r"no grid file .*mine.toml; write one; .*experiments.mnist.toml is an example"
    ):
        read_grid(find_grid(str(tmp_path / "mine.toml")))
    with pytest.raises(ConfigError, match="--quick is for the built-in grids"):
        find_grid("mine.toml", quick=True)
