"""Run commands under watch: in forked children that count what touches the disk, and are stopped there if they are told to.

An event is an open for writing, an fsync, a rename, a deletion, a new folder or link, or a change of mode or size, of
something below one folder. Python's audit hooks see them in every thread, just before they happen.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import logging
import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import forking
from forking import HUNG, Ended, Forks, reach_server
from quiet import save_blank_figures

import_module("golden.make_folders")  # `flower ...` imports it late, in every child again

LIMIT = 60.0  # seconds after which a command that takes one or two counts as hung
STATE = "state"  # the folder in which audits work, in the folder that a command runs in
WORK_OF_AUDIT = "of-first-feduhb"  # stands for the name of the folder there of the audit of first-feduhb
READS = (
    "FEDUHB_HARDENING_READS"  # the environment variable that asks a stand-in for Python to note what it reads
)
How = Literal["kill", "torn", "EACCES", "ENOSPC"]
FOLDERS = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.rename": 2, "os.link": 2, "os.symlink": 2}
TOUCHING = {*FOLDERS, "os.truncate", "os.chmod", "shutil.rmtree"}  # FOLDERS: where an event has its dir_fd
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@contextlib.contextmanager
def make_scratch() -> Generator[Path]:
    """Make a folder to be deleted, in memory where the system has such a place: the cases write a million files."""
    memory = Path("/dev/shm")  # noqa: S108
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(
        prefix="feduhb-hardening-", dir=memory if usable else None, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Watched(Ended):
    """How a command ended, and what it did to the disk: "event path" for each event; none if it was killed."""

    events: tuple[str, ...]
    written: tuple[str, ...]  # the paths of these events, and those that files were renamed to
    read: frozenset[str] = (
        frozenset()
    )  # the paths of files and folders that it opened to read, if that was asked for

    @property
    def hung(self) -> bool:
        """Whether it had to be killed because it did not end."""
        return self.returncode == HUNG

    @property
    def has_traceback(self) -> bool:
        """Whether a person would see a traceback."""
        return "Traceback" in self.stderr or "Traceback" in self.stdout

    @property
    def last_line(self) -> str:
        """The last line on standard error: an error in words, or the exception of a traceback."""
        return (self.stderr.strip().splitlines() or [""])[-1][:200]


@dataclass(frozen=True)
class Orders:
    """What a child has to do besides its command.

    Args:
        under: the folder whose events count.
        stop_at: the number of the event, from 1, at which something happens; 0: never.
        how: what happens there: the process is killed; killed after the last byte of the synced file was cut off; or the
            operating system refuses.
        plain: obey the modes of files, which root need not.
        alarm: seconds after which the child interrupts itself, as Ctrl-C would; 0: never.
        memory: bytes of memory that the child may take beyond what it has; 0: no limit.
        reads: a file for the paths that the child and the processes that it starts open to read; empty: they are not noted.
        gate: a file that the child locks, shared, before it starts, and so waits for whoever has locked it.
    """

    under: str
    stop_at: int = 0
    how: How = "kill"
    plain: bool = False
    alarm: float = 0.0
    memory: int = 0
    reads: str = ""
    gate: str = ""


@contextlib.contextmanager
def start_watch() -> Generator[Watch]:
    """Start the server of a watch, unless one is shared, and write the interpreter of its children."""
    with reach_server("watch") as address, tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "python"
        Forks(address).write_program(python, "hardening.running:run_python")
        yield Watch(address, os.environ, python)


class Watch(Forks):
    """Runs commands in children of a process that has imported torch and the command line."""

    def feduhb(
        self,
        place: Path,
        arguments: Sequence[str],
        *,
        limit: float = LIMIT,
        reads: bool = False,
        **orders: Any,
    ) -> Watched:
        """Run a command in a folder, with further `Orders`; return how it ended, and what it read if ``reads`` is True.

        Besides the commands there are ``open_run FOLDER`` and ``flower ...``: `open_run` and `run_over_flower` below.
        """
        with tempfile.TemporaryDirectory() as scratch:
            found, noted = Path(scratch) / "events", Path(scratch) / "reads"
            given = Orders(str(place.resolve()), reads=str(noted) if reads else "", **orders)
            words = [json.dumps(asdict(given)), found, *arguments]
            ended = self.run("hardening.running:run_command", *words, cwd=place, limit=limit)
            text = found.read_text() if found.exists() else "[[], []]"
            events, written = json.loads(_rename_work(text))
            read = frozenset(_rename_work(noted.read_text()).split("\n")) if noted.exists() else frozenset()
        return Watched(ended.returncode, ended.stdout, ended.stderr, tuple(events), tuple(written), read)


def _rename_work(text: str) -> str:
    """Replace the name of the folder in which an audit works, which depends on the place."""
    return re.sub(r"(?<=audits/)[0-9a-f]{16}", WORK_OF_AUDIT, text)


def note_reads(orders: Orders) -> None:
    """Write the path of everything below the watched folder that this process opens to read, or lists, into a file."""
    handle = os.open(orders.reads, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    under, noted = orders.under + os.sep, set[str]()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in {"open", "os.listdir", "os.scandir"} or not isinstance(
            arguments[0], str | bytes | os.PathLike
        ):
            return
        name = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100
        if name.startswith(under) and name not in noted:
            noted.add(name)
            os.write(handle, f"{name.removeprefix(under)}\n".encode(errors="replace"))

    sys.addaudithook(hook)
    os.environ[READS] = json.dumps(asdict(orders))  # for the processes that this one starts


class Disk:
    """An audit hook that counts events, and stops the process at one of them."""

    def __init__(self, orders: Orders) -> None:
        self.orders, self.events, self.targets, self.is_on = orders, list[str](), set[str](), True

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event in TOUCHING:
            at = FOLDERS.get(event)
            folder = arguments[at] if at is not None and at < len(arguments) else -1
            self.note(event, arguments[0], folder if isinstance(folder, int) else -1)
            if event == "os.rename" and isinstance(arguments[1], str | bytes | os.PathLike):
                self.targets.add(os.path.abspath(os.fsdecode(arguments[1])))  # noqa: PTH100
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self.note(event, arguments[0])

    def sync(self, handle: int) -> None:
        """Count a sync and leave it out: the kernel keeps what a killed process wrote."""
        self.note("fsync", Path(f"/proc/self/fd/{handle}").readlink(), synced=handle)

    def list_written(self) -> list[str]:
        """Return the paths below the watched folder that the command wrote, made, renamed or deleted."""
        under = self.orders.under + os.sep
        renamed = {path.removeprefix(under) for path in self.targets if path.startswith(under)}
        return sorted(renamed | {event.partition(" ")[2] for event in self.events})

    def note(self, event: str, path: Any, folder: int = -1, synced: int | None = None) -> None:
        """Count an event if it is below the watched folder."""
        if isinstance(path, int):
            return
        name = os.fsdecode(path)
        if folder >= 0:
            name = str(Path(f"/proc/self/fd/{folder}").readlink() / name)
        name = os.path.abspath(name)  # noqa: PTH100 (resolve() would follow the last link)
        if not name.startswith(self.orders.under + os.sep):
            return
        self.events.append(f"{event} {name.removeprefix(self.orders.under + os.sep)}")
        if len(self.events) != self.orders.stop_at:
            return
        if self.orders.how in {"kill", "torn"}:
            if self.orders.how == "torn" and synced is not None and Path(name).is_file():
                os.truncate(name, max(0, Path(name).stat().st_size - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, self.orders.how)
        raise OSError(number, os.strerror(number), name)


def run_command() -> None:
    """Run one command in this process; sys.argv holds what `Watch.feduhb` was given."""
    import feduhb.cli

    text, found, *arguments = sys.argv[1:]
    orders = Orders(**json.loads(text))
    os.umask(0o022)
    os.environ["FEDUHB_STATE"] = str(Path(orders.under) / STATE)
    sys.argv = ["feduhb", *arguments]
    disk = Disk(orders)
    os.fsync = disk.sync
    if orders.plain:
        give_up_privileges()
    if orders.memory:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + orders.memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if orders.alarm:
        signal.signal(signal.SIGINT, feduhb.cli.quit_at_once)  # as the program does before its first import
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, orders.alarm)
    if orders.gate:
        with Path(orders.gate).open() as gate:
            Path(f"{orders.gate}.{os.getpid()}").touch()
            fcntl.flock(gate, fcntl.LOCK_SH)
    sys.addaudithook(disk)
    if orders.reads:
        note_reads(orders)
    try:
        with save_blank_figures():
            own = {"open_run": open_run, "flower": run_over_flower}.get(arguments[0])
            feduhb.cli.main() if own is None else _answer(own, arguments[1:])
    finally:
        disk.is_on = False
        Path(found).write_text(json.dumps([disk.events, disk.list_written()]))


def give_up_privileges() -> None:
    """Obey the modes of files from now on, also as root: give up CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    sets = (
        ctypes.c_uint32 * 6
    )()  # effective, permitted and inheritable, of capabilities 0 to 31 and 32 to 63
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    for number in range(3):
        sets[number] &= ~0b110
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def _answer(function: Callable[..., None], arguments: Sequence[str]) -> None:
    """Call a function as the command line calls a command: an error of the package is one line and status 2."""
    from feduhb.errors import FeduhbError

    try:
        function(*arguments)
    except FeduhbError as error:
        sys.stderr.write(f"feduhb: {error}\n")
        sys.exit(2)


def open_run(folder: str, over: str = "") -> None:
    """Open a run as a Python program does, and print the digest of its weights; "flower": with the clients' data."""
    import feduhb
    from feduhb.runs.checkpoint import digest_weights
    from golden.make_folders import load_federation

    run = feduhb.open_run(folder, load_federation() if over == "flower" else None)
    sys.stdout.write(f"{digest_weights(run.params)}\n")
    _ = repr(run), run.stopped, run.history and run.history.rounds


def run_over_flower(what: str, *folders: str) -> None:
    """Run a Flower strategy over a grid in this process: "train FOLDER", "fedrecover OLD NEW" or "federaser OLD NEW".

    With "cut" in front of the first word the server is interrupted in its third round.
    """
    from feduhb import flower
    from golden import make_folders as make
    from golden.over_flower import stop_in_round
    from golden.reading import interrupted

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    paths = [Path(folder) for folder in folders]
    name = what.removeprefix("cut-")
    grid = make.stage() if name == what else stop_in_round(2, make.load_federation())
    start: dict[str, Callable[[], object]] = {
        "train": lambda: make.train_over_flower(paths[0], grid, keep_history=True),
        "fedrecover": lambda: make.recover_over_flower(paths[0], paths[1], grid),
        "federaser": lambda: flower.FedEraser(
            [make.LEAVER], trained=paths[0], checkpoint=paths[1], **make.TOLD
        ).start(grid, make.draw_start()),
    }
    if name == what:
        start[name]()
    elif not interrupted(start[name]):
        sys.exit("the run came to its end before it was interrupted")


def run_python() -> None:
    """Stand in for the interpreter that a command starts."""
    os.fsync = lambda _: None
    if READS in os.environ:
        note_reads(Orders(**json.loads(os.environ[READS])))
    forking.run_python()
