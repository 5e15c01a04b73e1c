"""Config files as people write them: what they may leave out, and how their slips are told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from data.wording import refused
from feduhb.data.backdoor import Backdoor
from feduhb.data.load import FederationSettings
from feduhb.errors import ConfigError
from feduhb.runs.config import (
    Config,
    TrainSettings,
    UnlearnSettings,
    find_difference,
    parse_config,
    read_config,
)
from feduhb.stopping import DynamicStop


def parsed(text: str) -> Config:
    return parse_config(tomllib.loads(text), "my.toml")


def test_an_empty_file_is_the_papers_set_up():
    config = parsed("")
    assert config == Config()
    train = config.train
    assert (train.rounds, train.epochs, train.batch_size, train.lr, train.l2) == (40, 5, 64, 0.005, 0.0)
    assert (train.aggregate, train.clients_per_round, train.engine) == ("weighted_mean", None, "auto")
    assert (config.seed, config.federation, config.unlearn) == (0, None, None)


def test_an_empty_federation_table():
    federation = parsed("[federation]").federation
    assert federation == FederationSettings()
    assert federation is not None
    assert (federation.data, federation.clients, federation.partition) == ("mnist-5k", 20, "iid")
    assert (federation.per_client, federation.held_out, federation.model, federation.backdoor) == (
        None,
        0.25,
        None,
        None,
    )


def test_a_full_file(tmp_path):
    path = tmp_path / "full.toml"
    path.write_text("""
        seed = 7
        [federation]
        data = "digits"
        clients = 6
        partition = "dirichlet:0.5"
        per_client = 50
        held_out = 0
        model = "softmax"
        [federation.backdoor]
        clients = ["c00", "c01"]
        target = 3
        [train]
        rounds = 4
        lr = 1
        clients_per_round = 3
        [unlearn]
        forget = "c00,class:3"
        settings = {momentum = 0.5, epochs = 2, aggregate = "median"}
        [unlearn.stop]
        scale = 0.4
        window = 5
    """)
    assert read_config(path) == Config(
        seed=7,
        federation=FederationSettings(
            data="digits", clients=6, partition="dirichlet:0.5", per_client=50, held_out=0.0, model="softmax",
            backdoor=Backdoor(("c00", "c01"), target=3),
        ),
        train=TrainSettings(rounds=4, lr=1.0, clients_per_round=3),
        unlearn=UnlearnSettings(
            forget="c00,class:3",
            settings={"momentum": 0.5, "epochs": 2, "aggregate": "median"},
            stop=DynamicStop(0.4, window=5),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("sede = 1", "sede", "did you mean seed?"),
        ("[trian]", "trian", "did you mean train?"),
        ("[train]\nround = 3", "train.round", "did you mean rounds?"),
        ("[federation]\nparttition = 'iid'", "federation.parttition", "did you mean partition?"),
        (
            "[federation.backdoor]\nclients = ['c00']\nshar = 0.5",
            "federation.backdoor.shar",
            "did you mean share?",
        ),
        (
            "[unlearn]\nforget = 'c00'\n[unlearn.stop]\nscales = 1",
            "unlearn.stop.scales",
            "did you mean scale?",
        ),
        ("xyz = 1", "xyz", "it knows seed, federation, train, unlearn"),
        ("[unlearn]\nqqq = 1", "unlearn.qqq", "it knows forget, method, rounds, settings, stop"),
    ],
)
def test_unknown_settings_get_the_nearest_known_one(text, name, hint):
    with refused(ConfigError, f"my.toml: there is no setting {name}; {hint}"):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("seed = 'x'", "seed = 'x'"),
        ("seed = 1.5", "seed = 1.5"),
        ("federation = 3", "federation = 3"),
        ("train = 'fast'", "train = 'fast'"),
        ("[train]\nrounds = 'many'", "train.rounds = 'many'"),
        ("[train]\nlr = [0.1]", "train.lr = [0.1]"),
        ("[train]\naggregate = 3", "train.aggregate = 3"),
        ("[federation]\nclients = 2.5", "federation.clients = 2.5"),
        ("[federation]\nper_client = 'all'", "federation.per_client = 'all'"),
        ("[federation.backdoor]\nclients = 'c00'", "federation.backdoor.clients = 'c00'"),
        ("[federation.backdoor]\nclients = [1]", "federation.backdoor.clients.0 = 1"),
        ("[unlearn]\nforget = ['c00']", "unlearn.forget = ['c00']"),
        ("[unlearn]\nforget = 'c00'\nstop = 0.6", "unlearn.stop = 0.6"),
    ],
)
def test_wrong_types_are_told_with_their_place(text, place):
    with refused(ConfigError, f"my.toml: {place} is invalid: "):
        parsed(text)


@pytest.mark.parametrize(
    "text",
    [
        "[train]\nrounds = true",
        "seed = true",
        "[train]\nrounds = '40'",
        "[train]\nlr = '0.1'",
        "[train]\nlr = true",
    ],
)
def test_truths_and_words_are_not_taken_for_numbers(text):
    """TOML has types: `rounds = true` must not train for one round."""
    with refused(ConfigError, "my.toml: ", " is invalid: "):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[unlearn]\nmethod = 'retrain'", "unlearn.forget"),
        ("[federation.backdoor]\ntarget = 1", "federation.backdoor.clients"),
    ],
)
def test_a_required_setting_that_is_missing_is_named_without_a_value(text, place):
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert str(caught.value).startswith(f"my.toml: {place} ")
    assert "{" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[federation]\nheld_out = 1.5",
            "held_out is 1.5; give a share of at least 0",
        ),
        ("[federation]\nheld_out = 1", "held_out is 1.0; give a share of at least 0"),
        ("[federation]\nheld_out = -0.1", "held_out is -0.1; give a share of at least 0"),
        ("[federation]\nheld_out = nan", "held_out is nan; give a share of at least 0"),
        ("[train]\nrounds = 0", "rounds is 0; give 1 or more"),
        ("[train]\nrounds = -4", "rounds is -4; give 1 or more"),
        ("[unlearn]\nforget = 'c00'\nrounds = -1", "rounds is -1; give 0 or more"),
        (
            "[federation.backdoor]\nclients = []",
            "a backdoor needs clients that carry it; name some, such as c00,c01",
        ),
        (
            "[federation.backdoor]\nclients = ['c00']\nshare = 2.0",
            "the backdoor's share is 2.0; give a share",
        ),
        (
            "[federation.backdoor]\nclients = ['c00']\nsize = 0",
            "the backdoor's size is 0; give its side in pixels",
        ),
        (
            "[unlearn]\nforget = 'c00'\n[unlearn.stop]\nwindow = 1",
            "the stop rule's window is 1; give a whole number, 2 or more",
        ),
        ("[unlearn]\nforget = 'c00'\n[unlearn.stop]\nscale = -1", "the stop rule's scale (lambda) is -1.0"),
    ],
)
def test_values_out_of_range(text, words):
    with refused(ConfigError, f"my.toml: {words}"):
        parsed(text)


@pytest.mark.parametrize(
    "text", ["rounds", "[train\nrounds = 3", "seed = 1\nseed = 2", "seed = ", 'data = "a\nb"']
)
def test_a_file_that_is_not_toml(text, tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text(text)
    with refused(ConfigError, f"{path} is not TOML: "):
        read_config(path)


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "odd.toml"
    path.write_bytes(b"seed = 1\n# \xff\xfe")
    with refused(ConfigError, f"{path} is not TOML: "):
        read_config(path)


def test_a_missing_file():
    with refused(
        ConfigError,
        "there is no config file gone.toml; check the path, or write one: feduhb train --help shows an example",
    ):
        read_config(Path("gone.toml"))


def test_a_folder_in_place_of_a_file(tmp_path):
    with refused(ConfigError, f"{tmp_path} cannot be read: Is a directory"):
        read_config(tmp_path)


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("sede = 1")
    with refused(ConfigError, f"{path}: there is no setting sede; did you mean seed?"):
        read_config(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({}, {}, None),
        ({"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}, None),
        ({"seed": 1}, {"seed": 2}, "seed = 1, not 2"),
        ({"train": {"lr": 0.1, "rounds": 3}}, {"train": {"lr": 0.1, "rounds": 4}}, "train.rounds = 3, not 4"),
        ({"a": {"b": {"c": "x"}}}, {"a": {"b": {"c": "y"}}}, "a.b.c = 'x', not 'y'"),
        ({"a": 1}, {}, "a = 1, not None"),
        ({}, {"a": 1}, "a = None, not 1"),
        ({"a": {"b": 1}}, {"a": 5}, "a = {'b': 1}, not 5"),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, "a = 1, not 2"),
        ({"a": {"x": 1}, "b": 1}, {"a": {"x": 1}, "b": 2}, "b = 1, not 2"),
        ({"a": None}, {}, None),
    ],
)
def test_the_first_difference_in_words(old, new, words):
    assert find_difference(old, new) == words
