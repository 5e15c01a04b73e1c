"""What the checks of the user's own code measure: traces of old weights, runs that meet, runs that jump."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import feduhb
from audit.auditing import draw_federation
from feduhb.audit.controls import Controls, nudge, redraw
from feduhb.audit.measures import compute_constant_loss
from feduhb.audit.own_code import find_approach, find_jump
from feduhb.audit.traces import draws_are_fresh, find_trace, find_units
from feduhb.core.flat import draw_model, flatten
from feduhb.data.request import Request
from feduhb.runs.kept import KeptModels

SIZES = {"ant": 7, "bee": 11, "cat": 5}


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 20), nn.Tanh(), nn.Linear(20, 5)
    )


def draw(seed: int) -> Tensor:
    return flatten(draw_model(make_model, seed))


IMAGES, POINTS = torch.rand(8, 1, 4, 4), torch.rand(8, 40)
LIKE = draw_model(make_model, 0)
UNITS = find_units(LIKE, IMAGES, noise=True)


def search(params: Tensor, *, seed: int = 1, model=make_model, groups=UNITS, orders: int = 99):
    start, old = (flatten(draw_model(model, n)) for n in (seed, 0))
    return find_trace([params], start, [old], draw_model(model, 0), groups, seed, orders=orders)


def test_old_weights_are_found_after_the_round_that_brought_them():
    start, old = draw(1), draw(0)
    models = [start + 0.1 * draw(n) for n in (2, 3, 4)]
    models[1] = models[1] + 0.3 * old
    trace = find_trace(models, start, [old], LIKE, UNITS, 1)
    assert trace is not None
    assert trace.round == 2


@pytest.mark.parametrize("name", ["0.weight", "3.weight", "5.weight"])
def test_one_layer_is_found(name):
    """Convolutions by their channels, linear layers by their units, the last layer by the units before it."""
    assert not any(units.of_input for units in UNITS)
    params, old = draw_model(make_model, 2), draw_model(make_model, 0)
    with torch.no_grad():
        dict(params.named_parameters())[name].copy_(dict(old.named_parameters())[name])
    trace = search(flatten(params))
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
    assert find_trace([start], start, [old], LIKE, UNITS, 1) is None  # never moved


def make_softmax() -> nn.Module:
    return nn.Linear(40, 5)


def test_a_model_without_hidden_units_is_searched_only_after_noise():
    """Runs on the same images learn the same from them, by honest means."""
    old, like = flatten(draw_model(make_softmax, 0)), make_softmax()
    assert search(old, model=make_softmax, groups=find_units(like, POINTS, noise=True)) is not None
    assert find_units(like, POINTS) == []
    assert find_units(nn.Linear(6, 5), torch.rand(8, 6), noise=True) == []  # 720 orders are too few


def list_units(model: nn.Module, x: Tensor) -> list[tuple[int, list[str]]]:
    """Return the number of units in each group, with the names of their parameters."""
    names = [name for name, _ in model.named_parameters()]
    return [(units.count, [names[place] for place, _ in units.parts]) for units in find_units(model, x)]


class Embeds(nn.Module):
    """Words, each a row of an embedding, in one of two ways: their mean, or one after the other."""

    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        self.flat = flat
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(48 if flat else 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        found = self.embed(x)
        return self.head(found.flatten(1) if self.flat else found.mean(dim=1))


class Bypassed(nn.Module):
    """A layer whose units others bypass, and whose head is not its last matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(40, 5)
        self.hidden = nn.Linear(40, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.hidden(x).relu())


def test_only_units_that_are_alike_change_their_order():
    """Channels and hidden units are alike; positions, classes, words and bypassed units are not."""
    assert list_units(LIKE, IMAGES) == [
        (12, ["0.weight", "0.bias", "3.weight"]),
        (20, ["3.weight", "3.bias", "5.weight"]),
    ]
    flat = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 8))
    assert list_units(flat, IMAGES) == [(8, ["0.weight", "0.bias", "3.weight"])]
    grouped = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(32, 8))
    assert list_units(grouped, IMAGES) == []
    words = torch.randint(0, 16, (8, 6))
    assert list_units(Embeds(flat=False), words) == [(8, ["embed.weight", "head.weight"])]
    assert list_units(Embeds(flat=True), words) == []
    assert list_units(Bypassed(), POINTS) == []


def make_zeros() -> nn.Module:
    head = nn.Linear(8, 5)
    nn.init.zeros_(head.weight)
    return nn.Sequential(nn.Linear(40, 8), nn.ReLU(), head)


def test_units_are_found_although_a_layer_is_drawn_as_zeros():
    assert list_units(make_zeros(), POINTS) == [(8, ["0.weight", "0.bias", "2.weight"])]


def test_a_copy_of_the_fewest_units_is_found():
    """Their own order is not among the other ones."""

    def make_small() -> nn.Module:
        return nn.Sequential(nn.Linear(40, 7), nn.ReLU(), nn.Linear(7, 5))

    groups = find_units(make_small(), POINTS)
    olds = [flatten(draw_model(make_small, n)) for n in range(20, 25)]
    like, start = make_small(), flatten(draw_model(make_small, 1))
    assert all(find_trace([old], start, [old], like, groups, n) for n, old in enumerate(olds))


def test_draws_that_share_a_layer_are_not_fresh():
    like, one, other = draw_model(make_model, 0), draw(1), draw(2)
    assert draws_are_fresh(one, other, like)
    shared = torch.cat([one[:108], other[108:]])  # the first convolution
    assert not draws_are_fresh(one, shared, like)
    constant = torch.ones(5)  # the last bias
    assert draws_are_fresh(torch.cat([one[:-5], constant]), torch.cat([other[:-5], constant]), like)


def test_draws_that_are_alike_are_not_fresh():
    """A factory that adds a little noise to stored weights: its units differ in the same way in every draw."""
    old = draw(0)
    assert draws_are_fresh(draw(1), draw(2), LIKE, UNITS)
    assert not draws_are_fresh(old + 0.1 * draw(1), old + 0.1 * draw(2), LIKE, UNITS)


def test_runs_that_come_nearer():
    a, b, far = torch.zeros(3), torch.ones(3), torch.full((3,), 9.0)
    assert find_approach(iter([a, far]), iter([b, far]), (a, b)) == (math.inf, 2)
    assert find_approach(iter([a, b]), iter([b, a]), (a, b)) == (1.0, 1)
    assert find_approach(iter([a, far]), iter([b, far + 0.5]), (a, b)) == (2.0, 2)
    near = a + 2**-8
    assert find_approach(iter([a, far]), iter([near, far]), (a, b)) == (256.0, 1)  # then both had converged


def test_the_least_loss_of_a_constant_answer():
    """The mean for squares, the shares of the labels for cross-entropy."""
    x, y = torch.rand(60, 6), torch.randn(60, 2)
    squares = feduhb.Federation({"a": (x, y)}, (x, y), nn.Linear(6, 2), loss=nn.functional.mse_loss)
    assert compute_constant_loss(squares) == pytest.approx(float(y.var(dim=0, correction=0).mean()), rel=1e-4)
    federation = draw_federation(SIZES)
    shares = torch.bincount(federation.test.targets) / len(federation.test)
    assert compute_constant_loss(federation) == pytest.approx(float(-(shares * shares.log()).sum()), rel=1e-4)


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
    models = list(KeptModels(controls.place("never", run) / "models").read_all())
    assert len(models) == 3
    assert torch.equal(models[-1], never.params)
    moved = [record.moved for record in run.rounds]
    starts = [flatten(run.federation.fresh_model()), *models]
    steps = [float((b - a).double().norm()) for a, b in zip(starts, models, strict=False)]
    assert steps == pytest.approx(moved, rel=1e-5)
