"""Exact on the models that people have: BatchNorm, dropout, frozen parts, adapters, tokens, other losses and optimisers.

(a) Replace the forgotten data by noise of another size, train and unlearn again: same weights and statistics.
(b) Build a federation that never held it and train that by the same method: same weights and statistics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import feduhb
from exactness.kinds import KINDS, SIZES, Data, Kind, images, resnet
from feduhb.core.flat import count_statistics, flatten
from feduhb.core.inputs import map_tensors
from feduhb.core.modules import list_carried
from feduhb.core.types import BlockSize
from feduhb.engines.scoring import compute_outputs
from feduhb.runs.config import TrainSettings
from feduhb.runs.prepare import run_method
from feduhb.stopping import never

METHODS = {"retrain": feduhb.Retrain(epochs=2), "feduhb": feduhb.FedUHB(epochs=2, momentum=0.8)}
LOOP, POOL, STACKED, RECORDED = (
    {"engine": "loop"}, {"engine": "pool"}, {"engine": "stacked"}, {"engine": "stacked", "block": "recorded"},
)  # fmt: skip
FOR_CLIENTS = {"retrain": LOOP, "feduhb": POOL}
FOR_ROWS = {"retrain": RECORDED, "feduhb": STACKED}
ROWS = (0, 4, 8)  # of cat
every_kind = pytest.mark.parametrize("name", KINDS)
every_method = pytest.mark.parametrize("method", METHODS)


def unlearned(
    name: str, federation: feduhb.Federation, forget: Any, method: str, engine: dict[str, Any]
) -> feduhb.Run:
    """Train with everybody, then unlearn."""
    trained = feduhb.train(federation, 1, **engine, **KINDS[name].settings)
    how = {"rounds": 2, "stop": never, "show": None, "block": trained.block}
    return feduhb.unlearn(trained, forget, method=METHODS[method], **how)


def never_there(
    name: str, federation: feduhb.Federation, method: str, engine: dict[str, Any], block: BlockSize | None
) -> Tensor:
    """Run the method on a federation that never held what was forgotten."""
    settings = {key: value for key, value in KINDS[name].settings.items() if key != "show"}
    how = TrainSettings(rounds=1, **settings)
    made_by = {**engine, "block": block}
    return run_method(federation, METHODS[method], how, rounds=2, **made_by).params


def choose(data: Data, rows: list[int]) -> Data:
    return map_tensors(lambda part: part[rows], data[0]), data[1][rows]


def replace_rows(data: Data, rows: tuple[int, ...], noise: Data) -> Data:
    """Return examples with others in some rows, and what is left of the others after the last row."""

    def change(part: Tensor, other: Tensor) -> Tensor:
        part = part.clone()
        part[list(rows)] = other[: len(rows)]
        return torch.cat([part, other[len(rows) :]])

    (x, y), (z, w) = data, noise
    if isinstance(x, dict):
        return {key: change(x[key], z[key]) for key in x}, change(y, w)
    return change(x, z), change(y, w)


@every_kind
@every_method
def test_whole_clients(name, method):
    kind, engine = KINDS[name], FOR_CLIENTS[method]
    real = unlearned(name, kind.federation(), "bee", method, engine)
    noisy = unlearned(name, kind.federation(bee=kind.tensors("noise", 7, loud=True)), "bee", method, engine)
    assert torch.equal(real.params, noisy.params)
    remaining = {client: size for client, size in SIZES.items() if client != "bee"}
    assert torch.equal(real.params, never_there(name, kind.federation(remaining), method, engine, real.block))
    assert {client for each in real.rounds for client in each.asked} == {"ant", "cat"}


@every_kind
@every_method
def test_rows_of_a_client(name, method):
    kind, engine = KINDS[name], FOR_ROWS[method]
    cat = kind.tensors("cat", SIZES["cat"])
    real = unlearned(name, kind.federation(), {"cat": ROWS}, method, engine)
    longer = replace_rows(cat, ROWS, kind.tensors("noise", len(ROWS) + 2, loud=True))
    way = {**engine, "block": real.block}  # which a trial on a GPU could choose in another way
    noisy = unlearned(name, kind.federation(cat=longer), {"cat": (*ROWS, 9, 10)}, method, way)
    assert torch.equal(real.params, noisy.params)
    kept = choose(cat, [row for row in range(SIZES["cat"]) if row not in ROWS])
    assert torch.equal(real.params, never_there(name, kind.federation(cat=kept), method, engine, real.block))


@every_kind
def test_the_check_can_fail(name):
    """Noise in the data of a client that stays changes the weights, the statistics too where there are some."""
    kind = KINDS[name]
    noisy = kind.federation(cat=kind.tensors("noise", 7, loud=True))
    found = [unlearned(name, each, "bee", "retrain", LOOP) for each in (kind.federation(), noisy)]
    assert not torch.equal(found[0].params, found[1].params)
    if count := count_statistics(found[0].model()):
        fresh = flatten(found[0].federation.fresh_model())
        for run in found:
            assert not torch.isclose(run.params, fresh)[-count:].all()
        assert not torch.isclose(found[0].params, found[1].params)[-count:].all()


class Interrupted(Exception):  # noqa: N818
    pass


def interrupt(record: feduhb.Round) -> None:
    if record.round == 0:
        raise Interrupted


@every_kind
def test_an_interrupted_unlearning_is_resumed_bit_for_bit(name, tmp_path: Path):
    kind = KINDS[name]
    federation = kind.federation()
    trained = feduhb.train(federation, 1, engine="pool", out=tmp_path / "trained", **kind.settings)
    ask: dict[str, Any] = {"method": METHODS["feduhb"], "rounds": 3, "stop": never}
    whole = feduhb.unlearn(trained, "bee", out=tmp_path / "whole", show=None, **ask)
    with pytest.raises(Interrupted):
        feduhb.unlearn(trained, "bee", out=tmp_path / "half", show=interrupt, **ask)
    resumed = feduhb.unlearn(trained, "bee", out=tmp_path / "half", show=None, resume=True, **ask)
    assert torch.equal(whole.params, resumed.params)
    assert [each.moved for each in whole.rounds] == [each.moved for each in resumed.rounds]
    opened = feduhb.open_run(tmp_path / "half", kind.federation())
    assert torch.equal(opened.params, whole.params)
    x = federation.test.x
    assert torch.equal(compute_outputs(opened.model(), x), compute_outputs(whole.model(), x))
    asked = {client for each in resumed.rounds for client in (*each.asked, *each.answered)}
    assert asked == {"ant", "cat"}


@every_kind
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-4), (torch.float64, 1e-10)])
def test_loop_and_pool_agree(name, dtype, error):
    kind = KINDS[name]
    federation = kind.federation(dtype=dtype)
    found = [feduhb.train(federation, 2, engine=each, **kind.settings).params for each in ("loop", "pool")]
    torch.testing.assert_close(*found, rtol=error, atol=error)


@pytest.mark.parametrize("name", ["frozen backbone", "lora"])
def test_what_is_carried_stays_as_it_was_given(name):
    kind = KINDS[name]
    run = unlearned(name, kind.federation(), "bee", "feduhb", POOL)
    given = dict(list_carried(kind.federation().fresh_model()))
    after = dict(list_carried(run.model()))
    assert given.keys() == after.keys()
    assert all(torch.equal(value, given[key]) for key, value in after.items())
    trained = [key for key, p in run.model().named_parameters() if p.requires_grad]
    assert sum(p.numel() for key, p in run.model().named_parameters() if key in trained) == run.params.numel()


NORMS = ["resnet", "adamw"]
REPLAYS = {
    "federaser": feduhb.FedEraser(interval=1, epochs=2),
    "fedrecover": feduhb.FedRecover(warmup=2, buffer=1, correction=0, final=1, epochs=2, abnormal=0.0),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[feduhb.Run]]:
    """For each kind with BatchNorm: the real federation and one whose leaver holds noise, trained with a history."""
    folder, found = tmp_path_factory.mktemp("worlds"), {}
    for name in NORMS:
        kind = KINDS[name]
        noisy = kind.federation(bee=kind.tensors("noise", SIZES["bee"], loud=True))
        found[name] = [
            feduhb.train(
                each, 4, engine="pool", out=folder / f"{name}-{i}", keep_history=True, **kind.settings
            )
            for i, each in enumerate((kind.federation(), noisy))
        ]
    return found


def replayed(run: feduhb.Run, method: Any, **how: Any) -> feduhb.Run:
    return feduhb.unlearn(run, "bee", method=method, stop=never, erase_history=False, show=None, **how)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("method", REPLAYS)
def test_replays_run_with_statistics_and_are_not_exact(worlds, name, method):
    real, noisy = (replayed(run, REPLAYS[method]).params for run in worlds[name])
    assert real.isfinite().all()
    assert not torch.equal(real, noisy)
    exact = [replayed(run, METHODS["feduhb"], rounds=2).params for run in worlds[name]]
    assert torch.equal(*exact)


@pytest.mark.parametrize("name", NORMS)
def test_fedrecover_warmed_up_over_all_rounds_is_retrain_statistics_included(worlds, name):
    run = worlds[name][0]
    recovered = replayed(run, feduhb.FedRecover(warmup=4, buffer=2, epochs=2))
    retrained = replayed(run, METHODS["retrain"], rounds=4)
    assert torch.equal(recovered.params, retrained.params)
    assert [each.moved for each in recovered.rounds] == [each.moved for each in retrained.rounds]


@pytest.mark.slow
def test_the_whole_resnet_18(tmp_path: Path):
    """11 million parameters, 9,600 statistics: exact, interrupted and resumed, on a few images of 16x16."""
    stages = {64: 2, 128: 2, 256: 2, 512: 2}
    kind = Kind(lambda: resnet(64, stages, 3, 3), wide_images, {"epochs": 1, "lr": 0.01})
    ask: dict[str, Any] = {"method": feduhb.FedUHB(epochs=1), "rounds": 2, "stop": never}
    federation = kind.federation({"ant": 2, "bee": 2, "cat": 3})
    assert flatten(federation.fresh_model()).numel() == 11_170_371 + 9_600
    trained = feduhb.train(federation, 1, engine="pool", **kind.settings)
    real = feduhb.unlearn(trained, "bee", show=None, **ask)
    start: dict[str, Any] = {"settings": real.settings, "engine": "pool", "out": tmp_path / "never", **ask}
    remaining = federation.replace(clients={c: federation.clients[c] for c in ("ant", "cat")})
    with pytest.raises(Interrupted):
        run_method(remaining, show=interrupt, **start)
    assert torch.equal(real.params, run_method(remaining, resume=True, **start).params)
    x, y = kind.tensors("cat", 3)
    noisy = federation.replace(
        clients={
            **federation.clients,
            "cat": (torch.where(torch.arange(3).view(-1, 1, 1, 1) == 1, 9.0, x), y),
        }
    )
    rows = [
        feduhb.unlearn(feduhb.train(world, 1, engine="pool", **kind.settings), {"cat": [1]}, show=None, **ask)
        for world in (federation, noisy)
    ]
    assert torch.equal(rows[0].params, rows[1].params)
    assert not torch.equal(rows[0].params, real.params)


def wide_images(draw: torch.Generator, size: int) -> Data:
    x, y = images(draw, 12 * size)
    return x.view(size, 3, 16, 16), y[:size]
