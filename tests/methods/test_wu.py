"""Wu et al.: the subtraction by hand, the distillation by its gradient, and what they need."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import feduhb
from federations import ragged
from feduhb.engines.distillation import Distiller, make_distiller
from feduhb.errors import ConfigError, DataError, RequestError, RunFolderError
from feduhb.methods import WuDistillation
from runs.remembering import Remembered, remember
from toys import block_of, quadratics

ZERO = torch.zeros(2, dtype=torch.float64)
HOW = {"epochs": 1, "batch_size": 6, "lr": 0.05, "engine": "loop", "show": None}


def public(count: int = 9) -> torch.Tensor:
    return torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_without_distillation_it_is_the_subtraction_by_hand():
    """x holds 1 of 4 examples in round 0 and 2 of 5 in round 1: w = 0 + 1/4 (4, 8) + 2/5 (5, -5) = (3, 0)."""
    first = block_of({"a": [9, 9], "x": [4, 8]}, [3, 1])
    second = block_of({"a": [7, 7], "x": [5, -5]}, [3, 2])
    history = Remembered({0: ZERO, 1: ZERO}, {0: [first], 1: [second]})
    method = WuDistillation(passes=0, history=history, clients=("a",), model=ZERO)
    assert method.rounds == 1
    assert method.ask(method.init(ZERO)) is None
    assert method.tell(method.init(ZERO), ()).params.tolist() == pytest.approx([3, 0], abs=1e-15)


def test_what_is_subtracted_is_the_part_of_the_leavers_in_every_step():
    """w_T = w_0 - Σ_t Σ_c p_c u_c, so after the subtraction it is w_0 - Σ_t Σ of the remaining clients, with their old shares."""
    start = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    history, n = remember(quadratics(), "abcde", start, rounds=4, epochs=2), quadratics().examples
    method = WuDistillation(passes=0, history=history, clients=("a", "c", "d"), model=history.final)
    total = sum(n[c] for c in "abcde")
    expected = start - sum(n[c] / total * history.update(t, c) for t in range(4) for c in "acd")
    found = method.tell(method.init(start), ()).params
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_a_step_of_the_distillation_by_its_gradient():
    """z = W x, so the gradient of T² KL(p ‖ q) at W is T (q - p)' x / n, with p and q the softmax of z/T: one step of SGD."""
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]], dtype=torch.float64)
    module = nn.Linear(2, 3, bias=False).double()
    old, student = (torch.randn(6, generator=torch.Generator().manual_seed(s)).double() for s in (1, 2))
    distil = Distiller(module, x, old[6:], seed=3)
    found = distil(student, old, 0, temperature=3.0, lr=0.1, batch_size=3)
    p, q = (torch.softmax(x @ w.view(3, 2).T / 3, dim=1) for w in (old, student))
    expected = student.view(3, 2) - 0.1 * 3 * (q - p).T @ x / 3
    torch.testing.assert_close(found.view(3, 2), expected, rtol=1e-12, atol=1e-13)
    same = distil(old, old, 0, temperature=3.0, lr=0.1, batch_size=2)  # there is nothing to learn
    torch.testing.assert_close(same, old, rtol=0, atol=1e-14)


def test_batches_have_an_address_and_the_student_comes_nearer_to_the_teacher():
    federation = ragged().replace(public=public())
    old = torch.cat([p.detach().flatten() for p in federation.fresh_model().parameters()])
    student = old + 0.05 * torch.randn(len(old), generator=torch.Generator().manual_seed(4)).double()
    distil = make_distiller(federation, old, "wu")
    how = {"temperature": 3.0, "lr": 0.05, "batch_size": 4}
    first = distil(student, old, 0, **how)
    assert torch.equal(first, distil(student, old, 0, **how))
    assert not torch.equal(first, distil(student, old, 1, **how))
    other = make_distiller(federation.reseed(8), old, "wu")
    assert not torch.equal(first, other(student, old, 0, **how))

    def apart(w: torch.Tensor) -> float:
        with torch.no_grad():
            q, p = (torch.log_softmax(distil._load(one)(public()) / 3, dim=1) for one in (w, old))
        return float((p.exp() * (p - q)).sum())

    w = student
    for epoch in range(10):
        w = distil(w, old, epoch, **how)
    assert apart(w) < apart(first) < apart(student)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_distils_in_full_precision_and_twice_alike():
    """cuDNN would compute convolutions in TF32, and their gradients in any order."""
    federation = ragged(dtype=torch.float32).replace(public=public(60).float())
    old = torch.cat([p.detach().flatten() for p in federation.fresh_model().parameters()])
    student = old + 0.05 * torch.randn(len(old), generator=torch.Generator().manual_seed(4))
    distil = make_distiller(federation, old, "wu")
    how = {"temperature": 3.0, "lr": 0.05, "batch_size": 20}
    slow, *fast = (distil(student.to(d), old.to(d), 0, **how).cpu() for d in ("cpu", "cuda", "cuda"))
    assert torch.equal(*fast)
    assert (fast[0] - slow).norm() < 1e-4 * (slow - student).norm()


def test_student_and_teacher_have_the_statistics_of_the_old_model():
    """BatchNorm in evaluation mode: with the mean 2 and the variance 1 of the old model, an input of 2 is 0 to both."""
    data = {c: (torch.randn(6, 2).double(), torch.arange(6) % 2) for c in "ab"}
    federation = feduhb.Federation(
        data, data["a"], lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)).double(),
        public=torch.full((3, 2), 2.0).double(),
    )  # fmt: skip
    size = 4 + 6
    old = torch.cat(
        [torch.ones(2), torch.zeros(2), torch.randn(6), torch.tensor([2.0, 2.0, 1.0, 1.0])]
    ).double()
    distil = make_distiller(federation, old, "wu")
    student = old[:size].clone()
    student[4:8] += 1.0  # the matrix after the normalisation, which sees only zeros
    found = distil(student, old[:size], 0, temperature=3.0, lr=0.1, batch_size=3)
    torch.testing.assert_close(found, student, rtol=0, atol=1e-14)


@pytest.fixture
def trained(tmp_path):
    return feduhb.train(ragged().replace(public=public()), 3, out=tmp_path / "old", keep_history=True, **HOW)


def test_a_run_distils_resumes_and_asks_clients_only_at_the_end(trained, tmp_path):
    method = WuDistillation(passes=2, lr=0.05, batch_size=4, after=1, epochs=1)
    whole = feduhb.unlearn(trained, ["bee"], method=method, erase_history=False, show=None)
    assert [len(record.asked) for record in whole.rounds] == [0, 0, 0, 4]
    assert [record.client_epochs for record in whole.rounds] == [0, 0, 0, 4]
    assert all(record.moved > 0 for record in whole.rounds)

    def interrupt(record):
        if record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduhb.unlearn(trained, ["bee"], method=method, out=tmp_path / "new", show=interrupt)
    other = feduhb.Run(
        **{f: getattr(trained, f) for f in trained.__slots__}
        | {"federation": trained.federation.replace(public=public(5))}
    )
    with pytest.raises(RunFolderError, match=r"was started with"):
        feduhb.unlearn(other, ["bee"], method=method, out=tmp_path / "new", resume=True, show=None)
    new = feduhb.unlearn(trained, ["bee"], method=method, out=tmp_path / "new", resume=True, show=None)
    assert torch.equal(new.params, whole.params)
    assert trained.history is None
    written = json.loads((tmp_path / "new" / "result.json").read_text())["settings"]
    assert set(written) == {"passes", "temperature", "lr", "batch_size", "after", "epochs"}
    assert torch.equal(feduhb.open_run(tmp_path / "new", trained.federation).params, new.params)


def test_what_it_cannot_do_is_refused_before_the_run(trained, tmp_path):
    with pytest.raises(RequestError, match=r"wu replays the updates of whole clients and cannot forget rows"):
        feduhb.unlearn(trained, {"dog": [0]}, method="wu", show=None)
    bare = feduhb.train(ragged(), 1, out=tmp_path / "bare", keep_history=True, **HOW)
    with pytest.raises(
        DataError, match=r"wu distils on unlabelled data of the server, but this federation has none; give"
    ):
        feduhb.unlearn(bare, ["bee"], method="wu", show=None)
    assert bare.history is not None
    assert "distils on unlabelled data" in feduhb.api.explain_refusals(bare, ["bee"])["wu"]
    assert "wu" not in feduhb.api.explain_refusals(trained, ["bee"])


def test_a_model_without_classes_is_refused():
    data = {c: (torch.randn(6, 2), torch.randn(6, 1)) for c in "ab"}
    numbers = feduhb.Federation(data, data["a"], nn.Linear(2, 1), loss="mse", public=torch.randn(3, 2))
    with pytest.raises(
        ConfigError, match=r"distils the softmax of a model's outputs, but this model answers"
    ):
        make_distiller(numbers, torch.zeros(3), "wu")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"passes": -1}, r"passes is -1; give 0 or more"),
        ({"temperature": 0}, r"temperature is 0; give a positive number"),
        ({"batch_size": 0}, r"batch_size is 0; give 1 or more"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        WuDistillation(**settings)


def test_unbound_it_says_how_to_run_it():
    history = remember(quadratics(), "ab", torch.zeros(3).double(), rounds=1)
    method = WuDistillation(history=history, clients=("a",), model=history.final)
    with pytest.raises(ConfigError, match=r"nothing is bound to do it; run it by feduhb.unlearn"):
        method.tell(method.tell(method.init(torch.zeros(3).double()), ()), ())
