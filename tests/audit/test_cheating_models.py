"""Old weights in the model's factory, in a built-in method that was replaced, and in an aggregation: never "forgotten"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

import feduhb
from audit.auditing import LEAVERS, QUIET, TRAINED, load_digits
from feduhb.audit.audit import audit
from feduhb.audit.beginning import GIVEN, KNOWS, UNJUDGED, explain_start
from feduhb.audit.client_code import note_client_code
from feduhb.audit.verdict import UNEXPLAINED
from feduhb.core.flat import unflatten
from feduhb.core.fresh import DRAWS
from feduhb.core.seeds import fixed_draws, seed_for
from feduhb.core.types import Updates
from feduhb.data.federation import Examples, Federation
from feduhb.engines.scoring import score_model
from feduhb.errors import ModelError
from feduhb.methods.feduhb import HeavyBall
from feduhb.runs.run import Run

ROUNDS = 6
slow = pytest.mark.slow


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def original() -> Run:
    federation = load_digits(model=make_model, per_client=60)
    return feduhb.train(federation, ROUNDS, **{**TRAINED, "lr": 0.3})


def unlearn(trained: Run, method: Any = "feduhb") -> Run:
    return feduhb.unlearn(trained, LEAVERS, method=method, rounds=ROUNDS, stop=feduhb.never, show=None)


def make_old(old: torch.Tensor) -> nn.Module:
    module = make_model()
    unflatten(old.clone(), module)
    return module


def add_noise(old: torch.Tensor, share: float = 1e-3) -> nn.Module:
    module, drawn = make_old(old), make_model()
    with torch.no_grad():
        for p, fresh in zip(module.parameters(), drawn.parameters(), strict=True):
            p.add_(share * fresh)
    return module


def reorder(old: torch.Tensor) -> nn.Module:
    """Return the same function with its hidden units in a random order."""
    module, order = make_old(old), torch.randperm(32)
    weight, bias, last, shift = module.parameters()
    with torch.no_grad():
        weight.copy_(weight[order])
        bias.copy_(bias[order])
        last.copy_(last[:, order])
        shift.zero_()
    return module


def change_model(run: Run, model: Callable[[], nn.Module]) -> Run:
    return replace(
        run, federation=run.federation.replace(model=model), original=run.original.replace(model=model)
    )


def test_a_factory_of_old_weights_is_refused(original):
    with pytest.raises(ModelError, match="returns the same weights for every seed"):
        unlearn(change_model(original, partial(make_old, original.params)))


@slow
def test_a_factory_that_hides_old_weights_is_never_forgotten(original):
    model = partial(add_noise, original.params)
    found = audit(unlearn(change_model(original, model)), original, canaries=0, **QUIET)
    assert found.verdict.word == "inconclusive"
    says = "Fresh draws of the model share weights in 1.weight and 3 other parameters"
    assert found.verdict.reasons[0] == f"{says}: {GIVEN}."
    assert found.exactness is not None
    assert found.exactness.exact  # equal bits do not help


def renew_last(old: torch.Tensor, share: float) -> nn.Module:
    """Return what was memorised in the hidden layer, under some noise, and a fresh last layer."""
    module = add_noise(old, share)
    module[3].reset_parameters()  # pyright: ignore[reportIndexIssue]
    return module


def test_one_fresh_layer_over_memorised_ones_is_refused_if_these_never_change(original):
    model = partial(renew_last, original.params, 0.0)
    with pytest.raises(ModelError, match=r"returns the same weights for every seed in 1\.weight"):
        feduhb.train(original.federation.replace(model=model), 1, **TRAINED)


@slow
@pytest.mark.parametrize("share", [1e-6, 0.3])
def test_one_fresh_layer_over_memorised_ones_is_never_forgotten(original, share):
    """The hidden layer has memorised the leavers' labels; the fresh layer makes every draw another model."""
    federation = original.federation
    memory = feduhb.train(federation.without(["c03", "c04"]), ROUNDS, **{**TRAINED, "lr": 0.3})
    model = partial(renew_last, memory.params, share)
    trained = feduhb.train(federation.replace(model=model), 1, **TRAINED)
    run = feduhb.unlearn(trained, LEAVERS, method="retrain", rounds=1, show=None)
    found = audit(run, trained, canaries=0, **QUIET)
    assert found.exactness is not None
    assert found.exactness.exact
    assert found.verdict.word not in ("forgotten", "not caught")
    says = "Fresh draws of the model share weights in 1.weight"
    assert any(says in reason for reason in found.verdict.reasons)


@pytest.mark.parametrize("cheat", [partial(add_noise, share=1.0), reorder])
def test_old_weights_under_as_much_noise_or_in_another_order(original, cheat):
    says = explain_start(change_model(original, partial(cheat, original.params)), original, [])
    assert says is not None
    assert says.startswith("Fresh draws of the model share weights in 1.weight")


def turn(solution: torch.Tensor) -> nn.Module:
    """Return a known linear map [64, 10] as two layers that no two draws share: a random rotation and what undoes it."""
    rotation = nn.init.orthogonal_(torch.empty(64, 64))
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64, bias=False), nn.Linear(64, 10, bias=False))
    unflatten(torch.cat([rotation.flatten(), (rotation @ solution).T.flatten()]), module)
    return module


def solve(federation: Federation) -> torch.Tensor:
    """Return the linear map [64, 10] from images to labels or one-hot targets that fits the data best."""
    x, y = (
        torch.cat(parts) for parts in zip(*(own.all() for own in federation.clients.values()), strict=True)
    )
    goal = y if y.is_floating_point() else nn.functional.one_hot(y, 10).float()
    return torch.linalg.lstsq(x.flatten(1), goal, driver="gelsd").solution


def test_a_model_that_does_well_before_it_learns(original):
    run = change_model(original, partial(turn, solve(original.federation)))
    notes: list[str] = []
    says = explain_start(run, original, notes)
    assert says == f"Every one of 16 fresh draws of the model does well on test data: {GIVEN}."
    assert explain_start(original, original, notes) is None
    assert notes == []


def test_the_same_by_the_loss_if_targets_are_not_labels(original):
    def encode(examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = examples.all()
        return x, nn.functional.one_hot(y, 10).float()

    labelled = original.federation
    clients = {client: encode(own) for client, own in labelled.clients.items()}
    federation = Federation(clients, encode(labelled.test), make_model, loss=nn.functional.mse_loss)
    retrain = feduhb.train(federation, ROUNDS, **{**TRAINED, "lr": 0.3})
    notes: list[str] = []
    says = explain_start(change_model(retrain, partial(turn, solve(federation))), retrain, notes)
    assert says is not None
    assert says.startswith(f"{KNOWS}, with a loss of 0.0")
    assert explain_start(retrain, retrain, notes) is None
    assert notes == []


RARE = 1 / 30


def return_old_sometimes(old: torch.Tensor) -> nn.Module:
    """Return an honest draw, except for one seed in 30."""
    return reorder(old) if float(torch.rand(())) < RARE else make_model()


def is_old(seed: int) -> bool:
    with fixed_draws(seed, "init"):
        return float(torch.rand(())) < RARE


def count_old(seed: int) -> int:
    return sum(is_old(seed_for(seed, "fresh", number)) for number in range(DRAWS))


@pytest.mark.parametrize("others", [0, 1])
def test_old_weights_for_a_few_seeds_only(original, others):
    seed = next(seed for seed in count() if is_old(seed) and count_old(seed) == others)
    run = change_model(original, partial(return_old_sometimes, original.params))
    says = explain_start(run.reseed(seed), original, [])
    assert says is not None
    assert says.startswith(f"{KNOWS}, with an accuracy of ")
    honest = next(seed for seed in count() if not is_old(seed) and count_old(seed) == others)
    assert explain_start(run.reseed(honest), original, []) is None


@slow
def test_a_run_from_one_of_these_seeds_is_never_forgotten(original):
    model = partial(return_old_sometimes, original.params)
    run = change_model(original.reseed(next(filter(is_old, count()))), model)
    found = audit(unlearn(run), original, canaries=0, **QUIET)
    assert found.verdict.word == "inconclusive"
    assert found.verdict.reasons[0].startswith(KNOWS)


def test_honest_draws_that_happen_to_do_well_are_not_accused():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, 4, generator=draw)
    y = (x @ torch.randn(4, 2, generator=draw)).argmax(dim=1)
    pair = x[:200], y[:200]
    federation = Federation({"a": pair, "b": pair}, (x[200:], y[200:]), nn.Linear(4, 2))
    retrain = feduhb.train(federation, 5, **TRAINED)
    runs = [retrain.reseed(seed) for seed in range(30)]
    scores = [score_model(run.federation.fresh_model(), federation.test, federation.loss)[1] for run in runs]
    assert sum(score > 0.75 for score in scores) >= 3  # with two labels, chance goes far
    assert [explain_start(run, retrain, []) for run in runs] == [None] * 30


def test_a_model_that_is_too_small_to_be_judged_is_noted():
    pair = torch.randn(8, 2), torch.randn(8, 1)
    federation = feduhb.Federation({"a": pair, "b": pair}, pair, nn.Linear(2, 1), loss=nn.functional.mse_loss)
    run = feduhb.train(federation, 1, epochs=1, engine="loop", show=None)
    notes: list[str] = []
    assert explain_start(run, run, notes) is None
    assert notes == [UNJUDGED]


@slow
def test_a_built_in_step_that_was_replaced_does_not_travel(original, monkeypatch):
    old, step = original.params * (1 + 1e-6), feduhb.FedUHB.tell

    def tell(self: feduhb.FedUHB, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
        new = step(self, state, answers)
        return HeavyBall(old, new.previous) if torch.equal(*state) else new

    monkeypatch.setattr(feduhb.FedUHB, "tell", tell)
    found = audit(unlearn(original), original, canaries=0, **QUIET)
    assert found.verdict.word == "inconclusive"
    assert found.verdict.reasons[-1] == UNEXPLAINED


@slow
def test_an_aggregation_that_closes_over_old_weights(original):
    old = original.params * (1 + 1e-6)

    def towards(answers: Iterable[Updates]) -> torch.Tensor:
        return feduhb.weighted_mean(answers) - 0.05 * old

    found = audit(unlearn(original, feduhb.FedUHB(aggregate=towards)), original, canaries=0, **QUIET)
    assert found.verdict.word == "not forgotten"
    assert "traces of the original's weights" in found.verdict.reasons[-1]


class Own(nn.Linear):
    """A layer with code of its own."""


def test_code_that_runs_at_the_clients_is_noted(original):
    def note(**changes: Any) -> list[str]:
        return note_client_code(original.federation.replace(**changes))

    def own_loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, y)

    def make_own() -> nn.Module:
        return nn.Sequential(nn.Flatten(), Own(64, 10))

    def make_hooked() -> nn.Module:
        module = make_model()
        module.register_forward_hook(lambda *_: None)
        return module

    says = " own code was trusted: it runs at the clients and could hold an old model."
    smooth = partial(nn.functional.cross_entropy, label_smoothing=0.1)
    assert note() == note(loss=smooth) == note(loss=nn.CrossEntropyLoss()) == []
    assert note(loss=own_loss) == note(loss=partial(own_loss)) == [f"The loss's{says}"]
    assert note(model=make_own) == note(model=make_hooked) == [f"The model's{says}"]
    assert note(model=make_own, loss=own_loss) == [f"The model's and the loss's{says}"]


def test_a_name_of_torch_is_not_enough(original):
    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, y)

    loss.__module__, loss.__qualname__ = "torch.nn.functional", "cross_entropy"
    federation: Federation = original.federation
    assert note_client_code(federation.replace(loss=loss))
