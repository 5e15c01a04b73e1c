"""What the page on exports says to type, works."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest
from typer.testing import CliRunner

import feduhb
from feduhb.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
CONFIG = 'seed = 1\n[federation]\ndata = "digits"\nclients = 3\nmodel = "softmax"\n[train]\nrounds = 2\nepochs = 1\n'


def list_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


class Tracker(ModuleType):
    """Stands in for MLflow, which is not installed here: it keeps what the lambda of the page passes on."""

    logged: list[tuple[int, Any]]

    def start_run(self) -> Tracker:
        self.logged = []
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, {**metrics}))


@pytest.mark.slow
def test_the_python_and_the_commands_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker = Tracker("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    Path("federation.toml").write_text(CONFIG)
    federation = feduhb.load("digits", clients=3, per_client=20, model="softmax", seed=1)
    trained = feduhb.train(federation, 2, epochs=1, out="runs/train", show=None)
    run = feduhb.unlearn(trained, ["c00"], rounds=2, out="runs/first-feduhb", show=None)
    for block in list_blocks("sh"):
        for line in block.strip().splitlines():
            program, *words = shlex.split(line)
            if program == "feduhb":
                assert CliRunner().invoke(app, words).exit_code == 0, line
    Path("model.safetensors").unlink()
    names: dict[str, Any] = {"feduhb": feduhb, "federation": federation, "run": run}
    exports, board, tracked, stopping, report = list_blocks("python")
    for block in (exports, board, tracked):
        exec(re.sub(r"rounds=\d+", "rounds=2", block), names)  # noqa: S102
    assert [step for step, _ in tracker.logged] == [0, 1]
    assert {path.name for path in Path("boards").iterdir()} == {"train", "train-2", "feduhb"}
    Path("runs/first").rename("runs/before")
    exec(stopping.replace("rounds=200", "rounds=4"), names)  # noqa: S102
    exec(report.replace("[trained, unlearned]", "[trained, run]"), names)  # noqa: S102
    assert Path("report/report.html").exists()
