"""Approximate means approximate: the check that FedUHB and Retrain pass catches every method that uses the old run."""

import json

import pytest
import torch

import feduhb
from federations import SIZES, ragged, tensors
from feduhb.audit.audit import audit
from feduhb.methods import METHODS
from feduhb.methods.binding import uses_old_run

LEAVERS = ("bee", "elk")
ROUNDS = 5
ENGINES = {"loop": feduhb.Loop, "pool": feduhb.Pool}
EXACT = {
    "feduhb": feduhb.FedUHB(epochs=1),
    "retrain": feduhb.Retrain(epochs=1),
    "rapidretrain": feduhb.RapidRetrain(epochs=1),
}
APPROXIMATE = {
    "federaser": feduhb.FedEraser(interval=2, epochs=1),
    "federaser every round": feduhb.FedEraser(interval=1, ratio=1.0, epochs=1),
    "fedrecover": feduhb.FedRecover(warmup=2, buffer=1, correction=2, final=1, epochs=1, abnormal=0.0),
    "fedrecover uncorrected": feduhb.FedRecover(warmup=3, correction=0, final=0, epochs=1, abnormal=0.0),
    "finetune": feduhb.FineTune(epochs=1),
    "not": feduhb.NoT(epochs=1),
    "pga": feduhb.PGA(epochs=1, ascent=1, after=2),
    "fedrecovery": feduhb.FedRecovery(),
    "fedrecovery with noise": feduhb.FedRecovery(distance=1e-3),
    "wu": feduhb.WuDistillation(passes=2, batch_size=6),
    "wu subtracting": feduhb.WuDistillation(passes=0),
    "crab": feduhb.Crab(epochs=1),
    "crab without a rollback": feduhb.Crab(epochs=1, tolerance=0.0),
}
every_engine = pytest.mark.parametrize("engine", ENGINES)
sampling = pytest.mark.parametrize("sampled", [None, 3])


def noise(size):
    draw = torch.Generator().manual_seed(99)
    x = torch.randn(size, 1, 12, 12, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (size,), generator=draw)


def trained(federation, out, engine="loop", sampled=None):
    return feduhb.train(
        federation.replace(public=noise(9)[0]), ROUNDS, epochs=1, batch_size=6, lr=0.05, clients_per_round=sampled, engine=ENGINES[engine],
        out=out, keep_history=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """The real federation and the one whose leavers hold noise, each trained with a history."""
    folder = tmp_path_factory.mktemp("worlds")
    noisy = ragged(**{client: noise(SIZES[client]) for client in LEAVERS})
    return trained(ragged(), folder / "real"), trained(noisy, folder / "noisy")


def unlearned(worlds, method):
    return [
        feduhb.unlearn(run, LEAVERS, method=method, rounds=4, erase_history=False).params for run in worlds
    ]


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_pass_with_a_history_kept(worlds, name):
    assert torch.equal(*unlearned(worlds, EXACT[name]))


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_methods_fail(worlds, name):
    real, again = unlearned(worlds, APPROXIMATE[name])
    assert not torch.equal(real, again)
    assert float((real - again).norm()) > 1e-6 * float(real.norm())


@pytest.mark.parametrize("name", [*EXACT, *APPROXIMATE])
def test_each_says_which_it_is(worlds, tmp_path, name):
    method = {**EXACT, **APPROXIMATE}[name]
    exact = name in EXACT
    assert type(method).exact is method.exact is exact
    assert method.needs == ("sum" if exact or name in ("finetune", "not", "pga") else "each")
    feduhb.unlearn(worlds[0], LEAVERS, method=method, rounds=2, out=tmp_path / "new", erase_history=False)
    result = json.loads((tmp_path / "new" / "result.json").read_text())
    assert result["exact"] is exact
    assert result["needs"] == method.needs


ROWS = {"dog": (0, 3, 4)}


@pytest.fixture(scope="module")
def row_worlds(tmp_path_factory):
    """The real federation and the one in which some rows of one client are noise."""
    folder = tmp_path_factory.mktemp("rows")
    x, y = (part.clone() for part in tensors("dog", SIZES["dog"]))
    x[list(ROWS["dog"])], y[list(ROWS["dog"])] = noise(3)
    return trained(ragged(), folder / "real"), trained(ragged(dog=(x, y)), folder / "noisy")


@pytest.mark.parametrize("name", METHODS)
def test_of_all_methods_exactly_those_that_claim_it_are_exact(worlds, row_worlds, name):
    """Every registered method, on a request that it serves."""
    kind = METHODS[name]
    runs, forget = (worlds, LEAVERS) if "clients" in kind.serves else (row_worlds, ROWS)
    real, again = (
        feduhb.unlearn(run, forget, method=APPROXIMATE.get(name, name), rounds=2, erase_history=False).params
        for run in runs
    )
    assert torch.equal(real, again) == kind.exact


NEEDY = [name for name, kind in METHODS.items() if uses_old_run(kind)]


@pytest.mark.parametrize("name", [*NEEDY, "rapidretrain"])
def test_the_audit_finds_out_which_are_exact(worlds, name):
    method, serves = APPROXIMATE.get(name, name), METHODS[name].serves
    run = feduhb.unlearn(
        worlds[0], LEAVERS if "clients" in serves else ROWS, method=method, rounds=2, erase_history=False
    )
    found = audit(run, worlds[0], relearn=0, canaries=0, show=None).exactness
    assert found is not None
    assert found.exact == (name == "rapidretrain")


@pytest.mark.parametrize("forget", [LEAVERS, ROWS], ids=["clients", "rows"])
def test_fine_tuning_for_no_rounds_has_forgotten_nothing(worlds, row_worlds, forget):
    real, again = (
        feduhb.unlearn(run, forget, method="finetune", rounds=0)
        for run in (worlds if forget is LEAVERS else row_worlds)
    )
    old = (worlds if forget is LEAVERS else row_worlds)[0]
    assert torch.equal(real.params, old.params)
    assert not torch.equal(real.params, again.params)


@every_engine
@sampling
def test_fedrecover_warmed_up_over_all_rounds_is_retrain_and_so_exact(tmp_path, engine, sampled):
    """The one setting in which nothing of the history reaches the weights."""
    everything = feduhb.FedRecover(warmup=ROUNDS, buffer=2, epochs=1)
    found = []
    for name, changes in (("real", {}), ("noisy", {client: noise(SIZES[client]) for client in LEAVERS})):
        run = trained(ragged(**changes), tmp_path / name, engine, sampled)
        retrain = feduhb.unlearn(
            run, LEAVERS, method=feduhb.Retrain(epochs=1), rounds=ROUNDS, erase_history=False
        )
        recovered = feduhb.unlearn(run, LEAVERS, method=everything)
        assert torch.equal(retrain.params, recovered.params)
        assert [(r.asked, r.moved) for r in retrain.rounds] == [(r.asked, r.moved) for r in recovered.rounds]
        found.append(recovered.params)
    assert torch.equal(*found)
