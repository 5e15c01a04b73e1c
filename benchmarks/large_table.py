"""Read and train on a table that is larger than the memory allowed for it: seconds, and the peak of memory, from a CSV file.

    sudo python benchmarks/large_table.py --gigabytes 2 --limit 1 --json results/benchmarks/large-table.json

The reader runs in a process of its own. With ``--limit`` that process is in a control group of its own, whose memory the
system limits to that many gigabytes. The page cache counts too: pages of the table, of the files in which large tensors are
kept, and pages that are still to be written to the disk. If they would exceed the limit, the system writes and drops pages,
or else ends the process. The peak is the largest resident size that is not backed by files (RssAnon), sampled every 50 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS, CLIENTS, BLOCK = 20, 50, 50_000
CONTROL = Path("/sys/fs/cgroup")
READ = """
import sys, feduhb
federation = feduhb.Federation.from_table(sys.argv[1], client="client", target="target", standardize=sys.argv[2] == "True")
if sys.argv[3] == "True":
    run = feduhb.train(federation, rounds=1, epochs=1, batch_size=256, clients_per_round=2, show=None)
    feduhb.unlearn(run, [next(iter(federation.clients))], rounds=1, show=None)
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


@contextmanager
def limit_memory(size: int) -> Generator[Path]:
    """Make a control group whose processes have at most ``size`` bytes of memory, without swap, and remove it at the end."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    if "memory" in own:  # version 1: a group inside that of this process
        parent, limits = (
            CONTROL / "memory" / own["memory"].lstrip("/"),
            ("limit_in_bytes", "memsw.limit_in_bytes"),
        )
    else:  # version 2: a group beside it, because a group with processes cannot limit groups inside it
        parent, limits = (CONTROL / own[""].lstrip("/")), ("max", "swap.max")
        parent = parent if parent == CONTROL else parent.parent
    group = parent / f"feduhb-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise SystemExit(
            f"no control group can be made here ({error}); run as root, or without --limit"
        ) from None
    try:
        memory, swap = (group / f"memory.{name}" for name in limits)
        if not memory.exists():
            raise SystemExit(f"control groups in {parent} do not limit memory; run without --limit")
        memory.write_text(str(size))
        if swap.exists():
            swap.write_text(str(size) if "memory" in own else "0")
        yield group
    finally:
        group.rmdir()


def forget_pages(path: Path) -> None:
    """Drop the pages of a file from memory, so that the next reader is charged for them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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


def measure(path: Path, standardize: bool, limit: int | None, *, train: bool = False) -> dict[str, Any]:
    """Read a table in a process of its own, or also train and unlearn on it, two clients a round; return what it took."""
    forget_pages(path)
    words = [sys.executable, "-c", READ, str(path), str(standardize), str(train)]
    with nullcontext() if limit is None else limit_memory(limit) as group:
        if group is not None:
            words = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *words]
        began = time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            anonymous, total = read_peak(process)
            said = process.stdout.read() if process.stdout else ""
        seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"reading {path} with standardize={standardize} failed: status {process.returncode}")
    trained, tested = map(int, said.split())
    return {
        "standardize": standardize, "train": train, "limit bytes": limit, "training rows": trained, "test rows": tested,
        "seconds": round(seconds, 1), "peak MiB": round(anonymous), "peak with files MiB": round(total),
    }  # fmt: skip


def main() -> None:
    """Write a table, read it with and without standardising, and print what it took."""
    parser = argparse.ArgumentParser(
        description="Read a table that is larger than the memory allowed for it."
    )
    parser.add_argument("--gigabytes", type=float, default=2.0, help="the size of the table")
    parser.add_argument(
        "--limit",
        type=float,
        help="gigabytes of memory that the reader may use, page cache included; needs root",
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    limit = None if given.limit is None else int(given.limit * 1e9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        rows = write_table(path, int(given.gigabytes * 1e9))
        found = {
            "command": " ".join(["python", *sys.argv]), "bytes": path.stat().st_size, "rows": rows, "columns": COLUMNS,
            "clients": CLIENTS,
            "reading": [measure(path, own, limit, train=train) for train in (False, True) for own in (False, True)],
        }  # fmt: skip
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
