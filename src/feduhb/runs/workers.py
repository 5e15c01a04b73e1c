"""Several jobs at once, each in a process of its own: small models keep one interpreter busy, not two cores."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, Self, TypeVar

from feduhb.errors import FeduhbError, RunFolderError

J = TypeVar("J")
R = TypeVar("R")

SIZE = 8  # bytes in front of every message: its length
Answer = tuple[
    str, Any
]  # "done" with the result, "failed" or "died" with the error, "unread" where the job did not unpickle
UNREAD: Answer = ("unread", None)


def spread(
    function: Callable[[J], R],
    jobs: Iterable[J],
    workers: int,
    lost: Callable[[J, FeduhbError], R] | None = None,
) -> Iterator[R]:
    """Yield ``function`` of every job, in order, ``workers`` at a time.

    Jobs travel by pickle, through pipes alone. One that cannot (a model whose class only the user's script knows)
    is done right here, in its turn. Workers end with this process, however it ends.

    Args:
        lost: what to yield for a job whose process died (killed for memory, say); None lets that end everything.
    """
    if workers < 2:
        yield from map(function, jobs)
        return
    with Workers() as pool, ThreadPoolExecutor(workers) as threads:
        running: deque[Future[R]] = deque()
        try:
            for job in jobs:
                running.append(threads.submit(pool.do, function, job, lost))
                if len(running) > workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.stop()
            threads.shutdown(cancel_futures=True)


class Workers:
    """Processes that take one job after another; started when there is one for them."""

    def __init__(self) -> None:
        self._here = threading.Lock()  # what cannot travel is done one at a time
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process, busy or not."""
        for process in self._all:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # pyright: ignore[reportOptionalMemberAccess]

    def do(self, function: Callable[[J], R], job: J, lost: Callable[[J, FeduhbError], R] | None = None) -> R:
        """Run a job in a worker process and return its result."""
        packed = _pickle_job(function, job)
        kind, value = UNREAD if packed is None else self._send_job(packed)
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
            command = [sys.executable, "-m", "feduhb.runs.workers"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 (our own module)
            self._all.append(process)
        answer = None
        with contextlib.suppress(OSError, ValueError):  # a pipe that broke, or was closed by `stop`
            send(process.stdin, packed)  # pyright: ignore[reportArgumentType]
            answer = receive(process.stdout)  # pyright: ignore[reportArgumentType]
        if answer is None:
            return "died", RunFolderError(
                f"a process at work on this ended early (exit status {process.wait()}); start again, it goes on where it stood"
            )
        self._idle.put(process)
        return pickle.loads(answer)  # noqa: S301 (written by a process of ours)


def _pickle_job(function: Callable[..., Any], job: Any) -> bytes | None:
    """Pickle a job; None where another process could not read it."""
    try:
        packed = pickle.dumps((function, job))
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return None if b"__main__" in packed else packed


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write a message with its length in front."""
    pipe.write(len(message).to_bytes(SIZE, "big") + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Read a message; None where the other side has gone."""
    size = int.from_bytes(pipe.read(SIZE), "big")
    message = pipe.read(size)
    return message if size and len(message) == size else None


def main() -> None:
    """Do jobs for the process that started this one, and end with it."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed goes to standard error
    given: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(given,), daemon=True).start()
    while True:
        send(answers, pickle.dumps(_run_job(given.get())))


def _listen(given: queue.SimpleQueue[bytes]) -> None:
    """Take jobs in until the pipe closes, which is when the other process ends; then end at once."""
    while (packed := receive(sys.stdin.buffer)) is not None:
        given.put(packed)
    os._exit(0)


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


if __name__ == "__main__":
    main()
