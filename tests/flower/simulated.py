"""An app for Flower's own simulation: 20 clients of mnist-5k, three of which can send bad answers.

Run as a program, it simulates both cases, and a model with BatchNorm and dropout that clients train by AdamW, also with
the accelerators, and RapidRetrain, and writes the results to the given folder.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

import feduhb
from feduhb import flower

CLIENTS, SEED, ROUNDS, LEAVERS = 20, 1, 3, ("c00", "c07")
LOCAL = feduhb.Local(
    batch_size=50, lr=0.005, optimizer="adamw", weight_decay=0.01, clip_norm=1.0, schedule="cosine"
)
ACCELERATORS = ("Nesterov", "FedAdam", "FedYogi", "FedNadam", "FedExP")
CULPRITS = {"c03": "nan", "c04": "shape", "c05": "norm"}


@cache
def load_federation() -> feduhb.Federation:
    """Return the federation of the simulation and of the test."""
    return feduhb.load("mnist-5k", clients=CLIENTS, partition="dirichlet:0.5", seed=SEED)


def make_normed() -> nn.Module:
    """Return a model with statistics and dropout."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    )


def make_plain() -> nn.Module:
    """Return a model without statistics or dropout, as preconditioned steps need it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def load_data(context: Context) -> Any:
    """Return the data of a partition; partitions are clients in the order of their names."""
    return load_federation().clients[
        sorted(load_federation().clients)[int(context.node_config["partition-id"])]
    ]


def spoil(update: ArrayRecord, how: str) -> ArrayRecord:
    """Return an update with NaN, a wrong shape or a huge norm."""
    values = {name: array.numpy().copy() for name, array in update.items()}
    first = next(iter(values))
    if how == "nan":
        values[first].flat[0] = np.nan
    values = {name: value * 1e6 for name, value in values.items()} if how == "norm" else values
    values[first] = values[first][:-1] if how == "shape" else values[first]
    return ArrayRecord({name: Array(value) for name, value in values.items()})


client = flower.introduced(ClientApp())


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train as our own client app does, and spoil the answer if the message asks for it."""
    config = message.content["config"]
    model = load_federation().model
    model = make_normed if config.get("normed") else make_plain if config.get("plain") else model
    reply = flower.client_app(model=model, data=load_data)(message, context)
    how = CULPRITS.get(str(config["client"])) if config.get("spoil") else None
    if how is None:
        return reply
    update = spoil(reply.content.array_records["update"], how)
    return Message(RecordDict({"update": update, "metrics": reply.content["metrics"]}), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
    """Unlearn with honest clients, with three that are not, and with the other model."""
    out, told = Path(os.environ["FEDUHB_SIMULATED"]), {}
    arrays = flower.fresh_arrays(load_federation().model, SEED)
    stories = (("honest", ROUNDS, None), ("spoilt", 2, ConfigRecord({"spoil": True})))
    for name, rounds, config in stories:
        strategy = flower.FedUHB(LEAVERS, epochs=1, seed=SEED, stop=feduhb.never, timeout=120)
        outcome = strategy.start(grid, arrays, rounds, train_config=config)
        torch.save(outcome.params, out / f"{name}.pt")
        told[name] = {
            "left_out": outcome.left_out,
            "asked": outcome.rounds[-1].asked,
            "answered": outcome.rounds[-1].answered,
        }
    normed = flower.FedUHB(
        LEAVERS, model=make_normed, local=LOCAL, epochs=1, seed=SEED, stop=feduhb.never, timeout=120
    )
    outcome = normed.start(grid, num_rounds=1, train_config=ConfigRecord({"normed": True}))
    torch.save(outcome.params, out / "normed.pt")
    for name in ACCELERATORS:
        strategy = getattr(flower, name)(
            LEAVERS, model=make_normed, local=LOCAL, epochs=1, seed=SEED, timeout=120
        )
        outcome = strategy.start(grid, num_rounds=2, train_config=ConfigRecord({"normed": True}))
        torch.save(outcome.params, out / f"{name}.pt")
    rapid = flower.RapidRetrain(LEAVERS, model=make_plain, epochs=1, seed=SEED, timeout=120)
    outcome = rapid.start(grid, num_rounds=2, train_config=ConfigRecord({"plain": True}))
    torch.save(outcome.params, out / "RapidRetrain.pt")
    (out / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    os.environ["FEDUHB_SIMULATED"] = sys.argv[1]
    from flower import simulated  # by its name, so that actors can import what they are sent

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(simulated.server, simulated.client, CLIENTS, backend_config=resources)
