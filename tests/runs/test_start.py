"""A start that was given, and what a model carries: recorded, declared, and held to when a run is resumed or opened."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import feduhb
from federations import tensors
from feduhb.api import train_from
from feduhb.core.flat import flatten
from feduhb.core.modules import digest_carried
from feduhb.errors import ConfigError, ModelError, RunFolderError
from feduhb.report import write_report
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.config import read_config
from feduhb.runs.folder import RunFolder
from feduhb.runs.start import DECLARED, GIVEN_NOTICE, SHARED_START
from feduhb.runs.verify import verify_weights

HOW: dict[str, Any] = {"epochs": 1, "engine": "loop", "show": None}


class Net(nn.Module):
    """A normalised layer, and a table of constants that a state_dict holds."""

    def __init__(self, first: float = 0.0, *, frozen: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(144, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)
        self.register_buffer("table", torch.linspace(first, 1, 6))
        if frozen:
            self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x.flatten(1)) + self.table).relu())


def make_net(seed: int = 1, first: float = 0.0, *, frozen: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net(first, frozen=frozen)


def make_federation(model: Any, **more: Any) -> feduhb.Federation:
    names = {"ant": 6, "bee": 5, "cat": 7}
    clients = {name: tensors(name, size, dtype=torch.float32) for name, size in names.items()}
    return feduhb.Federation(clients, tensors("test", 9, dtype=torch.float32), model, seed=3, **more)


@pytest.fixture
def given() -> feduhb.Federation:
    return make_federation(make_net(frozen=True), start="given")


def read(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "config.toml").read_text())


def test_a_given_start_is_recorded_with_its_digest_and_declared(given, tmp_path, capsys):
    trained = feduhb.train(given, 1, out=tmp_path / "a", **HOW)
    assert capsys.readouterr().err == f"feduhb: {GIVEN_NOTICE}\n"
    start = given.fresh_model()
    digest = digest_weights(flatten(start))
    table = {
        "given": True,
        "sha256": digest,
        "carried": ["body.bias", "body.weight", "table"],
        "carried_sha256": digest_carried(start),
    }
    assert read(tmp_path / "a")["start"] == table
    said = f"The start was given, not drawn (SHA-256 {digest}): {DECLARED}. {SHARED_START}"
    assert RunFolder(tmp_path / "a").result().get("start") == said
    feduhb.unlearn(trained, ["bee"], rounds=1, out=tmp_path / "b", show=None)
    assert capsys.readouterr().err == f"feduhb: {GIVEN_NOTICE}\n"
    assert read(tmp_path / "b")["start"] == table
    feduhb.compare(trained, ["bee"], ["feduhb", "retrain"], rounds=1, show=None)
    assert GIVEN_NOTICE not in capsys.readouterr().err


def test_nothing_is_said_of_a_start_that_is_refused(capsys):
    with pytest.raises(ModelError, match="RReLU"):
        feduhb.train(make_federation(nn.Sequential(make_net(), nn.RReLU()), start="given"), 1, **HOW)
    assert capsys.readouterr().err == ""


def test_what_a_fresh_model_carries_is_recorded_and_nothing_else_is(tmp_path, capsys):
    run = feduhb.train(make_federation(Net), 1, out=tmp_path / "a", **HOW)
    found = read(tmp_path / "a")["start"]
    assert found == {"given": False, "carried": ["table"], "carried_sha256": digest_carried(run.model())}
    assert "start" not in RunFolder(tmp_path / "a").result()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
    feduhb.train(make_federation(plain), 1, out=tmp_path / "b", **HOW)
    assert "start" not in read(tmp_path / "b")
    assert capsys.readouterr().err == ""


def test_another_start_does_not_resume_or_open_a_run(given, tmp_path):
    feduhb.train(given, 1, out=tmp_path, **HOW)
    assert torch.equal(feduhb.open_run(tmp_path, given).params, feduhb.train(given, 1, **HOW).params)
    others = {
        "started from other given weights, with the SHA-256": given.replace(model=make_net(2, frozen=True)),
        "started from given weights, but this federation starts from a fresh model; give it with start='given'": make_federation(Net),
        "was made with other frozen parameters or constant buffers (body.bias, body.weight, table)": given.replace(
            model=make_net(1, 0.5, frozen=True)
        ),
    }  # fmt: skip
    for words, other in others.items():
        with pytest.raises(RunFolderError, match=re.escape(words)) as caught:
            feduhb.open_run(tmp_path, other)
        assert "\n" not in str(caught.value)
        with pytest.raises(RunFolderError, match="was started with start"):
            feduhb.train(other, 1, out=tmp_path, resume=True, **HOW)


def test_a_run_from_a_fresh_model_does_not_open_with_given_weights(tmp_path):
    federation = make_federation(make_net())
    feduhb.train(federation, 1, out=tmp_path, **HOW)
    with pytest.raises(
        RunFolderError, match="started from a fresh model, but this federation starts from given"
    ):
        feduhb.open_run(tmp_path, federation.replace(start="given"))


def test_such_a_config_is_not_trained_by_a_command(given, tmp_path):
    feduhb.train(given, 1, out=tmp_path / "a", **HOW)
    with pytest.raises(ConfigError, match=r"has a \[start\] table, so its model was made in Python"):
        train_from(read_config(tmp_path / "a" / "config.toml"), tmp_path / "b")


def test_a_report_shows_a_given_start(given, tmp_path):
    trained = feduhb.train(given, 1, out=tmp_path / "a", **HOW)
    new = feduhb.unlearn(trained, ["bee"], rounds=1, out=tmp_path / "b", show=None)
    feduhb.audit(new, trained, canaries=0, relearn=0, show=None)
    write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    digest = digest_weights(flatten(given.fresh_model()))
    assert f"<span>given start, SHA-256 {digest[:12]}…</span>" in page
    assert "<dt>carried as given, never drawn</dt><dd>body.bias, body.weight, table</dd>" in page
    assert "trained again from this start, not from fresh weights" in page
    for text in (page, *((tmp_path / "report" / name).read_text() for name in ("table.md", "audit.md"))):
        assert SHARED_START in text


@pytest.mark.parametrize("frozen", [True, False])
def test_verify_knows_statistics_counters_and_what_is_carried(tmp_path, frozen):
    model = make_net(frozen=frozen)
    run = feduhb.train(
        make_federation(model, start="given" if frozen else "fresh"), 1, out=tmp_path / "a", **HOW
    )
    state = run.model().state_dict()
    torch.save(state, tmp_path / "model.pt")
    found = verify_weights(tmp_path / "model.pt", tmp_path / "a")
    carried = "body.bias, body.weight, table" if frozen else "table"
    assert found.same
    assert found.says.endswith(
        f", and what the run carries: {carried}; not compared: norm.num_batches_tracked"
    )
    torch.save({**state, "norm.running_mean": state["norm.running_mean"] + 1}, tmp_path / "other.pt")
    assert (
        "the SHA-256 of the file's weights is" in verify_weights(tmp_path / "other.pt", tmp_path / "a").says
    )
    torch.save({**state, "table": state["table"] + 1}, tmp_path / "other.pt")
    found = verify_weights(tmp_path / "other.pt", tmp_path / "a")
    assert f"its frozen parameters or constant buffers ({carried}) are others" in found.says
    torch.save({name: value for name, value in state.items() if name != "table"}, tmp_path / "other.pt")
    found = verify_weights(tmp_path / "other.pt", tmp_path / "a")
    assert found.same
    rest = ", body.bias, body.weight" if frozen else ""
    assert found.says.endswith(f"; not compared: norm.num_batches_tracked{rest}")


def test_verify_knows_them_of_a_retired_run(given, tmp_path):
    trained = feduhb.train(given, 1, out=tmp_path / "a", **HOW)
    torch.save(trained.model().state_dict(), tmp_path / "model.pt")
    feduhb.unlearn(trained, ["bee"], rounds=1, out=tmp_path / "b", show=None)
    feduhb.retire(tmp_path / "a", unaudited="a test")
    assert verify_weights(tmp_path / "model.pt", tmp_path / "a").same
    assert not verify_weights(tmp_path / "model.pt", tmp_path / "b").same


LOSSES = [
    "cross_entropy",
    nn.CrossEntropyLoss(label_smoothing=0.1),
    "mse",
    nn.HuberLoss(delta=0.5),
    nn.HuberLoss(delta=2.0),
    nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)),
    nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0])),
]


@pytest.mark.parametrize("number", range(len(LOSSES)))
def test_a_run_knows_its_loss(number, tmp_path):
    """Neither resuming nor opening takes another loss, or the same with other settings or weights."""
    x = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
    y = x[:, :2].softmax(1)  # probabilities, as cross-entropy needs
    federations = [feduhb.Federation({"a": (x, y)}, (x, y), nn.Linear(3, 2), loss=loss) for loss in LOSSES]
    feduhb.train(federations[number], 1, out=tmp_path / "run", engine="loop", show=None)
    feduhb.open_run(tmp_path / "run", federations[number])
    for other in [one for i, one in enumerate(federations) if i != number]:
        with pytest.raises(RunFolderError, match="was made with loss="):
            feduhb.open_run(tmp_path / "run", other)
        with pytest.raises(RunFolderError, match="was started with loss = "):
            feduhb.train(other, 2, out=tmp_path / "run", engine="loop", resume=True, show=None)


def test_a_run_knows_its_augmentation(tmp_path):
    def shift(x, numbers):
        return x + numbers[:, :1]

    x, y = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    plain = feduhb.Federation({"a": (x, y)}, (x, y), nn.Linear(3, 2))
    feduhb.train(plain.replace(augment=shift), 1, out=tmp_path / "run", engine="loop", show=None)
    with pytest.raises(
        RunFolderError, match=r"was made with augment=shift\(\); give the federation the same"
    ):
        feduhb.open_run(tmp_path / "run", plain)


def test_a_run_knows_that_it_had_no_augmentation(tmp_path):
    x, y = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    plain = feduhb.Federation({"a": (x, y)}, (x, y), nn.Linear(3, 2))
    feduhb.train(plain, 1, out=tmp_path / "run", engine="loop", show=None)
    with pytest.raises(RunFolderError, match="was made without augment; give the federation the same"):
        feduhb.open_run(tmp_path / "run", plain.replace(augment=lambda x, _: 2 * x))


def test_a_run_knows_its_layers(tmp_path):
    """Neither resuming nor opening takes a model with the same tensors and other layers."""

    def make(*layers: nn.Module) -> feduhb.Federation:
        x = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
        return feduhb.Federation({"a": (x, x)}, (x, x), nn.Sequential(*layers, nn.Linear(3, 3)), loss="mse")

    federation, folder = make(nn.Dropout(0.1)), tmp_path / "run"
    feduhb.train(federation, 1, out=folder, engine="loop", show=None)
    feduhb.open_run(folder, make(nn.Dropout(0.1)))
    words = re.escape(
        f"{folder} was made with other layers, or other settings of a layer, such as the rate of a dropout"
    )
    for other in (make(nn.Dropout(0.9)), make(nn.Dropout(0.1), nn.ReLU())):
        with pytest.raises(RunFolderError, match=words):
            feduhb.open_run(folder, other)
        with pytest.raises(RunFolderError, match=words):
            feduhb.train(other, 2, out=folder, engine="loop", resume=True, show=None)
    config = folder / "config.toml"  # a run of an earlier version, which did not record layers
    config.write_text(re.sub("(?m)^layers = .*\n", "", config.read_text()))
    feduhb.open_run(folder, make(nn.Dropout(0.9)))


def test_a_run_is_not_read_with_a_default_in_place_of_a_missing_setting(tmp_path):
    x, y = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    federation = feduhb.Federation({"a": (x, y)}, (x, y), nn.Linear(3, 2), seed=0)
    feduhb.train(federation, 1, out=tmp_path, engine="loop", show=None)
    whole = (tmp_path / "config.toml").read_text()
    for name in ("seed", "rounds", "epochs", "batch_size", "lr", "l2", "aggregate", "engine", "keep_history"):
        (tmp_path / "config.toml").write_text(re.sub(rf"(?m)^{name} = .*\n", "", whole, count=1))
        with pytest.raises(
            RunFolderError, match=rf"config.toml is damaged: (train\.)?{name} is missing; restore a backup"
        ):
            feduhb.open_run(tmp_path, federation)
