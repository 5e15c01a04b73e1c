"""Run the programs of a federation on loopback and submit runs to it; deployments and simulations share this."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from loopback.folder_lock import lock_folder
from loopback.programs import FederationError, Program

T = TypeVar("T")

HOST = "127.0.0.1"
CONNECTION = "federation"  # the SuperLink's name in the configuration of `flwr`
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # for Ray on every system: listen on loopback alone
    "PYTHONSAFEPATH": "1",  # no code from the directory in which a program is started
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # many programs share this machine
COMPLETED = "finished:completed"
PATIENCE = 300.0  # seconds to wait for a program before it counts as failed
PAUSE = 0.3  # seconds between two looks
SERVING = ("superlink", "superexec")  # without these programs no run can continue


class LocalFederation(ABC):
    """A federation on this machine; leaving its `with` block stops every program that was started in it.

    Args:
        folder: where all of its files go.
        members: the node config of every member, by registered name.
        modules: a folder whose Python modules all programs can import.
        show: a function that is called with a line of text when all programs are up, and when they are stopped.
    """

    def __init__(
        self,
        folder: Path,
        members: Mapping[str, Mapping[str, Any]],
        *,
        modules: Path | None = None,
        show: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.folder = folder.resolve()
        self.members = members
        self.show = show
        self.prefix: tuple[str, ...] = ()  # words before every command, such as `nsenter --net=FILE`
        self.port = str(find_free_port())
        self.address = f"{HOST}:{self.port}"
        self.programs: dict[str, Program] = {}
        self.lock: IO[bytes] | None = None
        own = {**QUIET, **ONE_THREAD, "FLWR_HOME": str(self.folder / "flwr")}
        self.environment = {**os.environ, **own}
        self._put_first("PATH", Path(sys.executable).parent)
        if modules is not None:
            self._put_first("PYTHONPATH", modules)

    def _put_first(self, variable: str, folder: Path) -> None:
        """Put a folder first in a list of folders that all programs see."""
        folders = (str(folder), self.environment.get(variable, ""))
        self.environment[variable] = os.pathsep.join(filter(None, folders))

    def __enter__(self) -> Self:
        try:
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
            self.lock = lock_folder(self.folder)
            self._mark_folder()
            self.start()
            self.show(f"up on {self.address}: {', '.join(self.programs)}")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _mark_folder(self) -> None:
        """Note what kind of federation the folder holds, and refuse a folder that holds another kind."""
        file, kind = self.folder / "kind", type(self).__name__.lower()
        found = file.read_text() if file.exists() else kind
        if found != kind:
            raise FederationError(f"{self.folder} holds a {found}; take another folder")
        file.write_text(kind)

    @abstractmethod
    def start(self) -> None:
        """Start every program."""

    @abstractmethod
    def client_id(self, name: str) -> str:
        """Return the client id under which the server's records name a member."""

    def stop(self) -> None:
        """Stop every program, the SuperLink last, so that SuperNodes can sign off."""
        programs = list(self.programs.values())[::-1]
        try:
            for program in programs[:-1]:
                program.terminate()
            for program in programs:
                program.stop()
        finally:  # a second Ctrl-C interrupted the waiting
            for program in programs:
                program.kill()
            if self.lock is not None:
                self.lock.close()
        if self.programs:
            self.show(f"stopped: {', '.join(self.programs)}")

    def write_connection(self, *settings: str) -> None:
        """Write the file that tells `flwr` how to reach the SuperLink."""
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        lines = (f"[superlink.{CONNECTION}]", f'address = "{self.address}"', *settings)
        (home / "config.toml").write_text("\n".join(lines) + "\n")

    def launch(self, name: str, *command: str) -> Program:
        """Start a program that logs to NAME.log, after what earlier programs of that name logged."""
        log = self.folder / "logs" / f"{name}.log"
        handles = () if self.lock is None else (self.lock.fileno(),)
        self.programs[name] = Program(
            name, (*self.prefix, *command), log, self.environment, self.folder, handles
        )
        return self.programs[name]

    def call_flwr(self, *words: str) -> Any:
        """Run a `flwr` command and return its answer, parsed from JSON."""
        ended = self.run_flwr(*words, "--format", "json")
        answer = _parse_json(ended.stdout)
        if ended.returncode or not answer.get("success"):
            raise FederationError(f"flwr {' '.join(words)} failed: {(ended.stdout + ended.stderr).strip()}")
        return answer

    def run_flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a `flwr` command and return how it ended."""
        command = (*self.prefix, "flwr", *words)
        try:
            return subprocess.run(
                command,
                env=self.environment,
                cwd=self.folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise FederationError(
                f"flwr {' '.join(words)} had no answer after {PATIENCE:.0f} s; read the logs in {self.folder / 'logs'}"
            ) from None

    def list_run_options(self) -> tuple[str, ...]:
        """Return the options for `flwr run` that this kind of federation needs."""
        return ()

    def submit(self, app: Path, config: Mapping[str, Any]) -> int:
        """Submit a run and return its number."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        answer = self.call_flwr(
            "run", str(app), CONNECTION, "--run-config", settings, *self.list_run_options()
        )
        return int(answer["run-id"])

    def read_status(self, run: int) -> str:
        """Return a run's status at the SuperLink; the exit code of `flwr run --stream` hides failures."""
        return self.call_flwr("list", CONNECTION, "--run-id", str(run))["runs"][0]["status"]

    def wait_for_run(self, run: int) -> None:
        """Wait until a run has ended, however long it takes, and raise a FederationError unless it completed."""
        while not (status := self.read_status(run)).startswith("finished"):
            self._follow_run(run)
        if status != COMPLETED:
            raise FederationError(f"run {run} ended as {status}:\n{self.read_run_log(run)[-3000:]}")

    def _follow_run(self, run: int) -> None:
        """Wait until the log stream of a run ends, as it does with the run or with the SuperLink."""
        command = (*self.prefix, "flwr", "log", str(run), CONNECTION, "--stream")
        serving = [name for name in SERVING if name in self.programs]
        with subprocess.Popen(
            command,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as stream:
            try:
                self.wait_until(
                    lambda: stream.poll() is not None, f"run {run} to end", *serving, patience=math.inf
                )
            finally:
                stream.kill()

    def read_run_log(self, run: int) -> str:
        """Return what a run's ServerApp printed and logged, from the SuperLink."""
        return self.run_flwr("log", str(run), CONNECTION, "--show").stdout

    def wait_for_log(self, name: str, words: str) -> None:
        """Wait until a program has logged some words since its start."""
        self.wait_until(lambda: words in self.programs[name].read_log(), f"{name} to say {words!r}", name)

    def wait_until(self, look: Callable[[], T], what: str, *needed: str, patience: float = PATIENCE) -> T:
        """Call ``look`` until it returns something true, and return that.

        Args:
            what: the event that is waited for, in words.
            needed: programs whose end is an error.
            patience: seconds until waiting is an error.
        """
        until = time.monotonic() + patience
        while not (seen := look()):
            for program in (self.programs[name] for name in needed):
                if not program.is_running:
                    raise FederationError(
                        f"{program.name} ended while waiting for {what}:\n{program.read_whole_log()[-3000:]}"
                    )
            if time.monotonic() > until:
                raise FederationError(
                    f"waited {patience:.0f} s for {what}; read the logs in {self.folder / 'logs'}"
                )
            time.sleep(PAUSE)
        return seen


def find_free_port() -> int:
    """Return a port of loopback that no program uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _parse_json(text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        return {}
