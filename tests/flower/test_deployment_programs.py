"""The programs of a federation on loopback: one start per folder, no time limit on a run, an error message for every failure."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys

import pytest

pytest.importorskip("flwr")

import story
from flower.hospital_runs import EXAMPLE
from loopback import FederationError, LocalFederation, exit_on_signals
from loopback import federation as federation_module
from loopback.federation import COMPLETED
from loopback.folder_lock import LOCK, list_holders
from loopback.keys import make_node_key
from loopback.processes import have_ended, list_listening_addresses

FLWR = """#!/bin/sh
case "$1" in
  list) cat status ;;
  log) until [ -e ended ]; do sleep 0.05; done ;;
  hang) exec sleep 600 ;;
esac
"""


class Sleeping(LocalFederation):
    """A federation whose programs do nothing."""

    def start(self):
        self.launch("superlink", sys.executable, "-c", "import time; time.sleep(600)")

    def client_id(self, name):
        return name


@pytest.fixture
def sleeping(tmp_path):
    with Sleeping(tmp_path / "out", {}) as federation:
        yield federation


def test_a_folder_is_one_federations_at_a_time(sleeping):
    with pytest.raises(FederationError, match="is in use: another start works there"):
        Sleeping(sleeping.folder, {}).__enter__()
    assert sleeping.programs["superlink"].is_running
    sleeping.stop()
    with Sleeping(sleeping.folder, {}) as second:
        assert second.programs["superlink"].is_running


def test_programs_run_no_code_from_the_folder_they_are_started_in(sleeping):
    (sleeping.folder / "planted.py").write_text("print('code of the folder ran')")
    program = sleeping.launch("planted", sys.executable, "-c", "import planted")
    program.process.wait()
    assert "No module named 'planted'" in program.read_log()
    seen = sleeping.launch("paths", sys.executable, "-c", "import sys; print(sys.path)")
    seen.process.wait()
    assert "''" not in seen.read_log()
    assert str(sleeping.folder) not in seen.read_log()


def test_what_a_killed_start_left_behind_is_named_by_process_id_and_keeps_the_folder(sleeping):
    left_behind = sleeping.programs["superlink"].process.pid
    sleeping.lock.close()  # as when the process that started it is killed
    assert list_holders(sleeping.folder / LOCK) == [left_behind]
    with pytest.raises(FederationError, match=rf"end them \(kill {left_behind}\)"):
        Sleeping(sleeping.folder, {}).__enter__()
    sleeping.programs["superlink"].kill()
    assert have_ended([left_behind])
    with Sleeping(sleeping.folder, {}) as second:
        assert second.programs["superlink"].is_running


@pytest.mark.slow
def test_a_refused_start_stops_nothing_and_prints_no_traceback(sleeping):
    command = (sys.executable, EXAMPLE / "story.py", "--out", sleeping.folder)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "is in use" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "stopped" not in ended.stdout
    assert sleeping.programs["superlink"].is_running
    assert stat.S_IMODE((sleeping.folder / "data").stat().st_mode) == 0o700
    assert stat.S_IMODE((sleeping.folder / "data" / "hospital-a.npz").stat().st_mode) == 0o600


@pytest.mark.parametrize(("kind", "other"), [("deployment", "simulation"), ("simulation", "deployment")])
def test_a_folder_is_of_one_kind_of_federation(tmp_path, kind, other, monkeypatch):
    """A deployment cannot continue the runs of a simulation, nor a simulation those of a deployment."""
    kinds = {name: story.prepare(tmp_path, simulation=name == "simulation") for name in (kind, other)}
    for federation in kinds.values():
        monkeypatch.setattr(federation, "start", lambda: None)
    for _ in range(2):
        with kinds[kind]:
            pass
        with pytest.raises(FederationError, match=f"holds a {kind}; take another folder"):
            kinds[other].__enter__()


@pytest.fixture
def scripted(sleeping, tmp_path):
    """A federation whose `flwr` gives the status that stands in a file, and streams a log until another file is there."""
    program = tmp_path / "bin" / "flwr"
    program.parent.mkdir()
    program.write_text(FLWR)
    program.chmod(0o700)
    sleeping.environment["PATH"] = f"{program.parent}:{sleeping.environment['PATH']}"
    return sleeping


def set_status(federation, status):
    (federation.folder / "status").write_text(json.dumps({"success": True, "runs": [{"status": status}]}))


class Clock:
    """A clock that advances by 15 minutes between two looks; the run ends at the fifth."""

    def __init__(self, federation):
        self.federation, self.looks = federation, 0

    def monotonic(self):
        return 900.0 * self.looks

    def sleep(self, _):
        self.looks += 1
        if self.looks == 5:
            set_status(self.federation, COMPLETED)
            (self.federation.folder / "ended").touch()


def test_a_run_is_waited_for_as_long_as_it_lives(scripted, monkeypatch):
    clock = Clock(scripted)
    monkeypatch.setattr(federation_module, "time", clock)
    set_status(scripted, "running")
    scripted.wait_for_run(7)
    assert clock.looks >= 5
    with pytest.raises(FederationError, match="waited 300 s for a wonder"):
        scripted.wait_until(lambda: False, "a wonder")


def test_a_failed_run_is_an_error_with_its_status(scripted):
    set_status(scripted, "finished:failed")
    (scripted.folder / "ended").touch()
    with pytest.raises(FederationError, match="run 7 ended as finished:failed"):
        scripted.wait_for_run(7)


def test_a_run_whose_superlink_has_died_is_not_waited_for(scripted):
    set_status(scripted, "running")
    scripted.programs["superlink"].kill()
    with pytest.raises(FederationError, match="superlink ended while waiting for run 7 to end"):
        scripted.wait_for_run(7)


def test_a_superlink_that_does_not_answer_is_an_error(scripted, monkeypatch):
    monkeypatch.setattr(federation_module, "PATIENCE", 0.1)
    with pytest.raises(FederationError, match=r"flwr hang .*had no answer after 0 s; read the logs in"):
        scripted.call_flwr("hang")


def test_a_missing_program_is_an_error_that_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(FederationError, match=r"ssh-keygen is not installed.*apt-get install openssh-client"):
        make_node_key(tmp_path / "key")


@pytest.mark.parametrize(("host", "seen"), [("127.0.0.1", "127.0.0.1"), ("", "0.0.0.0")])  # noqa: S104
def test_where_a_process_listens_is_seen(host, seen):
    """The control of the test about Ray."""
    before = list_listening_addresses(os.getpid())
    with socket.create_server((host, 0)):
        assert list_listening_addresses(os.getpid()) == before | {seen}


@pytest.fixture
def kept_signals():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_a_request_to_end_and_a_terminal_that_closes_end_the_script(number):
    signal.signal(number, signal.SIG_DFL)
    exit_on_signals()
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(number)
    assert ended.value.code == 128 + number


@pytest.mark.usefixtures("kept_signals")
def test_a_script_under_nohup_outlives_its_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    exit_on_signals()
    signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
