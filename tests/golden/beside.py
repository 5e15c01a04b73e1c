"""Compare the golden matrix of another commit with that of this source tree.

    python tests/golden/beside.py COMMIT

The commit is checked out into a temporary git worktree. This tree's ``golden.matrix`` runs on both, each time with
``PYTHONPATH`` set to the ``src`` of its tree, so the environment of this Python must hold what both need. The first
differences are printed, and the exit code is 1, where a case of the commit is missing here or has changed; else "equal: N
cases". Both run on this machine, so weights and floats are always compared. Each side takes about as long as ``golden.matrix``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHOWN = 20  # differences that are printed


def compute_at(source: Path, out: Path) -> dict[str, Any]:
    """Return the cases of a source tree, computed in a process of its own."""
    paths = os.pathsep.join(str(path) for path in (source / "src", ROOT / "tests"))
    command = [sys.executable, "-m", "golden.matrix", str(out)]
    subprocess.run(command, check=True, cwd=out.parent, env={**os.environ, "PYTHONPATH": paths})
    return json.loads(out.read_text())["cases"]


def compute_both(commit: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the cases of a commit and of this tree."""
    with tempfile.TemporaryDirectory(prefix="feduhb-beside-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            old = compute_at(tree, Path(folder) / "old.json")
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
        return old, compute_at(ROOT, Path(folder) / "new.json")


def main() -> int:
    """Print the first differences, or that there are none; return the exit code."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python tests/golden/beside.py COMMIT\n")
        return 2
    sys.path.insert(0, str(ROOT / "tests"))
    from golden.masking import list_differences

    old, new = compute_both(sys.argv[1])
    lines = list_differences(old, new)
    if lines:
        sys.stdout.write("\n".join([*lines[:SHOWN], f"{len(lines)} differences in {len(old)} cases", ""]))
        return 1
    sys.stdout.write(f"equal: {len(old)} cases\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
