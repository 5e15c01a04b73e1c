"""Statistics beside a method: their weighted mean, also of a sum, and never a negative variance."""

from typing import Any

import pytest
import torch
from torch import nn

import feduhb
from feduhb.core.types import Updates
from feduhb.errors import ConfigError
from feduhb.methods import FedUHB, Retrain
from feduhb.runs.statistics import carry_statistics
from toys import block_of, summed

START = torch.tensor([1.0, -2.0, 0.5, 1.0], dtype=torch.float64)  # two parameters, a mean and a variance
ANSWERS = block_of({"a": [0.1, 0.2, 0.3, 0.4], "b": [0.3, 0.0, -0.1, 0.8]}, [1.0, 3.0])
METHODS: list[Any] = [Retrain(epochs=1), FedUHB(epochs=1)]


@pytest.mark.parametrize("method", METHODS)
def test_the_mean_of_a_sum_is_the_mean_of_its_clients(method):
    whole = carry_statistics(method, 2)
    each = whole.tell(whole.init(START), [ANSWERS]).params
    assert torch.allclose(each[2:], START[2:] - torch.tensor([0.0, 0.7], dtype=torch.float64))
    together = whole.tell(whole.init(START), [summed([ANSWERS])]).params
    torch.testing.assert_close(together, each)
    assert torch.equal(
        each[:2],
        method.tell(method.init(START[:2]), [block_of({"a": [0.1, 0.2], "b": [0.3, 0.0]}, [1, 3])]).params,
    )


def test_a_variance_of_nothing_does_not_round_to_a_negative_one():
    """b - Σ n_c (b - b_c) / N would: its rounding is relative to b, which may be large."""
    method, generator = carry_statistics(Retrain(epochs=1), 1), torch.Generator().manual_seed(0)
    for _ in range(200):
        start = torch.cat([torch.zeros(1), torch.rand(1, generator=generator) * 1e6])
        weights = torch.randint(1, 999, (7,), generator=generator).double()
        changes = start[None].expand(7, 2).clone()  # every client has a variance of 0
        answers = Updates(tuple("abcdefg"), changes, weights)
        assert method.tell(method.init(start), [answers]).params[1] == 0


def test_full_batch_gradients_of_a_layer_that_gathers_statistics_are_refused():
    norm = nn.InstanceNorm1d(3, track_running_stats=True)
    x, y = torch.rand(4, 3, 8), torch.tensor([0, 1, 2, 0])
    federation = feduhb.Federation(
        {"a": (x, y)}, (x, y), lambda: nn.Sequential(norm, nn.Flatten(), nn.Linear(24, 3))
    )
    with pytest.raises(
        ConfigError, match="the model has InstanceNorm, which gathers statistics in steps; give"
    ):
        feduhb.train(federation, 1, epochs=0, engine="loop", show=None)
