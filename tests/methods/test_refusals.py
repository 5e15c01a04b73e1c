"""What the methods that need more than a fresh model cannot serve: one line says so, and nothing is written or erased."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

import feduhb
from federations import ragged, small_cnn, tensors
from feduhb.core.aggregate import median
from feduhb.errors import ConfigError, DataError, FeduhbError, HistoryError, ModelError, RequestError

SIZES = {"bee": 5, "cat": 13, "dog": 24, "elk": 8}
HOW = {"epochs": 1, "batch_size": 6, "lr": 0.05, "engine": "loop", "show": None}
CLIENT, SOME, CLASS = ["bee"], {"dog": [0, 3]}, "class:1"
REPLAYING = ("fedrecovery", "crab", "wu")
TUNING = ("finetune", "not")
ASKING = (("pga", CLIENT), ("fedaf", SOME))
PUBLIC = torch.rand(9, 1, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def normed():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144), nn.Linear(144, 3)).double()


class Scaled(nn.Module):
    """A model without a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, dtype=torch.float64))

    def forward(self, x):
        return x.flatten(1)[:, :3] * self.scale


def of_type(dtype):
    clients = {name: tensors(name, size, dtype=dtype) for name, size in SIZES.items()}
    test = tensors("test", 20, dtype=dtype)
    return {"clients": clients, "test": test, "model": small_cnn(dtype), "public": None}


def enlarged():
    """Data whose statistics are much larger than the parameters."""
    found = {name: tensors(name, size) for name, size in SIZES.items()}
    return {name: (1000 * x, y) for name, (x, y) in found.items()}


WORLDS = {
    "whole": ({}, {}),
    "no history": ({}, {"keep_history": False}),
    "no public data": ({"public": None}, {}),
    "median": ({}, {"aggregate": "median"}),
    "batch norm": ({"model": normed}, {}),
    "no matrix": ({"model": Scaled}, {}),
    "given start": ({"model": nn.Sequential(nn.Flatten(), nn.Linear(144, 3)).double(), "start": "given"}, {}),
    "sampled": ({}, {"clients_per_round": 2}),
    "bfloat16": (of_type(torch.bfloat16), {}),
    "large statistics": ({"model": normed, "clients": enlarged()}, {}),
    "best kept": ({"held_out": {name: tensors(f"held {name}", 4) for name in SIZES}}, {"keep": "best"}),
}
# Runs of a world that have forgotten elk by a method of their own, and kept a history of that.
LATER = {
    "heavy ball": ("whole", feduhb.FedUHB(epochs=1)),
    "heavy ball beside statistics": ("large statistics", feduhb.FedUHB(epochs=1)),
    "own median": ("whole", feduhb.FedUHB(epochs=1, aggregate=median)),
    "retrained": ("whole", feduhb.Retrain(epochs=1)),
    "longer steps": ("whole", feduhb.Retrain(epochs=1, step_size=1.5)),
    "rapid": ("whole", feduhb.RapidRetrain(epochs=1)),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Trainings with a history and public data, but for what their names say; each is made when it is first asked for."""
    made, folder = {}, tmp_path_factory.mktemp("worlds")

    def find(name):
        if name not in made and name in LATER:
            world, method = LATER[name]
            made[name] = feduhb.unlearn(
                find(world), ["elk"], method=method, rounds=3, out=folder / name.replace(" ", "-"), show=None,
                erase_history=False,
            )  # fmt: skip
        if name not in made:
            changes, more = WORLDS[name]
            federation = ragged(SIZES).replace(**{"public": PUBLIC, **changes})
            made[name] = feduhb.train(
                federation, 2, out=folder / name.replace(" ", "-"), **{**HOW, "keep_history": True, **more}
            )
        return made[name]

    return find


def list_files(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


REFUSED = [
    *(
        ("whole", name, forget, {}, RequestError, f"{name} replays the updates of whole clients and cannot forget rows or a class; use")
        for name in REPLAYING
        for forget in (SOME, CLASS)
    ),
    ("whole", "pga", SOME, {}, RequestError, "pga cannot forget rows, only clients; use feduhb or retrain"),
    ("whole", "pga", CLASS, {}, RequestError, "pga cannot forget classes, only clients; use feduhb or retrain"),
    ("whole", "fedaf", CLIENT, {}, RequestError, "fedaf cannot forget clients, only rows or classes; use feduhb or retrain"),
    ("whole", "fedaf", {"bee": [0, 1, 2, 3, 4]}, {}, RequestError, "but bee would keep none; use feduhb or retrain"),
    *(("whole", name, forget, {"keep_history": True}, ConfigError, f"{name} cannot keep a history; use feduhb or retrain for that")
      for name, forget in (*ASKING, *((name, CLIENT) for name in (*TUNING, *REPLAYING)))),
    *(("no history", name, CLIENT, {}, HistoryError, f"{name} replays stored updates, but this run kept none, or they were erased")
      for name in REPLAYING),
    ("no public data", "wu", CLIENT, {}, DataError, "wu distils on unlabelled data of the server, but this federation has none"),
    *(("median", name, CLIENT, {}, ConfigError, f"{name} can replay only training by weighted_mean, but this run used median; use")
      for name in REPLAYING),
    *(("median", name, forget, {}, ConfigError, f"{name} averages by weighted_mean, but this run used median; use feduhb or retrain")
      for name, forget in ASKING),
    *(("batch norm", name, forget, {}, ConfigError, "normalises by statistics of batches; use GroupNorm or LayerNorm, or another")
      for name, forget in (("rapidretrain", CLIENT), ("fedaf", SOME))),
    *(("best kept", name, CLIENT, {}, ConfigError, f"{name} takes stored updates of every round back from the model after the last")
      for name in ("fedrecovery", "wu")),
    *((world, name, CLIENT, {}, ConfigError, f"{name} takes stored updates back, so each step must have been their mean, but {maker} made")
      for world, maker in (("heavy ball", "feduhb"), ("heavy ball beside statistics", "feduhb"), ("longer steps", "retrain"))
      for name in ("fedrecovery", "wu")),
    ("own median", "pga", CLIENT, {}, ConfigError, "pga averages by weighted_mean, but this run used median; use feduhb or"),
    *(("own median", name, CLIENT, {}, ConfigError, f"{name} can replay only training by weighted_mean, but this run used median; use")
      for name in ("federaser", *REPLAYING)),
    ("no matrix", "not", CLIENT, {}, ModelError, "no layer of this model has a matrix of weights; use finetune"),
    ("given start", "fedaf", SOME, {}, ConfigError, "fedaf draws untrained teachers, but this federation starts from given"),
]  # fmt: skip


@pytest.mark.parametrize(("world", "method", "forget", "more", "kind", "words"), REFUSED)
def test_a_refusal_is_one_line_and_leaves_everything_as_it_was(
    worlds, tmp_path, world, method, forget, more, kind, words
):
    run = worlds(world)
    before = list_files(run.folder)
    with pytest.raises(FeduhbError) as refused:
        feduhb.unlearn(run, forget, method=method, out=tmp_path / "new", show=None, **more)
    assert type(refused.value) is kind
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list_files(run.folder) == before
    assert not (tmp_path / "new").exists()


SERVED = [
    *(("sampled", name, CLIENT) for name in ("rapidretrain", "pga", *TUNING, *REPLAYING)),
    ("sampled", "fedaf", SOME),
    *(("batch norm", name, CLIENT) for name in ("pga", *TUNING, *REPLAYING)),
    *((world, "fedrecovery", CLIENT) for world in ("bfloat16", "large statistics")),
    ("best kept", "crab", CLIENT),
    *(("heavy ball", name, CLIENT) for name in ("federaser", "crab")),
    *((world, name, CLIENT) for world in ("retrained", "rapid") for name in REPLAYING),
    *(("median", name, forget) for name in ("rapidretrain", *TUNING) for forget in (CLIENT, SOME, CLASS)),
    *(("no history", name, CLIENT) for name in ("rapidretrain", "pga", *TUNING)),
    *(("given start", name, CLIENT) for name in ("rapidretrain", "pga", *TUNING, *REPLAYING)),
]


@pytest.mark.parametrize(("world", "method", "forget"), SERVED)
def test_what_is_not_refused_runs_and_opens(worlds, tmp_path, world, method, forget):
    run = worlds(world)
    new = feduhb.unlearn(
        run, forget, method=method, rounds=2, out=tmp_path / "new", erase_history=False, show=None
    )
    assert new.params.isfinite().all()
    assert not torch.equal(new.params, run.params)
    assert torch.equal(feduhb.open_run(tmp_path / "new", run.federation).params, new.params)
    sampled = run.settings.clients_per_round
    assert sampled is None or all(len(r.asked) <= sampled or r.leavers for r in new.rounds)
