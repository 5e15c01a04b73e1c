"""Run several jobs at once in worker processes, because training a small model uses one core only."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any, TypeVar

from feduhb.errors import FeduhbError, RunFolderError

J = TypeVar("J")
R = TypeVar("R")

START = "import sys; sys.path[:] = sys.argv[1:]; from feduhb.runs.workers import main; main()"
AHEAD = 4
SIZE = 8  # bytes in front of every message, which hold its length
# "done" with the result, "failed" or "died" with the error, or "unread" if the job could not be unpickled
Answer = tuple[str, Any]
UNREAD: Answer = ("unread", None)


def spread(
    function: Callable[[J], R],
    jobs: Iterable[J],
    workers: int,
    lost: Callable[[J, FeduhbError], R] | None = None,
) -> Iterator[R]:
    """Yield the result of ``function`` for every job, in order, with ``workers`` processes.

    A long job holds back the results of later ones, but hardly their work: it goes on until `AHEAD` results for each
    worker wait. Jobs are pickled and sent through pipes. A job that cannot be pickled, such as a model whose class is defined in the
    user's script, runs in this process. Workers end with this process, however it ends.

    Args:
        lost: returns the result for a job whose process died, for example for lack of memory; None raises the error.
    """
    if workers < 2:
        yield from map(function, jobs)
        return
    pool, running = Workers(), deque[Future[R]]()
    with ThreadPoolExecutor(workers) as threads:
        try:
            for job in jobs:
                running.append(threads.submit(pool.run, function, job, lost))
                unfinished = [one for one in running if not one.done()]
                if len(unfinished) > workers:
                    wait(unfinished, return_when=FIRST_COMPLETED)
                while running and (running[0].done() or len(running) > AHEAD * workers):
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.stop()
            threads.shutdown(cancel_futures=True)


def spread_ready(
    function: Callable[[J], R],
    find_next: Callable[[Sequence[J]], J | None],
    workers: int,
    lost: Callable[[J, FeduhbError], R] | None = None,
) -> Iterator[tuple[J, R]]:
    """Yield every job with its result as it ends, with ``workers`` processes, until nothing runs and no job can begin.

    Unlike for `spread`, what can begin may depend on what has ended.

    Args:
        find_next: returns the job to begin beside those that run; None if none can begin now.
        lost: as for `spread`.
    """
    if workers < 2:
        while (job := find_next(())) is not None:
            yield job, function(job)
        return
    pool, running = Workers(), dict[Future[R], J]()
    with ThreadPoolExecutor(workers) as threads:
        try:
            while True:
                while len(running) < workers and (job := find_next([*running.values()])) is not None:
                    running[threads.submit(pool.run, function, job, lost)] = job
                if not running:
                    return
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(ended), ended.result()
        finally:
            pool.stop()
            threads.shutdown(cancel_futures=True)


class Workers:
    """Worker processes, started when they are needed, that run one job after another."""

    def __init__(self) -> None:
        self._here = threading.Lock()  # for jobs that run in this process, one at a time
        self._starting = threading.Lock()
        self._is_stopped = False
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []

    def stop(self) -> None:
        """Kill every process, busy or not. None is started after this."""
        with self._starting:
            self._is_stopped = True
        for process in self._all:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # pyright: ignore[reportOptionalMemberAccess]

    def run(self, function: Callable[[J], R], job: J, lost: Callable[[J, FeduhbError], R] | None) -> R:
        """Run a job in a worker process and return its result."""
        packed = b"__main__"  # another process does not have the classes of this one's main module
        with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):
            packed = pickle.dumps((function, job))
        kind, value = UNREAD if b"__main__" in packed else self._send_job(packed)
        if kind == "died" and lost is not None:
            return lost(job, value)
        if kind in {"failed", "died"}:
            raise value
        if kind == "done":
            return value
        with self._here:
            return function(job)

    def _send_job(self, packed: bytes) -> Answer:
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = self._start()
        if process is None:
            return "died", RunFolderError("the workers were stopped; start again to continue")
        answer = None
        with contextlib.suppress(OSError, ValueError):  # the pipe broke, or `stop` closed it
            send(process.stdin, packed)  # pyright: ignore[reportArgumentType]
            answer = receive(process.stdout)  # pyright: ignore[reportArgumentType]
        if answer is None:
            return "died", RunFolderError(
                f"a worker process ended early (exit status {process.wait()}); start again to continue where it stopped"
            )
        self._idle.put(process)
        return pickle.loads(answer)  # noqa: S301 (written by a process of ours)

    def _start(self) -> subprocess.Popen[bytes] | None:
        with self._starting:
            if self._is_stopped:
                return None
            self._all.append(start_process(START))
            return self._all[-1]


def start_process(code: str, folder: str | None = None) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs some code of ours, with this process's paths for imports in its ``sys.argv[1:]``.

    It imports nothing from its working directory, unless this process does. Ctrl-C in a terminal does not reach it: the
    code must end when its standard input ends.

    Args:
        folder: its working directory; None: that of this process.
    """
    return subprocess.Popen(  # noqa: S603 (our own code)
        [sys.executable, "-P", "-c", code, *list_paths()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
        cwd=folder,
    )


def list_paths() -> list[str]:
    """Return where this process finds modules, for another process that may have another working directory."""
    return [path or str(Path.cwd()) for path in sys.path]


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write a message with its length in front."""
    pipe.write(len(message).to_bytes(SIZE, "big") + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Read a message; return None if the other process has ended."""
    size = int.from_bytes(pipe.read(SIZE), "big")
    message = pipe.read(size)
    return message if size and len(message) == size else None


def main() -> None:
    """Run jobs for the process that started this one, until that ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # print to standard error, because standard output carries the answers
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        while (packed := receive(sys.stdin.buffer)) is not None:
            jobs.put(packed)
        os._exit(0)  # at once, even during a job

    threading.Thread(target=listen, daemon=True).start()
    while True:
        send(answers, pickle.dumps(_run_job(jobs.get())))


def _run_job(packed: bytes) -> Answer:
    try:
        function, job = pickle.loads(packed)  # noqa: S301 (written by the process that started this one)
    except (pickle.UnpicklingError, ImportError, AttributeError):
        return UNREAD
    import torch

    torch.set_num_threads(1)
    try:
        return "done", function(job)
    except FeduhbError as error:
        return "failed", error
