"""The same apps in a simulation: a SuperLink of our own, which is stopped again, where `flwr run` would leave one behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopback.running import HOST, Running


class Simulation(Running):
    """A simulated federation of so many clients, a core each."""

    def __init__(self, folder: Path, clients: int, **others: Any) -> None:
        super().__init__(folder, **others)
        self.submitting = ("--federation-config", f"num-supernodes={clients} client-resources-num-cpus=1")

    def start(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        self.connect("insecure = true")
        self.launch(
            "superlink", "flower-superlink", "--insecure", "--simulation", "--host", HOST, "--port", self.address.rpartition(":")[2],
        )  # fmt: skip
        self.awaited("superlink", "Uvicorn running on")
