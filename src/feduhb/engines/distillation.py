"""Distillation on the server: a student learns the outputs of a teacher on inputs without labels."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from feduhb.core.flat import count_statistics, flatten, unflatten
from feduhb.core.inputs import Inputs, call_model, count_rows, map_tensors
from feduhb.core.modules import list_trained
from feduhb.core.seeds import generator
from feduhb.data.federation import Federation
from feduhb.engines.loop import limit_threads
from feduhb.engines.precision import compute_alike
from feduhb.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, eq=False)
class Distiller:
    """Trains a student on the server's inputs, by plain SGD on one thread. A GPU computes as it does for clients.

    Student and teacher compute as in use: without dropout, and with the statistics of the old model.
    """

    module: nn.Module  # the model; its weights are not used
    public: Inputs
    statistics: Tensor  # [K] of the old model's normalisation layers
    seed: int

    def __call__(
        self, student: Tensor, teacher: Tensor, epoch: int, *, temperature: float, lr: float, batch_size: int
    ) -> Tensor:
        """Return the student [P] after one pass over the inputs, in an order drawn at (seed, epoch).

        Its loss is T² KL(softmax(z_teacher / T) ‖ softmax(z_student / T)), the mean over a batch.
        """
        learning, knowing = self._load(student), self._load(teacher)
        descent = torch.optim.SGD([p for _, p in list_trained(learning)], lr=lr)
        order = torch.randperm(count_rows(self.public), generator=generator(self.seed, "distil", epoch))
        with limit_threads(1), compute_alike(student.device):
            for rows in order.split(batch_size):
                x = map_tensors(lambda part, rows=rows: part[rows].to(student.device), self.public)
                with torch.no_grad():
                    wanted = log_softmax(call_model(knowing, x) / temperature, dim=1)
                found = log_softmax(call_model(learning, x) / temperature, dim=1)
                descent.zero_grad()
                loss = kl_div(found, wanted, reduction="batchmean", log_target=True)
                (temperature**2 * loss).backward()
                descent.step()
        return flatten(learning)[: len(student)]

    def _load(self, params: Tensor) -> nn.Module:
        """Return the model with these parameters [P], in evaluation mode."""
        model = copy.deepcopy(self.module).to(params.device)
        unflatten(torch.cat([params, self.statistics.to(params)]), model)
        return model.eval()


def make_distiller(federation: Federation, old: Tensor, method: str) -> Distiller:
    """Return the distiller of a federation that holds public inputs; raise an error if its model has no classes.

    Args:
        old: the old model, with its statistics.
        method: the name of the method that distils.
    """
    if federation.public is None:
        raise DataError(
            f"{method} distils on unlabelled data of the server, but this federation has none; give Federation(public=x), or "
            "feduhb.load(..., public=500)"
        )
    module = federation.fresh_model()
    with torch.no_grad():
        outputs = call_model(
            copy.deepcopy(module).eval(), map_tensors(lambda part: part[:1], federation.public)
        )
    if outputs.dim() != 2 or outputs.shape[1] < 2:
        raise ConfigError(
            f"{method} distils the softmax of a model's outputs, but this model answers an example with {list(outputs.shape[1:])} "
            "numbers; use a model with an output for each class, or another method"
        )
    statistics = old[len(old) - count_statistics(module) :]
    return Distiller(module, federation.public, statistics, federation.seed)
