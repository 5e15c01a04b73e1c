"""Flower's simulation by `flwr run . local`, one actor a core, one torch thread an actor; rounds are timed in the ServerApp.

`flwr run` starts a SuperLink and leaves it running: this one has a home and ports of its own, and is stopped by its process id. That a run failed shows in
`flwr list` alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
from task import Task, tell

HERE = Path(__file__).parent
FLWR = Path(sys.executable).with_name("flwr")
PATIENCE = 30  # seconds
APP = """\
[project]
name = "round"
version = "1.0.0"
description = "A round of federated averaging."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "feduhb"

[tool.flwr.app.components]
serverapp = "flower_apps:server_app"
clientapp = "flower_apps:client_app"

[tool.flwr.app.config]
task = ""
answer = ""
"""


def main() -> None:
    """Run the rounds."""
    task = Task.given()
    with tempfile.TemporaryDirectory() as place:
        home, answer = Path(place), Path(place) / "answer.npz"
        environment = prepared(home)
        federation = f"num-supernodes={task.clients} client-resources-num-cpus=1"
        how = f'task="{Path(task.folder).resolve()}" answer="{answer}"'
        command = [FLWR, "run", home / "app", "local", "--stream"]
        try:
            subprocess.run(
                [*command, "--federation-config", federation, "--run-config", how],
                env=environment,
                check=True,
            )
            status = outcome(environment)
        finally:
            stop(home)
        if status != "finished:completed":
            raise SystemExit(f"Flower's run ended as {status}")
        found = np.load(answer)
    tell(found["seconds"].tolist(), found["params"], f"flwr {version('flwr')}, torch {version('torch')}")


def prepared(home: Path) -> dict[str, str]:
    """Lay out the app and give the environment in which nothing of another Flower on this machine is met."""
    (home / "app").mkdir()
    (home / "app" / "pyproject.toml").write_text(APP)
    api, control = free_ports()
    return {
        **os.environ,
        "PATH": f"{FLWR.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(api),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
    }


def free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def outcome(environment: dict[str, str]) -> str:
    """How the run ended, in Flower's words."""
    command = [FLWR, "list", "local", "--format", "json"]
    listed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(listed)["runs"][0]["status"]


def stop(home: Path) -> None:
    """Stop the SuperLink of this home, and wait until it is gone."""
    for process in superlinks(home):
        with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(process)) as handle:
            signal.pidfd_send_signal(handle.fileno(), signal.SIGTERM)
            select.select([handle], [], [], PATIENCE)


def superlinks(home: Path) -> Iterator[int]:
    """The ids of processes whose command line names this home."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            if f"{home}/local-superlink" in words:
                yield int(folder.name)


if __name__ == "__main__":
    main()
