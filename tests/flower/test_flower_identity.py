"""A client is its key, or in simulation its partition; a node id is nobody."""

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
from flower.gridding import Seat, new_key, staged

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()


def start():
    return flower.fresh_arrays(FEDERATION.model, FEDERATION.seed)


def strategy(forget, **more):
    settings = {"epochs": 1, "stop": feduhb.never, "seed": 7, "local": LOCAL, "timeout": 0.6, **more}
    return flower.FedUHB(forget, **settings)


def ids(grid):
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


def test_two_keys_have_two_ids_and_requests_can_spell_them():
    a, b = flower.key_id(new_key()), flower.key_id(new_key())
    assert a != b
    assert feduhb.Request.parse(f"{a},{b}:0-3").clients == (a,)


@pytest.mark.parametrize(
    "nonsense", [b"", b"hello", b"-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----", b"ssh-rsa AAAA"]
)
def test_what_is_no_key_is_refused(nonsense):
    with pytest.raises(
        ConfigError, match=r"this is not a public key; give the \.pub file that ssh-keygen wrote"
    ):
        flower.key_id(nonsense)


def test_a_key_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"the public key .*gone.pub cannot be read: No such file"):
        flower.key_id(tmp_path / "gone.pub")


def test_in_deployment_clients_are_keys_and_nobody_is_asked_who_it_is():
    grid = staged(FEDERATION, keyed=True)
    outcome = strategy(["bee"]).start(grid, start(), 2)
    assert set(outcome.rounds[0].asked) == {key for name, key in ids(grid).items() if name != "bee"}
    assert {kind for _, kind, _ in grid.sent} == {"train", "query.feduhb_leave"}
    assert outcome.names == {key: name for name, key in ids(grid).items()}
    assert 101 not in grid.trained()


def test_the_log_speaks_of_registered_names(caplog):
    grid = staged(FEDERATION, keyed=True)
    grid.seats[104].app = lambda *_: None
    with caplog.at_level("INFO", logger="flwr.feduhb"):
        strategy("bee").start(grid, start(), 1)
    told = [record.getMessage() for record in caplog.records]
    elk = ids(grid)["elk"]
    assert f"round 1: elk ({elk}) is left out: no answer within 0.6 s" in told
    (line,) = (line for line in told if line.startswith("round 1 of 1: 3 of 4 answered ("))
    assert set(line.partition("(")[2].partition(")")[0].split(", ")) == {"ant", "cat", "dog"}


@pytest.mark.parametrize("spelled", ["name", "id"])
def test_a_leaver_may_be_named_by_its_registered_name_or_its_key(spelled):
    grid = staged(FEDERATION, keyed=True)
    forget = "bee" if spelled == "name" else ids(grid)["bee"]
    strategy(forget).start(grid, start(), 1)
    assert grid.trained() == {100, 102, 103, 104}


def test_a_leaver_that_comes_back_under_a_new_node_id_is_not_asked():
    grid = staged(FEDERATION, keyed=True)

    def restarted(message):
        if 101 in grid.seats and message.metadata.message_type == "train":
            grid.seats[555] = grid.seats.pop(101)

    grid.before = restarted
    outcome = strategy("bee").start(grid, start(), 3)
    assert 555 in grid.seats
    assert grid.trained() == {100, 102, 103, 104}
    assert len(outcome.rounds) == 3


def test_a_leaver_that_registers_another_key_under_its_name_is_not_asked_either():
    grid = staged(FEDERATION, keyed=True)

    def renewed(message):
        if 101 in grid.seats and message.metadata.message_type == "train":
            grid.seats[555] = Seat(grid.seats.pop(101).app, {}, new_key(), "bee")

    grid.before = renewed
    strategy("bee").start(grid, start(), 3)
    assert grid.trained() == {100, 102, 103, 104}


def test_what_a_node_says_of_itself_counts_for_nothing_where_it_has_a_key():
    grid = staged(FEDERATION, keyed=True)
    grid.seats[101].config["partition-id"] = 0  # the leaver says that it is another
    grid.seats[101].name = ""
    strategy(flower.key_id(grid.seats[101].key)).start(grid, start(), 1)
    assert grid.trained() == {100, 102, 103, 104}


def test_a_node_without_a_key_among_those_with_one_takes_no_part():
    grid = staged(FEDERATION, keyed=True)
    grid.seats[104].key = b"something else"
    outcome = strategy("bee").start(grid, start(), 1)
    assert grid.trained() == {100, 102, 103}
    assert len(outcome.rounds[0].asked) == 3


def test_a_remaining_client_that_restarts_is_missed_for_a_round_and_is_still_itself():
    grid = staged(FEDERATION, keyed=True)
    elk = ids(grid)["elk"]

    def restarted(message):
        if 104 in grid.seats and message.metadata.message_type == "train":
            grid.seats[777] = grid.seats.pop(104)

    grid.before = restarted
    outcome = strategy("bee").start(grid, start(), 3)
    assert outcome.left_out == {0: {elk: "the message could not be delivered"}}
    assert [elk in record.answered for record in outcome.rounds] == [False, True, True]


def test_names_that_nobody_has_are_refused_with_those_there_are():
    grid = staged(FEDERATION, keyed=True)
    with pytest.raises(
        RequestError, match=r"there is no client 'bea' to forget; connected: .*ant \(key-[0-9a-f]{32}\)"
    ):
        strategy("bea").start(grid, start(), 1)
    assert grid.sent == []


def test_a_name_that_two_have_is_refused():
    grid = staged(FEDERATION, keyed=True)
    grid.seats[100].name = "bee"
    with pytest.raises(RequestError, match=r"2 clients are registered as 'bee': key-.*; name one by its key"):
        strategy("bee").start(grid, start(), 1)


def test_a_leaver_that_is_not_connected_is_named_by_its_key_and_kept_out_when_it_comes():
    grid = staged(FEDERATION, keyed=True)
    grid.seats[101].online = False
    with pytest.raises(RequestError, match=r"One that is not connected is named by its key"):
        strategy("bee").start(grid, start(), 1)

    def arrives(_):
        grid.seats[101].online = True

    grid.before = arrives
    strategy(ids(grid)["bee"]).start(grid, start(), 2)
    assert grid.trained() == {100, 102, 103, 104}


def test_the_training_remembers_the_names_of_those_who_are_away(tmp_path):
    grid = staged(FEDERATION, keyed=True)
    first = tmp_path / "first"
    flower.Train(epochs=1, seed=7, local=LOCAL, timeout=5, checkpoint=first).start(grid, start(), 1)
    grid.seats[101].online = False
    outcome = strategy("bee", trained=first).start(grid, start(), 1)
    assert ids(grid)["bee"] not in outcome.rounds[0].asked


def test_a_newcomer_takes_part_from_the_next_round_on():
    grid = staged(FEDERATION, keyed=True)
    grid.seats[104].online = False

    def arrives(message):
        grid.seats[104].online |= message.metadata.message_type == "train"

    grid.before = arrives
    outcome = strategy("bee").start(grid, start(), 2)
    assert [len(record.asked) for record in outcome.rounds] == [3, 4]


def test_in_simulation_each_is_asked_once_which_partition_it_holds():
    grid = staged(FEDERATION)
    outcome = strategy("c01").start(grid, start(), 3)
    assert [node for node, kind, _ in grid.sent if kind == "query.feduhb_who"] == [100, 101, 102, 103, 104]
    assert outcome.rounds[0].asked == ("c00", "c02", "c03", "c04")


def test_in_simulation_everyone_is_waited_for(monkeypatch):
    grid, looks = staged(FEDERATION), []

    def nodes():
        looks.append(1)
        return [100, 101, 102, 103, 104] if len(looks) > 7 else [100, 101]

    monkeypatch.setattr(grid, "get_node_ids", nodes)
    assert len(strategy("c01", timeout=5).start(grid, start(), 1).rounds[0].asked) == 4


def test_whoever_is_still_missing_after_the_timeout_is_an_error():
    grid = staged(FEDERATION, keyed=True)
    with pytest.raises(
        AnswerError,
        match=r"4 clients who take part are connected after 0.6 s, but 5 are needed \(.*\); start the others",
    ):
        strategy("bee", min_clients=5).start(grid, start(), 1)


def test_nobody_would_remain():
    with pytest.raises(RequestError, match="nobody would remain to retrain on"):
        strategy(["c00", "c01", "c02", "c03", "c04"]).start(staged(FEDERATION), start(), 1)


def test_partitions_that_cannot_be():
    with pytest.raises(ConfigError, match="3 partitions are named, but there are 5; name each"):
        strategy("a", partitions=("a", "b", "c")).start(staged(FEDERATION), start(), 1)
    grid = staged(FEDERATION)
    grid.seats[104].config["partition-id"] = 9
    with pytest.raises(AnswerError, match="a node says that it holds partition 9 of 5"):
        strategy("c01").start(grid, start(), 1)
    grid.seats[104].config["partition-id"] = 3
    with pytest.raises(AnswerError, match="two nodes say that they hold the same partition"):
        strategy("c01").start(grid, start(), 1)


@pytest.mark.parametrize("name", ["site:1", "a,b", "a+b", "class", " a", "", "a\nb", 3])
def test_partitions_that_no_request_could_spell_are_refused_before_anybody_is_asked(name):
    grid = staged(FEDERATION)
    with pytest.raises(DataError, match=f"{re.escape(repr(name))} cannot be a client's id"):
        strategy("b", partitions=("b", name, "c", "d", "e")).start(grid, start(), 1)
    assert grid.sent == []


def test_partitions_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two partitions are called 'b'; give each a name of its own"):
        strategy("a", partitions=("a", "b", "c", "b", "e")).start(staged(FEDERATION), start(), 1)


def test_an_app_that_does_not_know_the_question_is_told_how_to_answer():
    grid = staged(FEDERATION, apps={"bee": ClientApp()})
    with pytest.raises(
        AnswerError, match=r"add the answer to your own: app = feduhb.flower.introduced\(app\)"
    ):
        strategy("c01").start(grid, start(), 1)
    grid = staged(FEDERATION, apps={"bee": flower.introduced(ClientApp())})
    assert len(strategy("c01").start(grid, start(), 1).rounds) == 1


def test_leaving_deletes_nothing_of_those_who_stay(tmp_path):
    grid = staged(FEDERATION, cache=tmp_path)
    flower.Train(epochs=1, seed=7, local=LOCAL, timeout=5).start(grid, start(), 1)
    assert {path.name for path in tmp_path.iterdir()} == {f"partition-{i}" for i in range(5)}
    strategy(["c01"]).start(grid, start(), 1)
    assert {path.name for path in tmp_path.iterdir()} == {
        "partition-0",
        "partition-2",
        "partition-3",
        "partition-4",
    }


def test_leavers_may_be_left_in_peace(tmp_path):
    grid = staged(FEDERATION, cache=tmp_path)
    flower.Train(epochs=1, seed=7, local=LOCAL, timeout=5).start(grid, start(), 1)
    strategy(["c01"], tell_leavers=False).start(grid, start(), 1)
    assert (tmp_path / "partition-1" / "examples.safetensors").exists()
    assert "query.feduhb_leave" not in {kind for _, kind, _ in grid.sent}


def test_a_leaver_shifts_nobodys_draws():
    """The model without a client is the same whether it was ever there."""
    with_it = strategy("c04").start(staged(FEDERATION), start(), 2)
    smaller = FEDERATION.without(["elk"])
    never_there = flower.Train(epochs=1, seed=7, local=LOCAL, timeout=5).start(staged(smaller), start(), 1)
    assert torch.equal(with_it.params, strategy("c04").start(staged(FEDERATION), start(), 2).params)
    assert never_there.rounds[0].moved == with_it.rounds[0].moved
