"""Read what each run folder still holds of each leaver. Nothing is written, and a damaged run does not stop the search.

A run holds a leaver if a run of the same lineage has forgotten the leaver and this run has not, or if it has the leaver's
data in its config. It may hold a leaver if a client of that id or registered name took part, or if it cannot be read.
These are the rules of `feduhb.runs.siblings`, for many runs and leavers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any, Literal, TypeVar

from feduhb.data.request import Request
from feduhb.errors import RequestError, RunFolderError
from feduhb.methods import find_method
from feduhb.methods.binding import uses_old_run
from feduhb.runs.audits import KeptAudit, read_kept_audits
from feduhb.runs.files import measure_files, resolve
from feduhb.runs.folder import HISTORY, KEPT_MODELS, WORK, RunFolder, Tombstone
from feduhb.runs.history import DiskHistory
from feduhb.runs.kept import KeptModels
from feduhb.runs.lineage import (
    Ancestor,
    Erased,
    Store,
    digest_config,
    read_ancestors,
    read_erased,
    read_forgotten,
    read_successors,
    shorten,
)
from feduhb.runs.private import find_work
from feduhb.runs.retire import DELETED, KEPT, RECORDS, TEMPORARY, list_files
from feduhb.runs.siblings import find_runs, is_run, list_data, list_names, read_names, walk
from feduhb.runs.status import UNSURE, Held, Leaver, Part, Reason, Remnant, RunStatus, State, Status
from feduhb.runs.steps import list_steps

DEPTH = 4  # levels of folders that are searched
T = TypeVar("T")


def read_status(folder: str | Path, of: str | None = None) -> Status:
    """Return the runs in a folder, four levels deep, and those that their lineage names, with what each holds of each leaver.

    Args:
        folder: a folder with runs, or one run.
        of: a client, by id or registered name, rows or a class, as in a request: the answer is about these alone, whether
            a run has forgotten them or not. None is about everything that any of these runs has forgotten.
    """
    root = resolve(Path(folder))
    unread: set[Path] = set()
    facts = _find(root, unread)
    if not facts:
        hint = "" if root.is_dir() else ": there is no such folder"
        raise RunFolderError(
            f"there is no run in {shorten(root)}{hint}; give the folder in which your runs are"
        )
    families = _split_families(facts)
    if of is not None:
        _check_known(of, facts, families)
    leavers = [
        _Leaver(family, request)
        for family in families
        for request in (family.list_forgotten() if of is None else family.resolve(Request.parse(of)))
    ]
    runs = tuple(_describe(one, facts, leavers) for one in facts)
    found = _summarize(runs, leavers)
    return Status(root, runs, found, tuple(sorted(unread)), tuple(list_steps(runs, found)))


@dataclass(slots=True)
class _Facts:
    """What could be read of one folder."""

    path: Path
    problems: list[str] = field(default_factory=list)
    tombstone: Tombstone | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    forgot: Request | None = None
    leavers: Request | None = None  # for whom it was retired
    own: str = ""  # the digest of its config.toml, also if it was retired
    earlier: set[str] = field(default_factory=set)  # the digests of the runs that it came from
    # These, its own and, if it was retired, that of its replacement.
    digests: set[str] = field(default_factory=set)
    ancestors: Sequence[Ancestor] = ()
    later: Sequence[Path] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)  # ids and registered names of the clients that it knows
    registered: Mapping[str, str] = field(default_factory=dict)
    erased: Sequence[Erased] = ()
    audits: Sequence[KeptAudit] = ()
    in_work: Sequence[_Facts] = ()  # runs in its audit work
    is_unreadable: bool = False  # so that it is unknown whom it holds

    @property
    def is_replaying(self) -> bool:
        """Whether it uses an older run and has not finished, so that its checkpoint holds parts of that run.

        A method of the user's own counts as one that does: it is not imported to find out.
        """
        if self.result or not (name := self.method):
            return False
        if "code" in self.config.get("unlearn", {}):
            return True
        return self.attempt(lambda: uses_old_run(find_method(name)), False)

    @property
    def method(self) -> str:
        """The method that [unlearn] of its config.toml names; empty for a training."""
        return self.config.get("unlearn", {}).get("method", "")

    @property
    def is_retired(self) -> bool:
        return self.tombstone is not None and self.tombstone["finished"] is not None

    def has_forgotten(self, leaver: Request) -> bool:
        return leaver.subtract(self.forgot) is None

    def attempt(self, read: Callable[[], T], default: T, *, needed: bool = False) -> T:
        """Return what a function reads, or a default if the file is damaged, which is noted."""
        try:
            return read()
        except Exception as error:  # a damaged or forged file can fail in any way
            text = str(error) or type(error).__name__
            self.problems.append(text.replace(f"{self.path}/", "").replace(str(self.path), "it"))
            self.is_unreadable |= needed
            return default


def list_audit_work(place: Path) -> list[Path]:
    """Return the folders with models that audits of a run made; some of these know what the run has forgotten."""
    return [work for work in (place / WORK, find_work(place)) if work.exists() or work.is_symlink()]


def _find(root: Path, unread: set[Path]) -> list[_Facts]:
    """Read the runs in a folder, and those that lineages and tombstones name, in the order of their paths."""
    found: dict[Path, _Facts] = {}
    waiting = [root, *walk([root], depth=DEPTH, unread=unread)]
    while waiting:
        place = waiting.pop()
        if place in found or not _has_run(place, unread):
            continue
        found[place] = one = _read(place)
        waiting += one.attempt(lambda one=one: [*_list_named(one)], [])
        inner = walk([place], depth=DEPTH, unread=unread)  # such as copies that were made in a run folder
        waiting += [other for other in inner if HISTORY not in other.relative_to(place).parts]
    return [found[place] for place in sorted(found)]


def _has_run(place: Path, unread: set[Path]) -> bool:
    """Whether a folder holds a run, or what is left of one."""
    try:
        files = RunFolder(place)
        return is_run(place) or files.find_remains() is not None or bool(list_audit_work(place))
    except (OSError, RunFolderError):
        unread.add(place)
        return False


def _list_named(one: _Facts) -> Iterator[Path]:
    """Yield the folders that the lineage or the tombstone of a run names."""
    yield from (ancestor.path for ancestor in one.ancestors)
    yield from one.later
    if one.tombstone is not None:
        others = (
            one.tombstone["replaced_by"]["run"],
            *one.tombstone["holding"],
            *one.tombstone.get("may_hold", ()),
        )
        for place in (resolve(one.path / name) for name in others):
            yield place.parent if place.name == WORK else place


def _read(place: Path, *, inside: bool = True) -> _Facts:
    """Read everything about a run folder that can be read."""
    one, files = _Facts(place), RunFolder(place)
    one.tombstone = one.attempt(files.tombstone, None, needed=True)
    if one.tombstone is not None:
        forgot, leavers, one.own = (one.tombstone[key] for key in ("forgot", "leavers", "config_sha256"))
        one.forgot = one.attempt(lambda: Request.parse(forgot) if forgot else None, None, needed=True)
        one.leavers = one.attempt(lambda: Request.parse(leavers) if leavers else None, None)
    elif files.exists():
        one.config = one.attempt(files.config, {}, needed=True)
        one.forgot = one.attempt(lambda: read_forgotten(files), None, needed=True)
        one.own = digest_config(place)
        one.attempt(files.rounds, [], needed=True)
        if one.attempt(files.is_finished, False):
            one.result = one.attempt(files.result, {})
            if one.result:
                one.attempt(files.check_weights, None)
    else:
        what = one.attempt(files.find_remains, None) or WORK
        one.problems.append(f"there is no config.toml, but {what} is there")
        one.is_unreadable = True
    one.ancestors = one.attempt(lambda: read_ancestors(place), (), needed=True)
    one.later = one.attempt(lambda: read_successors(place), ())
    recorded = {str(digest) for digest in one.result.get("came_from", ())}  # also if the lineage is lost
    one.earlier = {*recorded, *(ancestor.digest for ancestor in one.ancestors)}
    replaced = "" if one.tombstone is None else one.tombstone["replaced_by"]["config_sha256"]
    one.digests = {*one.earlier, one.own, replaced} - {""}
    one.data = one.attempt(lambda: list_data(place), {})
    one.names = one.attempt(lambda: list_names(place), set[str]())
    named = one.attempt(lambda: read_names(place), dict[str, str]())
    one.registered = {key: name for key, name in named.items() if name}
    one.erased = one.attempt(lambda: _read_erased(place), [])
    one.audits = one.attempt(lambda: read_kept_audits(place), [])
    if inside:
        work = one.attempt(lambda: [*find_runs(list_audit_work(place), unread=set())], [])
        one.in_work = [_read(run, inside=False) for run in work]
    return one


def _read_erased(place: Path) -> list[Erased]:
    erased = read_erased(place)
    for one in erased:
        resolve(place / (one.run or ""))  # raises an error for what cannot be a path
    return erased


@dataclass(slots=True)
class _Family:
    """Runs that came from the same training."""

    runs: list[_Facts]

    def list_forgotten(self) -> list[Request]:
        """Return everything that a run of the family has forgotten, piece by piece."""
        requests = [*self._list_requests()]
        return [*_split(reduce(Request.merge, requests))] if requests else []

    def resolve(self, asked: Request) -> list[Request]:
        """Return a request piece by piece, by the ids that its clients have here; without clients that are unknown here."""
        ids, named = self._list_ids(), list[Request]()
        for piece in _split(asked):
            for name in (*piece.clients, *piece.rows):
                known = {client for client, names in ids.items() if name in {client, *names}}
                named += [
                    Request(rows={client: piece.rows[name]}) if piece.rows else Request((client,))
                    for client in sorted(known)
                ]
            named += [piece] if piece.classes else []
        return named

    def list_names(self, leaver: Request) -> set[str]:
        """Return the ids and registered names of a leaver; of all clients for a class, which any may hold."""
        ids = self._list_ids()
        wanted = {*ids} if leaver.classes else {*leaver.clients, *leaver.rows}
        return wanted | {name for client in wanted for name in ids.get(client, ())}

    def list_lost_data(self, leaver: Request) -> set[str]:
        """Return the digests of data that runs with the leaver have and runs without the leaver have not."""
        without = [one for one in self.runs if one.has_forgotten(leaver)]
        kept = {digest for one in without for digest in one.data.values()}
        remaining = {client for one in without for client in one.data}
        holders = [one for one in self.runs if not one.has_forgotten(leaver)]
        clients: Collection[str] = {*leaver.clients, *leaver.rows}
        if leaver.classes:
            clients = remaining or {client for one in holders for client in one.data}
        return {one.data[client] for one in holders for client in clients if client in one.data} - kept

    def _list_requests(self) -> Iterator[Request]:
        for one in self.runs:
            yield from filter(None, (one.forgot, one.leavers))

    def _list_ids(self) -> dict[str, set[str]]:
        """Return the ids of the clients that a run of the family knows, with their registered names."""
        found: dict[str, set[str]] = {}
        for one in self.runs:
            values = {*one.registered.values()}
            for client in {*one.names, *one.registered} - (values - {*one.registered}):
                found.setdefault(client, set()).update(filter(None, [one.registered.get(client)]))
        for request in self._list_requests():
            for client in (*request.clients, *request.rows):
                found.setdefault(client, set())
        return found


class _Leaver:
    """A piece of a request that a family has forgotten, or that was asked about."""

    def __init__(self, family: _Family, request: Request) -> None:
        self.family, self.request, self.text = family, request, str(request)
        self.names = family.list_names(request)
        self.lost_data = family.list_lost_data(request)
        self.digests = {digest for one in family.runs for digest in one.digests}


def _split(request: Request) -> Iterator[Request]:
    """Yield a request piece by piece: one client, the rows of one client, or one class."""
    yield from (Request((client,)) for client in request.clients)
    yield from (Request(rows={client: rows}) for client, rows in request.rows.items())
    yield from (Request(classes=(number,)) for number in request.classes)


def _split_families(facts: Sequence[_Facts]) -> list[_Family]:
    """Return the runs by family: runs are related if one names the other, or both name the same run, as an ancestor."""
    families: list[tuple[set[str], _Family]] = []
    for one in facts:
        related = [each for each in families if each[0] & one.digests]
        digests = one.digests.union(*(known for known, _ in related))
        members = [*(member for _, family in related for member in family.runs), one]
        families = [each for each in families if each not in related] + [(digests, _Family(members))]
    return [family for _, family in families]


def _check_known(of: str, facts: Sequence[_Facts], families: Sequence[_Family]) -> None:
    """Raise RequestError if no run knows a client that is asked about: a mistyped name must not look like an answer."""
    asked = Request.parse(of)
    for piece in _split(asked):
        if any(family.resolve(piece) for family in families):
            continue
        (client,) = (*piece.clients, *piece.rows)
        known = sorted({name for one in facts for name in one.names})
        some = (
            f"they know {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
            if known
            else "they name no client"
        )
        raise RequestError(
            f"none of these runs knows {client!r}; {some}; check the name, or look in another folder"
        )


def _describe(one: _Facts, facts: Sequence[_Facts], leavers: Sequence[_Leaver]) -> RunStatus:
    """Return the status of one run."""
    holds: dict[str, Held] = {}
    for leaver in leavers:
        reason, known = _find_reason(one, leaver), holds.get(leaver.text)
        if reason is None or (known is not None and (known.is_sure or reason in UNSURE)):
            continue
        remnants = one.attempt(partial(_list_remnants, one, leaver.request, reason), ())
        if remnants or one.problems:
            holds[leaver.text] = Held(leaver.text, reason, remnants)
    method, ended_as = one.method, one.result if one.tombstone is None else one.tombstone
    if one.tombstone is not None and one.tombstone["forgot"]:
        method = one.tombstone["method"]
    later = tuple(place for place in one.later if any(place == other.path for other in facts))
    left = list_left(one.path) if holds or one.is_retired else ()
    return RunStatus(
        path=one.path, state=_find_state(one, later), problem=one.problems[0] if one.problems else "", method=method,
        exact=one.result.get("exact"), made_with=_find_maker(one.config), config_sha256=one.own,
        earlier_sha256=tuple(sorted(one.earlier)), forgot=str(one.forgot or ""), came_from=_find_parent(one, facts),
        superseded_by=later, ended=str(ended_as.get("finished") or ""), weights_sha256=str(ended_as.get("weights_sha256") or ""),
        holds=tuple(holds.values()), audits=tuple(one.audits), erased=tuple(one.erased), left=tuple(left),
    )  # fmt: skip


def _find_maker(config: Mapping[str, Any]) -> Literal["commands", "Python", "Flower"]:
    """Return what made a run, by the tables of its config."""
    if "flower" in config:
        return "Flower"
    return "commands" if "federation" in config else "Python"


def _find_state(one: _Facts, later: Sequence[Path]) -> State:
    if one.problems:
        return "damaged"
    if one.tombstone is not None:
        return "retired" if one.is_retired else "retiring"
    if not one.result:
        return "unfinished"
    return "superseded" if later else "finished"


def _find_parent(one: _Facts, facts: Sequence[_Facts]) -> Path | None:
    """Return the folder of the run that a run came from: as recorded, or where a run of that digest is now."""
    if not one.ancestors:
        return None
    nearest = one.ancestors[0]
    places = [other.path for other in facts if other.own == nearest.digest and other is not one]
    return nearest.path if nearest.path in places or not places else places[0]


def _find_reason(one: _Facts, leaver: _Leaver) -> Reason | None:
    """Return why a run is known to hold a leaver; None if it does not hold it."""
    related = any(one is member for member in leaver.family.runs)
    covered = one.has_forgotten(leaver.request)
    if one.is_retired:
        return "restored" if related and not covered else None
    if related and (not covered or one.is_replaying):
        return "lineage"
    if {*one.data.values()} & leaver.lost_data:
        return "data"
    if list_audit_work(one.path):
        inside = one.in_work
        if related or any(
            run.digests & leaver.digests or {*run.data.values()} & leaver.lost_data for run in inside
        ):
            return "audit work"
        if any(run.names & leaver.names for run in inside):
            return "name"
    if not covered and one.names & leaver.names:
        return "name"
    return "unreadable" if one.is_unreadable and not covered else None


def _list_remnants(one: _Facts, leaver: Request, reason: Reason) -> tuple[Remnant, ...]:
    """Return the parts of a run folder that know a leaver."""
    files = RunFolder(one.path)
    work = _find_parts("audit work", one.path, list_audit_work(one.path))
    if reason == "audit work":
        return (*work,)
    model = _find_parts("model" if files.is_finished() else "checkpoint", one.path, [files.state_path])
    if one.has_forgotten(leaver):  # a replay, whose checkpoint holds parts of a history
        return (*model,)
    kept = [
        *_find_stored("kept models", KeptModels(one.path / KEPT_MODELS), leaver),
        *_find_stored("history", DiskHistory(one.path / HISTORY), leaver),
    ]
    records = _find_parts("records", one.path, [one.path / name for name in RECORDS])
    temporary = _find_parts("temporary files", one.path, list_files(one.path, TEMPORARY))
    return (*model, *kept, *records, *temporary, *work)


def _find_stored(part: Part, store: Store, leaver: Request) -> Iterator[Remnant]:
    """Yield what a history or kept models know of a leaver, if anything."""
    if store.folder.is_symlink():
        yield Remnant(part, store.folder, 0)
        return
    clients = (*leaver.clients, *leaver.rows, *(store.all_clients() if leaver.classes else ()))
    if rounds := store.rounds_to_forget(clients):
        yield Remnant(part, store.folder, store.measure(rounds), len(rounds))


def _find_parts(part: Part, folder: Path, places: Iterable[Path]) -> Iterator[Remnant]:
    """Yield one part of a run folder, if any of its files is there."""
    found = [place for place in places if place.exists() or place.is_symlink()]
    if found:
        yield Remnant(part, found[0] if len(found) == 1 else folder, sum(map(measure_files, found)))


def list_left(folder: Path) -> list[str]:
    """Return the names of the files in a run folder that feduhb did not write, such as exported weights."""
    try:
        ours = {*list_files(folder, DELETED), *list_files(folder, KEPT)}
        return sorted(path.name for path in folder.iterdir() if path not in ours)
    except OSError:
        return []


def _summarize(runs: Sequence[RunStatus], leavers: Sequence[_Leaver]) -> tuple[Leaver, ...]:
    """Return every leaver with the runs that hold it."""
    names: dict[str, set[str]] = {}
    for one in leavers:
        registered = one.names - {*one.request.clients, *one.request.rows}
        names.setdefault(one.text, set()).update(() if one.request.classes else registered)
    found: list[Leaver] = []
    for text, known in sorted(names.items()):
        held = [(run.path, one) for run in runs for one in run.holds if one.leaver == text]
        sure, unsure = ([path for path, one in held if one.is_sure == wanted] for wanted in (True, False))
        found.append(Leaver(text, ", ".join(sorted(known)), tuple(sure), tuple(unsure)))
    return tuple(found)
