"""The one loop of the house: a generator that lets a method ask and an engine answer."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

import torch

from feduhb.core.types import ClientId, Engine, Method, State, Updates, Work
from feduhb.errors import AnswerError
from feduhb.records import Round
from feduhb.run.answers import OnBad, checked
from feduhb.stopping import StopRule, never

S = TypeVar("S", bound=State)
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
    """Run rounds ``first`` to ``rounds - 1`` and give each new state with its record.

    Args:
        clients: who takes part, or a function of the round where they are sampled. Their order is of no
            matter: clients are asked in the order of their ids, so a federation listed otherwise gives the same bits.
        state: what to go on from; `Method.init` of the fresh parameters, or a checkpoint.
        rounds: the number of rounds in all, those before ``first`` included.
        stop: looks at all movements so far after each round.
        first, moved: where a resumed run stands, and its movements up to there.
        on_bad: what to do with an answer that is not finite, of the wrong shape, or longer than
            ``max_norm``: "raise" names the client and ends the run before anything is averaged in; "drop"
            leaves that client out of the round.
    """
    history = list(moved)
    if history and stop(history) is not None:
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
                    checked(blocks, asked, work.params, t, on_bad=on_bad, max_norm=max_norm), answered
                )
                new = method.tell(state, _at_least_one(good, asked, t) if work.needed else good)
        movement = float(torch.linalg.vector_norm(new.params.double() - state.params.double()))
        if not math.isfinite(movement):
            raise AnswerError(
                f"the model is no longer finite after round {t}: the steps are too large; lower lr, step_size or momentum"
            )
        history.append(movement)
        payload = 0 if work is None else work.params.numel() * work.params.element_size()
        passes = 0 if work is None else work.epochs or 1  # a full-batch gradient is one pass over the data
        state = new
        record = Round(
            round=t,
            asked=asked,
            answered=tuple(answered),
            moved=movement,
            threshold=stop.threshold(history),
            stopped=stop(history),
            client_epochs=passes * len(answered),
            bytes_down=payload * len(asked),
            bytes_up=payload * len(answered),
            client_seconds=clock.seconds,
            server_seconds=time.perf_counter() - started - clock.seconds,
        )
        yield state, record
        if record.stopped is not None:
            return


def _asked(work: Work, taking_part: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Resolve who is asked: never anyone outside those who take part."""
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


class _Clock:
    """Counts the seconds spent waiting for clients, apart from the server's own."""

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
