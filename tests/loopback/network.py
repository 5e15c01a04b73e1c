"""Isolate programs in a network that has only loopback, and count their attempts to leave it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Generator

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


class IsolatedNetwork:
    """A network whose only device is loopback; ``prefix`` goes before the command of a program that shall run in it."""

    def __init__(self, holder: int) -> None:
        namespaces = f"/proc/{holder}/ns"
        self.prefix = ("nsenter", f"--net={namespaces}/net", f"--mount={namespaces}/mnt", "--")

    def count_attempts(self) -> int:
        """Return how many packets programs inside wanted to send that had no route, as the kernel counts them."""
        names, counts = (line.split() for line in self._read("/proc/net/snmp").splitlines()[:2])
        four = dict(zip(names, counts, strict=True))
        six = dict(line.split() for line in self._read("/proc/net/snmp6").splitlines())
        return int(four["OutNoRoutes"]) + int(six["Ip6OutNoRoutes"])

    def _read(self, file: str) -> str:
        command = (*self.prefix, "cat", file)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def run(self, code: str) -> str:
        """Run Python code inside and return what it printed."""
        command = (*self.prefix, sys.executable, "-P", "-c", code)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def isolate_network() -> Generator[IsolatedNetwork | None]:
    """Make an isolated network, or yield None if this user may not make one."""
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        yield None
        return
    command = ("unshare", "--net", "--mount", sys.executable, "-P", "-c", HOLDER)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        is_up = holder.stdout.readline().strip() == "up"
        try:
            yield IsolatedNetwork(holder.pid) if is_up else None
        finally:
            holder.stdin.close()
