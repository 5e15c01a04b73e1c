"""Execute a plan: check it, claim its folder, erase histories, run the rounds, and write the result."""

from __future__ import annotations

import contextlib
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch

from feduhb.core.checks import list_shows, name_kind
from feduhb.core.own_code import is_code
from feduhb.core.types import Engine, Method
from feduhb.engines import device_of
from feduhb.errors import AnswerError, CheckpointError, ConfigError, RunFolderError
from feduhb.methods import list_needs, settings_of
from feduhb.methods.binding import bind_again, get_history, get_model, uses_old_run
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import digest_weights, load_best, load_state, save_state, saved
from feduhb.runs.config import OTHER_LAYERS, find_difference, identify_run, upgrade
from feduhb.runs.files import write_atomically
from feduhb.runs.folder import Result, Round, RunFolder, explain_end, make_series, now, versions
from feduhb.runs.held_out import BestModel, find_kept
from feduhb.runs.history import HistoryOnDevice, RecordingEngine
from feduhb.runs.lineage import Erased, Erasure, supersede, write_ancestors
from feduhb.runs.loop import Rounds, carry_statistics, evaluated, run, shown
from feduhb.runs.plan import Advice, Observer, Plan, Reporter, Show, ShowOne
from feduhb.runs.rollback import Restart
from feduhb.stopping import decide


@dataclass(frozen=True, slots=True)
class Finished:
    """The final model of an executed plan, on the CPU, and all of its rounds."""

    state: Plain
    rounds: tuple[Round, ...]
    erased: tuple[Erased, ...] = ()  # of the histories that contained the leavers


@dataclass(slots=True)
class _Progress:
    """How far a run has come. It changes in every round, so that nothing holds the state of an earlier round."""

    state: Any
    records: list[Round]


@runtime_checkable
class KeepsFiles(Protocol):
    """An engine that keeps files of its own in the run folder, by which a resumed run continues as it was."""

    def recorded(self, rounds: Rounds[Any], folder: RunFolder) -> Rounds[Any]:
        """Read these files, then write them before the checkpoint that ends each round."""
        ...


def execute(plan: Plan) -> Finished:
    """Execute a plan and return the final model and all rounds.

    The steps, in order. Each may raise an error, and nothing is erased before everything has been checked.

    1. Check that the plan can be executed.
    2. Claim the folder for this process. Start a run there, or find where a resumed run continues.
    3. Erase the histories that contain the leavers, unless the method replays them.
    4. Run the rounds that are missing.
    5. Erase the histories that the method has replayed.
    6. Publish result.json, which was prepared before step 5.
    """
    check(plan)
    folder, advice = plan.folder, plan.advice
    erased: list[Erased] = []
    with contextlib.nullcontext() if folder is None else folder.claim(advice.writer, advice.elsewhere):
        method = _place_bound(plan)
        with contextlib.nullcontext() if folder is None else _supersede(plan, folder):
            progress = _start_or_resume(plan, method)
            engine = plan.engine
            if folder is not None and plan.history_to_write is not None:
                plan.history_to_write.claim(identify_run(folder.config()))
                engine = RecordingEngine(engine, plan.history_to_write)
            sys.stderr.write(plan.notice)  # what the run will cost, before anything is deleted
            if not method.needs_history:
                erased += erase(plan.erasure, plan.reporter, folder)
        state, records = _loop(plan, method, engine, progress), progress.records
        _prepare_result(plan, state, records)
        if method.needs_history:
            erased += erase(plan.erasure, plan.reporter, folder)
        if folder is not None and not folder.is_finished():
            folder.publish()
    return Finished(Plain(state.params.cpu()), tuple(records), tuple(erased))


def _supersede(plan: Plan, folder: RunFolder) -> contextlib.AbstractContextManager[None]:
    return supersede(plan.supersedes, folder.path, plan.forgets, plan.reporter.warn)


def check(plan: Plan) -> None:
    """Raise ConfigError for a plan that cannot be executed."""
    if plan.history_to_write is None:
        return
    if uses_old_run(plan.method):  # its rounds start from that run, or leavers take part in them
        raise ConfigError(f"{plan.method.name} cannot keep a history; use feduhb or retrain for that")
    if plan.folder is None:
        raise ConfigError(f"a history is kept on disk; name a folder: {plan.advice.folder}")


def _place_bound(plan: Plan) -> Method[Any]:
    """Return the method, with a history and an old model as its rounds see them: without statistics.

    The history is read into the memory of the device on which clients train.
    """
    history, model, parts = get_history(plan.method), get_model(plan.method), dict[str, Any]()
    if history is not None:
        device = torch.device(device_of(plan.engine))
        parts["history"] = HistoryOnDevice(history, device, tuple(history.rounds), plan.statistics)
    if model is not None:
        parts["model"] = model[: len(model) - plan.statistics]
    return bind_again(plan.method, parts)


def _choose_start(plan: Plan) -> torch.Tensor:
    """Return the vector that a run begins at. A method that starts from the old model begins with its statistics too."""
    model, start = get_model(plan.method), plan.start()
    if model is None or not plan.statistics:
        return start
    return torch.cat([start[: -plan.statistics], model[-plan.statistics :].to(start)])


def _start_or_resume(plan: Plan, method: Method[Any]) -> _Progress:
    """Return the state and the rounds to continue from: those of the last checkpoint, or a fresh model and no rounds."""
    folder = plan.folder
    fresh = carry_statistics(method, plan.statistics).init(_choose_start(plan).to(device_of(plan.engine)))
    if "params" not in getattr(fresh, "_fields", ()):
        raise ConfigError(
            f"the state of {method.name} is {name_kind(fresh)}; make it a NamedTuple of tensors and ints with the field params"
        )
    if folder is None:
        return _begin(plan, method, fresh)
    if not folder.exists():
        if remains := folder.find_remains():
            raise RunFolderError(
                f"{folder.path} holds {remains} of another run, but no config.toml; restore that, or {plan.advice.elsewhere}"
            )
        for name, content in plan.files.items():
            write_atomically(folder.path / name, content)
        write_ancestors(folder.path, plan.ancestors)
        folder.create(plan.config)
        return _begin(plan, method, fresh)
    if not plan.resume:
        raise RunFolderError(
            f"{folder.path} already holds a run; continue it with --resume, or choose another --out"
        )
    _check_same_run(plan, folder.config())
    if folder.is_finished():
        folder.check_weights()
    write_ancestors(folder.path, plan.ancestors)
    if plan.restart is not None and not folder.state_path.exists():  # killed before it had begun
        return _begin(plan, method, fresh)
    state, records = _resume(folder, [fresh, Plain(fresh.params)])
    series = make_series(records, plan.recording.best)
    if (
        type(state) is not type(fresh)
        and len(records) < plan.rounds
        and (not records or decide(plan.stop, series) is None)
    ):
        raise RunFolderError(
            f"{folder.path} has ended, and an ended run keeps its model alone; {plan.advice.elsewhere} for further rounds"
        )
    return _Progress(state, records)


def _begin(plan: Plan, method: Method[Any], fresh: Any) -> _Progress:
    """Return the state and the rounds that a new run begins with: a fresh model, or where a rollback continues a training.

    A rollback is a run that is resumed with other clients, so its folder first gets what a run has after these rounds.
    """
    restart, folder = plan.restart, plan.folder
    if restart is None or restart.params is None:
        return _Progress(fresh, [])
    state = carry_statistics(method, plan.statistics).init(restart.params.to(fresh.params.device))
    records = [*restart.records]
    if not restart.is_scored and plan.score is not None:
        for done, params in _list_models(plan, restart, state.params).items():
            records[done - 1] = replace(records[done - 1], scores=dict(plan.score(done, params)))
    if folder is not None:
        if plan.keeper is not None and restart.kept is not None:
            plan.keeper.inherit(restart.kept, [done for done in restart.kept.rounds if done <= restart.round])
        folder.rewrite_rounds(records)
        save_state(folder.state_path, state, restart.round, restart.best)
    return _Progress(state, records)


def _list_models(plan: Plan, restart: Restart, params: torch.Tensor) -> dict[int, torch.Tensor]:
    """Return the available models of a training, by their number of rounds; an ended one has kept only its result."""
    kept = find_kept(restart.records, plan.recording.keep, plan.recording.best)
    if restart.is_all:
        return {kept: params}
    return {restart.round: params, **({} if restart.best is None else {kept: restart.best})}


def _check_same_run(plan: Plan, old: Mapping[str, Any]) -> None:
    """Raise RunFolderError if the run in the folder has other data, settings, engine or version."""
    path, before, new = plan.folder and plan.folder.path, upgrade(old), tomllib.loads(plan.config)
    a, b = before.get("clients", {}), new.get("clients", {})
    if other := [client for client in sorted({*a, *b}) if a.get(client) != b.get(client)]:
        raise RunFolderError(
            f"{path} was started with different data of client {other[0]}; resume it with the same data, or choose another --out"
        )
    _leave_out_code(before, new)
    layers = before.pop("layers", None), new.pop("layers", None)
    if None not in layers and layers[0] != layers[1]:
        raise RunFolderError(f"{path} {OTHER_LAYERS}")
    if difference := find_difference(before, new):
        raise RunFolderError(
            f"{path} was started with {difference}; {plan.advice.again} with the same settings, or {plan.advice.elsewhere}"
        )


def _leave_out_code(*configs: dict[str, Any]) -> None:
    """Leave the names of own code out of two configs if one has none: its run was made, or is resumed, in Python.

    The data is recognised by its digests, the method by its name and settings.
    """
    tables = [config.get("federation") for config in configs]
    if None in tables and all(table is None or is_code(str(table.get("data"))) for table in tables):
        for config in configs:
            config.pop("federation", None)
    if not all("code" in config.get("unlearn", {}) for config in configs):
        for config in configs:
            if "unlearn" in config:
                config["unlearn"] = {key: value for key, value in config["unlearn"].items() if key != "code"}


def finish_replay(
    folder: RunFolder, method: Method[Any], forget: str, erasure: Erasure, reporter: Reporter, advice: Advice
) -> list[Erased]:
    """Erase the histories of a replay whose rounds are all done, mark the run as finished; return what was erased.

    Raise RunFolderError, and erase nothing, if the folder holds another request, method or settings: the replay that was
    asked for would still need the history.
    """
    found = folder.config().get("unlearn", {})
    written = tuple(found.get(key) for key in ("method", "forget", "settings"))
    if written != (method.name, forget, settings_of(method)):
        raise RunFolderError(f"{folder.path} holds another request or other settings; {advice.elsewhere}")
    with folder.claim(advice.writer, advice.elsewhere):
        if folder.is_finished():
            folder.check_weights()
        erased = erase(erasure, reporter, folder)
        if not folder.is_finished():
            folder.publish()
    return erased


def _resume(folder: RunFolder, likes: Sequence[Any]) -> tuple[Any, list[Round]]:
    """Return the state of a run's last checkpoint and the rounds up to there.

    Args:
        likes: states of the types that the checkpoint may hold; the first is returned if no round was finished.
    """
    records = folder.rounds()
    if folder.state_path.exists():
        state, done = load_state(folder.state_path, *likes)
    elif len(records) > 1:
        raise CheckpointError(
            f"{folder.path} has rounds but no checkpoint; restore {folder.STATE} from a backup, or delete the folder and run again"
        )
    else:
        state, done = likes[0], 0
    if len(records) < done:
        raise RunFolderError(
            f"{folder.rounds_path} holds {len(records)} rounds, but its checkpoint counts {done}; delete {folder.path} and run again"
        )
    folder.rewrite_rounds(records[:done])
    return state, records[:done]


def erase(erasure: Erasure, reporter: Reporter, folder: RunFolder | None) -> list[Erased]:
    """Delete the histories that contain the leavers; report and return what was deleted, and report missing runs."""
    erased = erasure.delete(None if folder is None else folder.path)
    for one in erased:
        reporter.inform(str(one))
    for warning in erasure.warnings():
        reporter.warn(warning)
    return erased


def _loop(plan: Plan, method: Method[Any], engine: Engine, progress: _Progress) -> Any:
    """Run the rounds that are missing and add them to the progress; return the final state."""
    recording = plan.recording
    series, best = make_series(progress.records, recording.best), None
    stream = run(
        method, engine, plan.clients, progress.state, rounds=plan.rounds, stop=plan.stop, first=len(progress.records),
        moved=series, on_bad=plan.on_bad, statistics=plan.statistics, held_out=recording.held_out,
        start=plan.start() if recording.distance else None, leavers=plan.leavers,
    )  # fmt: skip
    if recording.keep == "best":
        kept = None if plan.restart is None else plan.restart.best
        kept = load_best(plan.folder.state_path) if plan.folder is not None and progress.records else kept
        kept = None if kept is None else kept.to(progress.state.params.device)
        best = BestModel(progress.state.params, series, kept)
        stream = best.watch(stream)
    if plan.score is not None:
        stream = evaluated(stream, plan.score)
    if plan.folder is not None and isinstance(plan.engine, KeepsFiles):
        stream = plan.engine.recorded(stream, plan.folder)
    if plan.observe is not None:
        stream = plan.observe(stream)
    get_best = (lambda: None) if best is None else (lambda: best.params)
    if plan.keeper is not None:
        stream = plan.keeper.watch(stream, get_best)
    if plan.folder is not None:
        stream = saved(stream, plan.folder, every=plan.checkpoint_every, get_best=get_best)
    with watch_rounds(plan.show, plan.label, plan.rounds) as tell, _name_checkpoint(plan.folder):
        for state, record in stream if tell is None else shown(stream, tell):
            progress.state = state
            progress.records.append(record)
    return progress.state if best is None or best.params is None else Plain(best.params)


@contextlib.contextmanager
def _name_checkpoint(folder: RunFolder | None) -> Generator[None]:
    """Add to an AnswerError that a checkpoint is kept, if there is one."""
    try:
        yield
    except AnswerError as error:
        if folder is None or not folder.state_path.exists():
            raise
        raise type(error)(f"{error}. The last checkpoint is kept: {folder.state_path}") from error


@contextlib.contextmanager
def watch_rounds(show: Show, label: str, rounds: int) -> Generator[Callable[[Round], object] | None]:
    """Yield the function that shows a round; None if rounds are not shown."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(_watch_once(one, label, rounds)) for one in list_shows(show)]
        tells = [tell for tell in opened if tell is not None]

        def tell_all(record: Round) -> None:
            for tell in tells:
                tell(record)

        yield tell_all if len(tells) > 1 else next(iter(tells), None)


@contextlib.contextmanager
def _watch_once(show: ShowOne, label: str, rounds: int) -> Generator[Callable[[Round], object] | None]:
    """Yield the function that shows a round in one way.

    If standard error is a terminal, "auto" and "lines" draw a bar. Elsewhere "lines" writes one line for each round.
    """

    def write_line(record: Round) -> None:
        sys.stderr.write(f"{label} {record.round + 1}/{rounds}  {record}\n")
        sys.stderr.flush()

    if isinstance(show, Observer):
        with show.watch(label) as tell:
            yield tell
    elif callable(show) or show is None:
        yield show
    elif sys.stderr.isatty():
        from feduhb.runs.progress import round_bar

        with round_bar(label, rounds) as tell:
            yield tell
    else:
        yield write_line if show == "lines" else None


def _prepare_result(plan: Plan, state: Any, records: Sequence[Round]) -> None:
    """Write the result under a hidden name, so that a killed run can be finished after its history is erased.

    The checkpoint of an ended run keeps the model alone. The rest of the state is of no further use, and it tells more
    about the clients than the model does: the heavy ball's previous model gives the last round's update, and the state
    of a replay contains parts of the history.
    """
    if plan.folder is None or plan.folder.is_finished():
        return
    is_saved = isinstance(state, Plain) and plan.folder.state_path.exists()  # without a round, it is not
    if not is_saved or plan.recording.keep == "best":
        save_state(plan.folder.state_path, Plain(state.params), len(records))
    plan.folder.prepare(summarize(plan, state.params, records))


def summarize(plan: Plan, params: torch.Tensor, records: Sequence[Round]) -> Result:
    """Return the content of result.json."""
    regular = [record for record in records if not record.leavers]
    own = regular[0 if plan.restart is None else plan.restart.round :]  # the others are of the training
    asked = sum(len(record.asked) for record in own)
    everyone = plan.everyone or tuple({client for record in regular for client in record.asked})
    counted = plan.everyone is not None or plan.method.needs_history
    full = (plan.per_round or len(everyone)) * len(regular) if counted else 0
    replayed = get_history(plan.method)
    kept = find_kept(records, plan.recording.keep, plan.recording.best)
    found: Result = {
        "method": plan.method.name,
        "exact": plan.method.exact,
        "needs": plan.method.needs,
        "requires": list_needs(plan.method),
        "settings": settings_of(plan.method),
        "rounds": len(records),
        "scheduled_rounds": plan.rounds,
        "stopped": explain_end(records),
        "clients": sorted(everyone),
        "parameters": params.numel(),
        "weights_sha256": digest_weights(params),
        "client_epochs": sum(record.client_epochs for record in records),
        "bytes_down": sum(record.bytes_down for record in records),
        "bytes_up": sum(record.bytes_up for record in records),
        "client_seconds": sum(record.client_seconds for record in records),
        "server_seconds": sum(record.server_seconds for record in records),
        "evaluate_seconds": sum(record.evaluate_seconds for record in records),
        "client_rounds": sum(len(record.answered) for record in own),
        "client_rounds_saved": 1 - asked / full if full else 0.0,
        "history_bytes_read": 0 if replayed is None else replayed.bytes,
        "history_bytes_kept": 0 if plan.history_to_write is None else plan.history_to_write.bytes,
        "scores": dict(records[kept - 1].scores) if records else {},
        "engine": dict(plan.engine.about),
        "versions": versions(),
        "finished": now(),
        "layout": [(name, [*shape]) for name, shape in plan.layout],
        "came_from": [one.digest for one in plan.ancestors],
    }
    if plan.recording.keep == "best":
        found["kept_round"] = kept
    if plan.restart is not None:
        found["restart_round"], found["restart_sha256"] = plan.restart.round, plan.restart.sha256
    if plan.method.needs_model:
        found["old_model_bytes"] = params.numel() * params.element_size()
    if plan.keeper is not None:
        found["kept_models_bytes"] = plan.keeper.models.measure(plan.keeper.models.rounds)
    if plan.method.asks_leaver:
        found["leavers"] = sorted({client for record in records for client in record.leavers})
        found["leaver_epochs"] = sum(record.leaver_epochs for record in records)
    return found if plan.declaration is None else {**found, "start": plan.declaration}
