"""Watching runs: several ways at once, and TensorBoard's files, read back by its own reader."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import feduhb
from federations import ragged
from feduhb.errors import ConfigError
from feduhb.runs.progress import show_lines, show_steps
from feduhb.stopping import dynamic_stop

HOW: dict[str, Any] = {"epochs": 1, "lr": 0.05, "engine": "loop"}


def read_board(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def read_scalars(folder: Path, tag: str) -> dict[int, float]:
    return {event.step: event.value for event in read_board(folder).Scalars(tag)}


def read_end(folder: Path) -> tuple[int, str]:
    (event,) = read_board(folder).Tensors("stopped/text_summary")
    return event.step, event.tensor_proto.string_val[0].decode()


@pytest.fixture(scope="module")
def federation():
    return ragged()


def test_several_observers_see_every_round(federation, capsys):
    seen: list[feduhb.Round] = []
    other: list[int] = []
    run = feduhb.train(
        federation, 2, **HOW, show=["lines", seen.append, None, lambda r: other.append(r.round)]
    )
    assert seen == [*run.rounds]
    assert other == [0, 1]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["train 1/2", "train 2/2"]


@pytest.mark.parametrize("show", [[3], ["auto", "loudly"], "loudly", [["auto"]], {"auto"}])
def test_what_cannot_show_rounds_is_refused(federation, show):
    with pytest.raises(
        ConfigError, match=r"^show is .*; give 'auto', 'lines', None, a function, .* or a list of these$"
    ):
        feduhb.train(federation, 1, **HOW, show=show)


def test_steps_of_longer_work_take_several_too(capsys):
    seen: list[feduhb.Round] = []
    show_lines(["lines", seen.append], ["first"])
    with show_steps(["lines", seen.append], "audit", 2) as begin:
        begin("one", 3)(feduhb.Round(0, (), (), 0.5))
    assert [record.moved for record in seen] == [0.5]
    assert capsys.readouterr().err == "first\naudit 1/2  one\n"


def test_tensorboard_has_every_score_and_cost_and_the_reason(federation, tmp_path):
    rule = dynamic_stop(50.0)
    run = feduhb.train(federation, 30, **HOW, stop=rule, show=feduhb.TensorBoard(tmp_path / "boards"))
    place = tmp_path / "boards" / "train"
    for name in ("test_accuracy", "test_loss"):
        wanted = {record.round + 1: record.scores[name] for record in run.rounds}
        assert read_scalars(place, f"scores/{name}") == pytest.approx(wanted)
    moved = {record.round + 1: record.moved for record in run.rounds}
    assert read_scalars(place, "stop rule/movement") == pytest.approx(moved)
    assert [*read_scalars(place, "stop rule/threshold")] == [3], "the rule applies from the third round on"
    costs = {
        "client_epochs",
        "bytes_down",
        "bytes_up",
        "client_seconds",
        "server_seconds",
        "evaluate_seconds",
    }
    tags = read_board(place).Tags()["scalars"]
    assert {tag.partition("/")[2] for tag in tags if tag.startswith("costs/")} == costs
    assert read_scalars(place, "costs/bytes_up") == {r.round + 1: float(r.bytes_up) for r in run.rounds}
    assert read_end(place) == (len(run.rounds), run.stopped)


def test_rounds_are_there_while_the_run_goes_on(federation, tmp_path):
    found: list[list[int]] = []

    def look(record: feduhb.Round) -> None:  # noqa: ARG001
        found.append([*read_scalars(tmp_path / "train", "stop rule/movement")])

    feduhb.train(federation, 2, **HOW, show=[feduhb.TensorBoard(tmp_path), look])
    assert found == [[1], [1, 2]]


def test_a_board_that_is_used_again_gets_a_folder_for_each_run(federation, tmp_path):
    board = feduhb.TensorBoard(tmp_path)
    trained = feduhb.train(federation, 1, **HOW, show=board)
    feduhb.compare(trained, ["ant"], rounds=1, show=board)
    feduhb.train(federation, 1, **HOW, show=feduhb.TensorBoard(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["feduhb", "retrain", "train", "train-2"]
    assert read_end(tmp_path / "retrain") == (1, "1 rounds were run")


def test_a_resumed_run_continues_its_curves(federation, tmp_path):
    board, out = feduhb.TensorBoard(tmp_path / "board"), tmp_path / "run"

    def kill(record: feduhb.Round) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduhb.train(federation, 4, **HOW, out=out, show=[board, kill])
    with pytest.raises(KeyError):
        read_board(tmp_path / "board" / "train").Tensors("stopped/text_summary")
    run = feduhb.train(federation, 4, **HOW, out=out, resume=True, show=board)
    assert [path.name for path in (tmp_path / "board").iterdir()] == ["train"]
    wanted = {record.round + 1: record.moved for record in run.rounds}
    assert read_scalars(tmp_path / "board" / "train", "stop rule/movement") == pytest.approx(wanted)


def test_every_step_of_an_audit_is_a_run_of_its_own(tmp_path):
    with show_steps(feduhb.TensorBoard(tmp_path), "audit", 2) as begin:
        begin("noise: training", 1)(feduhb.Round(0, (), (), 0.5))
        begin("../away", 1)(feduhb.Round(0, (), (), 0.25))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_away", "noise_training"]


def test_a_board_that_cannot_be_written_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file; give TensorBoard a folder"):
        feduhb.TensorBoard(tmp_path / "file")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install -c constraints.txt '\.\[tensorboard\]'"):
        feduhb.TensorBoard(tmp_path)
