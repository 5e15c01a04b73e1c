"""`feduhb export`, `--tensorboard` and shell completion."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file
from typer.testing import CliRunner

import feduhb
from data.tables import DECLARED, TRAINED, make_patients
from federations import ragged
from feduhb.cli import app
from feduhb.cli.options import list_runs

CONFIG = """\
seed = 1
[federation]
data = "digits"
clients = 4
model = "mlp"
[train]
rounds = 2
epochs = 1
"""


def invoke(*arguments: object, code: int = 0) -> Result:
    ended = CliRunner().invoke(app, [*map(str, arguments)])
    assert ended.exit_code == code, ended.output
    return ended


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("export")
    (place / "config.toml").write_text(CONFIG)
    invoke("train", place / "config.toml", "--out", place / "first", "--tensorboard", place / "board")
    return place / "first"


def test_weights_by_the_models_own_names(run, tmp_path):
    path = tmp_path / "model.safetensors"
    ended = invoke("export", run, "--out", path)
    assert ended.output == f"{path}\n"
    opened = feduhb.open_run(run)
    module = opened.federation.fresh_model()
    module.load_state_dict(load_file(path))
    assert torch.equal(torch.cat([p.flatten() for p in module.parameters()]), opened.params)
    again = invoke("export", run, "--out", path, code=2)
    assert "model.safetensors is there already" in again.output
    answer = json.loads(invoke("export", run, "--out", path, "--overwrite", "--json").stdout)
    assert answer == {"written": str(path), "format": "safetensors", "from_folder_alone": False}
    assert "holds the weights that" in invoke("verify", path, run).output


def test_the_card_and_the_folder(run, tmp_path):
    invoke("export", run, "--out", tmp_path / "card.md")
    assert (tmp_path / "card.md").read_text() == feduhb.open_run(run).card()
    invoke("export", run, "--out", tmp_path / "v0.1", "--format", "folder")
    assert sorted(path.name for path in (tmp_path / "v0.1").iterdir()) == ["README.md", "model.safetensors"]


def test_a_run_on_data_from_code_is_exported_from_its_folder(tmp_path):
    made = feduhb.train(ragged(), 1, epochs=1, out=tmp_path / "run", show=None)
    ended = invoke("export", made.folder, "--out", tmp_path / "model.pt")
    assert "written from the run folder alone" in ended.stderr
    made.federation.fresh_model().load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    ended = invoke("export", made.folder, "--out", tmp_path / "model.onnx", code=2)
    assert "ONNX needs the module" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_weights_are_exported_when_the_data_is_gone(tmp_path):
    make_patients().to_csv(tmp_path / "patients.csv", index=False)
    federation = feduhb.Federation.from_table(tmp_path / "patients.csv", **DECLARED)
    made = feduhb.train(federation, **TRAINED, out=tmp_path / "run")
    (tmp_path / "patients.csv").unlink()
    ended = invoke("export", tmp_path / "run", "--out", tmp_path / "model.safetensors")
    assert "there is no file" in ended.stderr
    assert "written from the run folder alone" in ended.stderr
    made.federation.fresh_model().load_state_dict(load_file(tmp_path / "model.safetensors"))
    for more in (("--data", tmp_path / "no.csv"), ("--format", "onnx")):
        ended = invoke("export", tmp_path / "run", "--out", tmp_path / "other", *more, code=2)
        assert ended.stderr.startswith("feduhb: there is no file")
        assert ended.stderr.count("\n") == 1


def test_a_damaged_run_is_not_exported_from_its_folder_instead(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    config = copy / "config.toml"
    config.write_text(re.sub(r"(?m)^batch_size = .*\n", "", config.read_text()))
    said = invoke("export", copy, "--out", tmp_path / "model.safetensors", code=2).stderr
    assert "config.toml is damaged: train.batch_size is missing; restore a backup" in said
    assert not (tmp_path / "model.safetensors").exists()


def test_weights_are_exported_when_the_data_of_trusted_code_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_for_export.py").write_text(
        "import feduhb, pathlib, torch\ndef make():\n    pathlib.Path('data').read_text()\n"
        "    x, y = torch.ones(4, 2), torch.tensor([0, 1] * 2)\n"
        "    return feduhb.Federation({'a': (x, y)}, (x, y), torch.nn.Linear(2, 2))\n"
    )
    (tmp_path / "data").touch()
    (tmp_path / "own.toml").write_text(
        '[federation]\ndata = "made_for_export.py:make"\n[train]\nrounds = 1\n'
    )
    invoke("train", "own.toml", "--out", "run")
    (tmp_path / "data").unlink()
    ended = invoke("export", "run", "--out", "model.pt")
    assert "FileNotFoundError" in ended.stderr
    assert "written from the run folder alone" in ended.stderr
    assert [*torch.load("model.pt", weights_only=True)] == ["weight", "bias"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "model.zip"), "has the suffix '.zip'"),
        (("--out", "m.pt", "--format", "zip"), "format is 'zip'"),
    ],
)
def test_bad_input_is_refused_in_one_line(run, words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = invoke("export", run, *words, code=2)
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "is not a run folder" in invoke("export", tmp_path, "--out", "m.pt", code=2).stderr
    assert not [*tmp_path.iterdir()]


def test_commands_write_for_tensorboard(run, tmp_path):
    assert [path.name for path in (run.parent / "board").iterdir()] == ["train"]
    board = tmp_path / "board"
    invoke(
        *(
            "unlearn",
            run,
            "--forget",
            "c00",
            "--rounds",
            1,
            "--out",
            tmp_path / "new",
            "--tensorboard",
            board,
            "--json",
        ),
    )
    assert [path.name for path in board.iterdir()] == ["feduhb"]
    (tmp_path / "file").write_text("")
    ended = invoke("compare", run, "--forget", "c00", "--tensorboard", tmp_path / "file", code=2)
    assert "is a file; give TensorBoard a folder" in ended.stderr


def test_completion_finds_runs_two_folders_deep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/first", "runs/first-feduhb", "alone", ".hidden", "runs/a/b"):
        Path(name).mkdir(parents=True)
        Path(name, "config.toml").touch()
    Path("runs/empty").mkdir()
    assert list_runs("") == ["alone", "runs/first", "runs/first-feduhb"]
    assert list_runs("runs/f") == ["runs/first", "runs/first-feduhb"]
    assert list_runs(f"{tmp_path}/al") == [f"{tmp_path}/alone"]
    assert list_runs("run[") == list_runs("nowhere/") == []


def test_a_shell_completes_commands_and_runs_without_torch(tmp_path):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.toml").touch()
    code = (
        "import atexit, sys\nfrom feduhb.cli.commands import app\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\napp(prog_name='feduhb')"
    )

    def complete(words: str) -> subprocess.CompletedProcess[str]:
        asked = {
            "_FEDUHB_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env={**os.environ, **asked}, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    assert complete("feduhb exp").stdout.split() == ["export"]
    ended = complete("feduhb export ru")
    assert ended.stdout.split() == ["runs/first"]
    assert ended.stderr == "False\n"
