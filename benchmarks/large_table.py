"""Read a table that is larger than the memory allowed for it: seconds, and the peak of memory, from a CSV file.

    python benchmarks/large_table.py --gigabytes 2 --json results/benchmarks/large-table.json

The reader runs in a process of its own. Its peak is the largest resident size that is not backed by files (RssAnon), sampled
every 50 ms: pages of files, in which large tensors are kept, go back to the system when it needs them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS, CLIENTS, BLOCK = 20, 50, 50_000
READ = """
import sys, feduhb
federation = feduhb.Federation.from_table(sys.argv[1], client="client", target="target", standardize=sys.argv[2] == "yes")
print(sum(map(len, federation.clients.values())), len(federation.test))
"""


def write_table(path: Path, size: int) -> int:
    """Write a CSV file of about ``size`` bytes; return its rows."""
    draw = np.random.default_rng(0)
    names = ["client", *(f"x{i}" for i in range(COLUMNS)), "target"]
    rows = 0
    with path.open("w") as file:
        file.write(",".join(names) + "\n")
        while file.tell() < size:
            x = draw.normal(size=(BLOCK, COLUMNS)).astype(np.float32)
            lines = zip(
                draw.integers(CLIENTS, size=BLOCK), x.tolist(), draw.integers(2, size=BLOCK), strict=True
            )
            block = "".join(f"c{c},{','.join(map('{:.6g}'.format, row))},{y}\n" for c, row, y in lines)
            for _ in range(10):  # most of the time would go into formatting numbers
                file.write(block)
                rows += BLOCK
    return rows


def read_peak(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Return the largest anonymous and total resident sizes of a process until it ends, in MiB."""
    anonymous = total = 0.0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except FileNotFoundError:
            break
        values = {
            line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Rss")
        }
        sizes = [int(values.get(name, 0)) / 1024 for name in ("RssAnon", "RssFile", "RssShmem")]
        anonymous, total = max(anonymous, sizes[0]), max(total, sum(sizes))
        time.sleep(0.05)
    return anonymous, total


def measure(path: Path, standardize: bool) -> dict[str, float | str]:
    """Read a table in a process of its own; return what it took."""
    began = time.perf_counter()
    words = [sys.executable, "-c", READ, str(path), "yes" if standardize else "no"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        anonymous, total = read_peak(process)
        said = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise SystemExit(f"reading {path} failed")
    trained, tested = map(int, said.split())
    return {
        "standardize": standardize, "training rows": trained, "test rows": tested,
        "seconds": round(time.perf_counter() - began, 1), "peak MiB": round(anonymous), "peak with files MiB": round(total),
    }  # fmt: skip


def main() -> None:
    """Write a table, read it with and without standardising, and print what it took."""
    parser = argparse.ArgumentParser(
        description="Read a table that is larger than the memory allowed for it."
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        rows = write_table(path, int(given.gigabytes * 1e9))
        found = {
            "bytes": path.stat().st_size, "rows": rows, "columns": COLUMNS, "clients": CLIENTS,
            "reading": [measure(path, standardize) for standardize in (False, True)],
        }  # fmt: skip
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
