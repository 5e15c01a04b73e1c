"""Consecutive requests and returning leavers: a forgotten client stays forgotten, also under a new key."""

import json

import pytest
import torch

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.data.request import Request
from feduhb.errors import RequestError, RunFolderError
from feduhb.flower.roster import Forgotten, Roster, read_request, resolve_request
from feduhb.runs.folder import RunFolder
from feduhb.runs.history import DiskHistory
from flower.gridding import Seat, make_grid, make_key

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
FEDERATION = ragged()
NODES = {"ant": 100, "bee": 101, "cat": 102, "dog": 103, "elk": 104}


class Killed(BaseException):
    """An exception that no handler catches."""


def draw_start():
    return flower.fresh_arrays(FEDERATION.model, FEDERATION.seed)


def make_settings(**more):
    return {"epochs": 1, "seed": 7, "local": LOCAL, "timeout": 1.0, **more}


def train(grid, checkpoint=None, **more):
    grid.sent.clear()
    return flower.Train(checkpoint=checkpoint, **make_settings(**more)).start(grid, draw_start(), 2)


def unlearn(grid, forget, checkpoint=None, rounds=2, **more):
    grid.sent.clear()
    strategy = flower.FedUHB(forget, checkpoint=checkpoint, stop=feduhb.never, **make_settings(**more))
    return strategy.start(grid, draw_start(), rounds)


def list_asked(grid):
    """Return the names of the clients that received a train message."""
    return {grid.seats[node].name for node in grid.list_trained()}


def list_rows(grid):
    """Return the rows that each train message told its node to drop."""
    said = [(node, config) for node, kind, config in grid.sent if kind == "train"]
    return {(node, tuple(config.get("forget-rows", ()))) for node, config in said}


def find_key(grid, name):
    return flower.key_id(grid.seats[NODES[name]].key)


def renew_key(grid, name, node=555):
    """Replace the key of a client under its registered name."""
    old = grid.seats.pop(NODES[name])
    grid.seats[node] = Seat(old.app, dict(old.config), make_key(), name)
    return old


def kill_in_round(grid, number, also=lambda: None):
    def before(message):
        if message.metadata.message_type == "train":
            also()
            if message.content["config"]["round"] == number:
                raise Killed

    grid.before = before


def stop_killing(grid):
    grid.before = lambda _: None


def test_a_second_erasure_does_not_bring_the_first_leaver_back(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    train(grid, tmp_path / "t")
    unlearn(grid, "bee", tmp_path / "u1", trained=tmp_path / "t")
    second = unlearn(grid, "cat", tmp_path / "u2", trained=tmp_path / "u1")
    assert list_asked(grid) == {"ant", "dog", "elk"}
    at_once = unlearn(grid, "bee,cat", trained=tmp_path / "t")
    assert torch.equal(second.params, at_once.params)
    unlearn(grid, "dog", trained=tmp_path / "u2")
    assert list_asked(grid) == {"ant", "elk"}
    train(grid, trained=tmp_path / "u2")
    assert list_asked(grid) == {"ant", "dog", "elk"}


def test_rows_and_classes_of_earlier_erasures_are_sent_again(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    train(grid, tmp_path / "t")
    unlearn(grid, "cat:0,class:2", tmp_path / "u1", trained=tmp_path / "t")
    unlearn(grid, "cat:5,bee", tmp_path / "u2", trained=tmp_path / "u1")
    assert {(100, ()), (102, (0, 5))} <= list_rows(grid)
    assert {tuple(c["forget-classes"]) for _, kind, c in grid.sent if kind == "train"} == {(2,)}
    unlearn(grid, "cat", trained=tmp_path / "u2")
    assert list_asked(grid) == {"ant", "dog", "elk"}


def test_a_training_leaves_out_what_earlier_requests_forgot(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    first = train(grid, tmp_path / "t", forget="bee,cat:0+5")
    assert list_asked(grid) == {"ant", "cat", "dog", "elk"}
    assert (102, (0, 5)) in list_rows(grid)
    assert "unlearn" not in RunFolder(tmp_path / "t").config()
    assert torch.equal(train(grid, tmp_path / "t", forget="bee,cat:0+5").params, first.params)
    assert grid.list_trained() == set()
    with pytest.raises(RunFolderError, match=r"was started with flower.forget = .*, not None"):
        train(grid, tmp_path / "t")
    unlearn(grid, "dog", trained=tmp_path / "t")
    assert list_asked(grid) == {"ant", "cat", "elk"}
    assert (102, (0, 5)) in list_rows(grid)


def test_an_earlier_erasure_does_not_cost_a_history_that_never_saw_the_data(tmp_path):
    """Rows and a class that a run never saw are in none of its updates, so that they can be replayed."""
    grid = make_grid(FEDERATION, keyed=True)
    train(grid, tmp_path / "t")
    unlearn(grid, "cat:0,class:2", tmp_path / "u1", trained=tmp_path / "t", keep_history=True, rounds=4)
    grid.sent.clear()
    flower.FedEraser("bee", trained=tmp_path / "u1", **make_settings()).start(grid, draw_start())
    assert list_asked(grid) == {"ant", "cat", "dog", "elk"}
    assert DiskHistory(tmp_path / "u1" / "history").rounds == []


def kill_while_the_leaver_renews_its_key(folder):
    """Kill an unlearning while bee returns with another key; return the grid and bee's old key."""
    grid = make_grid(FEDERATION, keyed=True)
    old = find_key(grid, "bee")
    kill_in_round(grid, 1, lambda: renew_key(grid, "bee") if 101 in grid.seats else None)
    with pytest.raises(Killed):
        unlearn(grid, "bee", folder, rounds=3)
    stop_killing(grid)
    return grid, old


def test_a_leaver_with_a_new_key_under_its_name_is_not_asked_after_a_restart(tmp_path):
    grid, old = kill_while_the_leaver_renews_its_key(tmp_path)
    assert sorted(json.loads((tmp_path / "names.json").read_text()).values()).count("bee") == 2
    again = unlearn(grid, "bee", tmp_path, rounds=3)
    assert list_asked(grid) == {"ant", "cat", "dog", "elk"}
    assert len(again.rounds) == 3
    assert old in json.loads((tmp_path / "request.json").read_text())["request"]


def test_the_leaver_is_not_asked_if_the_operator_resumes_with_the_old_key(tmp_path):
    grid, old = kill_while_the_leaver_renews_its_key(tmp_path)
    unlearn(grid, old, tmp_path, rounds=3)
    assert list_asked(grid) == {"ant", "cat", "dog", "elk"}


def test_a_leaver_with_a_new_key_is_not_asked_in_a_later_run(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    train(grid, tmp_path / "t")
    unlearn(grid, "bee", tmp_path / "u1", trained=tmp_path / "t")
    renew_key(grid, "bee")
    unlearn(grid, "cat", trained=tmp_path / "u1")
    assert list_asked(grid) == {"ant", "dog", "elk"}


def test_one_of_two_with_a_name_is_named_by_its_key_and_the_other_stays():
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[100].name = "bee"
    unlearn(grid, find_key(grid, "bee"))
    assert grid.list_trained() == {100, 102, 103, 104}


def test_rows_follow_a_registered_name_to_its_new_key(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    kill_in_round(grid, 2, lambda: renew_key(grid, "cat") if 102 in grid.seats else None)
    with pytest.raises(Killed):
        unlearn(grid, {"cat": [0, 5]}, tmp_path, rounds=3)
    assert list_rows(grid) == {(n, ()) for n in (100, 101, 103, 104)} | {(555, (0, 5))}
    stop_killing(grid)
    unlearn(grid, {"cat": [0, 5]}, tmp_path, rounds=3)
    assert (555, (0, 5)) in list_rows(grid)


def test_a_damaged_request_file_is_an_error(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    unlearn(grid, "bee", tmp_path)
    (tmp_path / "request.json").write_text("{")
    with pytest.raises(
        RunFolderError,
        match=r"request.json is damaged; restore it from a backup: it lists the forgotten clients",
    ):
        unlearn(grid, "bee", tmp_path)


def test_clients_and_rows_are_forgotten_by_ids_and_by_names():
    found = Forgotten("bee", Request(("key-b",)), Request(rows={"key-c": (3, 1)}), ("bee",), {"cat": (1, 7)})
    assert found.is_forgotten("key-b", None)
    assert found.is_forgotten("key-new", "bee")
    assert not found.is_forgotten("key-new", "cat")
    assert not Forgotten().is_forgotten("key-new", None)
    assert found.list_rows("key-c", "cat") == [1, 3, 7]
    assert found.list_rows("key-new", "cat") == [1, 7]
    assert found.list_rows("key-d", None) == []
    assert str(found.total) == "key-b,key-c:1+3"


def test_a_written_request_is_not_resolved_again_in_any_form():
    grid = make_grid(FEDERATION, keyed=True)
    roster, bee = Roster(grid, timeout=1), find_key(grid, "bee")
    written = resolve_request(roster, "bee,cat:0")
    assert written == Forgotten(
        "bee,cat:0", Request((bee,), {find_key(grid, "cat"): (0,)}), None, ("bee",), {"cat": (0,)}
    )
    renew_key(grid, "bee")
    assert resolve_request(Roster(grid, timeout=1), "bee,cat:0", written=written) == written
    by_key = Request((bee,), {"cat": (0,)})
    assert resolve_request(Roster(grid, timeout=1), by_key, written=written) == written
    other = resolve_request(Roster(grid, timeout=1), "cat", written=written)
    assert other.request == Request((find_key(grid, "cat"),))


def test_names_that_earlier_runs_barred_stay_barred_in_a_resumed_run():
    grid = make_grid(FEDERATION, keyed=True)
    before = Forgotten(request=Request(("key-" + "0" * 32,)), names=("dog",))
    written = Forgotten("bee", Request((find_key(grid, "bee"),)), before.total, ("bee",))
    for forget in ("bee", find_key(grid, "bee")):
        roster = Roster(grid, timeout=1)
        found = resolve_request(roster, forget, before=before, written=written)
        assert found.names == ("bee", "dog")
        assert set(roster.split(found)[1]) == {find_key(grid, "bee"), find_key(grid, "dog")}


def test_a_written_request_is_read_again(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    found = resolve_request(
        Roster(grid, timeout=1), "bee,cat:0+5,class:2", before=Forgotten(request=Request(("elk",)))
    )
    (tmp_path / "request.json").write_bytes(found.to_json())
    assert read_request(tmp_path) == found


def test_a_key_that_took_no_part_in_the_training_is_refused(tmp_path, caplog):
    grid = make_grid(FEDERATION, keyed=True)
    train(grid, tmp_path / "t")
    mistyped = "key-" + "0" * 32
    with pytest.raises(RequestError, match=f"no client with the key {mistyped} took part"):
        unlearn(grid, mistyped, trained=tmp_path / "t")
    assert grid.sent == []
    caplog.clear()
    unlearn(grid, mistyped)
    assert f"no client with the key {mistyped} was ever connected here" in caplog.text


def test_a_key_without_a_name_is_known_from_the_training_though_it_is_away(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[101].name = ""
    bee = find_key(grid, "bee")
    train(grid, tmp_path / "t")
    del grid.seats[101]
    unlearn(grid, "cat", tmp_path / "u1", trained=tmp_path / "t")
    last = unlearn(grid, bee, tmp_path / "u2", trained=tmp_path / "u1")
    assert bee not in last.names
    assert list_asked(grid) == {"ant", "dog", "elk"}


def test_keys_without_names_cause_a_warning(caplog):
    grid = make_grid(FEDERATION, keyed=True)
    unlearn(grid, "bee")
    assert "no client has a registered name" not in caplog.text
    for seat in grid.seats.values():
        seat.name = ""
    train(grid)
    assert "no client has a registered name" not in caplog.text
    unlearn(grid, find_key(grid, "bee"))
    assert "that returns is not recognised: start the SuperLink with --enable-supernode-auth" in caplog.text


def broken(*_):
    raise ZeroDivisionError


def list_goodbyes(grid):
    return [node for node, kind, _ in grid.sent if kind == "query.feduhb_leave"]


def test_the_log_shows_how_many_files_a_leaver_deleted(tmp_path, caplog):
    grid = make_grid(FEDERATION, cache=tmp_path)
    train(grid)
    with caplog.at_level("INFO", logger="flwr.feduhb"):
        unlearn(grid, "c01")
    assert "c01 was told to leave: it has deleted 1 file" in caplog.text
    assert list_goodbyes(grid) == [101]
    with caplog.at_level("INFO", logger="flwr.feduhb"):
        unlearn(grid, "c01")
    assert "c01 was told to leave: it has deleted 0 files" in caplog.text


def test_a_leaver_that_connects_later_receives_the_message_then(caplog):
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[101].online = False

    def arrives(message):
        if message.metadata.message_type == "train" and message.content["config"]["round"] == 1:
            grid.seats[101].online = True

    grid.before = arrives
    unlearn(grid, find_key(grid, "bee"), rounds=3)
    assert list_goodbyes(grid) == [101]
    assert "could not be told" not in caplog.text


def test_a_leaver_that_is_silent_fails_or_never_connects_causes_a_warning(caplog):
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[101].app = lambda *_: None
    unlearn(grid, "bee")
    assert f"bee ({find_key(grid, 'bee')}) was told to leave and has not answered" in caplog.text
    caplog.clear()
    grid.seats[101].app = broken
    unlearn(grid, "bee")
    assert "was told to leave: it failed: ZeroDivisionError" in caplog.text
    assert list_goodbyes(grid) == [101]
    caplog.clear()
    grid.seats[101].online = False
    unlearn(grid, find_key(grid, "bee"))
    assert "was not connected in this run and could not be told to leave" in caplog.text


@pytest.mark.parametrize("tell", [True, False])
def test_a_remote_federation_tells_its_leavers_too(tell):
    grid = make_grid(FEDERATION, keyed=True)
    far = flower.connected(grid, FEDERATION.test, FEDERATION.model, seed=7, timeout=5, tell_leavers=tell)
    run = feduhb.train(far, 1, engine=far.engine, epochs=1)
    feduhb.unlearn(run, ["bee"], rounds=2)
    assert list_goodbyes(grid) == ([101] if tell else [])
