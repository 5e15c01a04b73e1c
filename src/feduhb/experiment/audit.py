"""Did it really forget? Exactness, attacks with their controls, and a verdict that says what it rests on."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from feduhb.data.request import Request
from feduhb.errors import ConfigError, RequestError, RunFolderError
from feduhb.evaluate.verdicts import MARGIN, Exactness, useless, verdict
from feduhb.experiment.attacks import Stage, backdoor_of, lira_attacks, loss_attacks, misr_of
from feduhb.experiment.audited import FILE, Audit
from feduhb.experiment.bench import Bench, called, check_control, check_way
from feduhb.experiment.exactness import as_recorded, carries, exactness, ours
from feduhb.experiment.measures import accuracies, commonest, cost, distances, relearned, remaining_clients
from feduhb.experiment.runs import EngineMaker, Run
from feduhb.experiment.settings import KeepHistory
from feduhb.experiment.since import since, still_held, told
from feduhb.methods.replaying import replays
from feduhb.methods.retrain import Retrain
from feduhb.records import RunFolder, disk_errors, write_atomically
from feduhb.run.folder import now, sole_writer, versions, weights_digest
from feduhb.run.progress import Show, stepped

WORK = "audit-work"  # a folder for the runs that an audit makes, gone when it has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """How thorough an audit is.

    Args:
        exactness: train and unlearn again with noise in place of the forgotten data, and without it from the start.
        canaries: where the federation holds none, rehearse the erasure with this share of the forgotten examples
            mislabelled; 0 does without.
        shadows: shadow federations for LiRA, an even number; 0 does without.
        relearn: rounds at most of training the forgotten data back in; 0 does without.
        margin: an AUC within 0.5 ± margin counts as none.
    """

    exactness: bool = True
    canaries: float = 0.25
    shadows: int = 0
    relearn: int = 20
    margin: float = MARGIN

    def __post_init__(self) -> None:
        if not 0 <= self.canaries <= 1:
            raise ConfigError(f"canaries is {self.canaries}; give a share of 0 (none) to 1, such as 0.25")
        if self.shadows < 0 or self.shadows % 2 or self.shadows == 2:
            raise ConfigError(
                f"shadows is {self.shadows}; give 0, or an even number of 4 or more, such as 16"
            )
        if self.relearn < 0:
            raise ConfigError(f"relearn is {self.relearn}; give a number of rounds, or 0 to do without")
        if not 0 < self.margin < 0.5:
            raise ConfigError(f"margin is {self.margin}; give a number between 0 and 0.5, such as 0.05")


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
            forgotten somebody, the audit asks about what was forgotten since.
        retrain: the other control, which must not be caught; None makes it.
        engine: None takes the audited run's.
        out: where audit.json goes, and runs that are made on the way; None takes the audited run's folder.
        keep: leave the runs that were made on the way. They know the forgotten data: mind where they lie.
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
    """Audit several answers to one request, with controls and counterfactual trainings in common.

    Each audit.json goes into its run's folder; ``out`` is for a single run.
    """
    if out is not None and len(runs) > 1:
        raise ConfigError("several runs are audited into their own folders; leave out= away")
    how = AuditSettings(**settings)
    if engine is not None:
        runs = [replace(run, engine=engine) for run in runs]
        trained = trained and replace(trained, engine=engine)
    asked = told(trained)
    runs, trained, retrain = since(runs, trained, retrain)
    first = _checked(runs, trained, retrain)
    place = Path(out) if out else first.folder
    with (
        _work(place, first, how, keep=keep) as folder,
        stepped(show, "audit", _steps(runs, trained, retrain, how)) as step,
    ):
        bench = Bench(
            federation=first.original, request=_request(first), settings=first.settings, engine=first.engine,
            block=first.block, history=_history(runs, trained), folder=folder, step=step,
            made={n: r for n, r in (("original", trained), ("retrain", retrain)) if r is not None},
        )  # fmt: skip
        found: list[Audit] = []
        for run in runs:
            audited = _audited(run, bench, how)
            found.append(replace(audited, notes=(*asked, *audited.notes)))
            target = place if len(runs) == 1 else run.folder
            if target is not None:
                _put(target, found[-1])
    return found


def _put(folder: Path, audit: Audit) -> None:
    """Write audit.json; an earlier one stays beside it under the time it ended."""
    file = folder / FILE
    if file.exists():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            ended = str(json.loads(file.read_text())["finished"])[:19].replace(":", "")
            file.replace(folder / f"audit-{ended}.json")
    write_atomically(file, audit.to_json().encode())


def _audited(run: Run, bench: Bench, how: AuditSettings) -> Audit:
    started = time.perf_counter()
    request, federation = bench.request, bench.federation
    original, retrain = bench.original(), bench.retrain()
    models = {"unlearned": run, "original": original, "retrain": retrain}
    notes: list[str] = (
        []
        if as_recorded(run)
        else ["The weights are not those whose digest was recorded when the run ended."]
    )
    exact = _exactness(run, bench, how, notes)
    stage = Stage.of(federation, request, models)
    marked = stage if stage.canaries[0] else _rehearsal(stage, run, bench, how, exact, notes)
    bench.step(f"attacks on {run.method.name}", 1)
    attacks = loss_attacks(stage, how.margin, federation.seed)
    if marked is not stage:
        attacks += loss_attacks(marked, how.margin, federation.seed)
    if how.shadows and stage.members:
        likes = {"unlearned": run if run.method.exact else retrain, "retrain": retrain}
        attacks += lira_attacks(marked, bench, likes, how.shadows, how.margin, federation.seed)
    bare = [c for c in federation.forgotten(request) if c not in stage.members]
    if stage.members and bare:
        notes.append(
            f"Of {', '.join(bare)} no held-out data is there to compare with, so membership was attacked on the others alone."
        )
    if not stage.members:
        notes.append(
            "No held-out data of the leavers is there to compare with, so membership was not attacked."
        )
    trigger = backdoor_of(stage, request, how.margin)
    shares = {name: accuracies(model, federation, request) for name, model in models.items()}
    findings = [finding for _, finding in attacks] + ([trigger[1]] if trigger else [])
    test, yardstick = shares["unlearned"].test, shares["retrain"].test
    labelled = test is not None
    waste = None if test is None or yardstick is None else useless(test, yardstick, commonest(federation))
    score = misr_of(stage, request, notes) if labelled else None
    copied = torch.equal(run.params.cpu(), original.params.cpu()) and not torch.equal(
        retrain.params.cpu(), original.params.cpu()
    )
    found = verdict(run.method.exact, exact, findings, waste, copied=copied, own_code=not ours(run))
    return Audit(
        method=run.method.name, exact=run.method.exact, forgot=str(request), seed=federation.seed,
        weights_sha256=weights_digest(run.params), verdict=found,
        exactness=exact, membership=tuple(attack for attack, _ in attacks), misr=score,
        backdoor=trigger[0] if trigger else None, accuracy=shares, clients=remaining_clients(models, federation, request),
        distance=distances(models, federation) if labelled else {},
        relearn=relearned(original, models, request, how.relearn, bench.step, bench.relearned),
        cost={name: cost(model) for name, model in models.items()}, notes=tuple(notes), settings=asdict(how),
        versions=versions(), finished=now(), seconds=time.perf_counter() - started,
    )  # fmt: skip


def _exactness(run: Run, bench: Bench, how: AuditSettings, notes: list[str]) -> Exactness | None:
    if not how.exactness:
        return None
    if held := carries(run.method):
        notes.append(
            f"The method carries {held!r}, which is no setting: with it inside, a counterfactual run would show nothing."
        )
        return None
    return exactness(run, bench)


def _rehearsal(
    stage: Stage, run: Run, bench: Bench, how: AuditSettings, exact: Exactness | None, notes: list[str]
) -> Stage:
    """Serve the request once more with canaries planted; without them where that cannot be done."""
    if not how.canaries or not stage.members:
        return stage
    if bench.request.classes:
        notes.append(
            "A mislabelled example is no longer of its class, so forgetting a class was not rehearsed with canaries."
        )
        return stage
    try:
        world = bench.rehearsed(how.canaries)
    except ConfigError as error:
        notes.append(f"No canaries were planted: {error}.")
        return stage
    # Exact weights do not depend on the forgotten data, so they are those of the rehearsal too; Retrain's as well.
    same = run.method.exact and exact is not None and exact.exact
    models = {
        "unlearned": run if same else bench.unlearned(world, "rehearsal", run),
        "original": world,
        "retrain": stage.models["retrain"],
    }
    return Stage.of(world.federation, bench.request, models, rehearsal=True)


def _checked(runs: Sequence[Run], trained: Run | None, retrain: Run | None) -> Run:
    """Give the first of the runs, once all belong together."""
    if not runs:
        raise RunFolderError("no run is named to audit; give one that feduhb unlearn made")
    first = runs[0]
    still_held(first.original, _request(first))
    for name, control in (("original", trained), ("retrain", retrain)):
        if control is not None:
            check_control(name, control, first)
    for run in runs[1:]:
        check_way(run, first)
        if (
            str(_request(run)) != str(first.forgot)
            or run.original.fingerprints() != first.original.fingerprints()
        ):
            raise RunFolderError(
                "these runs did not forget the same from the same data; audit them one at a time"
            )
    return first


def _request(run: Run) -> Request:
    if run.forgot is None:
        raise RequestError("this run has forgotten nobody; audit one that feduhb unlearn made")
    return run.forgot


def _history(runs: Sequence[Run], trained: Run | None) -> KeepHistory:
    """What counterfactual trainings must keep for the methods under audit."""
    if not any(replays(run.method) for run in runs):
        return False
    return (trained.settings.keep_history if trained else True) or True


def _steps(runs: Sequence[Run], trained: Run | None, retrain: Run | None, how: AuditSettings) -> int:
    """Count what the progress bar will show, if nothing unforeseen comes up."""
    first = runs[0]
    steps = (trained is None) + (retrain is None)
    if how.exactness:
        steps += 1 + any(replays(run.method) for run in runs) + 2 * len(runs)
        steps += sum((not run.method.exact) + 2 * (not ours(run)) for run in runs)
    own = any(len(e.canaries) for e in first.original.forgotten(_request(first)).values())
    rehearsed = (
        bool(how.canaries) and not own and not _request(first).classes and bool(first.original.held_out)
    )
    steps += rehearsed * (1 + sum(not (run.method.exact and how.exactness) for run in runs))
    sets = {called(run) for run in runs if run.method.exact and not isinstance(run.method, Retrain)} | {
        "retrain"
    }
    return steps + how.shadows * len(sets) + len(runs) * (1 + 2 * bool(how.relearn))


@contextlib.contextmanager
def _work(place: Path | None, run: Run, how: AuditSettings, *, keep: bool) -> Generator[Path]:
    """Give a folder for the runs on the way: taken up again after a crash, deleted at the end."""
    if place is None:
        with tempfile.TemporaryDirectory(prefix="feduhb-audit-") as temporary:
            yield Path(temporary)
        return
    folder = place / WORK
    wanted = {"settings": asdict(how), "weights": weights_digest(run.params), "request": str(run.forgot)}
    with sole_writer(RunFolder(place)):
        _begin(folder, wanted)
        yield folder
        if not keep:
            shutil.rmtree(folder)


def _begin(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Clear what an audit with other settings left."""
    mark = folder / "audit-settings.json"
    if folder.exists() and (not mark.exists() or json.loads(mark.read_text()) != wanted):
        shutil.rmtree(folder)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(mark, json.dumps(wanted).encode())


__all__ = ["Audit", "AuditSettings", "audit", "audit_all"]
