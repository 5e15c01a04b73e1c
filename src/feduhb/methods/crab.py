"""Crab: roll back to a model that the leavers had hardly changed, and replay selected rounds and clients from there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from feduhb.core.aggregate import weighted_mean
from feduhb.core.checks import check_decay, is_finite
from feduhb.core.types import ClientId, Foreseen, History, Updates, Work
from feduhb.errors import ConfigError
from feduhb.methods.replay import (
    MISSING,
    ReplayMethod,
    average_stored,
    calibrate,
    check_calibration,
    compute_residual,
    count_short_epochs,
)


class Rollback(NamedTuple):
    """The model, the number of selected rounds that have been replayed, and what was selected."""

    params: Tensor  # [P]
    step: int
    kept: Tensor  # [K] the rounds to replay
    chosen: Tensor  # [K, C] which remaining clients are replayed in each


class Selection(NamedTuple):
    """What a history is replayed from, and which parts of it."""

    start: int  # the round to whose model the run is rolled back
    rounds: tuple[int, ...]  # from there on
    clients: tuple[tuple[ClientId, ...], ...]  # the remaining clients that are replayed in each


@dataclass(frozen=True, slots=True)
class Crab(ReplayMethod[Rollback]):
    """Approximate unlearning by selected stored updates, from a stored model that the leavers had hardly changed.

        windows:   a window of rounds ends when the test loss has fallen by ``fall`` since the window before
        rounds:    of each window, the share ``rounds_kept`` with the largest KL(softmax(w[t]) ‖ softmax(w[t+1]))
        clients:   in each of these, the share ``clients_kept`` with the largest cos(u_c, A(all)); leavers are then left out
        rollback:  to the last of these rounds with S[t] <= ``tolerance`` S[T],    S[t] = Σ_{s<t} ‖A(all) - A(remaining)‖
        replay:    w <- w - Σ (n_c / N) u_c in that round,    w <- w - Σ (n_c / N) ‖u_c‖ v_c / ‖v_c‖ in the later ones

    A is the weighted mean of a round's stored updates u_c, and v_c is a client's update now, as in FedEraser. If no
    selected round may be rolled back to, the replay begins at the model that training started from.

    Args:
        fall: the share by which the loss falls in a window.
        rounds_kept: the share of a window's rounds that is replayed, at least one round.
        clients_kept: the share of a round's clients that is replayed, at least one client.
        tolerance: the share of the leavers' whole influence that the model may hold to which the run is rolled back; 0
            rolls back to a model that no leaver has touched.
        ratio: r; to calibrate, clients train ⌈r epochs⌉ epochs.
        epochs: local passes in a round of the original training.
        history: the history of the run to unlearn from; `feduhb.unlearn` sets it.
        clients: the remaining clients; `feduhb.unlearn` sets them.
        losses: the test loss after each round of the training; `feduhb.unlearn` sets them.
        layout: names and shapes of the parameters; `feduhb.unlearn` sets them.
        selection: what `select` returns; `feduhb.unlearn` sets it. None selects whenever it is needed.

    Differs from the paper: training stores every round, and the selection is made when a request comes. Windows are cut by
    the test loss, which runs record, and not by the training loss. The first window counts from its first round.
    Reference: Jiang et al., "Towards Efficient and Certified Recovery From Poisoning Attacks in Federated Learning", 2025.
    """

    fall: float = 0.1
    rounds_kept: float = 0.6
    clients_kept: float = 0.7
    tolerance: float = 0.1
    ratio: float = 0.5
    epochs: int = 5
    history: History = MISSING
    clients: tuple[ClientId, ...] = ()
    losses: tuple[float, ...] = ()
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    selection: Selection | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "crab"
    exact: ClassVar[bool] = False
    bound: ClassVar[tuple[str, ...]] = ("losses", "layout", "selection")
    samples_clients: ClassVar[bool] = False  # it asks the clients that were selected

    def __post_init__(self) -> None:
        check_decay("fall", self.fall, example=0.1)
        check_decay("tolerance", self.tolerance, example=0.1)
        for name in ("rounds_kept", "clients_kept"):
            if not (is_finite(share := getattr(self, name)) and 0 < share <= 1):
                raise ConfigError(f"{name} is {share!r}; give a share above 0 and up to 1, such as 0.7")
        check_calibration(self.ratio, self.epochs, "Crab")

    @property
    def rounds(self) -> int | None:
        """The number of selected rounds from the rollback on; without a selection, counting them reads the whole history."""
        return len(self._select_rounds()[1] if self.selection is None else self.selection.rounds)

    def select(self) -> Selection:
        """Return what is replayed. Without a selection, this reads every stored update once, and those of selected rounds twice more."""
        if self.selection is not None:
            return self.selection
        start, kept = self._select_rounds()
        agreeing = [self._select_clients(t) for t in kept]
        return Selection(
            start, tuple(kept), tuple(tuple(c for c in self.clients if c in some) for some in agreeing)
        )

    def init(self, params: Tensor) -> Rollback:
        """Return the state at the model to which the run is rolled back, whatever fresh model is given."""
        start, kept, chosen = self.select()
        rows = [[client in some for client in self.clients] for some in chosen]
        begin = self.history.params(start).to(params) if self.history.rounds else params
        return Rollback(begin, 0, torch.tensor(kept), torch.tensor(rows, dtype=torch.bool))

    def ask(self, state: Rollback) -> Work | None:
        """Return a short training for the clients selected in this round; None where stored updates are enough."""
        clients = self._list_chosen(state)
        if not clients or self._is_first(state):
            return None
        return Work(state.params, count_short_epochs(self.ratio, self.epochs), clients)

    def foresee(self, rounds: Iterable[int], first: Work | None) -> Iterator[Foreseen]:  # noqa: ARG002
        """Yield the work of the selected rounds, which the history decides alone."""
        state = self.init(torch.empty(0))
        for step in rounds:
            yield Foreseen.of(self.ask(state._replace(step=step)))

    def tell(self, state: Rollback, answers: Iterable[Updates]) -> Rollback:
        """Return the state after the stored updates, which the answers calibrate after the first round."""
        clients = self._list_chosen(state)
        if not clients:
            return state._replace(step=state.step + 1)
        t = int(state.kept[state.step])
        if self._is_first(state):
            updates = self.history.read(t, clients)
        else:
            updates = calibrate(self.history, t, answers, self.name)
        return state._replace(params=state.params - weighted_mean(updates), step=state.step + 1)

    def _list_chosen(self, state: Rollback) -> tuple[ClientId, ...]:
        """Return the clients to replay in this round; none if all selected rounds are done."""
        if state.step >= len(state.kept):
            return ()
        return tuple(itertools.compress(self.clients, state.chosen[state.step].tolist()))

    def _is_first(self, state: Rollback) -> bool:
        """Return whether the model is the one at which this round's updates were computed."""
        return state.step == 0 and torch.equal(
            state.params, self.history.params(int(state.kept[0])).to(state.params)
        )

    def _select_rounds(self) -> tuple[int, list[int]]:
        """Return the round to whose model the run is rolled back, and the selected rounds from there on."""
        rounds = list(self.history.rounds)
        if not rounds:
            return 0, []
        size = self._count_parameters()
        divergences, influence, whole = dict[int, float](), dict[int, float](), 0.0  # by round; S[t]; S[T]
        after: Tensor | None = None
        for t in rounds:
            step, residual = compute_residual(self.history, t, self.clients)
            before = self.history.params(t) if after is None else after
            after = self.history.params(t + 1) if t + 1 in rounds else None
            moved = before - step if after is None else after
            divergences[t] = self._measure_divergence(before[:size], moved[:size])
            influence[t] = whole
            whole += float(residual[:size].double().norm())
        selected: list[int] = []
        for window in cut_windows(self.losses, rounds, self.fall):
            ranked = sorted(window, key=lambda t: (-divergences[t], t))
            selected += ranked[: count_share(self.rounds_kept, len(window))]
        clean = [t for t in selected if influence[t] <= self.tolerance * whole]
        start = max(clean, default=rounds[0])
        return start, sorted(t for t in selected if t >= start)

    def _measure_divergence(self, before: Tensor, after: Tensor) -> float:
        """Return KL(softmax(w[t]) ‖ softmax(w[t+1])), summed over the rows of every parameter."""
        shapes = [shape for _, shape in self.layout]
        sizes = [math.prod(shape) for shape in shapes]
        total = 0.0
        for old, new, shape in zip(before.split(sizes), after.split(sizes), shapes, strict=True):
            p, q = (log_softmax(part.double().view(shape or (1,)), dim=-1) for part in (old, new))
            total += float(kl_div(q, p, reduction="sum", log_target=True))
        return total

    def _select_clients(self, round: int) -> set[ClientId]:
        """Return the clients of a round whose updates agree best with the step that training took."""
        stored, mean = self.history.clients(round), average_stored(self.history, round)
        if mean is None:
            return set()
        size, cosines = self._count_parameters(), dict[ClientId, float]()
        for block in self.history.read(round, stored):
            found = torch.cosine_similarity(block.values[:, :size].double(), mean[:size].double()[None])
            cosines.update(zip(block.clients, found.tolist(), strict=True))
        ranked = sorted(stored, key=lambda client: (-cosines[client], client))
        return {*ranked[: count_share(self.clients_kept, len(stored))]}

    def _count_parameters(self) -> int:
        """Return P. Until a run begins, statistics follow the parameters in stored vectors."""
        return sum(math.prod(shape) for _, shape in self.layout)


def cut_windows(losses: Sequence[float], rounds: Sequence[int], fall: float) -> list[list[int]]:
    """Return the rounds in windows. One ends when the loss has fallen by the share ``fall`` since the window before."""
    windows: list[list[int]] = [[]]
    reference = losses[0]
    for t in rounds:
        windows[-1].append(t)
        if losses[t] < (1 - fall) * reference:
            windows.append([])
            reference = losses[t]
    return [window for window in windows if window]


def count_share(share: float, count: int) -> int:
    """Return a share of a number, rounded down, at least 1; 0.7 of 10 is 7 despite rounding."""
    return max(1, math.floor(share * count + 1e-9))
