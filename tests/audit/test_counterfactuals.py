"""Worlds without the forgotten data: all data of the leavers is changed, and no other data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feduhb
from audit.auditing import QUIET, Called, Keeps, Replays, draw_federation
from feduhb.audit.audit import audit, check_control
from feduhb.audit.controls import Controls, carry_out, name_run, rebuild, replace_with_noise
from feduhb.audit.exactness import Counterfactuals, find_non_setting
from feduhb.audit.result import Exactness
from feduhb.data.federation import Federation
from feduhb.data.request import Request, as_request
from feduhb.errors import ConfigError, FeduhbError, RunFolderError
from feduhb.methods.binding import unbind
from feduhb.methods.replay import MISSING
from toys import quick

SIZES = {"ant": 1, "bee": 2, "cat": 3, "dog": 24, "elk": 9}
REQUESTS = ["ant,bee", "cat,dog", "dog:0-9+20", "class:1", "bee,dog:3-5,class:2"]


def unchanged(one: Federation, other: Federation, request: Request) -> None:
    """Check that the remaining data is the same, row by row, with the same keys."""
    kept, still = one.without(request), other.without(request)
    assert kept.fingerprints() == still.fingerprints()
    assert kept.seed == still.seed
    assert all(torch.equal(a, b) for a, b in zip(kept.test.all(), still.test.all(), strict=True))


@pytest.mark.parametrize("text", REQUESTS)
def test_noise_takes_the_place_of_all_that_is_forgotten_and_of_nothing_else(text):
    federation, request = draw_federation(SIZES), Request.parse(text)
    noisy = replace_with_noise(federation, request)
    unchanged(federation, noisy, request)
    old, new = federation.forgotten(request), noisy.forgotten(request)
    assert set(old) == set(new)
    for client in old:
        before, after = old[client].all()[0], new[client].all()[0]
        assert not (before[:, None] == after[None]).any()  # 6 floats an example: not one is left
        low, high = federation.test.x.aminmax()
        assert float(after.min()) >= float(low)
        assert float(after.max()) <= float(high)


@quick
@given(size=st.integers(1, 40))
def test_a_client_that_leaves_whole_gets_another_size(size):
    federation = draw_federation({"ant": size, "bee": 3})
    noisy = replace_with_noise(federation, Request(("ant",)))
    assert len(noisy.clients["ant"]) not in (0, size)


def test_rows_and_classes_keep_their_number_and_rows_their_keys():
    federation = draw_federation(SIZES)
    rows = replace_with_noise(federation, as_request({"dog": (0, 23)})).clients["dog"]
    assert rows.keys.tolist() == list(range(24))
    classed = replace_with_noise(federation, Request(classes=(1,)))
    for client, examples in federation.clients.items():
        assert torch.equal(classed.clients[client].targets, examples.targets)


def test_noise_has_an_address():
    federation = draw_federation(SIZES)
    alone, both = (
        replace_with_noise(federation, Request(("dog",))),
        replace_with_noise(federation, Request(("cat", "dog"))),
    )
    assert alone.fingerprints()["dog"] == both.fingerprints()["dog"]
    assert alone.fingerprints()["cat"] == federation.fingerprints()["cat"]
    other = replace_with_noise(federation.replace(seed=8), Request(("dog",)))
    assert other.fingerprints()["dog"] != alone.fingerprints()["dog"]


def test_rebuilt_shares_no_memory_and_keeps_every_value():
    planted = feduhb.load("digits", clients=4, per_client=20, model="softmax")
    again = rebuild(planted)
    stores = {e.x.untyped_storage().data_ptr() for e in (*planted.clients.values(), planted.test)}
    for part in ("clients", "held_out"):
        for client, examples in getattr(planted, part).items():
            copy = getattr(again, part)[client]
            assert copy.x.untyped_storage().data_ptr() not in stores
            assert len(copy.x) == len(copy.y) == len(examples)  # and nobody else's rows ride along
            assert all(torch.equal(a, b) for a, b in zip(copy.all(), examples.all(), strict=True))
    assert again.test.x.untyped_storage().data_ptr() not in stores
    assert again.about is None


def trained(sampled: int | None = None, federation: Federation | None = None, **changes):
    how = {"epochs": 1, "batch_size": 6, "lr": 0.05, "engine": "loop", "show": None, **changes}
    return feduhb.train(federation or draw_federation(SIZES), 3, clients_per_round=sampled, **how)


def checked(run, folder, *, history=False, original=None) -> Exactness:
    assert run.forgot is not None
    controls = Controls(
        federation=run.original, request=run.forgot, settings=run.settings, engine=run.engine, history=history,
        folder=folder, made={"original": original} if original else {},
    )  # fmt: skip
    checks = Counterfactuals(run, controls)
    carry_out(checks.steps())
    return checks.exactness


@pytest.mark.parametrize("sampled", [None, 2, 4])
@pytest.mark.parametrize("text", REQUESTS)
@pytest.mark.parametrize("method", ["feduhb", "retrain"])
def test_exact_methods_are_exact(method, text, sampled, tmp_path):
    run = feduhb.unlearn(trained(sampled), text, method=method, rounds=4, show=None)
    found = checked(run, tmp_path)
    assert found.exact
    assert [check.name for check in found.checks] == ["noise", "never", "beginning"]
    assert all(check.largest_difference == 0 for check in found.checks)


@pytest.mark.parametrize("method", ["nesterov", "fedadam", "fedyogi", "fednadam", "fedexp"])
def test_accelerators_are_exact(method, tmp_path):
    run = feduhb.unlearn(trained(2), REQUESTS[-1], method=method, rounds=4, show=None)
    found = checked(run, tmp_path)
    assert found.exact
    assert [check.name for check in found.checks] == ["noise", "never", "beginning"]


def test_weights_changed_by_one_bit_are_seen(tmp_path):
    run = feduhb.unlearn(trained(), ["dog"], method="retrain", rounds=2, show=None)
    bits = run.params.clone()
    bits.view(torch.int32)[3] ^= 1
    found = checked(replace(run, state=run.state._replace(params=bits)), tmp_path)
    assert not found.exact
    assert found.unexplained
    assert [check.name for check in found.checks] == ["noise", "never", "again", "beginning"]
    assert all(0 < check.largest_difference < 1e-6 for check in found.checks[:3])
    assert found.checks[3].identical


@pytest.mark.parametrize("kept", ["given", "erased"])
@pytest.mark.parametrize(
    "method",
    [
        feduhb.FedEraser(interval=1, epochs=1),
        feduhb.FedRecover(warmup=2, buffer=1, correction=0, final=0, epochs=1, abnormal=0.0),
        feduhb.FineTune(epochs=1),
        feduhb.NoT(epochs=1),
        feduhb.FedRecovery(distance=1e-4),
        feduhb.Crab(epochs=1),
    ],
    ids=lambda method: method.name,
)
def test_approximate_methods_are_not(method, kept, tmp_path):
    original = trained(out=tmp_path / "run", keep_history=True)
    run = feduhb.unlearn(
        original, ["dog"], method=method, rounds=2, erase_history=kept == "erased", show=None
    )
    found = checked(run, tmp_path / "work", history=True, original=original)
    assert [check.identical for check in found.checks] == [False, False, True]
    assert all(check.largest_difference > 1e-5 for check in found.checks[:2])


def test_the_old_model_itself_is_not_exact(tmp_path):
    """Fine-tuning with no rounds: trained without the leaver, or on noise in its place, the old model is another one."""
    original = trained()
    run = feduhb.unlearn(original, ["dog"], method="finetune", rounds=0, show=None)
    assert torch.equal(run.params, original.params)
    found = checked(run, tmp_path, original=original)
    assert [(check.name, check.identical) for check in found.checks] == [
        ("noise", False), ("never", False), ("again", True),
    ]  # fmt: skip
    assert all(check.largest_difference > 1e-3 for check in found.checks[:2])


def test_a_method_that_claims_to_be_exact_may_not_ask_for_the_old_model():
    claims = type("Claims", (feduhb.FineTune,), {"exact": True, "__slots__": ()})
    with pytest.raises(
        ConfigError, match=r"declares itself exact, but it uses the old model; declare exact = False"
    ):
        feduhb.unlearn(trained(), ["dog"], method=claims(epochs=1), rounds=1, show=None)


def test_folders_of_two_settings_of_one_method_are_apart():
    run, slow = trained(), feduhb.FedUHB(momentum=0.9, epochs=1)
    runs = [
        feduhb.unlearn(run, ["dog"], method=slow, rounds=2, show=None),
        feduhb.unlearn(run, ["dog"], method=feduhb.FedUHB(momentum=0.5, epochs=1), rounds=2, show=None),
        feduhb.unlearn(run, ["dog"], method=slow, rounds=3, show=None),
        feduhb.unlearn(run, ["dog"], method=slow, rounds=2, stop=feduhb.never, show=None),
    ]
    assert len({name_run(each) for each in runs}) == 4
    assert name_run(runs[0]) == name_run(replace(runs[0], rounds=()))


def test_what_a_method_carries_is_named():
    hidden: Any = {"trim": torch.zeros(3)}
    assert find_non_setting(feduhb.FedUHB()) is None
    assert find_non_setting(feduhb.Retrain(aggregate=partial(feduhb.trimmed_mean, trim=0.2))) is None
    assert find_non_setting(feduhb.FedEraser()) is None
    assert find_non_setting(Keeps(torch.zeros(3))) == "weights"
    assert find_non_setting(Keeps(aggregate=partial(feduhb.trimmed_mean, **hidden))) == "aggregate"
    assert find_non_setting(Called(aggregate=torch.nn.Linear(2, 2))) == "aggregate"
    given = Replays(history=torch.zeros(3))
    assert find_non_setting(given) is None  # for it is taken away before every counterfactual:
    assert getattr(unbind(given), "history") is MISSING  # noqa: B009


def test_controls_that_do_not_belong_are_refused():
    original = trained()
    run = feduhb.unlearn(original, ["dog"], method="feduhb", rounds=2, show=None)
    fine = feduhb.unlearn(original, ["dog"], method="retrain", rounds=2, show=None)
    check_control("original", original, run)
    check_control("retrain", fine, run)
    wrong = [
        (
            "original",
            trained(federation=draw_federation(SIZES, seed=4)),
            "control and the audited run have different data",
        ),
        ("original", trained(lr=0.01), "trained with other settings"),
        ("retrain", original, "forgotten nothing; give a run of retrain that has forgotten dog"),
        ("retrain", run, "is a run of feduhb that has forgotten dog; give a run of retrain"),
        (
            "retrain",
            feduhb.unlearn(original, ["cat"], method="retrain", rounds=2, show=None),
            "has forgotten cat; give a run of retrain that has forgotten dog",
        ),
    ]
    for name, control, words in wrong:
        with pytest.raises(RunFolderError, match=words):
            check_control(name, control, run)
        with pytest.raises(FeduhbError, match=words):
            audit(run, **{"trained" if name == "original" else name: control}, **QUIET)
    with pytest.raises(
        RunFolderError, match="has forgotten dog and the audited run dog; give the run before the request"
    ):
        audit(run, fine, **QUIET)
