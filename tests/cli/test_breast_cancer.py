"""The table breast-cancer from the command line: trained, unlearned, audited and reported by its scores; and on every engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import feduhb
from feduhb.cli import app

pytestmark = pytest.mark.slow

CONFIG = """\
seed = 1
[federation]
data = "breast-cancer"
clients = 4
partition = "dirichlet:0.5"
model = "logistic"
scores = ["auroc", "accuracy"]
[federation.canaries]
clients = ["c01"]
[train]
rounds = 4
epochs = 3
batch_size = 16
lr = 0.5
"""


def run(*typed: str) -> str:
    ended = CliRunner().invoke(app, typed)
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_from_a_config_to_a_report(tmp_path: Path):
    (tmp_path / "c.toml").write_text(CONFIG)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    run("train", str(tmp_path / "c.toml"), "--out", old)
    run("unlearn", old, "--forget", "c01", "--rounds", "4", "--out", new)
    assert json.loads((tmp_path / "old" / "result.json").read_text())["scores"]["test_auroc"] > 0.85
    run("audit", new, "--shadows", "0")
    assert [*json.loads((tmp_path / "new" / "audit.json").read_text())["scores"]] == ["auroc"]
    shown = run("report", old, new, "--out", str(tmp_path / "report"))
    assert "AUROC" in shown
    assert "| FedUHB | AUROC | original |" in (tmp_path / "report" / "audit.md").read_text()


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.3", "shards:1"])
def test_engines_agree_on_the_logistic_model(partition: str):
    federation = feduhb.load("breast-cancer", clients=4, partition=partition, model="logistic")
    found = [
        feduhb.train(federation, 2, epochs=1, lr=0.5, engine=engine, show=None).params
        for engine in ("loop", "pool", "stacked")
    ]
    assert all(torch.allclose(found[0], other, atol=1e-5) for other in found)


@pytest.mark.parametrize("forget", ["class:0", {"c01": [0, 3]}])
def test_classes_and_rows_are_forgotten(forget):
    trained = feduhb.train(feduhb.load("breast-cancer", clients=3), 1, epochs=1, lr=0.2, show=None)
    after = feduhb.unlearn(trained, forget, rounds=1, show=None)
    assert sum(map(len, after.federation.clients.values())) < sum(
        map(len, trained.federation.clients.values())
    )
