"""From an old model the update of a leaver can be worked out without any history; once the run is retired, it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

import feduhb
from feduhb.core.flat import flatten
from feduhb.core.types import Work
from runs.inverting import find_models, work_out_update

SETTINGS = {"epochs": 5, "batch_size": 64, "lr": 0.005, "clients_per_round": 2, "engine": "loop"}
LEAVER, WHEN, ROUNDS = "c03", 2, 6  # with seed 0 the leaver takes part in round 2 of 0 to 5 alone


@pytest.fixture(scope="module")
def federation():
    return feduhb.load("digits", clients=6, model="mlp", seed=0)


@pytest.fixture(scope="module")
def runs(federation, tmp_path_factory):
    """A training without a history, and the run that replaces it."""
    place = tmp_path_factory.mktemp("inverted")
    trained = feduhb.train(federation, ROUNDS, **SETTINGS, out=place / "old", show=None)
    assert [r.round for r in trained.rounds if LEAVER in r.answered] == [WHEN]
    feduhb.unlearn(trained, [LEAVER], rounds=ROUNDS, stop=feduhb.never, out=place / "new", show=None)
    return place


@pytest.fixture(scope="module")
def updates(federation, runs) -> dict[str, Tensor]:
    """Every client's true update in the leaver's round."""
    trained = feduhb.open_run(runs / "old", federation)
    engine, w = trained.make_engine(), flatten(federation.fresh_model())
    for record in trained.rounds[:WHEN]:
        w = w - feduhb.weighted_mean(engine.train(Work(w, 5), record.answered, record.round))
    return {c: feduhb.weighted_mean(engine.train(Work(w, 5), (c,), WHEN)) for c in federation.clients}


@pytest.fixture(scope="module")
def records(runs) -> dict[str, bytes]:
    """The records and the settings of the training, with its seed, before it is retired."""
    return {name: (runs / "old" / name).read_bytes() for name in ("config.toml", "rounds.jsonl")}


def compare(found: Tensor, updates: dict[str, Tensor]) -> float:
    """Return the cosine of what was found and the leaver's update, without the part that all clients have in common."""
    common = torch.stack([update for client, update in updates.items() if client != LEAVER]).mean(dim=0)
    return float(cosine_similarity(found - common, updates[LEAVER] - common, dim=0))


@pytest.mark.slow
def test_the_update_is_found_before_the_old_run_is_retired_and_not_after(federation, runs, updates, records):  # noqa: ARG001 (read before)
    remaining = federation.without([LEAVER])
    piece = feduhb.open_run(runs / "old", federation).params.numpy().tobytes()[:64]
    found = work_out_update(runs, LEAVER, remaining)
    assert found is not None
    assert compare(found, updates) > 0.99
    assert list_files_with(piece, runs) == ["old/state.safetensors"]
    feduhb.retire(runs / "old", unaudited="this test is about what is deleted")
    assert work_out_update(runs, LEAVER, remaining) is None
    assert [path.relative_to(runs).as_posix() for path in find_models(runs)] == ["new/state.safetensors"]
    (kept,) = find_models(runs).values()
    assert {*kept} == {"params"}, "the run that replaced it keeps no earlier model either"
    assert list_files_with(piece, runs) == []
    assert list_files_with(b"seed", runs / "old") == []


@pytest.mark.slow
def test_the_new_model_does_not_help_an_attacker_who_kept_the_old_records(
    federation, runs, updates, records, tmp_path
):
    for name, content in records.items():
        (tmp_path / name).write_bytes(content)
    shutil.copy(runs / "new" / "state.safetensors", tmp_path)
    found = work_out_update(tmp_path, LEAVER, federation.without([LEAVER]))
    assert found is not None
    assert abs(compare(found, updates)) < 0.2


def list_files_with(piece: bytes, folder: Path) -> list[str]:
    """Return the files that contain these bytes."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path.relative_to(folder).as_posix() for path in files if piece in path.read_bytes()]
