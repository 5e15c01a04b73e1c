"""CIFAR-10 in its binary version: read, found, verified, and refused in words where something is wrong.

Most tests write six tiny files in its format and swap the digests; the last reads the real files where
FEDUHB_DATA has them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from data.wording import refused
from feduhb.data.files import CIFAR10, PUBLISHED
from feduhb.data.load import load, load_dataset
from feduhb.errors import DataError

pytestmark = pytest.mark.usefixtures("offline")

NAMES = list(CIFAR10.files)
GREYS = (0, 51, 102, 153, 204, 255)  # of the images in each file


def record(label: int, red: int, green: int, blue: int) -> bytes:
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def write(folder: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put files down, and let their digests be the right ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    digests = {name: sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setitem(PUBLISHED, "cifar10", replace(CIFAR10, files=digests))
    return folder


def batches(each: int = 2) -> dict[str, bytes]:
    """File i holds images of one grey, labelled i and 9 - i in turn."""
    return {
        name: b"".join(record((i, 9 - i)[k % 2], grey, grey, grey) for k in range(each))
        for i, (name, grey) in enumerate(zip(NAMES, GREYS, strict=True))
    }


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write(tmp_path / "files", batches(), monkeypatch)


@pytest.fixture(scope="module")
def real() -> Path:
    given = os.environ.get("FEDUHB_DATA")
    for folder in (CIFAR10.name, str(CIFAR10.unpacked), "."):
        if given and (Path(given) / folder / NAMES[0]).exists():
            return Path(given)
    pytest.skip("FEDUHB_DATA names no folder with CIFAR-10: put its six .bin files there to test them")


def test_read_and_scaled(tiny):
    data = load_dataset("cifar10", tiny)
    assert data.x.shape == (10, 3, 32, 32)
    assert data.test_x.shape == (2, 3, 32, 32)
    assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)
    assert data.classes == 10
    greys = [-1, -1, -0.6, -0.6, -0.2, -0.2, 0.2, 0.2, 0.6, 0.6]
    assert data.x[:, 0, 0, 0].tolist() == pytest.approx(greys, abs=1e-6)
    assert data.test_x[:, 0, 0, 0].tolist() == [1, 1]


def test_batches_and_labels_are_in_their_order(tiny):
    data = load_dataset("cifar10", tiny)
    assert data.y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert data.test_y.tolist() == [5, 4]


def test_planes_are_red_green_blue_and_rows_go_first(tmp_path, monkeypatch):
    image = np.zeros((3, 32, 32), np.uint8)
    image[0] = 255
    image[1, 2, 5] = 255  # green, row 2, column 5
    files = dict.fromkeys(NAMES, bytes([3]) + image.tobytes())
    data = load_dataset("cifar10", write(tmp_path, files, monkeypatch))
    assert bool((data.test_x[0, 0] == 1).all())
    assert (data.test_x[0, 1:] == 1).nonzero().tolist() == [[0, 2, 5]]


def test_scaling_of_an_image_does_not_depend_on_others(tmp_path, monkeypatch):
    found = []
    for other in (0, 255):
        content = record(0, 40, 50, 60) + record(1, other, other, other)
        files = dict.fromkeys(NAMES, content)
        found.append(load_dataset("cifar10", write(tmp_path / str(other), files, monkeypatch)).x[0])
    assert torch.equal(*found)


@pytest.mark.parametrize("inside", [".", "cifar10", "cifar-10-batches-bin"])
@pytest.mark.parametrize("named", ["argument", "environment"])
def test_where_it_is_found(inside, named, tmp_path, monkeypatch):
    write(tmp_path / "given" / inside, batches(), monkeypatch)
    if named == "environment":
        monkeypatch.setenv("FEDUHB_DATA", str(tmp_path / "given"))
    data = load_dataset("cifar10", tmp_path / "given" if named == "argument" else None)
    assert len(data.x) == 10


def test_where_it_is_cached(tmp_path, monkeypatch):
    write(tmp_path / "cache" / "cifar10", batches(), monkeypatch)
    assert len(load_dataset("cifar10").x) == 10


def test_nothing_anywhere(tmp_path):
    with refused(
        DataError,
        f"cifar10 is not complete in {tmp_path / 'cache' / 'cifar10'} and cannot be downloaded from http://127.0.0.1:",
        "/cifar10/cifar-10-binary.tar.gz (Connection refused); put ",
        *NAMES,
        "or into a folder that you name with --data or FEDUHB_DATA",
    ):
        load_dataset("cifar10")


@pytest.mark.parametrize("named", ["argument", "environment"])
def test_a_folder_without_it_is_refused_though_the_cache_has_it(named, tmp_path, monkeypatch):
    """If the user names a folder, nothing is downloaded or read from elsewhere."""
    write(tmp_path / "cache" / "cifar10", batches(), monkeypatch)
    given = tmp_path / "given"
    given.mkdir()
    if named == "environment":
        monkeypatch.setenv("FEDUHB_DATA", str(given))
    with refused(
        DataError,
        f"{given} holds no CIFAR-10; put {', '.join(NAMES)} there, or name another folder with --data or FEDUHB_DATA",
    ):
        load_dataset("cifar10", given if named == "argument" else None)
    assert list(given.iterdir()) == []


@pytest.mark.parametrize("name", NAMES[1:])
def test_missing_file(tiny, name):
    (tiny / name).unlink()
    with refused(
        DataError,
        f"{tiny / name} cannot be read (No such file or directory); replace it",
    ):
        load_dataset("cifar10", tiny)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_file_is_refused_and_left_alone(tiny, name):
    whole = (tiny / name).read_bytes()
    digest = PUBLISHED["cifar10"].files[name]
    flipped = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
    for damaged in (b"", whole[:-1], whole[:3073], whole + whole[:3073], flipped):
        (tiny / name).write_bytes(damaged)
        words = f"{tiny / name} is damaged or not the original CIFAR-10 file: its SHA-256 is not {digest[:16]}...; get it again"
        with refused(DataError, words):
            load_dataset("cifar10", tiny)
        assert (tiny / name).read_bytes() == damaged


def test_other_files_of_the_right_format_are_not_cifar10(tiny, monkeypatch):
    monkeypatch.setitem(PUBLISHED, "cifar10", CIFAR10)
    with refused(DataError, f"{tiny / NAMES[0]} is damaged or not the original CIFAR-10 file"):
        load_dataset("cifar10", tiny)


def test_a_federation_of_it_has_the_papers_model(tmp_path, monkeypatch):
    folder = write(tmp_path, batches(each=4), monkeypatch)
    made = load("cifar10", clients=2, data=folder)
    assert {len(made.clients[c]) + len(made.held_out[c]) for c in made.clients} == {10}
    assert sum(p.numel() for p in made.fresh_model().parameters()) == 878_538


def test_the_real_one(real):
    data = load_dataset("cifar10", real)
    assert data.x.shape == (50_000, 3, 32, 32)
    assert data.test_x.shape == (10_000, 3, 32, 32)
    # Published: 5,000 and 1,000 images of each class.
    assert data.y.bincount().tolist() == [5000] * 10
    assert data.test_y.bincount().tolist() == [1000] * 10
    assert data.y[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    assert (float(data.x.min()), float(data.x.max())) == (-1.0, 1.0)
