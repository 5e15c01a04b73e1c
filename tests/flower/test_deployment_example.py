"""The example as a person uses it: the script, Ctrl-C, the simulation, and the commands of the guide."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
from torch import nn

pytest.importorskip("flwr")

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import feduhb.flower
import story
from flower.hospital_runs import EXAMPLE, read_rounds
from loopback.federation import QUIET
from loopback.processes import have_ended, list_descendants, list_listening_addresses

GUIDE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()


@pytest.mark.deployment
@pytest.mark.usefixtures("terminal")
def test_a_script_that_receives_a_signal_stops_everything_it_started(tmp_path):
    """By Ctrl-C; a terminal that closes and a supervisor's SIGTERM are handled by the same function."""
    with start_script(tmp_path) as running:
        assert next(iter(running.stdout or ())).startswith("up on 127.0.0.1:")
        started = list_descendants(running.pid)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 128 + signal.SIGINT
        assert have_ended(started)
        for program, count in (("flower-superlink", 1), ("flower-superexec", 4), ("flower-supernode", 3)):
            assert sum(f"/{program} " in words for words in started.values()) == count


@contextlib.contextmanager
def start_script(folder):
    command = [sys.executable, EXAMPLE / "story.py", "--out", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.terminate()


@pytest.mark.deployment
def test_the_example_in_a_simulation(tmp_path, monkeypatch):
    """The very apps of the deployment; Ray listens on loopback, and Flower's SuperLink does not stay behind."""
    with story.prepare(tmp_path, simulation=True) as hospitals:
        superlink, addresses = hospitals.programs["superlink"].process.pid, set()
        wait_for_run = hospitals.wait_for_run

        def watch_run(run):
            addresses.update(
                hospitals.wait_until(lambda: list_addresses_once(superlink, "raylet"), "Ray to listen")
            )
            wait_for_run(run)

        monkeypatch.setattr(hospitals, "wait_for_run", watch_run)
        _, _, audit = story.play(hospitals, "hospital-c", rounds=1)
        started = list_descendants(superlink)
    assert addresses == {"127.0.0.1"}
    assert audit.exactness is not None
    for check in audit.exactness.checks:
        assert check.largest_difference <= 1e-5, check.says
    (record,) = read_rounds(hospitals, "unlearned")
    assert record.answered == ("hospital-a", "hospital-b")
    assert have_ended(started)


def list_addresses_once(superlink, word):
    """Return where all programs below a SuperLink listen, once a program whose command has a word in it listens."""
    below = {superlink: "", **list_descendants(superlink)}
    found = {process: list_listening_addresses(process) for process in below}
    if not any(found[process] for process, words in below.items() if word in words.partition(" ")[0]):
        return set()
    return set().union(*found.values())


def test_the_app_folder_holds_settings_and_no_code():
    (file,) = (path for path in (EXAMPLE / "app").rglob("*") if path.is_file())
    app = tomllib.loads(file.read_text())["tool"]["flwr"]["app"]
    assert set(app["components"].values()) == {"hospitals.server:app", "hospitals.client:app"}


def read_commands(program):
    """Return every command of the guide that runs a program, as a list of words."""
    joined = "\n".join(re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)).replace("\\\n", " ")
    lines = (line.partition(" #")[0] for line in joined.splitlines())
    return [words for line in lines if (words := shlex.split(line)) and words[0] == program]


@pytest.mark.parametrize(
    ("program", "started"),
    [
        ("flower-superlink", "superlink"),
        ("flower-superexec", "superexec"),
        ("flower-supernode", "hospital-a"),
    ],
)
def test_the_guide_names_the_options_that_are_tested(program, started, tmp_path, monkeypatch):
    hospitals = story.prepare(tmp_path)
    launched = {}
    monkeypatch.setattr(hospitals, "launch", lambda name, *words: launched.update({name: words}))
    monkeypatch.setattr(hospitals, "wait_for_log", lambda *_: None)
    monkeypatch.setattr(hospitals, "register", lambda _: None)
    hospitals.start()
    (written,) = read_commands(program)
    assert launched[started][0] == program
    assert {w for w in written if w.startswith("--")} == {w for w in launched[started] if w.startswith("--")}


def test_the_guides_keys_and_certificates_can_be_made_as_written(tmp_path):
    for words in (*read_commands("openssl"), *read_commands("ssh-keygen")):
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    assert {"ca.crt", "server.crt", "server.key", "superexec.secret", "hospital-a", "hospital-a.pub"} <= {
        path.name for path in tmp_path.iterdir()
    }
    shown = subprocess.run(
        ["openssl", "x509", "-in", "server.crt", "-noout", "-ext", "subjectAltName"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "192.0.2.10" in shown.stdout
    for named in ("-verify_ip 192.0.2.10", "-verify_ip 127.0.0.1", "-verify_hostname superlink"):
        verify = ("openssl", "verify", "-CAfile", "ca.crt", *named.split(), "server.crt")
        subprocess.run(verify, cwd=tmp_path, check=True, capture_output=True)


def test_the_guides_superlink_listens_on_loopback_and_only_the_members_come_from_outside():
    """A program that reaches the SuperLink's port can control it."""
    (superlink,), (superexec,), (supernode,) = map(
        read_commands, ("flower-superlink", "flower-superexec", "flower-supernode")
    )
    inside = f"127.0.0.1:{find_value(superlink, '--port')}"
    assert find_value(superlink, "--host") == "127.0.0.1"
    assert find_value(superexec, "--runtime-api-address") == inside
    assert f'address = "{inside}"' in GUIDE
    assert f"proxy_pass https://{inside};" in GUIDE
    host, _, port = find_value(supernode, "--superlink").partition(":")
    assert host != "127.0.0.1"
    assert f"listen {port} ssl;" in GUIDE


def find_value(words, option):
    return words[words.index(option) + 1]


def test_what_the_guide_makes_with_keys_and_patients_in_it_is_for_one_users_eyes():
    blocks = [
        block
        for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
        if re.search(r"^(openssl|ssh-keygen|python -P -m hospitals.data)", block, re.MULTILINE)
    ]
    assert len(blocks) == 4
    assert all("umask 077" in block for block in blocks)
    assert "UMask=0077" in GUIDE


def test_the_guide_sets_what_keeps_the_programs_quiet():
    exported = {word for words in read_commands("export") for word in words[1:]}
    assert exported == {f"{name}={value}" for name, value in QUIET.items()}


def test_the_guides_python_is_real(monkeypatch):
    """Both apps are built from the text as it stands; what would need a grid is compiled and its names are looked up."""
    mine = types.ModuleType("mine")
    mine.__dict__.update(Net=lambda: nn.Linear(2, 2), load=lambda _: None)
    monkeypatch.setitem(sys.modules, "mine", mine)
    server, client, requests, experiment = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    made = dict(vars(mine))
    for code, kind in ((server, ServerApp), (client, ClientApp)):
        exec(compile(code, "docs/flower.md", "exec"), made)  # noqa: S102
        assert isinstance(made["app"], kind)
    exec(compile(requests, "docs/flower.md", "exec"), made)  # noqa: S102
    assert made["second"].trained == made["first"].checkpoint
    assert {*made["onwards"].forget} == {*made["first"].forget, *made["second"].forget}
    compile(experiment, "docs/flower.md", "exec")
    named = set(re.findall(r"feduhb\.flower\.(\w+)", GUIDE)) | set(re.findall(r"`(\w+)\(grid", GUIDE))
    assert named >= {"connected", "FlowerEngine", "introduced", "key_id"}
    assert all(hasattr(feduhb.flower, name) for name in named)


def test_the_guides_settings_are_the_strategies_own():
    (table,) = re.findall(r"\| setting \|.*?\n\n", GUIDE, re.DOTALL)
    named = {
        name for line in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert len(named) >= 11
    kinds = (feduhb.flower.FedUHB, feduhb.flower.PGA)
    assert named <= {field.name for kind in kinds for field in dataclasses.fields(kind)}
