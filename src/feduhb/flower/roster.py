"""The roster of a federation: which client is which, who is connected, and what is forgotten by client ids and by names.

In deployment a client is its public key, in simulation its partition. Node ids change and identify nobody.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from feduhb.core.types import ClientId
from feduhb.data.federation import check_id
from feduhb.data.partition import make_client_ids
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import AnswerError, ConfigError, RequestError, RunFolderError
from feduhb.flower.messages import PAUSE, exchange
from feduhb.flower.wire import METRICS, WHO, to_line
from feduhb.runs.folder import RunFolder
from feduhb.runs.lineage import read_forgotten

log = logging.getLogger("flwr.feduhb")
PEM = b"-----BEGIN PUBLIC KEY-----"
PREFIX, DIGITS = "key-", 32  # hexadecimal digits of SHA-256: 128 bits
REQUEST = "request.json"  # the resolved request, in the folder of a run
Rows = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A resolved request: what is forgotten, by client ids, and by the names that a leaver may return under with a new key."""

    asked: str = ""  # the request as the user wrote it
    request: Request | None = None  # the same by client ids
    earlier: Request | None = None  # what earlier runs forgot, by client ids
    names: tuple[str, ...] = ()  # registered names under which nobody may take part
    rows: Rows = field(default_factory=dict)  # rows by registered name, for keys that are not known yet
    total: Request | None = field(init=False, repr=False)  # the request and the earlier ones together

    def __post_init__(self) -> None:
        total = self.request or self.earlier
        if self.request is not None and self.earlier is not None:
            total = self.earlier.merge(self.request)
        object.__setattr__(self, "total", total)

    @classmethod
    def of(
        cls,
        request: Request | None,
        known: Mapping[ClientId, str],
        *,
        asked: Request | None = None,
        before: Forgotten | None = None,
    ) -> Forgotten:
        """Return what is forgotten if a request is served on top of what was forgotten before.

        A name is barred if the user wrote it, or if all clients that were ever seen under it are forgotten.

        Args:
            request: by client ids.
            known: the registered names of all clients that were ever seen.
            asked: the request as the user wrote it.
        """
        before = before or cls()
        found = cls(_format(asked), request, before.total)
        total = found.total
        if total is None:
            return found
        holders: dict[str, set[ClientId]] = {}
        for client, name in known.items():
            holders.setdefault(name, set()).add(client)
        written = set() if asked is None else {name for name in asked.clients if name in holders}
        whole = {name for name, some in holders.items() if name and some <= {*total.clients}}
        names = tuple(sorted({*before.names, *written, *whole}))
        sole = {name: next(iter(some)) for name, some in holders.items() if name and len(some) == 1}
        rows = {name: total.rows[client] for name, client in sole.items() if client in total.rows}
        kept = {
            name: tuple(sorted({*before.rows.get(name, ()), *rows.get(name, ())}))
            for name in sorted({*before.rows, *rows} - {*names})
        }
        return replace(found, names=names, rows=kept)

    def is_forgotten(self, client: ClientId, name: str | None) -> bool:
        """Whether a whole client is forgotten: by its id, or by the name that its key is registered under."""
        return name in self.names or (self.total is not None and client in self.total.clients)

    def list_rows(self, client: ClientId, name: str | None) -> list[int]:
        """Return the rows that a client must drop, by its id and by its name."""
        own = () if self.total is None else self.total.rows.get(client, ())
        return sorted({*own, *self.rows.get(name or "", ())})

    def is_same_as(self, other: Forgotten) -> bool:
        """Whether both forget the same clients, rows and classes by ids, however the requests were written."""
        return (self.request, self.earlier) == (other.request, other.earlier)

    def bar(self, names: Iterable[str]) -> Forgotten:
        """Return the same with more names barred."""
        return replace(self, names=tuple(sorted({*self.names, *names})))

    def to_json(self) -> bytes:
        """Return the content of request.json."""
        values = {
            "asked": self.asked,
            "request": _format(self.request),
            "earlier": _format(self.earlier),
            "names": list(self.names),
            "rows": {name: list(some) for name, some in self.rows.items()},
        }
        return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()


def _format(request: Request | None) -> str:
    return "" if request is None else str(request)


class Roster:
    """Who is connected now, by client ids that outlive node ids.

    A node with a registered public key is that key, whatever else it says of itself. Only if no node has one, in
    simulation, each is asked once which partition it holds.

    Args:
        partitions: the clients' names in simulation, by partition id; None calls them c00, c01, ...
        timeout: seconds to wait for nodes to say which partition they hold, and for clients to connect.
    """

    def __init__(
        self, grid: Grid, partitions: Sequence[ClientId] | None = None, *, timeout: float = 60.0
    ) -> None:
        self.grid = grid
        self.names: dict[ClientId, str] = {}  # registered, of all keys ever seen; "" for one without
        self.expected: int | None = None  # in simulation, the number of clients
        self._partitions = None if partitions is None else _check_names(partitions)
        self._timeout = timeout
        self._has_keys = False
        self._partition_of: dict[int, ClientId] = {}

    def look(self) -> dict[ClientId, int]:
        """Return the node ids of all clients that are connected now."""
        nodes = list(self.grid.get_nodes())
        keyed = {key_id(node.public_key): node for node in nodes if node.public_key.startswith(PEM)}
        self._has_keys = self._has_keys or bool(keyed)
        if not self._has_keys:
            return self._look_by_partition([node.node_id for node in nodes])
        for client, node in keyed.items():
            self.names[client] = node.name or self.names.get(client, "")
        return {client: node.node_id for client, node in sorted(keyed.items())}

    def split(self, forgotten: Forgotten) -> tuple[dict[ClientId, int], dict[ClientId, int]]:
        """Return the node ids of the connected clients that remain, and of those that are forgotten whole."""
        remaining: dict[ClientId, int] = {}
        leavers: dict[ClientId, int] = {}
        for client, node in self.look().items():
            is_leaver = forgotten.is_forgotten(client, self.names.get(client))
            (leavers if is_leaver else remaining)[client] = node
        return remaining, leavers

    def wait(self, forgotten: Forgotten, needed: int | None = None) -> dict[ClientId, int]:
        """Return the connected clients that remain, once there are enough: one by default, in simulation always all.

        Raise AnswerError if there are too few when the time is up.
        """
        end = time.monotonic() + self._timeout
        while True:
            here, leavers = self.split(forgotten)
            everyone = self.expected is None or len(here) + len(leavers) >= self.expected
            if everyone and len(here) >= (needed or 1):
                return here
            if everyone and self.expected is not None and not here:
                raise RequestError(
                    "nobody would remain to retrain on; leave at least one client, or delete the model instead"
                )
            if time.monotonic() > end:
                raise AnswerError(
                    f"{len(here)} clients who take part are connected after {self._timeout:g} s, but {needed or 1} are needed "
                    f"({', '.join(map(self.format_client, here)) or 'none'}); start the others, or lower min_clients and min_replies"
                )
            time.sleep(PAUSE)

    def format_client(self, client: ClientId) -> str:
        """Return the name to show a person: the registered one, with the id that tells two of a name apart."""
        name = self.names.get(client)
        return f"{name} ({client})" if name else client

    def lacks_names(self) -> bool:
        """Whether clients have keys and none has a registered name, as if nodes made up a key at each start."""
        return bool(self.names) and not any(self.names.values())

    def resolve(self, request: Request, connected: Iterable[ClientId]) -> Request:
        """Return a request by client ids; it may name clients by id, or by the name that their key is registered under."""
        known = {*connected, *self.names}
        for name in (*request.clients, *request.rows):
            if is_key_id(name) and name not in known:
                log.warning("nobody with the key %s was ever seen here; see that it is spelled right", name)
        ids = {name: self._find_id(name, known) for name in (*request.clients, *request.rows)}
        rows: dict[ClientId, tuple[int, ...]] = {}
        for name, some in request.rows.items():
            rows[ids[name]] = (*rows.get(ids[name], ()), *some)
        return Request(tuple(ids[name] for name in request.clients), rows, request.classes)

    def _find_id(self, name: str, known: Collection[ClientId]) -> ClientId:
        if name in known or is_key_id(name):
            return name
        found = sorted(client for client, registered in self.names.items() if registered == name)
        if len(found) > 1:
            raise RequestError(
                f"{len(found)} clients are registered as {name!r}: {', '.join(found)}; name one by its key, or all of them"
            )
        if not found:
            here = ", ".join(self.format_client(client) for client in sorted(known)) or "nobody"
            raise RequestError(
                f"there is no client {name!r} to forget; connected: {here}. One that is not connected is named by its key: "
                "feduhb.flower.key_id('its-key.pub')"
            )
        return found[0]

    def _look_by_partition(self, nodes: Sequence[int]) -> dict[ClientId, int]:
        new = [node for node in nodes if node not in self._partition_of]
        messages = {node: Message(RecordDict(), node, WHO, ttl=self._timeout) for node in new}
        answers, failed = exchange(self.grid, messages, self._timeout)
        if failed:
            raise AnswerError(
                f"a node did not say which partition it holds ({next(iter(failed.values()))}); build its app with "
                "feduhb.flower.client_app, or add the answer to your own: app = feduhb.flower.introduced(app)"
            )
        for node, reply in answers.items():
            self._partition_of[node] = self._read_partition(reply.content)
        here = {self._partition_of[node]: node for node in nodes}
        if len(here) < len(nodes):
            raise AnswerError(
                "two nodes say that they hold the same partition; give each a partition-id of its own"
            )
        return dict(sorted(here.items()))

    def _read_partition(self, content: RecordDict) -> ClientId:
        metrics = content.get(METRICS)
        said = metrics if isinstance(metrics, MetricRecord) else {}
        number, count = said.get("partition-id"), said.get("num-partitions")
        if not isinstance(number, int) or not isinstance(count, int) or not 0 <= number < count:
            raise AnswerError(
                f"a node says that it holds partition {to_line(number, 20)} of {to_line(count, 20)}; set partition-id and "
                "num-partitions in its node config"
            )
        names = make_client_ids(count) if self._partitions is None else self._partitions
        if len(names) != count:
            raise ConfigError(f"{len(names)} partitions are named, but there are {count}; name each")
        self.expected = count
        return names[number]


def _check_names(partitions: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Return the names of partitions; raise an error for a name that no request could spell, or that two share."""
    names = tuple(check_id(name) for name in partitions)
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two partitions are called {twice[0]!r}; give each a name of its own")
    return names


def resolve_request(
    roster: Roster,
    forget: Forget | None,
    *,
    before: Forgotten | None = None,
    written: Forgotten | None = None,
    min_clients: int | None = None,
) -> Forgotten:
    """Wait for clients and resolve a request to client ids, on top of what earlier runs forgot.

    Args:
        before: what earlier runs forgot.
        written: the same request as it was resolved when a resumed run began. It is not resolved again: meanwhile a
            leaver may have returned with another key.
        min_clients: how many of those who remain must be connected; None needs one.
    """
    asked, before = None if forget is None else as_request(forget), before or Forgotten()
    if written is not None and (written.asked, written.earlier) == (_format(asked), before.total):
        found = written.bar(before.names)
        roster.wait(found, min_clients)
        return found
    by_words = Forgotten(request=asked, earlier=before.total, names=before.names)
    roster.wait(by_words if asked is None else by_words.bar(asked.clients), min_clients)
    request = None if asked is None else roster.resolve(asked, roster.look())
    found = Forgotten.of(request, roster.names, asked=asked, before=before)
    return written.bar(found.names) if written is not None and found.is_same_as(written) else found


def read_request(folder: Path) -> Forgotten | None:
    """Return the request of a run as it was resolved when the run began; None if there is no request.json."""
    path = folder / REQUEST
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        request, earlier = (
            Request.parse(found[key]) if found[key] else None for key in ("request", "earlier")
        )
        rows = {str(name): tuple(map(int, some)) for name, some in found["rows"].items()}
        return Forgotten(str(found["asked"]), request, earlier, tuple(map(str, found["names"])), rows)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise RunFolderError(
            f"{path} is damaged; restore it from a backup: it says who must not be asked"
        ) from None


def read_total(folder: RunFolder) -> Forgotten:
    """Return everything that a run has forgotten, earlier requests included, as what was forgotten before the next run."""
    total, written = read_forgotten(folder), read_request(folder.path) or Forgotten()
    return Forgotten(request=total, names=written.names, rows=written.rows)


def key_id(key: str | Path | bytes) -> ClientId:
    """Return the client id of a public key: a file, or the bytes of one, in OpenSSH's format or PEM."""
    data = key if isinstance(key, bytes) else _read_key(Path(key))
    try:
        if data.startswith(PEM):
            der = base64.b64decode(b"".join(data.split()[3:-3]), validate=True)
        else:
            der = load_ssh_public_key(data).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm, binascii.Error):
        der = b""
    if not der:
        raise ConfigError("this is not a public key; give the .pub file that ssh-keygen wrote, or its bytes")
    return PREFIX + sha256(der).hexdigest()[:DIGITS]


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the public key {path} cannot be read: {error.strerror}") from None


def is_key_id(name: str) -> bool:
    """Whether a name has the form of a key's id."""
    digits = name.removeprefix(PREFIX)
    return name != digits and len(digits) == DIGITS and set(digits) <= set("0123456789abcdef")
