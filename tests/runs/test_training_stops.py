"""A stop rule for the training: recorded, resumed, opened again and repeated by an audit."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

import feduhb
from federations import ragged
from feduhb.api import train_from
from feduhb.errors import ConfigError, RunFolderError
from feduhb.report.runs import read_runs
from feduhb.runs.config import parse_config
from feduhb.runs.folder import RunFolder

HOW: dict[str, Any] = {"epochs": 1, "lr": 0.05, "engine": "loop", "show": None}
RULE = feduhb.dynamic_stop(50.0, window=3)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> feduhb.Run:
    return feduhb.train(ragged(), 30, **HOW, stop=RULE, out=tmp_path_factory.mktemp("stops") / "first")


def test_it_is_recorded_and_opened_again(stopped):
    assert len(stopped.rounds) == 3
    assert stopped.stopped.startswith("movement ")
    config = RunFolder(stopped.folder).config()
    assert config["train"]["stop"] == {
        "scale": 50.0, "window": 3, "floor": 0.0, "momentum": 0.9, "min_rounds": 3, "as_printed": False,
    }  # fmt: skip
    again = feduhb.open_run(stopped.folder, ragged())
    assert (again.stop, again.scheduled, again.settings) == (RULE, 30, stopped.settings)
    (view,) = read_runs([stopped.folder])
    assert (view.judged, view.fired) == (True, 3)


def test_a_training_without_one_has_the_config_that_it_had(tmp_path):
    feduhb.train(ragged(), 1, **HOW, out=tmp_path / "run")
    assert "stop" not in (tmp_path / "run" / "config.toml").read_text()
    assert not read_runs([tmp_path / "run"])[0].judged


def test_a_config_file_writes_it_as_unlearn_does(tmp_path):
    text = 'seed = 3\n[federation]\ndata = "digits"\nclients = 3\nper_client = 20\nmodel = "softmax"\n'
    rule = "[train]\nrounds = 9\nepochs = 1\n[train.stop]\nscale = 1e6\n"
    run = train_from(parse_config(tomllib.loads(text + rule), "c.toml"), tmp_path / "run", show=None)
    assert len(run.rounds) == 3
    assert feduhb.open_run(tmp_path / "run").stop == feduhb.dynamic_stop(1e6)
    with pytest.raises(ConfigError, match=r"there is no setting train\.stop\.scala; did you mean scale\?"):
        parse_config(tomllib.loads(f"{text}[train.stop]\nscala = 1.0\n"), "c.toml")


def test_a_killed_training_stops_where_the_whole_one_does(stopped, tmp_path):
    def kill(record: feduhb.Round) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    out, how = tmp_path / "run", {**HOW, "stop": RULE, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        feduhb.train(ragged(), 30, **{**how, "show": kill})
    with pytest.raises(RunFolderError, match=r"was started with a table \[train\.stop\], not none"):
        feduhb.train(ragged(), 30, **{**how, "stop": feduhb.never}, resume=True)
    resumed = feduhb.train(ragged(), 30, **how, resume=True)
    assert torch.equal(resumed.params, stopped.params)
    assert RunFolder(out).is_finished()


def test_an_unlearning_keeps_its_own_rule(stopped, tmp_path):
    new = feduhb.unlearn(stopped, ["ant"], method="retrain", rounds=5, out=tmp_path / "new", show=None)
    assert len(new.rounds) == 5
    opened = feduhb.open_run(tmp_path / "new", ragged())
    assert opened.stop == feduhb.never
    assert opened.settings.stop == RULE, "an audit can repeat the training"


@pytest.mark.parametrize("rule", [0.6, feduhb.dynamic_stop, len, "auto"])
def test_a_rule_that_no_config_can_hold_is_refused(rule):
    with pytest.raises(
        ConfigError, match=r"which config\.toml cannot record .* give feduhb\.dynamic_stop\(0\.6\) or"
    ):
        feduhb.train(ragged(), 1, **HOW, stop=rule)


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
def test_an_audit_repeats_the_training_with_its_rule(stopped, given, tmp_path):
    """The original control has the rounds of the training, whether it is given or made again."""
    new = feduhb.unlearn(
        stopped, ["dog"], rounds=2, stop=feduhb.never, out=tmp_path / "new", erase_history=False, show=None
    )
    seen: dict[str, int] = {}

    class Counter:
        """An observer that counts the rounds of each step."""

        @contextlib.contextmanager
        def watch(self, label: str) -> Generator[Callable[[feduhb.Round], None]]:
            yield lambda record: seen.update({label: record.round + 1})

    found = feduhb.audit(new, stopped if given else None, relearn=0, shadows=0, show=Counter())
    assert found.cost["original"].rounds == 3
    trainings = {"noise: retrain"} if given else {"original: training", "noise: training"}
    assert {label for label, rounds in seen.items() if rounds == 3} == trainings
    assert seen["retrain"] == 30, "Retrain runs every scheduled round"
