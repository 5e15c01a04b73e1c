"""What the checks of the user's own code measure: traces of old weights, runs that meet, runs that jump."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import feduhb
from audit.auditing import draw_federation
from feduhb.audit.controls import Controls, nudge, redraw
from feduhb.audit.own_code import find_jump, find_meeting
from feduhb.audit.traces import draws_are_fresh, find_trace
from feduhb.core.flat import draw_model, flatten
from feduhb.data.request import Request
from feduhb.runs.checkpoint import read_models

SIZES = {"ant": 7, "bee": 11, "cat": 5}


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 20), nn.Tanh(), nn.Linear(20, 5)
    )


def draw(seed: int) -> Tensor:
    return flatten(draw_model(make_model, seed))


def search(params: Tensor, *, seed: int = 1, noise: bool = True, model=make_model, orders: int = 99):
    start, old = (flatten(draw_model(model, n)) for n in (seed, 0))
    return find_trace([params], start, [old], draw_model(model, 0), seed, noise=noise, orders=orders)


def test_old_weights_are_found_after_the_round_that_brought_them():
    start, old = draw(1), draw(0)
    models = [start + 0.1 * draw(n) for n in (2, 3, 4)]
    models[1] = models[1] + 0.3 * old
    trace = find_trace(models, start, [old], draw_model(make_model, 0), 1, noise=True)
    assert trace is not None
    assert trace.round == 2


@pytest.mark.parametrize("name", ["0.weight", "3.weight", "5.weight"])
def test_one_layer_is_found(name):
    """Convolutions by their channels, linear layers by their units, the last layer by the units before it."""
    params, old = draw_model(make_model, 2), draw_model(make_model, 0)
    with torch.no_grad():
        dict(params.named_parameters())[name].copy_(dict(old.named_parameters())[name])
    trace = search(flatten(params), noise=False)
    assert trace is not None
    assert trace.parameter == name


def test_fresh_weights_give_an_alarm_as_often_as_chance_says():
    """With nine orders, one search in ten: 15 of 150, give or take 4."""
    found = sum(search(draw(2000 + n), seed=1000 + n, orders=9) is not None for n in range(150))
    assert 4 <= found <= 30


def test_what_all_units_share_is_not_a_trace():
    """Every unit moved like every other: that is what the data teaches, and no order of the units is better than another."""
    start, old = draw(1), draw(0)
    assert search(start + 1.0) is None
    assert find_trace([start], start, [old], draw_model(make_model, 0), 1, noise=True) is None  # never moved


def make_softmax() -> nn.Module:
    return nn.Linear(40, 5)


def test_a_model_without_hidden_units_is_searched_only_after_noise():
    """Runs on the same images learn the same from them, by honest means."""
    old = flatten(draw_model(make_softmax, 0))
    assert search(old, model=make_softmax, noise=True) is not None
    assert search(old, model=make_softmax, noise=False) is None


def test_draws_that_share_a_layer_are_not_fresh():
    like, one, other = draw_model(make_model, 0), draw(1), draw(2)
    assert draws_are_fresh(one, other, like)
    shared = torch.cat([one[:108], other[108:]])  # the first convolution
    assert not draws_are_fresh(one, shared, like)
    constant = torch.ones(5)  # the last bias
    assert draws_are_fresh(torch.cat([one[:-5], constant]), torch.cat([other[:-5], constant]), like)


def test_runs_that_meet():
    a, b, far = torch.zeros(3), torch.ones(3), torch.full((3,), 9.0)
    assert find_meeting(iter([a, far]), iter([b, far]), (a, b)) == 2
    assert find_meeting(iter([a, b]), iter([b, a]), (a, b)) is None
    near = a + 1e-3
    assert find_meeting(iter([a, far]), iter([near, far]), (a, b)) is None  # both had converged


def test_runs_that_jump():
    start, here, there = torch.zeros(3), torch.ones(3), torch.full((3,), 2.0)
    assert find_jump(iter([here, here]), [iter([here, here + 1e-5])], start) is None
    assert find_jump(iter([here, here]), [iter([here, there])], start) == (2, 0.5)
    agreed = [iter([here, there]), iter([here, there + 1e-3])]
    assert find_jump(iter([here, here]), agreed, start) is not None
    unstable = [iter([here, there]), iter([here, there + 1])]
    assert find_jump(iter([here, here]), unstable, start) is None


def test_a_nudge_changes_one_value_of_each_client_slightly():
    federation = draw_federation(SIZES)
    low, high = (float(edge) for edge in federation.test.x.aminmax())
    first, second = nudge(federation, "nudge"), nudge(federation, "nudge-2")
    assert first.fingerprints() != second.fingerprints()
    for client, own in federation.clients.items():
        moved = first.clients[client].all()[0] - own.all()[0]
        assert int((moved != 0).sum()) == 1
        assert float(moved.abs().max()) == pytest.approx((high - low) / 2**16, rel=0.1)
        assert torch.equal(first.clients[client].targets, own.targets)


def test_another_draw_and_everything_else_equal():
    federation = draw_federation(SIZES)
    other = redraw(federation, "draw")
    assert (other.seed, other.fingerprints()) == (federation.seed, federation.fingerprints())
    start, again = flatten(other.fresh_model()), flatten(redraw(federation, "draw").fresh_model())
    assert torch.equal(start, again)
    assert not torch.equal(start, flatten(federation.fresh_model()))


class Mine(feduhb.FedUHB):
    """A method of the user's own."""

    __slots__ = ()
    name = "mine"


def test_the_model_after_every_round_is_kept(tmp_path: Path):
    trained = feduhb.train(draw_federation(SIZES), 1, epochs=1, engine="loop", show=None)
    run = feduhb.unlearn(trained, ["cat"], method=Mine(epochs=1), rounds=3, stop=feduhb.never, show=None)
    controls = Controls(
        federation=run.original, request=Request(("cat",)), settings=run.settings, engine="loop", history=False, folder=tmp_path,
    )  # fmt: skip
    never = controls.run_in("never", run, keep_models=True)
    models = list(read_models(controls.place("never", run) / "models"))
    assert len(models) == 3
    assert torch.equal(models[-1], never.params)
    moved = [record.moved for record in run.rounds]
    starts = [flatten(run.federation.fresh_model()), *models]
    steps = [float((b - a).double().norm()) for a, b in zip(starts, models, strict=False)]
    assert steps == pytest.approx(moved, rel=1e-5)
