"""Run the rounds in Apple's pfl: its simulated backend and FederatedAveraging, a process a core, one torch thread each.

Its data set returns a client's batches in the stored order in every epoch; the other implementations shuffle.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import os
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import BATCH, RATE, Task, print_answer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from feduhb.models import paper_cnn


class Network(nn.Module):
    """The paper's CNN with the methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = paper_cnn((1, 28, 28), 10)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean over a batch."""
        return cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return the loss; pfl asks for it in the first round, which is not timed."""
        return {"loss": Weighted(float(self.loss(x, y)) * len(x), len(x))}


class Clock(TrainingProcessCallback):
    """A callback that notes when rounds end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, *, model: Any) -> Metrics:  # noqa: ARG002
        """Note the time."""
        self.times.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(self, *given: Any, **named: Any) -> tuple[bool, Metrics]:  # noqa: ARG002
        """Note the time and continue."""
        self.times.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Run the rounds."""
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002 (pfl's processes agree on who trains by the global seed)
    asyncio.set_event_loop(asyncio.new_event_loop())
    task, network = Task.from_arguments(), Network()
    vector_to_parameters(torch.from_numpy(task.start), network.parameters())
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, torch.optim.SGD, central)
    names = list(range(task.clients))
    data = {
        client: Dataset([torch.from_numpy(part) for part in task.read_part(client)], user_id=client)
        for client in names
    }
    users = FederatedDataset(data.__getitem__, get_user_sampler("minimize_reuse", names))
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(task.rounds, task.rounds, task.clients, None),
        SimulatedBackend(training_data=users, val_data=None),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=task.epochs, local_learning_rate=RATE),
        callbacks=[clock],
    )
    if os.environ.get("RANK", "0") == "0":
        seconds = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
        params = parameters_to_vector(network.parameters()).detach().numpy()
        print_answer(seconds, params, f"pfl {version('pfl')}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
