"""Consecutive erasures over a grid: each erases the histories of all runs that its training came from."""

import shutil

import pytest

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.core.seeds import sample_clients
from feduhb.errors import ConfigError, RequestError, RunFolderError
from feduhb.runs.folder import RunFolder
from feduhb.runs.history import DiskHistory
from flower.gridding import Killed, make_grid, make_killing_grid

pytestmark = pytest.mark.slow

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
FEDERATION = ragged()
NAMES = ("ant", "bee", "cat", "dog", "elk")
EARLY, LATE = "bee", "cat"
ROUNDS = 7


def find_first_rounds(rounds):
    return {client: t for t, asked in reversed(list(enumerate(rounds))) for client in asked}


def find_seed():
    """Return a seed that samples ant and bee first, and cat later, one client a round."""
    for number in range(10_000):
        first = find_first_rounds([sample_clients(number, t, list(NAMES), 1) for t in range(ROUNDS)])
        if first.get(EARLY) == 1 < first.get(LATE, 0) and first.get("ant") == 0:
            return number
    raise AssertionError


SEED = find_seed()
FIRST = find_first_rounds([sample_clients(SEED, t, list(NAMES), 1) for t in range(ROUNDS)])


def make_settings(**more):
    return {
        "model": FEDERATION.model,
        "epochs": 1,
        "seed": SEED,
        "local": LOCAL,
        "timeout": 1.0,
        "partitions": NAMES,
        **more,
    }


def train(place):
    flower.Train(checkpoint=place, keep_history=True, clients_per_round=1, **make_settings()).start(
        make_grid(FEDERATION), num_rounds=ROUNDS
    )
    return place


def unlearn(forget, before, new, grid=None, rounds=3, **more):
    settings = make_settings(stop=feduhb.never, trained=before, checkpoint=new, **more)
    return flower.FedUHB(forget, **settings).start(grid or make_grid(FEDERATION), num_rounds=rounds)


def list_rounds(place):
    return DiskHistory(place / "history").rounds


def list_clients(place):
    history = DiskHistory(place / "history")
    return {client for t in history.rounds for client in history.clients(t)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A training, and a run without cat that keeps a history too."""
    place = tmp_path_factory.mktemp("chain")
    train(place / "a")
    unlearn(LATE, place / "a", place / "b", keep_history=True)
    assert list_rounds(place / "a") == list(range(FIRST[LATE]))
    assert EARLY in list_clients(place / "a") & list_clients(place / "b")
    return place


@pytest.fixture
def chain(made, tmp_path):
    for name in "ab":
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("forget", [EARLY, {EARLY: [0]}])
def test_a_second_leaver_goes_from_the_first_training_too(chain, forget):
    unlearn(forget, chain / "b", chain / "c")
    assert list_rounds(chain / "a") == list(range(FIRST[EARLY]))
    assert list_rounds(chain / "b") == []


def test_a_class_erases_the_whole_history(chain):
    (chain / "a" / "history" / "00000" / "round.json").write_text(
        "{"
    )  # the clients of the round cannot be read
    unlearn("class:1", chain / "b", chain / "c")
    assert list_rounds(chain / "a") == list_rounds(chain / "b") == []


@pytest.mark.parametrize("strategy", [flower.FedEraser, flower.FedRecover])
def test_a_replay_erases_all_histories_when_it_ends(chain, strategy):
    more = {"warmup": 2, "buffer": 1} if strategy is flower.FedRecover else {"interval": 1}
    replay = strategy(EARLY, trained=chain / "b", checkpoint=chain / "c", **more, **make_settings())
    with pytest.raises(Killed):
        replay.start(make_killing_grid(FEDERATION, 1))
    assert EARLY in list_clients(chain / "a") & list_clients(chain / "b")
    replay.start(make_grid(FEDERATION))
    assert EARLY not in list_clients(chain / "a") | list_clients(chain / "b")


def test_killed_in_its_first_round_it_has_reached_all(chain):
    with pytest.raises(Killed):
        unlearn(EARLY, chain / "b", chain / "c", make_killing_grid(FEDERATION, 0))
    assert EARLY not in list_clients(chain / "a") | list_clients(chain / "b")
    assert len(unlearn(EARLY, chain / "b", chain / "c").rounds) == 3


def test_a_third_reaches_the_first_though_the_second_is_deleted(chain, caplog):
    unlearn(EARLY, chain / "b", chain / "c", keep_history=True)
    shutil.rmtree(chain / "b")
    assert list_clients(chain / "a") == {"ant"}
    unlearn("ant", chain / "c", chain / "d")
    assert list_clients(chain / "a") == set()
    assert f"{(chain / 'b').resolve()}, a run that this one came from, no longer exists" in caplog.text


def test_a_run_that_was_moved_is_named_and_stops_nothing(chain, caplog):
    (chain / "a").rename(chain / "elsewhere")
    assert len(unlearn(EARLY, chain / "b", chain / "c").rounds) == 3
    assert EARLY in list_clients(chain / "elsewhere")
    assert f"{(chain / 'a').resolve()}, a run that this one came from, no longer exists" in caplog.text


def test_a_run_keeps_the_history_of_what_it_never_saw(tmp_path):
    """The run without a row of bee never saw it, and the later leavers took no part in it."""
    train(tmp_path / "t")
    unlearn({EARLY: [0]}, tmp_path / "t", tmp_path / "a", rounds=2, keep_history=True, clients_per_round=1)
    assert list_clients(tmp_path / "a") == {"ant", EARLY}
    unlearn("dog", tmp_path / "a", tmp_path / "b")
    unlearn("elk", tmp_path / "b", tmp_path / "c")
    assert list_rounds(tmp_path / "a") == [0, 1]
    unlearn({EARLY: [1]}, tmp_path / "c", tmp_path / "d")
    assert list_rounds(tmp_path / "a") == [0]


def test_nothing_is_erased_under_a_first_run_that_somebody_writes(chain):
    with (
        RunFolder(chain / "a").claim(),
        pytest.raises(RunFolderError, match=r"another process is writing .*a; wait for it, or stop it"),
    ):
        unlearn(EARLY, chain / "b", chain / "c")
    assert EARLY in list_clients(chain / "a") & list_clients(chain / "b")
    unlearn(EARLY, chain / "b", chain / "c")
    assert EARLY not in list_clients(chain / "a") | list_clients(chain / "b")


def test_a_training_from_a_run_that_forgot_knows_where_it_came_from_too(chain):
    more = make_settings(trained=chain / "b", checkpoint=chain / "t2", keep_history=True)
    flower.Train(**more).start(make_grid(FEDERATION), num_rounds=2)
    assert EARLY in list_clients(chain / "a")
    unlearn(EARLY, chain / "t2", chain / "c")
    assert EARLY not in list_clients(chain / "a") | list_clients(chain / "b") | list_clients(chain / "t2")


def test_a_history_that_cannot_be_kept_is_refused_before_any_is_erased(chain):
    with pytest.raises(ConfigError, match="a history is kept on disk; name a folder"):
        unlearn(EARLY, chain / "b", None, keep_history=True)
    assert EARLY in list_clients(chain / "a") & list_clients(chain / "b")


def test_over_those_connected_it_is_reached_after_a_restart_though_the_first_leaver_is_gone(tmp_path):
    """Another process never saw the first leaver: only the folders list the clients."""
    grid = make_grid(FEDERATION, keyed=True)
    cat, bee = (flower.key_id(grid.seats[node].key) for node in (102, 101))

    def connected():
        return flower.connected(grid, FEDERATION.test, FEDERATION.model, seed=SEED, timeout=1)

    far = connected()
    first = feduhb.train(far, 2, engine=far.engine, epochs=1, out=tmp_path / "a", keep_history=True)
    feduhb.unlearn(first, [cat], rounds=2, out=tmp_path / "b", erase_history=False)
    assert {cat, bee} <= list_clients(tmp_path / "a")
    del grid.seats[102]
    far = connected()
    again = feduhb.open_run(tmp_path / "b", far)
    feduhb.unlearn(again, [bee], rounds=1, engine=far.engine, out=tmp_path / "c")
    assert list_clients(tmp_path / "a") == list_clients(tmp_path / "b") == set()


@pytest.mark.parametrize("forget", ["bee", {"bee": [0]}, "class:1"])
def test_over_those_connected_a_run_that_forgot_is_opened_again(tmp_path, forget):
    """The federation resolves names, and the server cannot read examples."""
    grid = make_grid(FEDERATION, keyed=True)
    far = flower.connected(grid, FEDERATION.test, FEDERATION.model, seed=SEED, timeout=1)
    first = feduhb.train(far, 1, engine=far.engine, epochs=1, out=tmp_path / "a", keep_history=True)
    done = feduhb.unlearn(first, forget, rounds=1, out=tmp_path / "b")
    far = flower.connected(grid, FEDERATION.test, FEDERATION.model, seed=SEED, timeout=1)
    again = feduhb.open_run(tmp_path / "b", far)
    assert again.forgot == done.forgot
    assert again.federation.fingerprints() == done.federation.fingerprints()
    feduhb.unlearn(again, "dog", rounds=1, engine=far.engine, out=tmp_path / "c")
    assert list_clients(tmp_path / "a") == list_clients(tmp_path / "b") == set()


@pytest.mark.parametrize("strategy", [flower.FedUHB, flower.Train])
def test_a_training_that_a_later_run_superseded_is_refused_unless_it_is_asked_for(strategy, chain, caplog):
    asked = {"forget": EARLY} if strategy is flower.FedUHB else {}
    settings = make_settings(trained=chain / "a", checkpoint=chain / "new", **asked)
    grid = make_grid(FEDERATION)
    with pytest.raises(RequestError, match=r"would bring cat back: .*in Python allow_revival=True"):
        strategy(**settings).start(grid, num_rounds=1)
    assert grid.list_trained() == set()
    assert not (chain / "new").exists()
    assert list_rounds(chain / "a")
    strategy(**settings, allow_revival=True).start(grid, num_rounds=1)
    assert RunFolder(chain / "new").is_finished()
    assert "would bring cat back" in caplog.text
