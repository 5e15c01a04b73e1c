"""FedAF: the clients that hold the forgotten rows overwrite them with labels of untrained teachers; then all train on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.checks import check_whole
from feduhb.core.tasks import Relabel, Task
from feduhb.core.types import ClientId, Foreseen, Method, Updates, Work
from feduhb.methods.binding import require_model


class Overwriting(NamedTuple):
    """The model and the number of rounds done."""

    params: Tensor  # [P]
    step: int


@dataclass(frozen=True, slots=True)
class FedAF(Method[Overwriting]):
    """Approximate unlearning of rows or a class by active forgetting: new labels overwrite the old ones.

        first rounds:  w <- w - Σ (m_c / M) u_c,    over the clients that hold forgotten examples, m_c of them
        later rounds:  w <- w - Σ (n_c / N) u_c,    over all remaining clients, on the data that they keep

    In the first rounds a client trains on its forgotten examples, with the mean prediction of untrained teachers as their
    label, and a penalty λ Σ_i F_i (w_i - w0_i)² holds the parameters that the data it keeps is sensitive to. See
    `feduhb.core.tasks.Relabel`. The model starts at the weights that are to forget.

    Args:
        teachers: the number of untrained teachers.
        penalty: λ.
        overwriting: rounds in which the forgotten examples are trained on with new labels.
        after: rounds with all remaining clients.
        epochs: local passes in a round.
        model: the weights that are to forget; `feduhb.unlearn` sets them.
        clients: those that remain; `feduhb.unlearn` sets them.
        leavers: those of them that hold forgotten rows; `feduhb.unlearn` sets them.

    Differs from the paper: see its page in the documentation, which says what could be confirmed.
    Reference: Li et al., "Class-wise Federated Unlearning: Harnessing Active Forgetting with Teacher-Student Memory
    Generation", 2023.
    """

    teachers: int = 5
    penalty: float = 10.0
    overwriting: int = 1
    after: int = 5
    epochs: int = 5
    model: Tensor | None = field(default=None, compare=False, repr=False)  # [P]
    clients: tuple[ClientId, ...] = ()
    leavers: tuple[ClientId, ...] = ()

    name: ClassVar[str] = "fedaf"
    exact: ClassVar[bool] = False
    needs_model: ClassVar[bool] = True
    asks_leaver: ClassVar[bool] = True
    serves: ClassVar[tuple[str, ...]] = ("rows", "classes")

    def __post_init__(self) -> None:
        self._make_task()
        for name in ("overwriting", "epochs"):
            check_whole(name, getattr(self, name))
        check_whole("after", self.after, least=0)

    @property
    def rounds(self) -> int | None:
        """The rounds of overwriting, and those after."""
        return self.overwriting + self.after

    @property
    def tasks(self) -> tuple[type[Task], ...]:
        """Training on the labels of teachers."""
        return (Relabel,)

    def init(self, params: Tensor) -> Overwriting:
        """Return the state at the model that is to forget, whatever fresh model is given."""
        return Overwriting(require_model(self.model, params, self.name), step=0)

    def ask(self, state: Overwriting) -> Work:
        """Return training on new labels for those that hold forgotten rows, or plain training for all."""
        if state.step < self.overwriting:
            return Work(state.params, self.epochs, self.leavers, task=self._make_task(), leavers=True)
        return Work(state.params, self.epochs)

    def foresee(self, rounds: Iterable[int], first: Work | None) -> Iterator[Foreseen]:  # noqa: ARG002
        """Yield the work of the overwriting rounds and of those after."""
        for step in rounds:
            yield Foreseen.of(self.ask(Overwriting(torch.empty(0), step)))

    def tell(self, state: Overwriting, answers: Iterable[Updates]) -> Overwriting:
        """Return the state after one step of FedAvg."""
        return Overwriting(state.params - weighted_mean(answers), state.step + 1)

    def _make_task(self) -> Relabel:
        return Relabel(self.teachers, self.penalty)
