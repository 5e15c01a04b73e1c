"""A round that FedRecover estimates, for 20 clients and a million parameters, stays under 1 GiB of extra memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from feduhb.core.types import Updates
from killing import Commands
from runs.remembering import written

CLIENTS, SIZE = 20, 1_000_000
GIB = 2**30
# ru_maxrss would not do: a child begins with the peak of the process that started it
SCRIPT = r"""
import json, re, sys
from pathlib import Path
import torch
from feduhb.runs.history import DiskHistory
from feduhb.methods.fedrecover import FedRecover, Recovery

folder, clients, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
history = DiskHistory(folder)
names = tuple(f"c{i:02d}" for i in range(clients))
method = FedRecover(warmup=3, buffer=2, correction=0, final=0, abnormal=0.0, history=history, clients=names)
peak = lambda: 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])

torch.set_num_threads(1)
before = peak()
params = torch.full((size,), 0.5)
s = torch.randn(size).expand(clients, 2, size).clone()
s[:, 1] += 1
state = Recovery(params, 3, torch.tensor(1e30, dtype=torch.float64), s, s * 2, torch.full((clients,), 2))
held = peak() - before
work = method.ask(state)
told = method.tell(state, ())
print(json.dumps({
    "state": held, "extra": peak() - before, "asked": work is not None,
    "step": told.step, "finite": bool(torch.isfinite(told.params).all()), "moved": bool((told.params != params).all()),
}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_an_estimated_round_of_20_million_numbers(commands: Commands, tmp_path: Path):
    """Pairs included. They alone are 2 x 2 x 20 x 4 MB = 320 MB; in float64 and at once the product would be 960 MB more."""
    names = [f"c{i:02d}" for i in range(CLIENTS)]
    draw, few = torch.Generator().manual_seed(0), torch.zeros(3)
    small = [Updates(("c00",), few[None], torch.ones(1))]
    history = written(tmp_path, dict.fromkeys(range(3), small), few)  # exact rounds, never read
    history.begin(3, torch.zeros(SIZE))
    blocks = [
        history.append(
            3,
            i,
            Updates(tuple(names[i * 4 : i * 4 + 4]), torch.randn(4, SIZE, generator=draw), torch.ones(4)),
        )
        for i in range(CLIENTS // 4)
    ]
    history.finish(3, torch.zeros(SIZE), blocks)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = commands.run_script(tmp_path / "script.py", tmp_path, CLIENTS, SIZE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["asked"], found["step"], found["finite"], found["moved"]) == (False, 4, True, True)
    assert found["state"] >= 2 * 2 * CLIENTS * SIZE * 4 * 0.9
    assert found["extra"] < GIB
