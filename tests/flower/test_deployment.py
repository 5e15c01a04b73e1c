"""Real programs on loopback: TLS, keys, a database; and what happens when each of them dies.

One federation serves all tests of this file, in the order in which they stand: the story first, then the crashes, then
rows of those who stayed, and the leaver that comes back.
"""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

from feduhb.core.flat import flatten
from feduhb.core.types import Work
from feduhb.data.request import Request
from feduhb.engines import Loop
from feduhb.flower import key_id
from feduhb.records import RunFolder
from feduhb.run.checkpoint import load_params
from flower.deploying import (
    COMPLETED,
    CONNECTION,
    EPOCHS,
    LOCAL,
    FederationError,
    in_process,
    island,
    kill_serverapp,
    node_key,
    story,
)

LEAVER, STAYS, DIES = "hospital-c", "hospital-a", "hospital-b"
BACK = "hospital-d"  # the leaver, when it comes back under another name
ROWS = (*range(10), 12)  # of DIES
ROUNDS = 2
TIMEOUT = 30  # seconds a round waits for the dead


@pytest.fixture(scope="module")
def network():
    with island() as made:
        yield made


@pytest.fixture(scope="module")
def hospitals(network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    with story.deployed(folder, prefix=network.prefix if network else ()) as federation:
        yield federation


@pytest.fixture(scope="module")
def told(hospitals):
    """Train with three, forget one, audit."""
    return story.story(hospitals, LEAVER, ROUNDS)


def weights(hospitals, run):
    return load_params(RunFolder(hospitals.folder / "runs" / run).state_path)


def lines(hospitals, run):
    return RunFolder(hospitals.folder / "runs" / run).rounds_path.read_text().splitlines()


def names(hospitals, run):
    """Everybody whom a run saw, by client id."""
    return json.loads((hospitals.folder / "runs" / run / "names.json").read_text())


def one_round_done(hospitals, run):
    """Wait for a round and its checkpoint, which is written after the record: a kill between the two costs the round."""
    state = RunFolder(hospitals.folder / "runs" / run).state_path
    hospitals.poll(lambda: story.rounds_of(hospitals, run) and state.exists(), f"the first round of {run}")
    return lines(hospitals, run)[0]


@pytest.mark.usefixtures("told")
def test_training_asks_everyone_and_unlearning_all_but_the_leaver(hospitals):
    ids = story.ids_of(hospitals)
    for record in story.rounds_of(hospitals, "trained"):
        assert set(record.asked) == set(record.answered) == set(ids.values())
    unlearned = story.rounds_of(hospitals, "unlearned")
    assert [record.round for record in unlearned] == list(range(ROUNDS))
    for record in unlearned:
        assert set(record.asked) == set(record.answered) == {ids[STAYS], ids[DIES]}


def test_the_leavers_own_log_shows_no_training_message_while_it_stays_connected(hospitals, told):
    assert hospitals.programs[LEAVER].running
    assert hospitals.nodes()[LEAVER] == "online"
    kinds = {run: [] for run in (str(told.training), str(told.erasure))}
    for run, kind in story.messages(hospitals, LEAVER):
        kinds[run].append(kind)
    assert kinds[str(told.training)].count("train") == ROUNDS
    assert "train" not in kinds[str(told.erasure)]
    others = [kind for run, kind in story.messages(hospitals, STAYS) if run == str(told.erasure)]
    assert others.count("train") == ROUNDS


def test_the_leaver_was_told_and_its_cache_is_gone(hospitals, told):
    assert (str(told.erasure), "query") in [
        (run, kind.partition(".")[0]) for run, kind in story.messages(hospitals, LEAVER)
    ]
    caches = {name: (hospitals.folder / "data" / f"{name}.cache").exists() for name in hospitals.members}
    assert caches == {STAYS: True, DIES: True, LEAVER: False}


def test_the_deployed_models_are_those_of_the_loop_in_one_process(told):
    """The audit trains and unlearns again in process, with noise for the leaver's data and without it."""
    assert told.audit.exactness is not None
    for check in told.audit.exactness.checks:
        assert check.largest_difference <= 1e-5, check.says
    assert told.audit.accuracy["unlearned"].test > 0.85


def sent(hospitals, name):
    """A hospital's first update, in any run: all begin at the same weights."""
    ids = story.ids_of(hospitals)
    whole = story.audit.federation(hospitals.folder / "data", ids)
    (answer,) = Loop(whole, LOCAL).train(Work(flatten(whole.fresh_model()), EPOCHS), [ids[name]], 0)
    return answer.values[0].numpy().tobytes()[:64]


def copies(hospitals, some):
    """How often some bytes stand in the files of the SuperLink's database."""
    files = hospitals.database.parent.glob(f"{hospitals.database.name}*")
    return sum(file.read_bytes().count(some) for file in files)


@pytest.mark.usefixtures("told")
def test_after_the_erasure_nothing_that_the_leaver_sent_is_in_the_superlinks_database(hospitals):
    assert copies(hospitals, sent(hospitals, LEAVER)) == 0


@pytest.mark.usefixtures("told")
def test_a_second_erasure_brings_nobody_back_whom_the_first_one_took_away(hospitals):
    again = story.submit(
        hospitals, "unlearned-twice", rounds=1, forget=DIES, replaces="unlearned", **{"min-clients": 1}
    )
    hospitals.wait(again)
    (record,) = story.rounds_of(hospitals, "unlearned-twice")
    assert record.asked == record.answered == (story.ids_of(hospitals)[STAYS],)
    for name in (LEAVER, DIES):
        assert (str(again), "train") not in story.messages(hospitals, name)


@pytest.mark.usefixtures("told")
def test_a_key_that_was_not_registered_is_refused(hospitals, tmp_path):
    node_key(tmp_path / "stranger")
    stranger = hospitals.start_supernode("stranger", tmp_path / "stranger")
    assert stranger.process.wait(60) != 0
    assert "Exit Code: 305" in stranger.text()
    assert "Receiving" not in stranger.text()
    assert set(hospitals.nodes()) == set(hospitals.members)


@pytest.mark.usefixtures("told")
def test_a_serverapp_that_was_killed_goes_on_after_its_last_finished_round(hospitals):
    first = story.submit(hospitals, "killed", rounds=ROUNDS, forget=LEAVER)
    before = one_round_done(hospitals, "killed")
    kill_serverapp(hospitals.programs["superexec"].process.pid)
    assert len(lines(hospitals, "killed")) < ROUNDS
    second = story.submit(hospitals, "killed", rounds=ROUNDS, forget=LEAVER)
    hospitals.wait(second)
    assert first != second
    assert lines(hospitals, "killed")[0] == before
    assert [record.round for record in story.rounds_of(hospitals, "killed")] == list(range(ROUNDS))
    assert torch.equal(weights(hospitals, "killed"), weights(hospitals, "unlearned"))


def test_a_superlink_that_was_killed_comes_back_with_its_database_and_nothing_checkpointed_is_lost(
    hospitals, told
):
    """The run goes on: the ServerApp is no child of the SuperLink. Were it lost, it would be handed in again."""
    settings = {"rounds": ROUNDS, "forget": LEAVER, "timeout": TIMEOUT, "min-replies": 2}
    run = story.submit(hospitals, "cut", **settings)
    before = one_round_done(hospitals, "cut")
    hospitals.programs["superlink"].kill()
    hospitals.start_superlink()
    assert hospitals.status(told.erasure) == COMPLETED
    assert set(hospitals.nodes()) == set(hospitals.members)
    try:
        hospitals.wait(run)
    except FederationError:
        hospitals.wait(story.submit(hospitals, "cut", **settings))
    assert lines(hospitals, "cut")[0] == before
    assert torch.equal(weights(hospitals, "cut"), weights(hospitals, "unlearned"))


@pytest.mark.usefixtures("told")
def test_a_round_whose_supernode_was_killed_completes_with_the_others(hospitals):
    ids = story.ids_of(hospitals)
    run = story.submit(hospitals, "bereft", rounds=1, forget=LEAVER, timeout=TIMEOUT)
    asked = (str(run), "train")
    hospitals.poll(lambda: asked in story.messages(hospitals, DIES), f"{DIES} to be asked", DIES)
    hospitals.programs[DIES].kill()
    at_once = hospitals.start_supernode(DIES)
    assert at_once.process.wait(60) != 0
    assert "Exit Code: 305" in at_once.said()  # the SuperLink takes its old session for alive
    hospitals.wait(run)
    (record,) = story.rounds_of(hospitals, "bereft")
    assert set(record.asked) == {ids[STAYS], ids[DIES]}
    assert record.answered == (ids[STAYS],)
    assert weights(hospitals, "bereft").isfinite().all()


@pytest.mark.usefixtures("told")
def test_a_supervisor_that_tries_again_brings_a_killed_supernode_back(hospitals):
    hospitals.bring_back(DIES)
    assert hospitals.nodes()[DIES] == "online"


@pytest.mark.usefixtures("told")
def test_what_was_sent_stays_in_the_database_until_it_is_scrubbed(hospitals):
    """The control of the test above; and the SuperLink does not mind."""
    update = sent(hospitals, STAYS)
    assert copies(hospitals, update) > 0
    story.scrub(hospitals.database)
    assert copies(hospitals, update) == 0
    assert set(hospitals.nodes()) == set(hospitals.members)


def held(hospitals, name):
    """The keys of the rows that a hospital trains on, in the order of its own file."""
    return load_file(hospitals.folder / "data" / f"{name}.cache" / "examples.safetensors")["keys"].tolist()


def forgotten(hospitals, rows):
    """The leaver, and rows of another, as a request by client ids."""
    ids = story.ids_of(hospitals)
    return Request((ids[LEAVER],), {ids[DIES]: rows})


@pytest.fixture(scope="module")
def rowless(hospitals, told):  # noqa: ARG001
    """Some rows of a hospital are forgotten, after the leaver; give what both held before."""
    before = {name: held(hospitals, name) for name in (STAYS, DIES)}
    hospitals.wait(
        story.submit(hospitals, "rowless", rounds=1, forget=f"{DIES}:0-9+12", replaces="unlearned")
    )
    return before


def test_rows_that_are_forgotten_go_out_of_the_hospitals_own_data(hospitals, rowless):
    """They are named in its messages and in nobody else's; it goes on taking part with the rest."""
    (record,) = story.rounds_of(hospitals, "rowless")
    assert set(record.answered) == {story.ids_of(hospitals)[name] for name in (STAYS, DIES)}
    assert held(hospitals, DIES) == [key for key in rowless[DIES] if key not in ROWS]
    assert len(held(hospitals, DIES)) == len(rowless[DIES]) - len(ROWS)
    assert held(hospitals, STAYS) == rowless[STAYS]


@pytest.mark.usefixtures("rowless")
def test_the_model_without_these_rows_is_that_of_the_loop_which_never_had_them(hospitals):
    """To the last row: with one of them it is another."""
    found = weights(hospitals, "rowless")
    assert torch.equal(found, in_process(hospitals, forgotten(hospitals, ROWS), 1))
    assert not torch.equal(found, in_process(hospitals, forgotten(hospitals, ROWS[:-1]), 1))


@pytest.mark.usefixtures("rowless")
def test_a_key_that_was_unregistered_is_not_registered_again(hospitals):
    """So in a database that lasts nobody ever has a second node id."""
    (node,) = (node for node, name in hospitals.ids.items() if name == LEAVER)
    hospitals.flwr("supernode", "unregister", node, CONNECTION)
    with pytest.raises(FederationError, match="already in use"):
        hospitals.flwr("supernode", "register", f"{hospitals.key(LEAVER)}.pub", CONNECTION, "--name", BACK)


@pytest.fixture(scope="module")
def returned(hospitals, rowless):  # noqa: ARG001
    """The SuperLink begins with a new database and everybody is registered anew; give the node ids they had before.

    Nothing else in Flower 1.41 gives a known key another node id. The leaver's key comes back under another name, and a new
    key under the leaver's.
    """
    before = {name: node for node, name in hospitals.ids.items()}
    hospitals.stop()
    for file in hospitals.folder.glob(f"{hospitals.database.name}*"):
        file.unlink()
    for ending in ("", ".pub"):
        hospitals.key(f"{LEAVER}{ending}").rename(hospitals.key(f"{BACK}{ending}"))
    hospitals.members = {**hospitals.members, BACK: hospitals.members[LEAVER]}
    with hospitals:
        yield before


def test_a_leaver_that_comes_back_under_a_new_node_id_is_not_asked_nor_is_a_new_key_under_its_name(
    hospitals, returned
):
    """Both are connected and the run saw them; those who stayed have new node ids as well, and are asked."""
    ids = {name: key_id(hospitals.key(name).with_suffix(".pub")) for name in hospitals.members}
    assert ids[BACK] in story.rounds_of(hospitals, "trained")[0].asked
    now = {name: node for node, name in hospitals.ids.items()}
    assert now[BACK] != returned[LEAVER]
    assert all(now[name] != returned[name] for name in (STAYS, DIES))
    run = story.submit(hospitals, "returned", rounds=1, forget=f"{DIES}:20", replaces="rowless")
    hospitals.wait(run)
    (record,) = story.rounds_of(hospitals, "returned")
    assert set(record.asked) == set(record.answered) == {ids[STAYS], ids[DIES]}
    assert names(hospitals, "returned") == {client: name for name, client in ids.items()}
    states = hospitals.nodes()
    for name in (BACK, LEAVER):
        assert states[name] == "online"
        assert (str(run), "train") not in story.messages(hospitals, name)
    assert story.messages(hospitals, STAYS).count((str(run), "train")) == 1


@pytest.mark.usefixtures("returned")
def test_what_was_forgotten_before_the_return_stays_forgotten(hospitals):
    """Row 20 is the hospital's own key: at that place in what was left stood another."""
    wanted = in_process(hospitals, forgotten(hospitals, (*ROWS, 20)), 1)
    assert torch.equal(weights(hospitals, "returned"), wanted)
    assert not {*ROWS, 20} & {*held(hospitals, DIES)}
    assert not (hospitals.folder / "data" / f"{LEAVER}.cache").exists()


CONNECT = """
import contextlib, socket
with contextlib.suppress(OSError): socket.create_connection(("192.0.2.1", 443))
"""
LOOK_UP = """
import contextlib, socket
with contextlib.suppress(OSError): socket.getaddrinfo("api.flower.ai", 443)
"""


@pytest.mark.usefixtures("told")
def test_nobody_tried_to_leave_loopback(network):
    if network is None:
        why = "a network namespace needs root, unshare, nsenter and mount"
        pytest.fail(why) if os.environ.get("FEDUHB_CI") else pytest.skip(why)
    assert network.attempts() == 0
    for control in (CONNECT, LOOK_UP):
        before = network.attempts()
        network.run(control)
        assert network.attempts() > before
