"""With one seed, two requests one after the other give the weights of one request for both, by every exact method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import feduhb
from federations import tensors
from feduhb.methods import METHODS

EXACT = [name for name, kind in METHODS.items() if kind.exact]
NAMES = [f"c{i}" for i in range(6)]
REQUESTS: dict[str, tuple[Any, Any, Any]] = {  # one, the other, both
    "clients": (["c1"], ["c4"], ["c1", "c4"]),
    "rows": ({"c1": [0, 3]}, {"c1": [5], "c4": [2]}, {"c1": [0, 3, 5], "c4": [2]}),
    "rows, then a client": ({"c1": [0]}, ["c4"], feduhb.Request(clients=("c4",), rows={"c1": (0,)})),
    "rows, then the rest of the client": ({"c1": [0]}, ["c1"], ["c1"]),
}
HOW: dict[str, Any] = {"epochs": 1, "batch_size": 4, "lr": 0.05, "engine": "loop", "show": None}


def draw() -> feduhb.Federation:
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 3)).double()
    return feduhb.Federation({name: tensors(name, 6) for name in NAMES}, tensors("test", 6), model, seed=3)


@pytest.mark.parametrize(  # every method with all requests, with sampling and without it
    ("requests", "name", "sampled"),
    [
        (words, name, (None, 2)[(place + number) % 2])
        for place, words in enumerate(REQUESTS)
        for number, name in enumerate(EXACT)
    ],
)
def test_they_equal_one_request_for_both(requests, name, sampled, tmp_path):
    one, other, both = REQUESTS[requests]
    kept = {} if sampled is None else {"keep_models": "1MB"}
    run = feduhb.train(draw(), 4, clients_per_round=sampled, out=tmp_path / "a", **kept, **HOW)
    how: dict[str, Any] = {"method": name, "rounds": 3, "stop": feduhb.never, "show": None}
    once = feduhb.unlearn(run, both, erase_history=False, out=tmp_path / "both", **how)
    first = feduhb.unlearn(run, one, out=tmp_path / "b", **how)
    second = feduhb.unlearn(first, other, out=tmp_path / "c", **how)
    assert torch.equal(once.params, second.params)
    assert not torch.equal(first.params, second.params)
