"""What an audit asks about: everything that a run has forgotten, or only what it forgot since another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from feduhb.data.federation import Federation
from feduhb.data.gone import still_there
from feduhb.data.request import Request
from feduhb.errors import RequestError, RunFolderError
from feduhb.experiment.runs import Run


def since(
    runs: Sequence[Run], trained: Run | None, retrain: Run | None
) -> tuple[Sequence[Run], Run | None, Run | None]:
    """Take a control that had forgotten somebody for the beginning: of runs, only what they forgot later is asked about."""
    if trained is None or trained.forgot is None:
        return runs, trained, retrain
    began = replace(trained, original=trained.federation, forgot=None)
    return [_later(run, trained) for run in runs], began, retrain and _later(retrain, trained)


def told(trained: Run | None) -> tuple[str, ...]:
    """Say that only a later request is asked about, where that is so."""
    if trained is None or trained.forgot is None:
        return ()
    return (
        f"The original control had itself forgotten {trained.forgot}: this audit asks about what was forgotten since, and nothing else.",
    )


def still_held(federation: Federation, request: Request) -> None:
    """Refuse an audit whose forgotten data is gone: attacks and counterfactuals need it once more."""
    _ = next(iter(federation.clients.values())).targets  # refuses where the data was never here
    there = still_there(federation, request)
    if (gone := request.beyond(there)) is not None:
        raise RequestError(
            f"the data of {gone} is not there any more, and an audit needs it once more; audit before it is deleted, and after a later "
            "request give the run before that as the original"
        )


def _later(run: Run, trained: Run) -> Run:
    """Give a run as if it had begun where the control stood."""
    if run.original.fingerprints() != trained.original.fingerprints():
        raise RunFolderError(
            "the original control was made with other data than the audited run; give the one it came from"
        )
    before, now = trained.forgot, run.forgot
    if before is None or now is None or before.beyond(now) is not None or now.beyond(before) is None:
        raise RunFolderError(
            f"the original control has forgotten {before}, the audited run {now or 'nobody'}; give a control that knows what the run forgot"
        )
    return replace(run, original=trained.federation, forgot=now.beyond(before))
