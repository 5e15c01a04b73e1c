"""What a deployment and a simulation have in common: programs on loopback, and `flwr` to hand runs in."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from loopback.claiming import claimed
from loopback.programs import FederationError, Program

T = TypeVar("T")

HOST = "127.0.0.1"
CONNECTION = "federation"  # the name under which `flwr` knows the SuperLink
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # for Ray on every system: listen on loopback alone
}
COMPLETED = "finished:completed"
PATIENCE = 300.0  # seconds until what is waited for counts as failed
PAUSE = 0.3  # seconds between two looks
SERVING = ("superlink", "superexec")  # without these no run goes on


class Running(ABC):
    """A federation on this machine; leaving the block stops everything that was started in it.

    Args:
        folder: where everything goes that it writes.
        environment: variables for every program, over this process's own.
        prefix: words before every command, such as `nsenter --net=FILE`.
    """

    submitting: tuple[str, ...] = ()  # more words for `flwr run`

    def __init__(
        self, folder: Path, *, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self.folder = folder.resolve()
        self.prefix = tuple(prefix)
        self.address = f"{HOST}:{free_port()}"
        self.programs: dict[str, Program] = {}
        self.claim: IO[bytes] | None = None
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {**QUIET, "FLWR_HOME": str(self.folder / "flwr"), "PATH": path}
        self.environment = {**os.environ, **own, **(environment or {})}

    def __enter__(self) -> Self:
        try:
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
            self.claim = claimed(self.folder)
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Bring everything up."""

    def stop(self) -> None:
        """Stop everything this object started: SuperNodes say farewell to the SuperLink before it goes."""
        programs = list(self.programs.values())[::-1]
        try:
            for program in programs[:-1]:
                program.ask_to_end()
            for program in programs:
                program.stop()
        finally:  # a second Ctrl-C while it waits
            for program in programs:
                program.kill()
            if self.claim is not None:
                self.claim.close()

    def connect(self, *settings: str) -> None:
        """Tell `flwr` how to reach the SuperLink."""
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        lines = (f"[superlink.{CONNECTION}]", f'address = "{self.address}"', *settings)
        (home / "config.toml").write_text("\n".join(lines) + "\n")

    def launch(self, name: str, *command: str) -> Program:
        """Start a program whose log is NAME.log; a second of that name goes on in the same log."""
        log = self.folder / "logs" / f"{name}.log"
        handles = () if self.claim is None else (self.claim.fileno(),)
        self.programs[name] = Program(
            name, (*self.prefix, *command), log, self.environment, self.folder, handles
        )
        return self.programs[name]

    def flwr(self, *words: str) -> Any:
        """Run `flwr` and give its answer, read as JSON."""
        ended = self._flwr(*words, "--format", "json")
        answer = _json(ended.stdout)
        if ended.returncode or not answer.get("success"):
            raise FederationError(f"flwr {' '.join(words)} failed: {(ended.stdout + ended.stderr).strip()}")
        return answer

    def _flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
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

    def submit(self, app: Path, config: Mapping[str, Any]) -> int:
        """Hand in a run and give its number."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        answer = self.flwr("run", str(app), CONNECTION, "--run-config", settings, *self.submitting)
        return int(answer["run-id"])

    def status(self, run: int) -> str:
        """Give what the SuperLink says of a run: `flwr run --stream` ends well when the run did not."""
        return self.flwr("list", CONNECTION, "--run-id", str(run))["runs"][0]["status"]

    def wait(self, run: int) -> None:
        """Wait until a run has ended, however long it takes, and refuse any other end than a good one."""
        while not (status := self.status(run)).startswith("finished"):
            self._stream(run)
        if status != COMPLETED:
            raise FederationError(f"run {run} ended as {status}:\n{self.log(run)[-3000:]}")

    def _stream(self, run: int) -> None:
        """Follow a run's log until the run ends, or the SuperLink does; no longer than what serves it lives."""
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
                self.poll(lambda: stream.poll() is not None, f"run {run} to end", *serving, patience=math.inf)
            finally:
                stream.kill()

    def log(self, run: int) -> str:
        """Give what a run's ServerApp printed and logged; the SuperLink keeps it."""
        return self._flwr("log", str(run), CONNECTION, "--show").stdout

    def awaited(self, name: str, words: str) -> None:
        """Wait until a program has said something since it was started."""
        self.poll(lambda: words in self.programs[name].said(), f"{name} to say {words!r}", name)

    def poll(self, look: Callable[[], T], what: str, *needed: str, patience: float = PATIENCE) -> T:
        """Look until there is something to see; give up when a program it needs has ended."""
        until = time.monotonic() + patience
        while not (seen := look()):
            for program in (self.programs[name] for name in needed):
                if not program.running:
                    raise FederationError(
                        f"{program.name} ended while waiting for {what}:\n{program.text()[-3000:]}"
                    )
            if time.monotonic() > until:
                raise FederationError(
                    f"waited {patience:.0f} s for {what}; read the logs in {self.folder / 'logs'}"
                )
            time.sleep(PAUSE)
        return seen


def free_port() -> int:
    """Give a port of loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _json(text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        return {}
