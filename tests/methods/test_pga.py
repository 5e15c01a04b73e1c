"""PGA on paper: the reference model, the ball, and what is left of it when the ball has no room."""

from __future__ import annotations

import pytest
import torch

import feduhb
from federations import ragged
from feduhb.core.tasks import Ascend
from feduhb.core.types import Work
from feduhb.methods import PGA
from toys import block_of

OLD = torch.tensor([2.0, 0.0], dtype=torch.float64)
FRESH = torch.tensor([-2.0, 3.0], dtype=torch.float64)


def test_golden_case_of_one_leaver_by_hand():
    """Three clients trained w_T = (2, 0), and x leaves. From w_T it trains to w_x = (4, 2), so it sends u_x = (-2, -2).

    round 0  w_ref = (3 (2, 0) - (4, 2)) / 2 = (1, -1)
    round 1  ‖w_ref - w_0‖ = ‖(3, -4)‖ = 5, so the ball of r = 0.6 has the radius 3; x climbs to (1, -1) - (1, 0) = (0, -1)
    round 2  a holds 1 example, b 3:  1/4 (4, 0) + 3/4 (0, 4) = (1, 3), and the model is (0, -1) - (1, 3) = (-1, -4)
    """
    method = PGA(radius=0.6, ascent=4, after=1, epochs=2, model=OLD, clients=("a", "b"), leavers=("x",))
    state = method.init(FRESH)
    work = method.ask(state)
    assert (work.clients, work.leavers, work.epochs, work.task) == (("x",), True, 2, None)
    state = method.tell(state, [block_of({"x": [-2, -2]}, [7])])
    assert state.params.tolist() == [1, -1]
    work = method.ask(state)
    assert (work.clients, work.leavers, work.epochs) == (("x",), True, 4)
    assert isinstance(work.task, Ascend)
    assert work.task.radius == pytest.approx(3.0, rel=1e-14)
    state = method.tell(state, [block_of({"x": [1, 0]}, [7])])
    assert state.params.tolist() == [0, -1]
    work = method.ask(state)
    assert (work.clients, work.leavers, work.task) == (None, False, None)
    assert method.tell(state, [block_of({"a": [4, 0], "b": [0, 4]}, [1, 3])]).params.tolist() == [-1, -4]


def test_two_leavers_are_taken_back_together():
    """N = 4, x and y leave with models (4, 2) and (0, 2): w_ref = (4 (2, 0) - (4, 4)) / 2 = (2, -2)."""
    method = PGA(model=OLD, clients=("a", "b"), leavers=("x", "y"))
    found = method.tell(method.init(FRESH), [block_of({"x": [-2, -2], "y": [2, -2]})]).params
    assert found.tolist() == [2, -2]


def test_with_radius_0_and_no_rounds_after_it_is_the_reference_model():
    federation, local = ragged(), feduhb.Local(batch_size=6, lr=0.05)
    trained = feduhb.train(federation, 2, epochs=1, batch_size=6, lr=0.05, engine="loop", show=None)
    method = PGA(radius=0.0, after=0, epochs=1)
    new = feduhb.unlearn(trained, ["bee"], method=method, engine="loop", show=None)
    (block,) = feduhb.Loop(federation, local).train(Work(trained.params, 1), ["bee"], 0)
    others = len(federation.clients) - 1
    w_l = trained.params - block.values[0]
    torch.testing.assert_close(new.params, ((others + 1) * trained.params - w_l) / others, rtol=0, atol=1e-14)
    assert [record.leavers for record in new.rounds] == [("bee",), ("bee",)]
    assert new.rounds[0].moved > 0
    assert new.rounds[1].moved == 0
