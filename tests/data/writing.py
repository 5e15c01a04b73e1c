"""Tiny files in the format of MNIST, whose digests count as the original ones for the length of a test."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.serving import digests
from feduhb.data.files import MNIST, PUBLISHED


def pack_idx(values: np.ndarray) -> bytes:
    """Return unsigned bytes in the idx format, zipped."""
    sizes = struct.pack(f">{values.ndim}i", *values.shape)
    return gzip.compress(bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes(), mtime=0)


def write_mnist(
    folder: Path, images: np.ndarray, labels: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Write the same images for training and testing, and let their digests be the right ones."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: pack_idx(images if "images" in name else np.array(labels)) for name in MNIST.files}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    monkeypatch.setitem(PUBLISHED, "mnist", replace(MNIST, files=digests(files)))
    return folder
