"""kill -9 at any moment, then --resume: the same weights, to the last bit."""

import json
import random
import signal

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from feduhb.runs.folder import RunFolder

pytestmark = pytest.mark.slow

CONFIG = """
seed = 5
[federation]
data = "digits"
clients = 6
partition = "dirichlet:0.5"
[train]
rounds = 3
epochs = 1
lr = 0.05
clients_per_round = 4
"""


@pytest.fixture(scope="module")
def feduhb(commands):
    """Run the command line in a process of its own, killed at its kill_at-th moment."""
    return commands.feduhb


@pytest.fixture(scope="module")
def whole(feduhb, tmp_path_factory):
    """A trained run, an unlearning that was never killed, and its number of moments."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "config.toml").write_text(CONFIG)
    assert feduhb("train", folder / "config.toml", "--out", folder / "run").returncode == 0
    unlearn = ("unlearn", folder / "run", "--forget", "c01,c02:0-9", "--rounds", 10, "--stop", 0.9)
    moments = {}
    for kind in ("any", "disk"):
        done = feduhb(*unlearn, "--out", folder / kind, kind=kind)
        assert done.returncode == 0, done.stderr
        moments[kind] = done.moments
    assert torch.equal(read_weights(folder / "any"), read_weights(folder / "disk"))
    return folder, unlearn, moments


def read_weights(folder):
    return load_file(folder / "state.safetensors")["params"]


def assert_same_run(folder, reference):
    """Assert the same weights and rounds; only times may differ."""
    a, b = RunFolder(folder), RunFolder(reference)
    facts = [
        [(r.round, r.asked, r.answered, r.moved, r.threshold, r.stopped, r.scores) for r in each.rounds()]
        for each in (a, b)
    ]
    assert torch.equal(read_weights(folder), read_weights(reference))
    assert a.result()["weights_sha256"] == b.result()["weights_sha256"]
    assert facts[0] == facts[1]


def count_rounds(folder):
    """Return the number of rounds before the checkpoint; 0 if there is none yet."""
    path = folder / "state.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["state"].partition(" ")[2])["rounds_done"]


def test_killed_at_ten_random_moments(feduhb, whole):
    """In the last third of a run's moments, which are mostly rounds; tests/hardening stops it at its first events too."""
    folder, unlearn, moments = whole
    reached = []
    for number in range(10):
        out = folder / f"random-{number}"
        killed = feduhb(
            *unlearn,
            "--out",
            out,
            kill_at=random.Random(number).randrange(2 * moments["any"] // 3, moments["any"]),
        )
        assert killed.returncode == -signal.SIGKILL
        reached.append(count_rounds(out))
        resumed = feduhb(*unlearn, "--out", out, "--resume")
        assert resumed.returncode == 0, resumed.stderr
        assert_same_run(out, folder / "any")
    total = len(RunFolder(folder / "any").rounds())
    assert sum(0 < done < total for done in reached) >= 7, f"kills fell after {reached} rounds of {total}"


def test_killed_again_and_again_around_its_writes(feduhb, whole):
    """Ten kills in one run, each at a call that touches the disk: before and after write, fsync and rename."""
    folder, unlearn, moments = whole
    out = folder / "again"
    draw = random.Random(1)
    kills = 0
    while kills < 10:
        ended = feduhb(
            *unlearn, "--out", out, "--resume", kind="disk", kill_at=draw.randrange(2, moments["disk"] // 3)
        )
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        kills += 1
    assert kills >= 3
    assert feduhb(*unlearn, "--out", out, "--resume").returncode == 0
    assert_same_run(out, folder / "any")
    assert not list(out.glob("*.tmp"))


def test_a_finished_run_resumed_is_left_as_it_is(feduhb, whole):
    folder, unlearn, _ = whole
    before = {path.name: path.read_bytes() for path in (folder / "any").iterdir()}
    assert feduhb(*unlearn, "--out", folder / "any", "--resume").returncode == 0
    after = {path.name: path.read_bytes() for path in (folder / "any").iterdir()}
    assert before == after
