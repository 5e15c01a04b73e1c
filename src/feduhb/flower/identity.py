"""Who is who: in deployment a client is its public key, in simulation its partition. Node ids come and go."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from feduhb.core.types import ClientId
from feduhb.data.federation import check_id
from feduhb.data.partition import client_names
from feduhb.data.request import Request
from feduhb.errors import AnswerError, ConfigError, RequestError
from feduhb.flower.post import exchange
from feduhb.flower.wire import METRICS, WHO, words

PEM = b"-----BEGIN PUBLIC KEY-----"
log = logging.getLogger("flwr.feduhb")
PREFIX, DIGITS = "key-", 32  # of SHA-256: 128 bits


class Roster:
    """Who is connected now, under names that outlive their node ids.

    A node with a registered public key is that key, whatever else it says of itself. Only where no node has one, in
    simulation, is each asked once which partition it holds.

    Args:
        partitions: the clients' names in simulation, by partition id; None calls them c00, c01, ...
        timeout: seconds to wait for nodes to say which partition they hold.
    """

    def __init__(
        self, grid: Grid, partitions: Sequence[ClientId] | None = None, *, timeout: float = 60.0
    ) -> None:
        self.grid = grid
        self.names: dict[
            ClientId, str
        ] = {}  # registered names of all keys that were ever seen; "" where one has none
        self.expected: int | None = None  # in simulation, how many there are
        self._partitions = None if partitions is None else _named(partitions)
        self._timeout = timeout
        self._keys = False
        self._asked: dict[int, ClientId] = {}

    def look(self) -> dict[ClientId, int]:
        """Give the node id of everyone who is connected now, by client."""
        nodes = list(self.grid.get_nodes())
        keyed = {key_id(node.public_key): node for node in nodes if node.public_key.startswith(PEM)}
        self._keys = self._keys or bool(keyed)
        if not self._keys:
            return self._by_partition([node.node_id for node in nodes])
        for client, node in keyed.items():
            self.names[client] = node.name or self.names.get(client, "")
        return {client: node.node_id for client, node in sorted(keyed.items())}

    def called(self, client: ClientId) -> str:
        """Give the name to show a person: the registered one, with the id that tells two of a name apart."""
        name = self.names.get(client)
        return f"{name} ({client})" if name else client

    def unnamed(self) -> bool:
        """Whether clients have keys and none a registered name, as where nodes make up a key at each start."""
        return bool(self.names) and not any(self.names.values())

    def resolved(self, request: Request, connected: Iterable[ClientId]) -> Request:
        """Spell a request by client ids: it may name clients by id, or by the name that their key is registered under."""
        known = {*connected, *self.names}
        for name in (*request.clients, *request.rows):
            if is_key_id(name) and name not in known:
                log.warning("nobody with the key %s was ever seen here; see that it is spelled right", name)
        ids = {name: self._id(name, known) for name in (*request.clients, *request.rows)}
        rows: dict[ClientId, tuple[int, ...]] = {}
        for name, some in request.rows.items():
            rows[ids[name]] = (*rows.get(ids[name], ()), *some)
        return Request(tuple(ids[name] for name in request.clients), rows, request.classes)

    def _id(self, name: str, known: set[ClientId]) -> ClientId:
        if name in known or is_key_id(name):
            return name
        found = sorted(client for client, called in self.names.items() if called == name)
        if len(found) > 1:
            raise RequestError(
                f"{len(found)} clients are registered as {name!r}: {', '.join(found)}; name one by its key, or all of them"
            )
        if not found:
            here = ", ".join(self.called(client) for client in sorted(known)) or "nobody"
            raise RequestError(
                f"there is no client {name!r} to forget; connected: {here}. One that is not connected is named by its key: "
                "feduhb.flower.key_id('its-key.pub')"
            )
        return found[0]

    def _by_partition(self, nodes: Sequence[int]) -> dict[ClientId, int]:
        new = [node for node in nodes if node not in self._asked]
        answers, failed = exchange(
            self.grid,
            {node: Message(RecordDict(), node, WHO, ttl=self._timeout) for node in new},
            self._timeout,
        )
        if failed:
            raise AnswerError(
                f"a node did not say which partition it holds ({next(iter(failed.values()))}); build its app with "
                "feduhb.flower.client_app, or add the answer to your own: app = feduhb.flower.introduced(app)"
            )
        for node, reply in answers.items():
            self._asked[node] = self._partition(reply.content)
        here = {self._asked[node]: node for node in nodes}
        if len(here) < len(nodes):
            raise AnswerError(
                "two nodes say that they hold the same partition; give each a partition-id of its own"
            )
        return dict(sorted(here.items()))

    def _partition(self, content: RecordDict) -> ClientId:
        said = content.get(METRICS)
        number, count = (
            (said.get("partition-id"), said.get("num-partitions"))
            if isinstance(said, MetricRecord)
            else (None, None)
        )
        if not isinstance(number, int) or not isinstance(count, int) or not 0 <= number < count:
            raise AnswerError(
                f"a node says that it holds partition {words(number, 20)} of {words(count, 20)}; set partition-id and "
                "num-partitions in its node config"
            )
        names = client_names(count) if self._partitions is None else self._partitions
        if len(names) != count:
            raise ConfigError(f"{len(names)} partitions are named, but there are {count}; name each")
        self.expected = count
        return names[number]


def _named(partitions: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Refuse partitions' names that requests could not spell, or that two share."""
    names = tuple(check_id(name) for name in partitions)
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two partitions are called {twice[0]!r}; give each a name of its own")
    return names


def key_id(key: str | Path | bytes) -> ClientId:
    """Give the client id of a public key: a file, or the bytes of one, in OpenSSH's format or PEM."""
    data = key if isinstance(key, bytes) else _file(Path(key))
    try:
        if data.startswith(PEM):
            der = base64.b64decode(b"".join(data.split()[3:-3]), validate=True)
        else:
            der = load_ssh_public_key(data).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm, binascii.Error):
        der = b""
    if not der:
        raise ConfigError("this is no public key; give the .pub file that ssh-keygen wrote, or its bytes")
    return PREFIX + sha256(der).hexdigest()[:DIGITS]


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the public key {path} cannot be read: {error.strerror}") from None


def is_key_id(name: str) -> bool:
    """Whether a name is spelled as the id of a key."""
    digits = name.removeprefix(PREFIX)
    return name != digits and len(digits) == DIGITS and set(digits) <= set("0123456789abcdef")
