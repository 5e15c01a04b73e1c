"""FedRecovery: what a leaver changed in each round, weighted by how far training moved, and noise with an address."""

from __future__ import annotations

import json
import math

import pytest
import torch

import feduhb
from federations import ragged
from feduhb.core.types import Updates
from feduhb.errors import ConfigError, HistoryError, RequestError
from feduhb.methods import FedRecovery
from feduhb.methods.replay import compute_residual
from runs.remembering import Remembered, remember
from toys import block_of, quadratics

ZERO = torch.zeros(2, dtype=torch.float64)


def history_of(*rounds: Updates) -> Remembered:
    return Remembered(dict.fromkeys(range(len(rounds)), ZERO), {t: [block] for t, block in enumerate(rounds)})


def corrected(history: Remembered, clients: str) -> list[float]:
    method = FedRecovery(history=history, clients=tuple(clients), model=ZERO)
    return method.tell(method.init(ZERO), ()).params.tolist()


def test_golden_case_of_one_leaver_by_hand():
    """Three clients of one size, x leaves; the old model is 0.

    t=0  u_a = (3, 0), u_b = (0, 3), u_x = (3, 3):  A(all) = (2, 2), A(a, b) = (3/2, 3/2), r = (-1/2, -1/2), ‖A(all)‖² = 8
         the paper's form: 1/3 (1/2 ((3, 0) + (0, 3)) - (3, 3)) = 1/3 (-3/2, -3/2) = (-1/2, -1/2)
    t=1  u_a = (0, 0), u_b = (0, 0), u_x = (6, 0):  A(all) = (2, 0), A(a, b) = 0, r = (-2, 0), ‖A(all)‖² = 4
    p = 8/12, 4/12;  w = 0 - (2/3 (-1/2, -1/2) + 1/3 (-2, 0)) = (1, 1/3)
    """
    history = history_of(
        block_of({"a": [3, 0], "b": [0, 3], "x": [3, 3]}), block_of({"a": [0, 0], "b": [0, 0], "x": [6, 0]})
    )
    assert corrected(history, "ab") == pytest.approx([1, 1 / 3], rel=1e-14)
    assert history.read_rounds == [0, 1]  # gigabytes on disk: each round once


def test_the_residual_of_one_round_leads_where_the_others_alone_would_have_led():
    """One round has p = 1, so the correction takes the whole of it back: w - A(all) - r = w - A(remaining), for any sizes."""
    start = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    history = remember(quadratics(), "abcde", start, rounds=1, epochs=3)
    others = remember(quadratics(), "acd", start, rounds=1, epochs=3)
    method = FedRecovery(history=history, clients=("a", "c", "d"), model=history.final)
    found = method.tell(method.init(start), ()).params
    torch.testing.assert_close(found, others.final, rtol=1e-13, atol=1e-14)


def test_a_round_without_the_leaver_has_no_residual_and_one_without_the_others_has_the_whole_step():
    history = history_of(block_of({"a": [1, 2], "b": [3, 4]}, [1, 3]), block_of({"x": [5, 6]}))
    assert compute_residual(history, 0, ("a", "b"))[1].tolist() == [0, 0]
    step, residual = compute_residual(history, 1, ("a", "b"))
    assert (step.tolist(), residual.tolist()) == ([5, 6], [-5, -6])


def test_the_noise_has_the_size_of_the_papers_mechanism_and_an_address():
    """σ is where d²/(2σ²) + (d/σ) √(2 log 1/δ) = ε, the Gaussian mechanism of the paper."""
    method = FedRecovery(distance=0.3, epsilon=2.0, delta=1e-4)
    ratio = 0.3 / method.sigma
    assert ratio**2 / 2 + ratio * math.sqrt(2 * math.log(1e4)) == pytest.approx(2.0, rel=1e-12)
    big = torch.zeros(40_000, dtype=torch.float64)
    still = Remembered({0: big}, {0: [Updates(("a",), big[None], torch.ones(1))]})

    def draw(seed: int, **settings: float) -> torch.Tensor:
        method = FedRecovery(history=still, clients=("a",), model=big, seed=seed, **settings)
        return method.tell(method.init(big), ()).params

    noise = draw(1, distance=0.3, epsilon=2.0, delta=1e-4)
    assert float(noise.std()) == pytest.approx(method.sigma, rel=0.02)
    assert torch.equal(noise, draw(1, distance=0.3, epsilon=2.0, delta=1e-4))
    assert not torch.equal(noise, draw(2, distance=0.3, epsilon=2.0, delta=1e-4))
    assert not draw(1).any()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epsilon": 0}, r"epsilon is 0; give a positive number"),
        ({"delta": 1}, r"delta is 1; give a number between 0 and 1"),
        ({"distance": -1}, r"distance is -1; give 0 for no noise, or a positive number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        FedRecovery(**settings)


def test_a_run_asks_nobody_takes_one_round_and_erases_the_history_last(tmp_path):
    how = {"epochs": 1, "batch_size": 6, "lr": 0.05, "engine": "loop", "show": None}
    trained = feduhb.train(ragged(), 2, out=tmp_path / "old", keep_history=True, **how)
    with pytest.raises(RequestError, match=r"fedrecovery replays the updates of whole clients and cannot"):
        feduhb.unlearn(trained, "class:1", method="fedrecovery", show=None)
    method = FedRecovery(distance=0.01)
    first = feduhb.unlearn(trained, ["bee"], method=method, erase_history=False, show=None)
    new = feduhb.unlearn(trained, ["bee"], method=method, out=tmp_path / "new", show=None)
    assert torch.equal(first.params, new.params)
    (record,) = new.rounds
    assert (record.asked, record.client_epochs, record.bytes_down) == ((), 0, 0)
    result = json.loads((tmp_path / "new" / "result.json").read_text())
    assert result["history_bytes_read"] > 0
    assert result["settings"] == {"distance": 0.01, "epsilon": 1.0, "delta": 1e-5}
    assert trained.history is None
    assert torch.equal(feduhb.open_run(tmp_path / "new", ragged()).params, new.params)
    with pytest.raises(HistoryError, match=r"fedrecovery replays stored updates, but this run kept none"):
        feduhb.unlearn(trained, ["bee", "cat"], method="fedrecovery", show=None)
