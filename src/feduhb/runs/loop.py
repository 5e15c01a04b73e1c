"""The loop over rounds: a generator in which a method asks and an engine answers, and observers around it.

for state, record in shown(saved(evaluated(run(...), score), folder), tell): ...
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from feduhb.core.types import ClientId, Engine, Method, State, Updates
from feduhb.errors import AnswerError, DivergedError
from feduhb.methods.binding import list_asked
from feduhb.runs.folder import Round
from feduhb.runs.statistics import WithStatistics
from feduhb.stopping import Series, StopRule, decide, never

S = TypeVar("S", bound=State)
Rounds = Iterable[tuple[S, Round]]
OnBad = Literal["raise", "drop"]
Score = Callable[[int, Tensor], Mapping[str, float]]  # a function of the rounds done and the model [P]
# A function of the round, the model [P] that was sent and the clients that answered.
HeldOut = Callable[[int, Tensor, Sequence[ClientId]], Mapping[str, float]]
CHUNK = 1 << 18  # numbers that are converted to double precision at once
Participants = Sequence[ClientId] | Callable[[int], Sequence[ClientId]]


def run(
    method: Method[S],
    engine: Engine,
    clients: Participants,
    state: S,
    *,
    rounds: int,
    stop: StopRule = never,
    first: int = 0,
    moved: Sequence[float] = (),
    on_bad: OnBad = "raise",
    max_norm: float = math.inf,
    statistics: int = 0,
    held_out: HeldOut | None = None,
    start: Tensor | None = None,
    leavers: Sequence[ClientId] = (),
) -> Iterator[tuple[S, Round]]:
    """Run rounds ``first`` to ``rounds - 1`` and yield each new state with its record.

    Args:
        clients: the clients that take part, or a function that samples them for a round. They are asked in the order
            of their ids.
        state: the state to start from: `Method.init` of the fresh parameters, or a checkpoint.
        rounds: the total number of rounds, with those before ``first``.
        stop: the stop rule, applied after each round to what the rounds so far recorded.
        first: the round at which a resumed run continues.
        moved: the movements of the rounds before ``first``, or their `Series`.
        on_bad: "raise" raises AnswerError for an answer that is not finite, of the wrong shape, or longer than
            ``max_norm``; "drop" leaves that client out of the round.
        statistics: how many numbers at the end of the vectors are statistics, which do not count as movement.
        held_out: scores the model that was sent on held-out data of the clients that answered; None records nothing.
        start: the fresh model [P], to record the distance to it; None does not.
        leavers: the clients that a method may ask to work on the data that they asked to forget, if it declares so.
    """
    carried = carry_statistics(method, statistics)
    series = moved if isinstance(moved, Series) else Series(tuple(moved))
    if len(series) and decide(stop, series) is not None:
        return
    for t in range(first, rounds):
        started = time.perf_counter()
        work = carried.ask(state)
        clock, answered = _Clock(), list[ClientId]()
        asked, payload, passes = (), 0, 0
        held: Mapping[str, float] = {}
        scoring = 0.0
        if work is None:
            new = carried.tell(state, ())
        else:
            asked = list_asked(method, work, clients(t) if callable(clients) else clients, leavers)
            payload = work.params.numel() * work.params.element_size()
            passes = work.epochs or 1  # a full-batch gradient is one pass over the data
            with contextlib.closing(clock.watch(engine.train(work, asked, t))) as blocks:
                good = check_answers(blocks, asked, work.params, t, answered, on_bad, max_norm)
                new = carried.tell(state, _require_one(good, asked, t) if work.needed else good)
            if held_out is not None and not work.leavers:
                began = time.perf_counter()
                held = held_out(t, work.params, sorted(answered))
                scoring = time.perf_counter() - began
        size = new.params.numel() - statistics
        movement = measure_distance(new.params[:size], state.params[:size])
        if not math.isfinite(movement):
            raise DivergedError(f"the model is not finite after round {t}; lower lr, step_size or momentum")
        distance = None if start is None else measure_distance(new.params[:size], start[:size])
        series = series.add(movement, distance, held)
        state = new
        record = Round(
            round=t,
            asked=asked,
            answered=tuple(answered),
            moved=movement,
            threshold=stop.threshold([*series]),
            stopped=decide(stop, series),
            client_epochs=passes * len(answered),
            bytes_down=payload * len(asked),
            bytes_up=payload * len(answered),
            client_seconds=clock.seconds,
            server_seconds=time.perf_counter() - started - clock.seconds - scoring,
            evaluate_seconds=scoring,
            distance=distance,
            held_out=held,
            leavers=asked if work is not None and work.leavers else (),
        )
        yield state, record
        if record.stopped is not None:
            return


def measure_distance(new: Tensor, old: Tensor) -> float:
    """Return ‖new - old‖, computed in double precision."""
    step = torch.empty(new.shape, dtype=torch.float64, device=new.device)
    vectors = (step, new, old.to(new.device))
    for part, a, b in zip(*(vector.split(CHUNK) for vector in vectors), strict=True):
        torch.sub(a.double(), b.double(), out=part)  # of whole vectors, torch would convert a copy of each
    return float(torch.linalg.vector_norm(step))  # of the whole vector: the sum of parts has other bits


def carry_statistics(method: Method[S], count: int) -> Method[S] | WithStatistics:
    """Return a method on vectors whose last ``count`` numbers are statistics; the method itself if there are none."""
    return WithStatistics(method, count) if count else method


def evaluated(rounds: Rounds[S], score: Score) -> Iterator[tuple[S, Round]]:
    """Add the scores of every round to its record, with the seconds that they took."""
    for state, record in rounds:
        began = time.perf_counter()
        scores = score(record.round + 1, state.params)
        seconds = record.evaluate_seconds + time.perf_counter() - began
        yield state, replace(record, scores=scores, evaluate_seconds=seconds)


def shown(rounds: Rounds[S], tell: Callable[[Round], object]) -> Iterator[tuple[S, Round]]:
    """Call ``tell`` with the record of every round."""
    for state, record in rounds:
        tell(record)
        yield state, record


def _require_one(blocks: Iterator[Updates], asked: Sequence[ClientId], round: int) -> Iterator[Updates]:
    """Return the blocks; raise AnswerError if there are none, before the method's ``tell`` is called."""
    first = next(blocks, None)
    if first is None:
        raise AnswerError(
            f"none of the {len(asked)} clients asked in round {round} answered; check that they are running and their data is valid"
        )
    return _put_back(first, blocks)


def _put_back(first: Updates, blocks: Iterator[Updates]) -> Iterator[Updates]:
    """Yield a block and then the others. `itertools.chain` would keep the first in memory until the last."""
    yield first
    del first
    yield from blocks


def check_answers(
    blocks: Iterable[Updates],
    asked: Sequence[ClientId],
    params: Tensor,
    round: int,
    answered: list[ClientId],
    on_bad: OnBad,
    max_norm: float,
) -> Iterator[Updates]:
    """Yield valid answers and add their clients to ``answered``; raise AnswerError for invalid ones, or drop them."""
    waiting = set(asked)
    for block in blocks:
        for client in block.clients:
            if client not in waiting:
                raise AnswerError(f"{client} answered round {round} twice or unasked; fix the engine")
            waiting.remove(client)
        if not block.clients:
            continue
        found = find_faults(block, params, max_norm)
        bad = [i for i, fault in enumerate(found) if fault]
        if bad and on_bad == "raise":
            who = "the sum of all clients" if block.summed else f"client {block.clients[bad[0]]}"
            kind = AnswerError if block.values[bad[0]].isfinite().all() else DivergedError
            raise kind(
                f"{who} answered round {round} with {found[bad[0]]}; that round was discarded. "
                "Look at that client's data, or lower lr, step_size or momentum"
            )
        if len(bad) < len(found):
            good = block.select([i for i, fault in enumerate(found) if not fault]) if bad else block
            answered.extend(good.clients)
            yield good
            del good
        del block  # its memory is free while the clients work on the next one


def find_faults(block: Updates, params: Tensor, max_norm: float) -> list[str | None]:
    """Return what is wrong with each row; None if nothing is."""
    if block.values.shape[1:] != params.shape:
        return [f"{block.values.shape[1]} numbers instead of {params.numel()}"] * len(block.values)
    rows = zip(block.values, block.weights.tolist(), strict=True)
    found = [_describe_fault(row, weight, max_norm) for row, weight in rows]
    if block.mean_square is not None and not 0 <= block.mean_square < math.inf:
        return [fault or f"a mean squared length of {block.mean_square:g}" for fault in found]
    return found


def _describe_fault(row: Tensor, weight: float, max_norm: float) -> str | None:
    low, high = map(float, torch.aminmax(row))  # isfinite would take the memory of the row
    if not (math.isfinite(low) and math.isfinite(high)):
        return "NaN" if torch.isnan(row).any() else "infinity"
    if not 0 < weight < math.inf:
        return f"a weight of {weight:g} examples"
    if math.isfinite(max_norm) and (norm := float(torch.linalg.vector_norm(row))) > max_norm:
        return f"an update of norm {norm:.3g}, above the limit {max_norm:g}"
    return None


class _Clock:
    """A clock that measures the time spent waiting for clients."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, blocks: Iterator[Updates]) -> Generator[Updates, None, None]:
        try:
            while True:
                began = time.perf_counter()
                block = next(blocks, None)
                self.seconds += time.perf_counter() - began
                if block is None:
                    return
                yield block
                del block
        finally:
            if isinstance(blocks, Generator):
                blocks.close()
