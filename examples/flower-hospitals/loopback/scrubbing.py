"""What clients sent stays behind in a SuperLink's database files after Flower has deleted it. This takes it out.

python -m loopback.scrubbing DATABASE
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from pathlib import Path

PATIENCE = 60.0  # seconds to wait for a moment in which the SuperLink reads nothing


def scrub(database: Path) -> None:
    """Write the database anew with what it still holds, and empty its write-ahead log; the SuperLink may go on meanwhile."""
    with contextlib.closing(sqlite3.connect(database, timeout=PATIENCE, isolation_level=None)) as link:
        link.execute("VACUUM")
        end = time.monotonic() + PATIENCE
        while link.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # somebody reads
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{database} was in use for {PATIENCE:.0f} s; stop the SuperLink and try again"
                )
            time.sleep(0.1)


if __name__ == "__main__":
    scrub(Path(sys.argv[1]))
