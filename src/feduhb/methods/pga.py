"""PGA: the leaver climbs its own loss near a model without its last update; then the others train on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.checks import check_least, check_whole
from feduhb.core.tasks import Ascend, Task
from feduhb.core.types import ClientId, Foreseen, Method, Updates, Work
from feduhb.methods.binding import require_model


class Climb(NamedTuple):
    """The model, the fresh model of this run, and the number of rounds done."""

    params: Tensor  # [P]
    fresh: Tensor  # [P]
    step: int


@dataclass(frozen=True, slots=True)
class PGA(Method[Climb]):
    """Approximate unlearning by projected gradient ascent at the leaver.

        round 0:      w_ref = (N w_T - w_l) / (N - 1),    w_l the model that the leaver trains from w_T
        round 1:      the leaver climbs its loss from w_ref, inside the ball of radius r ‖w_ref - w_0‖ around w_ref
        later rounds: w <- w - Σ (n_c / N_r) u_c,    over the remaining clients

    w_T is the model that is to forget, N the number of clients that trained it, w_0 the fresh model. Several leavers are
    taken back together: w_ref = (N w_T - L mean(w_l)) / (N - L), and the mean of what they climbed to is taken. Leavers count
    by their examples in both means.

    Args:
        radius: r, a share of the distance from the reference to the fresh model.
        lr: of the ascent.
        momentum: of the ascent.
        clip_norm: the largest norm of a gradient of the ascent.
        ascent: epochs of the ascent.
        after: rounds with the remaining clients.
        epochs: local passes in a round, also of the leaver in round 0.
        model: the weights that are to forget; `feduhb.unlearn` sets them.
        clients: those that remain; `feduhb.unlearn` sets them.
        leavers: those that leave; `feduhb.unlearn` sets them.

    Differs from the paper: w_l is trained from w_T and not from the model before it, which is not kept; the ascent ends after
    its epochs, where the authors stop it early; one fresh model is drawn for the radius, in place of ten.
    Reference: Halimi et al., "Federated Unlearning: How to Efficiently Erase a Client in FL?", 2022.
    """

    radius: float = 0.577
    lr: float = 0.01
    momentum: float = 0.9
    clip_norm: float = 5.0
    ascent: int = 5
    after: int = 5
    epochs: int = 5
    model: Tensor | None = field(default=None, compare=False, repr=False)  # [P]
    clients: tuple[ClientId, ...] = ()
    leavers: tuple[ClientId, ...] = ()

    name: ClassVar[str] = "pga"
    exact: ClassVar[bool] = False
    needs_model: ClassVar[bool] = True
    asks_leaver: ClassVar[bool] = True
    serves: ClassVar[tuple[str, ...]] = ("clients",)

    def __post_init__(self) -> None:
        check_least("radius", self.radius)
        for name in ("ascent", "epochs"):
            check_whole(name, getattr(self, name))
        check_whole("after", self.after, least=0)
        self._make_task(0.0)

    @property
    def rounds(self) -> int | None:
        """Two rounds with the leaver, and those after."""
        return 2 + self.after

    @property
    def tasks(self) -> tuple[type[Task], ...]:
        """Ascent in a ball."""
        return (Ascend,)

    def init(self, params: Tensor) -> Climb:
        """Return the state at the model that is to forget; the fresh one is kept for the radius."""
        return Climb(require_model(self.model, params, self.name), params, step=0)

    def ask(self, state: Climb) -> Work:
        """Return training for the leavers, their ascent, or training for the remaining clients."""
        if state.step == 0:
            return Work(state.params, self.epochs, self.leavers, leavers=True)
        if state.step == 1:
            distance = float((state.params - state.fresh).double().norm())
            return Work(
                state.params,
                self.ascent,
                self.leavers,
                task=self._make_task(self.radius * distance),
                leavers=True,
            )
        return Work(state.params, self.epochs)

    def foresee(self, rounds: Iterable[int], first: Work | None) -> Iterator[Foreseen]:  # noqa: ARG002
        """Yield the work of the leavers' two rounds and of those after."""
        for step in rounds:
            yield Foreseen.of(self.ask(Climb(torch.empty(0), torch.empty(0), step)))

    def tell(self, state: Climb, answers: Iterable[Updates]) -> Climb:
        """Return the state after the reference, the ascent or a step of FedAvg."""
        u = weighted_mean(answers)
        if state.step == 0:  # (N w_T - L mean(w_l)) / (N - L) = w_T + L mean(u_l) / (N - L)
            u = -len(self.leavers) / len(self.clients) * u
        return Climb(state.params - u, state.fresh, state.step + 1)

    def _make_task(self, radius: float) -> Ascend:
        return Ascend(radius, self.lr, self.momentum, self.clip_norm)
