"""`feduhb verify`: whether a file holds the weights that a run ended with, in every form in which weights are kept."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import feduhb
from feduhb.cli import app
from feduhb.runs import verify_weights
from feduhb.runs.files import read_bytes

State = dict[str, Tensor]
GOLDEN = Path(__file__).parents[1] / "golden" / "folders"


class Odd(nn.Module):
    """A module whose parameters are in no order that a file could guess."""

    def __init__(self) -> None:
        super().__init__()
        self.zebra = nn.Linear(64, 4)
        self.apple = nn.Linear(4, 10)
        self.last_bias_of_all = nn.Parameter(torch.zeros(10))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.last_bias_of_all)

    def forward(self, x: Tensor) -> Tensor:
        return self.apple(self.zebra(x.flatten(1))) + self.last_bias_of_all


def invoke(*arguments: object, code: int = 0) -> str:
    ended = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert ended.exit_code == code, ended.output
    return ended.output


def train(model: Any, out: Path) -> feduhb.Run:
    data = feduhb.load("digits", clients=3, per_client=12, model=model, seed=2)
    return feduhb.train(data, 1, epochs=1, out=out, show=None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, feduhb.Run]:
    place = tmp_path_factory.mktemp("verify")
    return {"mlp": train("mlp", place / "mlp"), "odd": train(Odd(), place / "odd")}


@pytest.fixture(params=["mlp", "odd"])
def run(request, made, tmp_path, monkeypatch) -> Path:
    """A run in the working directory, with its state_dict beside it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made[request.param].folder, "run")
    torch.save(made[request.param].model().state_dict(), "model.pt")
    return Path("run")


@pytest.fixture
def state(run) -> State:
    assert run.is_dir()
    return torch.load("model.pt", weights_only=True)


def drop_layout(run: Path) -> None:
    """Make the result of an earlier version."""
    found = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(
        json.dumps({key: value for key, value in found.items() if key != "layout"})
    )


def test_the_checkpoint_of_the_run(run):
    said = invoke(run / "state.safetensors", run)
    assert said.startswith("run/state.safetensors holds the weights that run ended with (SHA-256 ")
    assert said.endswith("run has no audit\n")


@pytest.mark.parametrize("old", [False, True])
def test_a_state_dict(run, old):
    if old:
        drop_layout(run)
    assert "model.pt holds the weights that run ended with" in invoke("model.pt", run)


def test_a_state_dict_of_the_old_format(run, state):
    torch.save(state, "old.pt", _use_new_zipfile_serialization=False)
    invoke("old.pt", run)


def test_named_tensors_in_safetensors(run, state):
    save_file(state, "model.safetensors")
    assert "model.safetensors holds the weights" in invoke("model.safetensors", run)


def test_flat_weights(run):
    torch.save(torch.load("model.pt", weights_only=True), "model.pt")
    flat = torch.cat([value.flatten() for value in torch.load("model.pt", weights_only=True).values()])
    torch.save(flat, "flat.pt")
    save_file({"params": flat}, "flat.safetensors")
    invoke("flat.pt", run)
    invoke("flat.safetensors", run)


def test_a_run_without_a_layout_needs_an_order(run, state):
    drop_layout(run)
    save_file(state, "model.safetensors")
    if "zebra.weight" in state:
        said = invoke("model.safetensors", run, code=2)
        assert (
            "does not keep the order of its tensors, and this run does not record it; give a file that"
            in said
        )
        assert "torch.save(model.state_dict(), FILE)" in said
        return
    invoke("model.safetensors", run)
    save_file({name: value + 1 for name, value in state.items()}, "model.safetensors")
    invoke("model.safetensors", run, code=1)


def test_one_bit_makes_other_weights(run, state):
    first = next(iter(state.values())).view(torch.int32)
    first.view(-1)[0] ^= 1
    torch.save(state, "other.pt")
    said = invoke("other.pt", run, code=1)
    assert "other.pt does not hold the weights that run ended with (SHA-256 " in said
    assert "the SHA-256 of the file's weights is " in said


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_another_precision_is_named(run, state, kind):
    torch.save({name: value.to(kind) for name, value in state.items()}, "other.pt")
    name = str(kind).removeprefix("torch.")
    words = f"its tensors are {name}, not float32 as those of the run; a copy in another precision has other"
    assert words in invoke("other.pt", run, code=1)
    (run / "state.safetensors").unlink()
    assert f"its tensors are {name}, not float32; a copy" in invoke("other.pt", run, code=1)


def test_extra_tensors_are_named(run, state):
    torch.save({**state, "hidden.weight": torch.ones(3)}, "other.pt")
    words = "it also holds hidden.weight, which the run does not have; the rest is the same"
    assert words in invoke("other.pt", run, code=1)


def test_a_second_name_of_a_shared_parameter_is_no_extra(run, state):
    name = next(iter(state))
    torch.save({**state, "tied": state[name]}, "other.pt")
    invoke("other.pt", run)


def test_other_names_cannot_be_judged(run, state):
    torch.save({f"module.{name}": value for name, value in state.items()}, "other.pt")
    said = invoke("other.pt", run, code=2)
    assert f"other.pt has no tensor {next(iter(state))!r}, but module." in said
    assert "save the state_dict of the module that was trained, with its own names" in said


def test_other_shapes_are_named(run, state):
    name = next(iter(state))
    torch.save({**state, name: state[name].reshape(2, -1)}, "other.pt")
    words = f"{name} has the shape {[2, state[name].numel() // 2]}, not {[*state[name].shape]}"
    assert words in invoke("other.pt", run, code=1)


def test_another_number_of_parameters_is_named(run):
    save_file({"params": torch.zeros(7)}, "small.safetensors")
    assert "it has 7 parameters, not " in invoke("small.safetensors", run, code=1)


class Bomb:
    """An object whose unpickling makes a folder."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("ran",)


def test_code_in_a_file_is_not_run(run):
    torch.save({"0.weight": Bomb()}, "bomb.pt")
    Path("bomb.pkl").write_bytes(pickle.dumps(Bomb()))
    for name in ("bomb.pt", "bomb.pkl"):
        said = invoke(name, run, code=2)
        assert not Path("ran").exists()
        assert "torch.save(model.state_dict(), FILE)" in said
    assert "bomb.pt holds Python objects, which could run code when they are read" in invoke(
        "bomb.pt", run, code=2
    )


def write_nested(path: Path, state: State) -> None:
    torch.save({"epoch": {"state_dict": state}}, path)


def write_numbers(path: Path, _: State) -> None:
    torch.save({"a": 3}, path)


def write_nothing(path: Path, _: State) -> None:
    torch.save({}, path)


def write_sparse(path: Path, _: State) -> None:
    torch.save({"a": torch.eye(3).to_sparse()}, path)


def write_half_a_file(path: Path, state: State) -> None:
    torch.save(state, path)
    path.write_bytes(path.read_bytes()[:200])


def write_text(path: Path, _: State) -> None:
    path.write_text("weights")


def make_folder(path: Path, _: State) -> None:
    path.mkdir()


def make_pipe(path: Path, _: State) -> None:
    os.mkfifo(path)


def make_nothing(path: Path, _: State) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (write_nested, "holds 'epoch', which is not a tensor (is the state_dict inside it?)"),
        (write_numbers, "holds 'a', which is not a tensor;"),
        (write_nothing, "holds no named tensors"),
        (write_sparse, "holds 'a', which is not a plain tensor"),
        (write_half_a_file, "is damaged, or not a state_dict"),
        (write_text, "is neither a safetensors file nor one of torch.save, or it is damaged"),
        (make_folder, "cannot be read: Is a directory; give a file with weights"),
        (make_pipe, "cannot be read: not a regular file; give a file with weights"),
        (make_nothing, "cannot be read: No such file or directory; give a file with weights"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(run, state, write, words):
    write(Path("model"), state)
    said = invoke("model", run, code=2)
    assert said.startswith(f"feduhb: model {words}")
    assert said.count("\n") == 1


def test_a_run_that_has_not_ended_has_no_weights_yet(run):
    (run / "result.json").unlink()
    assert "has not finished" in invoke("model.pt", run, code=2)
    assert "is not a run folder" in invoke("model.pt", "nowhere", code=2)


def test_a_retired_run_still_recognises_its_weights():
    """The tombstone has their digest, so a forgotten export can be found."""
    old = feduhb.load("digits", clients=3, per_client=12, model="mlp", seed=2)
    trained = feduhb.train(old, 1, epochs=1, out="first", show=None)
    torch.save(trained.model().state_dict(), "export.pt")
    feduhb.unlearn(trained, ["c01"], rounds=1, out="second", show=None)
    feduhb.retire("first", unaudited="a test")
    assert "export.pt holds the weights that first ended with" in invoke("export.pt", "first")
    invoke("export.pt", "second", code=1)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_verdict_on_these_weights_and_on_others(tmp_path):
    """A run of an earlier version, with its audit."""
    run = tmp_path / "run"
    shutil.copytree(GOLDEN / "original-feduhb", run)
    said = invoke(run / "state.safetensors", run).splitlines()
    assert said[1].startswith("the audit of 20")
    assert said[1].endswith(" judged these weights: forgotten (about c00)")
    found = json.loads(invoke(run / "state.safetensors", run, "--json"))
    assert (found["same"], found["judged"], found["audit"]["verdict"]) == (True, True, "forgotten")
    assert found["weights_sha256"] == found["recorded_sha256"]
    other = GOLDEN / "original" / "state.safetensors"
    said = invoke(other, run, code=1).splitlines()
    assert said[1].endswith(" judged other weights: forgotten (about c00)")
    (run / "audit.json").write_text("{}")
    assert "audit.json is damaged" in invoke(run / "state.safetensors", run)


def test_the_file_is_only_read(run):
    before = read_bytes(Path("model.pt"))
    assert verify_weights("model.pt", run).same
    assert read_bytes(Path("model.pt")) == before
