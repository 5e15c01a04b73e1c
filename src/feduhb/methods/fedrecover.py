"""FedRecover: recover a model mostly from estimates of what the remaining clients would have answered."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.checks import check_whole, is_finite
from feduhb.core.types import ClientId, History, Method, Updates, Work
from feduhb.errors import ConfigError
from feduhb.methods.lbfgs import blocks, coefficients, product
from feduhb.methods.replay import MISSING, refuse_sums

TINY = 1e-12  # a pair with s'y below this share of |s| |y| says nothing of the curvature


class Recovery(NamedTuple):
    """The recovered model, where it stands, and each client's curvature pairs."""

    params: Tensor  # [P]
    step: int
    limit: Tensor  # [] entries of an estimate beyond this size are abnormal
    s: Tensor  # [C, m, P] recovered minus original model, oldest first
    y: Tensor  # [C, m, P] recovered minus original update
    held: Tensor  # [C] pairs a client has


@dataclass(frozen=True, slots=True)
class FedRecover(Method[Recovery]):
    """Approximate unlearning by estimating updates.

        û_c[t] = u_c[t] + H_c (ŵ[t] - w[t]),    ŵ[t+1] = ŵ[t] - Σ (n_c / N) û_c[t],    ŵ[0] fresh

    H_c v is the compact L-BFGS product of client c's last ``buffer`` pairs (see `feduhb.methods.lbfgs`); u_c and w are the
    stored ones. Clients really train in the first ``warmup`` rounds, every ``correction`` rounds after, in the last ``final``
    rounds, and wherever an estimate is abnormal; in all other rounds nobody is asked.

    Args:
        warmup: T_w, more than the buffer.
        correction: T_c; 0 for none, as in FedUHB's comparison.
        final: T_f.
        buffer: pairs kept a client.
        abnormal: the share of a round's original entries that may exceed the limit τ, which is the largest such
            size of any round over the remaining clients; 0 switches abnormality fixing off.
        epochs: local passes of a round.
        history: of the run to unlearn from; `feduhb.unlearn` fills it in.
        clients: those who remain, likewise.

    Differs from the paper: an abnormal client that stays silent is left out of its round; only where all who remain are abnormal must
    somebody answer. One whose system is singular, or that has no pairs yet, is asked.
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
    needs_history: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("buffer", "warmup"):
            check_whole(name, getattr(self, name))
        for name in ("correction", "final", "epochs"):
            check_whole(name, getattr(self, name), least=0)
        if self.warmup <= self.buffer:
            raise ConfigError(
                f"warmup is {self.warmup}; give more rounds than the buffer of {self.buffer} pairs needs"
            )
        if not (is_finite(self.abnormal) and 0 <= self.abnormal < 1):
            raise ConfigError(
                f"abnormal is {self.abnormal!r}; give a share of at least 0 and below 1, such as 1e-6"
            )

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Return "each": every client's curvature is learned."""
        return "each"

    @property
    def rounds(self) -> int | None:
        """The number of rounds in the history."""
        return len(self.history.rounds)

    def init(self, params: Tensor) -> Recovery:
        """Return the state at a fresh model, with no pairs and the limit that the history sets."""
        empty = params.new_zeros(len(self.clients), self.buffer, params.numel())
        none = torch.zeros(len(self.clients), dtype=torch.int64)
        return Recovery(params, 0, torch.tensor(self._limit(), dtype=torch.float64), empty, empty, none)

    def ask(self, state: Recovery) -> Work | None:
        """Return work for everyone in an exact round; else for those whose estimate is abnormal, needed only if all are."""
        if self._is_exact(state.step):
            return Work(state.params, self.epochs)
        strange = self._abnormal(state)
        if not strange:
            return None
        return Work(state.params, self.epochs, strange, needed=len(strange) == len(self.clients))

    def tell(self, state: Recovery, answers: Iterable[Updates]) -> Recovery:
        """Return the state after answers and estimates are averaged; an exact round adds to the pairs."""
        if self._is_exact(state.step):
            return self._told_exactly(state, answers)
        all_of_them = itertools.chain(self._sound(state), refuse_sums(answers, self.name))
        first = next(all_of_them, None)
        if first is None:  # nobody who remains was there in this round, or those who were are silent now
            return state._replace(step=state.step + 1)
        mean = weighted_mean(itertools.chain([first], all_of_them))
        return state._replace(params=state.params - mean, step=state.step + 1)

    def _is_exact(self, step: int) -> bool:
        late = step - self.warmup + 1
        corrected = self.correction > 0 and late > 0 and late % self.correction == 0
        return late <= 0 or corrected or step >= len(self.history.rounds) - self.final

    def _told_exactly(self, state: Recovery, answers: Iterable[Updates]) -> Recovery:
        t = self.history.rounds[state.step]
        s = state.params - self.history.params(t)
        pairs = state._replace(s=state.s.clone(), y=state.y.clone(), held=state.held.clone())

        def learned() -> Iterator[Updates]:
            for block in refuse_sums(answers, self.name):
                self._learn(pairs, block, s, t)
                yield block

        mean = weighted_mean(learned())
        return pairs._replace(params=state.params - mean, step=state.step + 1)

    def _learn(self, pairs: Recovery, block: Updates, s: Tensor, round: int) -> None:
        """Add a pair for each client of a block that answered in the same round of the original training."""
        now = dict(zip(block.clients, block.values, strict=True))
        for stored in self.history.read(round, block.clients):
            for client, before in zip(stored.clients, stored.values, strict=True):
                if client in self.clients:
                    _add_pair(pairs, self.clients.index(client), s, now[client] - before)

    def _estimates(self, state: Recovery) -> Iterator[Updates]:
        """Stream û_c of the remaining clients that were there in this round, in the stored blocks."""
        t = self.history.rounds[state.step]
        v = state.params - self.history.params(t)
        for stored in self.history.read(t, self.clients):
            rows = torch.tensor([self.clients.index(client) for client in stored.clients])
            s, y = state.s[rows], state.y[rows]
            weights = coefficients(s, y, state.held[rows], v)
            values = torch.empty_like(stored.values)
            for part in blocks(len(v)):
                values[:, part] = stored.values[:, part].double() + product(s, y, v, weights, part)
            yield Updates(stored.clients, values, stored.weights)

    def _abnormal(self, state: Recovery) -> tuple[ClientId, ...]:
        """Name the clients whose estimate is not finite or has an entry beyond the limit."""
        judged = ((block, self._is_sound(state, block)) for block in self._estimates(state))
        return tuple(
            c for block, sound in judged for c, ok in zip(block.clients, sound, strict=True) if not ok
        )

    def _sound(self, state: Recovery) -> Iterator[Updates]:
        """Stream the estimates that are not abnormal."""
        for block in self._estimates(state):
            rows = [i for i, sound in enumerate(self._is_sound(state, block)) if sound]
            if rows:
                chosen = torch.tensor(rows)
                yield Updates(
                    tuple(block.clients[i] for i in rows), block.values[chosen], block.weights[chosen]
                )

    def _is_sound(self, state: Recovery, block: Updates) -> list[bool]:
        largest = block.values.abs().amax(dim=1)
        return (largest.isfinite() & (largest <= state.limit)).tolist()

    def _limit(self) -> float:
        """τ: the largest, over rounds, of the size that a share ``abnormal`` of the round's original entries exceeds."""
        if self.abnormal == 0:
            return math.inf
        return max((self._exceeded(t) for t in self.history.rounds), default=math.inf)

    def _exceeded(self, round: int) -> float:
        largest, seen = torch.zeros(0), 0
        for block in self.history.read(round, self.clients):
            sizes = block.values.abs().flatten()
            seen += len(sizes)
            # of a block at most as many can matter as a share of the whole round allows, and one more
            most = int(self.abnormal * (len(self.clients) * block.values.shape[1])) + 1
            largest = torch.cat([largest.to(sizes), sizes.topk(min(most, len(sizes))).values])
        rank = int(self.abnormal * seen)
        return float(largest.sort(descending=True).values[rank]) if seen else 0.0


def _add_pair(pairs: Recovery, row: int, s: Tensor, y: Tensor) -> None:
    """Append (s, y) to one client's pairs, the oldest making room; a pair without curvature is skipped."""
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
