"""Erasures one after the other over a grid: each reaches the histories of all the runs that its own came from."""

import shutil

import pytest

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.core.seeds import sample_clients
from feduhb.errors import ConfigError, RunFolderError
from feduhb.runs.folder import RunFolder
from feduhb.runs.history import DiskHistory
from flower.gridding import staged

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
FEDERATION = ragged()
NAMES = ("ant", "bee", "cat", "dog", "elk")
EARLY, LATE = "bee", "cat"
ROUNDS = 7


class Killed(BaseException):
    """What no handler catches."""


def firsts(rounds):
    return {client: t for t, asked in reversed(list(enumerate(rounds))) for client in asked}


def seed():
    """One whose draws, one client a round, begin with ant and bee, and bring cat in later."""
    for number in range(10_000):
        first = firsts([sample_clients(number, t, list(NAMES), 1) for t in range(ROUNDS)])
        if first.get(EARLY) == 1 < first.get(LATE, 0) and first.get("ant") == 0:
            return number
    raise AssertionError


SEED = seed()
FIRST = firsts([sample_clients(SEED, t, list(NAMES), 1) for t in range(ROUNDS)])


def start():
    return flower.fresh_arrays(FEDERATION.model, FEDERATION.seed)


def told(**more):
    return {"epochs": 1, "seed": SEED, "local": LOCAL, "timeout": 1.0, "partitions": NAMES, **more}


def trained(place):
    flower.Train(checkpoint=place, keep_history=True, clients_per_round=1, **told()).start(
        staged(FEDERATION), start(), ROUNDS
    )
    return place


def without(forget, before, new, grid=None, rounds=3, **more):
    settings = told(stop=feduhb.never, trained=before, checkpoint=new, **more)
    return flower.FedUHB(forget, **settings).start(grid or staged(FEDERATION), start(), rounds)


def rounds_of(place):
    return DiskHistory(place / "history").rounds


def held(place):
    history = DiskHistory(place / "history")
    return {client for t in history.rounds for client in history.clients(t)}


def killed_in_round(number):
    grid = staged(FEDERATION)

    def before(message):
        if message.metadata.message_type == "train" and message.content["config"]["round"] == number:
            raise Killed

    grid.before = before
    return grid


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A training, and a run without cat that keeps a history too."""
    place = tmp_path_factory.mktemp("chain")
    trained(place / "a")
    without(LATE, place / "a", place / "b", keep_history=True)
    assert rounds_of(place / "a") == list(range(FIRST[LATE]))
    assert EARLY in held(place / "a") & held(place / "b")
    return place


@pytest.fixture
def chain(made, tmp_path):
    for name in "ab":
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("forget", [EARLY, {EARLY: [0]}])
def test_a_second_leaver_goes_from_the_first_training_too(chain, forget):
    without(forget, chain / "b", chain / "c")
    assert rounds_of(chain / "a") == list(range(FIRST[EARLY]))
    assert rounds_of(chain / "b") == []


def test_a_class_takes_all_of_it(chain):
    (chain / "a" / "history" / "00000" / "round.json").write_text("{")  # nobody can say who was there
    without("class:1", chain / "b", chain / "c")
    assert rounds_of(chain / "a") == rounds_of(chain / "b") == []


@pytest.mark.parametrize("strategy", [flower.FedEraser, flower.FedRecover])
def test_a_replay_takes_it_along_when_it_ends_killed_or_not(chain, strategy):
    more = {"warmup": 2, "buffer": 1} if strategy is flower.FedRecover else {"interval": 1}
    replay = strategy(EARLY, trained=chain / "b", checkpoint=chain / "c", **more, **told())
    with pytest.raises(Killed):
        replay.start(killed_in_round(1), start())
    assert EARLY in held(chain / "a") & held(chain / "b")
    replay.start(staged(FEDERATION), start())
    assert EARLY not in held(chain / "a") | held(chain / "b")


def test_killed_in_its_first_round_it_has_reached_all(chain):
    with pytest.raises(Killed):
        without(EARLY, chain / "b", chain / "c", killed_in_round(0))
    assert EARLY not in held(chain / "a") | held(chain / "b")
    assert len(without(EARLY, chain / "b", chain / "c").rounds) == 3


def test_a_third_reaches_the_first_though_the_second_is_deleted(chain, caplog):
    without(EARLY, chain / "b", chain / "c", keep_history=True)
    shutil.rmtree(chain / "b")
    assert held(chain / "a") == {"ant"}
    without("ant", chain / "c", chain / "d")
    assert held(chain / "a") == set()
    assert f"{(chain / 'b').resolve()}, a run that this one came from, is not there any more" in caplog.text


def test_one_that_moved_away_is_named_and_stops_nobody(chain, caplog):
    (chain / "a").rename(chain / "elsewhere")
    assert len(without(EARLY, chain / "b", chain / "c").rounds) == 3
    assert EARLY in held(chain / "elsewhere")
    assert f"{(chain / 'a').resolve()}, a run that this one came from, is not there any more" in caplog.text


def test_what_a_run_had_forgotten_itself_costs_it_nothing(tmp_path):
    """The run without a row of bee never saw it, and those who leave later took no part in it."""
    trained(tmp_path / "t")
    without({EARLY: [0]}, tmp_path / "t", tmp_path / "a", rounds=2, keep_history=True, clients_per_round=1)
    assert held(tmp_path / "a") == {"ant", EARLY}
    without("dog", tmp_path / "a", tmp_path / "b")
    without("elk", tmp_path / "b", tmp_path / "c")
    assert rounds_of(tmp_path / "a") == [0, 1]
    without({EARLY: [1]}, tmp_path / "c", tmp_path / "d")
    assert rounds_of(tmp_path / "a") == [0]


def test_nothing_is_erased_under_a_first_run_that_somebody_writes(chain):
    with (
        RunFolder(chain / "a").claim(),
        pytest.raises(RunFolderError, match=r"another process is writing .*a; wait for it, or stop it"),
    ):
        without(EARLY, chain / "b", chain / "c")
    assert EARLY in held(chain / "a") & held(chain / "b")
    without(EARLY, chain / "b", chain / "c")
    assert EARLY not in held(chain / "a") | held(chain / "b")


def test_a_training_from_a_run_that_forgot_knows_where_it_came_from_too(chain):
    more = told(trained=chain / "b", checkpoint=chain / "t2", keep_history=True)
    flower.Train(**more).start(staged(FEDERATION), start(), 2)
    assert EARLY in held(chain / "a")
    without(EARLY, chain / "t2", chain / "c")
    assert EARLY not in held(chain / "a") | held(chain / "b") | held(chain / "t2")


def test_a_history_that_cannot_be_kept_is_refused_before_any_is_erased(chain):
    with pytest.raises(ConfigError, match="a history is kept on disk; say in which folder"):
        without(EARLY, chain / "b", None, keep_history=True)
    assert EARLY in held(chain / "a") & held(chain / "b")


def test_over_those_connected_it_is_reached_after_a_restart_though_the_first_leaver_is_gone(tmp_path):
    """Another process, which never saw the first leaver: only the folders say who was there."""
    grid = staged(FEDERATION, keyed=True)
    cat, bee = (flower.key_id(grid.seats[node].key) for node in (102, 101))

    def connected():
        return flower.connected(grid, FEDERATION.test, FEDERATION.model, seed=SEED, timeout=1)

    far = connected()
    first = feduhb.train(far, 2, engine=far.engine, epochs=1, out=tmp_path / "a", keep_history=True)
    feduhb.unlearn(first, [cat], rounds=2, out=tmp_path / "b", erase_history=False)
    assert {cat, bee} <= held(tmp_path / "a")
    del grid.seats[102]
    far = connected()
    again = feduhb.open_run(tmp_path / "b", far)
    feduhb.unlearn(again, [bee], rounds=1, engine=far.engine, out=tmp_path / "c")
    assert held(tmp_path / "a") == held(tmp_path / "b") == set()


@pytest.mark.parametrize("forget", ["bee", {"bee": [0]}, "class:1"])
def test_over_those_connected_a_run_that_forgot_is_opened_again(tmp_path, forget):
    """Names are for the federation to understand, and examples not here to be looked at."""
    grid = staged(FEDERATION, keyed=True)
    far = flower.connected(grid, FEDERATION.test, FEDERATION.model, seed=SEED, timeout=1)
    first = feduhb.train(far, 1, engine=far.engine, epochs=1, out=tmp_path / "a", keep_history=True)
    done = feduhb.unlearn(first, forget, rounds=1, out=tmp_path / "b")
    far = flower.connected(grid, FEDERATION.test, FEDERATION.model, seed=SEED, timeout=1)
    again = feduhb.open_run(tmp_path / "b", far)
    assert again.forgot == done.forgot
    assert again.federation.fingerprints() == done.federation.fingerprints()
    feduhb.unlearn(again, "dog", rounds=1, engine=far.engine, out=tmp_path / "c")
    assert held(tmp_path / "a") == held(tmp_path / "b") == set()
