"""The toys answer as they promise: the tests that lean on them lean on something checked."""

from __future__ import annotations

import pytest
import torch

from feduhb.core.types import Work
from toys import Scripted, block_of, quadratics, summed

CLIENTS = ("a", "b", "c", "d", "e")


def test_gradient_is_that_of_the_quadratic_by_autograd():
    engine = quadratics()
    w = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    for client in CLIENTS:
        apart = w - engine.centre[client]
        (expected,) = torch.autograd.grad(apart @ engine.curvature[client] @ apart / 2, w)
        torch.testing.assert_close(
            engine.answer(client, Work(w.detach(), 0)), expected, rtol=1e-14, atol=1e-14
        )


def test_two_local_steps_on_paper():
    """With A = 2, m = 1, lr = 0.25 every step halves w - m: from 5 to 3 to 2, so u = 5 - 2 = 3."""
    engine = quadratics(("a",), size=1, lr=0.25)
    engine.curvature["a"] = torch.tensor([[2.0]], dtype=torch.float64)
    engine.centre["a"] = torch.tensor([1.0], dtype=torch.float64)
    assert engine.answer("a", Work(torch.tensor([5.0], dtype=torch.float64), 2)).tolist() == [3.0]


def test_gradients_of_a_group_cancel_at_its_optimum():
    engine = quadratics()
    for group in (CLIENTS, CLIENTS[1:], ("b",)):
        best = engine.optimum(group)
        pull = sum(
            (engine.examples[c] * engine.gradient(c, best) for c in group),
            torch.zeros(3, dtype=torch.float64),
        )
        assert float(pull.norm()) < 1e-12


@pytest.mark.parametrize("block", [1, 2, 3, 5, 9])
def test_blocks_hold_every_client_in_the_order_asked(block: int):
    engine = quadratics(block=block)
    blocks = list(engine.train(Work(torch.zeros(3, dtype=torch.float64), 1), CLIENTS, 7))
    assert [c for b in blocks for c in b.clients] == list(CLIENTS)
    assert max(len(b.clients) for b in blocks) == min(block, 5)
    assert engine.asked == [(7, CLIENTS)]


def test_summed_on_paper():
    """Two clients holding 1 and 3 examples: mean (1*4 + 3*8) / 4 = 7, total 4."""
    total = summed([block_of({"a": [4.0]}, [1]), block_of({"b": [8.0]}, [3])])
    assert total.summed
    assert total.clients == ("a", "b")
    assert total.values.tolist() == [[7.0]]
    assert total.weights.tolist() == [4.0]


def test_scripted_replays_and_notes_the_end():
    first, second = block_of({"a": [1.0]}), block_of({"b": [2.0]})
    engine = Scripted({0: [first, second]})
    stream = engine.train(Work(torch.zeros(1), 1), ("a", "b"), 0)
    assert next(stream) is first
    assert engine.closed == []
    assert list(stream) == [second]
    assert (engine.closed, engine.told) == ([0], 2)
