"""Run Flower's simulation by `flwr run . local`: an actor a core, one torch thread each; the ServerApp times the rounds.

`flwr run` starts a SuperLink and leaves it running. This one has its own home and ports, and is stopped by its process id. Only
`flwr list` shows whether a run failed.
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
from task import Task, print_answer

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
    task = Task.from_arguments()
    with tempfile.TemporaryDirectory() as place:
        home, answer = Path(place), Path(place) / "answer.npz"
        environment = prepare_home(home)
        federation = f"num-supernodes={task.clients} client-resources-num-cpus=1"
        how = f'task="{Path(task.folder).resolve()}" answer="{answer}"'
        command = [FLWR, "run", home / "app", "local", "--stream"]
        try:
            subprocess.run(
                [*command, "--federation-config", federation, "--run-config", how],
                env=environment,
                check=True,
            )
            status = read_status(environment)
        finally:
            stop(home)
        if status != "finished:completed":
            raise SystemExit(f"Flower's run ended as {status}")
        found = np.load(answer)
    print_answer(
        found["seconds"].tolist(), found["params"], f"flwr {version('flwr')}, torch {version('torch')}"
    )


def prepare_home(home: Path) -> dict[str, str]:
    """Write the app; return an environment that is separate from any other Flower on this machine."""
    (home / "app").mkdir()
    (home / "app" / "pyproject.toml").write_text(APP)
    api, control = find_free_ports()
    return {
        **os.environ,
        "PATH": f"{FLWR.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(api),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
    }


def find_free_ports() -> tuple[int, int]:
    """Return two free ports."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def read_status(environment: dict[str, str]) -> str:
    """Return the status that Flower gives the run."""
    command = [FLWR, "list", "local", "--format", "json"]
    listed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(listed)["runs"][0]["status"]


def stop(home: Path) -> None:
    """Stop the SuperLink of this home, and wait until it has ended."""
    for process in find_superlinks(home):
        with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(process)) as handle:
            signal.pidfd_send_signal(handle.fileno(), signal.SIGTERM)
            select.select([handle], [], [], PATIENCE)


def find_superlinks(home: Path) -> Iterator[int]:
    """Yield the ids of processes whose command line names this home."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            if f"{home}/local-superlink" in words:
                yield int(folder.name)


if __name__ == "__main__":
    main()
