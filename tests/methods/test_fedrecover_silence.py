"""FedRecover goes on where those whose estimate is abnormal stay silent, and only there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch

from feduhb.core.types import ClientId, Updates, Work
from feduhb.errors import AnswerError
from feduhb.methods import FedRecover
from feduhb.methods.fedrecover import Recovery
from feduhb.runs.loop import run
from methods.recovering import CLIENTS, REMAINING, START, made
from runs.remembering import remember
from toys import Quadratics, quadratics


@dataclass
class Gone(Quadratics):
    """A federation of which some never answer."""

    away: tuple[ClientId, ...] = ()

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        self.asked.append((round, tuple(clients)))
        here = [client for client in clients if client not in self.away]
        for client in here:
            yield Updates((client,), self.answer(client, work)[None], torch.tensor([self.examples[client]]))


def without(*away: ClientId) -> Gone:
    toy = quadratics()
    return Gone(toy.curvature, toy.centre, toy.examples, away=away)


def recovering(cast: Sequence[Sequence[ClientId]] = (CLIENTS,) * 8, **changes: float) -> FedRecover:
    """A recovery of eight rounds, of which the last five are estimated."""
    history = remember(quadratics(), lambda t: cast[t], START, rounds=len(cast))
    return made(history, **changes)


def carried_out(method: FedRecover, engine: Gone) -> list[tuple[Recovery, tuple[ClientId, ...]]]:
    rounds = run(method, engine, REMAINING, method.init(START), rounds=method.rounds or 0)
    return [(state, record.answered) for state, record in rounds]


def test_a_client_that_is_gone_for_good_holds_nobody_up():
    """It has no pairs, so that every estimated round asks it, and it alone; the others' estimates are averaged without it."""
    method, engine = recovering(), without("c")
    found = carried_out(method, engine)
    assert engine.asked == [*((t, REMAINING) for t in range(3)), *((t, ("c",)) for t in range(3, 8))]
    assert [answered for _, answered in found] == [("a", "d")] * 3 + [()] * 5
    alone = FedRecover(3, 0, 0, 2, 0.0, 1, method.history, ("a", "d"))
    others = run(alone, without(), ("a", "d"), alone.init(START), rounds=8)
    for (state, _), (wanted, _) in zip(found, others, strict=True):
        torch.testing.assert_close(state.params, wanted.params, rtol=1e-10, atol=1e-12)


def test_a_round_that_only_they_were_there_in_leaves_the_model():
    cast = [CLIENTS, CLIENTS, CLIENTS, ("b", "c"), CLIENTS]
    found = carried_out(recovering(cast), without("c"))
    assert torch.equal(found[3][0].params, found[2][0].params)
    assert not torch.equal(found[4][0].params, found[3][0].params)


def test_an_exact_round_without_any_answer_ends_the_run():
    with pytest.raises(AnswerError, match="none of the 3 clients asked in round 0 answered"):
        carried_out(recovering(), without(*REMAINING))


@pytest.mark.parametrize(("abnormal", "needed"), [(1, False), (2, False), (3, True)])
def test_somebody_must_answer_where_everybody_is_abnormal(abnormal: int, needed: bool):
    method = recovering()
    state = carried_out(method, without())[2][0]
    held = state.held.clone()
    held[:abnormal] = 0
    work = method.ask(state._replace(held=held))
    assert work is not None
    assert work.clients == REMAINING[:abnormal]
    assert work.needed == needed
