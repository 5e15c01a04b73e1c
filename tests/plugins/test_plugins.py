"""Methods, engines and data sets of another package, installed beside this one, work by their names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feduhb.cli import app
from forking import ForkServer
from killing import Commands, Counted

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CONFIG = """
seed = 1
[federation]
data = "stripes"
clients = 4
model = "softmax"
[train]
rounds = 2
epochs = 1
engine = "rounded"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the other package installed in it, as pip installs any package."""
    folder = tmp_path_factory.mktemp("plugins")
    source = shutil.copytree(HERE / "feduhb-mine", folder / "source")
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    command = [sys.executable, *install, "--disable-pip-version-check", "--root-user-action=ignore"]
    subprocess.run(
        [*command, "--target", folder / "site", source], check=True, capture_output=True, text=True
    )
    return folder / "site"


@pytest.fixture(scope="module")
def start(site: Path) -> Iterator[Callable[..., Counted]]:
    """Run a command where the other package is installed, in processes that have not yet looked for packages."""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with ForkServer("preloaded", environment=environment) as server:
        commands = Commands(server.address)
        yield lambda *arguments: commands.feduhb(*arguments, "--json")


@pytest.fixture(scope="module")
def feduhb(start) -> Callable[..., dict[str, Any]]:
    """Run such a command to a good end, and return its answer."""

    def run(*arguments: object) -> dict[str, Any]:
        ended = start(*arguments)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return run


@pytest.fixture(scope="module")
def trained(feduhb, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on the other package's data set by its engine."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "config.toml").write_text(CONFIG)
    answer = feduhb("train", folder / "config.toml", "--out", folder / "run")
    assert answer["engine"]["name"] == "rounded"
    return folder / "run"


def test_a_method_of_another_package_is_compared_by_name(feduhb, trained, tmp_path):
    answer = feduhb(
        "compare",
        trained,
        "--forget",
        "c00",
        "--methods",
        "mine,retrain",
        "--rounds",
        2,
        "--out",
        tmp_path,
    )
    assert [view["run"] for view in answer["runs"][1:]] == ["mine", "Retrain"]
    result = json.loads((tmp_path / "mine" / "result.json").read_text())
    assert result["settings"] == {"step_size": 0.01, "epochs": 1}, "epochs are the run's"


def test_its_settings_are_set_like_any_others_and_its_run_takes_the_next_request(feduhb, trained, tmp_path):
    words = ["--rounds", 2, "--method", "mine"]
    first = feduhb(
        "unlearn", trained, "--forget", "c00", *words, "--step-size", 0.02, "--out", tmp_path / "a"
    )
    assert first["settings"]["step_size"] == 0.02
    second = feduhb("unlearn", tmp_path / "a", "--forget", "c01", *words, "--out", tmp_path / "b")
    assert second["clients"] == ["c02", "c03"]


def test_where_none_is_named_the_built_in_methods_are_compared(feduhb, trained, tmp_path):
    """A method of another package is compared when it is named; one that is broken stands in nobody's way."""
    answer = feduhb("compare", trained, "--forget", "c00", "--rounds", 1, "--out", tmp_path)
    assert [view["run"] for view in answer["runs"][1:]] == ["FedUHB", "Retrain"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["unlearn", "--forget", "c00", "--method", "mien"], "fedaf, fedrecovery, crab, wu, broken, mine"),
        (["unlearn", "--forget", "c00", "--method", "broken"], "'broken' of feduhb.methods cannot be imported from feduhb-mine 1.0"),
    ],
)  # fmt: skip
def test_a_name_that_is_not_there_is_told_what_is(start, trained, tmp_path, arguments, says):
    command, *options = arguments
    fresh = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("later.json"))
    ended = start(command, fresh, *options)
    assert ended.returncode == 2
    assert says in ended.stderr


def test_without_the_package_its_run_says_what_is_missing(trained):
    ended = CliRunner().invoke(app, ["unlearn", str(trained), "--forget", "c00"])
    assert ended.exit_code == 2
    assert "there is no data set 'stripes'" in ended.stderr
    assert "Traceback" not in ended.stderr
