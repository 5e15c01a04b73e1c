"""What is written into a run folder is read again as it was."""

from __future__ import annotations

import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st

from feduhb.core.own_code import is_code
from feduhb.data.backdoor import Backdoor
from feduhb.data.load import FederationSettings
from feduhb.data.table import TableSettings
from feduhb.runs.config import (
    Config,
    TrainSettings,
    UnlearnSettings,
    find_difference,
    parse_config,
    read_config,
    to_toml,
)
from feduhb.stopping import DynamicStop

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
whole = st.integers(-(2**62), 2**62)
positive = st.integers(1, 10**6)
reals = st.floats(allow_nan=False, allow_infinity=False)
shares = st.floats(0, 1, exclude_max=True, allow_nan=False)


def maybe(some: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | some


backdoors = st.builds(
    Backdoor, clients=st.lists(words, min_size=1, max_size=3).map(tuple), target=st.integers(0, 99),
    share=st.floats(0, 1, exclude_min=True), size=positive, bright=reals,
)  # fmt: skip
scores = maybe(st.lists(st.sampled_from(["accuracy", "auroc", "rmse"]), min_size=1, unique=True).map(tuple))
named = st.builds(
    FederationSettings, data=words.filter(lambda name: not is_code(name)), clients=positive, partition=words,
    per_client=maybe(positive), held_out=shares, model=maybe(words), backdoor=maybe(backdoors), scores=scores,
)  # fmt: skip
columns = st.lists(words, max_size=3, unique=True).map(tuple)
tables = st.builds(
    TableSettings, path=words, client=words, target=words | st.lists(words, min_size=1).map(tuple), row=maybe(words),
    test=st.floats(0, 1, exclude_min=True, exclude_max=True) | words, numbers=maybe(columns.filter(len)), drop=columns,
    categories=st.dictionaries(words, st.lists(words, min_size=1, unique=True).map(tuple), max_size=2),
    dates=st.dictionaries(words, st.dates().map(str), max_size=2), fills=st.dictionaries(words, reals | words, max_size=2),
    classes=maybe(st.lists(words, min_size=2, unique=True).map(tuple)), standardize=st.booleans(), loss=maybe(words),
    scaling=st.dictionaries(words, st.tuples(reals, st.floats(1e-3, 1e3)), max_size=2),
)  # fmt: skip
of_tables = st.builds(FederationSettings, table=tables, held_out=shares, model=maybe(words), scores=scores)
of_code = st.builds(FederationSettings, data=st.sampled_from(["package.module:make", "my data.py:make"]))
federations = named | of_tables | of_code
rates = st.floats(0, exclude_min=True, allow_infinity=False)
trains = st.builds(
    TrainSettings, rounds=positive, epochs=st.integers(1, 99), batch_size=positive, lr=rates, l2=st.just(0.0) | rates,
    aggregate=words, clients_per_round=maybe(positive), engine=words, momentum=shares, clip_norm=maybe(rates),
    schedule=st.sampled_from(["constant", "linear", "cosine", "decay:0.5"]), proximal=st.just(0.0) | rates,
)  # fmt: skip
stops = st.builds(
    DynamicStop, scale=st.floats(0, 99), window=maybe(st.integers(2, 99)), floor=st.floats(0, 99),
    momentum=shares, min_rounds=positive, as_printed=st.booleans(),
)  # fmt: skip
unlearns = st.builds(
    UnlearnSettings, forget=words, method=words, rounds=positive,
    settings=st.dictionaries(words, reals | whole | words, max_size=4), stop=maybe(stops),
)  # fmt: skip
configs = st.builds(
    Config, seed=whole, federation=maybe(federations), train=trains, unlearn=maybe(unlearns)
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(configs)
def test_written_and_read_again_is_the_same(config):
    again = parse_config(tomllib.loads(to_toml(config)), "again")
    assert again == config
    assert to_toml(again) == to_toml(config)
    if config.unlearn is not None and again.unlearn is not None:
        kinds = {key: type(value) for key, value in config.unlearn.settings.items()}
        assert {key: type(value) for key, value in again.unlearn.settings.items()} == kinds


def test_through_a_file(tmp_path):
    config = Config(
        seed=3,
        federation=FederationSettings(clients=4, backdoor=Backdoor(("c00", "Zürich"))),
        unlearn=UnlearnSettings(forget="c00,Zürich:0-3", settings={"momentum": 0.9}, stop=DynamicStop()),
    )
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert read_config(path) == config


def test_what_is_none_is_left_out():
    text = to_toml(Config(federation=FederationSettings()))
    assert "per_client" not in text
    assert "unlearn" not in text
    assert tomllib.loads(text)["federation"]["held_out"] == 0.25


@settings(deadline=None, max_examples=30)
@given(configs, configs)
def test_two_configs_differ_in_words_exactly_where_their_files_do(one, other):
    a, b = tomllib.loads(to_toml(one)), tomllib.loads(to_toml(other))
    assert find_difference(a, a) is None
    assert (find_difference(a, b) is None) == (a == b)
