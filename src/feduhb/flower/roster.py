"""The roster of a federation: the clients that are connected, and what is forgotten, by client ids and by names.

A client is identified by its public key in deployment and by its partition in simulation. Node ids change.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from feduhb.core.types import ClientId
from feduhb.data.federation import check_id
from feduhb.data.partition import make_client_ids
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import AnswerError, ConfigError, RequestError, RunFolderError
from feduhb.flower.files import WrittenRequest
from feduhb.flower.messages import PAUSE, exchange, log
from feduhb.flower.names import clean_name, fold_name
from feduhb.flower.wire import METRICS, WHO, check_records, read_metrics, to_line
from feduhb.runs.files import find_json
from feduhb.runs.folder import REQUEST, RunFolder
from feduhb.runs.lineage import read_forgotten

PEM = b"-----BEGIN PUBLIC KEY-----"
PREFIX, DIGITS = "key-", 32  # hexadecimal digits of SHA-256: 128 bits
HOW = "feduhb.flower.key_id('its-key.pub')"
NOBODY_REMAINS = "no client would remain to train on; keep at least one client, or delete the model instead"
MOST_NODES = 10_000_000  # a larger number of partitions is not a report
Rows = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A resolved request: what is forgotten, by client ids, and by registered names in case a leaver returns with a new key."""

    asked: str = ""  # the request as the user wrote it
    request: Request | None = None  # the same by client ids
    earlier: Request | None = None  # what earlier runs forgot, by client ids
    names: tuple[str, ...] = ()  # registered names that may not take part
    rows: Rows = field(default_factory=dict)  # rows by registered name, for keys that are not known yet
    total: Request | None = field(init=False, repr=False)  # request and earlier together
    _barred: frozenset[str] = field(init=False, repr=False, compare=False)  # names as they are compared

    def __post_init__(self) -> None:
        object.__setattr__(self, "_barred", frozenset(filter(None, map(fold_name, self.names))))
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
        """Return what is forgotten once a request is served, in addition to what was forgotten before.

        A name is barred if the user wrote it, or if all clients that were ever seen under it are forgotten. Names are
        compared as `fold_name` does.

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
        shown: dict[str, str] = {}
        for client, name in known.items():
            if folded := fold_name(name):
                holders.setdefault(folded, set()).add(client)
                shown.setdefault(folded, name)
        written = set() if asked is None else {fold_name(name) for name in asked.clients} & {*holders}
        whole = {folded for folded, some in holders.items() if some <= {*total.clients}}
        found = replace(found, names=before.names).bar(shown[folded] for folded in written | whole)
        rows = {name: {*some} for name, some in before.rows.items()}
        for folded, some in holders.items():
            if len(some) == 1 and (own := total.rows.get(next(iter(some)))):
                rows.setdefault(shown[folded], set()).update(own)
        kept = {name: tuple(sorted(some)) for name, some in sorted(rows.items())}
        return replace(found, rows={name: some for name, some in kept.items() if not found.is_barred(name)})

    def is_barred(self, name: str | None) -> bool:
        """Whether a registered name may not take part."""
        return name is not None and fold_name(name) in self._barred

    def is_forgotten(self, client: ClientId, name: str | None) -> bool:
        """Whether a whole client is forgotten, by its id or by the name that its key is registered under."""
        return self.is_barred(name) or (self.total is not None and client in self.total.clients)

    def list_rows(self, client: ClientId, name: str | None) -> list[int]:
        """Return the rows that a client must drop, by its id and by its name."""
        own = () if self.total is None else self.total.rows.get(client, ())
        folded = fold_name(name or "")
        named = (some for other, some in self.rows.items() if folded and fold_name(other) == folded)
        return sorted({*own, *(row for some in named for row in some)})

    def bar(self, names: Iterable[str]) -> Forgotten:
        """Return a copy that bars more names, each under one spelling."""
        spelled = {fold_name(name): name for name in (*names, *self.names)}
        return replace(self, names=tuple(sorted(spelled.values())))

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
    """The clients that are connected now, by client ids, which outlive node ids.

    A node with a registered public key is identified by this key alone. If no node has a key, as in simulation, each
    node is asked once which partition it holds.

    Args:
        partitions: the clients' names in simulation, by partition id; None names them c00, c01, ...
        timeout: seconds to wait for clients to connect, and for nodes to answer which partition they hold.
    """

    def __init__(
        self, grid: Grid, partitions: Sequence[ClientId] | None = None, *, timeout: float = 60.0
    ) -> None:
        self.grid = grid
        self.names: dict[ClientId, str] = {}  # registered names of all keys ever seen; "" if a key has none
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
            self.names[client] = clean_name(node.name) or self.names.get(client, "")
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
        """Wait until enough remaining clients are connected and return them.

        Enough is one by default, and in simulation always all. Raise AnswerError when the time is up.
        """
        end = time.monotonic() + self._timeout
        while True:
            here, leavers = self.split(forgotten)
            everyone = self.expected is None or len(here) + len(leavers) >= self.expected
            if everyone and len(here) >= (needed or 1):
                return here
            if everyone and self.expected is not None and not here:
                raise RequestError(NOBODY_REMAINS)
            if time.monotonic() > end:
                raise AnswerError(
                    f"{len(here)} remaining clients are connected after {self._timeout:g} s, but {needed or 1} are needed "
                    f"({', '.join(map(self.format_client, here)) or 'none'}); start the others, or lower min_clients and min_replies"
                )
            time.sleep(PAUSE)

    def format_client(self, client: ClientId) -> str:
        """Return the registered name of a client with its id, for logs and errors."""
        name = self.names.get(client)
        return f"{name} ({client})" if name else client

    def find_holders(self, name: str) -> list[ClientId]:
        """Return all clients that were ever seen under a registered name."""
        folded = fold_name(name)
        return sorted(c for c, registered in self.names.items() if folded and fold_name(registered) == folded)

    def resolve(self, request: Request, connected: Iterable[ClientId]) -> Request:
        """Return a request by client ids; the given one may use ids and registered names."""
        known = {*connected, *self.names}
        for name in _find_unknown_keys(request, known):
            log.warning("no client with the key %s was ever connected here; check the key", name)
        ids = {name: self._find_id(name, known) for name in _list_named(request)}
        rows: dict[ClientId, tuple[int, ...]] = {}
        for name, some in request.rows.items():
            rows[ids[name]] = (*rows.get(ids[name], ()), *some)
        return Request(tuple(ids[name] for name in request.clients), rows, request.classes)

    def check_keys(self, request: Request, others: Iterable[ClientId], earlier: Request | None) -> None:
        """Raise RequestError if a request names a key that no known client has, and no earlier request named."""
        for client in _find_unknown_keys(request, {*self.names, *others, *_list_named(earlier)}):
            raise RequestError(
                f"no client with the key {client} took part or was ever connected; check the key: {HOW}"
            )

    def _find_id(self, name: str, known: Collection[ClientId]) -> ClientId:
        if name in known or is_key_id(name):
            return name
        found = self.find_holders(name)
        if len(found) > 1:
            raise RequestError(
                f"{len(found)} clients are registered as {name!r}: {', '.join(found)}; name the one to forget by its key"
            )
        if not found:
            here = ", ".join(self.format_client(client) for client in sorted(known)) or "none"
            raise RequestError(
                f"there is no client {name!r} to forget; connected: {here}. Name a client that is not connected by its key: {HOW}"
            )
        return found[0]

    def _look_by_partition(self, nodes: Sequence[int]) -> dict[ClientId, int]:
        new = [node for node in nodes if node not in self._partition_of]
        messages = {node: Message(RecordDict(), node, WHO, ttl=self._timeout) for node in new}
        answers, failed = exchange(self.grid, messages, self._timeout, _read_place)
        if failed:
            raise AnswerError(
                f"a node did not report which partition it holds ({next(iter(failed.values()))}); build its app with "
                "feduhb.flower.client_app, or add the report to your own app: app = feduhb.flower.introduced(app)"
            )
        for node, (number, count) in answers.items():
            self._partition_of[node] = self._find_name(number, count)
        here = {self._partition_of[node]: node for node in nodes}
        if len(here) < len(nodes):
            raise AnswerError("two nodes hold the same partition; give each a different partition-id")
        return dict(sorted(here.items()))

    def _find_name(self, number: object, count: object) -> ClientId:
        if not isinstance(number, int) or not isinstance(count, int) or not 0 <= number < count <= MOST_NODES:
            raise AnswerError(
                f"a node reports partition {to_line(number, 20)} of {to_line(count, 20)}; set partition-id and num-partitions "
                "in its node config"
            )
        names = make_client_ids(count) if self._partitions is None else self._partitions
        if len(names) != count:
            raise ConfigError(f"{len(names)} partitions are named, but there are {count}; name each of them")
        self.expected = count
        return names[number]


def _check_names(partitions: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Return the names of partitions; raise an error for a name that a request cannot contain, or that two share."""
    names = tuple(check_id(name) for name in partitions)
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two partitions are named {twice[0]!r}; give each a different name")
    return names


def resolve_request(
    roster: Roster,
    forget: Forget | None,
    *,
    before: Forgotten | None = None,
    written: Forgotten | None = None,
    min_clients: int | None = None,
) -> Forgotten:
    """Wait for clients and resolve a request to client ids, in addition to what earlier runs forgot.

    Args:
        before: what earlier runs forgot.
        written: for a resumed run, the request as it was resolved when the run began. The same request is not resolved
            again, because a leaver may have returned with a new key since then.
        min_clients: remaining clients that must be connected; None needs one.
    """
    asked, before = None if forget is None else as_request(forget), before or Forgotten()
    if written is not None and (written.asked, written.earlier) == (_format(asked), before.total):
        found = written.bar(before.names)
        roster.wait(found, min_clients)
        return found
    as_written = Forgotten(request=asked, earlier=before.total, names=before.names)
    roster.wait(as_written if asked is None else as_written.bar(asked.clients), min_clients)
    request = None if asked is None else roster.resolve(asked, roster.look())
    found = Forgotten.of(request, roster.names, asked=asked, before=before)
    if written is not None and (written.request, written.earlier) == (found.request, found.earlier):
        return written.bar(found.names)  # the same request, written differently
    return found


def _read_place(content: RecordDict) -> tuple[object, object]:
    """Return the partition that a node says it holds, and the number of partitions."""
    check_records(content, METRICS)
    answer = read_metrics(content)
    return answer.get("partition-id"), answer.get("num-partitions")


def _list_named(request: Request | None) -> tuple[ClientId, ...]:
    """Return the clients that a request names, whole or by rows."""
    return () if request is None else (*request.clients, *request.rows)


def _find_unknown_keys(request: Request, known: Collection[ClientId]) -> list[ClientId]:
    """Return the key ids in a request that do not belong to a known client; they are probably mistyped."""
    return [client for client in _list_named(request) if is_key_id(client) and client not in known]


def read_request(folder: Path) -> Forgotten | None:
    """Return the request of a run as it was resolved when the run began; None if there is no request.json."""
    path = folder / REQUEST
    advice = "restore it from a backup: it lists the forgotten clients, which must not train"
    if (found := find_json(path, WrittenRequest, advice)) is None:
        return None
    try:
        request, earlier = (Request.parse(text) if text else None for text in (found.request, found.earlier))
    except (RequestError, ValueError):
        raise RunFolderError(f"{path} is damaged; {advice}") from None
    rows = {name: tuple(some) for name, some in found.rows.items()}
    return Forgotten(found.asked, request, earlier, tuple(found.names), rows)


def read_total(folder: RunFolder) -> Forgotten:
    """Return everything that a run and the runs before it have forgotten."""
    total, written = read_forgotten(folder), read_request(folder.path) or Forgotten()
    return Forgotten(request=total, names=written.names, rows=written.rows)


def key_id(key: str | Path | bytes) -> ClientId:
    """Return the client id of a public key: a file or its bytes, in OpenSSH's format or PEM."""
    try:
        data = key if isinstance(key, bytes) else Path(key).read_bytes()
        if data.startswith(PEM):
            der = base64.b64decode(b"".join(data.split()[3:-3]), validate=True)
        else:
            der = load_ssh_public_key(data).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except OSError as error:
        raise ConfigError(f"the public key {key} cannot be read: {error.strerror}; check the path") from None
    except (ValueError, UnsupportedAlgorithm, binascii.Error):
        der = b""
    if not der:
        raise ConfigError("this is not a public key; pass the .pub file that ssh-keygen wrote, or its bytes")
    return PREFIX + sha256(der).hexdigest()[:DIGITS]


def is_key_id(name: str) -> bool:
    """Whether a name has the form of a key's id."""
    return re.fullmatch(rf"{PREFIX}[0-9a-f]{{{DIGITS}}}", name) is not None
