"""Did it really forget? `audit` answers, with controls beside every number and a verdict that says what it rests on."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from feduhb.audit.controls import Controls
from feduhb.audit.result import FILE, Audit
from feduhb.audit.run_audit import RunAudit
from feduhb.audit.scope import check_runs, describe_limit, get_request, limit_to_later
from feduhb.audit.settings import AuditSettings
from feduhb.audit.steps import carry_out, list_once
from feduhb.engines import EngineMaker
from feduhb.errors import ConfigError
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.config import KeepHistory
from feduhb.runs.folder import RunFolder, disk_errors, write_atomically
from feduhb.runs.plan import Show
from feduhb.runs.progress import stepped
from feduhb.runs.run import Run

WORK = "audit-work"  # a folder for the runs that an audit makes, deleted when it has ended


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
    """Audit one unlearning run, with its controls; write audit.json into its folder if it has one.

    Args:
        unlearned: the run to audit.
        trained: the original, a control that must be caught; None trains it again from the recorded settings. Where it had itself
            forgotten somebody, the audit is about what was forgotten since.
        retrain: the other control, which must not be caught; None makes it.
        engine: None takes the audited run's.
        out: the folder for audit.json and for the runs that the audit makes; None takes the audited run's folder.
        keep: keep the runs that the audit makes. They know the forgotten data: mind where they lie.
        settings: of `AuditSettings`: exactness, canaries, shadows, relearn, margin.
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
    show: Show = "auto",
    **settings: Any,
) -> list[Audit]:
    """Audit several answers to one request, which share their controls and counterfactual trainings.

    Each audit.json goes into its run's folder; ``out`` is for a single run.
    """
    if out is not None and len(runs) > 1:
        raise ConfigError("several runs are audited into their own folders; leave out= away")
    how = AuditSettings(**settings)
    if engine is not None:
        runs = [replace(run, engine=engine) for run in runs]
        trained = trained and replace(trained, engine=engine)
    limit = describe_limit(trained)
    runs, trained, retrain = limit_to_later(runs, trained, retrain)
    first = check_runs(runs, trained, retrain)
    place = Path(out) if out else first.folder
    with _work_folder(place, first, how, keep=keep) as folder:
        controls = Controls(
            federation=first.original, request=get_request(first), settings=first.settings, engine=first.engine, block=first.block,
            history=_choose_history(runs, trained), canaries=how.canaries, folder=folder,
            made={n: r for n, r in (("original", trained), ("retrain", retrain)) if r is not None},
        )  # fmt: skip
        audits = [RunAudit(run, controls, how) for run in runs]
        todo = list_once(one.steps() for one in audits)

        def count_left() -> int:
            return sum(step.is_needed() for steps in todo for step in steps)

        found: list[Audit] = []
        with stepped(show, "audit", count_left) as begin:
            for one, steps in zip(audits, todo, strict=True):
                started = time.perf_counter()
                carry_out(steps, begin)
                found.append(one.conclude(limit, started))
                target = place if len(runs) == 1 else one.run.folder
                if target is not None:
                    _write(target, found[-1])
    return found


def _choose_history(runs: Sequence[Run], trained: Run | None) -> KeepHistory:
    """Return what counterfactual trainings must keep for the audited methods."""
    if not any(run.method.needs_history for run in runs):
        return False
    return (trained.settings.keep_history if trained else True) or True


def _write(folder: Path, audit: Audit) -> None:
    """Write audit.json; an earlier one stays beside it, named by the time it ended."""
    file = folder / FILE
    if file.exists():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            ended = str(json.loads(file.read_text())["finished"])[:19].replace(":", "")
            file.replace(folder / f"audit-{ended}.json")
    write_atomically(file, audit.to_json().encode())


@contextlib.contextmanager
def _work_folder(place: Path | None, run: Run, how: AuditSettings, *, keep: bool) -> Generator[Path]:
    """Yield a folder for the runs that the audit makes: kept after a crash, so that the audit can continue, deleted at the end."""
    if place is None:
        with tempfile.TemporaryDirectory(prefix="feduhb-audit-") as temporary:
            yield Path(temporary)
        return
    folder = place / WORK
    wanted = {"settings": asdict(how), "weights": digest_weights(run.params), "request": str(run.forgot)}
    with RunFolder(place).claim():
        _prepare_work_folder(folder, wanted)
        yield folder
        if not keep:
            shutil.rmtree(folder)


def _prepare_work_folder(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Create the work folder; delete what an audit with other settings left in it."""
    mark = folder / "audit-settings.json"
    if folder.exists() and (not mark.exists() or json.loads(mark.read_text()) != wanted):
        shutil.rmtree(folder)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(mark, json.dumps(wanted).encode())


__all__ = ["Audit", "AuditSettings", "audit", "audit_all"]
