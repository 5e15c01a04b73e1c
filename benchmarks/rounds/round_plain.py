"""Run the rounds in a plain PyTorch loop over clients with all threads, as most people write it."""

from __future__ import annotations

import copy
import time

import torch
from task import RATE, Task, print_answer
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from feduhb.models import paper_cnn


def main() -> None:
    """Run the rounds."""
    task = Task.from_arguments()
    model = paper_cnn((1, 28, 28), 10)
    vector_to_parameters(torch.from_numpy(task.start), model.parameters())
    data = [[torch.from_numpy(part) for part in task.read_part(client)] for client in range(task.clients)]
    seconds = []
    for number in range(task.rounds):
        began = time.perf_counter()
        total = torch.zeros(len(task.start))
        for client, (x, y) in enumerate(data):
            own = copy.deepcopy(model)
            optimizer = torch.optim.SGD(own.parameters(), lr=RATE)
            for positions in task.draw_batches(client, number):
                optimizer.zero_grad()
                cross_entropy(own(x[positions]), y[positions]).backward()
                optimizer.step()
            total += parameters_to_vector(own.parameters()).detach() * len(x)
        vector_to_parameters(total / (task.clients * task.images), model.parameters())
        seconds.append(time.perf_counter() - began)
    print_answer(
        seconds, parameters_to_vector(model.parameters()).detach().numpy(), f"torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
