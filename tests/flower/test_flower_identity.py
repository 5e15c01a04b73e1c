"""A client is identified by its key, or in simulation by its partition, never by its node id."""

import re
import shutil
import subprocess

import pytest
import torch
from flwr.clientapp import ClientApp

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.errors import AnswerError, ConfigError, DataError, RequestError
from flower.gridding import Seat, make_grid, make_key

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()


def draw_start():
    return flower.fresh_arrays(FEDERATION.model, FEDERATION.seed)


def make_strategy(forget, **more):
    settings = {"epochs": 1, "stop": feduhb.never, "seed": 7, "local": LOCAL, "timeout": 0.6, **more}
    return flower.FedUHB(forget, **settings)


def list_ids(grid):
    return {seat.name: flower.key_id(seat.key) for seat in grid.seats.values()}


def test_a_key_has_one_id_in_every_format(tmp_path):
    if not shutil.which("ssh-keygen"):
        pytest.skip("there is no ssh-keygen here")
    path = tmp_path / "node"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", path], check=True)
    public = path.with_suffix(".pub")
    pem = subprocess.run(
        ["ssh-keygen", "-e", "-m", "pkcs8", "-f", public], check=True, capture_output=True
    ).stdout
    assert (
        flower.key_id(public)
        == flower.key_id(str(public))
        == flower.key_id(public.read_bytes())
        == flower.key_id(pem)
    )
    assert flower.key_id(public).startswith("key-")
    assert len(flower.key_id(public)) == 36


def test_two_keys_have_two_ids_that_requests_can_contain():
    a, b = flower.key_id(make_key()), flower.key_id(make_key())
    assert a != b
    assert feduhb.Request.parse(f"{a},{b}:0-3").clients == (a,)


@pytest.mark.parametrize(
    "nonsense", [b"", b"hello", b"-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----", b"ssh-rsa AAAA"]
)
def test_bytes_that_are_not_a_key_are_refused(nonsense):
    with pytest.raises(
        ConfigError, match=r"this is not a public key; pass the \.pub file that ssh-keygen wrote"
    ):
        flower.key_id(nonsense)


def test_a_key_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"the public key .*gone.pub cannot be read: No such file"):
        flower.key_id(tmp_path / "gone.pub")


def test_in_deployment_clients_are_identified_by_keys_alone():
    grid = make_grid(FEDERATION, keyed=True)
    outcome = make_strategy(["bee"]).start(grid, draw_start(), 2)
    assert set(outcome.rounds[0].asked) == {key for name, key in list_ids(grid).items() if name != "bee"}
    assert {kind for _, kind, _ in grid.sent} == {"train", "query.feduhb_leave"}
    assert outcome.names == {key: name for name, key in list_ids(grid).items()}
    assert 101 not in grid.list_trained()


def test_the_log_uses_registered_names(caplog):
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[104].app = lambda *_: None
    with caplog.at_level("INFO", logger="flwr.feduhb"):
        make_strategy("bee").start(grid, draw_start(), 1)
    told = [record.getMessage() for record in caplog.records]
    elk = list_ids(grid)["elk"]
    assert f"round 1: elk ({elk}) is left out: no answer within 0.6 s; look at its SuperNode's log" in told
    (line,) = (line for line in told if line.startswith("round 1 of 1: 3 of 4 answered ("))
    assert set(line.partition("(")[2].partition(")")[0].split(", ")) == {"ant", "cat", "dog"}


@pytest.mark.parametrize("spelled", ["name", "id"])
def test_a_leaver_may_be_named_by_its_registered_name_or_its_key(spelled):
    grid = make_grid(FEDERATION, keyed=True)
    forget = "bee" if spelled == "name" else list_ids(grid)["bee"]
    make_strategy(forget).start(grid, draw_start(), 1)
    assert grid.list_trained() == {100, 102, 103, 104}


def test_a_leaver_that_comes_back_under_a_new_node_id_is_not_asked():
    grid = make_grid(FEDERATION, keyed=True)

    def restarted(message):
        if 101 in grid.seats and message.metadata.message_type == "train":
            grid.seats[555] = grid.seats.pop(101)

    grid.before = restarted
    outcome = make_strategy("bee").start(grid, draw_start(), 3)
    assert 555 in grid.seats
    assert grid.list_trained() == {100, 102, 103, 104}
    assert len(outcome.rounds) == 3


def test_a_leaver_that_registers_another_key_under_its_name_is_not_asked_either():
    grid = make_grid(FEDERATION, keyed=True)

    def renewed(message):
        if 101 in grid.seats and message.metadata.message_type == "train":
            grid.seats[555] = Seat(grid.seats.pop(101).app, {}, make_key(), "bee")

    grid.before = renewed
    make_strategy("bee").start(grid, draw_start(), 3)
    assert grid.list_trained() == {100, 102, 103, 104}


def test_the_partition_of_a_node_with_a_key_is_ignored():
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[101].config["partition-id"] = 0  # the leaver claims to be another client
    grid.seats[101].name = ""
    make_strategy(flower.key_id(grid.seats[101].key)).start(grid, draw_start(), 1)
    assert grid.list_trained() == {100, 102, 103, 104}


def test_a_node_without_a_key_among_those_with_one_takes_no_part():
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[104].key = b"something else"
    outcome = make_strategy("bee").start(grid, draw_start(), 1)
    assert grid.list_trained() == {100, 102, 103}
    assert len(outcome.rounds[0].asked) == 3


def test_a_remaining_client_that_restarts_is_missed_for_a_round_and_is_still_itself():
    grid = make_grid(FEDERATION, keyed=True)
    elk = list_ids(grid)["elk"]

    def restarted(message):
        if 104 in grid.seats and message.metadata.message_type == "train":
            grid.seats[777] = grid.seats.pop(104)

    grid.before = restarted
    outcome = make_strategy("bee").start(grid, draw_start(), 3)
    assert outcome.left_out == {0: {elk: "the message could not be delivered"}}
    assert [elk in record.answered for record in outcome.rounds] == [False, True, True]


def test_an_unknown_name_is_refused_with_the_known_ones():
    grid = make_grid(FEDERATION, keyed=True)
    with pytest.raises(
        RequestError, match=r"there is no client 'bea' to forget; connected: .*ant \(key-[0-9a-f]{32}\)"
    ):
        make_strategy("bea").start(grid, draw_start(), 1)
    assert grid.sent == []


def test_a_name_of_two_clients_is_refused():
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[100].name = "bee"
    with pytest.raises(
        RequestError, match=r"2 clients are registered as 'bee': key-.*; name the one to forget by its key"
    ):
        make_strategy("bee").start(grid, draw_start(), 1)


def test_a_leaver_that_is_not_connected_is_named_by_its_key_and_kept_out_when_it_comes():
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[101].online = False
    with pytest.raises(RequestError, match=r"Name a client that is not connected by its key"):
        make_strategy("bee").start(grid, draw_start(), 1)

    def arrives(_):
        grid.seats[101].online = True

    grid.before = arrives
    make_strategy(list_ids(grid)["bee"]).start(grid, draw_start(), 2)
    assert grid.list_trained() == {100, 102, 103, 104}


def test_the_training_remembers_the_names_of_those_who_are_away(tmp_path):
    grid = make_grid(FEDERATION, keyed=True)
    first = tmp_path / "first"
    flower.Train(epochs=1, seed=7, local=LOCAL, timeout=5, checkpoint=first).start(grid, draw_start(), 1)
    grid.seats[101].online = False
    outcome = make_strategy("bee", trained=first).start(grid, draw_start(), 1)
    assert list_ids(grid)["bee"] not in outcome.rounds[0].asked


def test_a_newcomer_takes_part_from_the_next_round_on():
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[104].online = False

    def arrives(message):
        grid.seats[104].online |= message.metadata.message_type == "train"

    grid.before = arrives
    outcome = make_strategy("bee").start(grid, draw_start(), 2)
    assert [len(record.asked) for record in outcome.rounds] == [3, 4]


def test_in_simulation_each_is_asked_once_which_partition_it_holds():
    grid = make_grid(FEDERATION)
    outcome = make_strategy("c01").start(grid, draw_start(), 3)
    assert [node for node, kind, _ in grid.sent if kind == "query.feduhb_who"] == [100, 101, 102, 103, 104]
    assert outcome.rounds[0].asked == ("c00", "c02", "c03", "c04")


def test_a_simulation_waits_for_all_clients(monkeypatch):
    grid, looks = make_grid(FEDERATION), []

    def nodes():
        looks.append(1)
        return [100, 101, 102, 103, 104] if len(looks) > 7 else [100, 101]

    monkeypatch.setattr(grid, "get_node_ids", nodes)
    assert len(make_strategy("c01", timeout=5).start(grid, draw_start(), 1).rounds[0].asked) == 4


def test_too_few_clients_after_the_timeout_is_an_error():
    grid = make_grid(FEDERATION, keyed=True)
    with pytest.raises(
        AnswerError,
        match=r"4 remaining clients are connected after 0.6 s, but 5 are needed \(.*\); start the others",
    ):
        make_strategy("bee", min_clients=5).start(grid, draw_start(), 1)


def test_a_request_for_all_clients_is_refused():
    with pytest.raises(RequestError, match="no client would remain to train on"):
        make_strategy(["c00", "c01", "c02", "c03", "c04"]).start(make_grid(FEDERATION), draw_start(), 1)


def test_wrong_partitions_are_refused():
    with pytest.raises(ConfigError, match="3 partitions are named, but there are 5; name each of them"):
        make_strategy("a", partitions=("a", "b", "c")).start(make_grid(FEDERATION), draw_start(), 1)
    grid = make_grid(FEDERATION)
    grid.seats[104].config["partition-id"] = 9
    with pytest.raises(AnswerError, match="a node reports partition 9 of 5"):
        make_strategy("c01").start(grid, draw_start(), 1)
    grid.seats[104].config["partition-id"] = 3
    with pytest.raises(AnswerError, match="two nodes hold the same partition"):
        make_strategy("c01").start(grid, draw_start(), 1)


@pytest.mark.parametrize("name", ["site:1", "a,b", "a+b", "class", " a", "", "a\nb", 3])
def test_names_that_a_request_cannot_contain_are_refused_before_any_message(name):
    grid = make_grid(FEDERATION)
    with pytest.raises(DataError, match=f"{re.escape(repr(name))} cannot be a client's id"):
        make_strategy("b", partitions=("b", name, "c", "d", "e")).start(grid, draw_start(), 1)
    assert grid.sent == []


def test_partitions_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two partitions are named 'b'; give each a different name"):
        make_strategy("a", partitions=("a", "b", "c", "b", "e")).start(make_grid(FEDERATION), draw_start(), 1)


def test_an_app_without_the_query_causes_an_error_that_names_the_remedy():
    grid = make_grid(FEDERATION, apps={"bee": ClientApp()})
    with pytest.raises(
        AnswerError, match=r"add the report to your own app: app = feduhb.flower.introduced\(app\)"
    ):
        make_strategy("c01").start(grid, draw_start(), 1)
    grid = make_grid(FEDERATION, apps={"bee": flower.introduced(ClientApp())})
    assert len(make_strategy("c01").start(grid, draw_start(), 1).rounds) == 1


def test_leaving_deletes_nothing_of_the_remaining_clients(tmp_path):
    grid = make_grid(FEDERATION, cache=tmp_path)
    flower.Train(epochs=1, seed=7, local=LOCAL, timeout=5).start(grid, draw_start(), 1)
    assert {path.name for path in tmp_path.iterdir()} == {f"partition-{i}" for i in range(5)}
    make_strategy(["c01"]).start(grid, draw_start(), 1)
    assert {path.name for path in tmp_path.iterdir()} == {
        "partition-0",
        "partition-2",
        "partition-3",
        "partition-4",
    }


def test_tell_leavers_can_be_switched_off(tmp_path):
    grid = make_grid(FEDERATION, cache=tmp_path)
    flower.Train(epochs=1, seed=7, local=LOCAL, timeout=5).start(grid, draw_start(), 1)
    make_strategy(["c01"], tell_leavers=False).start(grid, draw_start(), 1)
    assert (tmp_path / "partition-1" / "examples.safetensors").exists()
    assert "query.feduhb_leave" not in {kind for _, kind, _ in grid.sent}


def test_a_leaver_does_not_change_the_draws_of_others():
    """The model without a client is the same whether it was ever there."""
    with_it = make_strategy("c04").start(make_grid(FEDERATION), draw_start(), 2)
    smaller = FEDERATION.without(["elk"])
    never_there = flower.Train(epochs=1, seed=7, local=LOCAL, timeout=5).start(
        make_grid(smaller), draw_start(), 1
    )
    assert torch.equal(
        with_it.params, make_strategy("c04").start(make_grid(FEDERATION), draw_start(), 2).params
    )
    assert never_there.rounds[0].moved == with_it.rounds[0].moved
