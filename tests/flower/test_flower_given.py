"""A given start over a grid: the module's own weights, declared as public, recorded, and the same in runs that follow."""

import copy
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

import feduhb
from feduhb import flower
from feduhb.core.flat import flatten
from feduhb.core.modules import digest_carried, list_carried
from feduhb.errors import ConfigError, ModelError, RunFolderError
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.folder import RunFolder
from flower.gridding import Killed, make_grid, make_killing_grid
from flower.kinds import Tagger, make_federation, make_frozen, make_normed, make_settings

FROZEN = make_federation(make_frozen(), start="given", seed=7)
WHOLE = make_federation(make_normed(), start="given", seed=7)  # everything is trained
WARNING = "every run starts from the weights that were given"


def train(folder=None, federation=WHOLE, arrays=None, rounds=1, grid=None, **more):
    settings = make_settings(federation, **{"seed": None, "epochs": 1, **more})
    return flower.Train(checkpoint=folder, **settings).start(grid or make_grid(federation), arrays, rounds)


def unlearn(folder=None, federation=WHOLE, grid=None, kind: Any = flower.FedUHB, **more):
    settings = make_settings(federation, **{"seed": None, "epochs": 1, **more})
    return kind("bee", checkpoint=folder, **settings).start(grid or make_grid(federation), num_rounds=2)


def read_start(folder):
    return RunFolder(folder).config()["start"]


def change(module):
    """Return a module that has learned something."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        next(p for p in other.parameters() if p.requires_grad)[0] += 0.5
    return other


@pytest.mark.parametrize("federation", [FROZEN, WHOLE], ids=["frozen", "whole"])
def test_the_records_hold_digest_and_declaration_and_the_log_warns_once(federation, tmp_path, caplog):
    module = federation.model
    before = copy.deepcopy(module.state_dict())
    train(tmp_path / "first", federation)
    assert caplog.text.count(WARNING) == 1
    table = read_start(tmp_path / "first")
    assert table["given"] is True
    assert table["sha256"] == digest_weights(flatten(module))
    assert table.get("carried_sha256") == digest_carried(module)
    caplog.clear()
    unlearn(tmp_path / "without", federation, trained=tmp_path / "first")
    assert caplog.text.count(WARNING) == 1
    assert read_start(tmp_path / "without") == table
    assert f"SHA-256 {table['sha256']}" in RunFolder(tmp_path / "without").result().get("start", "")
    seeds = [RunFolder(tmp_path / name).config()["seed"] for name in ("first", "without")]
    assert seeds[0] != seeds[1]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_fresh_start_has_no_such_table_and_no_warning(tmp_path, caplog):
    train(tmp_path, WHOLE.replace(start="fresh"))
    assert "start" not in RunFolder(tmp_path).config()
    assert WARNING not in caplog.text


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (
            {},
            {"model": change(WHOLE.model)},
            "started from other given weights, with the SHA-256",
        ),
        (
            {"start": "fresh"},
            {},
            "started from a fresh model, but this strategy starts from given weights; give it with start='fresh'",
        ),
        (
            {},
            {"start": "fresh"},
            "started from given weights, but this strategy starts from a fresh model; give it with start='given'",
        ),
    ],
    ids=["other weights", "given after fresh", "fresh after given"],
)
@pytest.mark.parametrize("what", ["unlearn", "resume"])
def test_another_start_is_refused(first, then, words, what, tmp_path):
    if what == "unlearn":
        train(tmp_path / "first", **first)
        with pytest.raises(RunFolderError, match=rf"first {words}"):
            unlearn(tmp_path / "without", trained=tmp_path / "first", **then)
        assert not (tmp_path / "without").exists()
        return
    with pytest.raises(Killed):
        train(tmp_path, rounds=2, grid=make_killing_grid(WHOLE, 1), **first)
    with pytest.raises(RunFolderError, match=words):
        train(tmp_path, rounds=2, **then)
    assert len(train(tmp_path, rounds=2, **first).rounds) == 2


def test_another_backbone_is_refused(tmp_path):
    other = make_frozen()
    next(value for _, value in list_carried(other)).flatten()[0] += 1e-3
    train(tmp_path, FROZEN)
    with pytest.raises(RunFolderError, match="was made with other frozen parameters or constant buffers"):
        unlearn(None, FROZEN, trained=tmp_path, model=other)


def test_other_constants_of_a_fresh_model_are_refused_and_those_that_the_seed_draws_are_not(tmp_path):
    def make(scale=1.0, noise=0.0):
        made = Tagger()
        made.places = made.places * scale + noise * torch.randn(4, 1)
        return made

    settings: dict[str, Any] = {"federation": make_federation(make, as_tokens=True)}
    train(tmp_path / "table", **settings)
    assert read_start(tmp_path / "table")["given"] is False
    with pytest.raises(RunFolderError, match="was made with other frozen parameters or constant buffers"):
        unlearn(trained=tmp_path / "table", model=lambda: make(2.0), **settings)

    def draw():
        return make(noise=1.0)

    drawn: dict[str, Any] = {"federation": make_federation(draw, as_tokens=True)}
    train(tmp_path / "drawn", evaluate_every=1, **drawn)
    outcome = unlearn(tmp_path / "other", trained=tmp_path / "drawn", evaluate_every=1, **drawn)
    assert outcome.left_out == {}
    tables = [read_start(tmp_path / name) for name in ("drawn", "other")]
    assert tables[0]["carried_sha256"] != tables[1]["carried_sha256"]


def test_a_replay_starts_at_the_given_weights(tmp_path):
    train(tmp_path / "first", rounds=2, keep_history=True)
    with pytest.raises(RunFolderError, match="started from other given weights"):
        unlearn(kind=flower.FedEraser, trained=tmp_path / "first", model=change(WHOLE.model))
    outcome = unlearn(tmp_path / "without", kind=flower.FedEraser, trained=tmp_path / "first")
    assert outcome.seed == RunFolder(tmp_path / "first").config()["seed"]
    assert read_start(tmp_path / "without") == read_start(tmp_path / "first")


def test_arrays_must_be_the_modules_own_weights():
    own = flower.fresh_arrays(WHOLE.model, given=True)
    state = {name: value for name, value in WHOLE.fresh_model().state_dict().items() if value.dim()}
    wanted = train(seed=7).params
    for arrays in (own, ArrayRecord(state)):
        assert torch.equal(train(seed=7, arrays=arrays).params, wanted)
    with pytest.raises(
        RunFolderError, match="the initial arrays are not the weights of the module; leave them out"
    ):
        train(arrays=flower.fresh_arrays(change(WHOLE.model), given=True))


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        (
            None,
            ConfigError,
            "a given start needs the module with its weights; give it to the strategy: model=net",
        ),
        (
            make_normed,
            ModelError,
            "a given start needs the module itself, with its weights, and not a factory",
        ),
    ],
)
def test_a_given_start_without_a_module_is_refused(model, kind, words):
    with pytest.raises(kind, match=words):
        train(model=model)


def test_a_frozen_module_without_the_declaration_is_refused():
    with pytest.raises(ModelError, match=r"parameter 0.0.weight is frozen .*start='given'"):
        train(None, FROZEN, start="fresh")


def test_start_is_a_setting_and_a_method():
    with pytest.raises(ConfigError, match="start is 'warm'; give 'fresh', or 'given' for a module"):
        flower.Train(start="warm")  # pyright: ignore[reportArgumentType]
    strategy = flower.FedUHB("bee", model=nn.Linear(2, 2), start="given")
    assert strategy.given
    assert callable(strategy.start)
    assert not flower.FedUHB("bee").given


def test_the_model_of_a_run_is_that_of_the_loop(tmp_path):
    """Also after a timeout was given, for which the strategy is copied."""
    settings = make_settings(FROZEN)
    outcome = flower.Train(checkpoint=tmp_path, **settings).start(make_grid(FROZEN), num_rounds=2, timeout=5)
    here = feduhb.train(FROZEN, 2, epochs=2, batch_size=4, lr=0.05, engine="loop", show=None)
    assert torch.equal(outcome.params, here.params)
    assert set(outcome.arrays) == {"1.weight", "1.bias"}
