"""Deploy a federation on loopback: a SuperLink with TLS and node authentication, a SuperExec, a SuperNode per member."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

from feduhb.flower import key_id
from loopback.federation import CONNECTION, HOST, LocalFederation, find_free_port
from loopback.keys import make_certificates, make_node_key, make_secret
from loopback.programs import Program

ACCEPTED = "SuperNode ID:"  # what a SuperNode logs once the SuperLink has accepted its key
DATABASE_PATIENCE = 60.0  # seconds to wait for a moment in which the SuperLink reads nothing


class Deployment(LocalFederation):
    """A federation with every program that a real one has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.secret = self.folder / "superexec.secret"
        self.database = self.folder / "superlink.db"
        self.registered = self.folder / "members.json"
        self.names: dict[str, str] = {}  # of registered members, by node id

    def start(self) -> None:
        """Make keys and certificates, start every program, and wait until every member is accepted.

        Where the folder has a SuperLink's database, its members are already registered. Without a database they are
        registered again, by the keys they have.
        """
        is_restart = self.database.exists()
        self.names = (
            json.loads(self.registered.read_text()) if is_restart and self.registered.exists() else {}
        )
        make_certificates(self.folder / "tls", HOST)
        make_secret(self.secret)
        self.write_connection(f'root-certificates = "{self.tls_path("ca.crt")}"')
        self.start_superlink()
        self.start_superexec()
        for name in self.members:
            self.register(name)
            self.start_supernode(name)
        for name in self.members:
            if is_restart:
                self.restart_supernode(name)
            else:
                self.wait_for_log(name, ACCEPTED)

    def register(self, name: str) -> None:
        """Make a member's key and register it with the SuperLink, unless that was done: no other key is accepted."""
        if name in self.names.values():
            return
        make_node_key(self.key_path(name))
        answer = self.call_flwr(
            "supernode", "register", f"{self.key_path(name)}.pub", CONNECTION, "--name", name
        )
        self.names[str(answer["node-id"])] = name
        self.registered.write_text(json.dumps(self.names))

    def start_superlink(self) -> None:
        """Start the SuperLink, with its earlier database if there is one, and wait until it listens."""
        self.launch(
            "superlink", "flower-superlink",
            "--host", HOST, "--port", self.port,
            "--ssl-ca-certfile", self.tls_path("ca.crt"), "--ssl-certfile", self.tls_path("server.crt"), "--ssl-keyfile", self.tls_path("server.key"),
            "--enable-supernode-auth", "--database", str(self.database),
            "--isolation", "process", "--superexec-auth-secret-file", str(self.secret),
        )  # fmt: skip
        self.wait_for_log("superlink", "Uvicorn running on")

    def start_superexec(self) -> None:
        """Start the program that runs the ServerApp beside the SuperLink, not inside it."""
        self.launch(
            "superexec", "flower-superexec", "--root-certificates", self.tls_path("ca.crt"),
            "--runtime-api-address", self.address, "--superexec-auth-secret-file", str(self.secret),
        )  # fmt: skip

    def start_supernode(self, name: str, key: Path | None = None) -> Program:
        """Start a member's SuperNode, with another key than its own if one is given."""
        config = " ".join(f"{word}={json.dumps(value)}" for word, value in self.members.get(name, {}).items())
        return self.launch(
            name, "flower-supernode", "--root-certificates", self.tls_path("ca.crt"), "--superlink", self.address,
            "--port", str(find_free_port()), "--auth-supernode-private-key", str(key or self.key_path(name)), "--node-config", config,
        )  # fmt: skip

    def restart_supernode(self, name: str) -> None:
        """Start a SuperNode that died until it is accepted, as a supervisor does.

        The SuperLink refuses a key (exit code 305) as long as it believes the key's old session to be alive.
        """

        def is_accepted() -> bool:
            if not self.programs[name].is_running:
                self.start_supernode(name)
            return ACCEPTED in self.programs[name].read_log()

        self.wait_until(is_accepted, f"{name} to be accepted again")

    def read_node_states(self) -> dict[str, str]:
        """Return every registered member's state, such as "online", by name."""
        nodes = self.call_flwr("supernode", "list", CONNECTION)["nodes"]
        states = {str(node["node-id"]): str(node["status"]) for node in nodes}
        return {self.names.get(node, node): state for node, state in states.items()}

    def list_messages(self, name: str, run: int) -> list[str]:
        """Return the kinds of the messages that a member received in a run, by its own log."""
        log = re.sub(r"\x1b\[\d+m", "", self.programs[name].read_whole_log())
        found = re.findall(r"\[RUN (\d+)[^\]]*\]\n\S+\s*:\s+Receiving: (\S+) message", log)
        return [kind for number, kind in found if int(number) == run]

    def scrub_database(self) -> None:
        """Remove from the SuperLink's database files what Flower has deleted but left in them; the SuperLink may run."""
        with contextlib.closing(
            sqlite3.connect(self.database, timeout=DATABASE_PATIENCE, isolation_level=None)
        ) as link:
            link.execute("VACUUM")
            end = time.monotonic() + DATABASE_PATIENCE
            while link.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # another process reads
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"{self.database} was in use for {DATABASE_PATIENCE:.0f} s; stop the SuperLink and try again"
                    )
                time.sleep(0.1)

    def client_id(self, name: str) -> str:
        """Return a member's client id: a digest of its public key."""
        return key_id(self.key_path(name).with_suffix(".pub"))

    def key_path(self, name: str) -> Path:
        """Return the path of a member's private key."""
        return self.folder / "keys" / name

    def tls_path(self, name: str) -> str:
        """Return the path of a certificate or its key."""
        return str(self.folder / "tls" / name)
