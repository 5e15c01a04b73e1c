"""Flower's simulation: its own FedAvg, one actor a core, one torch thread an actor."""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
import time
from typing import Any

import flwr
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import RATE, Task, tell
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from feduhb.models import paper_cnn

FOLDER = sys.argv[1]
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client and answer with its model."""
    torch.set_num_threads(1)
    task, client = Task.read(FOLDER), int(context.node_config["partition-id"])
    model = paper_cnn((1, 28, 28), 10)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = (torch.from_numpy(part) for part in task.part(client))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for positions in task.batches(client, int(str(message.content.config_records["config"]["server-round"]))):
        optimizer.zero_grad()
        cross_entropy(model(x[positions]), y[positions]).backward()
        optimizer.step()
    answer = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(content=RecordDict(answer), reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when rounds begin and end."""

    def __init__(self, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self.began: list[float] = []
        self.seconds: list[float] = []

    def configure_train(self, *given: Any, **named: Any) -> Any:
        """Ask everyone."""
        self.began.append(time.perf_counter())
        return super().configure_train(*given, **named)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Average the answers, of which none may be missing."""
        found = super().aggregate_train(server_round, replies)
        self.seconds.append(time.perf_counter() - self.began[-1])
        return found


@server_app.main()
def serve(grid: Grid, context: Context) -> None:  # noqa: ARG001 (Flower gives both)
    """Run the rounds."""
    task = Task.read(FOLDER)
    model = paper_cnn((1, 28, 28), 10)
    vector_to_parameters(torch.from_numpy(task.start), model.parameters())
    strategy = Timed(task.clients)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=task.rounds, timeout=300)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    params = parameters_to_vector(model.parameters()).detach().numpy()
    tell(strategy.seconds, params, f"flwr {flwr.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    one = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, Task.read(FOLDER).clients, backend_config=one)
