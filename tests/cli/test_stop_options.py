"""Stop rules on the command line: words, settings, records and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feduhb
from feduhb.cli.commands import app
from feduhb.cli.unlearn import parse_stop
from feduhb.errors import ConfigError
from feduhb.runs.folder import RunFolder

CONFIG = """seed = 3
[federation]
data = "digits"
clients = 3
per_client = 40
model = "softmax"
[train]
rounds = 4
epochs = 1
lr = 0.05
engine = "loop"
[train.stop]
watch = "held_out_accuracy"
rounds = 2
first = 1
"""


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("held-out-accuracy", None, None), feduhb.patience("held_out_score")),
        (("held-out-loss", 5, 0.01), feduhb.patience("held_out_loss", rounds=5, gain=0.01)),
        (("distance", None, None), feduhb.distance_stop()),
        (("distance", 8, 0.1), feduhb.distance_stop(0.1, window=8)),
    ],
)
def test_a_word_and_two_settings_make_a_rule(words, rule):
    word, patience, gain = words
    assert parse_stop(word, None, 0.0, feduhb.never, patience, gain) == rule


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("0.6", None, 0.0, 5, None), "--patience and --gain belong to held-out-accuracy, held-out-loss, distance, but --stop is 0.6; write for example --stop held-out-accuracy"),
        (("distance", 5, 0.0, None, None), "--window and --floor belong to the paper's rule, but --stop is distance; give --patience and --gain instead"),
        (("held-out", None, 0.0, None, None), "--stop 'held-out' is not a stop rule; write auto, never, held-out-accuracy, held-out-loss, distance, or the paper's lambda, such as 0.6"),
    ],
)  # fmt: skip
def test_settings_of_another_rule_are_refused(given, words):
    word, window, floor, patience, gain = given
    with pytest.raises(ConfigError) as error:
        parse_stop(word, window, floor, feduhb.never, patience, gain)
    assert str(error.value) == words


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("stops")
    (place / "config.toml").write_text(CONFIG)
    done = CliRunner().invoke(
        app, ["train", str(place / "config.toml"), "--out", str(place / "old"), "--keep", "best", "--json"]
    )
    assert done.exit_code == 0, done.output
    return place / "old"


def test_a_training_records_its_rule_and_what_it_keeps(trained):
    train = RunFolder(trained).config()["train"]
    assert (train["keep"], train["stop"]["watch"]) == ("best", "held_out_score")
    assert 1 <= RunFolder(trained).result().get("kept_round", 0) <= 4


def test_an_unlearning_does_too(trained, tmp_path):
    words = ["--stop", "held-out-accuracy", "--patience", "3", "--gain", "0.01", "--keep", "best", "--record", "held-out,distance"]  # fmt: skip
    how = ["unlearn", str(trained), "--forget", "c01", "--rounds", "3", "--out", str(tmp_path / "new"), "--json"]  # fmt: skip
    done = CliRunner().invoke(app, [*how, *words])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kept_round"] in {1, 2}
    unlearn = RunFolder(tmp_path / "new").config()["unlearn"]
    assert unlearn["stop"] == {"watch": "held_out_score", "rounds": 3, "gain": 0.01, "smooth": 5, "first": 10}
    assert (unlearn["keep"], unlearn["record"]) == ("best", ["held_out", "distance"])
    assert RunFolder(tmp_path / "new").rounds()[-1].distance is not None
    opened = feduhb.open_run(tmp_path / "new")
    assert opened.settings.keep == "best", "an audit can repeat the training"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('watch = "held_out_loss"\npatience = 3', "there is no setting train.stop.patience; it knows watch, rounds, gain, smooth, first"),
        ('watch = "distance"\nshares = 0.1', "there is no setting train.stop.shares; did you mean share?"),
        ("scal = 0.5", "there is no setting train.stop.scal; did you mean scale?"),
        ('watch = "moon"', "patience watches 'moon'; give 'held_out_score', 'held_out_accuracy' or 'held_out_loss'"),
        ('watch = "distance"\nwindow = "5"', "train.stop.window = '5' is invalid"),
    ],
)  # fmt: skip
def test_a_stop_table_that_is_wrong_is_refused_by_name(table, words, tmp_path):
    (tmp_path / "config.toml").write_text(f"[train.stop]\n{table}\n")
    done = CliRunner().invoke(app, ["train", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_a_word_that_keep_does_not_know(trained, tmp_path):
    how = ["unlearn", str(trained), "--forget", "c01", "--out", str(tmp_path / "new"), "--keep", "first"]
    done = CliRunner().invoke(app, how)
    assert done.exit_code == 2
    assert "keep is 'first'; give 'last', or 'best'" in " ".join(done.output.split())
