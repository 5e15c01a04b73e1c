"""Retire a run that another run has replaced: delete what knows the leavers, and leave a tombstone, retired.json.

The rounds after a leaver's last one can be run backwards from the old model, so the old model, its checkpoints, its
history, its records and its seed are personal data of the leavers, see docs/erasure.md.

The tombstone is written before anything is deleted, and completed afterwards. If the process is killed in between, a
repeated call finishes. The run that replaces the old one is only read; what an audit left in its `audit-work` knows the
leavers too, and is deleted only if the siblings are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feduhb.data.request import Request
from feduhb.errors import ConfigError, FeduhbError, RequestError, RunFolderError
from feduhb.runs import lineage
from feduhb.runs.audits import LAST, read_kept_audit
from feduhb.runs.files import digest, digest_file, disk_errors, remove, resolve, sync_folder, write_json
from feduhb.runs.folder import (
    HISTORY,
    KEPT_MODELS,
    LEFT_OUT,
    LIMITS,
    NAMES,
    REQUEST,
    TRUST,
    WORK,
    RunFolder,
    Tombstone,
    now,
    versions,
)
from feduhb.runs.lineage import (
    digest_config,
    read_ancestors,
    read_forgotten,
    read_successors,
    relate,
    shorten,
)
from feduhb.runs.private import find_work
from feduhb.runs.siblings import (
    find_runs,
    find_siblings,
    list_ancestor_digests,
    list_data,
    list_digests,
    still_holds,
)

if TYPE_CHECKING:
    from feduhb.runs.run import Run

TEMPORARY = (".*.tmp", ".tmp??????")
RECORDS = (
    "rounds.jsonl", ".result.json", "result.json", NAMES, LEFT_OUT, REQUEST, LIMITS, TRUST, "config.toml",
)  # fmt: skip
DELETED = (RunFolder.STATE, *TEMPORARY, KEPT_MODELS, HISTORY, WORK, *RECORDS)  # weights first
# Evidence and lineage, without weights and updates.
KEPT = (
    "retired.json", lineage.LINEAGE, lineage.EARLIER, lineage.LATER, lineage.ERASED, LAST, "audit-*.json", ".lock",
    ".writing.lock", ".lineage.lock",
)  # fmt: skip
PASSED = ("forgotten", "not caught")  # verdicts after which the old run is no longer needed


@dataclass(frozen=True, slots=True)
class Retirement:
    """A run that can be retired, the run that replaces it, and the other folders that hold the leavers."""

    run: Path
    replaced_by: Path
    leavers: Request  # everything that the new run has forgotten and the old run has not
    holding: tuple[Path, ...]  # runs, and audit work of runs that have forgotten the leavers
    may_hold: tuple[Path, ...]  # the same, known only by a client's id or name
    audits: tuple[Mapping[str, str], ...] = ()
    unaudited: str | None = None  # the reason to retire without an audit that passed
    along: tuple[Path, ...] = ()  # the folders that are deleted too
    unread: tuple[Path, ...] = ()  # folders that could not be read, and so may hold the leavers

    def take_along(self, *, siblings: bool = False, also: Iterable[str | Path] = ()) -> Retirement:
        """Return a retirement that deletes, too, the folders that hold the leavers, and those that are named."""
        named = {resolve(Path(place)) for place in also}
        known = {*self.holding, *self.may_hold}
        if strange := sorted(named - known - {place for place in named if self._was_deleted(place)}):
            raise RequestError(
                f"{shorten(strange[0])} is not among the folders that hold or may hold {self.leavers}; "
                "name one that feduhb retire lists"
            )
        chosen = {*(self.holding if siblings else ()), *(named & known)}
        return replace(
            self,
            along=tuple(sorted(chosen)),
            holding=tuple(place for place in self.holding if place not in chosen),
            may_hold=tuple(place for place in self.may_hold if place not in chosen),
        )

    def list_runs(self) -> list[Path]:
        """Return the runs that are retired, in this order: the named run is the last."""
        return [*(place for place in self.along if place.name != WORK), self.run]

    def list_work(self) -> list[Path]:
        """Return the folders of audit work that are deleted although their runs stay."""
        return [place for place in self.along if place.name == WORK]

    def carry_out(self) -> list[dict[str, Any]]:
        """Delete the run, and before it what it takes along; return the tombstones of the runs.

        Raise RunFolderError, and delete nothing, if another process is writing one of these runs.
        """
        runs, work = self.list_runs(), self.list_work()
        for folder in (*runs, *work):
            if self.replaced_by.is_relative_to(folder):
                raise RunFolderError(
                    f"{shorten(self.replaced_by)} lies in {shorten(folder)}, which is to be deleted; move it away"
                )
        with contextlib.ExitStack() as claims:
            for folder in sorted({*runs, *(place.parent for place in work)}):
                claims.enter_context(RunFolder(folder).claim(advice="stop it", patience=lineage.PATIENCE))
            if any(RunFolder(folder).tombstone() is None for folder in runs):
                self._check_still_there()
            return [
                dict(self._delete(RunFolder(folder), work if folder == self.run else ())) for folder in runs
            ]

    def _was_deleted(self, place: Path) -> bool:
        """Whether an earlier call retired this run, or deleted this audit work."""
        found = RunFolder(self.run).tombstone() or {"deleted": []}
        listed = {Path(os.path.normpath(self.run / entry["name"])) for entry in found["deleted"]}
        return RunFolder(place).tombstone() is not None or place in listed

    def _check_still_there(self) -> None:
        """Raise RunFolderError if the new run was moved away or deleted since a tombstone named it."""
        if not (digest_config(self.replaced_by) and RunFolder(self.replaced_by).is_finished()):
            raise RunFolderError(
                f"{shorten(self.replaced_by)}, which replaced {shorten(self.run)}, is not there any more, or has not finished; "
                "move it back, or delete the other runs yourself"
            )

    def _delete(self, old: RunFolder, work: Sequence[Path]) -> Tombstone:
        """Delete one run, and audit work elsewhere; return the tombstone. Finish what an interrupted call began."""
        found = old.tombstone()
        if found is not None and found["finished"] is not None and not work:
            return found
        tombstone = found or self._begin(old)
        own = [
            path for path in list_files(old.path, DELETED) if path.name != f".{old.tombstone_path.name}.tmp"
        ]
        own += [find_work(old.path)] if find_work(old.path).exists() else []
        known = {entry["name"] for entry in tombstone["deleted"]}
        for path in (*work, *own):
            name = relate(path, old.path)
            if name not in known:
                when = {"when": now()} if path in work else {}
                with disk_errors(path):
                    tombstone["deleted"].append({**_describe(path), "name": name, **when})
        write_json(old.tombstone_path, tombstone)
        with disk_errors(old.path):
            for path in (*work, *own):
                remove(path)
            for folder in (*(path.parent for path in work), old.path):
                sync_folder(folder)
        if tombstone["finished"] is None:
            kept = list_files(old.path, KEPT)
            tombstone["left"] = sorted(path.name for path in old.path.iterdir() if path not in kept)
            tombstone["finished"] = now()
            write_json(old.tombstone_path, tombstone)
        return tombstone

    def _begin(self, old: RunFolder) -> Tombstone:
        """Return the tombstone of a run of which nothing has been deleted yet."""
        config, new, forgot = old.config(), RunFolder(self.replaced_by), read_forgotten(old)
        return {
            "config_sha256": digest_config(old.path),
            "weights_sha256": _read_weights(old),
            "method": config.get("unlearn", {}).get("method", "retrain"),
            "scheduled_rounds": config.get("train", {}).get("rounds"),
            "forgot": str(forgot or ""),
            "leavers": str(self.leavers.subtract(forgot) or ""),
            "replaced_by": {
                "run": relate(new.path, old.path),
                "config_sha256": digest_config(new.path),
                "weights_sha256": new.result()["weights_sha256"],
            },
            "audits": [{**audit, "run": relate(Path(audit["run"]), old.path)} for audit in self.audits],
            "unaudited": self.unaudited,
            "holding": [relate(path, old.path) for path in self.holding],
            "may_hold": [relate(path, old.path) for path in self.may_hold],
            "unread": [relate(path, old.path) for path in self.unread],
            "siblings_sha256": {
                relate(path, old.path): digest_config(path) for path in (*self.holding, *self.may_hold)
            },
            "deleted": [],
            "left": [],
            "layout": _read_layout(old),
            "start": config.get("start", {}),
            "begun": now(),
            "finished": None,
            "versions": versions(),
        }


def retire(
    run: Run | str | Path,
    *,
    replaced_by: Run | str | Path | None = None,
    unaudited: str | None = None,
    siblings: bool = False,
    also: Iterable[str | Path] = (),
) -> list[dict[str, Any]]:
    """Delete a run that another run has replaced, and return its tombstone, the content of retired.json.

    Weights, checkpoints, history, audit work, records and settings are deleted. Audits, the lineage and files that
    feduhb did not write stay; the tombstone lists the latter under "left". Nothing outside the folder is deleted: a link
    is removed, and its target stays.

    Args:
        run: the old run, or its folder.
        replaced_by: the new run, or its folder. None finds it by the lineage. It must have come from the old run or from
            an ancestor of it, or have been trained on the same data without the leavers. It must have ended and have
            forgotten everything that the old run had forgotten. Audits of the new run, and of the runs between, each
            about its own request, must say "forgotten" or "not caught" about the rest.
        unaudited: the reason to retire a run without such audits, for example because the server has no data.
        siblings: retire every other run that still holds the leavers too, before this one. They are those that came from
            the same training or have the leavers' data in their config, in the folders beside the known runs.
            What audits left in the `audit-work` of such runs, and of the new run, is deleted too, and what this user's
            interrupted audits left in folders of their own.
            The tombstones come in the order in which the runs are deleted.
        also: folders to delete too, of those that the tombstone lists under "holding" or "may_hold". The latter are runs
            in which a client with a leaver's id or name took part; siblings= does not include them. Folders that could
            not be read are under "unread".
    """
    plan = plan_retirement(run, replaced_by, unaudited)
    return plan.take_along(siblings=siblings, also=also).carry_out()


def plan_retirement(
    run: Run | str | Path, replaced_by: Run | str | Path | None = None, unaudited: str | None = None
) -> Retirement:
    """Return what is to be retired; raise an error if the run is not replaced, or its replacement is not audited."""
    old = RunFolder(_locate(run))
    if unaudited is not None and not unaudited.strip():
        raise ConfigError(
            "the reason to retire without an audit is empty; give one: it goes into retired.json"
        )
    tombstone = old.tombstone()
    if tombstone is not None:  # finish an interrupted call, or take along what an earlier call listed
        return _read_plan(old, tombstone)
    old.config()  # raises an error if there is no run
    chosen = choose_replacement(old, unaudited) if replaced_by is None else RunFolder(_locate(replaced_by))
    if chosen.path == old.path:
        raise RunFolderError(f"{shorten(old.path)} cannot replace itself; name the new run")
    leavers, audits = check_replacing(old, chosen, unaudited)
    found = find_siblings(old.path, chosen.path, leavers)
    return Retirement(
        old.path, chosen.path, leavers, found.holding, found.may_hold, audits, unaudited, unread=found.unread
    )


def _read_plan(old: RunFolder, tombstone: Tombstone) -> Retirement:
    """Return the retirement that a tombstone records, with the siblings that are still there."""
    new, leavers = _find_living(old.path), Request.parse(tombstone["leavers"])
    digests = tombstone.get("siblings_sha256", {})  # tombstones of earlier versions have none

    found = find_siblings(old.path, new, leavers)
    unread = {*found.unread}

    def is_left(place: Path, digest: str | None) -> bool:
        """Whether a listed folder is still there, and holds the same run."""
        try:
            there = place.exists() if place.name == WORK else still_holds(place, leavers)
        except (OSError, FeduhbError):
            unread.add(place)
            return False
        return there and digest in {None, digest_config(place)}

    def list_left(names: Iterable[str]) -> set[Path]:
        listed = [(Path(os.path.normpath(old.path / name)), digests.get(name)) for name in names]
        return {place for place, digest in listed if is_left(place, digest)}

    holding = {*list_left(tombstone["holding"]), *found.holding} - {new}
    may_hold = {*list_left(tombstone.get("may_hold", ())), *found.may_hold} - holding - {new}
    audits = [{**audit, "run": str(resolve(old.path / audit["run"]))} for audit in tombstone["audits"]]
    return Retirement(
        old.path, new, leavers, tuple(sorted(holding)), tuple(sorted(may_hold)), tuple(audits), tombstone["unaudited"],
        unread=tuple(sorted(unread - holding - may_hold)),
    )  # fmt: skip


def _find_living(place: Path) -> Path:
    """Return the run that replaces a retired run now: if that was retired too, the run that replaced it."""
    seen: set[Path] = set()
    while place not in seen and (found := RunFolder(place).tombstone()) is not None:
        seen.add(place)
        place = resolve(place / found["replaced_by"]["run"])
    return place


def _locate(run: Run | str | Path) -> Path:
    folder = Path(run) if isinstance(run, str | Path) else run.folder
    if folder is None:
        raise ConfigError(
            "this run has no folder, so there is nothing on disk to retire; give a run with out="
        )
    return resolve(folder)


def choose_replacement(old: RunFolder, unaudited: str | None) -> RunFolder:
    """Return the run that replaces a run: of those that the lineage names, the one that has forgotten most.

    Flower's strategies of earlier versions did not record it. Without a record, runs beside the old run that came from it are taken.
    """
    digest = digest_config(old.path)
    around = find_runs([old.path.parent], unread=set())  # the plan names the unread ones
    beside = [place for place in around if digest in list_ancestor_digests(place)]
    named = [place for place in read_successors(old.path) if digest_config(place)]
    known = [RunFolder(place) for place in named or beside]
    if not known:
        raise RunFolderError(
            f"no run replaces {shorten(old.path)}; unlearn it first with feduhb unlearn, or name the new run with --replaced-by"
        )
    fit: list[tuple[RunFolder, Request]] = []
    reasons: list[FeduhbError] = []
    for new in known:
        try:
            fit.append((new, check_replacing(old, new, unaudited)[0]))
        except FeduhbError as error:
            reasons.append(error)
    if not fit:
        raise reasons[-1]
    best = [new for new, leavers in fit if all(other.subtract(leavers) is None for _, other in fit)]
    if len(best) != 1:
        names = ", ".join(str(shorten(new.path)) for new, _ in fit)
        raise RunFolderError(
            f"several runs could replace {shorten(old.path)}: {names}; name one with --replaced-by"
        )
    return best[0]


def check_replacing(
    old: RunFolder, new: RunFolder, unaudited: str | None
) -> tuple[Request, tuple[Mapping[str, str], ...]]:
    """Return what the new run has forgotten and the old one has not, and the audits about it."""
    here, there, total = shorten(new.path), shorten(old.path), read_forgotten(new)
    leavers = None if total is None else total.subtract(read_forgotten(old))
    if leavers is None:
        raise RequestError(
            f"{here} has forgotten {total or 'nothing'}, and {there} has forgotten that too, so it does not replace it; "
            "name a run that feduhb unlearn made from it"
        )
    forgot = read_forgotten(old)
    if forgot is not None and (back := forgot.subtract(total)) is not None:
        raise RequestError(
            f"{there} has forgotten {back}, and {here} has not, so it would bring {back} back; "
            f"name a run that has forgotten {forgot.merge(leavers)}"
        )
    if not (list_digests(old.path) & list_digests(new.path) or _has_same_data(old, new, leavers)):
        raise RequestError(
            f"{here} did not come from {there} and was not trained on the same data without {leavers}, so it does not replace it; "
            "name a run that feduhb unlearn made from it"
        )
    if not new.is_finished():
        raise RunFolderError(f"{here}, which replaces {there}, has not finished; continue it with --resume")
    audits = tuple(filter(None, map(_read_audit, (new.path, *_list_between(old, new)))))
    rest: Request | None = leavers
    for audit in audits if unaudited is None else ():
        if rest is not None and audit["verdict"] not in PASSED:
            raise RunFolderError(
                f"the audit of {shorten(Path(audit['run']))} says {audit['verdict']!r}, so {there} may still be needed; "
                "read the reasons in its audit.json, or give yours with --unaudited"
            )
        rest = rest and rest.subtract(Request.parse(audit["forgot"]))
    if rest is not None and unaudited is None:
        raise RunFolderError(
            f"{here}, which replaces {there}, has no audit about {rest}; "
            f"audit it: feduhb audit {here} --original {there}, or give a reason with --unaudited"
        )
    return leavers, audits


def _has_same_data(old: RunFolder, new: RunFolder, leavers: Request) -> bool:
    """Whether two runs were trained on the same data, by the digests in their configs, apart from the leavers."""
    before, after = list_data(old.path), list_data(new.path)
    changed = {client for client, _ in before.items() - after.items()}
    may_change = {*before} if leavers.classes else {*leavers.clients, *leavers.rows}
    return bool(before.items() & after.items()) and {*after} <= {*before} and changed <= may_change


def _list_between(old: RunFolder, new: RunFolder) -> list[Path]:
    """Return the runs that lie between two runs, each with a request of its own and the audit of that request."""
    digest, ancestors = digest_config(old.path), read_ancestors(new.path)
    places = [one.digest for one in ancestors]
    return [one.path for one in ancestors[: places.index(digest)]] if digest in places else []


def _read_audit(folder: Path) -> dict[str, str] | None:
    """Return what a run's last audit says and covers; None if there is no audit of its weights."""
    files = RunFolder(folder)
    tombstone = files.tombstone()
    weights = _read_weights(files) if tombstone is None else tombstone["weights_sha256"]
    found = read_kept_audit(folder / LAST)
    if found.problem or found.weights_sha256 != weights:
        return None
    about = {"verdict": found.verdict, "forgot": found.forgot}
    return {"run": str(folder), **about, "sha256": digest_file(found.path)}


def _read_weights(files: RunFolder) -> str | None:
    """Return the digest of a run's weights, by its result; None if it has not finished, or the result is damaged."""
    with contextlib.suppress(RunFolderError):
        return files.result()["weights_sha256"]
    return None


def _read_layout(files: RunFolder) -> dict[str, list[int]]:
    """Return the shapes of a run's weights by name; none if it has not finished, or the result is damaged."""
    with contextlib.suppress(RunFolderError):
        return dict(files.result().get("layout", []))
    return {}


def list_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the entries of a folder that match, in the order of the patterns."""
    entries = sorted(folder.iterdir())  # glob would leave out links that point to nothing
    return [path for pattern in patterns for path in entries if path.match(pattern)]


def _describe(path: Path) -> dict[str, Any]:
    """Return name, size and SHA-256 of a file, or of the list of all files in a folder with their digests."""
    if path.is_symlink():
        return {"name": path.name, "link": str(path.readlink())}
    if not path.is_dir() and not path.is_file():  # a pipe or the like
        return {"name": path.name}
    if not path.is_dir():
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest_file(path)}
    lines: list[str] = []
    size = 0
    for place, folders, files in os.walk(path):
        for inner in (Path(place, name) for name in (*folders, *files)):
            name = inner.relative_to(path).as_posix()
            if inner.is_symlink():
                lines.append(f"{inner.readlink()} {name}")
            elif inner.is_file():
                lines.append(f"{digest_file(inner)} {name}")
                size += inner.stat().st_size
    manifest = "\n".join(sorted(lines))
    return {
        "name": path.name, "files": len(lines), "bytes": size, "sha256": digest(manifest.encode()),
    }  # fmt: skip
