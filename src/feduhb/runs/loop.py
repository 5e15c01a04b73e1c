"""The one loop: a generator that lets a method ask and an engine answer, and observers around it.

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

from feduhb.core.types import ClientId, Engine, Method, State, Updates, Work
from feduhb.errors import AnswerError
from feduhb.runs.folder import Round
from feduhb.stopping import StopRule, never

S = TypeVar("S", bound=State)
Rounds = Iterable[tuple[S, Round]]
OnBad = Literal["raise", "drop"]
Score = Callable[[int, Tensor], Mapping[str, float]]  # of the rounds done and the model [P] after them
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
) -> Iterator[tuple[S, Round]]:
    """Run rounds ``first`` to ``rounds - 1`` and yield each new state with its record.

    Args:
        clients: the clients that take part, or a function of the round where they are sampled. Their order does
            not matter: clients are asked in the order of their ids.
        state: the state to start from: `Method.init` of the fresh parameters, or a checkpoint.
        rounds: the number of rounds in all, those before ``first`` included.
        stop: the rule that judges all movements so far after each round.
        first, moved: the round at which a resumed run continues, and its movements up to there.
        on_bad: what to do with an answer that is not finite, of the wrong shape, or longer than
            ``max_norm``: "raise" names the client and ends the run before anything is averaged in; "drop"
            leaves that client out of the round.
    """
    movements = list(moved)
    if movements and stop(movements) is not None:
        return
    for t in range(first, rounds):
        started = time.perf_counter()
        work = method.ask(state)
        asked = () if work is None else _asked(work, clients(t) if callable(clients) else clients)
        clock = _Clock()
        answered: list[ClientId] = []
        if work is None:
            new = method.tell(state, ())
        else:
            with contextlib.closing(clock.watch(engine.train(work, asked, t))) as blocks:
                good = _noted(
                    check_answers(blocks, asked, work.params, t, on_bad=on_bad, max_norm=max_norm), answered
                )
                new = method.tell(state, _at_least_one(good, asked, t) if work.needed else good)
        movement = float(torch.linalg.vector_norm(new.params.double() - state.params.double()))
        if not math.isfinite(movement):
            raise AnswerError(
                f"the model is no longer finite after round {t}: the steps are too large; lower lr, step_size or momentum"
            )
        movements.append(movement)
        payload = 0 if work is None else work.params.numel() * work.params.element_size()
        passes = 0 if work is None else work.epochs or 1  # a full-batch gradient is one pass over the data
        state = new
        record = Round(
            round=t,
            asked=asked,
            answered=tuple(answered),
            moved=movement,
            threshold=stop.threshold(movements),
            stopped=stop(movements),
            client_epochs=passes * len(answered),
            bytes_down=payload * len(asked),
            bytes_up=payload * len(answered),
            client_seconds=clock.seconds,
            server_seconds=time.perf_counter() - started - clock.seconds,
        )
        yield state, record
        if record.stopped is not None:
            return


def evaluated(rounds: Rounds[S], score: Score) -> Iterator[tuple[S, Round]]:
    """Add scores to the record of every round, timed on a clock of their own."""
    for state, record in rounds:
        began = time.perf_counter()
        scores = score(record.round + 1, state.params)
        yield state, replace(record, scores=scores, evaluate_seconds=time.perf_counter() - began)


def shown(rounds: Rounds[S], tell: Callable[[Round], object]) -> Iterator[tuple[S, Round]]:
    """Call ``tell`` with the record of every round."""
    for state, record in rounds:
        tell(record)
        yield state, record


def _asked(work: Work, taking_part: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Return the clients to ask, in order; raise AnswerError for any that take no part."""
    if work.clients is None:
        return tuple(sorted(set(taking_part)))
    if strangers := set(work.clients) - set(taking_part):
        raise AnswerError(
            f"the method asked {', '.join(sorted(strangers))}, who take no part; a method may ask only those who remain"
        )
    return tuple(sorted(set(work.clients)))


def _noted(blocks: Iterator[Updates], answered: list[ClientId]) -> Iterator[Updates]:
    for block in blocks:
        answered.extend(block.clients)
        yield block


def _at_least_one(blocks: Iterator[Updates], asked: Sequence[ClientId], round: int) -> Iterator[Updates]:
    """Raise before the method is told anything when clients were asked and none answered."""
    first = next(blocks, None)
    if first is None:
        raise AnswerError(
            f"none of the {len(asked)} clients asked in round {round} answered; check that they are up and their data is sound"
        )

    def stream() -> Iterator[Updates]:
        yield first
        yield from blocks

    return stream()


def check_answers(
    blocks: Iterable[Updates],
    asked: Sequence[ClientId],
    params: Tensor,
    round: int,
    *,
    on_bad: OnBad = "raise",
    max_norm: float = math.inf,
) -> Iterator[Updates]:
    """Yield sound answers; for any other name the client and raise AnswerError, or leave it out."""
    waiting = set(asked)
    for block in blocks:
        for client in block.clients:
            if client not in waiting:
                raise AnswerError(
                    f"{client} answered in round {round} without being asked, or twice; fix the engine"
                )
            waiting.remove(client)
        if not block.clients:
            continue
        found = find_faults(block, params, max_norm)
        if not any(found):
            yield block
            continue
        if on_bad == "raise":
            row = next(i for i, fault in enumerate(found) if fault)
            who = "the sum of all clients" if block.summed else f"client {block.clients[row]}"
            raise AnswerError(
                f"{who} answered round {round} with {found[row]}; nothing of that round was averaged in: "
                "the last good checkpoint is kept. Look at that client's data, or lower lr, step_size or momentum"
            )
        sound = [i for i, fault in enumerate(found) if not fault]
        if sound:
            rows = torch.tensor(sound)
            yield Updates(tuple(block.clients[i] for i in sound), block.values[rows], block.weights[rows])


def find_faults(
    block: Updates, params: Tensor, max_norm: float, max_weight: float = math.inf
) -> list[str | None]:
    """Return for each row what is wrong with it, or None."""
    if block.values.shape[1:] != params.shape:
        return [f"{block.values.shape[1]} numbers instead of {params.numel()}"] * len(block.values)
    return [
        _fault(row, weight, max_norm, max_weight)
        for row, weight in zip(block.values, block.weights.tolist(), strict=True)
    ]


def _fault(row: Tensor, weight: float, max_norm: float, max_weight: float) -> str | None:
    if not torch.isfinite(row).all():
        return "NaN" if torch.isnan(row).any() else "infinity"
    if not 0 < weight < math.inf:
        return f"a weight of {weight:g} examples"
    if weight > max_weight:
        return f"a weight of {weight:g} examples, above the limit {max_weight:g}"
    if math.isfinite(max_norm) and (norm := float(torch.linalg.vector_norm(row))) > max_norm:
        return f"an update of norm {norm:.3g}, above the limit {max_norm:g}"
    return None


class _Clock:
    """A clock that counts the seconds spent waiting for clients, apart from the server's own."""

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
        finally:
            if isinstance(blocks, Generator):
                blocks.close()
