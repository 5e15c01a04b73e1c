"""A request to forget: whole clients, rows of a client, or a class."""

from __future__ import annotations

import difflib
import operator
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from feduhb.core.types import ClientId
from feduhb.errors import RequestError

if TYPE_CHECKING:
    from feduhb.data.federation import Federation

MOST_ROWS = 10_000_000  # in one range


@dataclass(frozen=True, slots=True)
class Request:
    """A request to forget. Rows are counted from 0 in the data that a client joined with."""

    clients: tuple[ClientId, ...] = ()
    rows: Mapping[ClientId, tuple[int, ...]] = field(default_factory=dict)
    classes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(sorted(set(self.clients))))
        if unclear := [*filter(None, map(explain_unclear, (*self.clients, *self.rows)))]:
            raise RequestError(unclear[0])
        object.__setattr__(self, "classes", tuple(sorted({int(c) for c in self.classes})))
        rows = {c: _read_rows(c, some) for c, some in sorted(self.rows.items())}
        object.__setattr__(self, "rows", {c: some for c, some in rows.items() if c not in self.clients})
        if empty := [c for c, some in rows.items() if not some]:
            raise RequestError(f"no rows of {empty[0]} are named; name some, or forget the whole client")
        if not (self.clients or self.rows or self.classes):
            raise RequestError(
                "the request names nothing to forget; name clients (c00,c01), rows of a client (c00:0-9+12) or a class (class:3)"
            )

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        rows = (f"{client}:{_format_rows(some)}" for client, some in self.rows.items())
        return ",".join([*self.clients, *rows, *(f"class:{c}" for c in self.classes)])

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read "c00,c01" (clients), "c02:0-9+12" (rows 0 to 9 and 12 of c02), "class:3"."""
        clients: list[str] = []
        rows: dict[str, list[int]] = {}
        classes: list[int] = []
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, colon, detail = part.partition(":")
            if not colon:
                clients.append(name)
            elif name == "class":
                classes.extend(_parse_ranges(detail, part))
            else:
                rows.setdefault(name, []).extend(_parse_ranges(detail, part))
        return cls(tuple(clients), {c: tuple(some) for c, some in rows.items()}, tuple(classes))

    def merge(self, other: Request) -> Request:
        """Return a request for everything that either of two requests names."""
        both = {c: (*self.rows.get(c, ()), *other.rows.get(c, ())) for c in (*self.rows, *other.rows)}
        return Request((*self.clients, *other.clients), both, (*self.classes, *other.classes))

    def subtract(self, earlier: Request | None) -> Request | None:
        """Return the part of this request that an earlier request does not name; None if nothing is left."""
        if earlier is None:
            return self
        clients = {*self.clients} - {*earlier.clients}
        rows = {c: {*some} - {*earlier.rows.get(c, ())} for c, some in self.rows.items()}
        classes = {*self.classes} - {*earlier.classes}
        named = {c: tuple(some) for c, some in rows.items() if some and c not in earlier.clients}
        return Request(tuple(clients), named, tuple(classes)) if clients or named or classes else None

    def mask(self, client: ClientId, keys: Tensor, y: Tensor) -> Tensor:
        """Return a mask of the examples to forget among those of a client, given their keys [n] and targets [n]."""
        if client in self.clients:
            return torch.ones(len(keys), dtype=torch.bool)
        named = torch.isin(keys, torch.tensor(self.rows.get(client, ()), dtype=keys.dtype))
        return named | self.class_mask(y)

    def class_mask(self, y: Tensor) -> Tensor:
        """Return a mask of the examples whose targets [n] belong to a class to forget."""
        if not self.classes:
            return torch.zeros(len(y), dtype=torch.bool)
        if y.dim() != 1 or y.is_floating_point():
            raise RequestError("the targets are not classes; name clients or rows to forget instead")
        limits = torch.iinfo(y.dtype)
        possible = [number for number in self.classes if limits.min <= number <= limits.max]
        return torch.isin(y, torch.tensor(possible, dtype=y.dtype))


def explain_unclear(client: ClientId) -> str | None:
    """Return why an id could be taken for another one when it is printed, or change the terminal; None if it is clear."""
    text = str(client)
    if hidden := [letter for letter in text if not letter.isprintable()]:
        return (
            f"{text!a} cannot be a client's id, because the character U+{ord(hidden[0]):04X} in it cannot be seen; "
            "use letters, digits, marks and plain spaces"
        )
    if text != (composed := unicodedata.normalize("NFC", text)):
        return (
            f"{text!a} cannot be a client's id, because the same letters can be written in another way; "
            f"use the composed form (NFC), {composed!r}: unicodedata.normalize('NFC', name)"
        )
    return None


Forget = Request | str | Iterable[ClientId] | Mapping[ClientId, Iterable[int]]


def as_request(forget: Forget) -> Request:
    """Return a request for any of the forms that users write: ids, {id: rows}, "c00,class:3", or a Request."""
    if isinstance(forget, Request):
        return forget
    if isinstance(forget, str):
        return Request.parse(forget)
    if isinstance(forget, Mapping):
        return Request(rows={client: _read_rows(client, rows) for client, rows in forget.items()})
    listed: list[Any] = list(forget) if isinstance(forget, Iterable) else [forget]
    if odd := [c for c in listed if not isinstance(c, str)]:
        raise RequestError(f"{odd[0]!r} is not a client's id; give ['c00'], {{'c00': [0, 3]}} or 'class:3'")
    return Request(clients=tuple(listed))


def check_request(request: Request, federation: Federation) -> None:
    """Raise RequestError if a request names clients, rows or classes that a federation does not have."""
    unknown = [c for c in (*request.clients, *request.rows) if c not in federation.clients]
    if untrained := [c for c in unknown if c in federation.tested]:
        raise RequestError(
            f"no model was trained on data of {untrained[0]}, whose rows are all in the test set; delete them from the data"
        )
    if unknown:
        raise RequestError(_explain_unknown(unknown[0], request, [*federation.clients]))
    _check_rows(request, federation)
    if request.classes:
        for examples in federation.clients.values():
            request.class_mask(examples.targets[:1])
        present = {int(v) for e in federation.clients.values() for v in torch.unique(e.targets).tolist()}
        if missing := sorted(set(request.classes) - present):
            raise RequestError(
                f"no client holds class {missing[0]}; the classes are {', '.join(map(str, sorted(present)))}"
            )


def _explain_unknown(name: ClientId, request: Request, clients: list[ClientId]) -> str:
    """Return what an error says about a client that does not exist."""
    some = ", ".join(clients[:8]) + (" and others" if len(clients) > 8 else "")
    alike = [c for c in clients if _read_numbers(c) == _read_numbers(name)]  # c09 is never meant by c03
    near = difflib.get_close_matches(name, alike, n=1)
    meant = f"did you mean {near[0]}? The" if near else "the"
    owner = next(iter(request.rows), "")
    rows = (
        f". Rows of one client are joined by +: {owner}:{request.rows[owner][-1]}+{name}"
        if owner and name.replace("-", "").isdecimal()
        else ""
    )
    return f"there is no client {name!r}; {meant} clients are {some}{rows}"


def _check_rows(request: Request, federation: Federation) -> None:
    """Raise RequestError if a request names rows that do not exist, or only rows that no model was trained on."""
    for client, rows in request.rows.items():
        if missing := sorted(set(rows) - federation.list_keys(client)):
            counted = "count rows from 0 in the data that the client joined with"
            raise RequestError(
                f"client {client} has no row {missing[0]}, or it was forgotten before: {len(federation.clients[client])} rows remain; "
                + ("name rows as the table numbers them" if federation.numbered_together else counted)
            )
    is_trained = any(bool(federation.clients[c].mask_keys(rows).any()) for c, rows in request.rows.items())
    if request.rows and not (request.clients or request.classes or is_trained):
        client, rows = next(iter(request.rows.items()))
        raise RequestError(
            f"no model was trained on row {rows[0]} of {client}: the rows that are named are held out or in the test set; "
            "delete them from the data, no unlearning is needed"
        )


def _read_numbers(client: ClientId) -> list[int]:
    return [int(digits) for digits in re.findall("[0-9]+", str(client))]


def _read_rows(client: ClientId, rows: Iterable[int]) -> tuple[int, ...]:
    """Return sorted row numbers. Refuse masks and text, whose items would be taken for row numbers."""
    try:
        listed = list(rows)
        if isinstance(rows, str) or any("bool" in str(getattr(row, "dtype", type(row))) for row in listed):
            raise TypeError
        return tuple(sorted({operator.index(row) for row in listed}))
    except TypeError:
        raise RequestError(
            f"the rows of {client} are not whole numbers; count rows from 0, such as [0, 3], and do not give a mask or text"
        ) from None


def _parse_ranges(text: str, part: str) -> list[int]:
    """Read "0-9+12"; ``part`` is the text to show in an error."""
    found: list[int] = []
    for piece in text.split("+"):
        low, dash, high = piece.partition("-")
        try:
            span = range(int(low), int(high if dash else low) + 1)
        except ValueError:
            raise RequestError(
                f"{part!r} is not a request; write c02:0-9+12, or class:3, where classes have numbers from 0"
            ) from None
        if not span:
            raise RequestError(f"{part!r} counts down; write the smaller number first")
        if len(span) > MOST_ROWS:
            raise RequestError(f"{part!r} names more than {MOST_ROWS:,} rows; forget the whole client")
        found.extend(span)
    return found


def _format_rows(rows: tuple[int, ...]) -> str:
    """Write sorted rows as ranges: 0-9+12."""
    spans: list[list[int]] = []
    for row in rows:
        if spans and row == spans[-1][1] + 1:
            spans[-1][1] = row
        else:
            spans.append([row, row])
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
