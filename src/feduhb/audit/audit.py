"""Did it really forget? `audit` answers, with controls beside every number and a verdict with its reasons."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from feduhb.audit.controls import Controls, carry_out, list_once
from feduhb.audit.exactness import check_recorded_weights
from feduhb.audit.procedure import AuditSettings, RunAudit
from feduhb.audit.result import FILE, Audit, read_audit
from feduhb.audit.work import describe_inputs, note_foreign_work, open_work
from feduhb.core.checks import check_show
from feduhb.core.flat import flatten
from feduhb.core.modules import digest_carried
from feduhb.data.deleted import select_held
from feduhb.data.federation import Federation
from feduhb.data.request import Request
from feduhb.engines import EngineMaker
from feduhb.errors import ConfigError, RequestError, RunFolderError
from feduhb.methods import is_retrain
from feduhb.methods.binding import uses_old_run
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.config import KeepHistory, TrainSettings
from feduhb.runs.files import disk_errors, lock_folder, resolve, sync_folder, write_atomically
from feduhb.runs.folder import WORK
from feduhb.runs.plan import Show
from feduhb.runs.private import find_audits
from feduhb.runs.progress import show_lines, show_steps
from feduhb.runs.run import Run

PREPARED = f".{FILE}.tmp"  # an audit whose work is not deleted yet
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}")


def audit(
    unlearned: Run,
    trained: Run | None = None,
    *,
    retrain: Run | None = None,
    engine: str | EngineMaker | None = None,
    out: str | Path | None = None,
    keep: bool = False,
    show: Show = "auto",
    **settings: Any,
) -> Audit:
    """Audit one unlearning run with its controls; write audit.json into its folder if it has one.

    Example:
        audit = feduhb.audit(unlearned, trained)
        print(audit.verdict.word)

    Args:
        unlearned: the run to audit.
        trained: the original, a control that must be caught. None trains it again from the recorded settings, with the
            seed of the audited run. If the original had itself forgotten data, the audit covers only what was forgotten
            after it.
        retrain: Retrain, the control that must not be caught. None makes it, with the seed of the audited run.
        engine: None uses the engine of the audited run.
        out: the folder for audit.json. None uses the audited run's folder.
        keep: keep the runs that the audit makes, in the folder audit-work beside audit.json. They were trained on the
            forgotten data, so store them safely.
        settings: fields of `AuditSettings`: exactness, canaries, shadows, relearn, margin.

    The original, the audited run and Retrain may have different seeds. The audit repeats each with its own seed: the
    original's training in every counterfactual with the original's seed, the unlearning there with the audited run's.
    """
    return audit_all(
        [unlearned], trained, retrain=retrain, engine=engine, out=out, keep=keep, show=show, **settings
    )[0]


def audit_all(
    runs: Sequence[Run],
    trained: Run | None = None,
    *,
    retrain: Run | None = None,
    engine: str | EngineMaker | None = None,
    out: str | Path | None = None,
    keep: bool = False,
    misr: bool = True,
    show: Show = "auto",
    **settings: Any,
) -> list[Audit]:
    """Audit several runs that served the same request; they share controls and counterfactual trainings.

    The runs may have different seeds. Controls that the audit makes have the seed of the first run; the original has the
    seed of a run that replays its history, if there is one.
    Each audit.json goes into the folder of its run; ``out`` is for a single run. ``misr`` False leaves MISR out, which is
    not a verdict and takes some of the time.
    """
    if out is not None and len(runs) > 1:
        raise ConfigError(f"out= is for a single run, but {len(runs)} runs are given; omit out=")
    how = AuditSettings(**settings)
    check_show(show)
    if engine is not None:
        runs = [replace(run, engine=engine) for run in runs]
        trained = trained and replace(trained, engine=engine)
    notes: tuple[str, ...] = ()
    if trained is not None and trained.forgot is not None:
        notes = (
            f"The original control had itself forgotten {trained.forgot}. This audit covers only what was forgotten after it.",
        )
        runs = [_begin_at(run, trained) for run in runs]
        retrain = retrain and _begin_at(retrain, trained)
        trained = replace(trained, original=trained.federation, forgot=None)
    first = check_runs(runs, trained, retrain)
    for run in filter(None, (*runs, trained, retrain)):
        check_recorded_weights(run)
    seed = (
        trained.seed if trained else next((run.seed for run in runs if uses_old_run(run.method)), first.seed)
    )
    place = Path(out) if out else first.folder
    places = [place] if len(runs) == 1 else [run.folder for run in runs]
    written = [folder for folder in places if folder is not None]
    for folder in written:
        _check_file(folder)
    notes += () if misr else ("MISR was not measured: the audit was asked to leave it out.",)
    notes += tuple(note_foreign_work([*filter(None, (place, *(run.folder for run in runs)))]))
    inputs = describe_inputs(runs, trained, retrain, asdict(how), seed)
    with open_work(place, inputs, keep=keep) as work:
        controls = Controls(
            federation=first.original.reseed(first.seed), request=get_request(first), settings=_choose_settings(runs, trained), original_seed=seed,
            engine=first.engine, block=first.block,
            history=_choose_history(runs, trained), canaries=how.canaries, misr=misr, folder=work.path,
            hidden=_list_folders([*runs, *filter(None, (trained, retrain))], work.path),
            made={n: r for n, r in (("original", trained), ("retrain", retrain)) if r is not None},
        )  # fmt: skip
        audits = [RunAudit(run, controls, how) for run in runs]
        show_lines(show, [one.says for one in audits[0].forecast])
        todo = list_once(one.steps() for one in audits)

        def count_left() -> int:
            return sum(step.is_needed() for steps in todo for step in steps)

        found: list[Audit] = []
        with show_steps(show, "audit", count_left) as begin:
            for one, steps in zip(audits, todo, strict=True):
                started = time.perf_counter()
                carry_out(steps, begin, work.sign)
                found.append(one.conclude((*notes, *work.describe()), started))
        for folder, one in zip(places, found, strict=True):
            if folder is not None:
                _prepare(folder, one)
        work.finish(place / WORK if keep and place is not None else None)
        for folder in written:
            _publish(folder)
    return found


def _begin_at(run: Run, trained: Run) -> Run:
    """Return a run as if it had begun at the original control, which had itself forgotten data."""
    if run.original.fingerprints() != trained.original.fingerprints():
        raise RunFolderError(
            "the original control and the audited run have different data; give the run that the audited run came from"
        )
    before, now = trained.forgot, run.forgot
    if before is None or now is None or before.subtract(now) is not None or now.subtract(before) is None:
        raise RunFolderError(
            f"the original control has forgotten {before} and the audited run {now or 'nothing'}; give the run before the request as the original"
        )
    return replace(run, original=trained.federation, forgot=now.subtract(before))


def _list_folders(runs: Sequence[Run], work: Path) -> tuple[Path, ...]:
    """Return the folders in which a method could find an old model: of these runs, of those they came from, and of audits."""
    found = [
        path for run in runs for path in (run.folder, *(one.path for one in run.earlier)) if path is not None
    ]
    return tuple(dict.fromkeys(path.resolve() for path in (*found, work, find_audits())))


def _choose_history(runs: Sequence[Run], trained: Run | None) -> KeepHistory:
    """Return which history the counterfactual trainings must keep for the audited methods."""
    if not any(run.method.needs_history for run in runs):
        return False
    return (trained.settings.keep_history if trained else True) or True


def _choose_settings(runs: Sequence[Run], trained: Run | None) -> TrainSettings:
    """Return how the counterfactual trainings train. They keep models if a rollback is audited, which continues from these."""
    given = trained if trained is not None else runs[0]
    kept = given.settings.keep_models if any(run.method.continues_training for run in runs) else None
    return replace(runs[0].settings, keep_models=kept)


def _check_file(folder: Path) -> None:
    """Raise RunFolderError if audit.json cannot be written, because something else has its name."""
    path = folder / FILE
    if path.is_symlink() or (path.exists() and not path.is_file()):
        what = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "not a file"
        raise RunFolderError(f"{path} is {what}; move it away, so that the audit can be written")


def _prepare(folder: Path, audit: Audit) -> None:
    """Write the audit under a hidden name. `_publish` renames it to audit.json."""
    write_atomically(folder / PREPARED, audit.to_json().encode())


def _publish(folder: Path) -> None:
    """Rename the prepared audit; keep an earlier one beside it, named by the time when it ended."""
    file = folder / FILE
    _check_file(folder)
    with disk_errors(file), lock_folder(folder):
        if file.exists():
            file.replace(folder / _name_earlier(folder))
        (folder / PREPARED).replace(file)
        sync_folder(folder)


def _name_earlier(folder: Path) -> str:
    """Return a name for an earlier audit that nothing in the folder has."""
    try:
        earlier = read_audit(folder)
        ended = earlier.finished[:19].replace(":", "") if earlier else ""
    except RunFolderError:
        ended = ""
    stem = f"audit-{ended if TIME.fullmatch(ended) else 'damaged'}"
    names = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
    return next(f"{name}.json" for name in names if not os.path.lexists(folder / f"{name}.json"))


def check_runs(runs: Sequence[Run], trained: Run | None, retrain: Run | None) -> Run:
    """Return the first run; raise an error unless all runs and controls have the same data, request and training.

    Seeds may differ, except that a run that replays a history has the seed of the training that wrote it.
    """
    if not runs:
        raise RunFolderError("there is no run to audit; give at least one that feduhb unlearn made")
    first = runs[0]
    for run in filter(None, (*runs, trained, retrain)):
        if run.unconfirmed:
            raise RunFolderError(
                f"forgotten rows of client {run.unconfirmed[0]} were deleted, and the lineage of {run.folder} alone says which: "
                "no run or tombstone confirms it, so the audit could look at other rows; restore the runs that it came from"
            )
    _check_data(first.original, get_request(first))
    for name, control in (("original", trained), ("retrain", retrain)):
        if control is not None:
            check_control(name, control, first)
    for run in runs[1:]:
        _check_training(run, first)
        same_data = run.original.fingerprints() == first.original.fingerprints()
        if str(get_request(run)) != str(first.forgot) or not same_data:
            raise RunFolderError(
                "these runs served different requests, or have different data; audit them one at a time"
            )
    _check_replays([run for run in runs if run.method.needs_history], trained)
    folders = [resolve(run.folder) for run in runs if run.folder is not None]
    if twice := next((folder for folder in folders if folders.count(folder) > 1), None):
        raise RunFolderError(f"{twice} is named twice; name each run once")
    return first


def _check_replays(replays: Sequence[Run], trained: Run | None) -> None:
    """Raise RunFolderError if a run that replays a history has another seed than the training that wrote it."""
    origin = trained or next(iter(replays), None)
    for run in replays:
        if origin is not None and run.seed != origin.seed:
            raise RunFolderError(
                f"{run.method.name} replays the training that it came from, but it has seed {run.seed} and "
                f"{origin.folder or origin} has seed {origin.seed}; give the training that it came from, and audit such runs one at a time"
            )


def get_request(run: Run) -> Request:
    """Return the request that a run served; raise RequestError if it served none."""
    if run.forgot is None:
        raise RequestError("this run has not forgotten anything; audit a run that feduhb unlearn made")
    return run.forgot


def _check_data(federation: Federation, request: Request) -> None:
    """Raise RequestError if the forgotten data has been deleted: attacks and counterfactuals need it."""
    _ = next(iter(federation.clients.values())).targets  # raises an error if the data was never here
    if (gone := request.subtract(select_held(federation, request))) is not None:
        raise RequestError(
            f"the audit needs the data of {gone}, which this federation no longer holds; audit before you delete forgotten data. "
            "To audit a later request only, give the run before that request as the original"
        )


def check_control(name: str, given: Run, run: Run) -> None:
    """Raise RunFolderError if a control belongs to other data, another request or another method."""
    if given.original.fingerprints() != run.original.fingerprints():
        raise RunFolderError(
            f"the {name} control and the audited run have different data; give a control with the data of the audited run"
        )
    _check_training(given, run)
    if name == "retrain" and (not is_retrain(given.method) or str(given.forgot) != str(run.forgot)):
        raise RunFolderError(
            f"the retrain control is a run of {given.method.name} that has forgotten {given.forgot or 'nothing'}; "
            f"give a run of retrain that has forgotten {run.forgot}"
        )


def _check_training(given: Run, run: Run) -> None:
    """Raise RunFolderError if two runs have other settings of their clients, or other given starts; their seeds may differ."""
    if _get_local(given) != _get_local(run):
        raise RunFolderError(
            f"{given.folder or given} was trained with other settings than {run.folder or run}; "
            "audit only runs with the same settings together"
        )
    starts = [one.federation.fresh_model() for one in (given, run) if one.federation.start == "given"]
    digests = {(digest_weights(flatten(start)), digest_carried(start)) for start in starts}
    if len(starts) == 1 or len(digests) > 1:
        raise RunFolderError(
            f"{given.folder or given} started from other weights than {run.folder or run}, and at least one of these starts was given; "
            "audit only runs from the same start together"
        )


def _get_local(run: Run) -> TrainSettings:
    """Return how clients train, without the settings that do not change their weights."""
    return replace(run.settings, keep_history=False, keep_models=None, engine="auto")
