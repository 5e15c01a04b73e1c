"""Run a method in a fresh process, which knows nothing of this one but what a job names.

The first job starts an interpreter that imports torch and this package, and nothing else. It forks a child for every job.
The child makes the method from its recipe, with the old runs out of its reach where the system allows that, runs it, and
leaves the result in the job's folder. Where processes cannot be forked, every job starts an interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

import cloudpickle
import torch

from feduhb import errors
from feduhb.audit.hiding import hide_folders
from feduhb.audit.recipes import CannotRebuild, Recipe, follow, follow_method, write_method, write_recipe
from feduhb.core.own_code import Code
from feduhb.core.types import BlockSize, ClientId, Method
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.engines import EngineMaker, check_engine
from feduhb.errors import FeduhbError
from feduhb.methods.binding import bind
from feduhb.runs.config import TrainSettings
from feduhb.runs.folder import Round
from feduhb.runs.held_out import Keep
from feduhb.runs.history import DiskHistory
from feduhb.runs.lineage import Ancestor
from feduhb.runs.prepare import run_method
from feduhb.runs.rollback import Restart
from feduhb.runs.workers import list_paths, receive, send, start_process
from feduhb.stopping import StopRule

START = "import sys; sys.path[:] = sys.argv[1:]; from feduhb.audit.apart import main; main()"
FORKS = sys.platform == "linux"
NO_JOB = 99  # the exit status of a child to which nobody listens any more


class FailedRunError(FeduhbError):
    """A run in a fresh process ended by an error that is not one of this package."""


class ProcessError(FeduhbError):
    """A fresh process ended early or cannot be started here. That says nothing about the method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to make in a fresh process, with its results in a folder."""

    federation: Federation  # the clients that take part
    method: Recipe
    stop: Any  # a recipe
    engine: Any  # a recipe
    settings: TrainSettings
    rounds: int
    keep: Keep = "last"
    block: BlockSize | None
    out: Path
    bound: dict[str, Any]  # what the method is told of the run that is to forget
    forgot: Request | None
    ancestors: tuple[Ancestor, ...]
    models: Path | None  # a folder for the model after every round
    leaving: Mapping[ClientId, Examples] | None = None  # what the method may ask leavers to work on
    restart: Restart | None = None  # where a rollback continues


def write_job(
    federation: Federation, method: Method[Any], stop: StopRule, engine: str | EngineMaker, **more: Any
) -> Job:
    """Return a job; raise CannotRebuild if its method, stop rule or engine cannot be made again elsewhere."""
    if more.get("leaving") is not None:
        more["leaving"] = {client: _copy(examples) for client, examples in more["leaving"].items()}
    return Job(
        federation=separate(federation), method=write_method(method), stop=write_recipe(stop, "the stop rule"),
        engine=write_recipe(engine, "the engine"), **more,
    )  # fmt: skip


def separate(federation: Federation) -> Federation:
    """Return the federation with copies of its own rows only. The tensors of clients that left may be shared with it."""
    parts = {
        name: {client: _copy(own) for client, own in getattr(federation, name).items()}
        for name in ("clients", "held_out")
    }
    about = None if isinstance(federation.about, Code) else federation.about  # these runs need no trust
    return federation.replace(**parts, test=_copy(federation.test), about=about, standardize=False)


def _copy(some: Examples) -> Examples:
    x, y = some.all()
    return replace(some, x=x, y=y, rows=torch.arange(len(some)), plain=None)


def run_apart(job: Job, hidden: Sequence[Path], show: Callable[[Round], None] | None) -> str | None:
    """Make the run of a job in a fresh process; return why the hidden folders were in reach there, or None if they were not.

    Raise CannotRebuild if the job cannot be read there, FailedRunError or the run's own FeduhbError if the run fails,
    ProcessError if the process ends before it answers, or if this is a fresh process itself.
    """
    if IS_FRESH.is_set():  # or audits would start each other without end
        raise ProcessError(
            "an audit cannot start in a fresh process of another audit; if a module starts one when it is imported, "
            'put that under if __name__ == "__main__"'
        )
    try:
        packed = cloudpickle.dumps(job)
    except Exception as error:  # whatever a model's own pickling raises
        raise CannotRebuild(f"the model or the loss cannot be sent to another process: {error}") from error
    job.out.mkdir(parents=True, exist_ok=True)
    history = job.bound.get("history")
    kept = [job.out, *([history.folder] if isinstance(history, DiskHistory) else [])]
    open_because = None
    with LOCK:
        answer = _ask(packed, hidden, kept, show)
        if answer["said"] == "open":
            open_because = answer["text"]
            answer = _ask(packed, (), kept, show)
    text = answer.get("text", "")
    if answer["said"] == "unread":
        raise CannotRebuild(text)
    if answer["said"] == "refused":
        raise getattr(errors, answer["kind"])(text)
    if answer["said"] == "failed":
        raise FailedRunError(text)
    if answer["said"] == "died":
        raise ProcessError(f"a run in a fresh process ended {text}; start again to continue where it stopped")
    return open_because


LOCK = threading.Lock()  # one job at a time
IS_FRESH = threading.Event()  # set in a process that does a job


class ForkServer:
    """The process that forks a child for every job."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._process = start_process(START, Path.cwd().anchor)  # not in a hidden folder

    def ask(self, *messages: bytes, show: Callable[[Round], None] | None) -> dict[str, Any]:
        """Send a job; return the last answer before the child ended."""
        answer: dict[str, Any] = {"said": "died", "text": "early"}
        with contextlib.suppress(BrokenPipeError):
            for message in messages:
                send(self._process.stdin, message)  # pyright: ignore[reportArgumentType]
        while (heard := receive(self._process.stdout)) is not None:  # pyright: ignore[reportArgumentType]
            said = json.loads(heard)
            if said["said"] == "round":
                if show is not None:
                    show(Round.from_json(said["text"]))
            elif said["said"] != "ended":
                answer = said
            else:
                if said["status"]:
                    answer = {"said": "died", "text": f"with status {said['status']}"}
                return answer
        return answer

    def is_alive(self) -> bool:
        """Return whether the process can take a job from this one."""
        return self.owner == os.getpid() and self._process.poll() is None

    def stop(self) -> None:
        """End the process and a child that is at work."""
        if self.owner != os.getpid():
            return
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # pyright: ignore[reportOptionalMemberAccess]
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


SERVERS: list[ForkServer] = []  # at most one


def start_server() -> ForkServer:
    """Return the process that forks children, and start it if needed."""
    if SERVERS and not SERVERS[0].is_alive():
        stop_server()
    if not SERVERS:
        SERVERS.append(ForkServer())
    return SERVERS[0]


@atexit.register
def stop_server() -> None:
    """End the process that forks children, if there is one."""
    while SERVERS:
        SERVERS.pop().stop()


def _ask(
    packed: bytes, hidden: Sequence[Path], kept: Sequence[Path], show: Callable[[Round], None] | None
) -> dict[str, Any]:
    setting = {
        "hidden": [str(folder.resolve()) for folder in hidden],
        "kept": [str(folder.resolve()) for folder in kept],
        "folder": str(Path.cwd()),
        "path": list_paths(),
        "environment": dict(os.environ),
        "torch": {
            "threads": torch.get_num_threads(),
            "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "precision": torch.get_float32_matmul_precision(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        },
    }
    is_reusable = False
    try:
        answer = start_server().ask(json.dumps(setting).encode(), packed, show=show)
        is_reusable = FORKS
    finally:
        if not is_reusable:  # it does one job only, or there was an error, such as Ctrl-C
            stop_server()
    return answer


# What follows runs in the other processes.


def main() -> None:
    """Fork a child for every job, until the process that started this one ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # print to standard error, because standard output carries the answers
    torch.set_num_threads(1)  # a child hangs if threads have computed something before the fork
    # The first optimiser takes a second to import.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    gc.freeze()  # children then share more of this process's memory
    while FORKS:
        child = os.fork()
        if child == 0:
            _end(_work(answers))
        _, status = os.waitpid(child, 0)
        if (code := os.waitstatus_to_exitcode(status)) == NO_JOB:
            return
        _say_ended(answers, code)
    if (code := _work(answers)) != NO_JOB:
        _say_ended(answers, code)
    _end(code)


def _say_ended(answers: IO[bytes], code: int) -> None:
    try:
        _say(answers, "ended", status=code)
    except BrokenPipeError:  # the process that started this one was interrupted
        _end(0)


def _say(answers: IO[bytes], said: str, text: str = "", **more: Any) -> None:
    send(answers, json.dumps({"said": said, "text": text, **more}).encode())


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _work(answers: IO[bytes]) -> int:
    """Take a job, do it and answer; return an exit status."""
    heard, packed = receive(sys.stdin.buffer), receive(sys.stdin.buffer)
    if heard is None or packed is None:
        return NO_JOB
    IS_FRESH.set()
    setting = json.loads(heard)
    if setting["hidden"]:
        try:
            _hide(setting)
        except OSError as error:
            _say(answers, "open", error.strerror or str(error))
            return 0
    _end_with_parent()
    _adopt(setting)
    try:
        job = pickle.loads(packed)  # noqa: S301 (written by the process that started this one)
        method, stop, engine = follow_method(job.method), follow(job.stop), follow(job.engine)
        if isinstance(engine, str):
            check_engine(engine)
    except CannotRebuild as error:
        _say(answers, "unread", str(error))
        return 0
    except (Exception, SystemExit) as error:  # whatever a module of the user's raises when it is imported
        traceback.print_exc()
        _say(answers, "unread", f"it could not be made in a fresh process ({_describe(error)})")
        return 0
    try:
        _run(job, method, stop, engine, lambda record: _say(answers, "round", record.to_json()))
        _say(answers, "done")
    except (Exception, SystemExit) as error:
        kind = type(error).__name__
        if isinstance(error, FeduhbError) and getattr(errors, kind, None) is type(error):
            _say(answers, "refused", str(error), kind=kind)
        else:
            traceback.print_exc()
            _say(answers, "failed", _describe(error))
    return 0


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _hide(setting: Mapping[str, Any]) -> None:
    hidden, kept = ([Path(folder) for folder in setting[name]] for name in ("hidden", "kept"))
    hide_folders(hidden, kept)
    if not os.access(kept[0], os.W_OK):
        raise PermissionError(f"{kept[0]} cannot be written in a user namespace")


def _end_with_parent() -> None:
    """End this process as soon as the one that sent the job closes its pipe, even during a job."""

    def listen() -> None:
        receive(sys.stdin.buffer)
        os._exit(NO_JOB)

    threading.Thread(target=listen, daemon=True).start()


def _adopt(setting: Mapping[str, Any]) -> None:
    """Take over what the process that sent the job has: paths, environment, and torch's settings, on which bits depend."""
    os.environ.clear()
    os.environ.update(setting["environment"])
    sys.path[:] = setting["path"]
    with contextlib.suppress(OSError):  # it may be a hidden folder
        os.chdir(setting["folder"])
    of_torch = setting["torch"]
    torch.set_num_threads(of_torch["threads"])
    torch.set_default_dtype(getattr(torch, of_torch["dtype"]))
    torch.set_float32_matmul_precision(of_torch["precision"])
    torch.use_deterministic_algorithms(of_torch["deterministic"], warn_only=of_torch["warn_only"])


def _run(
    job: Job, method: Method[Any], stop: StopRule, engine: str | EngineMaker, show: Callable[[Round], None]
) -> None:
    run_method(
        job.federation, bind(method, job.bound), job.settings, rounds=job.rounds, stop=stop, keep=job.keep, forgot=job.forgot, engine=engine,
        block=job.block, out=job.out, resume=True, models=job.models, show=show, label=job.out.name, ancestors=job.ancestors,
        restart=job.restart, leaving=job.leaving,
    )  # fmt: skip
