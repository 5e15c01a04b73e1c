"""The compact L-BFGS product against the recursion it stands for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from feduhb.methods import lbfgs
from methods.curvature import dense
from toys import quick

sizes = st.integers(2, 12)
pairs = st.integers(1, 4)
seeds = st.integers(0, 10_000)


def curvature(size: int, draw: torch.Generator) -> Tensor:
    """A symmetric matrix with 1/2 I <= A <= 3/2 I."""
    root = torch.randn(size, size, generator=draw, dtype=torch.float64)
    return 0.5 * torch.eye(size, dtype=torch.float64) + root @ root.T / root.square().sum()


def drawn(clients: int, count: int, size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs y = A s of clients with curvatures of their own, and a vector."""
    draw = torch.Generator().manual_seed(seed)
    s = torch.randn(clients, count, size, generator=draw, dtype=torch.float64)
    y = torch.stack([s[c] @ curvature(size, draw) for c in range(clients)])
    return s, y, torch.randn(size, generator=draw, dtype=torch.float64)


def compact(s: Tensor, y: Tensor, v: Tensor, count: Tensor | None = None) -> Tensor:
    """H_c v of every client [C, P], put together of its blocks."""
    held = torch.full((s.shape[0],), s.shape[1]) if count is None else count
    weights = lbfgs.solve_coefficients(s, y, held, v)
    return torch.cat([lbfgs.multiply(s, y, v, weights, part) for part in lbfgs.cut_blocks(len(v))], dim=1)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-10) -> bool:
    return float((one - other).norm()) <= tolerance * float(other.norm())


@quick
@given(size=sizes, count=pairs, seed=seeds)
def test_it_equals_the_dense_recursion(size, count, seed):
    count = min(count, size)
    s, y, v = drawn(1, count, size, seed)
    assert close(compact(s, y, v)[0], dense(s[0], y[0]) @ v)


@quick
@given(size=sizes, count=pairs, seed=seeds)
def test_the_newest_pair_satisfies_the_secant_equation(size, count, seed):
    s, y, _ = drawn(1, min(count, size), size, seed)
    assert close(compact(s, y, s[0, -1])[0], y[0, -1])


@quick
@given(size=sizes, seed=seeds)
def test_with_one_pair_it_is_the_formula_on_paper(size, seed):
    """H v = σ v - σ s (s'v) / s's + y (y'v) / y's: the recursion's only step from σ I."""
    s, y, v = drawn(1, 1, size, seed)
    s_, y_ = s[0, 0], y[0, 0]
    sigma = (y_ @ s_) / (s_ @ s_)
    expected = sigma * v - sigma * s_ * (s_ @ v) / (s_ @ s_) + y_ * (y_ @ v) / (y_ @ s_)
    assert close(compact(s, y, v)[0], expected)


@quick
@given(size=st.integers(4, 12), clients=st.integers(1, 5), seed=seeds, data=st.data())
def test_all_clients_at_once_are_each_alone(size, clients, seed, data):
    s, y, v = drawn(clients, 3, size, seed)
    count = torch.tensor([data.draw(st.integers(1, 3)) for _ in range(clients)])
    together = compact(s, y, v, count)
    for c, held in enumerate(count.tolist()):
        alone = compact(s[c : c + 1, :held], y[c : c + 1, :held], v)
        assert close(together[c], alone[0], 1e-12)
        assert close(together[c], dense(s[c, :held], y[c, :held]) @ v)


@pytest.mark.parametrize("block", [1, 2, 5, 7, 100])
def test_blocks_of_parameters_do_not_matter(monkeypatch, block):
    s, y, v = drawn(3, 2, 7, seed=4)
    whole = compact(s, y, v)
    monkeypatch.setattr(lbfgs, "BLOCK", block)
    assert len(list(lbfgs.cut_blocks(7))) == -(-7 // block)
    assert close(compact(s, y, v), whole, 1e-13)


@quick
@given(size=st.integers(0, 1000), block=st.integers(1, 300))
def test_blocks_cut_every_parameter_once(size, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lbfgs, "BLOCK", block)
        found = [i for part in lbfgs.cut_blocks(size) for i in range(size)[part]]
    assert found == list(range(size))


def test_float32_pairs_are_worked_on_in_float64():
    s, y, v = drawn(2, 2, 6, seed=1)
    short = compact(s.float(), y.float(), v.float())
    assert short.dtype is torch.float64
    assert close(short, compact(s.float().double(), y.float().double(), v.float().double()), 1e-15)


def test_what_lies_behind_the_held_pairs_is_not_looked_at():
    s, y, v = drawn(1, 3, 6, seed=2)
    other_s, other_y = s.clone(), y.clone()
    other_s[:, 2], other_y[:, 2] = 0, 0
    held = torch.tensor([2])
    assert torch.equal(compact(s, y, v, held), compact(other_s, other_y, v, held))


def test_without_pairs_there_is_no_product():
    s, y, v = drawn(2, 2, 5, seed=3)
    sigma, _, _ = lbfgs.solve_coefficients(s, y, torch.tensor([0, 2]), v)
    assert sigma.isnan().tolist() == [True, False]
    found = compact(s, y, v, torch.tensor([0, 2]))
    assert found[0].isnan().all()
    assert close(found[1], dense(s[1], y[1]) @ v)


@pytest.mark.parametrize("broken", [0, 1], ids=["older", "newest"])
def test_a_singular_system_gives_nan_to_its_client_alone(broken):
    """A pair s = 0 makes a row of zeros."""
    s, y, v = drawn(2, 2, 5, seed=3)
    s[0, broken] = 0
    found = compact(s, y, v)
    assert found[0].isnan().all()
    assert close(found[1], dense(s[1], y[1]) @ v)


def test_it_changes_none_of_its_inputs():
    s, y, v = drawn(2, 2, 5, seed=3)
    kept = s.clone(), y.clone(), v.clone()
    compact(s, y, v)
    assert all(torch.equal(a, b) for a, b in zip((s, y, v), kept, strict=True))
