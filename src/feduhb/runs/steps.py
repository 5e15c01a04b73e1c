"""What to do next, so that nothing of the leavers is left: finish, audit, retire, and delete by hand, in this order."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from feduhb.data.request import Request
from feduhb.errors import FeduhbError
from feduhb.runs.folder import RunFolder
from feduhb.runs.lineage import digest_config, shorten
from feduhb.runs.retire import PASSED, check_replacing, choose_replacement
from feduhb.runs.siblings import list_ancestor_digests
from feduhb.runs.status import Leaver, RunStatus, Step

ORDER = ("resume", "unlearn", "audit", "retire", "look", "delete")
ASKED = "asked by feduhb status"  # in place of a reason not to audit, which is written nowhere


def list_steps(runs: Sequence[RunStatus], leavers: Sequence[Leaver]) -> list[Step]:
    """Return what to do, in order, without repetitions."""
    requests = [Request.parse(run.forgot) for run in runs if run.forgot]
    served = {
        one.request
        for one in leavers
        if any(Request.parse(one.request).subtract(request) is None for request in requests)
    }
    steps = [*_finish(runs), *_forget(runs, leavers, served), *_replace(runs, served), *_delete_by_hand(runs)]
    unique = {(step.what, step.path): step for step in reversed(steps)}
    return sorted(reversed(unique.values()), key=lambda step: ORDER.index(step.what))


def _finish(runs: Sequence[RunStatus]) -> Iterator[Step]:
    """Yield the unlearnings and retirements that were interrupted."""
    by_path = {run.path: run for run in runs}
    erasing = {
        (run.path / one.run).resolve()
        for run in runs
        for one in run.erased
        if one.finished is None and one.run
    }
    for run in runs:
        if run.state == "unfinished" and run.forgot:
            what = "its erasure was interrupted" if run.path in erasing else "it has not finished"
            yield _resume(run, by_path.get(run.came_from) if run.came_from else None, what)
        elif run.path in erasing and run.state != "retired":
            yield _resume(
                run,
                by_path.get(run.came_from) if run.came_from else None,
                "an erasure for it was interrupted",
            )
        elif run.state == "retiring":
            yield Step(
                "retire", run.path, "its retirement was interrupted", f"feduhb retire {_name(run.path)}"
            )


def _resume(run: RunStatus, before: RunStatus | None, what: str) -> Step:
    config = _read_config(run.path)
    forgot = Request.parse(before.forgot) if before is not None and before.forgot else None
    asked = Request.parse(run.forgot).subtract(forgot) or run.forgot
    if "flower" in config:
        return Step("resume", run.path, f"{what}; submit its ServerApp again")
    if "federation" not in config:
        return Step("resume", run.path, f"{what}; repeat its feduhb.unlearn in Python with resume=True")
    source = _name(run.came_from) if run.came_from is not None else "RUN"
    method = "" if run.method == "feduhb" else f" --method {shlex.quote(run.method)}"
    command = (
        f"feduhb unlearn {source} --forget {shlex.quote(str(asked))}{method} --out {_name(run.path)} --resume"
    )
    return Step("resume", run.path, f"{what}; add the options that it was begun with", command)


def _replace(runs: Sequence[RunStatus], served: Collection[str]) -> Iterator[Step]:
    """Yield how to audit the runs that replace a run which holds leavers that were forgotten, and how to retire it."""
    heads: list[Path] = [run.path for run in runs if run.state == "retired"]
    others: list[RunStatus] = []
    for run in runs:
        if run.state in {"retired", "retiring"} or not any(one.leaver in served for one in run.holds):
            continue
        found = [*_retire(run, runs)] if any(_is_own(run, sure=True)) else []
        yield from found
        if any(step.what == "retire" for step in found):
            heads.append(run.path)
        elif not found:
            others.append(run)
    for run in others:
        yield from _take_along(run, heads)


def _is_own(run: RunStatus, *, sure: bool) -> Iterator[bool]:
    """Yield for each leaver whether it is in the run itself, and not only in its audit work."""
    return (one.reason != "audit work" and one.is_sure == sure for one in run.holds)


def _retire(run: RunStatus, runs: Sequence[RunStatus]) -> Iterator[Step]:
    """Yield the steps that retire a run; none if no run replaces it."""
    old, here = RunFolder(run.path), _name(run.path)
    command = f"feduhb retire {here}"
    new = _choose(old, None)
    if new is None and (waiting := _choose(old, ASKED)) is not None:
        yield _audit(waiting.path, run.path, runs)
        new = waiting
    if new is None:
        for one in runs:
            if (
                one.state in {"finished", "superseded"}
                and one.forgot
                and _can_replace(old, RunFolder(one.path))
            ):
                new, command = RunFolder(one.path), f"{command} --replaced-by {_name(one.path)}"
                break
    if new is not None:
        yield Step("retire", run.path, f"{shorten(new.path)} replaces it", command)


def _choose(old: RunFolder, unaudited: str | None) -> RunFolder | None:
    try:
        return choose_replacement(old, unaudited)
    except (FeduhbError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # what is damaged, or not there, replaces nothing


def _can_replace(old: RunFolder, new: RunFolder) -> bool:
    try:
        check_replacing(old, new, None)
    except (FeduhbError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return True


def _audit(path: Path, old: Path, runs: Sequence[RunStatus]) -> Step:
    """Return how to audit the run that replaces an old one, or how to look at an audit that did not pass."""
    by_path = {run.path: run for run in runs}
    new = by_path.get(path)
    if new is not None and new.came_from in by_path and by_path[new.came_from].state != "retired":
        old = new.came_from  # the run before the request, of which the old one may be a copy
    last = new.audits[0] if new is not None and new.audits else None
    if new is not None and last is not None and new.judged_these_weights(last) and last.verdict not in PASSED:
        return Step(
            "audit", path, f"its audit says {last.verdict!r}; read the reasons in {shorten(last.path)}"
        )
    before, config = f"before {shorten(old)} is retired", _read_config(path)
    if "federation" in config:
        return Step("audit", path, before, f"feduhb audit {_name(path)} --original {_name(old)}")
    where = "where the clients' data is" if "flower" in config else "in Python"
    return Step("audit", path, f"{before}: feduhb.audit {where}, or a reason for feduhb retire --unaudited")


def _take_along(run: RunStatus, heads: Sequence[Path]) -> Iterator[Step]:
    """Yield how to delete what holds leavers and cannot be retired by itself."""
    leavers = ", ".join(one.leaver for one in run.holds)
    if all(one.reason == "unreadable" for one in run.holds):
        yield Step("look", run.path, f"it cannot be read, so it may hold {leavers}")
        return
    is_sure = any(one.is_sure for one in run.holds)
    place = run.path
    if not any(_is_own(run, sure=True)) and is_sure:
        place = next(
            remnant.path for one in run.holds for remnant in one.remnants if remnant.part == "audit work"
        )
    if not is_sure:
        yield Step(
            "look",
            run.path,
            f"a client of that name took part, so it may hold {leavers}; if it does, delete it",
        )
    elif heads:
        text = "retire takes along what holds the same leavers, after you have confirmed the list"
        yield Step("delete", place, text, f"feduhb retire {_name(heads[-1])} --siblings")
    else:
        yield Step("delete", place, "no run replaces it; delete it yourself once it is not needed")


def _forget(runs: Sequence[RunStatus], leavers: Sequence[Leaver], served: Collection[str]) -> Iterator[Step]:
    """Yield how to serve a request that no run has served, for leavers that were asked about."""
    replaced = {digest for run in runs for digest in list_ancestor_digests(run.path)}
    current = {
        run.path for run in runs if run.state == "finished" and digest_config(run.path) not in replaced
    }  # not those that another run came from, nor copies of them
    for leaver in (one for one in leavers if one.request not in served):
        for run in (one for one in runs if one.path in leaver.held_by and one.path in current):
            command = f"feduhb unlearn {_name(run.path)} --forget {shlex.quote(leaver.request)}"
            yield Step("unlearn", run.path, f"no run has forgotten {leaver}", command)


def _delete_by_hand(runs: Sequence[RunStatus]) -> Iterator[Step]:
    """Yield the files that no command deletes."""
    for run in runs:
        if run.state == "retired" and run.holds:
            yield Step("delete", run.path, "it was retired, but files of it are there again")
        elif run.state == "retired" and run.left:
            yield Step(
                "look", run.path, f"feduhb did not write {', '.join(run.left)}; delete copies of the model"
            )


def _read_config(path: Path) -> dict[str, object]:
    try:
        return RunFolder(path).config()
    except (FeduhbError, OSError):
        return {}


def _name(path: Path) -> str:
    return shlex.quote(str(shorten(path)))
