"""Real programs on loopback: TLS, keys, a database; and what happens when each of them dies.

One federation serves all tests of this file, in the order in which they stand: the story first, then the crashes, then
rows of those who stayed, and the leaver that comes back.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

import story
from feduhb import Loop, Request, Work
from feduhb.core.flat import flatten
from flower.hospital_runs import (
    build_federation,
    client_ids,
    read_lines,
    read_rounds,
    read_weights,
    state_path,
    unlearn_in_process,
)
from forking import ForkServer
from hospitals.server import EPOCHS, LOCAL
from loopback import FederationError
from loopback.federation import COMPLETED, CONNECTION
from loopback.keys import make_node_key
from loopback.network import isolate_network
from loopback.processes import kill_serverapp

pytestmark = pytest.mark.deployment
LEAVER, STAYS, DIES = "hospital-c", "hospital-a", "hospital-b"
BACK = "hospital-d"  # the leaver, when it comes back under another name
ROWS = (*range(10), 12)  # of DIES
ROUNDS = 2
TIMEOUT = 30  # seconds a round waits for the dead


@pytest.fixture(scope="module")
def network():
    with isolate_network() as made:
        yield made


@pytest.fixture(scope="module")
def federation(network, tmp_path_factory):
    prepared = story.prepare(tmp_path_factory.mktemp("hospitals"))
    prepared.prefix = network.prefix if network else ()
    return prepared


@pytest.fixture(scope="module")
def server(federation):
    """A process in the federation's network that has imported torch and Flower."""
    modules = (
        "feduhb.flower",
        "hospitals.data",
        "torch._dynamo",  # every optimiser imports it
        *(f"flwr.{name}" for name in ("cli.app", "supercore.cli", "superlink.cli", "supernode.cli")),
        "flwr.supernode.main",  # a SuperNode imports it late
    )
    with ForkServer(*modules, prefix=federation.prefix, environment=federation.environment) as started:
        yield started


@pytest.fixture(scope="module")
def hospitals(federation, server):
    fork_programs(federation, server, federation.folder / "bin")
    with federation:
        yield federation


def fork_programs(federation, server, folder):
    """Fork all programs off the server, because they are many, but the SuperLink.

    After a kill the process that was forked lives for another moment, and the next SuperLink takes the same port.
    """
    federation.run_flwr = partial(server.run, "flwr.cli.app:app", cwd=federation.folder)
    server.write_program(folder / "flwr", "flwr.cli.app:app")  # for the streams of logs
    server.write_program(folder / "flower-superexec", "flwr.supercore.cli:flower_superexec")
    server.write_program(folder / "flower-supernode", "flwr.supernode.cli:flower_supernode")
    server.write_program(folder / "flwr-clientapp", "flwr.supernode.cli:flwr_clientapp")
    server.write_program(folder / "flwr-serverapp", "flwr.superlink.cli:flwr_serverapp")
    federation.environment["PATH"] = f"{folder}{os.pathsep}{federation.environment['PATH']}"


@pytest.fixture(scope="module")
def told(hospitals):
    """Train with three, forget one, audit."""
    training, erasure, audit = story.play(hospitals, LEAVER, ROUNDS)
    return SimpleNamespace(training=training, erasure=erasure, audit=audit)


def read_names(hospitals, run):
    """Return the names of all clients that a run saw, by client id."""
    return json.loads((hospitals.folder / "runs" / run / "names.json").read_text())


def wait_for_first_round(hospitals, run):
    """Wait for a round and its checkpoint, which is written after the record, and return the record's line.

    A kill between the two would cost the round.
    """
    state = state_path(hospitals, run)
    hospitals.wait_until(lambda: read_lines(hospitals, run) and state.exists(), f"the first round of {run}")
    return read_lines(hospitals, run)[0]


@pytest.mark.usefixtures("told")
def test_training_and_unlearning_have_seeds_of_their_own(hospitals):
    seeds = {run: build_federation(hospitals, run).seed for run in ("trained", "unlearned")}
    assert len({*seeds.values()}) == 2


@pytest.mark.usefixtures("told")
def test_training_asks_everyone_and_unlearning_all_but_the_leaver(hospitals):
    ids = client_ids(hospitals)
    for record in read_rounds(hospitals, "trained"):
        assert set(record.asked) == set(record.answered) == set(ids.values())
    unlearned = read_rounds(hospitals, "unlearned")
    assert [record.round for record in unlearned] == list(range(ROUNDS))
    for record in unlearned:
        assert set(record.asked) == set(record.answered) == {ids[STAYS], ids[DIES]}


def test_the_leavers_own_log_shows_no_training_message_while_it_stays_connected(hospitals, told):
    assert hospitals.programs[LEAVER].is_running
    assert hospitals.read_node_states()[LEAVER] == "online"
    assert hospitals.list_messages(LEAVER, told.training).count("train") == ROUNDS
    assert "train" not in hospitals.list_messages(LEAVER, told.erasure)
    assert hospitals.list_messages(STAYS, told.erasure).count("train") == ROUNDS


def test_the_leaver_received_the_message_and_deleted_its_cache(hospitals, told):
    assert "query" in [kind.partition(".")[0] for kind in hospitals.list_messages(LEAVER, told.erasure)]
    caches = {name: (hospitals.folder / "data" / f"{name}.cache").exists() for name in hospitals.members}
    assert caches == {STAYS: True, DIES: True, LEAVER: False}


def test_the_deployed_models_are_those_of_the_loop_in_one_process(told):
    """The audit trains and unlearns again in process, with noise for the leaver's data and without it."""
    assert told.audit.exactness is not None
    for check in told.audit.exactness.checks:
        assert check.largest_difference <= 1e-5, check.says
    assert told.audit.accuracy["unlearned"].test > 0.75  # its seed is another in every test


def compute_first_update(hospitals, run, name):
    """Return the first bytes of a hospital's first update in a run."""
    whole, client = build_federation(hospitals, run), hospitals.client_id(name)
    (answer,) = Loop(whole, LOCAL).train(Work(flatten(whole.fresh_model()), EPOCHS), [client], 0)
    return answer.values[0].numpy().tobytes()[:64]


def count_copies(hospitals, some):
    """Return how often some bytes occur in the files of the SuperLink's database."""
    files = hospitals.database.parent.glob(f"{hospitals.database.name}*")
    return sum(file.read_bytes().count(some) for file in files)


@pytest.mark.usefixtures("told")
def test_after_the_erasure_nothing_that_the_leaver_sent_is_in_the_superlinks_database(hospitals):
    assert count_copies(hospitals, compute_first_update(hospitals, "trained", LEAVER)) == 0


@pytest.mark.usefixtures("told")
def test_a_second_erasure_does_not_bring_the_first_leaver_back(hospitals):
    again = story.submit(
        hospitals, "unlearned-twice", rounds=1, forget=DIES, replaces="unlearned", **{"min-clients": 1}
    )
    hospitals.wait_for_run(again)
    (record,) = read_rounds(hospitals, "unlearned-twice")
    assert record.asked == record.answered == (client_ids(hospitals)[STAYS],)
    for name in (LEAVER, DIES):
        assert "train" not in hospitals.list_messages(name, again)
    shutil.rmtree(hospitals.folder / "runs" / "unlearned-twice")  # the next requests would bring DIES back


@pytest.mark.usefixtures("told")
def test_a_key_that_was_not_registered_is_refused(hospitals, tmp_path):
    make_node_key(tmp_path / "stranger")
    stranger = hospitals.start_supernode("stranger", tmp_path / "stranger")
    assert stranger.process.wait(60) != 0
    assert "Exit Code: 305" in stranger.read_whole_log()
    assert "Receiving" not in stranger.read_whole_log()
    assert set(hospitals.read_node_states()) == set(hospitals.members)


@pytest.mark.usefixtures("told")
def test_a_serverapp_that_was_killed_goes_on_after_its_last_finished_round(hospitals, server):
    first = story.submit(hospitals, "killed", rounds=ROUNDS, forget=LEAVER)
    before = wait_for_first_round(hospitals, "killed")
    kill_serverapp(server.process.pid)
    assert len(read_lines(hospitals, "killed")) < ROUNDS
    second = story.submit(hospitals, "killed", rounds=ROUNDS, forget=LEAVER)
    hospitals.wait_for_run(second)
    assert first != second
    assert read_lines(hospitals, "killed")[0] == before
    assert [record.round for record in read_rounds(hospitals, "killed")] == list(range(ROUNDS))
    wanted = unlearn_in_process(hospitals, "killed", request_rows(hospitals, ()), ROUNDS)
    assert torch.equal(read_weights(hospitals, "killed"), wanted)


def test_a_superlink_that_was_killed_comes_back_with_its_database_and_nothing_checkpointed_is_lost(
    hospitals, told
):
    """The run continues, because the ServerApp is not a child of the SuperLink. If it is lost, it is submitted again."""
    settings = {"rounds": ROUNDS, "forget": LEAVER, "timeout": TIMEOUT, "min-replies": 2}
    run = story.submit(hospitals, "cut", **settings)
    before = wait_for_first_round(hospitals, "cut")
    hospitals.programs["superlink"].kill()
    hospitals.start_superlink()
    assert hospitals.read_status(told.erasure) == COMPLETED
    assert set(hospitals.read_node_states()) == set(hospitals.members)
    try:
        hospitals.wait_for_run(run)
    except FederationError:
        hospitals.wait_for_run(story.submit(hospitals, "cut", **settings))
    assert read_lines(hospitals, "cut")[0] == before
    wanted = unlearn_in_process(hospitals, "cut", request_rows(hospitals, ()), ROUNDS)
    assert torch.equal(read_weights(hospitals, "cut"), wanted)


@pytest.mark.usefixtures("told")
def test_a_round_whose_supernode_was_killed_completes_with_the_others(hospitals):
    ids = client_ids(hospitals)
    run = story.submit(hospitals, "bereft", rounds=1, forget=LEAVER, timeout=TIMEOUT)
    hospitals.wait_until(lambda: "train" in hospitals.list_messages(DIES, run), f"{DIES} to be asked", DIES)
    hospitals.programs[DIES].kill()
    at_once = hospitals.start_supernode(DIES)
    assert at_once.process.wait(60) != 0
    assert "Exit Code: 305" in at_once.read_log()  # the SuperLink believes its old session to be alive
    hospitals.wait_for_run(run)
    (record,) = read_rounds(hospitals, "bereft")
    assert set(record.asked) == {ids[STAYS], ids[DIES]}
    assert record.answered == (ids[STAYS],)
    assert read_weights(hospitals, "bereft").isfinite().all()


@pytest.mark.usefixtures("told")
def test_a_supervisor_that_tries_again_brings_a_killed_supernode_back(hospitals):
    hospitals.restart_supernode(DIES)
    assert hospitals.read_node_states()[DIES] == "online"


@pytest.mark.usefixtures("told")
def test_what_was_sent_stays_in_the_database_until_it_is_scrubbed(hospitals):
    """The control of the test above; and the SuperLink does not mind."""
    update = compute_first_update(hospitals, "bereft", STAYS)
    assert count_copies(hospitals, update) > 0
    hospitals.scrub_database()
    assert count_copies(hospitals, update) == 0
    assert set(hospitals.read_node_states()) == set(hospitals.members)


def read_row_keys(hospitals, name):
    """Return the keys of the rows that a hospital trains on, in the order of its own file."""
    return load_file(hospitals.folder / "data" / f"{name}.cache" / "examples.safetensors")["keys"].tolist()


def request_rows(hospitals, rows):
    """Return a request, by client ids, for the leaver and for rows of another hospital."""
    ids = client_ids(hospitals)
    return Request((ids[LEAVER],), {ids[DIES]: rows} if rows else {})


@pytest.fixture(scope="module")
def rowless(hospitals, told):  # noqa: ARG001
    """Some rows of a hospital are forgotten, after the leaver; return what both held before."""
    before = {name: read_row_keys(hospitals, name) for name in (STAYS, DIES)}
    hospitals.wait_for_run(
        story.submit(hospitals, "rowless", rounds=1, forget=f"{DIES}:0-9+12", replaces="unlearned")
    )
    return before


def test_rows_that_are_forgotten_go_out_of_the_hospitals_own_data(hospitals, rowless):
    """Only its own messages name the rows, and it continues to take part with the others."""
    (record,) = read_rounds(hospitals, "rowless")
    assert set(record.answered) == {client_ids(hospitals)[name] for name in (STAYS, DIES)}
    assert read_row_keys(hospitals, DIES) == [key for key in rowless[DIES] if key not in ROWS]
    assert len(read_row_keys(hospitals, DIES)) == len(rowless[DIES]) - len(ROWS)
    assert read_row_keys(hospitals, STAYS) == rowless[STAYS]


@pytest.mark.usefixtures("rowless")
def test_the_model_without_these_rows_is_that_of_the_loop_which_never_had_them(hospitals):
    """To the last row: with one of them it is another."""
    found = read_weights(hospitals, "rowless")
    for rows, is_alike in ((ROWS, True), (ROWS[:-1], False)):
        wanted = unlearn_in_process(hospitals, "rowless", request_rows(hospitals, rows), 1)
        assert torch.equal(found, wanted) is is_alike


@pytest.mark.usefixtures("rowless")
def test_a_key_that_was_unregistered_is_not_registered_again(hospitals):
    """In a persistent database no client ever has a second node id."""
    (node,) = (node for node, name in hospitals.names.items() if name == LEAVER)
    hospitals.call_flwr("supernode", "unregister", node, CONNECTION)
    with pytest.raises(FederationError, match="already in use"):
        hospitals.call_flwr(
            "supernode", "register", f"{hospitals.key_path(LEAVER)}.pub", CONNECTION, "--name", BACK
        )


@pytest.fixture(scope="module")
def returned(hospitals, rowless):  # noqa: ARG001
    """The SuperLink begins with a new database and all clients are registered again; yield the node ids they had before.

    Nothing else in Flower 1.41 gives a known key another node id. The leaver's key comes back under another name, and a new
    key under the leaver's.
    """
    before = {name: node for node, name in hospitals.names.items()}
    hospitals.stop()
    for file in hospitals.folder.glob(f"{hospitals.database.name}*"):
        file.unlink()
    for ending in ("", ".pub"):
        hospitals.key_path(f"{LEAVER}{ending}").rename(hospitals.key_path(f"{BACK}{ending}"))
    hospitals.members = {**hospitals.members, BACK: hospitals.members[LEAVER]}
    with hospitals:
        yield before


def test_a_leaver_that_comes_back_under_a_new_node_id_is_not_asked_nor_is_a_new_key_under_its_name(
    hospitals, returned
):
    """Both are connected and the run saw them. The remaining clients also have new node ids, and are asked."""
    ids = {name: hospitals.client_id(name) for name in hospitals.members}
    assert ids[BACK] in read_rounds(hospitals, "trained")[0].asked
    now = {name: node for node, name in hospitals.names.items()}
    assert now[BACK] != returned[LEAVER]
    assert all(now[name] != returned[name] for name in (STAYS, DIES))
    run = story.submit(hospitals, "returned", rounds=1, forget=f"{DIES}:20", replaces="rowless")
    hospitals.wait_for_run(run)
    (record,) = read_rounds(hospitals, "returned")
    assert set(record.asked) == set(record.answered) == {ids[STAYS], ids[DIES]}
    assert read_names(hospitals, "returned") == {client: name for name, client in ids.items()}
    states = hospitals.read_node_states()
    for name in (BACK, LEAVER):
        assert states[name] == "online"
        assert "train" not in hospitals.list_messages(name, run)
    assert hospitals.list_messages(STAYS, run).count("train") == 1


@pytest.mark.usefixtures("returned")
def test_what_was_forgotten_before_the_return_stays_forgotten(hospitals):
    """Row 20 is the hospital's own key: at that place in what was left stood another."""
    wanted = unlearn_in_process(hospitals, "returned", request_rows(hospitals, (*ROWS, 20)), 1)
    assert torch.equal(read_weights(hospitals, "returned"), wanted)
    assert not {*ROWS, 20} & {*read_row_keys(hospitals, DIES)}
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
def test_no_program_tried_to_leave_loopback(network):
    if network is None:
        why = "a network namespace needs root, unshare, nsenter and mount"
        pytest.fail(why) if os.environ.get("FEDUHB_CI") else pytest.skip(why)
    assert network.count_attempts() == 0
    for control in (CONNECT, LOOK_UP):
        before = network.count_attempts()
        network.run(control)
        assert network.count_attempts() > before
