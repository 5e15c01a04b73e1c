"""What to do next, so that nothing of the leavers is left: finish, audit, retire, and delete by hand, in this order."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from feduhb.data.request import Request
from feduhb.runs.files import resolve
from feduhb.runs.folder import RunFolder
from feduhb.runs.lineage import shorten
from feduhb.runs.retire import PASSED, check_replacing, choose_replacement
from feduhb.runs.status import Leaver, RunStatus, Step

ORDER = ("resume", "unlearn", "audit", "retire", "look", "delete")
T = TypeVar("T")
ASKED = "asked by feduhb status"  # in place of a reason not to audit, which is written nowhere


def list_steps(runs: Sequence[RunStatus], leavers: Sequence[Leaver]) -> list[Step]:
    """Return what to do, in order, without repetitions."""
    requests = [Request.parse(run.forgot) for run in runs if run.forgot and not _is_beside(run, runs)]
    served = {
        one.request
        for one in leavers
        if any(Request.parse(one.request).subtract(request) is None for request in requests)
    }
    begun = [*_finish(runs)]
    rest = [run for run in runs if run.path not in {step.path for step in begun}]
    resumed = {step.path for step in begun if step.what == "resume"}
    waiting = [run for run in runs if run.path in resumed]
    steps = [
        *begun, *_forget(runs, leavers, served), *_replace(rest, runs, served, waiting), *_delete_by_hand(runs)
    ]  # fmt: skip
    unique: dict[tuple[str, Path], Step] = {}
    for step in steps:
        unique.setdefault((step.what, step.path), step)
    return sorted(unique.values(), key=lambda step: ORDER.index(step.what))


def _is_beside(run: RunStatus, runs: Sequence[RunStatus]) -> bool:
    """Whether a run is a comparison: others superseded the run that it came from. It serves no request."""
    before = next((one for one in runs if one.path == run.came_from), None)
    if (
        before is None or run.made_with == "Flower"
    ):  # strategies of earlier versions did not record what they superseded
        return False
    return bool(before.superseded_by) and run.path not in before.superseded_by


def _finish(runs: Sequence[RunStatus]) -> Iterator[Step]:
    """Yield the unlearnings and retirements that were interrupted."""
    by_path = {run.path: run for run in runs}
    erasing = {
        resolve(run.path / one.run) for run in runs for one in run.erased if one.finished is None and one.run
    }
    for run in runs:
        before = by_path.get(run.came_from) if run.came_from else None
        if run.state == "unfinished" and run.forgot:
            what = "its erasure was interrupted" if run.path in erasing else "it has not finished"
            yield _resume(run, before, what)
        elif run.path in erasing and run.state != "retired":
            yield _resume(run, before, "an erasure for it was interrupted")
        elif run.state == "retiring":
            yield Step(
                "retire", run.path, "its retirement was interrupted", f"feduhb retire {_name(run.path)}"
            )


def _resume(run: RunStatus, before: RunStatus | None, what: str) -> Step:
    forgot = Request.parse(before.forgot) if before is not None and before.forgot else None
    asked = Request.parse(run.forgot).subtract(forgot) or run.forgot
    if run.made_with == "Flower":
        return Step("resume", run.path, f"{what}; submit its ServerApp again")
    if run.made_with == "Python":
        return Step("resume", run.path, f"{what}; repeat its feduhb.unlearn in Python with resume=True")
    source = _name(run.came_from) if run.came_from is not None else "RUN"
    own = _attempt(lambda: str(RunFolder(run.path).config().get("unlearn", {}).get("code", "")), "")
    named = own or run.method
    method = "" if named == "feduhb" else f" --method {shlex.quote(named)}"
    command = (
        f"feduhb unlearn {source} --forget {shlex.quote(str(asked))}{method} --out {_name(run.path)} --resume"
    )
    return Step("resume", run.path, f"{what}; add the options that it was begun with", command)


def _replace(
    chosen: Sequence[RunStatus],
    runs: Sequence[RunStatus],
    served: Collection[str],
    waiting: Sequence[RunStatus],
) -> Iterator[Step]:
    """Yield how to audit the runs that replace a run which holds leavers that were forgotten, and how to retire it.

    Args:
        chosen: the runs to look at, of all runs.
        served: the leavers that a run has forgotten.
        waiting: runs that must be finished first.
    """
    heads = [run for run in runs if run.state == "retired"]
    others: list[RunStatus] = []
    for run in chosen:
        if run.state in {"retired", "retiring"} or not any(one.leaver in served for one in run.holds):
            continue
        found = [*_retire(run, runs)] if _holds_itself(run) else []
        yield from found
        if any(step.what == "retire" for step in found):
            heads.append(run)
        elif not any(map(run.is_related, waiting)):
            others.append(run)
    for run in others:
        yield from _take_along(run, [head.path for head in heads if run.is_related(head)])


def _holds_itself(run: RunStatus) -> bool:
    """Whether a run is sure to hold a leaver in its own files, and not only in its audit work."""
    return any(one.reason != "audit work" and one.is_sure for one in run.holds)


def _retire(run: RunStatus, runs: Sequence[RunStatus]) -> Iterator[Step]:
    """Yield the steps that retire a run; none if no run replaces it."""
    old, command = RunFolder(run.path), f"feduhb retire {_name(run.path)}"
    new = _choose(old, None) or _choose(old, ASKED)
    if new is None:
        ended = (one for one in runs if one.state in {"finished", "superseded"} and one.forgot)
        folders = [RunFolder(one.path) for one in ended]
        # Audited runs first.
        fit = (one for reason in (None, ASKED) for one in folders if _can_replace(old, one, reason))
        new = next(fit, None)
        command += "" if new is None else f" --replaced-by {_name(new.path)}"
    if new is not None:
        if not _can_replace(old, new, None):
            yield _audit(new.path, run.path, runs)
        yield Step("retire", run.path, f"{new.path.name} replaces it", command)


def _choose(old: RunFolder, unaudited: str | None) -> RunFolder | None:
    return _attempt(lambda: choose_replacement(old, unaudited), None)


def _can_replace(old: RunFolder, new: RunFolder, unaudited: str | None) -> bool:
    return _attempt(lambda: bool(check_replacing(old, new, unaudited)), False)


def _audit(path: Path, old: Path, runs: Sequence[RunStatus]) -> Step:
    """Return how to audit the run that replaces an old one, or how to look at an audit that did not pass."""
    by_path = {run.path: run for run in runs}
    new = by_path.get(path)
    last = new.audits[0] if new is not None and new.audits else None
    is_judged = new is not None and last is not None and new.judged_these_weights(last)
    if (
        new is not None
        and not is_judged
        and new.came_from in by_path
        and by_path[new.came_from].state != "retired"
    ):
        old = new.came_from  # the run before the request, of which the old one may be a copy
    if last is not None and is_judged and last.verdict not in PASSED:
        return Step("audit", path, f"it says {last.verdict!r}; read the reasons in {shorten(last.path)}")
    before, made_with = f"before {old.name} is retired", "Python" if new is None else new.made_with
    if made_with == "commands":
        return Step("audit", path, before, f"feduhb audit {_name(path)} --original {_name(old)}")
    where = "where the clients' data is" if made_with == "Flower" else "in Python"
    return Step("audit", path, f"{before}: feduhb.audit {where}, or a reason for feduhb retire --unaudited")


def _take_along(run: RunStatus, heads: Sequence[Path]) -> Iterator[Step]:
    """Yield how to delete what holds leavers and cannot be retired by itself."""
    leavers = ", ".join(one.leaver for one in run.holds)
    if all(one.reason == "unreadable" for one in run.holds):
        yield Step("look", run.path, f"it cannot be read, so it may hold {leavers}")
        return
    if not any(one.is_sure for one in run.holds):
        says = f"a client of that name took part, so it may hold {leavers}; if it does, delete it"
        yield Step("look", run.path, says)
        return
    place = run.path
    if not _holds_itself(run):
        remnants = (remnant for one in run.holds for remnant in one.remnants)
        place = next(remnant.path for remnant in remnants if remnant.part == "audit work")
    if heads:
        command = f"feduhb retire {_name(heads[-1])} --siblings"
        yield Step("delete", place, "this command lists what it deletes, and asks first", command)
    else:
        yield Step("delete", place, "no run replaces it; delete it yourself once it is not needed")


def _forget(runs: Sequence[RunStatus], leavers: Sequence[Leaver], served: Collection[str]) -> Iterator[Step]:
    """Yield how to serve a request that no run has served, for leavers that were asked about."""
    replaced = {digest for run in runs for digest in run.earlier_sha256}
    # Neither runs that another run came from, nor copies of them.
    current = {run.path for run in runs if run.state == "finished" and run.config_sha256 not in replaced}
    for leaver in (one for one in leavers if one.request not in served):
        for run in (one for one in runs if one.path in leaver.held_by and one.path in current):
            command = f"feduhb unlearn {_name(run.path)} --forget {shlex.quote(leaver.request)}"
            is_compared = any(one.forgot and _has_forgotten(one, leaver) for one in runs)
            says = f"only a comparison has forgotten {leaver}; if it asked to be forgotten, serve the request"
            yield Step(
                "unlearn", run.path, says if is_compared else f"no run has forgotten {leaver}", command
            )


def _has_forgotten(run: RunStatus, leaver: Leaver) -> bool:
    return Request.parse(leaver.request).subtract(Request.parse(run.forgot)) is None


def _delete_by_hand(runs: Sequence[RunStatus]) -> Iterator[Step]:
    """Yield the files that no command deletes."""
    for run in runs:
        if run.state == "retired" and run.holds:
            yield Step("delete", run.path, "it was retired, but files of it are there again")
        elif run.state == "retired" and run.left:
            yield Step(
                "look", run.path, f"feduhb did not write {', '.join(run.left)}; delete copies of the model"
            )


def _attempt(read: Callable[[], T], default: T) -> T:
    """Return what a function reads, or a default: `feduhb.runs.inventory` has reported what is damaged."""
    try:
        return read()
    except Exception:  # a damaged or forged file can fail in any way
        return default


def _name(path: Path) -> str:
    return shlex.quote(str(shorten(path)))
