"""A SuperLink with TLS and node authentication, a SuperExec, and a SuperNode per member, all on loopback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopback.keys import certificates, node_key, secret
from loopback.programs import Program
from loopback.running import CONNECTION, HOST, Running, free_port

LET_IN = "SuperNode ID:"  # what a SuperNode logs once the SuperLink has accepted its key


class Deployment(Running):
    """A federation with everything a real one has.

    Args:
        folder: where keys, certificates, the SuperLink's database and all logs go.
        members: by registered name, the node config of each SuperNode.
        others: `environment` and `prefix`, see `Running`.
    """

    def __init__(self, folder: Path, members: Mapping[str, Mapping[str, Any]], **others: Any) -> None:
        super().__init__(folder, **others)
        self.members = members
        self.secret = self.folder / "superexec.secret"
        self.database = self.folder / "superlink.db"
        self.known = self.folder / "members.json"
        self.ids: dict[str, str] = {}  # names by node id

    def start(self) -> None:
        """Make keys and certificates, bring everything up, and wait until every member is let in.

        In a folder with a SuperLink's database a federation goes on where it was: its members are registered. Where that
        is gone they are registered anew, by the keys they have.
        """
        again = self.database.exists()
        self.ids = json.loads(self.known.read_text()) if again and self.known.exists() else {}
        certificates(self.folder / "tls", HOST)
        secret(self.secret)
        self.connect(f'root-certificates = "{self.tls("ca.crt")}"')
        self.start_superlink()
        self.start_superexec()
        for name in self.members:
            self.register(name)
            self.start_supernode(name)
        for name in self.members:
            if again:
                self.bring_back(name)
            else:
                self.awaited(name, LET_IN)

    def register(self, name: str) -> None:
        """Make a member's key and let the SuperLink know it, unless it does: nobody else is let in."""
        if name in self.ids.values():
            return
        node_key(self.key(name))
        answer = self.flwr("supernode", "register", f"{self.key(name)}.pub", CONNECTION, "--name", name)
        self.ids[str(answer["node-id"])] = name
        self.known.write_text(json.dumps(self.ids))

    def start_superlink(self) -> None:
        """Start the SuperLink, again on the database it left if there is one, and wait until it listens."""
        self.launch(
            "superlink", "flower-superlink",
            "--host", HOST, "--port", self.address.rpartition(":")[2],
            "--ssl-ca-certfile", self.tls("ca.crt"), "--ssl-certfile", self.tls("server.crt"), "--ssl-keyfile", self.tls("server.key"),
            "--enable-supernode-auth", "--database", str(self.database),
            "--isolation", "process", "--superexec-auth-secret-file", str(self.secret),
        )  # fmt: skip
        self.awaited("superlink", "Uvicorn running on")

    def start_superexec(self) -> None:
        """Start what runs the ServerApp, beside the SuperLink and not inside it."""
        self.launch(
            "superexec", "flower-superexec", "--root-certificates", self.tls("ca.crt"),
            "--runtime-api-address", self.address, "--superexec-auth-secret-file", str(self.secret),
        )  # fmt: skip

    def start_supernode(self, name: str, key: Path | None = None) -> Program:
        """Start a member's SuperNode."""
        config = " ".join(f"{word}={json.dumps(value)}" for word, value in self.members.get(name, {}).items())
        return self.launch(
            name, "flower-supernode", "--root-certificates", self.tls("ca.crt"), "--superlink", self.address,
            "--port", str(free_port()), "--auth-supernode-private-key", str(key or self.key(name)), "--node-config", config,
        )  # fmt: skip

    def bring_back(self, name: str) -> None:
        """Start a SuperNode that died again and again until it is let in, as a supervisor does.

        The SuperLink refuses a key (exit code 305) as long as it takes its old session for alive.
        """

        def let_in() -> bool:
            if not self.programs[name].running:
                self.start_supernode(name)
            return LET_IN in self.programs[name].said()

        self.poll(let_in, f"{name} to be let in again")

    def nodes(self) -> dict[str, str]:
        """Give every registered member's state by name."""
        found = {
            str(node["node-id"]): str(node["status"])
            for node in self.flwr("supernode", "list", CONNECTION)["nodes"]
        }
        return {self.ids.get(node, node): status for node, status in found.items()}

    def key(self, name: str) -> Path:
        """Where a member's private key lies."""
        return self.folder / "keys" / name

    def tls(self, name: str) -> str:
        """Where a certificate lies."""
        return str(self.folder / "tls" / name)
