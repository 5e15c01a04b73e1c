"""Approximate means approximate: the check that FedUHB and Retrain pass catches FedEraser and FedRecover."""

import json

import pytest
import torch

import feduhb
from federations import SIZES, ragged

LEAVERS = ("bee", "elk")
ROUNDS = 5
ENGINES = {"loop": feduhb.Loop, "pool": feduhb.Pool}
EXACT = {"feduhb": feduhb.FedUHB(epochs=1), "retrain": feduhb.Retrain(epochs=1)}
APPROXIMATE = {
    "federaser": feduhb.FedEraser(interval=2, epochs=1),
    "federaser every round": feduhb.FedEraser(interval=1, ratio=1.0, epochs=1),
    "fedrecover": feduhb.FedRecover(warmup=2, buffer=1, correction=2, final=1, epochs=1, abnormal=0.0),
    "fedrecover uncorrected": feduhb.FedRecover(warmup=3, correction=0, final=0, epochs=1, abnormal=0.0),
}
every_engine = pytest.mark.parametrize("engine", ENGINES)
sampling = pytest.mark.parametrize("sampled", [None, 3])


def noise(size):
    draw = torch.Generator().manual_seed(99)
    x = torch.randn(size, 1, 12, 12, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (size,), generator=draw)


def trained(federation, out, engine="loop", sampled=None):
    return feduhb.train(
        federation, ROUNDS, epochs=1, batch_size=6, lr=0.05, clients_per_round=sampled, engine=ENGINES[engine],
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
    assert method.needs == ("sum" if exact else "each")
    feduhb.unlearn(worlds[0], LEAVERS, method=method, rounds=2, out=tmp_path / "new", erase_history=False)
    result = json.loads((tmp_path / "new" / "result.json").read_text())
    assert result["exact"] is exact
    assert result["needs"] == method.needs


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
