"""FedAF on paper: who is asked for what, and with which weight. What a client does is in tests/engines/test_tasks.py."""

from __future__ import annotations

import torch

import feduhb
from federations import ragged
from feduhb.core.tasks import Relabel
from feduhb.methods import FedAF
from toys import block_of

OLD = torch.tensor([1.0, 1.0], dtype=torch.float64)
FRESH = torch.zeros(2, dtype=torch.float64)


def test_golden_case_by_hand():
    """a forgets 1 example and b 3 of them; a, b and c keep 2, 1 and 1.

    overwriting  1/4 (4, 0) + 3/4 (0, 4) = (1, 3), and the model is (1, 1) - (1, 3) = (0, -2)
    after        2/4 (2, 2) + 1/4 (0, 4) + 1/4 (4, 0) = (2, 2), and the model is (0, -2) - (2, 2) = (-2, -4)
    """
    method = FedAF(
        teachers=2, penalty=3.0, after=1, epochs=2, model=OLD, clients=("a", "b", "c"), leavers=("a", "b")
    )
    assert method.rounds == 2
    state = method.init(FRESH)
    work = method.ask(state)
    assert (work.clients, work.leavers, work.task) == (("a", "b"), True, Relabel(2, 3.0))
    state = method.tell(state, [block_of({"a": [4, 0], "b": [0, 4]}, [1, 3])])
    assert state.params.tolist() == [0, -2]
    work = method.ask(state)
    assert (work.clients, work.leavers, work.task) == (None, False, None)
    state = method.tell(state, [block_of({"a": [2, 2], "b": [0, 4], "c": [4, 0]}, [2, 1, 1])])
    assert state.params.tolist() == [-2, -4]


def test_a_run_asks_those_who_hold_the_class_and_then_all():
    trained = feduhb.train(ragged(), 1, epochs=1, batch_size=6, lr=0.05, engine="loop", show=None)
    new = feduhb.unlearn(
        trained, "class:1", method=FedAF(teachers=2, after=1, epochs=1), engine="loop", show=None
    )
    first, last = new.rounds
    assert first.asked == first.leavers
    assert first.leavers
    assert last.leavers == ()
    assert {*last.asked} == {*new.federation.clients}
