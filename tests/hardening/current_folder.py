"""Code in the current folder: modules there, named like those that commands import, must never run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hardening.running import STATE, make_scratch
from hardening.scenes import COMPARE, FEDERATION, Stage, unlearn
from hardening.tally import Finding

NAMES = (
    "queue",
    "json",
    "torch",
    "feduhb",
    "sitecustomize",
    "usercustomize",
    "pickle",
    "cloudpickle",
    "numpy",
    "typer",
)
CODE = """
import os
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "marker"), "a") as file:
    file.write(__name__ + " by " + " ".join(os.sys.argv[:3])[:200] + "\\n")
"""
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--version",),
    ("audit", "first-feduhb", "--original", "first", "--canaries", "0", "--relearn", "0", "--shadows", "4"),
    ("train", FEDERATION, "--out", "new"),
    unlearn("retrain", "next", "first-feduhb", "c02"),
    (*COMPARE[:1], "first-feduhb", "--forget", "c02", *COMPARE[4:]),
    ("report", "first", "first-feduhb", "--out", "page"),
)


def try_command(unlearned: Path, arguments: tuple[str, ...]) -> list[Finding]:
    """Run the installed command in a folder with such modules, in a real process; return which of them were run."""
    with make_scratch() as scratch:
        place = Stage.copy(unlearned, scratch / "runs")
        for name in NAMES:
            (place / f"{name}.py").write_text(CODE)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "FEDUHB_STATE": str(place / STATE)}
        program = Path(sys.executable).with_name("feduhb")
        ended = subprocess.run(
            [program, *arguments], cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        found: list[Finding] = []
        command = " ".join(arguments)
        if ended.returncode != 0:
            found.append(
                Finding(
                    "exit code", command, "current folder", (ended.stderr.strip().splitlines() or [""])[-1]
                )
            )
        if (place / "marker").exists():
            found += [
                Finding("foreign", command, "current folder", f"code of the current folder was run: {line}")
                for line in sorted({*(place / "marker").read_text().splitlines()})
            ]
        return found
