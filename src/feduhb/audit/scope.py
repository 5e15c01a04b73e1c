"""The scope of an audit: which runs can be audited together, and which of the forgotten data the audit is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from feduhb.data.federation import Federation, select_held
from feduhb.data.request import Request
from feduhb.errors import RequestError, RunFolderError
from feduhb.methods import is_retrain
from feduhb.runs.config import TrainSettings
from feduhb.runs.run import Run


def limit_to_later(
    runs: Sequence[Run], trained: Run | None, retrain: Run | None
) -> tuple[Sequence[Run], Run | None, Run | None]:
    """Return the runs as if they had begun at the original control.

    A control that had itself forgotten somebody is the beginning: the audit is about what was forgotten after it.
    """
    if trained is None or trained.forgot is None:
        return runs, trained, retrain
    began = replace(trained, original=trained.federation, forgot=None)
    return [_begin_at(run, trained) for run in runs], began, retrain and _begin_at(retrain, trained)


def describe_limit(trained: Run | None) -> tuple[str, ...]:
    """Return a note that the audit is about a later request alone, where it is."""
    if trained is None or trained.forgot is None:
        return ()
    return (
        f"The original control had itself forgotten {trained.forgot}: this audit asks about what was forgotten since, and nothing else.",
    )


def check_runs(runs: Sequence[Run], trained: Run | None, retrain: Run | None) -> Run:
    """Return the first of the runs; raise an error unless they and their controls belong together."""
    if not runs:
        raise RunFolderError("no run is named to audit; give one that feduhb unlearn made")
    first = runs[0]
    check_data(first.original, get_request(first))
    for name, control in (("original", trained), ("retrain", retrain)):
        if control is not None:
            check_control(name, control, first)
    for run in runs[1:]:
        check_training(run, first)
        if (
            str(get_request(run)) != str(first.forgot)
            or run.original.fingerprints() != first.original.fingerprints()
        ):
            raise RunFolderError(
                "these runs did not forget the same from the same data; audit them one at a time"
            )
    return first


def get_request(run: Run) -> Request:
    """Return the request that a run served; raise RequestError where it served none."""
    if run.forgot is None:
        raise RequestError("this run has forgotten nobody; audit one that feduhb unlearn made")
    return run.forgot


def check_data(federation: Federation, request: Request) -> None:
    """Raise RequestError where the forgotten data is gone: attacks and counterfactuals need it once more."""
    _ = next(iter(federation.clients.values())).targets  # refuses where the data was never here
    there = select_held(federation, request)
    if (gone := request.subtract(there)) is not None:
        raise RequestError(
            f"the data of {gone} is not there any more, and an audit needs it once more; audit before it is deleted, and after a later "
            "request give the run before that as the original"
        )


def check_control(name: str, given: Run, run: Run) -> None:
    """Raise RunFolderError where a control belongs to other data, another request or another method."""
    if given.original.fingerprints() != run.original.fingerprints():
        raise RunFolderError(
            f"the {name} control was made with other data than the audited run; give the one it came from"
        )
    check_training(given, run)
    if name == "retrain" and (not is_retrain(given.method) or str(given.forgot) != str(run.forgot)):
        raise RunFolderError(
            f"the retrain control is {given.method.name}, which has forgotten {given.forgot or 'nobody'}; "
            f"give a run of retrain without {run.forgot}"
        )


def check_training(given: Run, run: Run) -> None:
    """Raise RunFolderError where the clients of two runs did not train alike."""
    if given.federation.seed != run.federation.seed or _local_settings(given) != _local_settings(run):
        raise RunFolderError(
            f"{given.folder or given} was trained with other settings or another seed than {run.folder or run}; "
            "audit together what belongs together"
        )


def _local_settings(run: Run) -> TrainSettings:
    """Return how clients train, without the settings that change no weight of theirs."""
    return replace(run.settings, keep_history=False, engine="auto")


def _begin_at(run: Run, trained: Run) -> Run:
    """Return a run as if it had begun at the control."""
    if run.original.fingerprints() != trained.original.fingerprints():
        raise RunFolderError(
            "the original control was made with other data than the audited run; give the one it came from"
        )
    before, now = trained.forgot, run.forgot
    if before is None or now is None or before.subtract(now) is not None or now.subtract(before) is None:
        raise RunFolderError(
            f"the original control has forgotten {before}, the audited run {now or 'nobody'}; give a control that knows what the run forgot"
        )
    return replace(run, original=trained.federation, forgot=now.subtract(before))
