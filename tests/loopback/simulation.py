"""Simulate a federation with a SuperLink of our own that is stopped afterwards; `flwr run` alone would leave one running."""

from __future__ import annotations

from loopback.federation import HOST, LocalFederation


class Simulation(LocalFederation):
    """A federation whose members Flower simulates, each on one core."""

    def list_run_options(self) -> tuple[str, ...]:
        """Return the options for `flwr run` that set the number of simulated members."""
        return ("--federation-config", f"num-supernodes={len(self.members)} client-resources-num-cpus=1")

    def start(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self.write_connection("insecure = true")
        self.launch(
            "superlink", "flower-superlink", "--insecure", "--simulation", "--host", HOST, "--port", self.port
        )
        self.wait_for_log("superlink", "Uvicorn running on")

    def client_id(self, name: str) -> str:
        """Return a member's client id: its name, because simulated keys are random."""
        return name
