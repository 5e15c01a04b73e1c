"""Executing a plan: check, claim the folder, erase what must go first, loop, erase what can go only now, finish."""

from __future__ import annotations

import contextlib
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feduhb.core.types import Engine, Method
from feduhb.errors import CheckpointError, ConfigError, RunFolderError
from feduhb.methods import settings_of
from feduhb.methods.replay import bind_history, history_of, replayed_clients, unbind_history
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import digest_weights, list_fields, load_state, save_state, saved, to_cpu
from feduhb.runs.config import find_difference, identify_run, upgrade
from feduhb.runs.folder import Round, RunFolder, explain_end, now, versions, write_atomically
from feduhb.runs.history import HistoryOnDevice, RecordingEngine
from feduhb.runs.lineage import Erasure, note_successor, write_ancestors
from feduhb.runs.loop import evaluated, run, shown
from feduhb.runs.plan import Advice, Plan, Reporter, Show

SUMMED = ("client_epochs", "bytes_down", "bytes_up", "client_seconds", "server_seconds", "evaluate_seconds")


@dataclass(frozen=True, slots=True)
class Finished:
    """The final state of an executed plan, on the CPU, and all of its rounds."""

    state: Any
    rounds: tuple[Round, ...]


def execute(plan: Plan) -> Finished:
    """Execute a plan and return the final state and all rounds.

    The steps, in order; each may raise an error, and nothing is erased before everything has been checked:

    1. check that the plan can be executed;
    2. claim the folder for this process; start there, or find where a resumed run continues;
    3. erase what must go first: the histories that the leavers are in, unless the method replays them;
    4. loop over the rounds, from the first one that is missing;
    5. erase what can go only now: the histories that the method has replayed;
    6. finish: publish result.json, which was prepared before that erasure.
    """
    check(plan)
    with _claim(plan):
        method = _place_history(plan)
        state, records = _start_or_resume(plan, method)
        engine = _claim_history(plan)
        if not method.needs_history:
            erase(plan.erasure, plan.reporter)
        _write_lineage(plan)
        state, records = _loop(plan, method, engine, state, records)
        _prepare_result(plan, state, records)
        if method.needs_history:
            erase(plan.erasure, plan.reporter)
        if plan.folder is not None and not plan.folder.is_finished():
            plan.folder.publish()
    return Finished(to_cpu(state), tuple(records))


def check(plan: Plan) -> None:
    """Raise ConfigError for a plan that cannot be executed."""
    if plan.history_to_write is not None and plan.method.needs_history:
        raise ConfigError(
            f"what {plan.method.name} asks of clients is no history to replay; keep one with feduhb or retrain"
        )
    if plan.history_to_write is not None and plan.folder is None:
        raise ConfigError(f"a history is kept on disk; say in which folder: {plan.advice.folder}")


@contextlib.contextmanager
def _claim(plan: Plan) -> Generator[None]:
    """Be the only writer of the plan's folder until the block ends."""
    if plan.folder is None:
        yield
        return
    with plan.folder.claim(plan.advice.writer, plan.advice.elsewhere):
        yield


def _place_history(plan: Plan) -> Method[Any]:
    """Return the method, with its history read onto the GPU if the clients train there."""
    history = history_of(plan.method)
    if history is None or plan.engine.about["device"] != "cuda":
        return plan.method
    return bind_history(unbind_history(plan.method), HistoryOnDevice(history, torch.device("cuda")), replayed_clients(plan.method))  # fmt: skip


def _start_or_resume(plan: Plan, method: Method[Any]) -> tuple[Any, list[Round]]:
    """Return the state to continue from and the rounds done: the fresh model and none, or those of the last checkpoint."""
    device, folder = "cuda" if plan.engine.about["device"] == "cuda" else "cpu", plan.folder
    fresh = method.init(plan.start.to(device))
    if "params" not in getattr(fresh, "_fields", ()):
        raise ConfigError(
            f"the state of {method.name} is a {type(fresh).__name__}; make it a NamedTuple of tensors and ints with the field params"
        )
    if folder is None:
        return fresh, []
    if not folder.exists():
        for name, content in plan.files.items():
            write_atomically(folder.path / name, content)
        folder.create(plan.config)
        return fresh, []
    if not plan.resume:
        raise RunFolderError(
            f"{folder.path} already holds a run; go on with it by --resume, or choose another folder with --out"
        )
    _check_same_run(plan, folder.config())
    return resume_state(folder, fresh, Plain(fresh.params) if method.needs_history else None)


def _check_same_run(plan: Plan, old: Mapping[str, Any]) -> None:
    """Raise RunFolderError if a run was begun with other data, settings, engine or version."""
    assert plan.folder is not None  # noqa: S101 (only a folder can be resumed)
    path, before, new = plan.folder.path, upgrade(old), tomllib.loads(plan.config)
    a, b = before.get("clients", {}), new.get("clients", {})
    if other := [client for client in sorted({*a, *b}) if a.get(client) != b.get(client)]:
        raise RunFolderError(
            f"{path} was begun with other data of client {other[0]}; resume it with the same data, or begin anew in another --out"
        )
    if difference := find_difference(before, new):
        raise RunFolderError(
            f"{path} was begun with {difference}; {plan.advice.again} with the same settings, or {plan.advice.elsewhere}"
        )


def finish_replay(
    folder: RunFolder, method: Method[Any], forget: str, erasure: Erasure, reporter: Reporter, advice: Advice
) -> None:
    """Erase and finish for a replay whose rounds are all done, so that it needs its history no more.

    Raise RunFolderError if it was of another request, by another method or with other settings: with its history
    erased it cannot be run again.
    """
    found = folder.config().get("unlearn", {})
    written = tuple(found.get(key) for key in ("method", "forget", "settings"))
    if written != (method.name, forget, settings_of(method)):
        raise RunFolderError(
            f"{folder.path} holds a finished run of another request or other settings; {advice.elsewhere}"
        )
    with folder.claim(advice.writer, advice.elsewhere):
        erase(erasure, reporter)
        if not folder.is_finished():
            folder.publish()


def resume_state(folder: RunFolder, fresh: Any, bare: Any = None) -> tuple[Any, list[Round]]:
    """Return the state after a run's last checkpoint and the rounds up to there.

    Args:
        fresh: the state to start with if no round was finished.
        bare: the state that a run ends with if its method drops everything but the model then; else None.
    """
    if not folder.state_path.exists():
        if len(folder.rounds()) > 1:
            raise CheckpointError(
                f"{folder.path} has rounds but no checkpoint; restore {folder.STATE} from a backup, or delete the folder and run again"
            )
        folder.rewrite_rounds([])
        return fresh, []
    like = fresh
    if bare is not None and set(list_fields(folder.state_path)) == set(bare._fields):
        like = bare
    state, done = load_state(folder.state_path, like)
    records = folder.rounds()
    if len(records) < done:
        raise RunFolderError(
            f"{folder.rounds_path} holds {len(records)} rounds, its checkpoint {done}; delete {folder.path} and run again"
        )
    folder.rewrite_rounds(records[:done])
    return state, records[:done]


def _write_lineage(plan: Plan) -> None:
    """Write which runs this one came from, and into those that this one has taken their place."""
    if plan.folder is not None:
        write_ancestors(plan.folder.path, plan.ancestors)
        note_successor(plan.supersedes, plan.folder.path)


def erase(erasure: Erasure, reporter: Reporter) -> None:
    """Delete the histories that the leavers are in; report what was freed, and which runs could not be found."""
    for folder, freed in erasure.delete().items():
        reporter.inform(f"erased {freed} bytes of history in {folder}")
    for warning in erasure.warnings():
        reporter.warn(warning)


def _loop(
    plan: Plan, method: Method[Any], engine: Engine, state: Any, records: Sequence[Round]
) -> tuple[Any, list[Round]]:
    """Run the missing rounds, scored, recorded and shown; return the final state and all rounds."""
    sys.stderr.write(plan.notice)
    rounds, moved = list(records), [record.moved for record in records]
    stream = run(
        method, engine, plan.clients, state, rounds=plan.rounds, stop=plan.stop, first=len(rounds),
        moved=moved, on_bad=plan.on_bad,
    )  # fmt: skip
    if plan.score is not None:
        stream = evaluated(stream, plan.score)
    if plan.observe is not None:
        stream = plan.observe(stream)
    if plan.folder is not None:
        stream = saved(stream, plan.folder, every=plan.checkpoint_every)
    with watch_rounds(plan.show, plan.label, plan.rounds) as tell:
        for new, record in stream if tell is None else shown(stream, tell):
            state = new
            rounds.append(record)
    return state, rounds


def _claim_history(plan: Plan) -> Engine:
    """Return the plan's engine, wrapped to write a history if one is kept; raise HistoryError if that is another run's."""
    if plan.history_to_write is None or plan.folder is None:
        return plan.engine
    plan.history_to_write.claim(identify_run(plan.folder.config()))
    return RecordingEngine(plan.engine, plan.history_to_write)


@contextlib.contextmanager
def watch_rounds(show: Show, label: str, rounds: int) -> Generator[Callable[[Round], object] | None]:
    """Yield the function that shows a round: a bar on a terminal, plain lines, the caller's own, or None.

    "auto" draws a bar if standard error is a terminal and is silent elsewhere; "lines" writes a line a round there instead.
    """

    def write_line(record: Round) -> None:
        sys.stderr.write(f"{label} {record.round + 1}/{rounds}  {record}\n")
        sys.stderr.flush()

    if callable(show) or show is None:
        yield show
    elif sys.stderr.isatty():
        from feduhb.runs.progress import round_bar

        with round_bar(label, rounds) as tell:
            yield tell
    else:
        yield write_line if show == "lines" else None


def _prepare_result(plan: Plan, state: Any, records: Sequence[Round]) -> None:
    """Put the result aside before the last erasure; drop what a replaying method remembers of its history.

    Old models and updates could be worked out from that memory, so the checkpoint keeps the model alone. A run that is
    killed after this point can be finished without the history.
    """
    if plan.folder is None or plan.folder.is_finished():
        return
    if plan.method.needs_history:
        save_state(plan.folder.state_path, Plain(state.params), len(records))
    plan.folder.prepare(summarize(plan, state.params, records))


def summarize(plan: Plan, params: torch.Tensor, records: Sequence[Round]) -> dict[str, Any]:
    """Return the content of result.json."""
    asked = sum(len(record.asked) for record in records)
    everyone = plan.everyone or tuple({client for record in records for client in record.asked})
    counted = plan.everyone is not None or plan.method.needs_history
    full = (plan.per_round or len(everyone)) * len(records) if counted else 0
    replayed = history_of(plan.method)
    return {
        "method": plan.method.name,
        "exact": plan.method.exact,
        "needs": plan.method.needs,
        "settings": settings_of(plan.method),
        "rounds": len(records),
        "scheduled_rounds": plan.rounds,
        "stopped": explain_end(records),
        "clients": sorted(everyone),
        "parameters": params.numel(),
        "weights_sha256": digest_weights(params),
        **total(records),
        "client_rounds_saved": 1 - asked / full if full else 0.0,
        "history_bytes_read": 0 if replayed is None else replayed.bytes,
        "history_bytes_kept": 0 if plan.history_to_write is None else plan.history_to_write.bytes,
        "scores": dict(records[-1].scores) if records else {},
        "engine": dict(plan.engine.about),
        "versions": versions(),
        "finished": now(),
    }


def total(records: Sequence[Round]) -> dict[str, float]:
    """Return what rounds cost, summed up."""
    summed = {name: sum(getattr(record, name) for record in records) for name in SUMMED}
    return {**summed, "client_rounds": sum(len(record.answered) for record in records)}
