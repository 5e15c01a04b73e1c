"""Exports: the model of a run as a file that others can load, of every kind of model."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import feduhb
from exactness.kinds import KINDS
from feduhb.core.inputs import call_model, list_tensors
from feduhb.errors import ConfigError, FeduhbError, ModelError, RunFolderError, StorageError
from feduhb.runs.export import export_folder
from feduhb.runs.folder import RunFolder
from feduhb.runs.verify import verify_weights

MODELS = ["resnet", "frozen backbone", "lora", "tokens"]


class Tied(nn.Module):
    """An embedding whose table is the output layer's too. Its inputs are not named one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(5, 4, bias=False)
        self.back = nn.Linear(5, 4, bias=False)
        self.back.weight = self.table.weight
        self.head = nn.Linear(4, 3)

    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.head(self.table(x) + self.back(x).relu())


class Pair(nn.Module):
    """Two inputs, given by position."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 3), nn.Linear(2, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) * self.right(b)


class Branching(nn.Module):
    """A model that no exporter can follow: its path depends on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if float(x.sum()) > 0 else self.two(x)


def train(federation: feduhb.Federation, out: Path | None = None) -> feduhb.Run:
    return feduhb.train(federation, 2, epochs=1, batch_size=4, lr=0.05, out=out, show=None)


def make_federation(model: nn.Module, *widths: int) -> feduhb.Federation:
    draw = torch.Generator().manual_seed(1)

    def make(size: int) -> Any:
        parts = [torch.randn(size, width, generator=draw) for width in widths]
        return tuple(parts) if len(parts) > 1 else parts[0], torch.randint(0, 3, (size,), generator=draw)

    return feduhb.Federation({"ant": make(6), "bee": make(5)}, make(7), model, seed=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, feduhb.Run]:
    place = tmp_path_factory.mktemp("exported")
    made = {name: KINDS[name].federation() for name in MODELS}
    made |= {"tied": make_federation(Tied(), 5), "pair": make_federation(Pair(), 5, 2)}
    return {name: train(federation, place / name) for name, federation in made.items()}


def read_metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata()


@pytest.fixture
def run(runs) -> feduhb.Run:
    return runs["tied"]


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
@pytest.mark.parametrize("name", [*MODELS, "tied", "pair"])
def test_the_module_of_the_user_loads_it_strictly(runs, name, suffix, tmp_path):
    run = runs[name]
    path = run.export(tmp_path / "new" / "folder" / f"model.{suffix}")
    found = load_file(path) if suffix == "safetensors" else torch.load(path, weights_only=True)
    module = run.federation.fresh_model()  # of the same kind, with other weights
    module.load_state_dict(found)
    x = run.federation.test.all()[0]
    assert torch.equal(call_model(module.eval(), x), call_model(run.model(), x))
    assert verify_weights(path, run.folder or "").same


def test_a_model_out_of_a_run_does_not_train(runs):
    module = runs["resnet"].model()
    assert not any(layer.training for layer in module.modules())
    x = runs["resnet"].federation.test.all()[0]
    assert torch.allclose(module(x)[:1], module(x[:1])), "each example is scored alone"


def test_the_file_says_where_it_comes_from(run, tmp_path):
    about = read_metadata(run.export(tmp_path / "model.safetensors"))
    assert about.pop("feduhb")
    digest = RunFolder(run.folder or Path()).result()["weights_sha256"]
    assert about == {
        "format": "pt", "method": "retrain", "exact": "true", "seed": "2", "weights_sha256": digest,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, "tied", "pair"])
def test_onnx_answers_as_the_model_does_for_any_batch(runs, name, tmp_path):
    run = runs[name]
    path = run.export(tmp_path / "model.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = {"tokens": ["tokens", "mask"], "lora": ["tokens", "mask"], "pair": ["input_0", "input_1"]}
    assert [one.name for one in session.get_inputs()] == names.get(name, ["input"])
    for size in (1, 2, 7):
        x = run.federation.test.batch(torch.arange(size))[0]
        fed = {
            one.name: part.numpy() for one, part in zip(session.get_inputs(), list_tensors(x), strict=True)
        }
        (answer,) = session.run(["output"], fed)
        with torch.no_grad():
            np.testing.assert_allclose(np.asarray(answer), call_model(run.model(), x).numpy(), atol=1e-5)


@pytest.mark.slow
def test_a_model_that_onnx_cannot_hold_is_refused_in_one_line(tmp_path, capfd):
    run = train(make_federation(Branching(), 5))
    capfd.readouterr()
    with pytest.raises(
        ModelError, match=r"^Branching cannot be written as ONNX \(.+\); export \.safetensors"
    ):
        run.export(tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")
    assert not [*tmp_path.iterdir()]


def test_onnx_without_its_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"pip install -c constraints.txt '\.\[onnx\]'"):
        run.export(tmp_path / "model.onnx")


def test_a_folder_holds_weights_and_card(run, tmp_path):
    place = run.export(tmp_path / "for-others")
    assert sorted(path.name for path in place.iterdir()) == ["README.md", "model.safetensors"]
    assert (place / "README.md").read_text() == run.card()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    with pytest.raises(StorageError, match="is there already"):
        run.export(place)
    run.export(place, overwrite=True)


def test_the_format_overrides_the_suffix(run, tmp_path):
    path = run.export(tmp_path / "v1.2", format="safetensors")
    assert {*load_file(path)} == {*run.model().state_dict()}
    assert run.export(tmp_path / "card.md").read_text() == run.card()


def test_nothing_is_replaced_unless_that_is_wanted(run, tmp_path):
    path = tmp_path / "model.pt"
    path.write_text("mine")
    with pytest.raises(StorageError, match=r"model\.pt is there already; .* overwrite=True"):
        run.export(path)
    assert path.read_text() == "mine"
    run.export(path, overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model.pt"], "no temporary file stays"


def test_a_link_is_replaced_and_never_written_through(run, tmp_path):
    precious, link = tmp_path / "precious", tmp_path / "model.pt"
    precious.write_text("mine")
    link.symlink_to(precious)
    with pytest.raises(StorageError, match="is there already"):
        run.export(link)
    run.export(link, overwrite=True)
    assert precious.read_text() == "mine"
    assert not link.is_symlink()
    (tmp_path / "to").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="it is a link"):
        run.export(tmp_path / "to")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        ("model.zip", {}, r"has the suffix '\.zip'; write \.safetensors"),
        (
            "model.pt",
            {"format": "pickle"},
            r"format is 'pickle'; write .* safetensors, pt, onnx, card, folder$",
        ),
        ("file/model.pt", {}, r"cannot write .*; choose another path$"),
        ("folder.pt", {}, r"folder\.pt is a folder; give the path of a file"),
        ("a\0b.pt", {}, r"path is .*; give the path of a file"),
        ("x" * 300 + ".pt", {}, r"File name too long"),
    ],
)
def test_a_bad_path_is_refused_in_one_line(run, path, more, words, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(FeduhbError, match=words) as caught:
        run.export(f"{tmp_path}/{path}", **more)
    assert "\n" not in str(caught.value)
    for odd in (3, ""):
        with pytest.raises(ConfigError, match=f"path is {odd!r}; give the path of a file"):
            run.export(odd)


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="a folder in which no file can be made")
@pytest.mark.timeout(60)
def test_a_folder_in_which_no_file_can_be_made_is_refused(run):
    with pytest.raises(StorageError, match=r"^cannot write /proc/x\.pt: .*; choose another path$"):
        run.export("/proc/x.pt")


def test_nothing_is_written_into_a_run_folder(run):
    with pytest.raises(
        StorageError, match="is a run folder, in which feduhb alone writes; choose another path"
    ):
        run.export(run.folder / "state.safetensors", overwrite=True)
    with pytest.raises(StorageError, match="is a run folder"):
        run.export(run.folder, overwrite=True)
    with pytest.raises(StorageError, match="is a run folder"):
        run.export(run.folder / "deep" / "inside" / "model.pt")
    assert not (run.folder / "deep").exists()


def test_a_run_without_a_folder_has_weights_but_no_card(tmp_path):
    run = train(make_federation(Tied(), 5))
    assert run.export(tmp_path / "model.pt").exists()
    with pytest.raises(RunFolderError, match=r"has none; run it with out='runs/first'"):
        run.card()
    with pytest.raises(RunFolderError, match="has none"):
        run.export(tmp_path / "both")
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("name", ["pair", "resnet"])
def test_the_folder_alone_is_enough_for_a_plain_module(runs, name, tmp_path):
    """A run of a Flower server has no data; its weights come out under their names all the same."""
    run = runs[name]
    whole = run.export(tmp_path / "whole.safetensors")
    alone = export_folder(run.folder, tmp_path / "alone.safetensors")
    one, two = load_file(whole), load_file(alone)
    assert {*one} == {*two}
    assert all(torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one)
    assert read_metadata(whole) == read_metadata(alone)


def test_of_tied_parameters_the_folder_alone_has_one(run, tmp_path):
    found = load_file(export_folder(run.folder or "", tmp_path / "alone.safetensors"))
    assert {*run.model().state_dict()} - {*found} == {"back.weight"}


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        (
            "lora",
            "m.safetensors",
            r"lora has frozen parameters or constant buffers \(.+\), which its folder does not hold",
        ),
        ("pair", "m.onnx", "ONNX needs the module"),
    ],
)
def test_what_the_folder_does_not_hold_is_refused(runs, name, file, words, tmp_path):
    with pytest.raises(RunFolderError, match=rf"{words}.*feduhb\.open_run\('.*', federation\)\.export\("):
        export_folder(runs[name].folder, tmp_path / file)


def test_a_folder_of_an_earlier_version_has_no_names(tmp_path):
    old = Path(__file__).parents[1] / "golden" / "folders" / "flower-trained"
    with pytest.raises(RunFolderError, match="is of an earlier version, which did not record the names"):
        export_folder(old, tmp_path / "m.safetensors")
