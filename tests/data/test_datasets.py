"""Data sets by name: those of the installation, those of other packages; each built-in one is read once."""

from __future__ import annotations

import importlib
import re
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import feduhb
from data.wording import refused
from data.writing import write_mnist
from feduhb.data import load as module
from feduhb.data.load import Dataset, FederationSettings, build_federation, list_datasets, load, load_dataset
from feduhb.errors import ConfigError, DataError
from plugging import install_package

# SHA-256 over the pixels as bytes (train, test), then the labels as bytes (train, test). A change means that
# every number published so far is of another split: never adapt it to a change that nobody asked for.
SPLITS = {
    "mnist-5k": (255, "f273cacfc300ddd350f1301078a9703b11c8b0128e3674e847b998474d87814f"),
    "digits": (16, "b30b9e0fab91ffcbc7f371c93b817c88a1535f4102009f609579ef6c91cc745d"),
}
SHAPES = {"mnist-5k": (4000, 1000, 28), "digits": (1437, 360, 8)}


@pytest.fixture(scope="module", params=["mnist-5k", "digits"])
def named(request: pytest.FixtureRequest) -> tuple[str, Dataset]:
    return request.param, load_dataset(request.param)


def test_breast_cancer_is_scaled_by_the_published_ranges():
    """The description rounds the ranges, so that values reach slightly beyond -1 and 1."""
    from sklearn.datasets import load_breast_cancer

    text = getattr(load_breast_cancer(), "DESCR")  # noqa: B009 (the stubs do not know it)
    told = re.findall(r"^[\w ]+\([\w ]+\): +([\d.]+) +([\d.]+)$", text, flags=re.MULTILINE)
    assert [(float(low), float(high)) for low, high in told] == [*module.BREAST_CANCER_RANGES]
    data = load_dataset("breast-cancer")
    assert (data.x.shape, data.test_x.shape, data.classes, data.model) == ((455, 30), (114, 30), 2, "mlp")
    every = torch.cat([data.test_x, data.x])
    assert 1 <= float(every.abs().max()) < 1.03
    assert torch.bincount(torch.cat([data.test_y, data.y])).tolist() == [212, 357]
    low, high = torch.tensor(module.BREAST_CANCER_RANGES, dtype=torch.float64).T
    raw, kinds = load_breast_cancer(return_X_y=True)
    back = ((every.double() + 1) / 2 * (high - low) + low)[:, 0]
    assert torch.allclose(back.sort().values, torch.tensor(raw[:, 0]).sort().values, rtol=1e-5)
    order = np.random.default_rng(module.SPLIT_SEED).permutation(569)
    assert torch.cat([data.test_y, data.y]).tolist() == kinds[order].tolist()


def pixels(x: Tensor, white: int) -> Tensor:
    return ((x + 1) * (white / 2)).round().byte()


def test_shapes_and_types(named):
    name, data = named
    train, test, side = SHAPES[name]
    assert data.x.shape == (train, 1, side, side)
    assert data.test_x.shape == (test, 1, side, side)
    assert data.y.shape == (train,)
    assert data.test_y.shape == (test,)
    assert data.x.dtype == data.test_x.dtype == torch.float32
    assert data.y.dtype == data.test_y.dtype == torch.int64


def test_inputs_fill_the_range_exactly(named):
    _, data = named
    for x in (data.x, data.test_x):
        assert (float(x.min()), float(x.max())) == (-1.0, 1.0)


def test_scaling_is_by_constants_of_the_format(named):
    """Pixel p is 2 p / white - 1, to rounding in float32, whatever the other pixels are."""
    name, data = named
    white, _ = SPLITS[name]
    assert torch.allclose(
        data.x, pixels(data.x, white).double().mul(2 / white).sub(1).float(), rtol=0, atol=2e-7
    )


def test_the_division_never_changes(named):
    name, data = named
    white, golden = SPLITS[name]
    digest = sha256()
    for part in (pixels(data.x, white), pixels(data.test_x, white), data.y.byte(), data.test_y.byte()):
        digest.update(part.numpy().tobytes())
    assert digest.hexdigest() == golden


def test_classes_are_roughly_balanced(named):
    _, data = named
    assert data.classes == 10
    for y in (data.y, data.test_y):
        share = torch.bincount(y, minlength=10).double() / len(y)
        assert len(share) == 10
        assert float(share.min()) > 0.07
        assert float(share.max()) < 0.13


def test_no_test_image_is_trained_on(named):
    _, data = named
    train = {bytes(image) for image in data.x.numpy()}
    assert train.isdisjoint(bytes(image) for image in data.test_x.numpy())


def test_the_same_again():
    once, again = (module.DATASETS["digits"](None) for _ in range(2))
    for part in ("x", "y", "test_x", "test_y"):
        assert torch.equal(getattr(once, part), getattr(again, part))


def test_unknown_name():
    choice = "choose one of mnist-5k, digits, breast-cancer, mnist, cifar10, or bring your own with feduhb.Federation"
    with refused(DataError, f"there is no data set 'cifar'; {choice}"):
        load_dataset("cifar")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """The folders that files of a data set were read from, as they are read."""
    found: list[Path | None] = []
    read = module.read_files
    monkeypatch.setattr(
        module, "read_files", lambda name, folder: (found.append(folder), read(name, folder))[1]
    )
    return found


def write_images(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28))
    return write_mnist(folder, pixels, [k % 10 for k in range(count)], monkeypatch)


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None) -> Path:  # noqa: ARG001
    return write_images(tmp_path / "images", 40, monkeypatch)


def test_files_are_read_once_per_process(images, tmp_path, reads):
    """Three federations of one data set, and three runs that are opened."""
    first, second, third = (load("mnist", clients=4, model="softmax", seed=s, data=images) for s in (0, 0, 1))
    assert reads == [images]
    assert first.clients["c00"].x is second.clients["c00"].x is third.clients["c00"].x
    assert first.test.x is third.test.x
    for place in "abc":
        feduhb.train(first, 1, epochs=1, out=tmp_path / place, show=None)
        assert feduhb.open_run(tmp_path / place, data=images).original.fingerprints() == first.fingerprints()
    assert reads == [images]


def test_files_of_another_folder_are_read(images, tmp_path, monkeypatch, reads):
    other = write_images(tmp_path / "other", 41, monkeypatch)
    monkeypatch.chdir(tmp_path)
    load_dataset("mnist", other)
    load_dataset("mnist", Path("other"))
    monkeypatch.setenv("FEDUHB_DATA", "other")
    assert len(load_dataset("mnist").x) == 41
    assert reads == [other]
    monkeypatch.setenv("FEDUHB_DATA", str(tmp_path))
    with refused(DataError, f"{tmp_path} holds no MNIST"):
        load_dataset("mnist")
    with refused(DataError, "is damaged or not the original MNIST file"):
        load_dataset("mnist", images)  # of which the digests are not those of `other`
    assert reads == [other, tmp_path, images]


def test_files_of_another_cache_are_read(tmp_path, monkeypatch, offline, reads):  # noqa: ARG001
    write_images(tmp_path / "cache" / "mnist", 40, monkeypatch)
    for _ in range(2):
        assert len(load_dataset("mnist").x) == 40
    assert reads == [None]
    monkeypatch.setenv("FEDUHB_CACHE", str(tmp_path / "empty"))
    with refused(DataError, f"mnist is not complete in {tmp_path / 'empty' / 'mnist'}"):
        load_dataset("mnist")
    monkeypatch.delenv("FEDUHB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with refused(DataError, f"mnist is not complete in {tmp_path / 'xdg' / 'feduhb' / 'mnist'}"):
        load_dataset("mnist")


def test_a_failure_is_not_remembered(images, reads):
    missing = images / "t10k-labels-idx1-ubyte.gz"
    content = missing.read_bytes()
    missing.unlink()
    with refused(DataError, f"{missing} cannot be read"):
        load_dataset("mnist", images)
    missing.write_bytes(content)
    assert len(load_dataset("mnist", images).x) == 40
    assert len(reads) == 2


def test_nothing_writes_into_the_shared_tensors():
    """Not a backdoor, not canaries, not training, not an evaluation."""
    data = load_dataset("digits")
    parts = (data.x, data.y, data.test_x, data.test_y)
    versions, kept = [part._version for part in parts], [part.clone() for part in parts]
    for engine in ("loop", "pool", "stacked"):
        made = load("digits", clients=4, backdoor=["c00"], canaries=["c01"])
        trained = feduhb.train(made, 1, epochs=1, engine=engine, show=None)
        feduhb.unlearn(trained, "c00,c02:0-3", rounds=1, show=None)
    assert made.clients["c02"].x is load_dataset("digits").x is data.x
    assert [part._version for part in parts] == versions
    assert all(torch.equal(part, before) for part, before in zip(parts, kept, strict=True))


WARDS = """
import torch
from feduhb.data.load import Dataset

calls = []

def read(folder):
    calls.append(folder)
    x, y = torch.linspace(-1, 1, 48).reshape(24, 2), torch.arange(24) % 3
    return Dataset(x[6:], y[6:], x[:6], y[:6], classes=3, model="softmax")

def wrong(folder):
    return folder
"""
ENTRIES = """
[feduhb.datasets]
wards = plug_wards:read
digits = plug_wards:wrong
broken = plug_wards:nowhere
wrong = plug_wards:wrong
"""


@pytest.fixture
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """A package with data sets; the folders that its function was called with."""
    install_package(tmp_path, monkeypatch, "plug_wards", WARDS, ENTRIES)
    monkeypatch.delitem(sys.modules, "plug_wards", raising=False)
    monkeypatch.delenv("FEDUHB_DATA", raising=False)
    return importlib.import_module("plug_wards").calls


def test_a_data_set_of_another_package(wards, tmp_path):
    made = load("wards", clients=3, data=tmp_path)
    assert made.about == FederationSettings(data="wards", clients=3)
    assert {len(made.clients[c]) + len(made.held_out[c]) for c in made.clients} == {6}
    assert [type(layer).__name__ for layer in made.fresh_model().children()] == ["Flatten", "Linear"]
    feduhb.train(made, 1, epochs=1, out=tmp_path / "run", show=None)
    opened = feduhb.open_run(tmp_path / "run", data=tmp_path)
    assert opened.federation.fingerprints() == made.fingerprints()
    assert wards == [tmp_path, tmp_path]  # read again: rows may have been deleted from its files


def test_the_folder_that_another_package_is_given(wards, tmp_path, monkeypatch):
    load_dataset("wards")
    monkeypatch.setenv("FEDUHB_DATA", str(tmp_path))
    load_dataset("wards")
    load_dataset("wards", tmp_path / "named")
    assert wards == [None, tmp_path, tmp_path / "named"]


def test_built_in_names_come_first(wards):
    assert load_dataset("digits").x.shape == (1437, 1, 8, 8)
    assert list_datasets() == [
        "mnist-5k",
        "digits",
        "breast-cancer",
        "mnist",
        "cifar10",
        "broken",
        "wards",
        "wrong",
    ]
    with refused(
        DataError,
        "choose one of mnist-5k, digits, breast-cancer, mnist, cifar10, broken, wards, wrong, or bring",
    ):
        build_federation(FederationSettings(data="word"), 0)
    assert wards == []


@pytest.mark.usefixtures("wards")
def test_a_data_set_of_another_package_that_cannot_be_used():
    with refused(ConfigError, "'broken' of feduhb.datasets cannot be imported from plug_wards 1.0 ("):
        load_dataset("broken")
    with refused(
        DataError,
        "the function of the data set 'wrong' returned a NoneType; it must return a feduhb.data.Dataset",
    ):
        load_dataset("wrong")
