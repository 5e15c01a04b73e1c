"""Run the rounds in one of our engines, named on the command line, with the weighted mean."""

from __future__ import annotations

import sys
import time

import torch
from task import Task, print_answer

import feduhb
from feduhb.engines import make_engine
from feduhb.models import paper_cnn


def main() -> None:
    """Run the rounds."""
    task = Task.from_arguments()
    clients = {f"c{client:03}": task.read_part(client) for client in range(task.clients)}
    federation = feduhb.Federation(clients, clients["c000"], paper_cnn((1, 28, 28), 10))
    engine = make_engine(sys.argv[2], federation, feduhb.Local())
    params, everyone = torch.from_numpy(task.start), tuple(clients)
    seconds = []
    for number in range(task.rounds):
        began = time.perf_counter()
        work = feduhb.Work(params, task.epochs)
        params = params - feduhb.weighted_mean(engine.train(work, everyone, number))
        seconds.append(time.perf_counter() - began)
    print_answer(seconds, params.numpy(), f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
