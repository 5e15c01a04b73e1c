"""`feduhb.train` and `feduhb.unlearn` over a grid: the same runs, folders and errors as in process."""

import json

import pytest
import torch
from flwr.app import MetricRecord, RecordDict

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.audit.beginning import note_start
from feduhb.errors import AnswerError, ConfigError, DataError, RequestError, RunFolderError
from feduhb.runs.folder import RunFolder
from feduhb.runs.history import DiskHistory
from flower.gridding import change_answers, make_app, make_grid

pytestmark = pytest.mark.slow

NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()
SETTINGS = {"epochs": 1, "batch_size": 8, "lr": 0.05}


def connect(grid, **more):
    settings = {"seed": 7, "partitions": NAMES, "timeout": 5, **more}
    return flower.connected(grid, FEDERATION.test, FEDERATION.model, **settings)


def train_here(out=None, **more):
    return feduhb.train(FEDERATION, 4, engine="loop", out=out, **SETTINGS, **more)


def train_there(grid, out=None, **more):
    far = connect(grid)
    return feduhb.train(far, 4, engine=far.engine, out=out, **SETTINGS, **more)


def test_training_equals_the_in_process_run():
    here, there = train_here(), train_there(make_grid(FEDERATION))
    assert torch.equal(there.params, here.params)
    assert [r.scores for r in there.rounds] == [r.scores for r in here.rounds]


@pytest.mark.parametrize("forget", [["bee", "elk"], {"dog": [0, 7, 9]}, "class:2", "bee,dog:0-3"])
def test_unlearning_equals_the_in_process_run(forget):
    grid = make_grid(FEDERATION)
    here = feduhb.unlearn(train_here(), forget, rounds=3, stop=feduhb.never)
    there = feduhb.unlearn(train_there(grid), forget, rounds=3, stop=feduhb.never)
    assert torch.equal(there.params, here.params)


def test_two_requests_one_after_the_other():
    here = feduhb.unlearn(feduhb.unlearn(train_here(), {"dog": [0]}, rounds=2), {"dog": [5]}, rounds=2)
    there = train_there(make_grid(FEDERATION))
    there = feduhb.unlearn(feduhb.unlearn(there, {"dog": [0]}, rounds=2), {"dog": [5]}, rounds=2)
    assert torch.equal(there.params, here.params)


def test_a_leaver_gets_no_training_message_from_then_on():
    grid = make_grid(FEDERATION)
    run = train_there(grid)
    grid.sent.clear()
    feduhb.unlearn(run, ["bee"], rounds=2)
    assert grid.list_trained() == {100, 102, 103, 104}


def test_by_registered_name_in_deployment():
    grid = make_grid(FEDERATION, keyed=True)
    run = train_there(grid)
    grid.sent.clear()
    unlearned = feduhb.unlearn(run, ["bee"], rounds=2)
    assert grid.list_trained() == {100, 102, 103, 104}
    assert flower.key_id(grid.seats[101].key) not in unlearned.rounds[0].asked


def test_what_was_forgotten_before_stays_forgotten():
    grid = make_grid(FEDERATION)
    far = connect(grid, forget="bee,dog:0-3")
    run = feduhb.train(far, 3, engine=far.engine, **SETTINGS)
    here = feduhb.train(FEDERATION.without("bee,dog:0-3"), 3, engine="loop", **SETTINGS)
    assert torch.equal(run.params, here.params)


def test_folders_histories_and_replays(tmp_path):
    grid = make_grid(FEDERATION)
    run = train_there(grid, tmp_path / "first", keep_history=True)
    unlearned = feduhb.unlearn(run, ["bee"], method=feduhb.FedEraser(epochs=1), out=tmp_path / "without")
    here = train_here(tmp_path / "here", keep_history=True)
    assert torch.equal(
        unlearned.params, feduhb.unlearn(here, ["bee"], method=feduhb.FedEraser(epochs=1)).params
    )
    assert DiskHistory(tmp_path / "first" / "history").rounds == []
    opened = feduhb.open_run(tmp_path / "first", connect(grid))
    assert torch.equal(opened.params, run.params)


@pytest.mark.parametrize("method", ["crab", "fedrecovery", "wu"])
def test_methods_of_the_server_replay_a_training_over_a_grid(tmp_path, method):
    public, runs = FEDERATION.test.x[:7], []
    far = connect(make_grid(FEDERATION), public=public)
    for place, federation, engine in (
        ("there", far, far.engine),
        ("here", FEDERATION.replace(public=public), "loop"),
    ):
        run = feduhb.train(federation, 3, engine=engine, out=tmp_path / place, keep_history=True, **SETTINGS)
        runs.append(feduhb.unlearn(run, ["bee"], method=method))
    assert torch.equal(runs[0].params, runs[1].params)


def test_a_run_is_resumed(tmp_path):
    def stop(record):
        if record.round == 1:
            raise KeyboardInterrupt

    far = connect(make_grid(FEDERATION))
    with pytest.raises(KeyboardInterrupt):
        feduhb.train(far, 4, engine=far.engine, out=tmp_path / "run", show=stop, **SETTINGS)
    again = feduhb.train(far, 4, engine=far.engine, out=tmp_path / "run", resume=True, **SETTINGS)
    assert torch.equal(again.params, train_here().params)


def test_a_resumed_run_remembers_what_its_clients_claimed_first(tmp_path):
    """The weight of a client that claims more from then on is still bounded by its first claim."""

    def claim_more(content):
        return RecordDict({**content, "metrics": MetricRecord({"num-examples": 23})})

    def stop(_):
        raise KeyboardInterrupt

    grid = make_grid(FEDERATION)
    far = connect(grid)
    with pytest.raises(KeyboardInterrupt):
        feduhb.train(far, 2, engine=far.engine, out=tmp_path / "run", show=stop, **SETTINGS)
    first = json.loads((tmp_path / "run" / "limits.json").read_text())["examples"]["ant"]
    assert first < 23
    far = connect(make_grid(FEDERATION, apps={"ant": change_answers(make_app(FEDERATION), claim_more)}))
    again = feduhb.train(far, 2, engine=far.engine, out=tmp_path / "run", resume=True, **SETTINGS)
    assert torch.equal(again.params, feduhb.train(FEDERATION, 2, engine="loop", **SETTINGS).params)
    bounded = json.loads((tmp_path / "run" / "limits.json").read_text())["bounded"]
    assert "it claims 23 examples" in bounded["1"]["ant"]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"dog": [1, 2]}, {"dog": [7, 8]}),
        ({"dog": [1, 2]}, "dog:1-2,class:1"),
        (None, "class:1"),
        ("class:1", "class:2"),
        ({"dog": [1]}, {"ant": [1]}),
    ],
)
def test_a_run_is_not_resumed_with_other_rows_or_classes_forgotten(first, then, tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    far = connect(make_grid(FEDERATION), forget=first)
    with pytest.raises(KeyboardInterrupt):
        feduhb.train(far, 4, engine=far.engine, out=tmp_path / "run", show=stop, **SETTINGS)
    grid = make_grid(FEDERATION)
    other = connect(grid, forget=then)
    with pytest.raises(
        RunFolderError, match=r"was started with different data of client (ant|dog); resume it with"
    ):
        feduhb.train(other, 4, engine=other.engine, out=tmp_path / "run", resume=True, **SETTINGS)
    assert grid.list_trained() == set()
    again = connect(make_grid(FEDERATION), forget=first)
    assert (
        len(feduhb.train(again, 4, engine=again.engine, out=tmp_path / "run", resume=True, **SETTINGS).rounds)
        == 4
    )


def test_a_fingerprint_names_what_each_client_must_drop():
    far = connect(make_grid(FEDERATION))
    assert set(far.fingerprints().values()) == {"remote, 0 rows forgotten"}
    found = far.without("bee,dog:0-2+5,class:1").without({"dog": [3]}).fingerprints()
    assert found["dog"] == "remote, 5 rows forgotten: dog:0-3+5,class:1"
    assert found["ant"] == "remote, 0 rows forgotten: class:1"
    assert "bee" not in found


WRONG = "key-" + "0" * 32


@pytest.mark.parametrize("forget", [[WRONG], {WRONG: [0]}])
def test_a_mistyped_key_is_refused_before_any_message(forget, tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    run = train_there(grid, tmp_path / "first", keep_history=True)
    grid.sent.clear()
    words = (
        f"no client with the key {WRONG} took part or was ever connected; check the key: feduhb.flower.key_id"
    )
    with pytest.raises(RequestError, match=words):
        feduhb.unlearn(run, forget, rounds=2, out=tmp_path / "without")
    assert grid.sent == []
    assert len(DiskHistory(tmp_path / "first" / "history").rounds) == 4
    assert not (tmp_path / "without").exists()


@pytest.mark.parametrize("spelled", ["name", "key"])
def test_a_leaver_that_has_gone_is_known_by_name_and_key(spelled):
    grid = make_grid(FEDERATION, keyed=True)
    bee = flower.key_id(grid.seats[101].key)
    run = train_there(grid)
    del grid.seats[101]
    unlearned = feduhb.unlearn(run, ["bee" if spelled == "name" else bee], rounds=2)
    assert bee not in unlearned.rounds[0].asked
    assert feduhb.unlearn(unlearned, [bee], rounds=2).rounds[0].asked == unlearned.rounds[0].asked


def test_a_key_of_an_earlier_request_need_not_be_known():
    grid = make_grid(FEDERATION, keyed=True)
    far = connect(grid, forget=[WRONG])
    run = feduhb.train(far, 1, engine=far.engine, **SETTINGS)
    assert len(feduhb.unlearn(run, [WRONG, "bee"], rounds=1).rounds[0].asked) == 4


def test_bad_answers_are_left_out():
    def fail(_):
        raise RuntimeError

    grid = make_grid(FEDERATION, apps={"cat": change_answers(make_app(FEDERATION), fail)})
    run = train_there(grid)
    assert run.rounds[0].answered == ("ant", "bee", "dog", "elk")
    assert torch.equal(
        run.params, feduhb.train(FEDERATION.without("cat"), 4, engine="loop", **SETTINGS).params
    )


def test_the_server_cannot_read_the_clients_examples():
    far = connect(make_grid(FEDERATION))
    for look in (lambda e: e.all(), lambda e: e.targets, lambda e: e.batch(torch.tensor([0]))):
        with pytest.raises(DataError, match="the examples are not on the server but with the clients"):
            look(far.clients["ant"])
    assert repr(far) == "Remote(5 clients with their own data, 20 examples for testing, seed 7)"


def test_impossible_requests_are_refused():
    far = connect(make_grid(FEDERATION))
    with pytest.raises(RequestError, match="there is no client 'bea' to forget"):
        far.without("bea")
    with pytest.raises(RequestError, match="no client would remain"):
        far.without(list(NAMES))
    with pytest.raises(AnswerError, match="6 are needed"):
        connect(make_grid(FEDERATION), min_clients=6, timeout=0.3)


def test_an_audit_that_needs_the_data_is_refused():
    run = train_there(make_grid(FEDERATION))
    with pytest.raises(DataError, match="run what needs them, such as a membership attack, there"):
        feduhb.audit(feduhb.unlearn(run, ["bee"], rounds=2), run)


def test_what_remains_of_a_remote_federation_shares_its_fresh_model():
    far = connect(make_grid(FEDERATION))
    less = far.without(["bee"])
    assert far.is_remote
    assert less.is_remote
    assert less._draw is far._draw
    assert far.replace(seed=8)._draw is not far._draw


def test_a_rollback_over_clients_elsewhere_is_refused_unless_asked_for(tmp_path, capsys):
    how = {"clients_per_round": 1, "keep_models": "1MB"}
    here = train_here(tmp_path / "here", **how)
    there = train_there(make_grid(FEDERATION), tmp_path / "there", **how)
    first = here.rounds[0].asked
    leaver = next(client for record in here.rounds for client in record.asked if client not in first)
    with pytest.raises(
        ConfigError, match=r"the update of the clients that left\..*: allow_shared_start=True"
    ):
        feduhb.unlearn(there, [leaver], method="rollback", out=tmp_path / "b")
    assert not (tmp_path / "b").exists()
    capsys.readouterr()
    new = feduhb.unlearn(there, [leaver], method="rollback", out=tmp_path / "b", allow_shared_start=True)
    assert "this run starts from a model of the old run and has its seed" in capsys.readouterr().err
    again = feduhb.unlearn(here, [leaver], method="rollback", out=tmp_path / "c")
    assert new.restart_round == again.restart_round > 0
    assert torch.equal(new.params, again.params)
    said = "This run started from a model of the old run and has its seed. A shared start lets a server"
    assert str(RunFolder(tmp_path / "b").result().get("start")).startswith(said)
    assert said in new.card()
    assert "start" not in RunFolder(tmp_path / "c").result()
    assert any(note.startswith(said) for note in note_start(new))
    assert not any(note.startswith(said) for note in note_start(again))
