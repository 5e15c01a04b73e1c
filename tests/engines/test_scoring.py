"""Accuracy and loss on cases that can be counted by hand."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from feduhb.core.flat import flatten
from feduhb.core.scores import SCORES
from feduhb.data.federation import Examples, Federation
from feduhb.engines import scoring as module
from feduhb.engines.scoring import (
    compute_accuracy,
    compute_outputs,
    make_evaluator,
    make_held_out_evaluator,
    score_model,
)
from feduhb.errors import ModelError


class Table(nn.Module):
    """Looks the input, a whole number, up in a table of outputs."""

    def __init__(self, rows: list[list[float]]) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows))

    def forward(self, x: Tensor) -> Tensor:
        return self.rows[x.flatten().long()]


LN3 = math.log(3)
TABLE = Table([[LN3, 0.0], [0.0, LN3], [0.0, 0.0]])  # surely 0 (3 : 1), surely 1, undecided
X = torch.tensor([[0.0], [0.0], [1.0], [1.0]])


def test_the_share_whose_largest_output_is_their_label():
    given = torch.tensor([[2.0, 1.0, 0.0], [0.0, -1.0, -2.0], [0.0, 0.1, 0.2], [-3.0, -1.0, -2.0]])
    assert compute_accuracy(given, torch.tensor([0, 0, 2, 1])) == 1.0
    assert compute_accuracy(given, torch.tensor([0, 1, 2, 0])) == 0.5
    assert compute_accuracy(given, torch.tensor([1, 1, 1, 2])) == 0.0


def test_scores_by_hand():
    """Three right at probability 3/4, one wrong: loss (3 ln 4/3 + ln 4) / 4."""
    loss, share = score_model(TABLE, Examples.of(X, torch.tensor([0, 0, 1, 0])), F.cross_entropy)
    assert share == 0.75
    assert loss == pytest.approx((3 * math.log(4 / 3) + math.log(4)) / 4, rel=1e-6)


def test_only_the_rows_of_the_list_are_scored():
    some = Examples.of(X, torch.tensor([0, 1, 1, 0]), torch.tensor([1, 3]))
    assert score_model(TABLE, some, F.cross_entropy)[1] == 0.0


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 8, 1000])
def test_chunking_does_not_matter(chunk, monkeypatch):
    x, y = torch.arange(7.0)[:, None] % 3, torch.arange(7) % 2
    whole = score_model(TABLE, Examples.of(x, y), F.cross_entropy)
    monkeypatch.setattr(module, "CPU_CHUNK", chunk)
    assert torch.equal(compute_outputs(TABLE, x), TABLE(x))
    assert score_model(TABLE, Examples.of(x, y), F.cross_entropy) == whole


def test_more_examples_than_a_chunk_holds():
    x = torch.arange(float(2 * module.CPU_CHUNK + 1))[:, None] % 2
    assert compute_accuracy(compute_outputs(TABLE, x), x.flatten().long()) == 1.0


def test_outputs_of_earlier_chunks_are_not_kept_apart(monkeypatch):
    """Each would keep the memory around it from being used again."""
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    class Watched(Table):
        def forward(self, x: Tensor) -> Tensor:
            alive.append(sum(one() is not None for one in made))
            outputs = super().forward(x)
            made.append(weakref.ref(outputs))
            return outputs

    monkeypatch.setattr(module, "CPU_CHUNK", 2)
    x = torch.arange(11.0)[:, None] % 3
    assert torch.equal(compute_outputs(Watched(TABLE.rows.tolist()), x), TABLE(x))
    assert (len(made), max(alive)) == (6, 1)


def test_no_gradient_is_kept():
    assert not compute_outputs(TABLE, X).requires_grad


def linear(x: Tensor, y: Tensor, **more: object) -> Federation:
    return Federation({"a": (x, y)}, (x, y), nn.Linear(x.shape[1], 2)).replace(**more)


def test_the_evaluators_keys():
    x, y = torch.eye(2), torch.tensor([0, 1])
    found = make_evaluator(linear(x, y))(torch.tensor([LN3, 0.0, 0.0, LN3, 0.0, 0.0]))
    assert found == {"test_loss": pytest.approx(math.log(4 / 3)), "test_accuracy": 1.0}
    assert all(type(value) is float for value in found.values())


@pytest.mark.parametrize("large", [1 << 26, 0])
def test_the_evaluator_scores_the_parameters_given(large, monkeypatch):
    """A large model is copied for each score."""
    monkeypatch.setattr("feduhb.core.modules.LARGE", large)
    x, y = torch.eye(2), torch.tensor([0, 1])
    made = linear(x, y)
    evaluate = make_evaluator(made)
    right, wrong = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    assert [evaluate(w)["test_accuracy"] for w in (right, wrong, right)] == [1.0, 0.0, 1.0]
    assert torch.equal(right, torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]))


def test_the_evaluator_draws_nothing():
    made = linear(torch.eye(2), torch.tensor([0, 1]))
    params = flatten(made.fresh_model())
    before = torch.default_generator.get_state()
    make_evaluator(made)(params)
    assert torch.equal(before, torch.default_generator.get_state())


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2)])
def test_targets_that_are_not_labels_have_no_accuracy(shape):
    def gap(given: Tensor, y: Tensor) -> Tensor:
        return (given.mean() - y.mean()).abs()

    made = linear(torch.rand(4, 3), torch.full(shape, 0.5), loss=gap)
    assert make_evaluator(made)(torch.zeros(8)) == {"test_loss": 0.5}
    assert math.isnan(score_model(nn.Linear(3, 2), made.test, gap)[1])


def test_regression_by_hand():
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
    made = Federation({"a": (x, y)}, (x, y), nn.Linear(1, 1), loss=F.mse_loss)
    assert make_evaluator(made)(torch.tensor([1.0, 0.0])) == {"test_loss": 2.0}


def test_a_score_that_is_not_a_number_is_left_out():
    found = make_evaluator(linear(torch.eye(2), torch.tensor([0, 1])))(torch.full((6,), math.nan))
    assert "test_loss" not in found


class Halves(nn.Linear):
    """Returns something else in evaluation mode."""

    def forward(self, input: Tensor) -> Tensor:
        found = super().forward(input)
        return found if self.training else found.chunk(2)  # pyright: ignore[reportReturnType]


def test_a_model_that_does_not_compute_in_evaluation_mode_is_refused_in_words():
    federation = linear(torch.eye(2), torch.tensor([0, 1])).replace(model=Halves(2, 2))
    with pytest.raises(
        ModelError, match=r"cannot compute in evaluation mode on cpu \(AttributeError: .*; look at"
    ):
        make_evaluator(federation)


@pytest.mark.parametrize(("device", "readings"), [("cpu", 4), ("cpu:0", 0)])  # cpu:0 stands for a GPU
def test_a_gpu_keeps_held_out_data_between_rounds(device, readings, monkeypatch):
    read, count = Examples.all, []
    monkeypatch.setattr(Examples, "all", lambda examples: (count.append(1), read(examples))[1])
    held = {"a": (torch.eye(2), torch.tensor([0, 1])), "b": (torch.eye(2)[:1], torch.tensor([1]))}
    made = Federation(held, held["a"], nn.Linear(2, 2), held_out=held)
    evaluate = make_held_out_evaluator(made, SCORES["accuracy"], device)
    right = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    count.clear()
    assert [evaluate(w, ("a", "b"))["accuracy"] for w in (right, -right)] == [
        pytest.approx(2 / 3),
        pytest.approx(1 / 3),
    ]
    assert len(count) == readings


def test_on_a_gpu_clients_are_computed_together_to_the_same_scores():
    """Some clients of different sizes, in any order, and one without held-out data. cpu:0 stands for a GPU."""
    draw = torch.Generator().manual_seed(1)
    sizes = {"a": 5, "b": 1, "c": 0, "d": 7}
    held = {
        name: (torch.randn(n, 1, 6, 6, generator=draw), torch.randint(0, 3, (n,), generator=draw))
        for name, n in reversed(sizes.items())
    }
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    clients = {name: (torch.ones(1, 1, 6, 6), torch.tensor([0])) for name in sizes}
    made = Federation(clients, clients["a"], net, held_out=held)
    each, together = (
        make_held_out_evaluator(made, SCORES["accuracy"], device) for device in ("cpu", "cpu:0")
    )
    params = torch.randn(sum(p.numel() for p in net.parameters()), generator=draw)
    for some in ("abcd", "dcba", "bd", "a", "c", ""):
        expected = each(params, [*some])
        assert [*expected] == (["loss", "accuracy"] if {*some} - {"c"} else [])
        assert together(params, [*some]) == pytest.approx(expected, rel=1e-6)


def test_rows_whose_label_the_loss_leaves_out_count_nowhere():
    """Two clients, one of them with a single label that counts: no mean counts the others."""
    right = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    parts = {"a": torch.tensor([0, 1, -100]), "b": torch.tensor([-100, 0, -100]), "c": torch.full((3,), -100)}
    x = torch.tensor([[LN3, 0.0], [0.0, LN3], [LN3, 0.0]])
    held = {client: (x, y) for client, y in parts.items()}
    made = Federation(held, (x, torch.tensor([0, 1, -100])), nn.Linear(2, 2), held_out=held)
    assert make_evaluator(made)(right)["test_accuracy"] == 1.0
    for device in ("cpu", "cpu:0"):
        found = make_held_out_evaluator(made, SCORES["accuracy"], device)(right, [*parts])
        assert found["accuracy"] == pytest.approx(2 / 3)
        assert found["loss"] == pytest.approx((2 * math.log(4 / 3) + math.log(4)) / 3, rel=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])  # cpu:0 stands for a GPU
def test_a_mean_is_not_recorded_if_the_value_of_one_client_has_overflowed(device):
    x = {"a": torch.tensor([[1.0], [2.0]]), "b": torch.tensor([[1e10]])}
    held = {client: (inputs, torch.zeros_like(inputs)) for client, inputs in x.items()}
    made = Federation(held, held["a"], nn.Linear(1, 1), held_out=held, loss=F.mse_loss)
    evaluate = make_held_out_evaluator(made, SCORES["rmse"], device)
    small, large = torch.tensor([1.0, 0.0]), torch.tensor([1e10, 0.0])
    assert [*evaluate(small, ["a", "b"])] == ["loss", "rmse"]
    found = evaluate(large, ["a", "b"])
    assert found == {"rmse": pytest.approx((2 * 2.5**0.5 * 1e10 + 1e20) / 3, rel=1e-6)}, (
        "1e40 is too large for a float32"
    )
    assert evaluate(large, ["a"])["loss"] == pytest.approx(2.5e20, rel=1e-6)


@pytest.mark.parametrize(("bias", "names"), [(0.0, ["loss", "auroc"]), (math.inf, [])])
def test_a_score_of_outputs_that_are_not_finite_is_not_recorded_but_one_that_is_not_defined_is_left_out(
    bias, names
):
    """All examples of b have one class, and no label of c counts."""
    x, labels = torch.eye(2), {"a": [0, 1], "b": [1, 1], "c": [-100, -100]}
    held = {client: (x, torch.tensor(y)) for client, y in labels.items()}
    made = Federation(held, held["a"], nn.Linear(2, 2), held_out=held)
    evaluate = make_held_out_evaluator(made, SCORES["auroc"])
    found = evaluate(torch.tensor([1.0, 0.0, 0.0, 1.0, bias, 0.0]), [*held])
    assert [*found] == names
    if names:
        assert found["auroc"] == 1.0
        assert found["loss"] == pytest.approx(
            (3 * math.log1p(math.exp(-1)) + math.log1p(math.e)) / 4, rel=1e-6
        )
