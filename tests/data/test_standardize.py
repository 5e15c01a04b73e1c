"""Inputs standardised by client: the numbers, what a leaver or a forgotten row changes, and audits of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import feduhb
from feduhb.data.canaries import Canaries, plant_canaries
from feduhb.data.federation import Federation
from feduhb.errors import DataError

TRAINED = {"rounds": 3, "epochs": 1, "batch_size": 8, "lr": 0.1, "show": None}


def make_federation(shift: float = 0.0, rows: slice = slice(None), **more) -> Federation:
    """Three clients whose inputs have their own centres; ``shift`` moves the first two rows of client a."""
    clients = {}
    for number, client in enumerate("abc"):
        draw = torch.Generator().manual_seed(number)
        x = torch.randn(40, 3, generator=draw) * (number + 1) + 10 * number
        y = (x[:, 0] > x[:, 0].mean()).long()
        if client == "a":
            x[:2] += shift
            x, y = x[rows], y[rows]
        clients[client] = (x, y)
    test = {c: (x[-8:], y[-8:]) for c, (x, y) in clients.items()}
    held = {c: (x[:5] + 1, y[:5]) for c, (x, y) in clients.items()}
    more = {"standardize": True, "seed": 4, **more}
    return Federation(
        clients, test, nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), held_out=held, **more
    )


def test_every_client_is_standardised_by_its_own_training_examples():
    federation = make_federation()
    for client, examples in federation.clients.items():
        plain, scaled = examples.unscaled.all()[0].double(), examples.all()[0]
        mean, spread = plain.mean(0), plain.std(0, correction=0)
        assert torch.allclose(scaled, ((plain - mean) / spread).float(), atol=1e-6)
        for part in (federation.held_out, federation.tested):
            plain = part[client].unscaled.all()[0].double()
            assert torch.allclose(part[client].all()[0], ((plain - mean) / spread).float(), atol=1e-6)


def test_only_the_named_columns_are_standardised():
    found, plain = make_federation(standardize=[1]), make_federation(standardize=False)
    for client in "abc":
        x, raw = found.clients[client].all()[0], plain.clients[client].all()[0]
        assert torch.equal(x[:, [0, 2]], raw[:, [0, 2]])
        assert abs(float(x[:, 1].mean())) < 1e-6


def test_a_constant_column_and_a_single_row_become_zero():
    one = (torch.tensor([[5.0, 7.0]]), torch.tensor([1]))
    federation = Federation(
        {"a": one, "b": (torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))},
        one,
        nn.Linear(2, 2),
        standardize=True,
    )
    assert all((e.all()[0] == 0).all() for e in federation.clients.values())


def test_equal_values_whose_sum_is_rounded_become_zero_and_others_keep_their_size():
    x = torch.full((7, 1), 0.1, dtype=torch.float64)
    test = {"a": (torch.tensor([[0.1], [0.3]], dtype=torch.float64), torch.tensor([0, 1]))}
    made = Federation({"a": (x, torch.arange(7) % 2)}, test, nn.Linear(1, 2), standardize=True)
    assert (made.clients["a"].all()[0] == 0).all()
    torch.testing.assert_close(made.test.all()[0], torch.tensor([[0.0], [0.2]]))


@pytest.mark.parametrize("standardize", [True, [0, 2]])
def test_forgotten_rows_leave_no_trace_in_the_scale_of_their_client(standardize):
    trained = feduhb.train(make_federation(shift=1e6, standardize=standardize), **TRAINED)
    unlearned = feduhb.unlearn(trained, {"a": [0, 1]}, rounds=3, show=None)
    never = make_federation(rows=slice(2, None), standardize=standardize)
    rest, other = unlearned.federation.clients["a"].all()[0], never.clients["a"].all()[0]
    assert torch.equal(rest, other)
    again = feduhb.unlearn(
        feduhb.train(make_federation(standardize=standardize), **TRAINED), {"a": [0, 1]}, rounds=3, show=None
    )
    assert torch.equal(unlearned.params, again.params)
    assert torch.equal(unlearned.federation.tested["a"].all()[0], again.federation.tested["a"].all()[0])


def test_requests_one_after_another_equal_one_request():
    trained = feduhb.train(make_federation(), **TRAINED)
    first = feduhb.unlearn(trained, {"a": [3, 8]}, rounds=3, show=None)
    second = feduhb.unlearn(first, "a:9-12,b", rounds=3, show=None)
    at_once = feduhb.unlearn(trained, "a:3+8-12,b", rounds=3, show=None)
    assert torch.equal(second.params, at_once.params)


def test_canaries_in_standardised_data_are_forgotten_like_other_rows():
    planted = plant_canaries(make_federation(), Canaries(("a",), 0.5))
    assert planted.clients["a"].plain is not None
    rest = planted.without({"a": [0, 1]})
    expected = make_federation().without({"a": [0, 1]})
    assert torch.equal(rest.clients["a"].all()[0], expected.clients["a"].all()[0])
    assert torch.equal(
        rest.clients["a"].canaries.keys, planted.clients["a"].where(torch.arange(40) > 1).canaries.keys
    )


@pytest.mark.slow
@pytest.mark.parametrize("forget", ["b", "a:0-9", "class:1"])
def test_an_audit_of_standardised_data_finds_equal_weights(forget):
    federation = make_federation(numbered_together=True) if forget != "class:1" else make_federation()
    trained = feduhb.train(federation, **{**TRAINED, "rounds": 12})
    unlearned = feduhb.unlearn(trained, forget, rounds=12, show=None)
    found = feduhb.audit(unlearned, trained, relearn=0, canaries=0, show=None)
    assert found.exactness is not None
    assert found.exactness.exact, found


def test_a_standardised_run_opens_with_rows_deleted(tmp_path):
    trained = feduhb.train(make_federation(), **TRAINED)
    unlearned = feduhb.unlearn(trained, {"a": [0, 1]}, rounds=2, out=tmp_path / "run", show=None)
    for federation in (make_federation(), make_federation(rows=slice(2, None))):
        assert torch.equal(feduhb.open_run(tmp_path / "run", federation).params, unlearned.params)


def test_inputs_that_cannot_be_standardised_are_refused_in_one_line():
    pair = (torch.arange(6).view(3, 2), torch.tensor([0, 1, 0]))
    with pytest.raises(DataError, match="a cannot be standardised, because its inputs are not one tensor"):
        Federation({"a": pair}, pair, nn.Linear(2, 2), standardize=True)


def test_standardising_can_be_switched_on_and_off():
    plain, scaled = make_federation(standardize=False), make_federation()
    for made, wanted in (
        (plain.replace(standardize=True), scaled),
        (scaled.replace(standardize=False), plain),
    ):
        assert made.fingerprints() == wanted.fingerprints()
        assert torch.equal(made.test.all()[0], wanted.test.all()[0])
        assert torch.equal(made.held_out["a"].all()[0], wanted.held_out["a"].all()[0])


def test_clients_that_nobody_touched_are_not_standardised_again():
    federation = make_federation()
    rest = federation.without({"a": [0]})
    assert rest.clients["b"] is federation.clients["b"]
    assert rest.clients["a"].x is not federation.clients["a"].x


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"standardize": [5]}, r"standardize is \[5\]; give True, or the numbers of columns, from 0 to 2"),
        ({"standardize": [0.5]}, r"standardize is \[0.5\]"),
        ({"standardize": "x"}, "standardize is 'x'"),
        (
            {"held_out": {"zz": (torch.zeros(1, 3), torch.zeros(1).long())}},
            "held_out names zz, which is not a client",
        ),
        ({"held_out": {"a": (torch.zeros(1, 4), torch.zeros(1).long())}}, "held-out part of a holds inputs"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(more, words):
    with pytest.raises(DataError, match=words):
        make_federation().replace(**more)


def test_infinite_inputs_are_refused_by_the_name_of_the_client():
    with pytest.raises(DataError, match="a holds infinite or very large inputs"):
        make_federation(shift=float("inf"))


def test_parts_of_a_test_set_that_differ_are_refused():
    pair = (torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(DataError, match="test part of b holds inputs"):
        Federation({"a": pair}, {"a": pair, "b": (torch.zeros(2, 4), torch.tensor([0, 1]))}, nn.Linear(3, 2))
    with pytest.raises(DataError, match="cannot be a client's id"):
        Federation({"a": pair}, {"a,b": pair}, nn.Linear(3, 2))
