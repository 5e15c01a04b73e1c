"""What an unlearning is expected to cost: counts equal those of its result.json, and seconds follow from the records before."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import feduhb
from federations import SIZES, ragged, tensors
from feduhb.core.types import Foreseen
from feduhb.runs import execute
from feduhb.runs.expected import Expected
from feduhb.runs.folder import Pace, RunFolder, measure_pace

NAMES = [f"c{i:02d}" for i in range(12)]
HOW: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.05, "show": None}
SOON = feduhb.dynamic_stop(1e9, min_rounds=2)  # ends any run after two rounds


def make_many(**more: Any) -> feduhb.Federation:
    data = {name: tensors(name, 3 + place) for place, name in enumerate(NAMES)}
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 3)).double()
    return feduhb.Federation(data, tensors("test", 6), net, seed=3, **more)


def expect(run: feduhb.Run) -> Expected:
    assert run.expected is not None
    return run.expected


def count_expected(run: feduhb.Run) -> dict[str, int]:
    one = expect(run)
    names = ("rounds", "client_rounds", "client_epochs", "bytes_down", "bytes_up")
    return {name: getattr(one, name) for name in names}


def count_recorded(run: feduhb.Run) -> dict[str, Any]:
    assert run.folder is not None
    result = RunFolder(run.folder).result()
    own = {"rounds": result["rounds"] - result.get("restart_round", 0)}
    return {name: own.get(name, result[name]) for name in count_expected(run)}


@pytest.mark.parametrize("engine", ["loop", "pool"])
@pytest.mark.parametrize("per_round", [None, 2])
def test_counts_of_every_method_are_those_of_its_result(engine: str, per_round: int | None, tmp_path: Path):
    trained = feduhb.train(
        ragged(), 4, clients_per_round=per_round, keep_history=True, engine=engine, out=tmp_path / "a", **HOW
    )
    done = feduhb.compare(trained, ["cat"], "all", rounds=3, out=tmp_path / "all", show=None)
    assert {"feduhb", "retrain", "nesterov", "federaser", "fedrecover", "fedexp"} <= {*done}
    for name, run in done.items():
        assert count_expected(run) == count_recorded(run), name
        assert not expect(run).may_ask_more


@pytest.mark.parametrize(
    ("forget", "epochs"),
    [({"cat": [0, 3]}, 1), ("class:1", 1), (["ant", "dog"], 0)],
    ids=["rows", "class", "gradients"],
)
def test_counts_hold_for_every_request_and_for_gradients(forget: Any, epochs: int, tmp_path: Path):
    how: dict[str, Any] = {**HOW, "epochs": epochs}
    trained = feduhb.train(ragged(), 2, engine="loop", **how)
    run = feduhb.unlearn(trained, forget, method="retrain", rounds=2, out=tmp_path / "b", show=None)
    assert count_expected(run) == count_recorded(run)


def test_statistics_are_sent_too(tmp_path: Path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    clients = {name: tensors(name, 6) for name in ("ant", "bee", "cat")}
    trained = feduhb.train(feduhb.Federation(clients, tensors("test", 6), net), 1, engine="loop", **HOW)
    run = feduhb.unlearn(trained, ["bee"], rounds=2, out=tmp_path / "b", show=None)
    assert count_expected(run) == count_recorded(run)
    assert expect(run).bytes_down == run.params.numel() * 8 * 2 * 2  # float64, two clients, two rounds


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_rollback_repeats_the_rounds_from_its_restart_on(keep: Any, tmp_path: Path):
    held = {name: tensors(name, 2, seed=1) for name in NAMES}
    source = make_many(held_out=held)
    trained = feduhb.train(
        source, 6, clients_per_round=2, keep_models="1MB", keep=keep, engine="loop", out=tmp_path / "a", **HOW
    )
    first = {client: record.round for record in reversed(trained.rounds) for client in record.asked}
    assert len({*first.values()}) > 2
    for client in [*dict(zip(first.values(), first, strict=True)).values(), *({*NAMES} - {*first})][:5]:
        [run] = feduhb.compare(trained, [client], ["rollback"], out=tmp_path / client, show=None).values()
        assert run.restart_round == first.get(client, 6)
        assert expect(run).rounds == 6 - run.restart_round
        assert count_expected(run) == count_recorded(run)
        if not expect(run).rounds:
            assert expect(run).seconds == 0


def test_a_rollback_of_a_training_that_its_rule_ended_has_nothing_left_to_do(tmp_path: Path):
    trained = feduhb.train(
        make_many(),
        6,
        stop=SOON,
        clients_per_round=2,
        keep_models="1MB",
        engine="loop",
        out=tmp_path / "a",
        **HOW,
    )
    asked = {client for record in trained.rounds for client in record.asked}
    idle = next(name for name in NAMES if name not in asked)
    run = feduhb.unlearn(trained, [idle], method="rollback", out=tmp_path / "b", show=None)
    assert len(run.rounds) == 2
    assert count_expected(run) == {**count_recorded(run), "rounds": 0}
    assert not expect(run).may_end_sooner


def test_the_next_forecast_reads_only_the_rounds_that_a_rollback_did_itself(tmp_path: Path):
    trained = feduhb.train(
        make_many(), 6, clients_per_round=2, keep_models="1MB", engine="loop", out=tmp_path / "a", **HOW
    )
    first = {client: record.round for record in reversed(trained.rounds) for client in record.asked}
    late = max(first, key=lambda client: first[client])
    rolled = feduhb.unlearn(trained, [late], method="rollback", out=tmp_path / "b", show=None)
    assert rolled.restart_round > 0
    timed = replace(rolled, rounds=tuple(replace(one, server_seconds=2.0) for one in rolled.rounds))
    free = (replace(one, server_seconds=0.0) for one in timed.rounds[: rolled.restart_round])
    timed = replace(timed, rounds=(*free, *timed.rounds[rolled.restart_round :]))
    again = feduhb.unlearn(timed, [NAMES[0]], method="retrain", rounds=5, show=None)
    assert expect(again).server_seconds == pytest.approx(10.0)


def test_a_stop_rule_can_only_make_it_cheaper(tmp_path: Path):
    trained = feduhb.train(ragged(), 2, engine="loop", **HOW)
    run = feduhb.unlearn(trained, ["cat"], stop=SOON, rounds=5, out=tmp_path / "b", show=None)
    assert expect(run).may_end_sooner
    assert (expect(run).rounds, len(run.rounds)) == (5, 2)
    assert all(value > count_recorded(run)[name] for name, value in count_expected(run).items())
    assert str(expect(run)).startswith("expected: at most 5 rounds, 40 client epochs, ")
    again = feduhb.unlearn(run, ["dog"], stop=SOON, rounds=5, show=None)
    assert expect(again).notes[-1] == "the same stop rule ended that run after 2 rounds"


def test_estimated_rounds_are_free_unless_estimates_are_abnormal(tmp_path: Path):
    trained = feduhb.train(ragged(), 6, keep_history=True, engine="loop", out=tmp_path / "a", **HOW)
    method = feduhb.FedRecover(epochs=2, warmup=2, correction=3, final=1, buffer=1)
    [run] = feduhb.compare(trained, ["cat"], [method], out=tmp_path / "b", show=None).values()
    remaining = len(SIZES) - 1
    exact = 4  # 2 rounds of warm-up, 1 correction, 1 final
    assert expect(run).client_rounds == exact * remaining
    assert expect(run).may_ask_more
    assert count_recorded(run)["client_rounds"] >= expect(run).client_rounds
    assert "at least 32 client epochs" in str(expect(run))
    assert expect(run).notes[-1] == "more if estimates are abnormal"


def test_a_method_of_version_0_1_is_expected_to_ask_as_in_its_first_round():
    assert [*feduhb.Retrain(epochs=3).foresee([7], None)] == [Foreseen()]
    work = feduhb.Work(ragged().fresh_model().get_parameter("0.weight").flatten(), 3)
    assert [*feduhb.Retrain(epochs=3).foresee([7], work)] == [Foreseen(3, None)]


def test_it_is_printed_before_anything_is_deleted_and_before_the_first_round(
    capsys, monkeypatch, tmp_path: Path
):
    trained = feduhb.train(ragged(), 2, engine="loop", out=tmp_path / "a", keep_history=True, **HOW)
    erase = execute.erase
    monkeypatch.setattr(execute, "erase", lambda *given: (sys.stderr.write("erases\n"), erase(*given))[1])
    how: dict[str, Any] = {"rounds": 2, "stop": feduhb.never, "out": tmp_path / "b", "keep_history": False}
    run = feduhb.unlearn(trained, ["cat"], show="lines", **how)
    lines = capsys.readouterr().err.splitlines()
    (first,) = (i for i, line in enumerate(lines) if line.startswith("feduhb 1/2"))
    assert lines.index(str(expect(run))) < lines.index("erases") < first
    assert run.erased
    assert str(expect(run)).endswith(f"; at the pace of {tmp_path / 'a'}, which also wrote a history")
    feduhb.compare(trained, ["cat"], ["feduhb", "retrain"], rounds=2, show="lines")
    lines = capsys.readouterr().err.splitlines()
    starts = [line.split()[0] for line in lines if line.startswith("expected:") or " 1/2 " in line]
    assert starts == ["expected:", "feduhb", "expected:", "retrain"]
    assert feduhb.unlearn(trained, ["cat"], resume=True, show="lines", **how).expected is None
    assert capsys.readouterr().err == "erases\n"
    assert trained.expected is None


@pytest.mark.parametrize("is_terminal", [True, False])
def test_by_default_it_is_printed_on_a_terminal_only(is_terminal: bool, capsys, monkeypatch):
    trained = feduhb.train(ragged(), 1, engine="loop", **HOW)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    run = feduhb.unlearn(trained, ["cat"], rounds=1)
    assert (str(expect(run)) in capsys.readouterr().err) is is_terminal
    feduhb.unlearn(trained, ["cat"], rounds=1, show=None)
    assert capsys.readouterr().err == ""


def test_seconds_are_proportional_to_epochs_and_examples_or_to_rounds():
    trained = feduhb.train(ragged(), 3, engine="loop", **HOW)
    passes = 2 * sum(SIZES.values())  # in a round: epochs times examples
    spent = {"client_seconds": 0.5 * passes, "server_seconds": 4.0, "evaluate_seconds": 1.0}
    timed = replace(trained, rounds=tuple(replace(record, **spent) for record in trained.rounds))
    run = feduhb.unlearn(timed, ["dog"], method="retrain", rounds=5, show=None)
    spent = 0.5 * 5 * 2 * (sum(SIZES.values()) - SIZES["dog"])
    assert expect(run).client_seconds == pytest.approx(spent)
    assert (expect(run).server_seconds, expect(run).evaluate_seconds) == pytest.approx((20.0, 5.0))
    assert expect(run).seconds == pytest.approx(spent + 20.0)
    assert expect(run).as_json()["seconds"] == expect(run).seconds
    assert expect(run).notes == ("at the pace of the run before",)


def test_steps_that_the_run_before_did_not_take_may_take_longer():
    trained = feduhb.train(ragged(), 1, engine="loop", **HOW)
    run = feduhb.unlearn(trained, ["cat"], method="rapidretrain", rounds=1, show=None)
    said = "rapidretrain asks clients to train by preconditioned steps, which may take longer"
    assert expect(run).notes == ("at the pace of the run before", said)
    again = feduhb.unlearn(run, ["dog"], method="rapidretrain", rounds=1, show=None)
    assert expect(again).notes == ("at the pace of the run before",)


def test_seconds_of_another_engine_and_of_a_server_that_replays_are_not_known(tmp_path: Path):
    trained = feduhb.train(ragged(), 3, keep_history=True, engine="loop", out=tmp_path / "a", **HOW)
    run = feduhb.unlearn(trained, ["dog"], rounds=2, engine="pool", erase_history=False, show=None)
    assert expect(run).seconds is None
    assert "seconds are not known" in expect(run).notes[0]
    assert "was trained by loop (cpu, float64" in expect(run).notes[0]
    assert " MB down + up; seconds are not known" in str(expect(run))
    run = feduhb.unlearn(trained, ["dog"], method="federaser", erase_history=False, show=None)
    assert expect(run).server_seconds is None
    assert expect(run).client_seconds is not None
    assert expect(run).notes == (
        f"at the pace of {tmp_path / 'a'}, which also wrote a history",
        "without the server's time, because federaser replays a history",
    )
    unknown = tuple(replace(record, client_seconds=0.0) for record in trained.rounds)
    run = feduhb.unlearn(replace(trained, rounds=unknown), ["dog"], rounds=2, erase_history=False, show=None)
    assert expect(run).seconds is None
    assert expect(run).notes[0] == f"seconds are not known: {tmp_path / 'a'} recorded none"


@pytest.mark.parametrize(
    ("amounts", "seconds", "pace"),
    [
        ((2, 2, 2), (5, 1, 1), Pace(4.0, 0.5)),  # the first round took four seconds longer
        ((2, 2, 2), (0.5, 1, 1), Pace(0.0, 0.5)),
        ((4,), (8,), Pace(0.0, 2.0)),
        ((4, 0), (8, 1), Pace(0.0, 2.25)),
        ((0, 0), (1, 1), None),
        ((2, 2), (0, 0), None),
        ((), (), None),
    ],
)
def test_the_first_round_may_take_longer(amounts, seconds, pace: Pace | None):
    assert measure_pace(amounts, seconds) == pace
    if pace is not None and pace.start:
        assert pace.expect(sum(amounts)) == sum(seconds)
        assert pace.expect(0) == 0


def test_a_run_from_an_earlier_version_has_an_unknown_engine():
    trained = replace(feduhb.train(ragged(), 1, engine="loop", **HOW), machine={})
    run = feduhb.unlearn(trained, ["dog"], rounds=1, show=None)
    assert "was trained by an engine that is not recorded" in expect(run).notes[0]
