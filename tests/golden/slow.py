"""Cases that take long, and that other tests compute anyway: the demo on a small federation, and Flower's own simulation.

Those tests compare what they find with ``slow.json``. Make it again, from the source on the path, with:

    PYTHONPATH=src:tests python -m golden.slow tests/golden/slow.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from golden.masking import list_differences, mask
from golden.matrix import describe_machine, list_changed_bits

FILE = Path(__file__).with_name("slow.json")
TESTS = Path(__file__).parents[1]


@contextmanager
def small_demo() -> Generator[None]:
    """Let the demo run on less of everything, so that it fits a test."""
    import feduhb
    from feduhb import demo

    assert demo.SETTINGS.federation is not None
    federation = replace(
        demo.SETTINGS.federation, data="digits", backdoor=feduhb.Backdoor(demo.LEAVERS, size=2)
    )
    train = replace(demo.SETTINGS.train, rounds=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SETTINGS", replace(demo.SETTINGS, federation=federation, train=train))
        patch.setattr(demo, "ROUNDS", 4)
        yield


def describe_simulation(folder: Path) -> dict[str, Any]:
    """Return what the simulation of ``flower/simulated.py`` left: digests of weights, who was asked, who was left out."""
    told = json.loads((folder / "told.json").read_text())
    for name, story in told.items():
        weights = torch.load(folder / f"{name}.pt").numpy().tobytes()
        story["weights_sha256"] = sha256(weights).hexdigest()
        story["left_out"] = {number: sorted(names) for number, names in story["left_out"].items()}
    return told


def compare(name: str, found: Any) -> None:
    """Fail where a case is not as it was; weights and floats count only where torch and the CPU are the same."""
    golden = json.loads(FILE.read_text())
    changed = list_changed_bits(golden["header"], describe_machine())
    lines = list_differences(golden["cases"][name], json.loads(json.dumps(found)), exact=not changed)
    assert not lines, f"{len(lines)} differences:\n" + "\n".join(lines[:8])


def main() -> None:
    """Compute both cases and write them."""
    from feduhb.cli import app

    with tempfile.TemporaryDirectory() as scratch:
        with small_demo():
            ended = CliRunner().invoke(app, ["demo", "--out", f"{scratch}/demo", "--json"])
        simulation = Path(scratch) / "simulation"
        simulation.mkdir()
        environment = {**os.environ, "FLWR_HOME": f"{scratch}/flwr", "OMP_NUM_THREADS": "1"}
        program = [sys.executable, str(TESTS / "flower" / "simulated.py"), str(simulation)]
        subprocess.run(program, env=environment, check=True)
        cases = {"demo": mask(json.loads(ended.stdout)), "simulation": describe_simulation(simulation)}
    written = {"header": describe_machine(), "cases": cases}
    Path(sys.argv[1]).write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
