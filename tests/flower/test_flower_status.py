"""Runs over Flower: their layout is recorded, and what is left of a client is found by its registered name."""

import pytest
from safetensors.torch import save_file

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.core.flat import with_params
from feduhb.runs import read_status, verify_weights
from feduhb.runs.folder import RunFolder
from flower.gridding import make_grid

pytestmark = pytest.mark.slow

FEDERATION = ragged()
LOCAL = feduhb.Local(batch_size=8, lr=0.05)


def make_runs(place, *, keyed):
    """Make a training "a", and the run "b" that has forgotten bee."""
    settings = {"model": FEDERATION.model, "epochs": 1, "local": LOCAL, "timeout": 5}
    settings |= {} if keyed else {"partitions": ("ant", "bee", "cat", "dog", "elk")}
    strategies = (
        flower.Train(**settings, checkpoint=place / "a", keep_history=True),
        flower.FedUHB("bee", trained=place / "a", stop=feduhb.never, checkpoint=place / "b", **settings),
    )
    for strategy in strategies:
        strategy.start(make_grid(FEDERATION, keyed=keyed), num_rounds=1)


def test_the_weights_can_be_checked_by_their_names(tmp_path):
    make_runs(tmp_path, keyed=False)
    module = FEDERATION.fresh_model()
    layout = [(name, [*each.shape]) for name, each in module.named_parameters()]
    assert RunFolder(tmp_path / "b").result().get("layout") == layout
    params = feduhb.open_run(tmp_path / "b", FEDERATION).params
    save_file(with_params(module, params).state_dict(), tmp_path / "model.safetensors")
    assert verify_weights(tmp_path / "model.safetensors", tmp_path / "b").same
    assert not verify_weights(tmp_path / "model.safetensors", tmp_path / "a").same


def test_a_client_is_found_by_its_registered_name(tmp_path):
    make_runs(tmp_path, keyed=True)
    found = read_status(tmp_path, "bee")
    (leaver,) = found.leavers
    assert leaver.name == "bee"
    assert leaver.request.startswith("key-")
    assert leaver.held_by == (tmp_path / "a",)
    assert [step.what for step in found.steps] == ["audit", "retire"]
    feduhb.retire(tmp_path / "a", unaudited="the data stays with the clients")
    after = read_status(tmp_path, "bee")
    assert after.is_clear
    assert not after.steps
