"""One erasure after the other: each reaches the histories of all the runs that its own came from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import feduhb
from federations import ragged
from feduhb.core.seeds import sample_clients
from feduhb.errors import RequestError
from feduhb.runs.folder import Round, RunFolder
from feduhb.runs.history import DiskHistory
from feduhb.runs.lineage import read_ancestors
from runs.remembering import files

METHODS: dict[str, Any] = {
    "feduhb": feduhb.FedUHB(epochs=1),
    "retrain": feduhb.Retrain(epochs=1),
    "federaser": feduhb.FedEraser(interval=1, epochs=1),
    "fedrecover": feduhb.FedRecover(warmup=2, buffer=1, correction=2, final=1, epochs=1),
}
EARLY, LATE, LATER = "bee", "cat", "dog"  # of the training below, in the order of their first rounds
ROUNDS = 7


class Killed(BaseException):
    """The power is cut."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A training that samples one client a round: ant, bee, elk, cat, ... so that erasures leave something behind."""
    folder = tmp_path_factory.mktemp("chain") / "a"
    found = feduhb.train(
        ragged(seed=seed()), ROUNDS, epochs=1, batch_size=8, lr=0.05, clients_per_round=1, out=folder, keep_history=True, show=None
    )  # fmt: skip
    first = firsts([r.asked for r in found.rounds])
    assert 0 < first[EARLY] < first[LATE] < first[LATER]
    return folder


def seed() -> int:
    """A seed whose draws bring the three in one after the other, none of them first."""
    names = sorted(ragged().clients)
    for number in range(10_000):
        first = firsts([sample_clients(number, t, names, 1) for t in range(ROUNDS)])
        if 0 < first.get(EARLY, 0) < first.get(LATE, 0) < first.get(LATER, 0):
            return number
    raise AssertionError


def firsts(rounds: list[tuple[str, ...]]) -> dict[str, int]:
    return {client: t for t, asked in reversed(list(enumerate(rounds))) for client in asked}


@pytest.fixture
def a(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "a")
    return tmp_path / "a"


def opened(folder: Path) -> feduhb.Run:
    return feduhb.open_run(folder, ragged(seed=seed()))


def unlearned(folder: Path, forget: Any, out: Path | None, **more: Any) -> feduhb.Run:
    settings = {"method": METHODS["feduhb"], "rounds": 3, "stop": feduhb.never, "show": None, **more}
    return feduhb.unlearn(opened(folder), forget, out=out, **settings)


def held(folder: Path) -> set[str]:
    """Everyone in a run's history."""
    history = DiskHistory(folder / "history")
    return {client for t in history.rounds for client in history.clients(t)}


def first_round(folder: Path, client: str) -> int:
    return firsts([r.asked for r in RunFolder(folder).rounds()])[client]


@pytest.mark.parametrize("name", METHODS)
def test_a_second_leaver_goes_from_the_first_training_too(a, tmp_path, name):
    unlearned(a, [LATE], tmp_path / "b")
    assert DiskHistory(a / "history").rounds == list(range(first_round(a, LATE)))
    assert EARLY in held(a)
    assert EARLY in held(tmp_path / "b")
    unlearned(tmp_path / "b", [EARLY], tmp_path / "c", method=METHODS[name])
    assert DiskHistory(a / "history").rounds == list(range(first_round(a, EARLY)))
    assert EARLY not in held(a) | held(tmp_path / "b") | held(tmp_path / "c")


def test_so_do_a_third_and_those_between(a, tmp_path):
    places = [a, *(tmp_path / name for name in "bcd")]
    for before, new, leaver in zip(places, places[1:], (LATER, LATE, EARLY), strict=False):
        unlearned(before, [leaver], new)
        assert not any(leaver in held(place) for place in places)
    assert DiskHistory(a / "history").rounds == list(range(first_round(a, EARLY)))


def test_a_run_between_that_is_deleted_does_not_hide_the_first(a, tmp_path, capsys):
    unlearned(a, [LATER], tmp_path / "b")
    unlearned(tmp_path / "b", [LATE], tmp_path / "c")
    assert capsys.readouterr().err == ""
    shutil.rmtree(tmp_path / "b")
    unlearned(tmp_path / "c", [EARLY], tmp_path / "d")
    assert EARLY not in held(a)
    said = capsys.readouterr().err
    assert said.startswith(
        f"feduhb: {(tmp_path / 'b').resolve()}, a run that this one came from, no longer exists;"
    )
    assert said.count("\n") == 1


def test_a_first_run_that_moved_away_is_named_and_stops_nobody(a, tmp_path, capsys):
    unlearned(a, [LATE], tmp_path / "b")
    a.rename(tmp_path / "elsewhere")
    assert opened(tmp_path / "b").forgot is not None
    done = unlearned(tmp_path / "b", [EARLY], tmp_path / "c")
    assert len(done.rounds) == 3
    assert EARLY in held(tmp_path / "elsewhere")
    assert f"{a.resolve()}, a run that this one came from, no longer exists" in capsys.readouterr().err
    (tmp_path / "elsewhere").rename(a)
    unlearned(tmp_path / "c", ["elk"], tmp_path / "d")
    assert EARLY not in held(a), "what could not be reached then is reached now"
    assert capsys.readouterr().err == ""


def test_another_run_in_its_place_is_left_alone(a, tmp_path, capsys):
    unlearned(a, [LATE], tmp_path / "b")
    a.rename(tmp_path / "elsewhere")
    feduhb.train(ragged(), 2, epochs=1, out=a, keep_history=True, show=None)
    before = files(a)
    unlearned(tmp_path / "b", [EARLY], tmp_path / "c")
    assert files(a) == before
    assert f"{a.resolve()} does not hold the run that this one came from" in capsys.readouterr().err


def test_all_moved_together_are_reached(a, tmp_path):
    unlearned(a, [LATE], tmp_path / "b")
    (tmp_path / "moved").mkdir()
    for name in "ab":
        shutil.move(tmp_path / name, tmp_path / "moved" / name)
    unlearned(tmp_path / "moved" / "b", [EARLY], tmp_path / "c")
    assert EARLY not in held(tmp_path / "moved" / "a")


def test_a_run_between_without_a_folder_hides_nothing(a, tmp_path):
    between = unlearned(a, [LATE], None)
    feduhb.unlearn(between, [EARLY], method=METHODS["feduhb"], rounds=1, out=tmp_path / "c", show=None)
    assert EARLY not in held(a)
    assert [one.path for one in opened(tmp_path / "c").earlier] == [a.resolve()]


@pytest.mark.parametrize("forget", [{EARLY: [0]}, "class:1"])
def test_rows_and_classes_reach_it_too(a, tmp_path, forget):
    unlearned(a, [LATE], tmp_path / "b")
    unlearned(tmp_path / "b", forget, tmp_path / "c")
    assert EARLY not in held(a) | held(tmp_path / "b")


def test_what_a_run_had_forgotten_itself_costs_it_nothing(a, tmp_path):
    """Rows of one client leave first: the run without them never saw them, and later erasures take nothing of it for them."""
    unlearned(a, {EARLY: [0]}, tmp_path / "b")
    assert EARLY in held(tmp_path / "b")
    strangers = [client for client in ragged().clients if client not in held(tmp_path / "b")]
    unlearned(tmp_path / "b", strangers[:1], tmp_path / "c")
    unlearned(tmp_path / "c", strangers[1:2], tmp_path / "d")
    assert DiskHistory(tmp_path / "b" / "history").rounds == [0, 1, 2]
    unlearned(tmp_path / "d", {EARLY: [1]}, tmp_path / "e")
    assert EARLY not in held(tmp_path / "b")


def test_an_erasure_makes_up_for_one_that_left_the_history(a, tmp_path):
    """A comparison erases nothing; whoever goes on from one of its runs means that one, and what it forgot."""
    found = feduhb.compare(opened(a), [EARLY], ["feduhb"], rounds=2, out=tmp_path / "compared", show=None)
    assert EARLY in held(a)
    feduhb.unlearn(found["feduhb"], [LATER], rounds=2, out=tmp_path / "c", show=None)
    assert DiskHistory(a / "history").rounds == list(range(first_round(a, EARLY)))


def test_a_refused_request_reaches_nothing(a, tmp_path):
    unlearned(a, [LATE], tmp_path / "b")
    before = files(tmp_path)
    with pytest.raises(RequestError):
        unlearned(tmp_path / "b", [LATE], tmp_path / "c")
    with pytest.raises(RequestError):
        unlearned(tmp_path / "b", {EARLY: [0]}, tmp_path / "c", method=METHODS["federaser"])
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_killed_and_resumed_it_reaches_all(a, tmp_path, name, after):
    unlearned(a, [LATE], tmp_path / "b")
    reached = list(range(first_round(a, EARLY)))

    def kill(record: Round) -> None:
        if record.round == after:
            raise Killed

    with pytest.raises(Killed):
        unlearned(tmp_path / "b", [EARLY], tmp_path / "c", method=METHODS[name], show=kill)
    at_once = name in {"feduhb", "retrain"}
    assert (DiskHistory(a / "history").rounds == reached) == at_once
    unlearned(tmp_path / "b", [EARLY], tmp_path / "c", method=METHODS[name], resume=True)
    assert DiskHistory(a / "history").rounds == reached
    assert EARLY not in held(tmp_path / "b")


@pytest.mark.parametrize("name", METHODS)
def test_killed_between_two_histories_it_is_finished_by_resuming(a, tmp_path, name, monkeypatch):
    unlearned(a, [LATE], tmp_path / "b")
    rmtree = shutil.rmtree

    def dies(place: Any, *args: Any, **kwargs: Any) -> None:
        if a in Path(place).parents:
            for file in Path(place).glob("round.json"):
                file.unlink()  # in the middle of a round: nobody can say any more whose it was
            raise Killed
        rmtree(place, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dies)
        with pytest.raises(Killed):
            unlearned(tmp_path / "b", [EARLY], tmp_path / "c", method=METHODS[name])
    unlearned(tmp_path / "b", [EARLY], tmp_path / "c", method=METHODS[name], resume=True)
    assert sorted(p.name for p in (a / "history").glob("0*")) == [
        f"{t:05d}" for t in range(first_round(a, EARLY))
    ]


def test_the_last_round_half_deleted_goes_when_resumed(tmp_path):
    """Its marker is gone, so that nobody lists it any more; the leaver's update is still beside it."""
    run = feduhb.train(ragged(), 1, epochs=1, out=tmp_path / "a", keep_history=True, show=None)
    (tmp_path / "a" / "history" / "00000" / "round.json").unlink()
    feduhb.unlearn(run, ["bee"], rounds=1, out=tmp_path / "b", show=None)
    assert set(files(tmp_path / "a" / "history")) == {"run.json"}


def test_where_it_came_from_stands_in_the_folder(a, tmp_path):
    unlearned(a, [LATE], tmp_path / "b")
    unlearned(tmp_path / "b", [EARLY], tmp_path / "c")
    found = json.loads((tmp_path / "c" / "lineage.json").read_text())["earlier"]
    assert [one["run"] for one in found] == ["../b", "../a"]
    assert not read_ancestors(a)
