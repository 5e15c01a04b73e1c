"""Time the command line against that of another commit: `feduhb --help`, `feduhb unlearn` on a tiny run, and the demo.

    python benchmarks/commands.py COMMIT [--runs 7] [--demo]

Both run in turns, so that other load slows both alike. The medians and their ratio are printed; below 1, this tree is faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = """
seed = 1
[federation]
data = "digits"
clients = 4
model = "softmax"
[train]
rounds = 3
epochs = 1
"""


def time_command(tree: Path, *arguments: object) -> float:
    """Return the seconds that a command took with the source of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-P", "-m", "feduhb", *map(str, arguments)]
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def measure(
    trees: dict[str, Path], folder: Path, runs: int, *, demo: bool
) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each command, by command and by tree."""
    (folder / "config.toml").write_text(CONFIG)
    time_command(trees["before"], "train", folder / "config.toml", "--out", folder / "run")
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(runs):
        for name, tree in trees.items():
            copy = shutil.copytree(folder / "run", folder / f"{name}-{number}")
            seconds = {"--help": time_command(tree, "--help")}
            seconds["unlearn"] = time_command(tree, "unlearn", copy, "--forget", "c00", "--rounds", 3)
            if demo and number < 3:
                seconds["demo"] = time_command(tree, "demo", "--out", folder / f"demo-{name}")
            for command, took in seconds.items():
                found.setdefault(command, {}).setdefault(name, []).append(took)
    return found


def main() -> None:
    """Check the other commit out, measure, and print."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("commit")
    words.add_argument("--runs", type=int, default=7)
    words.add_argument("--demo", action="store_true", help="the demo too, three times each")
    given = words.parse_args()
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="feduhb-commands-") as scratch:
        before = Path(scratch) / "before"
        subprocess.run([*git, "add", "--quiet", "--detach", str(before), given.commit], check=True)
        try:
            trees = {"before": before, "now": ROOT}
            found = measure(trees, Path(scratch), given.runs, demo=given.demo)
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)
    print("| command | before, s | now, s | ratio |\n|---|---:|---:|---:|")
    for command, seconds in found.items():
        old, new = (statistics.median(seconds[name]) for name in ("before", "now"))
        print(f"| feduhb {command} | {old:.2f} | {new:.2f} | {new / old:.2f} |")


if __name__ == "__main__":
    main()
