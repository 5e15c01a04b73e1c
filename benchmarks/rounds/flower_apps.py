"""The apps that `round_flower.py` runs: a client that trains, and Flower's own FedAvg with a clock."""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import RATE, Task
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from feduhb.models import paper_cnn

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client and answer with its model."""
    torch.set_num_threads(1)
    task, client = Task.read(str(context.run_config["task"])), int(context.node_config["partition-id"])
    model = paper_cnn((1, 28, 28), 10)
    arrays, config = message.content.array_records["arrays"], message.content.config_records["config"]
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = (torch.from_numpy(part) for part in task.read_part(client))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for positions in task.draw_batches(client, int(str(config["server-round"]))):
        optimizer.zero_grad()
        cross_entropy(model(x[positions]), y[positions]).backward()
        optimizer.step()
    answer = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(content=RecordDict(answer), reply_to=message)


class Timed(FedAvg):
    """FedAvg that times its rounds."""

    def __init__(self, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self.clients = clients
        self.began: list[float] = []
        self.seconds: list[float] = []

    def configure_train(self, *given: Any, **named: Any) -> Any:
        """Start the clock and ask all clients."""
        self.began.append(time.perf_counter())
        return super().configure_train(*given, **named)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Average the answers and stop the clock; raise an error if an answer is missing."""
        given = list(replies)
        if (sound := sum(not reply.has_error() for reply in given)) < self.clients:
            raise RuntimeError(f"only {sound} of {self.clients} clients answered in round {server_round}")
        found = super().aggregate_train(server_round, given)
        self.seconds.append(time.perf_counter() - self.began[-1])
        return found


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the rounds and write the result to a file."""
    task = Task.read(str(context.run_config["task"]))
    model = paper_cnn((1, 28, 28), 10)
    vector_to_parameters(torch.from_numpy(task.start), model.parameters())
    strategy = Timed(task.clients)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=task.rounds, timeout=300)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    params = parameters_to_vector(model.parameters()).detach().numpy()
    np.savez(str(context.run_config["answer"]), seconds=strategy.seconds, params=params)
