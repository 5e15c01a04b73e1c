"""Wu et al.: take the leavers' updates back, then repair the model by distilling the old one on the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.checks import check_positive, check_whole
from feduhb.core.types import ClientId, Foreseen, History, Updates, Work
from feduhb.errors import ConfigError
from feduhb.methods.binding import require_model
from feduhb.methods.federaser import Replay
from feduhb.methods.replay import MISSING, ReplayMethod


class Distil(Protocol):
    """Trains a student on the server's unlabelled data, for one pass; see `feduhb.engines.distillation`."""

    def __call__(
        self, student: Tensor, teacher: Tensor, epoch: int, *, temperature: float, lr: float, batch_size: int
    ) -> Tensor:
        """Return the student [P] after pass number ``epoch``."""
        ...


@dataclass(frozen=True, slots=True)
class WuDistillation(ReplayMethod[Replay]):
    """Approximate unlearning by subtraction and distillation.

        w <- w + Σ_t Σ_l (n_l / N[t]) u_l[t],    w the old model, l the leavers,  in the first round
        w <- SGD on T² KL(softmax(z_old / T) ‖ softmax(z_w / T)),    over the server's unlabelled inputs, a pass a round
        w <- w - Σ (n_c / N) u_c,    in rounds with the remaining clients, if there are any

    N[t] counts the examples of all clients that answered in round t of the training. The teacher is the old model, which
    learned from the leavers: what it answers about the server's inputs is not clean.

    Args:
        passes: passes over the server's inputs, one a round; 0 only subtracts.
        temperature: T.
        lr: the learning rate of the distillation.
        batch_size: inputs in a batch of the distillation.
        after: rounds with the remaining clients at the end.
        epochs: local passes in such a round.
        history: the history of the run to unlearn from; `feduhb.unlearn` sets it.
        clients: the remaining clients; `feduhb.unlearn` sets them.
        model: the old model; `feduhb.unlearn` sets it.
        distil: trains on the server's inputs; `feduhb.unlearn` sets it.

    Differs from the paper: clients count by their examples, and several may leave at once. The optimiser of the
    distillation, its learning rate and the number of passes are choices of this package.
    Reference: Wu, Zhu and Mitra, "Federated Unlearning with Knowledge Distillation", 2022.
    """

    passes: int = 5
    temperature: float = 3.0
    lr: float = 0.01
    batch_size: int = 64
    after: int = 0
    epochs: int = 5
    history: History = MISSING
    clients: tuple[ClientId, ...] = ()
    model: Tensor | None = field(default=None, compare=False, repr=False)  # [P]
    distil: Distil | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "wu"
    exact: ClassVar[bool] = False
    needs_model: ClassVar[bool] = True
    needs_public: ClassVar[bool] = True
    bound: ClassVar[tuple[str, ...]] = ("distil",)

    def __post_init__(self) -> None:
        for name in ("passes", "after", "epochs"):
            check_whole(name, getattr(self, name), least=0)
        check_whole("batch_size", self.batch_size)
        check_positive("temperature", self.temperature, example=3.0)
        check_positive("lr", self.lr, example=0.01)

    @property
    def rounds(self) -> int | None:
        """One round to subtract, one for each pass of the distillation, and those with the remaining clients."""
        return 1 + self.passes + self.after

    def init(self, params: Tensor) -> Replay:
        """Return the state at the old model, whatever fresh model is given."""
        return Replay(require_model(self.model, params, self.name), step=0)

    def ask(self, state: Replay) -> Work | None:
        """Return local training for all remaining clients after the server's own rounds; None in those."""
        return None if state.step <= self.passes else Work(state.params, self.epochs)

    def foresee(self, rounds: Iterable[int], first: Work | None) -> Iterator[Foreseen]:  # noqa: ARG002
        """Yield the work of the server's own rounds, which ask nobody, and of those after."""
        for step in rounds:
            yield Foreseen.of(self.ask(Replay(torch.empty(0), step)))

    def tell(self, state: Replay, answers: Iterable[Updates]) -> Replay:
        """Return the state after the subtraction, a pass of the distillation, or a step of FedAvg."""
        w, step = state
        if step == 0:
            return Replay(w + self._sum_leavers(w), step=1)
        if step <= self.passes:
            return Replay(self._distil(w, step - 1), step + 1)
        return Replay(w - weighted_mean(answers), step + 1)

    def _sum_leavers(self, like: Tensor) -> Tensor:
        """Return Σ_t Σ_l (n_l / N[t]) u_l[t]: what the leavers' updates added up to."""
        total = torch.zeros_like(like)
        for t in self.history.rounds:
            own, examples = torch.zeros_like(like), 0.0
            for block in self.history.read(t, self.history.clients(t)):
                for client, row, n in zip(block.clients, block.values, block.weights.tolist(), strict=True):
                    examples += n
                    if client not in self.clients:
                        own.add_(row.to(like), alpha=n)
            if examples:
                total.add_(own, alpha=1 / examples)
        return total

    def _distil(self, student: Tensor, epoch: int) -> Tensor:
        if self.distil is None:
            raise ConfigError(
                f"{self.name} distils on the server, but nothing is bound to do it; run it by feduhb.unlearn(run, forget, method='wu')"
            )
        return self.distil(
            student, require_model(self.model, student, self.name), epoch, temperature=self.temperature, lr=self.lr,
            batch_size=self.batch_size,
        )  # fmt: skip
