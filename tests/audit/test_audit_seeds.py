"""An audit replays each run with that run's own seed."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import feduhb
from audit.auditing import QUIET, draw_federation
from feduhb.audit.audit import audit, audit_all
from feduhb.audit.controls import Controls
from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED, Audit
from feduhb.core.seeds import seed_for
from feduhb.data.request import Request
from feduhb.errors import RunFolderError

SIZES = {"ant": 7, "bee": 11, "cat": 5, "dog": 9}
HOW = {"epochs": 1, "batch_size": 4, "lr": 0.1, "engine": "loop", "show": None}


def train(seed, **changes):
    return feduhb.train(draw_federation(SIZES).replace(seed=seed), 3, **{**HOW, **changes})


def unlearn(trained, seed, method: Any = "feduhb", **changes):
    return feduhb.unlearn(trained.reseed(seed), ["dog"], method=method, rounds=3, show=None, **changes)


@pytest.mark.parametrize("method", ["feduhb", "retrain"])
def test_a_run_with_a_seed_of_its_own_is_found_exact(method):
    original = train(1)
    run, retrain = unlearn(original, 2, method), unlearn(original, 5, "retrain")
    found = audit(run, original, retrain=retrain, **QUIET)
    assert found.exactness is not None
    assert [(check.name, check.identical) for check in found.exactness.checks] == [
        ("noise", True),
        ("never", True),
        ("beginning", True),
    ]
    assert (found.seed, dict(found.seeds)) == (2, {UNLEARNED: 2, ORIGINAL: 1, RETRAIN: 5})
    assert Audit.from_json(found.to_json()) == found


def test_weights_that_another_seed_made_are_not_found_exact():
    """Had the audit replayed with the seed of the original, it would have found these weights again."""
    original = train(1)
    run, other = unlearn(original, 2), unlearn(original, 1)
    found = audit(replace(run, state=other.state), original, **QUIET)
    assert found.exactness is not None
    assert not found.exactness.exact
    assert found.exactness.unexplained


def test_the_controls_that_an_audit_makes_have_the_seed_of_the_audited_run(tmp_path):
    run = unlearn(train(1), 2)
    found = audit(run, out=tmp_path, keep=True, **QUIET)
    assert dict(found.seeds) == {UNLEARNED: 2, ORIGINAL: 2, RETRAIN: 2}


class Mine(feduhb.FedUHB):
    """A method of the user's own, which the audit also runs on noise alone."""

    __slots__ = ()
    name = "mine"


def test_the_seed_of_each_repetition(tmp_path):
    """Trainings have the original's seed, everything that is compared with the audited run has that run's seed."""
    original = train(1)
    run = unlearn(original, 2, Mine(epochs=1))
    elsewhere = replace(run, state=run.state._replace(params=run.params + 1))  # so that "again" is needed too
    for audited, others in (
        (run, {"bare-same-mine": 2, "bare-other-mine": seed_for(2, "bare")}),
        (elsewhere, {"again-mine": 2}),
    ):
        out = tmp_path / next(iter(others))
        audit(audited, original, out=out, keep=True, canaries=0.5, **QUIET)
        written = {
            re.sub("-[0-9a-f]{8}$", "", config.parent.name): tomllib.loads(config.read_text())["seed"]
            for config in (out / "audit-work").glob("*/config.toml")
        }
        always = {"retrain": 2, "noise": 1, "rehearsal": 1, "noise-mine": 2, "never-mine": 2}
        assert written.items() >= {**always, **others}.items()


def test_runs_with_different_seeds_are_audited_together_as_alone(tmp_path):
    original = train(1)
    runs = [unlearn(original, seed, out=tmp_path / str(seed)) for seed in (2, 1, 3)]
    retrain = unlearn(original, 5, "retrain")
    together = audit_all(runs, original, retrain=retrain, **QUIET)
    for run, found in zip(runs, together, strict=True):
        assert found.exactness is not None
        assert found.exactness.exact
        assert found.seeds[UNLEARNED] == found.seed == run.seed
        assert run.folder is not None
        assert json.loads((run.folder / "audit.json").read_text())["seed"] == run.seed


def test_shared_seeds_give_the_audit_of_before():
    """Where all seeds are equal, no federation is made anew, so no draw can differ."""
    run = unlearn(train(3), 3)
    assert run.original.reseed(3) is run.original
    controls = Controls(
        federation=run.original, request=Request(("dog",)), settings=run.settings, engine="loop", history=False, folder=Path(),
    )  # fmt: skip
    for world in ("original", "noise", "never", "bare-same", "bare-other"):
        alike, other = controls.make_world(world, 3), controls.make_world(world, 4)
        assert controls.make_world(world).seed == alike.seed != other.seed
        assert (
            alike.fingerprints() == other.fingerprints()
        )  # the data of a world does not depend on a run's seed


@pytest.mark.slow
def test_a_replay_is_audited_beside_an_exact_run_of_another_seed(tmp_path):
    original = train(1, keep_history=True, out=tmp_path / "trained")
    replayed = unlearn(original, 1, "federaser", erase_history=False, out=tmp_path / "federaser")
    exact = unlearn(original, 2, erase_history=False, out=tmp_path / "feduhb")
    for given, order in itertools.product((original, None), ([exact, replayed], [replayed, exact])):
        for run, found in zip(order, audit_all(order, given, **QUIET), strict=True):
            assert found.exactness is not None
            assert found.seeds[ORIGINAL] == 1
            assert found.exactness.exact is run.method.exact
            assert not found.exactness.unexplained  # the replay is found again from the real data


def test_a_replay_must_have_the_seed_of_its_training(tmp_path):
    original = train(1, keep_history=True, out=tmp_path / "trained")
    replayed = unlearn(original, 1, "federaser", erase_history=False, out=tmp_path / "federaser")
    with pytest.raises(
        RunFolderError, match=r"it has seed 1 and Run.* has seed 4; give the training that it came from"
    ):
        audit(replayed, train(4), **QUIET)
    with pytest.raises(RunFolderError, match="audit such runs one at a time"):
        audit_all([replayed, replayed.reseed(2)], **QUIET)


def test_an_interrupted_audit_starts_again_with_another_original(tmp_path):
    run = unlearn(train(1), 2)
    audit(run, train(1), out=tmp_path, keep=True, **QUIET)
    found = audit(run, train(4), out=tmp_path, **QUIET)  # what the first audit left has another seed
    assert found.seeds[ORIGINAL] == 4
    assert found.exactness is not None
    assert found.exactness.exact


def test_an_opened_run_has_the_seed_of_its_folder(tmp_path):
    run = unlearn(train(1), 2, out=tmp_path / "run")
    opened = feduhb.open_run(tmp_path / "run", draw_federation(SIZES))
    assert (opened.seed, opened.original.seed) == (2, 2)
    assert torch.equal(opened.params, run.params)
