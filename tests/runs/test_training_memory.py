"""How many models' worth of memory the rounds of a large model take, in a process of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from killing import Commands

# ru_maxrss would not do: a child begins with the peak of the process that started it
SCRIPT = r"""
import ctypes, json, os, sys
from functools import partial
from pathlib import Path

os.environ["MKL_DISABLE_FAST_MM"] = "1"  # keeps no buffers
ctypes.CDLL(None).mallopt(-3, 1 << 18)  # M_MMAP_THRESHOLD: larger memory goes back to the system when it is freed

import torch
import feduhb
from feduhb.core.flat import flatten
from feduhb.models import mlp
from feduhb.runs.loop import run

def read(name):
    return 1024 * next(int(l.split()[1]) for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name))

def federate(hidden):
    x, y = torch.rand(40, 784), torch.arange(40) % 10
    own = {f"c{i}": (x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]) for i in range(5)}
    return feduhb.Federation(own, (x, y), partial(mlp, (784,), 10, hidden))

def train_alone(method, federation):
    state = [method.init(flatten(federation.fresh_model()))]
    stream = run(method, make(federation), tuple(federation.clients), state.pop(), rounds=3)
    for _, record in stream:
        note(record)

def train(name, federation):
    feduhb.train(federation, 3, epochs=1, engine=make, out=folder / name, show=note)

def note(_):
    peaks.append(read("VmHWM:") - before)
    Path("/proc/self/clear_refs").write_text("5")

def measure(work, federation):
    global before, peaks
    size = flatten(federation.fresh_model()).nbytes
    Path("/proc/self/clear_refs").write_text("5")
    before, peaks = read("VmRSS:"), []
    work(federation)
    return [peak / size - 1 for peak in peaks]

def unlearn(name, federation):
    made.append(feduhb.train(federation, 1, epochs=1, engine=make, show=None))
    note(None)
    peaks.clear()
    feduhb.unlearn(made[0], "c1", rounds=3, stop=feduhb.never, out=folder / name, show=note)

made, peaks, before, folder = [], [], 0, Path(sys.argv[1])
make = lambda federation, local=None: feduhb.Pool(federation, local, threads=2)
small, large = federate(9), federate(21_500)
train("warm", small)  # what Python and torch load once
ways = {
    "loop": partial(train_alone, feduhb.Retrain(epochs=1)), "train": partial(train, "train"),
    "unlearn": partial(unlearn, "unlearn"),
}
print(json.dumps({name: measure(work, large) for name, work in ways.items()}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from /proc")
def test_no_round_of_a_large_model_holds_a_model_in_vain(commands: Commands, tmp_path: Path):
    """With two threads: each trains a model and has a gradient or an answer. The others are their sum and, for FedUHB, w[t-1].

    That is beyond the server's model and the federation's fresh one. `unlearn` also keeps the run that is to forget.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    done = commands.run_script(tmp_path / "script.py", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    needed = {"loop": 5, "train": 5, "unlearn": 7}
    assert {name: len(peaks) for name, peaks in found.items()} == dict.fromkeys(needed, 3)
    assert all(3 < max(found[name]) < count + 0.5 for name, count in needed.items()), found
