"""Look at processes through /proc: their descendants, the addresses they listen on, and whether they have ended."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

PATIENCE = 60.0  # seconds that killed processes have to end


def list_descendants(process: int) -> dict[int, str]:
    """Return the command lines of all living processes below a process, by process id."""
    found: dict[int, str] = {}
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            found |= {int(child): words} if words else {}
            found |= list_descendants(int(child))
    return found


def list_listening_addresses(process: int) -> set[str]:
    """Return the addresses on which a process listens for TCP connections."""
    tables, handles = [], set()
    with contextlib.suppress(OSError):  # the process has just ended
        tables = [Path(f"/proc/{process}/net/{table}").read_text() for table in ("tcp", "tcp6")]
        for handle in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):  # the file has just been closed
                handles.add(str(handle.readlink()))
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    return {_parse_address(row[1]) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in handles}


def _parse_address(written: str) -> str:
    """Parse an address as the kernel writes it: words of four bytes in reverse order, and a port."""
    words = bytes.fromhex(written.partition(":")[0])
    found = ipaddress.ip_address(b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4)))
    return str(getattr(found, "ipv4_mapped", None) or found)


def have_ended(processes: Iterable[int]) -> bool:
    """Return whether all processes end within a minute; a killed process does when the kernel gets to it."""
    end = time.monotonic() + PATIENCE
    waiting = {process for process in processes if _is_alive(process)}
    while waiting and time.monotonic() < end:
        time.sleep(0.1)
        waiting = {process for process in waiting if _is_alive(process)}
    return not waiting


def _is_alive(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_serverapp(above: int) -> None:
    """Kill the ServerApp that runs somewhere below a process, and nothing else."""
    (process,) = (p for p, words in list_descendants(above).items() if "flwr-serverapp" in words)
    os.kill(process, signal.SIGKILL)
