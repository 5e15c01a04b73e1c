"""An erasure takes the leavers out of the history too: at once where nobody needs it, else when its reader has finished."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import feduhb
from federations import ragged
from feduhb.core.types import Updates
from feduhb.errors import (
    AggregationError,
    AnswerError,
    ConfigError,
    FeduhbError,
    RequestError,
    RunFolderError,
)
from feduhb.runs.folder import Round, RunFolder
from runs.remembering import files

ROUNDS = 5
METHODS: dict[str, Any] = {
    "feduhb": feduhb.FedUHB(epochs=1),
    "retrain": feduhb.Retrain(epochs=1),
    "federaser": feduhb.FedEraser(interval=1, epochs=1),
    "fedrecover": feduhb.FedRecover(warmup=2, buffer=1, correction=2, final=1, epochs=1),
}
AT_ONCE = ("feduhb", "retrain")
AFTERWARDS = ("federaser", "fedrecover")
every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("erasing") / "run"
    feduhb.train(ragged(), ROUNDS, epochs=1, batch_size=8, lr=0.05, out=folder, keep_history=True)
    return folder


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> feduhb.Run:
    shutil.copytree(trained, tmp_path / "run")
    return feduhb.open_run(tmp_path / "run", ragged())


class Killed(BaseException):
    """The power is cut."""


def left(run: feduhb.Run) -> list[int]:
    return run.history.rounds if run.history else []


def watching(run: feduhb.Run) -> tuple[list[list[int]], Any]:
    """Note what is left of a run's history after each round of its successor."""
    seen: list[list[int]] = []

    def show(record: Round) -> None:  # noqa: ARG001
        seen.append(left(run))

    return seen, show


@every_method
def test_at_once_or_when_the_method_has_finished(copied, name):
    seen, show = watching(copied)
    feduhb.unlearn(copied, ["bee"], method=METHODS[name], rounds=3, show=show)
    during = [] if name in AT_ONCE else list(range(ROUNDS))
    assert seen == [during] * len(seen)
    assert len(seen) >= 3
    assert copied.history is None
    assert set(files(copied.folder / "history")) == {"run.json"}


@every_method
def test_a_class_or_rows_count_as_their_holders(copied, name):
    forget = {"dog": (0, 1)}
    if name in AFTERWARDS:
        with pytest.raises(
            RequestError, match=rf"{name} replays the updates of whole clients.*use feduhb or retrain"
        ):
            feduhb.unlearn(copied, forget, method=METHODS[name])
        assert left(copied) == list(range(ROUNDS))
    else:
        feduhb.unlearn(copied, forget, method=METHODS[name], rounds=1)
        assert left(copied) == []


@every_method
def test_erase_history_false_keeps_it(copied, name):
    before = files(copied.folder)
    feduhb.unlearn(copied, ["bee"], method=METHODS[name], rounds=2, erase_history=False)
    assert files(copied.folder) == before


def test_a_comparison_leaves_it_and_keeps_none(copied, tmp_path):
    before = files(copied.folder)
    found = feduhb.compare(copied, ["bee"], METHODS.values(), rounds=2, out=tmp_path / "compared")
    assert list(found) == list(METHODS)
    assert files(copied.folder) == before
    assert all(run.history is None for run in found.values())
    for name in METHODS:
        result = json.loads((tmp_path / "compared" / name / "result.json").read_text())
        assert result["history_bytes_kept"] == 0
        assert (result["history_bytes_read"] > 0) == (name in AFTERWARDS)


@pytest.mark.parametrize("name", AT_ONCE)
def test_the_new_runs_history_takes_its_place(copied, tmp_path, name):
    new = feduhb.unlearn(copied, ["bee"], method=METHODS[name], rounds=3, out=tmp_path / "new")
    assert copied.history is None
    assert new.history is not None
    assert new.history.rounds == [r.round for r in new.rounds]
    for t in new.history.rounds:
        assert set(new.history.clients(t)) == set(new.rounds[t].answered)
        assert "bee" not in new.history.clients(t)
    result = json.loads((tmp_path / "new" / "result.json").read_text())
    assert result["history_bytes_kept"] == new.history.bytes


@pytest.mark.parametrize("name", AFTERWARDS)
def test_a_replay_keeps_none(copied, tmp_path, name):
    """A replay asks for other epochs, or asks no client in some rounds, so its updates are not a history of training."""
    before = files(copied.folder)
    with pytest.raises(ConfigError, match=f"{name} cannot keep a history"):
        feduhb.unlearn(copied, ["bee"], method=METHODS[name], out=tmp_path / "new", keep_history=True)
    assert files(copied.folder) == before
    assert not (tmp_path / "new").exists()
    new = feduhb.unlearn(copied, ["bee"], method=METHODS[name], out=tmp_path / "new")
    assert new.history is copied.history is None


@pytest.mark.parametrize("name", AT_ONCE)
def test_the_next_erasure_replays_the_new_history(copied, tmp_path, name):
    new = feduhb.unlearn(copied, ["bee"], method=METHODS[name], rounds=4, out=tmp_path / "new")
    assert left(new) == [0, 1, 2, 3]
    second = feduhb.unlearn(new, ["elk"], method=METHODS["federaser"], out=tmp_path / "second")
    assert len(second.rounds) == 4
    assert set(second.federation.clients) == {"ant", "cat", "dog"}
    assert left(new) == []


def test_no_new_history_without_a_folder_or_where_none_was_kept(copied, tmp_path):
    assert feduhb.unlearn(copied, ["bee"], rounds=1, erase_history=False).history is None
    plain = feduhb.train(ragged(), 1, epochs=1, out=tmp_path / "plain")
    assert feduhb.unlearn(plain, ["bee"], rounds=1, out=tmp_path / "new").history is None
    off = feduhb.unlearn(copied, ["bee"], rounds=1, out=tmp_path / "off", keep_history=False)
    assert off.history is None


def taken(tmp_path: Path) -> Path:
    feduhb.train(ragged(), 1, epochs=1, out=tmp_path / "taken")
    return tmp_path / "taken"


BAD: dict[str, tuple[type[FeduhbError], Any]] = {
    "unknown": (RequestError, lambda _: {"forget": ["stranger"]}),
    "everyone": (RequestError, lambda _: {"forget": list(ragged().clients)}),
    "rounds": (ConfigError, lambda _: {"rounds": 0}),
    "half a round": (ConfigError, lambda _: {"rounds": 2.5}),
    "engine": (ConfigError, lambda _: {"engine": "no such engine"}),
    "taken": (RunFolderError, lambda tmp_path: {"out": taken(tmp_path)}),
    "resumed": (RunFolderError, lambda tmp_path: {"out": taken(tmp_path), "resume": True}),
    "no folder": (ConfigError, lambda _: {"keep_history": True}),
}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (name, wrong)
        for name in METHODS
        for wrong in BAD
        if not (wrong in {"rounds", "half a round"} and name in AFTERWARDS)  # they have a number of their own
    ],
)
def test_a_bad_request_erases_nothing(copied, tmp_path, name, wrong):
    error, change = BAD[wrong]
    before = files(copied.folder)
    wanted: dict[str, Any] = {"forget": ["bee"], "rounds": 2, **change(tmp_path)}
    with pytest.raises(error):
        feduhb.unlearn(copied, method=METHODS[name], **wanted)
    assert files(copied.folder) == before


@pytest.mark.parametrize("method", ["feduhb", feduhb.Retrain(epochs=1, aggregate=feduhb.krum)])
def test_a_rule_that_too_few_remain_for_erases_nothing(tmp_path, method):
    """Krum takes five for one hostile client, and three for none."""
    run = feduhb.train(ragged(), 2, epochs=1, aggregate="krum:1", out=tmp_path / "run", keep_history=True)
    before = files(tmp_path)
    forget = ["bee"] if method == "feduhb" else ["bee", "cat", "dog"]
    with pytest.raises(
        AggregationError, match=r"krum needs [35] updates for [01] hostile clients, but received [24]"
    ):
        feduhb.unlearn(run, forget, method=method, rounds=1, out=tmp_path / "new")
    assert files(tmp_path) == before


def test_a_rule_of_ones_own_is_not_tried(tmp_path):
    seen: list[int] = []

    def first_seen(answers: Iterable[Updates]) -> torch.Tensor:
        blocks = list(answers)
        seen.append(sum(len(block.clients) for block in blocks))
        return blocks[0].values[0]

    run = feduhb.train(ragged(), 1, epochs=1, out=tmp_path / "run")
    feduhb.unlearn(run, ["bee"], method=feduhb.Retrain(epochs=1, aggregate=first_seen), rounds=2)
    assert seen == [4, 4]


@pytest.mark.parametrize("name", AFTERWARDS)
def test_a_method_that_fails_erases_nothing(copied, name, monkeypatch):
    """Its history is still needed: the user will fix that and try again."""
    before = files(copied.folder)

    def fails(*_: Any) -> Any:
        raise AnswerError("no client is up; try again")

    monkeypatch.setattr(feduhb.Loop, "train", fails)
    with pytest.raises(FeduhbError, match="no client is up"):
        feduhb.unlearn(copied, ["bee"], method=METHODS[name], engine="loop")
    assert files(copied.folder) == before


@every_method
def test_nothing_is_erased_under_a_run_that_another_process_writes(copied, tmp_path, name):
    settings = {"method": METHODS[name], "rounds": 2, "out": tmp_path / "new"}
    words = rf"another process is writing {copied.folder}; wait for it, or stop it"
    with RunFolder(copied.folder).claim(), pytest.raises(RunFolderError, match=words):
        feduhb.unlearn(copied, ["bee"], **settings)
    assert left(copied) == list(range(ROUNDS))
    feduhb.unlearn(copied, ["bee"], resume=True, **settings)
    assert left(copied) == []


@every_method
@pytest.mark.parametrize("after", [1, 2, 3])
def test_killed_and_resumed_is_never_killed(copied, tmp_path, name, after):
    """Whether its history is still there to read (a replaying method) or already erased (the others)."""
    method = METHODS[name]
    whole = feduhb.unlearn(
        copied, ["bee"], method=method, rounds=4, out=tmp_path / "whole", erase_history=False
    )

    def kill(record: Round) -> None:
        if record.round + 1 == after:
            raise Killed

    with pytest.raises(Killed):
        feduhb.unlearn(copied, ["bee"], method=method, rounds=4, out=tmp_path / "new", show=kill)
    assert left(copied) == ([] if name in AT_ONCE else list(range(ROUNDS)))
    again = feduhb.open_run(copied.folder, ragged())
    resumed = feduhb.unlearn(again, ["bee"], method=method, rounds=4, out=tmp_path / "new", resume=True)
    assert torch.equal(resumed.params, whole.params)
    assert [r.asked for r in resumed.rounds] == [r.asked for r in whole.rounds]
    assert copied.history is None
    assert files(tmp_path / "new" / "history") == files(tmp_path / "whole" / "history")


@every_method
def test_an_erasure_that_was_cut_short_is_finished_by_resuming(copied, tmp_path, name, monkeypatch):
    """Killed after the method, in the middle of deleting: the same command again must leave nothing of the leaver."""
    method, out = METHODS[name], tmp_path / "new"
    rmtree, deleted = shutil.rmtree, []

    def dies(place: Any, *args: Any, **kwargs: Any) -> None:
        if copied.folder in Path(place).parents:
            if len(deleted) == 2:
                raise Killed
            deleted.append(place)
        rmtree(place, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dies)
        with pytest.raises(Killed):
            feduhb.unlearn(copied, ["bee"], method=method, rounds=3, out=out)
    assert len(left(copied)) == ROUNDS - 2
    again = feduhb.open_run(copied.folder, ragged())
    done = feduhb.unlearn(again, ["bee"], method=method, rounds=3, out=out, resume=True)
    assert done.rounds
    assert left(copied) == []


@every_method
def test_a_finished_erasure_resumed_is_left_as_it_is(copied, tmp_path, name):
    """Scripts repeat commands: nothing is left to replay, and nothing is left to do."""
    method, out = METHODS[name], tmp_path / "new"
    done = feduhb.unlearn(copied, ["bee"], method=method, rounds=3, out=out)
    before = files(out)
    again = feduhb.unlearn(copied, ["bee"], method=method, rounds=3, out=out, resume=True)
    assert torch.equal(done.params, again.params)
    assert files(out) == before


@pytest.mark.parametrize("name", AFTERWARDS)
def test_a_finished_replay_opens_without_its_history(copied, tmp_path, name):
    done = feduhb.unlearn(copied, ["bee"], method=METHODS[name], out=tmp_path / "new")
    opened = feduhb.open_run(tmp_path / "new", ragged())
    assert torch.equal(opened.params, done.params)
    assert opened.method.name == name
    assert [r.asked for r in opened.rounds] == [r.asked for r in done.rounds]


@pytest.mark.parametrize("name", AFTERWARDS)
def test_with_sampled_clients(tmp_path, name):
    run = feduhb.train(
        ragged(), 6, epochs=1, batch_size=8, lr=0.05, clients_per_round=2, out=tmp_path / "run", keep_history=True
    )  # fmt: skip
    method = {"federaser": feduhb.FedEraser(interval=2, epochs=1), "fedrecover": METHODS["fedrecover"]}[name]
    done = feduhb.unlearn(run, ["bee"], method=method)
    assert len(done.rounds) == {"federaser": 3, "fedrecover": 6}[name]
    assert all("bee" not in r.asked for r in done.rounds)


def test_compare_takes_only_methods_that_can_serve(tmp_path):
    """A request for rows leaves out those that replay, gradients FedEraser; named, they are refused before any trains."""
    run = feduhb.train(ragged(), 3, epochs=1, out=tmp_path / "run", keep_history=True)
    assert list(feduhb.compare(run, {"dog": [0]}, rounds=1)) == ["feduhb", "retrain"]
    with pytest.raises(RequestError, match="cannot forget rows or a class"):
        feduhb.compare(run, {"dog": [0]}, ["feduhb", "federaser"], rounds=1, out=tmp_path / "both")
    assert not (tmp_path / "both").exists()
    gradients = feduhb.train(ragged(), 3, epochs=0, out=tmp_path / "gradients", keep_history=True)
    assert list(feduhb.compare(gradients, ["bee"], rounds=1)) == ["feduhb", "retrain", "fedrecover"]


def test_a_line_says_why_compare_leaves_a_method_out(tmp_path, capsys):
    run = feduhb.train(ragged(), 1, epochs=1, out=tmp_path / "run", show=None)
    _, left_out = feduhb.api.expand_methods(run, ["bee"], "all")
    said = {
        "federaser": "federaser replays stored updates, but this run kept none",
        "fedrecover": "fedrecover replays stored updates, but this run kept none",
        "rollback": "rollback continues from a model that training kept, but this run kept none; train with --keep-models",
        "fedaf": "fedaf cannot forget clients, only rows or classes",
        "fedrecovery": "fedrecovery replays stored updates, but this run kept none",
        "crab": "crab replays stored updates, but this run kept none",
        "wu": "wu replays stored updates, but this run kept none",
    }
    assert list(left_out) == list(said)
    for name, reason in said.items():
        assert left_out[name].startswith(reason)
    lines = [f"feduhb: {name} is left out: {reason}" for name, reason in left_out.items()]
    assert capsys.readouterr().err.splitlines() == lines
    for name in said.keys() - {"rollback"}:
        with pytest.raises(FeduhbError) as refused:
            feduhb.compare(run, ["bee"], ["feduhb", name], rounds=1, out=tmp_path / "new", show=None)
        assert str(refused.value) == left_out[name]
        assert not (tmp_path / "new").exists()
    assert list(feduhb.compare(run, ["bee"], ["rollback"], show=None)) == ["rollback"], "it is Retrain"


def test_compare_all_takes_every_built_in_method_that_can_serve(tmp_path):
    run = feduhb.train(ragged(), 3, epochs=1, out=tmp_path / "run", keep_history=True)
    first, replays = ["feduhb", "retrain"], ["federaser", "fedrecover"]
    exact, tuned = ["nesterov", "fedadam", "fedyogi", "fednadam"], ["finetune", "not"]
    for wanted in ("all", ["all"]):
        found = feduhb.compare(run, ["bee"], wanted, rounds=1)
        assert list(found) == [
            *first, *replays, *exact, "fedexp", "rapidretrain", *tuned, "pga", "fedrecovery", "crab",
        ]  # fmt: skip
    assert list(feduhb.compare(run, {"dog": [0]}, ["all", "retrain"], rounds=1)) == [
        *first, *exact, "fedexp", "rapidretrain", *tuned, "fedaf", "retrain-2",
    ]  # fmt: skip
    robust = feduhb.train(ragged(), 1, epochs=1, aggregate="median")
    assert list(feduhb.compare(robust, ["bee"], "all", rounds=1)) == [*first, *exact, "rapidretrain", *tuned]
    assert list(feduhb.compare(robust, ["bee"], "retrain", rounds=1)) == ["retrain"]


def test_a_finished_replay_is_not_taken_for_one_with_other_settings(tmp_path):
    run = feduhb.train(ragged(), 4, epochs=1, out=tmp_path / "run", keep_history=True)
    feduhb.unlearn(run, ["bee"], method=feduhb.FedEraser(epochs=1), out=tmp_path / "new", erase_history=False)
    with pytest.raises(RunFolderError, match="holds another request or other settings"):
        feduhb.unlearn(
            run, ["bee"], method=feduhb.FedEraser(epochs=1, interval=1), out=tmp_path / "new", resume=True
        )
    assert run.history is not None


@pytest.mark.parametrize("odd", ["float32", 1])
def test_other_precisions_are_refused(odd):
    with pytest.raises(ConfigError, match=r"keep_history is .*; give true, false or 'float16'"):
        feduhb.train(ragged(), 1, keep_history=odd)
