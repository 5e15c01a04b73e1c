"""What an unlearning is expected to cost, from the schedule of its method and the records of the run before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from feduhb.core.types import ClientId, Method, Work
from feduhb.data.federation import Federation
from feduhb.methods.binding import get_leavers
from feduhb.runs.folder import MACHINERY, Round, measure_pace
from feduhb.runs.loop import Participants
from feduhb.runs.scores import format_number
from feduhb.stopping import Never, StopRule

if TYPE_CHECKING:
    from feduhb.runs.rollback import Restart
    from feduhb.runs.run import Run


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run is expected to cost, in the words of its result.json.

    Counts are those of a run that takes all of its rounds, and in which every client that is asked answers.
    """

    rounds: int  # that the run does itself: a rollback inherits the others from the training
    client_rounds: int  # without those of leavers
    client_epochs: int
    bytes_down: int
    bytes_up: int
    client_seconds: float | None  # None: the records of the run before do not tell; the notes say why
    server_seconds: float | None
    evaluate_seconds: float | None
    may_end_sooner: bool  # by its stop rule: no count will be exceeded
    may_ask_more: bool  # further clients, by numbers that are not known yet: their work may be exceeded
    notes: tuple[str, ...] = ()  # where the seconds come from, and what limits the numbers

    @property
    def seconds(self) -> float | None:
        """The seconds of clients and server, without evaluation; None if they are not known."""
        return None if self.client_seconds is None else self.client_seconds + (self.server_seconds or 0.0)

    def __str__(self) -> str:
        """Return one line, in the words of a report's columns."""
        rounds = f"{'at most ' * self.may_end_sooner}{self.rounds} round{'s' * (self.rounds != 1)}"
        is_least = self.may_ask_more and not self.may_end_sooner
        least, megabytes = "at least " * is_least, (self.bytes_down + self.bytes_up) / 1e6
        parts = [
            rounds,
            f"{least}{self.client_epochs:,} client epochs",
            f"{least}{format_number(megabytes)} MB down + up",
        ]
        parts += [] if self.seconds is None else [f"{least}{format_number(self.seconds)} seconds"]
        return f"expected: {', '.join(parts)}; {'; '.join(self.notes)}"

    def as_json(self) -> dict[str, Any]:
        """Return the numbers and notes, for `json.dumps`."""
        return {**asdict(self), "seconds": self.seconds}


def expect_cost(
    run: Run,
    remaining: Federation,
    method: Method[Any],
    first: Work | None,
    *,
    clients: Participants,
    scheduled: int,
    restart: Restart | None,
    stop: StopRule,
    size: int,
    machine: Mapping[str, Any],
    keeps_history: bool = False,
) -> Expected:
    """Return what a run on the remaining federation is expected to cost.

    Args:
        run: the run before, which is to forget.
        method: with its history bound if it replays one.
        first: the work of the first round; None if the method replays a history.
        scheduled: the rounds of the run, with those that a rollback inherits.
        restart: where a rollback continues a training; None starts from the fresh model.
        size: the bytes of a model, which clients are sent.
        machine: the engine of the new run, as its result.json will record it.
        keeps_history: whether the new run writes a history.
    """
    sizes, rounds = _count_examples(remaining), _list_rounds(restart, scheduled)
    leaving = {client: 1 if remaining.is_remote else len(e) for client, e in remaining.leaving.items()}
    asked, own, epochs, amount, may_ask_more = 0, 0, 0, 0.0, False
    for t, seen in zip(rounds, method.foresee(rounds, first), strict=True):
        here = clients(t) if callable(clients) else clients
        everyone = get_leavers(method) if seen.leavers else here
        chosen = everyone if seen.clients is None else seen.clients
        passes = seen.epochs or 1  # a full-batch gradient is one pass over the data
        asked += len(chosen)
        own += 0 if seen.leavers else len(chosen)
        epochs += passes * len(chosen)
        amount += passes * sum((leaving if seen.leavers else sizes)[client] for client in chosen)
        may_ask_more |= seen.more
    payload = size * asked
    seconds, notes = _expect_seconds(run, method, amount, len(rounds), machine, keeps_history)
    return Expected(
        rounds=len(rounds),
        client_rounds=own,
        client_epochs=epochs,
        bytes_down=payload,
        bytes_up=payload,
        client_seconds=seconds.get("client_seconds"),
        server_seconds=seconds.get("server_seconds"),
        evaluate_seconds=seconds.get("evaluate_seconds"),
        may_end_sooner=len(rounds) > 1 and not isinstance(stop, Never),
        may_ask_more=may_ask_more,
        notes=(*notes, *_list_limits(run, method, stop, may_ask_more)),
    )


def _list_rounds(restart: Restart | None, rounds: int) -> range:
    """Return the rounds that a run does itself: all that are scheduled, or those that a rollback repeats."""
    if restart is None:
        return range(rounds)
    is_over = bool(restart.records) and restart.records[-1].stopped is not None
    return range(rounds if is_over else restart.round, rounds)


def _count_examples(federation: Federation) -> dict[ClientId, int]:
    """Return the number of each client's examples; 1 for each if only the clients know it."""
    return {client: 1 if federation.is_remote else len(e) for client, e in federation.clients.items()}


def _expect_seconds(
    run: Run, method: Method[Any], amount: float, rounds: int, machine: Mapping[str, Any], keeps_history: bool
) -> tuple[dict[str, float], list[str]]:
    """Return the expected seconds by their name in result.json, and what to say about them.

    Clients take time in proportion to their epochs and examples (``amount``), server and evaluation by the round. There
    are no seconds if the records do not tell them, or tell them of another engine.
    """
    name = "the run before" if run.folder is None else str(run.folder)
    if any(run.machine.get(key) != machine.get(key) for key in MACHINERY):
        made, other = (describe_machine(one) for one in (run.machine, machine))
        return {}, [f"seconds are not known: {name} was trained by {made}, this run will be by {other}"]
    sizes, records = _count_examples(run.federation), run.rounds[run.restart_round :]
    amounts = [_count_amount(record, sizes) for record in records]
    pace = measure_pace(amounts, [record.client_seconds for record in records])
    if pace is None:
        return {}, [f"seconds are not known: {name} recorded none"]
    wrote = ", which also wrote a history" if run.settings.keep_history and not keeps_history else ""
    found, notes = {"client_seconds": pace.expect(amount)}, [f"at the pace of {name}{wrote}"]
    if others := [task.verb for task in method.tasks if task not in run.method.tasks]:
        notes.append(f"{method.name} asks clients to {others[0]}, which may take longer")
    replays = [one.name for one in (run.method, method) if one.needs_history]
    if replays:
        notes.append(f"without the server's time, because {replays[-1]} replays a history")
    for key in ("evaluate_seconds",) if replays else ("server_seconds", "evaluate_seconds"):
        by_round = measure_pace([1] * len(records), [getattr(record, key) for record in records])
        found[key] = 0.0 if by_round is None else by_round.expect(rounds)
    return found, notes


def _count_amount(record: Round, sizes: Mapping[ClientId, int]) -> float:
    """Return how often examples were trained on in a round."""
    passes = record.client_epochs / len(record.answered) if record.answered else 0.0
    return passes * sum(sizes.get(client, 0) for client in record.answered)


def _list_limits(run: Run, method: Method[Any], stop: StopRule, may_ask_more: bool) -> Iterator[str]:
    """Yield why counts may be exceeded, and what the stop rule did in the run before if it was the same."""
    if may_ask_more:
        yield "more if estimates are abnormal"
    if (
        not isinstance(stop, Never)
        and (run.method.name, run.stop) == (method.name, stop)
        and run.rounds[-1:]
        and run.rounds[-1].stopped is not None
    ):
        yield f"the same stop rule ended that run after {len(run.rounds)} rounds"


def describe_machine(about: Mapping[str, Any]) -> str:
    """Describe an engine by what its seconds depend on."""
    if not about:
        return "an engine that is not recorded"
    threads = about.get("threads")
    count = "" if threads is None else f", {threads} thread{'s' * (threads != 1)}"
    return f"{about.get('name')} ({about.get('device')}, {about.get('precision')}{count})"
