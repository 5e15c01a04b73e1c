"""FedRecover: recover a model mostly from estimates of the remaining clients' updates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.checks import check_whole, is_finite
from feduhb.core.types import ClientId, Foreseen, History, Updates, Work
from feduhb.errors import ConfigError
from feduhb.methods.lbfgs import cut_blocks, multiply, solve_coefficients
from feduhb.methods.replay import MISSING, ReplayMethod, refuse_sums

TINY = 1e-12  # a pair with s'y below this share of ‖s‖ ‖y‖ has no usable curvature


class Recovery(NamedTuple):
    """The recovered model, the number of rounds done, and each client's curvature pairs (s, y)."""

    params: Tensor  # [P]
    step: int
    limit: Tensor  # [] τ; an estimate with a larger entry is abnormal
    s: Tensor  # [C, m, P] recovered minus original model, oldest first
    y: Tensor  # [C, m, P] recovered minus original update
    held: Tensor  # [C] number of pairs


@dataclass(frozen=True, slots=True)
class FedRecover(ReplayMethod[Recovery]):
    """Approximate unlearning by estimating updates.

        û_c[t] = u_c[t] + H_c (ŵ[t] - w[t]),    ŵ[t+1] = ŵ[t] - Σ (n_c / N) û_c[t],    ŵ[0] fresh

    u_c and w are stored; H_c v is the compact L-BFGS product of client c's last ``buffer`` pairs (`feduhb.methods.lbfgs`).
    Clients train in the first ``warmup`` rounds, then in every ``correction``-th round, in the last ``final`` rounds, and
    if their estimate is abnormal. In all other rounds no client is asked.

    Args:
        warmup: T_w, more than the buffer.
        correction: T_c; 0 for none, as in FedUHB's comparison.
        final: T_f.
        buffer: the number of pairs kept for each client.
        abnormal: the share of a round's stored entries that may exceed τ in size. τ is the largest value that this gives
            in any round, over the remaining clients. 0 switches abnormality fixing off.
        epochs: local passes in a round.
        history: the history of the run to unlearn from; `feduhb.unlearn` sets it.
        clients: the remaining clients; `feduhb.unlearn` sets them.

    Differs from the paper: an abnormal client that does not answer is left out of its round, unless all remaining clients
    are abnormal and none answers, which is an error. A client without pairs or with a singular system is asked.
    Reference: Cao et al., "FedRecover: Recovering from Poisoning Attacks in Federated Learning using Historical Information", 2023.
    """

    warmup: int = 6
    correction: int = 5
    final: int = 4
    buffer: int = 2
    abnormal: float = 1e-6
    epochs: int = 5
    history: History = MISSING
    clients: tuple[ClientId, ...] = ()

    name: ClassVar[str] = "fedrecover"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("buffer", "warmup"):
            check_whole(name, getattr(self, name))
        for name in ("correction", "final", "epochs"):
            check_whole(name, getattr(self, name), least=0)
        if self.warmup <= self.buffer:
            raise ConfigError(f"warmup is {self.warmup}; give more than the buffer, {self.buffer}")
        if not (is_finite(self.abnormal) and 0 <= self.abnormal < 1):
            raise ConfigError(f"abnormal is {self.abnormal!r}; give at least 0 and below 1, such as 1e-6")

    @property
    def rounds(self) -> int | None:
        """The number of rounds in the history."""
        return len(self.history.rounds)

    def init(self, params: Tensor) -> Recovery:
        """Return the initial state at a fresh model, without pairs."""
        empty = params.new_zeros(len(self.clients), self.buffer, params.numel())
        none = torch.zeros(len(self.clients), dtype=torch.int64)
        return Recovery(params, 0, torch.tensor(self._find_limit(), dtype=torch.float64), empty, empty, none)

    def ask(self, state: Recovery) -> Work | None:
        """Return training for all clients in an exact round, else for the clients with abnormal estimates."""
        if self._is_exact(state.step):
            return Work(state.params, self.epochs)
        abnormal = tuple(
            client
            for block in self._estimate(state)
            for client, is_sound in zip(block.clients, self._judge(state, block), strict=True)
            if not is_sound
        )
        if not abnormal:
            return None
        return Work(state.params, self.epochs, abnormal, needed=len(abnormal) == len(self.clients))

    def foresee(self, rounds: Iterable[int], first: Work | None) -> Iterator[Foreseen]:  # noqa: ARG002
        """Yield the work of exact rounds; in the others, which clients have abnormal estimates is not known yet."""
        for step in rounds:
            yield Foreseen(self.epochs, None) if self._is_exact(step) else Foreseen(more=True)

    def tell(self, state: Recovery, answers: Iterable[Updates]) -> Recovery:
        """Return the state after the mean of answers and estimates; an exact round adds to the pairs."""
        if self._is_exact(state.step):
            return self._tell_exactly(state, answers)
        updates = itertools.chain(self._list_sound_estimates(state), refuse_sums(answers, self.name))
        first = next(updates, None)
        if first is None:  # no remaining client has a stored update in this round or answered
            return state._replace(step=state.step + 1)
        mean = weighted_mean(itertools.chain([first], updates))
        return state._replace(params=state.params - mean, step=state.step + 1)

    def _is_exact(self, step: int) -> bool:
        late = step - self.warmup + 1
        corrected = self.correction > 0 and late > 0 and late % self.correction == 0
        return late <= 0 or corrected or step >= len(self.history.rounds) - self.final

    def _tell_exactly(self, state: Recovery, answers: Iterable[Updates]) -> Recovery:
        t = self.history.rounds[state.step]
        s = state.params - self.history.params(t)
        pairs = state._replace(s=state.s.clone(), y=state.y.clone(), held=state.held.clone())

        def add_pairs() -> Iterator[Updates]:
            for block in refuse_sums(answers, self.name):
                now = dict(zip(block.clients, block.values, strict=True))
                for stored in self.history.read(t, block.clients):
                    for client, before in zip(stored.clients, stored.values, strict=True):
                        if client in self.clients:
                            _add_pair(pairs, self.clients.index(client), s, now[client] - before)
                yield block

        mean = weighted_mean(add_pairs())
        return pairs._replace(params=state.params - mean, step=state.step + 1)

    def _estimate(self, state: Recovery) -> Iterator[Updates]:
        """Yield û_c of the remaining clients that have a stored update in this round, in the stored blocks."""
        t = self.history.rounds[state.step]
        v = state.params - self.history.params(t)
        for stored in self.history.read(t, self.clients):
            rows = torch.tensor([self.clients.index(client) for client in stored.clients])
            s, y = state.s[rows], state.y[rows]
            weights = solve_coefficients(s, y, state.held[rows], v)
            values = torch.empty_like(stored.values)
            for part in cut_blocks(len(v)):
                values[:, part] = stored.values[:, part].double() + multiply(s, y, v, weights, part)
            yield Updates(stored.clients, values, stored.weights)

    def _list_sound_estimates(self, state: Recovery) -> Iterator[Updates]:
        """Yield the estimates that are not abnormal."""
        for block in self._estimate(state):
            rows = [i for i, is_sound in enumerate(self._judge(state, block)) if is_sound]
            if rows:
                yield block.select(rows)

    def _judge(self, state: Recovery, block: Updates) -> list[bool]:
        """Return for each estimate whether it is finite and has no entry beyond the limit."""
        largest = block.values.abs().amax(dim=1)
        return (largest.isfinite() & (largest <= state.limit)).tolist()

    def _find_limit(self) -> float:
        """Return τ: the largest, over all rounds, of the size that a share ``abnormal`` of the round's entries exceeds."""
        if self.abnormal == 0:
            return math.inf
        return max((self._find_exceeded_size(t) for t in self.history.rounds), default=math.inf)

    def _find_exceeded_size(self, round: int) -> float:
        largest, seen = torch.zeros(0), 0
        for block in self.history.read(round, self.clients):
            sizes = block.values.abs().flatten()
            seen += len(sizes)
            # no more entries of a block can matter than the share of the whole round, and one more
            most = int(self.abnormal * (len(self.clients) * block.values.shape[1])) + 1
            largest = torch.cat([largest.to(sizes), sizes.topk(min(most, len(sizes))).values])
        rank = int(self.abnormal * seen)
        return float(largest.sort(descending=True).values[rank]) if seen else 0.0


def _add_pair(pairs: Recovery, row: int, s: Tensor, y: Tensor) -> None:
    """Append (s, y) to a client's pairs and drop the oldest if there are too many; skip a pair without curvature."""
    inner = float(s.double() @ y.double())
    if inner <= TINY * float(s.double().norm() * y.double().norm()):
        return
    held = int(pairs.held[row])
    if held == pairs.s.shape[1]:
        for kept in (pairs.s, pairs.y):
            kept[row] = kept[row].roll(-1, dims=0)
        held -= 1
    pairs.s[row, held], pairs.y[row, held] = s, y
    pairs.held[row] = held + 1
