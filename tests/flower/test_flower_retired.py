"""The folder of a run over Flower is retired too; there a server often has no data to audit with."""

import logging

import pytest

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.errors import RequestError, RunFolderError
from flower.gridding import make_grid

pytestmark = pytest.mark.slow

NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()
LOCAL = feduhb.Local(batch_size=8, lr=0.05)
WHY = "the data stays with the clients"


def make_settings(folder, **more):
    return {
        "model": FEDERATION.model, "epochs": 1, "local": LOCAL, "partitions": NAMES, "timeout": 5, "checkpoint": folder, **more,
    }  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    """A training "a" that kept a history, and the run "b" that replaces it."""
    flower.Train(**make_settings(tmp_path / "a", keep_history=True)).start(
        make_grid(FEDERATION), num_rounds=3
    )
    unlearn("bee", tmp_path / "a", tmp_path / "b")
    return tmp_path


def unlearn(forget, trained, folder):
    strategy = flower.FedUHB(forget, trained=trained, stop=feduhb.never, **make_settings(folder))
    return strategy.start(make_grid(FEDERATION), num_rounds=2)


def test_without_an_audit_a_reason_is_needed(runs):
    with pytest.raises(RunFolderError, match=r"b, which replaces .*a, has no audit about bee"):
        feduhb.retire(runs / "a")
    (tombstone,) = feduhb.retire(runs / "a", unaudited=WHY)
    assert (tombstone["unaudited"], tombstone["replaced_by"]["run"]) == (WHY, "../b")
    assert tombstone["left"] == []
    assert {path.name for path in (runs / "a").iterdir()} <= {
        "retired.json",
        "lineage.json",
        "erased.json",
        ".lock",
    }
    assert {path.name for path in runs.rglob("*.safetensors")} == {"state.safetensors"}


def test_the_new_run_is_opened_audited_and_unlearned_from(runs, caplog):
    opened = feduhb.open_run(runs / "b", FEDERATION)
    before = feduhb.open_run(runs / "a", FEDERATION)
    assert opened.settings.rounds == len(before.rounds) == 3
    feduhb.audit(opened, before, show=None, canaries=0, relearn=0)
    kept = (runs / "b" / "audit.json").read_bytes()
    feduhb.retire(runs / "a", unaudited=WHY)
    assert (runs / "b" / "audit.json").read_bytes() == kept
    assert feduhb.open_run(runs / "b", FEDERATION).settings == opened.settings
    with caplog.at_level(logging.WARNING):
        outcome = unlearn("cat", runs / "b", runs / "c")
    assert "no longer exists" not in caplog.text
    assert {client for record in outcome.rounds for client in record.asked} == {"ant", "dog", "elk"}
    (tombstone,) = feduhb.retire(runs / "b", unaudited=WHY)
    assert tombstone["leavers"] == "cat"
    assert {path.name for path in (runs / "b").iterdir()} <= {
        "retired.json",
        "lineage.json",
        "audit.json",
        ".lock",
    }


def test_a_retired_folder_takes_no_new_run(runs):
    feduhb.retire(runs / "a", unaudited=WHY)
    for start in (
        lambda: unlearn("cat", runs / "a", runs / "c"),
        lambda: unlearn("cat", runs / "b", runs / "a"),
        lambda: flower.Train(**make_settings(runs / "a")).start(make_grid(FEDERATION), num_rounds=3),
    ):
        with pytest.raises(RunFolderError, match="was retired on"):
            start()


def test_another_training_of_the_same_clients_may_hold_the_leaver(runs):
    """The server has no data to compare, so the clients' ids decide, and a person."""
    flower.Train(**make_settings(runs / "second")).start(make_grid(FEDERATION), num_rounds=1)
    (tombstone,) = feduhb.retire(runs / "a", unaudited=WHY, siblings=True)
    assert (tombstone["holding"], tombstone["may_hold"]) == ([], ["../second"])
    with pytest.raises(RequestError, match=r"b did not come from .*second"):
        feduhb.retire(runs / "second", replaced_by=runs / "b", unaudited=WHY)
    feduhb.retire(runs / "a", also=[runs / "second"])
    assert not (runs / "second" / "state.safetensors").exists()
