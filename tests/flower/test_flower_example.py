"""The example's data, in which the remaining rows do not depend on forgotten ones, and the runs that its audit opens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

import feduhb
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.folder import RunFolder
from flower.gridding import make_grid
from hospitals import audit, data, server
from hospitals.server import EPOCHS, LOCAL, MOMENTUM, STOP

FORGOTTEN = [0, 3, 4, 90]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    data.write(folder)
    return folder


def add_noise(file, rows):
    """Put noise in the place of some patients."""
    with np.load(file) as held:
        x, y = held["x"].copy(), held["y"].copy()
    x[rows] = np.random.default_rng(5).normal(1e4, 1e4, (len(rows), data.FEATURES))
    y[rows] = 1 - y[rows]
    other = file.with_name("noise.npz")
    np.savez(other, x=x, y=y)
    return other


@pytest.mark.parametrize("name", data.HOSPITALS)
def test_inputs_of_those_who_remain_do_not_depend_on_the_forgotten_nor_on_who_is_held_out(name, files):
    (x, y), held_out = data.read(files / f"{name}.npz")
    remain = [row for row in range(len(x)) if row not in FORGOTTEN]
    everyone_held_out = range(len(x), len(x) + len(held_out[0]))
    (noisy, labels), _ = data.read(add_noise(files / f"{name}.npz", [*FORGOTTEN, *everyone_held_out]))
    assert torch.equal(noisy[remain], x[remain])
    assert torch.equal(labels[remain], y[remain])
    assert not torch.equal(noisy[FORGOTTEN], x[FORGOTTEN])


def test_a_patient_has_the_same_inputs_in_every_hospital(files):
    with np.load(files / "hospital-a.npz") as held:
        x, y = held["x"], held["y"]
    np.savez(files / "alone.npz", x=x[7:8], y=y[7:8])
    assert torch.equal(data.read_all(files / "alone.npz")[0][0], data.read(files / "hospital-a.npz")[0][0][7])


def test_erasing_rows_gives_the_model_of_a_hospital_that_had_noise_in_their_place(files):
    """As the audit does it for whole clients: the same weights, bit for bit."""
    found = []
    for noise in (False, True):
        whole = audit.build_federation(files, {name: name for name in data.HOSPITALS})
        if noise:
            other = data.read(add_noise(files / "hospital-b.npz", FORGOTTEN))[0]
            whole = whole.replace(
                clients={**whole.clients, "hospital-b": feduhb.data.federation.Examples.of(*other)}
            )
        remaining = whole.without({"hospital-b": FORGOTTEN})
        run = feduhb.train(
            remaining, 2, epochs=EPOCHS, batch_size=LOCAL.batch_size, lr=LOCAL.lr, engine="loop"
        )
        found.append(run.params)
    assert torch.equal(*found)


def test_the_inputs_are_of_a_size_that_a_network_learns_from(files):
    whole = audit.build_federation(files, {name: name for name in data.HOSPITALS})
    for examples in whole.clients.values():
        x = examples.all()[0]
        assert x.shape[1] == data.FEATURES == 30
        assert x.mean(dim=0).abs().max() < 3
        assert 0.2 < x.std(dim=0).min() < x.std(dim=0).max() < 5
    settings = {"epochs": EPOCHS, "batch_size": LOCAL.batch_size, "lr": LOCAL.lr, "engine": "loop"}
    trained = feduhb.train(whole, 5, **settings)
    method = feduhb.FedUHB(momentum=MOMENTUM, epochs=EPOCHS)
    unlearned = feduhb.unlearn(trained, ["hospital-c"], method=method, stop=STOP, rounds=5)
    assert trained.rounds[-1].scores["test_accuracy"] > 0.9
    assert unlearned.rounds[-1].scores["test_accuracy"] > 0.9


def test_the_audit_opens_the_runs_that_the_app_left(tmp_path):
    """The server's own settings, over a grid; hospital-c is forgotten."""
    data.write(tmp_path / "data")
    ids = {name: name for name in data.HOSPITALS}
    grid = make_grid(audit.build_federation(tmp_path / "data", ids))
    settings = {
        "folder": str(tmp_path / "runs"),
        "rounds": 2,
        "timeout": 5,
        "min-clients": 2,
        "min-replies": 1,
    }
    for run, forget in (("trained", ""), ("unlearned", "hospital-c")):
        config = {**settings, "run": run, "forget": forget, "replaces": "trained"}
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
        server.app(grid, context)
    before, after = audit.open_runs(tmp_path, ids)
    assert before.seed != after.seed
    assert set(before.federation.clients) == set(data.HOSPITALS)
    assert set(after.federation.clients) == {"hospital-a", "hospital-b"}
    for run in (before, after):
        written = RunFolder(tmp_path / "runs" / ("trained" if run is before else "unlearned"))
        assert written.result()["weights_sha256"] == digest_weights(run.params)
        assert (len(run.rounds), run.scheduled) == (2, 2)
    found = feduhb.audit(after, before, show=None, relearn=0)
    assert found.exactness is not None
    assert found.exactness.exact
