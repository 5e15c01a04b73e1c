"""What a request needs is made once: the request is parsed once, the fresh model drawn once, a data set read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feduhb.cli import app
from feduhb.core import flat
from feduhb.data import federation, load
from feduhb.data.request import Request

pytestmark = pytest.mark.slow

CONFIG = """
seed = 3
[federation]
data = "digits"
clients = 4
model = "softmax"
[train]
rounds = 2
epochs = 1
keep_history = true
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of what is drawn, read and parsed, by name."""
    counted: Counter[str] = Counter()

    def count(name: Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            counted[name(*arguments)] += 1
            return function(*arguments, **options)

        return counting

    monkeypatch.setattr(federation, "draw_model", count(lambda *_: "draw", flat.draw_model))
    monkeypatch.setattr(Request, "parse", staticmethod(count(lambda text: f"parse {text}", Request.parse)))
    load._read_once.cache_clear()
    readers = {
        name: count(lambda *_, name=name: f"read {name}", read) for name, read in load.DATASETS.items()
    }
    monkeypatch.setattr(load, "DATASETS", readers)
    return counted


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CONFIG)
    run("train", tmp_path / "config.toml", "--out", tmp_path / "run")
    return tmp_path / "run"


def run(*arguments: object) -> None:
    ended = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize("method", ["feduhb", "federaser"])
def test_in_an_unlearning(trained: Path, calls: Counter[str], method: str):
    run("unlearn", trained, "--forget", "c01", "--method", method, "--rounds", 2)
    assert calls == {"read digits": 1, "draw": 1, "parse c01": 1}


def test_in_a_comparison(trained: Path, calls: Counter[str]):
    run("compare", trained, "--forget", "c01", "--rounds", 2)
    assert calls == {"read digits": 1, "draw": 1, "parse c01": 1}


def test_an_audit_of_several_runs_reads_the_data_set_once(trained: Path, calls: Counter[str]):
    run("unlearn", trained, "--forget", "c01", "--rounds", 2)
    calls.clear()
    load._read_once.cache_clear()
    run("audit", f"{trained}-feduhb", "--original", trained, "--canaries", 0, "--relearn", 0)
    assert calls["read digits"] == 1
