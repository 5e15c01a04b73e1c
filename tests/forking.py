"""Run Python programs in children that are forked off one process, which has imported what they need.

Importing torch takes two seconds of a core; a fork takes a hundredth of one. A child is a process of its own: it has its
own working directory, limits and standard streams, and a kill really kills it.

Where pytest runs the tests in several processes, these share servers that its main process keeps: `share_servers`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

PROGRAM = """#!{python} -SE
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect({address!r})
job = dict(entry={entry!r}, words=sys.argv, cwd=os.getcwd(), environment=dict(os.environ))
socket.send_fds(link, [json.dumps(job).encode()], [0, 1, 2])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: link.send(str(number).encode()))
sys.exit(int(link.recv(64) or 1))
"""


HUNG = -1000  # the return code of a child that had to be killed because it did not end
SHARED = "FEDUHB_FORK_SERVERS"  # the variable that names the folder of the servers that processes share
MODULES = {  # what each of them imports, at its first job
    "bare": ("torch", "torch._dynamo", "sklearn.datasets"),  # much, but nothing of this package
    "commands": ("preloaded",),
    "watch": ("preloaded", "hardening.running"),
}


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    returncode: int  # negative: the signal that killed it, or HUNG
    stdout: str
    stderr: str


class Forks:
    """Runs programs in children of a fork server, which may belong to another process.

    Args:
        address: the server's socket.
        environment: of the children; None is that of the server.
        python: the program that children take for their interpreter; None: the real one.
    """

    def __init__(
        self, address: str, environment: Mapping[str, str] | None = None, python: Path | None = None
    ) -> None:
        self.address = address
        self._environment = environment
        self._python = python

    def run(
        self, entry: str, *arguments: object, cwd: Path | None = None, limit: float | None = None
    ) -> Ended:
        """Call a function, "module:name", in a child whose sys.argv holds the arguments; return how the child ended.

        Args:
            limit: seconds after which the child is killed, and its return code is HUNG; None waits forever.
        """
        job: dict[str, Any] = {
            "entry": entry,
            "words": [entry, *map(str, arguments)],
            "cwd": str(cwd or Path.cwd()),
            "python": str(self._python or sys.executable),
        }
        if self._environment is not None:
            job["environment"] = dict(self._environment)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link,
            Path(os.devnull).open() as nothing,
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
        ):
            link.connect(self.address)
            socket.send_fds(link, [json.dumps(job).encode()], [nothing.fileno(), out.fileno(), err.fileno()])
            link.settimeout(limit)
            try:
                answer = link.recv(64)
            except TimeoutError:
                answer = str(
                    HUNG
                ).encode()  # leaving this block closes the link, and the server kills the child
            assert answer, "the fork server has ended"
            out.seek(0)
            err.seek(0)
            return Ended(int(answer), out.read(), err.read())

    def run_script(self, script: Path, *arguments: object, cwd: Path | None = None) -> Ended:
        """Run a file as `python FILE ARGUMENTS` does."""
        return self.run("forking:run_as_main", script, *arguments, cwd=cwd)

    def write_program(self, path: Path, entry: str) -> None:
        """Write a program that calls a function in a child, with its own words, streams, folder and environment.

        SIGINT and SIGTERM are passed on to the child, and the child is killed when the program is.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROGRAM.format(python=sys.executable, address=self.address, entry=entry))
        path.chmod(0o700)


class ForkServer(Forks):
    """A process that forks a child for every program; it and its children end with its `with` block.

    Args:
        modules: imported once, at the first job. They must not start threads.
        prefix: words before the server's command, such as `nsenter --net=FILE`.
        environment: of the server and its children; None is the environment of this process.
        socket_at: where its socket goes; None: into a new folder.
    """

    def __init__(
        self,
        *modules: str,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        socket_at: Path | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp())
        super().__init__(str(socket_at or self._folder / "socket"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self.address)
            listening.listen(64)  # who comes while the modules are imported waits
            self.process = subprocess.Popen(
                [*prefix, sys.executable, __file__, str(listening.fileno()), *modules],
                env=environment,
                stdin=subprocess.PIPE,  # its end tells the server that this process has ended
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        shutil.rmtree(self._folder)


@contextlib.contextmanager
def share_servers() -> Generator[None]:
    """Keep the servers of MODULES for this process and those that it starts; none imports anything before its first job."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, modules in MODULES.items():
            stack.enter_context(ForkServer(*modules, socket_at=folder / name))
        os.environ[SHARED] = str(folder)
        stack.callback(os.environ.pop, SHARED)
        yield


@contextlib.contextmanager
def reach_server(name: str) -> Generator[str]:
    """Yield the address of a shared server, or of a new one if this process shares none."""
    if SHARED in os.environ:
        yield str(Path(os.environ[SHARED]) / name)
        return
    with ForkServer(*MODULES[name]) as server:
        yield server.address


def run_as_main() -> None:
    """Run the file that is named first in sys.argv as the main program."""
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def run_python() -> None:
    """Stand in for an interpreter: `python -c CODE ...` or `python -m MODULE ...`, without an import."""
    words = sys.argv[1:]
    while words and words[0] in {"-I", "-P", "-E", "-s", "-B"}:
        words.pop(0)
    if len(words) < 2 or words[0] not in {"-c", "-m"}:
        sys.exit(f"a program started python {words}, which forking.py cannot stand in for")
    sys.argv = [words[0] if words[0] == "-c" else words[1], *words[2:]]
    if words[0] == "-c":
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    else:
        runpy.run_module(words[1], run_name="__main__", alter_sys=False)


def serve(listening: socket.socket, modules: Sequence[str]) -> None:
    """Attend to every client in a process of its own, as long as the process that started this one lives.

    The modules are imported when the first client comes.
    """
    if sys.stdin in select.select([listening, sys.stdin], [], [])[0]:
        return
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # children then share this memory, and their collectors need not go through it
    gc.enable()
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        link, _ = listening.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those who have attended to earlier clients
                pass
        if os.fork() == 0:
            listening.close()
            _attend(link)
            os._exit(0)
        link.close()


def _attend(link: socket.socket) -> None:
    """Run a client's job in a child and answer how it ended; kill the child when the client goes away.

    A message of the client is the number of a signal for the child.
    """
    message, handles, _, _ = socket.recv_fds(link, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        link.close()
        _run_job(handles, json.loads(message))
    ended = os.pidfd_open(child)
    while ended not in select.select([ended, link], [], [])[0]:
        os.kill(child, int(link.recv(64) or signal.SIGKILL))
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):
        link.send(str(os.waitstatus_to_exitcode(status)).encode())


def _run_job(handles: Sequence[int], job: Mapping[str, Any]) -> None:
    """Run one job in this process, and end the process."""
    code = 1
    try:
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
        os.chdir(job["cwd"])
        if "environment" in job:
            _adopt(job["environment"])
        sys.executable = job.get("python", sys.executable)
        sys.argv = job["words"]
        module, _, name = job["entry"].partition(":")
        getattr(importlib.import_module(module), name)()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(ended.code + "\n")
    except BaseException:  # the child must not continue as a second server
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _adopt(environment: Mapping[str, str]) -> None:
    """Take over an environment, with the folders of its PYTHONPATH."""
    os.environ.clear()
    os.environ.update(environment)
    folders = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
