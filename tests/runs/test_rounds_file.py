"""What a run leaves behind can be read back, and says what is wrong with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feduhb.errors import RunFolderError
from feduhb.runs.folder import Result, Round, RunFolder, explain_end
from feduhb.stopping import StopReason
from toys import quick

numbers = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(st.text(max_size=8), max_size=4).map(tuple)
counts = st.integers(0, 2**60)
rounds = st.builds(
    Round,
    round=counts,
    asked=ids,
    answered=ids,
    moved=numbers,
    threshold=st.none() | numbers,
    stopped=st.none() | st.builds(StopReason, st.text(max_size=20), numbers, numbers),
    client_epochs=counts,
    bytes_down=counts,
    bytes_up=counts,
    client_seconds=numbers,
    server_seconds=numbers,
    evaluate_seconds=numbers,
    scores=st.dictionaries(st.text(max_size=6), numbers, max_size=3),
)
FIRST = Round(0, ("a", "b"), ("a",), 1.5, scores={"test_loss": 2.0})
SECOND = Round(1, ("a", "b"), ("a", "b"), 0.5, stopped=StopReason("enough", 0.5, 0.6))


@quick
@given(rounds)
def test_a_round_comes_back_as_it_was_from_one_line(record: Round):
    line = record.to_json()
    assert "\n" not in line
    assert line.isascii()
    assert Round.from_json(line) == record


def test_a_round_is_plain_json():
    """Others read it too: names of fields are part of the format."""
    assert json.loads(SECOND.to_json()) == {
        "round": 1,
        "asked": ["a", "b"],
        "answered": ["a", "b"],
        "moved": 0.5,
        "threshold": None,
        "stopped": {"text": "enough", "movement": 0.5, "threshold": 0.6},
        "client_epochs": 0,
        "bytes_down": 0,
        "bytes_up": 0,
        "client_seconds": 0.0,
        "server_seconds": 0.0,
        "evaluate_seconds": 0.0,
        "scores": {},
    }


@quick
@given(st.lists(rounds, max_size=5))
def test_appended_is_kept_is_read(tmp_path_factory: pytest.TempPathFactory, records: list[Round]):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.rewrite_rounds([])
    for record in records:
        folder.append(record)
    assert folder.rounds() == records
    folder.rewrite_rounds(records[:2])
    assert folder.rounds() == records[:2]


def test_no_file_is_no_rounds(tmp_path: Path):
    assert RunFolder(tmp_path).rounds() == []


def test_a_last_line_cut_short_anywhere_is_left_out(tmp_path: Path):
    folder = RunFolder(tmp_path)
    whole = (FIRST.to_json() + "\n").encode()
    last = (SECOND.to_json() + "\n").encode()
    for length in range(len(last)):
        folder.rounds_path.write_bytes(whole + last[:length])
        assert folder.rounds() == [FIRST]
    folder.rounds_path.write_bytes(whole + last)
    assert folder.rounds() == [FIRST, SECOND]


@pytest.mark.parametrize(
    "damage",
    [
        '{"round": 1, "asked": [',
        "",
        "null",
        "3",
        '"text"',
        "[1, 2]",
        "{}",
        '{"round": 1}',
        "\x00\x00",
        FIRST.to_json() + "}",
    ],
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, damage: str):
    folder = RunFolder(tmp_path)
    folder.rounds_path.write_text(f"{FIRST.to_json()}\n{damage}\n{SECOND.to_json()}\n")
    with pytest.raises(RunFolderError) as error:
        folder.rounds()
    wanted = f"{folder.rounds_path} line 2 is damaged; delete the run and start again ("
    assert str(error.value).startswith(wanted)


def test_a_line_of_an_unknown_field_or_broken_letters_is_named(tmp_path: Path):
    folder = RunFolder(tmp_path)
    unknown = {**json.loads(FIRST.to_json()), "colour": "red"}
    for line in (json.dumps(unknown).encode(), b'\xff\xfe{"round"'):
        folder.rounds_path.write_bytes(line + b"\n" + SECOND.to_json().encode() + b"\n")
        with pytest.raises(RunFolderError, match="line 1 is damaged"):
            folder.rounds()


def test_why_a_run_ended():
    assert explain_end([]) == "no round was run"
    assert explain_end([FIRST]) == "all 1 scheduled rounds were run"
    assert explain_end([FIRST, SECOND]) == "enough"


RESULT: Result = {
    "method": "retrain", "exact": True, "needs": "sum", "settings": {}, "rounds": 1, "scheduled_rounds": 1, "stopped": "",
    "clients": ["a"], "parameters": 2, "weights_sha256": "00", "client_epochs": 1, "bytes_down": 8, "bytes_up": 8,
    "client_seconds": 0.5, "server_seconds": 0.5, "evaluate_seconds": 0.5, "client_rounds": 1,
    "client_rounds_saved": 0.0, "history_bytes_read": 0, "history_bytes_kept": 0, "scores": {}, "engine": {}, "versions": {},
    "finished": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


def test_a_folder_knows_how_far_it_is(tmp_path: Path):
    folder = RunFolder(tmp_path / "runs" / "first")
    assert not folder.exists()
    folder.create("seed = 3\n[train]\n")
    assert folder.exists()
    assert not folder.is_finished()
    assert folder.config() == {"seed": 3, "train": {}}
    folder.prepare(RESULT)
    folder.publish()
    assert folder.is_finished()
    assert folder.result() == RESULT


def test_a_path_that_is_no_run_is_reported_as_what_it_is(tmp_path: Path):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.toml").touch()
    for path, words in (
        (tmp_path / "runs", f"it holds runs; name one of them, such as {tmp_path / 'runs' / 'first'}"),
        (tmp_path / "nowhere", "there is no such folder; check the path, or make one with feduhb train"),
        (tmp_path / "runs" / "first" / "config.toml", "it is a file; give the folder of a run"),
    ):
        with pytest.raises(RunFolderError) as error:
            RunFolder(path).config()
        assert str(error.value).startswith(f"{path} is not a run folder: {words}")


def test_a_folder_that_is_none_unfinished_or_damaged(tmp_path: Path):
    folder = RunFolder(tmp_path)
    make = f"make one with feduhb train CONFIG.toml --out {tmp_path}"
    for read, words in (
        (folder.config, f"{tmp_path} is not a run folder: it has no config.toml; {make}"),
        (folder.result, f"{tmp_path} has not finished; continue it with --resume"),
    ):
        with pytest.raises(RunFolderError) as error:
            read()
        assert str(error.value) == words
    folder.config_path.write_text("seed = = 3")
    with pytest.raises(RunFolderError, match=r"config\.toml cannot be read: .*; restore a backup"):
        folder.config()
    folder.result_path.write_text("{")
    with pytest.raises(RunFolderError, match=r"result\.json is damaged; delete it and use --resume"):
        folder.result()
    folder.result_path.write_text(json.dumps({**RESULT, "rounds": "two"}))
    with pytest.raises(RunFolderError, match=r"use --resume \(rounds is 'two'\)"):
        folder.result()


def test_records_are_read_without_torch():
    """Reports and ledgers read runs where torch is not installed."""
    program = "import sys; from feduhb.runs.folder import RunFolder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
