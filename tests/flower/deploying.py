"""The example's own programs, as tests drive them, in a network that has nothing but loopback."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from pathlib import Path

from torch import Tensor

import feduhb
from feduhb.core.flat import flatten
from feduhb.run import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-hospitals"
sys.path.insert(0, str(EXAMPLE))

import story  # noqa: E402
from hospitals.server import EPOCHS, LOCAL, MOMENTUM, STOP  # noqa: E402
from loopback import COMPLETED, Deployment, FederationError  # noqa: E402
from loopback.keys import node_key  # noqa: E402
from loopback.running import CONNECTION  # noqa: E402

__all__ = [
    "COMPLETED",
    "CONNECTION",
    "EPOCHS",
    "EXAMPLE",
    "LOCAL",
    "FederationError",
    "descendants",
    "gone",
    "in_process",
    "island",
    "kill_serverapp",
    "listening",
    "node_key",
    "story",
]

HOLDER = """
import fcntl, pathlib, socket, struct, subprocess, sys, tempfile
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
with tempfile.TemporaryDirectory() as folder:
    resolver = pathlib.Path(folder, "resolv.conf")
    resolver.write_text("nameserver 192.0.2.53\\n")  # elsewhere, so that looking up a name is an attempt to leave
    subprocess.run(["mount", "--bind", resolver, "/etc/resolv.conf"], check=True)
    print("up", flush=True)
    sys.stdin.read()
"""


class Island:
    """A network whose only device is loopback; the kernel counts every attempt to leave it."""

    def __init__(self, holder: int) -> None:
        spaces = f"/proc/{holder}/ns"
        self.prefix = ("nsenter", f"--net={spaces}/net", f"--mount={spaces}/mnt", "--")

    def attempts(self) -> int:
        """Give how many packets anybody inside wanted to send for which there was no route."""
        names, counts = (line.split() for line in self._read("/proc/net/snmp").splitlines()[:2])
        four = dict(zip(names, counts, strict=True))
        six = dict(line.split() for line in self._read("/proc/net/snmp6").splitlines())
        return int(four["OutNoRoutes"]) + int(six["Ip6OutNoRoutes"])

    def _read(self, file: str) -> str:
        command = (*self.prefix, "cat", file)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def run(self, code: str) -> str:
        """Run some Python inside."""
        command = (*self.prefix, sys.executable, "-c", code)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def island() -> Generator[Island | None]:
    """Make such a network, or give None where this user may not."""
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        yield None
        return
    command = ("unshare", "--net", "--mount", sys.executable, "-c", HOLDER)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        up = holder.stdout.readline().strip() == "up"
        try:
            yield Island(holder.pid) if up else None
        finally:
            holder.stdin.close()


def descendants(process: int) -> dict[int, str]:
    """Give the living processes below one, with their command lines."""
    found: dict[int, str] = {}
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            found |= {int(child): words} if words else {}
            found |= descendants(int(child))
    return found


def listening(process: int) -> set[str]:
    """Give the addresses that a process listens on for TCP."""
    tables, handles = [], set()
    with contextlib.suppress(OSError):  # it has just ended
        tables = [Path(f"/proc/{process}/net/{table}").read_text() for table in ("tcp", "tcp6")]
        for handle in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):  # it has just been closed
                handles.add(str(handle.readlink()))
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    return {_address(row[1]) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in handles}


def _address(written: str) -> str:
    """Read an address as the kernel writes it: words of four bytes, each the wrong way round, and a port."""
    words = bytes.fromhex(written.partition(":")[0])
    found = ipaddress.ip_address(b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4)))
    return str(getattr(found, "ipv4_mapped", None) or found)


def gone(processes: Iterable[int]) -> bool:
    """Wait for processes to end, as a killed one does when the kernel comes to it; give up after a minute."""
    end = time.monotonic() + 60
    waiting = {process for process in processes if _alive(process)}
    while waiting and time.monotonic() < end:
        time.sleep(0.1)
        waiting = {process for process in waiting if _alive(process)}
    return not waiting


def _alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_serverapp(superexec: int) -> None:
    """End the ServerApp that a SuperExec runs, and nothing else, without a farewell."""
    (process,) = (p for p, words in descendants(superexec).items() if "flwr-serverapp" in words)
    os.kill(process, signal.SIGKILL)


def in_process(hospitals: Deployment, forget: feduhb.Request, rounds: int) -> Tensor:
    """Give the weights of an erasure by the loop in one process, on a federation that is without what is forgotten."""
    whole = story.audit.federation(hospitals.folder / "data", story.ids_of(hospitals))
    remaining, method = whole.without(forget), feduhb.FedUHB(momentum=MOMENTUM, epochs=EPOCHS)
    start = method.init(flatten(remaining.fresh_model()))
    *_, (state, _) = run(
        method, feduhb.Loop(remaining, LOCAL), list(remaining.clients), start, rounds=rounds, stop=STOP
    )
    return state.params
