"""What a run forgets: as it was asked, and as it was first understood, which no later submission understands anew."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feduhb.core.types import ClientId
from feduhb.data.request import Request
from feduhb.errors import RunFolderError
from feduhb.flower.identity import Roster
from feduhb.records import RunFolder

FILE = "request.json"
Rows = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What is forgotten, by client ids, and by the registered names that a leaver may come back under with another key."""

    asked: str = ""  # as it was spelled
    request: Request | None = None  # what was asked, by ids
    earlier: Request | None = None  # what the runs before forgot, by ids
    names: tuple[str, ...] = ()  # that nobody may take part under
    rows: Rows = field(default_factory=dict)  # by name, for keys that are not known yet

    @property
    def all(self) -> Request | None:
        """The request and the earlier ones in one."""
        if self.request is None or self.earlier is None:
            return self.request or self.earlier
        return self.earlier.merged(self.request)

    def bars(self, client: ClientId, name: str | None) -> bool:
        """Whether a client is forgotten whole: by its id, or by the name that its key is registered under."""
        both = self.all
        return name in self.names or (both is not None and client in both.clients)

    def dropped(self, client: ClientId, name: str | None) -> list[int]:
        """Give the rows that a client must drop, by its id and by its name."""
        both = self.all
        own = () if both is None else both.rows.get(client, ())
        return sorted({*own, *self.rows.get(name or "", ())})

    def same_as(self, other: Forgotten) -> bool:
        """Whether both forget the same, by ids, however it was spelled."""
        return (self.request, self.earlier) == (other.request, other.earlier)

    def to_json(self) -> dict[str, Any]:
        """Spell it for a file."""
        return {
            "asked": self.asked,
            "request": text(self.request),
            "earlier": text(self.earlier),
            "names": list(self.names),
            "rows": {name: list(some) for name, some in self.rows.items()},
        }


def understood(
    request: Request | None, roster: Roster, before: Forgotten, known: Collection[ClientId]
) -> Forgotten:
    """Resolve a request among those who are known, on top of what was forgotten before.

    A name is barred where it was spelled, or where all who were ever seen under it are forgotten.
    """
    asked = None if request is None else roster.resolved(request, known)
    found = Forgotten(text(request), asked, before.all)
    both = found.all
    if both is None:
        return found
    holders: dict[str, set[ClientId]] = {}
    for client, name in roster.names.items():
        holders.setdefault(name, set()).add(client)
    spelled = set() if request is None else {n for n in request.clients if n in holders}
    whole = {name for name, some in holders.items() if name and some <= {*both.clients}}
    sole = {name: next(iter(some)) for name, some in holders.items() if name and len(some) == 1}
    rows = {name: both.rows[client] for name, client in sole.items() if client in both.rows}
    names = tuple(sorted({*before.names, *spelled, *whole}))
    return Forgotten(found.asked, asked, before.all, names, _joined(before.rows, rows, names))


def text(request: Request | None) -> str:
    """Spell a request; nothing where there is none."""
    return "" if request is None else str(request)


def forgotten_in(folder: RunFolder) -> Forgotten:
    """Read what a run forgot, its earlier ones included."""
    config = folder.config()
    found = config.get("unlearn", {}).get("forget") or config.get("flower", {}).get("forget")
    written = read(folder.path)
    request = Request.parse(found) if found else None
    return (
        Forgotten(request=request, names=written.names, rows=written.rows)
        if written
        else Forgotten(request=request)
    )


def read(folder: Path) -> Forgotten | None:
    """Read how a run's request was understood when it began."""
    path = folder / FILE
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


def _joined(before: Rows, rows: Rows, barred: Collection[str]) -> Rows:
    both = {name: sorted({*before.get(name, ()), *rows.get(name, ())}) for name in (*before, *rows)}
    return {name: tuple(some) for name, some in sorted(both.items()) if name not in barred}
