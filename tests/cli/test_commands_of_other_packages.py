"""Commands that other packages register as `feduhb.commands`: listed, run, missing, broken."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from feduhb.cli import app, options
from plugging import install_package

CODE = '''
def wave(times: int = 1) -> None:
    """Wave."""
    print("o/" * times)

number = 7
'''
ENTRIES = """[feduhb.commands]
wave = waving:wave
broken = waving_is_not_there:wave
number = waving:number
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    install_package(tmp_path, monkeypatch, "waving", CODE, ENTRIES)


def invoke(*words: str):
    return CliRunner().invoke(app, list(words))


@pytest.mark.usefixtures("installed")
def test_a_command_is_listed_and_run():
    assert "wave" in invoke("--help").stdout
    assert invoke("wave", "--times", "3").stdout == "o/o/o/\n"
    assert "Wave." in invoke("wave", "--help").stdout


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "why"), [("broken", "cannot be imported from waving 1.0"), ("number", "is not a command")]
)
def test_a_command_that_cannot_be_used_says_why_and_breaks_no_other(name, why):
    ended = invoke(name, "--any", "thing", "--json")
    assert ended.exit_code == 2
    assert ended.stderr.startswith("feduhb: ")
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr
    assert invoke("--help").exit_code == 0
    assert invoke("train", "--help").exit_code == 0


@pytest.mark.parametrize("name", ["reproduce", "theorem"])
def test_without_its_package_a_command_says_what_to_install(monkeypatch, name):
    monkeypatch.setattr(options, "find_plugin", lambda *_: None)
    monkeypatch.setattr(options, "list_plugins", lambda *_: [])
    ended = invoke(name, "mnist", "--quick", "--out", "there")
    assert ended.exit_code == 2
    assert ended.stderr.rstrip().endswith(
        "is not installed; in a clone: pip install -c constraints.txt ./reproduction"
    )
    answer = json.loads(invoke(name, "--json").stdout)
    assert answer["error"]["kind"] == "ConfigError"
    assert name in invoke("--help").stdout
    assert "feduhb-reproduction" in invoke(name, "--help").stdout


def test_a_name_that_no_package_has_is_refused():
    assert invoke("nonsense").exit_code == 2


def test_a_built_in_command_imports_no_other_package():
    code = "import sys; from feduhb.cli import app; app(['train', '--help'], standalone_mode=False); sys.exit(any(m.startswith('feduhb_reproduction') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
