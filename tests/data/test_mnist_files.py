"""The original MNIST from a folder or the cache: found, verified, and refused in words where something is wrong.

Most tests write tiny files in its format and swap the digests; the last two read the real files where
FEDUHB_DATA has them.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from data.wording import refused
from data.writing import write_mnist
from feduhb.data.files import MNIST, PUBLISHED
from feduhb.data.load import load_dataset
from feduhb.errors import DataError

pytestmark = pytest.mark.usefixtures("offline")

NAMES = list(MNIST.files)
DIGESTS = dict(MNIST.files)


def pictures(*greys: int) -> np.ndarray:
    return np.stack([np.full((28, 28), grey) for grey in greys])


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_mnist(tmp_path / "files", pictures(0, 51, 255), [3, 1, 2], monkeypatch)


@pytest.fixture(scope="module")
def real() -> Path:
    given = os.environ.get("FEDUHB_DATA")
    if not given:
        pytest.skip("FEDUHB_DATA is not set: name the folder with the original MNIST files to test them")
    for place in (Path(given) / "mnist", Path(given)):
        if (place / NAMES[0]).exists():
            return place
    pytest.fail(f"FEDUHB_DATA is set but has no {NAMES[0]}: put the original MNIST files there, or unset it")


def test_read_and_scaled(tiny):
    data = load_dataset("mnist", tiny)
    assert data.x.shape == data.test_x.shape == (3, 1, 28, 28)
    assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)
    assert data.x[:, 0, 0, 0].tolist() == pytest.approx([-1.0, -0.6, 1.0], abs=1e-7)
    assert data.y.tolist() == data.test_y.tolist() == [3, 1, 2]
    assert data.classes == 10


def test_images_keep_their_orientation(tmp_path, monkeypatch):
    image = np.zeros((1, 28, 28))
    image[0, 2, 5] = 255  # row 2, column 5
    data = load_dataset("mnist", write_mnist(tmp_path, image, [0], monkeypatch))
    assert (data.x == 1).nonzero().tolist() == [[0, 0, 2, 5]]


def test_scaling_of_an_image_does_not_depend_on_others(tmp_path, monkeypatch):
    alone, dark, bright = (
        load_dataset(
            "mnist", write_mnist(tmp_path / name, pictures(40, *others), [0] * (1 + len(others)), monkeypatch)
        ).x[0]
        for name, others in (("alone", []), ("dark", [1, 2]), ("bright", [255, 254, 200]))
    )
    assert torch.equal(alone, dark)
    assert torch.equal(alone, bright)


def test_folder_named_by_the_environment(tiny, monkeypatch):
    monkeypatch.setenv("FEDUHB_DATA", str(tiny))
    assert len(load_dataset("mnist").x) == 3


def test_a_folder_of_its_own_inside_is_found(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist", pictures(7), [7], monkeypatch)
    assert load_dataset("mnist", tmp_path).y.tolist() == [7]
    monkeypatch.setenv("FEDUHB_DATA", str(tmp_path))
    assert load_dataset("mnist").y.tolist() == [7]


def test_a_folder_given_beats_the_environment(tiny, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("FEDUHB_DATA", str(other))
    assert len(load_dataset("mnist", tiny).x) == 3
    monkeypatch.setenv("FEDUHB_DATA", str(tiny))
    with refused(DataError, f"{other} holds no MNIST"):
        load_dataset("mnist", other)


@pytest.mark.parametrize("empty", [None, ""])
def test_no_folder_named(empty, monkeypatch, tmp_path):
    if empty is not None:
        monkeypatch.setenv("FEDUHB_DATA", empty)
    with refused(
        DataError,
        f"mnist is not complete in {tmp_path / 'cache' / 'mnist'} and cannot be downloaded from http://127.0.0.1:",
        f"/mnist/{NAMES[0]} (Connection refused); put {', '.join(NAMES)} there, or into a folder that you name with --data or FEDUHB_DATA",
    ):
        load_dataset("mnist")


def test_missing_folder(tmp_path):
    gone = tmp_path / "gone"
    with refused(
        DataError, f"{gone} holds no MNIST; put ", *NAMES, "or name another folder with --data or FEDUHB_DATA"
    ):
        load_dataset("mnist", gone)


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with refused(DataError, f"{tmp_path / 'file'} holds no MNIST"):
        load_dataset("mnist", tmp_path / "file")


@pytest.mark.parametrize("name", NAMES[1:])
def test_missing_file(tiny, name):
    (tiny / name).unlink()
    with refused(
        DataError,
        f"{tiny / name} cannot be read (No such file or directory); replace it",
    ):
        load_dataset("mnist", tiny)


def test_missing_first_file(tiny):
    (tiny / NAMES[0]).unlink()
    with refused(DataError, f"{tiny} holds no MNIST; put {NAMES[0]}"):
        load_dataset("mnist", tiny)


def test_a_folder_in_place_of_a_file(tiny):
    (tiny / NAMES[1]).unlink()
    (tiny / NAMES[1]).mkdir()
    with refused(DataError, f"{tiny / NAMES[1]} cannot be read (Is a directory)"):
        load_dataset("mnist", tiny)


def damaged(path: Path, digest: str) -> str:
    return (
        f"{path} is damaged or not the original MNIST file: its SHA-256 is not {digest[:16]}...; get it again"
    )


@pytest.mark.parametrize("name", NAMES)
def test_truncated_file(tiny, name):
    whole = (tiny / name).read_bytes()
    for length in (0, 1, len(whole) - 1):
        (tiny / name).write_bytes(whole[:length])
        with refused(DataError, damaged(tiny / name, PUBLISHED["mnist"].files[name])):
            load_dataset("mnist", tiny)


@pytest.mark.parametrize("name", NAMES)
def test_flipped_byte(tiny, name):
    whole = bytearray((tiny / name).read_bytes())
    whole[len(whole) // 2] ^= 1
    (tiny / name).write_bytes(whole)
    with refused(DataError, damaged(tiny / name, PUBLISHED["mnist"].files[name])):
        load_dataset("mnist", tiny)


def test_other_files_of_the_right_format_are_not_mnist(tiny, monkeypatch):
    monkeypatch.setitem(PUBLISHED, "mnist", MNIST)
    with refused(DataError, damaged(tiny / NAMES[0], DIGESTS[NAMES[0]])):
        load_dataset("mnist", tiny)


def test_the_real_one(real):
    data = load_dataset("mnist", real)
    assert data.x.shape == (60_000, 1, 28, 28)
    assert data.test_x.shape == (10_000, 1, 28, 28)
    # The published counts of the digits 0 to 9.
    assert data.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test_y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert (float(data.x.min()), float(data.x.max())) == (-1.0, 1.0)


def test_the_real_one_with_a_flipped_byte(real, tmp_path):
    for name in NAMES[:-1]:
        (tmp_path / name).symlink_to(real / name)
    whole = bytearray((real / NAMES[-1]).read_bytes())
    whole[1000] ^= 1
    (tmp_path / NAMES[-1]).write_bytes(whole)
    with refused(DataError, damaged(tmp_path / NAMES[-1], DIGESTS[NAMES[-1]])):
        load_dataset("mnist", tmp_path)
