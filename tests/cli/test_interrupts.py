"""Ctrl-C at any moment from the first import on: one line, and exit status 130."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import typer

from feduhb.cli import quit_at_once
from feduhb.cli.options import answering
from feduhb.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("terminal")]  # each test starts a process

INTERRUPTING = """
import importlib.abc, os, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupting())
from feduhb.cli import main
sys.exit(main())
"""


def interrupt_at(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the console script does, and press Ctrl-C when it begins to import a module."""
    command = [sys.executable, "-c", INTERRUPTING, module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("module", ["feduhb.cli.commands", "typer", "click", "feduhb.cli.unlearn"])
def test_while_the_commands_are_imported(module):
    ended = interrupt_at(module, "--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "feduhb: interrupted\n")


@pytest.mark.parametrize("module", ["feduhb.api", "feduhb.runs.config", "numpy"])
def test_while_a_command_imports_what_it_needs(module, tmp_path):
    ended = interrupt_at(module, "train", "config.toml", "--out", str(tmp_path / "run"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "feduhb: interrupted\n")


def test_a_module_that_is_never_imported_does_not_interrupt():
    ended = interrupt_at("there.is.none", "--version")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("feduhb ")


CONFIG = '[federation]\ndata = "digits"\nclients = 4\nmodel = "softmax"\n[train]\nrounds = 1\n'


def test_while_a_command_works_it_is_told_what_is_kept(tmp_path):
    """The digits are read by scikit-learn, which is imported when the work has begun."""
    (tmp_path / "config.toml").write_text(CONFIG)
    ended = interrupt_at("sklearn", "train", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run"))
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "feduhb: interrupted; finished rounds are kept; continue with --resume\n"


def test_a_caller_that_ignores_it_is_respected():
    """A shell starts programs in the background in this way."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + INTERRUPTING
    command = [sys.executable, "-c", code, "typer", "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def fail_at_interrupt(error: Exception) -> None:
    """Press Ctrl-C and fail in another way for it, as compiled code may."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise error from None


@pytest.mark.parametrize(("error", "code"), [(TypeError("compiled"), 130), (ConfigError("wrong"), 2)])
def test_a_library_that_fails_because_of_it_does_not_hide_it(error, code, capsys):
    before = signal.signal(signal.SIGINT, quit_at_once)
    try:
        with pytest.raises(typer.Exit) as ended, answering(json=False):
            fail_at_interrupt(error)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.exit_code == code
    assert capsys.readouterr().err == f"feduhb: {'interrupted; start again' if code == 130 else 'wrong'}\n"
