"""A checkpoint is the state, bit for bit, or it is refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from feduhb.errors import CheckpointError
from feduhb.methods.feduhb import HeavyBall
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import load_params, load_state, save_state
from toys import quick

STATE = HeavyBall(torch.tensor([1.0, -0.0, 3.5]), previous=torch.tensor([0.1, 1e-42, -7.0]))
LIKE = HeavyBall(torch.zeros(3), previous=torch.zeros(3))


class Rich(NamedTuple):
    """What the larger methods keep: buffers of other shapes and types, and counters."""

    params: Tensor  # [P]
    pairs: Tensor  # [S, P], empty at first
    seen: Tensor  # [S]
    round: int


def bits(value: Tensor) -> bytes:
    return value.contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.safetensors"


@quick
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9), st.integers(0, 10**9))
def test_every_float_survives_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], rounds: int
):
    """Zeros with a sign, subnormals and infinities included."""
    path = tmp_path_factory.getbasetemp() / "every-float.safetensors"
    state = HeavyBall(torch.tensor(values), torch.tensor(values[::-1]))
    save_state(path, state, rounds)
    loaded, done = load_state(path, state)
    assert done == rounds
    assert (bits(loaded.params), bits(loaded.previous)) == (bits(state.params), bits(state.previous))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_other_shapes_types_and_numbers_survive(path: Path, dtype: torch.dtype):
    for pairs in (torch.zeros(0, 2, dtype=dtype), torch.ones(3, 2, dtype=dtype)):
        state = Rich(torch.tensor([1.5, 2.5], dtype=dtype), pairs, torch.arange(len(pairs)), 2**40)
        save_state(path, state, 7)
        loaded, done = load_state(path, state)
        assert (done, loaded.round) == (7, 2**40)
        for one, other in zip(loaded[:3], state[:3], strict=True):
            assert (one.dtype, one.shape, bits(one)) == (other.dtype, other.shape, bits(other))


def test_views_and_shared_tensors_are_no_obstacle(path: Path):
    """Heavy ball begins with previous = params, one tensor twice; a transposed buffer has strides."""
    params = torch.arange(6.0)[::2]
    save_state(path, HeavyBall(params, params), 0)
    loaded, _ = load_state(path, LIKE)
    assert loaded.params.tolist() == loaded.previous.tolist() == [0.0, 2.0, 4.0]
    loaded.params.zero_()
    assert loaded.previous.tolist() == [0.0, 2.0, 4.0]
    rich = Rich(torch.zeros(3), torch.arange(6.0).view(2, 3).T, torch.zeros(3), 0)
    save_state(path, rich, 0)
    assert torch.equal(load_state(path, rich)[0].pairs, rich.pairs)


def test_a_later_round_replaces_the_file_and_leaves_nothing_else(path: Path):
    for rounds in range(3):
        save_state(path, STATE, rounds)
    assert load_state(path, LIKE)[1] == 2
    assert [p.name for p in path.parent.iterdir()] == ["state.safetensors"]


def test_the_model_can_be_read_whatever_method_wrote_it(path: Path):
    for state in (STATE, Plain(STATE.params), Rich(STATE.params, torch.zeros(0, 3), torch.zeros(0), 1)):
        save_state(path, state, 1)
        assert bits(load_params(path)) == bits(STATE.params)


def test_a_missing_checkpoint(path: Path):
    for read in (lambda: load_state(path, LIKE), lambda: load_params(path)):
        with pytest.raises(CheckpointError) as error:
            read()
        assert (
            str(error.value)
            == f"there is no checkpoint {path}; correct that, or delete its run folder and run again"
        )


def refused_as_damaged(path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        load_state(path, LIKE)
    assert str(error.value) == (
        f"checkpoint {path} is damaged; restore a backup, or delete its run folder and run again"
    )


def test_a_truncated_checkpoint_at_any_length(path: Path):
    save_state(path, STATE, 3)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused_as_damaged(path)


def test_a_byte_too_many(path: Path):
    save_state(path, STATE, 3)
    path.write_bytes(path.read_bytes() + b"\0")
    refused_as_damaged(path)


def header_length(whole: bytes) -> int:
    return 8 + int.from_bytes(whole[:8], "little")


def test_a_flipped_bit_anywhere_in_the_data(path: Path):
    save_state(path, STATE, 3)
    whole = path.read_bytes()
    for place in range(header_length(whole), len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refused_as_damaged(path)


@pytest.mark.parametrize("bit", [1, 4, 128])
def test_a_flipped_bit_anywhere_in_the_header(path: Path, bit: int):
    """It is refused, or harmless: never another state or number of rounds, nor an error of another kind."""
    save_state(path, Rich(torch.ones(2), torch.ones(1, 2), torch.ones(1), 12), 345)
    like = Rich(torch.zeros(2), torch.zeros(1, 2), torch.zeros(1), 0)
    whole, wrong = path.read_bytes(), []
    for place in range(header_length(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            loaded, done = load_state(path, like)
        except CheckpointError:
            continue
        except Exception as error:
            wrong.append(f"{whole[place - 12 : place + 3]!r}: {type(error).__name__}")
            continue
        tensors_kept = all(
            torch.equal(t, torch.ones_like(t)) for t in (loaded.params, loaded.pairs, loaded.seen)
        )
        if not tensors_kept or (loaded.round, done) != (12, 345):
            wrong.append(
                f"{whole[place - 12 : place + 3]!r}: read as round {loaded.round}, {done} rounds done"
            )
    assert wrong == []


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 a zip, say", b"\xff" * 64, b"{}" * 100])
def test_a_foreign_file(path: Path, content: bytes):
    path.write_bytes(content)
    refused_as_damaged(path)


def test_a_safetensors_file_that_is_not_ours(path: Path):
    save_file({"params": torch.zeros(3), "previous": torch.zeros(3)}, path)
    refused_as_damaged(path)


def test_a_folder_in_its_place(path: Path):
    path.mkdir()
    refused_as_damaged(path)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Plain(torch.zeros(3)), id="another method"),
        pytest.param(HeavyBall(torch.zeros(4), torch.zeros(4)), id="another model"),
        pytest.param(HeavyBall(torch.zeros(3).double(), torch.zeros(3).double()), id="another type"),
        pytest.param(Rich(torch.zeros(3), torch.zeros(1, 3), torch.zeros(1), 0), id="a richer method"),
    ],
)
def test_a_state_of_another_kind(path: Path, other: HeavyBall):
    save_state(path, other, 3)
    with pytest.raises(CheckpointError) as error:
        load_state(path, LIKE)
    assert str(error.value) == f"{path} belongs to another method or model; use another folder with --out"
