"""FineTune and NoT: what they begin at, and that beyond it they are FedAvg with the remaining clients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import feduhb
from federations import ragged
from feduhb.core.modules import list_trained
from feduhb.errors import ConfigError, ModelError
from feduhb.methods import FineTune, NoT, Retrain, settings_of
from feduhb.methods.weight_negation import find_first_layer
from feduhb.runs.loop import run
from toys import quadratics

OLD = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
FRESH = torch.zeros(3, dtype=torch.float64)
LAYOUT = (("0.weight", (1, 2)), ("0.bias", (1,)))


def layout_of(module: nn.Module):
    return tuple((name, tuple(p.shape)) for name, p in list_trained(module))


def test_fine_tuning_is_fedavg_from_the_old_model():
    method, plain = FineTune(epochs=2, model=OLD), Retrain(epochs=2)
    tuned = run(method, quadratics(), "acd", method.init(FRESH), rounds=4)
    retrained = run(plain, quadratics(), "acd", plain.init(OLD), rounds=4)
    for (one, _), (other, _) in zip(tuned, retrained, strict=True):
        assert torch.equal(one.params, other.params)


def test_with_no_rounds_it_is_the_old_model():
    method = FineTune(model=OLD)
    assert torch.equal(method.init(FRESH).params, OLD)
    assert not list(run(method, quadratics(), "acd", method.init(FRESH), rounds=0))


def test_not_negates_the_first_weights_and_nothing_else():
    assert NoT(model=OLD, layout=LAYOUT).init(FRESH).params.tolist() == [-3.0, 1.0, 2.0]
    assert OLD.tolist() == [3.0, -1.0, 2.0]


def test_negated_twice_it_is_the_old_model():
    once = NoT(model=OLD, layout=LAYOUT).init(FRESH).params
    assert torch.equal(NoT(model=once, layout=LAYOUT).init(FRESH).params, OLD)


def test_after_that_not_is_fine_tuning():
    method = NoT(epochs=2, model=OLD, layout=LAYOUT)
    tuned = FineTune(epochs=2, model=method.init(FRESH).params)
    ours = run(method, quadratics(), "acd", method.init(FRESH), rounds=3)
    theirs = run(tuned, quadratics(), "acd", tuned.init(FRESH), rounds=3)
    assert all(
        torch.equal(one.params, other.params) for (one, _), (other, _) in zip(ours, theirs, strict=True)
    )


class Token(nn.Module):
    """A module with a matrix of its own that belongs to no layer, before its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 4))
        self.norm = nn.LayerNorm(4)
        self.dense = nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("module", "begin", "end"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 2)), 0, 36),
        (nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), 6, 12),  # after its scales and shifts
        (Token(), 4 + 8, 4 + 8 + 8),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), 2, 4),  # the lengths, whose sign is W's
    ],
    ids=["conv", "norm", "token", "weight norm"],
)
def test_the_first_layer_is_the_first_with_a_matrix_of_weights(module, begin, end):
    assert find_first_layer(layout_of(module)) == slice(begin, end)


def test_an_adapter_without_the_name_weight_counts_and_a_model_of_vectors_is_refused():
    assert find_first_layer((("scale", (3,)), ("lora_a", (2, 3)))) == slice(3, 9)
    with pytest.raises(ModelError, match=r"no layer of this model has a matrix of weights; use finetune"):
        find_first_layer((("bias", (3,)),))


@pytest.mark.parametrize("method", [FineTune(), NoT()])
def test_without_an_old_model_they_say_how_to_get_one(method):
    with pytest.raises(
        ConfigError, match=r"starts from the model that is to forget, but has none; run it by"
    ):
        method.init(FRESH)


def test_the_old_model_is_no_setting():
    assert settings_of(NoT(model=OLD, layout=LAYOUT)) == settings_of(NoT())
    with pytest.raises(
        ConfigError, match=r"finetune has no setting model; it knows step_size, epochs, aggregate"
    ):
        feduhb.methods.make_method("finetune", model=OLD)


@pytest.fixture(scope="module")
def trained():
    return feduhb.train(ragged(), 2, epochs=1, batch_size=6, lr=0.05, engine="loop", show=None)


@pytest.mark.parametrize("method", ["finetune", "not"])
@pytest.mark.parametrize("forget", [["bee"], {"dog": [0, 3]}, "class:1"], ids=["client", "rows", "class"])
def test_they_serve_every_kind_of_request_and_only_the_remaining_data_is_trained_on(trained, method, forget):
    """The same rounds, by Retrain in a federation that holds what remains and is given the beginning."""
    new = feduhb.unlearn(trained, forget, method=method, rounds=2, show=None)
    begin = feduhb.unlearn(trained, forget, method=method, rounds=0, show=None)
    assert begin.rounds == ()
    given = trained.federation.without(forget).replace(model=begin.model(), start="given")
    again = feduhb.train(given, 2, epochs=1, batch_size=6, lr=0.05, engine="loop", show=None)
    assert torch.equal(new.params, again.params)


@pytest.mark.parametrize("method", ["finetune", "not", "rapidretrain"])
def test_a_resumed_run_equals_the_uninterrupted_one(trained, tmp_path, method):
    whole = feduhb.unlearn(trained, ["bee"], method=method, rounds=3, show=None)

    def interrupt(record):
        if record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduhb.unlearn(trained, ["bee"], method=method, rounds=3, out=tmp_path / "new", show=interrupt)
    new = feduhb.unlearn(
        trained, ["bee"], method=method, rounds=3, out=tmp_path / "new", resume=True, show=None
    )
    assert torch.equal(new.params, whole.params)
    assert torch.equal(feduhb.open_run(tmp_path / "new", trained.federation).params, whole.params)


def test_no_rounds_are_for_methods_that_start_from_the_old_model(trained):
    with pytest.raises(ConfigError, match=r"rounds is 0; give 1 or more"):
        feduhb.unlearn(trained, ["bee"], method="retrain", rounds=0, show=None)


def test_they_keep_no_history(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"finetune cannot keep a history"):
        feduhb.unlearn(
            trained, ["bee"], method="finetune", out=tmp_path / "new", keep_history=True, show=None
        )
