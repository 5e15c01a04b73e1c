"""`feduhb forecast`, and what `unlearn` and `compare` expect, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feduhb.cli import app
from report.folders import series, write

CONFIG = """seed = 3
[federation]
data = "digits"
clients = 3
per_client = 40
model = "softmax"
[train]
rounds = 2
epochs = 1
engine = "loop"
"""


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_it_prints_a_table_what_was_simulated_and_the_result():
    done = invoke("forecast", "--rate", "2/week", "--hours", 3, "--years", 4)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["in", "a", "year", "at", "once", "nightly", "weekly", "by", "deadline"]
    assert "One batch takes 3.00 hours." in lines
    assert "Simulated: 4 years, seed 0." in lines
    assert lines[-1].startswith("Started by deadline, ")


def test_json_has_every_number_and_the_files(tmp_path: Path):
    run = write(tmp_path / "a", None, series(8))
    arguments = ("--rate", "1/day", "--deadline", "10d", "--margin", "12h", "--years", 3, "--seed", 5)
    done = invoke("forecast", run, *arguments, "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["deadline"], found["margin"], found["years"], found["seed"]) == (240, 12, 3, 5)
    assert [one["policy"] for one in found["outcomes"]] == ["at once", "nightly", "weekly", "by deadline"]
    assert found["service"]["client_epochs"] == 320
    assert {Path(path).name for path in found["written"]} == {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert invoke("forecast", run, *arguments, "--json").stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--rate", "2"],
            "'2' is not a rate; write requests per hour, day, week, month or year, such as 2/week",
        ),
        (["--rate", "2/week"], "nothing says how long a batch takes; name a run, or give --hours 3"),
        (["--rate", "2/week", "--hours", "3", "--deadline", "soon"], "'soon' is not a time"),
        (["--rate", "2/week", "--hours", "3", "--margin", "31d"], "the margin is 744 hours; give less than"),
        (
            ["--rate", "2/week", "--hours", "3", "--rounds", "3"],
            "--rounds says how much of RUN a batch takes",
        ),
        (["no-such-run", "--rate", "2/week"], "no-such-run is not a run folder"),
    ],
)
def test_errors_are_one_line(arguments: list[str], words: str):
    done = invoke("forecast", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("feduhb: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.slow
def test_unlearn_and_compare_say_what_they_expect(tmp_path: Path):
    (tmp_path / "config.toml").write_text(CONFIG)
    run = tmp_path / "a"
    assert invoke("train", tmp_path / "config.toml", "--out", run).exit_code == 0
    done = invoke("compare", run, "--forget", "c00", "--methods", "retrain,nesterov", "--rounds", 2)
    assert done.exit_code == 0, done.output
    lines = [line.split()[0] for line in done.stderr.splitlines() if "expected:" in line or " 1/2 " in line]
    assert lines == ["expected:", "retrain", "expected:", "nesterov"]
    done = invoke("unlearn", run, "--forget", "c00", "--rounds", 2, "--stop", "never", "--json")
    answer = json.loads(done.stdout)
    for name in ("rounds", "client_epochs", "bytes_down", "bytes_up"):
        assert answer["expected"][name] == answer[name]
