"""Every run over a grid draws its own seed, and its fresh model from that seed."""

import re
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.core.flat import flatten, split
from feduhb.errors import ConfigError, HistoryError, ModelError, RunFolderError
from feduhb.flower.wire import Layout
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.folder import RunFolder
from flower.gridding import Killed, make_grid, make_killing_grid

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()
REPLAYS: list[Any] = [flower.FedEraser, flower.FedRecover]


def make_settings(**more):
    settings = {"epochs": 1, "local": LOCAL, "partitions": NAMES, "timeout": 5}
    return {"model": FEDERATION.model, **settings, **more}


def train(folder=None, rounds=1, arrays=None, **more):
    return flower.Train(checkpoint=folder, **make_settings(**more)).start(
        make_grid(FEDERATION), arrays, rounds
    )


def unlearn(folder=None, rounds=2, arrays=None, grid=None, **more):
    strategy = flower.FedUHB("bee", checkpoint=folder, stop=feduhb.never, **make_settings(**more))
    return strategy.start(grid or make_grid(FEDERATION), arrays, rounds)


def read_seed(folder):
    return RunFolder(folder).config()["seed"]


def read_start(folder):
    """Return the digest of the weights that a run started from."""
    return RunFolder(folder).config()["flower"]["start"]


def digest_draw(seed):
    return digest_weights(flatten(FEDERATION.reseed(seed).fresh_model()))


def draw(seed):
    return flower.fresh_arrays(FEDERATION.model, seed)


def test_every_run_draws_its_own_seed_and_its_fresh_model_from_it(tmp_path):
    outcomes = {name: train(tmp_path / name) for name in ("first", "second")}
    outcomes["without"] = unlearn(tmp_path / "without", trained=tmp_path / "first")
    seeds = {name: read_seed(tmp_path / name) for name in outcomes}
    assert len({*seeds.values()}) == len(seeds)
    assert {name: outcome.seed for name, outcome in outcomes.items()} == seeds
    starts = {name: read_start(tmp_path / name) for name in outcomes}
    assert len({*starts.values()}) == len(starts)
    assert starts == {name: digest_draw(seed) for name, seed in seeds.items()}


def test_the_clients_train_with_the_seed_that_was_drawn():
    grid = make_grid(FEDERATION)
    outcome = unlearn(grid=grid)
    assert {config["seed"] for _, kind, config in grid.sent if kind == "train"} == {outcome.seed}


def test_a_given_seed_gives_the_same_run_with_and_without_its_arrays():
    first, second = unlearn(seed=7), unlearn(seed=7, arrays=draw(7))
    third = unlearn(seed=7, arrays=ArrayRecord(FEDERATION.fresh_model().state_dict()))
    fourth = unlearn(seed=7, model=None, arrays=draw(7))
    assert first.seed == 7
    assert all(torch.equal(first.params, other.params) for other in (second, third, fourth))


def test_arrays_without_a_seed_are_refused():
    words = r"the initial arrays were given without a seed, .*; let the strategy draw the fresh model: .*model=Net"
    with pytest.raises(ConfigError, match=words):
        train(arrays=draw(7))


def test_arrays_that_nothing_can_draw_again_are_refused():
    words = (
        "the initial arrays were given without a model, so a fresh model cannot be drawn; let the strategy"
    )
    with pytest.raises(ConfigError, match=words):
        train(seed=7, model=None, arrays=ArrayRecord(FEDERATION.fresh_model().state_dict()))
    with pytest.raises(ConfigError, match="no model is given, so a fresh model cannot be drawn"):
        train(model=None)


def test_rounds_in_the_place_of_arrays_are_refused():
    rounds: Any = 40
    with pytest.raises(
        ConfigError, match=r"initial_arrays is 40; give the rounds by name: start\(grid, num_rounds=40\)"
    ):
        flower.Train(**make_settings()).start(make_grid(FEDERATION), rounds)


def change_one(arrays):
    layout = Layout.of(arrays)
    params = layout.flatten(arrays)
    params[-1] += 1e-9
    return layout.to_arrays(params)


@pytest.mark.parametrize(
    "arrays",
    [
        draw(8),
        change_one(draw(7)),
        flower.fresh_arrays(nn.Linear(2, 2).double(), 7),
        ArrayRecord({f"net.{name}": array for name, array in draw(7).items()}),
        ArrayRecord({name: p.float() for name, p in FEDERATION.fresh_model().state_dict().items()}),
    ],
    ids=["another seed", "one bit", "another model", "other names", "another type"],
)
@pytest.mark.parametrize("trained", [False, True])
def test_arrays_that_differ_from_the_draw_are_refused(arrays, trained, tmp_path):
    more = {"trained": tmp_path / "first"} if trained else {}
    if trained:
        train(tmp_path / "first", seed=8)  # it started from the first of these arrays
    words = "the initial arrays are not the fresh model that seed 7 draws, so they may hold what another run learned"
    with pytest.raises(RunFolderError, match=words):
        unlearn(seed=7, arrays=arrays, **more)


def test_a_model_whose_factory_returns_learned_weights_is_refused():
    learned = FEDERATION.fresh_model().state_dict()

    def load():
        module = FEDERATION.fresh_model()
        module.load_state_dict(learned)
        return module

    with pytest.raises(ModelError, match="the model's factory returns the same weights for every seed"):
        unlearn(model=load)


def make_factory(old, noise):
    """Return a factory of old weights with a little noise."""

    def make():
        module = FEDERATION.fresh_model()
        with torch.no_grad():
            for p, part in zip(module.parameters(), split(old, module), strict=True):
                p.copy_(part + noise * torch.randn_like(part))
        return module

    return make


def test_a_model_whose_factory_adds_noise_to_learned_weights_is_refused(tmp_path):
    warm = make_factory(train(tmp_path / "first", seed=1).params, 1e-3)
    shared = r"fresh draws of the model share weights in 0.weight and 5 other parameters"
    with pytest.raises(ModelError, match=rf"{shared}, and .*first did not start from this model"):
        unlearn(model=warm, trained=tmp_path / "first", seed=2)
    with pytest.raises(ModelError, match=rf"{shared}, which a training may have learned; name the run"):
        unlearn(model=warm, seed=2)
    train(model=warm)  # it forgets nothing


def test_weights_that_the_training_itself_started_from_are_no_secret(tmp_path):
    given = make_factory(flatten(FEDERATION.fresh_model()), 1e-3)
    train(tmp_path / "first", model=given)
    assert unlearn(model=given, trained=tmp_path / "first").rounds


@pytest.mark.parametrize("number", [0, 1])
def test_a_resumed_run_keeps_its_seed(number, tmp_path):
    with pytest.raises(Killed):
        unlearn(tmp_path, grid=make_killing_grid(FEDERATION, number))
    seed = read_seed(tmp_path)
    with pytest.raises(
        RunFolderError, match=rf"was started with seed = {seed}, not 7; resubmit with the same"
    ):
        unlearn(tmp_path, seed=7)
    again = unlearn(tmp_path)
    assert again.seed == read_seed(tmp_path) == seed
    assert torch.equal(again.params, unlearn(seed=seed).params)


def test_a_resumed_run_needs_the_model_that_it_started_with(tmp_path):
    with pytest.raises(Killed):
        unlearn(tmp_path, grid=make_killing_grid(FEDERATION, 1))
    with pytest.raises(
        RunFolderError, match=r"started from other weights than seed .* draws; give the model"
    ):
        unlearn(tmp_path, model=nn.Sequential(nn.Flatten(), nn.Linear(144, 3)).double())


def test_a_run_that_an_earlier_version_started_with_the_arrays_of_another_seed_goes_on(tmp_path):
    """Earlier versions took seed 0 for batches and any arrays for the start."""
    with pytest.raises(Killed):
        flower.Train(checkpoint=tmp_path, **make_settings(seed=7)).start(
            make_killing_grid(FEDERATION, 1), num_rounds=2
        )
    config = RunFolder(tmp_path).config_path
    config.write_text(config.read_text().replace("seed = 7", "seed = 0"))
    with pytest.raises(RunFolderError, match="If it was started by an earlier version, pass the same arrays"):
        train(tmp_path, rounds=2)
    assert train(tmp_path, rounds=2, arrays=draw(7)).seed == 0


@pytest.mark.parametrize("strategy", REPLAYS)
def test_a_replay_keeps_the_seed_and_the_start_of_the_training(strategy, tmp_path):
    train(tmp_path / "first", rounds=4, keep_history=True)
    seed, few = read_seed(tmp_path / "first"), {"warmup": 2, "buffer": 1, "final": 1}
    more = make_settings(trained=tmp_path / "first", **(few if strategy is flower.FedRecover else {}))
    words = rf"replays the training in {re.escape(str(tmp_path / 'first'))} with its seed {seed}, not 7; leave seed out"
    with pytest.raises(RunFolderError, match=words):
        strategy("bee", seed=7, **more).start(make_grid(FEDERATION))
    with pytest.raises(RunFolderError, match=rf"are not the fresh model that seed {seed} draws"):
        strategy("bee", **more).start(make_grid(FEDERATION), draw(7))
    outcome = strategy("bee", checkpoint=tmp_path / "run", **more).start(make_grid(FEDERATION))
    assert outcome.seed == read_seed(tmp_path / "run") == seed
    assert read_start(tmp_path / "run") == read_start(tmp_path / "first")


def test_a_seed_that_is_shared_with_the_training_causes_a_warning(tmp_path, caplog):
    train(tmp_path / "first", seed=7)
    unlearn(tmp_path / "second", trained=tmp_path / "first")
    assert "has the seed of" not in caplog.text
    for trained in ("first", "second"):  # the second came from the first
        caplog.clear()
        unlearn(seed=7, trained=tmp_path / trained)
        assert (
            f"this run has the seed of {(tmp_path / 'first')}: the difference of their first sums"
            in caplog.text
        )


def test_an_audit_of_runs_with_fresh_seeds_is_exact(tmp_path):
    """The folders open with the data of all clients, given by the server's client ids."""
    train(tmp_path / "first", rounds=2)
    outcome = unlearn(tmp_path / "without", trained=tmp_path / "first")
    original, unlearned = (feduhb.open_run(tmp_path / name, FEDERATION) for name in ("first", "without"))
    assert unlearned.seed == outcome.seed != original.seed
    assert torch.equal(unlearned.params, outcome.params)
    found = feduhb.audit(unlearned, original, show=None, relearn=0)
    assert found.exactness is not None
    assert found.exactness.exact
    identical = {check.name: check.identical for check in found.exactness.checks}
    assert identical.items() >= {"noise": True, "never": True}.items()
    assert (found.seeds["unlearned"], found.seeds["original"]) == (outcome.seed, original.seed)


def connect(grid, **more):
    return flower.connected(grid, FEDERATION.test, FEDERATION.model, partitions=NAMES, timeout=5, **more)


def test_every_run_over_connected_clients_draws_its_own_seed_too(tmp_path, capsys):
    """A resumed run keeps its seed, and a replay keeps that of the training."""
    grid, how = make_grid(FEDERATION), {"epochs": 1, "batch_size": 8, "lr": 0.05, "show": None}
    far = connect(grid)
    kept: dict[str, Any] = {"engine": far.engine, "out": tmp_path / "first", "keep_history": True, **how}
    trained = feduhb.train(far, 3, **kept)
    replayed = feduhb.unlearn(trained, ["bee"], method="federaser", erase_history=False, show=None)
    grid.sent.clear()
    exact = feduhb.unlearn(trained, ["bee"], rounds=2, out=tmp_path / "exact", show=None)
    assert {config["seed"] for _, kind, config in grid.sent if kind == "train"} == {exact.seed}
    assert (read_seed(tmp_path / "first"), read_seed(tmp_path / "exact")) == (trained.seed, exact.seed)
    assert len({far.seed, trained.seed, exact.seed}) == 3
    assert replayed.seed == trained.seed
    here = feduhb.train(FEDERATION.reseed(trained.seed), 3, engine="loop", **how)
    alike = feduhb.unlearn(here.reseed(exact.seed), ["bee"], rounds=2, show=None)
    assert torch.equal(trained.params, here.params)
    assert torch.equal(exact.params, alike.params)
    far = connect(grid)
    again = feduhb.train(far, 3, **{**kept, "engine": far.engine}, resume=True)
    assert again.seed == trained.seed
    assert feduhb.open_run(tmp_path / "exact", connect(grid)).seed == exact.seed
    assert "the seed of" not in capsys.readouterr().err


def test_a_strategy_replays_a_training_over_connected_clients(tmp_path):
    """Its folder has no digest of the start, but its history has the start itself."""
    grid, first = make_grid(FEDERATION), tmp_path / "first"
    far, how = connect(grid), {"epochs": 1, "batch_size": 8, "lr": 0.05, "show": None}
    trained = feduhb.train(far, 3, engine=far.engine, out=first, keep_history=True, **how)
    replayed = feduhb.unlearn(trained, ["bee"], method="federaser", erase_history=False, show=None)
    other = nn.Sequential(nn.Flatten(), nn.Linear(FEDERATION.test.x[0].numel(), 4)).double()
    with pytest.raises(
        RunFolderError, match=rf"{first} started from other weights than seed {trained.seed} draws"
    ):
        flower.FedEraser("bee", **make_settings(trained=first, model=other)).start(grid)
    outcome = flower.FedEraser("bee", **make_settings(trained=first)).start(grid)
    assert outcome.seed == trained.seed
    assert torch.equal(outcome.params, replayed.params)


def test_a_training_over_connected_clients_without_a_history_is_not_replayed(tmp_path):
    far = connect(make_grid(FEDERATION))
    feduhb.train(far, 2, engine=far.engine, epochs=1, out=tmp_path / "first", show=None)
    with pytest.raises(HistoryError, match="there is no history in"):
        flower.FedEraser("bee", **make_settings(trained=tmp_path / "first")).start(make_grid(FEDERATION))


@pytest.mark.parametrize("stored", [False, True])
def test_connected_clients_share_a_seed_that_is_given_and_the_unlearning_warns(stored, tmp_path, capsys):
    """A replay must have the training's seed, and another seed reveals nothing, so both are silent."""
    far, out = connect(make_grid(FEDERATION), seed=7), tmp_path / "first" if stored else None
    trained = feduhb.train(far, 2, engine=far.engine, epochs=1, out=out, keep_history=stored, show=None)
    if stored:
        feduhb.unlearn(trained, ["bee"], method="federaser", erase_history=False, show=None)
        feduhb.unlearn(trained.reseed(8), ["bee"], rounds=1, erase_history=False, show=None)
    assert "the seed of" not in capsys.readouterr().err
    assert trained.seed == feduhb.unlearn(trained, ["bee"], rounds=1, show=None).seed == 7
    old = out or "the run that it replaces"
    assert f"this run has the seed of {old}: the difference of their first sums is" in capsys.readouterr().err
