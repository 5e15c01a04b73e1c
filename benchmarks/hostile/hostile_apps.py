"""The two apps of `hostile_clients.py`: a training of mnist-5k in which one client is hostile from some round on."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import feduhb
from feduhb import flower
from feduhb.core.aggregate import parse_rule
from feduhb.core.flat import unflatten
from feduhb.engines.scoring import score_model

HOSTILE = 3  # the partition of the hostile client
SEED, EPOCHS, LOCAL = 1, 5, feduhb.Local(batch_size=64, lr=0.05)
FACTORS = {"500 times": 500.0, "50 times": 50.0, "10 times": 10.0, "flip": -1.0, "flip, 3 times": -3.0}
CLAIM = 100_000


@cache
def load_federation(clients: int, partition: str) -> feduhb.Federation:
    """Return the clients' data, the test data and the model; clients keep nothing back."""
    return feduhb.load("mnist-5k", clients=clients, partition=partition, model="mlp", seed=SEED, held_out=0.0)


def load_data(context: Context) -> Any:
    """Return the data of a client, by its node config."""
    config = context.node_config
    federation = load_federation(int(config["num-partitions"]), str(config["partition"]))
    return federation.clients[sorted(federation.clients)[int(config["partition-id"])]]


MODEL = load_federation(1, "iid").model
client = flower.introduced(ClientApp())
honest = flower.client_app(model=MODEL, data=load_data)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train as an honest client does; the hostile one changes its answer as the message tells it."""
    reply = honest(message, context)
    config: dict[str, Any] = dict(message.content.config_records["config"])
    mode, since = str(config.get("hostile", "")), int(config.get("since", 0))
    if not mode or context.node_config["partition-id"] != HOSTILE or config["round"] < since:
        return reply
    return Message(spoil(reply.content, mode, int(config.get("megabytes", 1))), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score the model; the hostile client may send false scores."""
    reply = honest(message, context)
    is_false = MODE.get("scores") or Path(os.environ.get("HOSTILE_SCORES", os.devnull)).is_file()
    if is_false and context.node_config["partition-id"] == HOSTILE:
        scores = MetricRecord({"num-examples": CLAIM, "accuracy": 1.0, "loss": -1e9})
        return Message(RecordDict({"metrics": scores}), reply_to=message)
    return reply


# Evaluate messages hold no config of ours: a run in one process sets the mode here, a deployment by the file HOSTILE_SCORES.
MODE: dict[str, bool] = {}


def spoil(content: RecordDict, mode: str, megabytes: int) -> RecordDict:
    """Return the answer of a hostile client."""
    update, metrics = content.array_records["update"], content["metrics"]
    values = {name: array.numpy().copy() for name, array in update.items()}
    first = next(iter(values))
    if "examples" in mode:
        metrics = MetricRecord({"num-examples": CLAIM})
    for known, factor in FACTORS.items():
        if mode == known or mode == f"{known}, {CLAIM} examples":
            values = {name: (value * factor).astype(value.dtype) for name, value in values.items()}
    if mode == "NaN":
        values[first].flat[0] = np.nan
    if mode == "wrong shape":
        values[first] = values[first][:-1]
    more = {"more": ConfigRecord({"a": b"x" * (megabytes * 2**20)})} if mode == "another record" else {}
    arrays = ArrayRecord({name: Array(value) for name, value in values.items()})
    return RecordDict({"update": arrays, "metrics": metrics, **more})


def run(grid: Grid, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train over a grid as ``settings`` say; return the accuracy after each round and who was named."""
    federation = load_federation(settings["clients"], settings["partition"])

    def measure(_: int, arrays: ArrayRecord) -> MetricRecord:
        module = federation.fresh_model()
        unflatten(
            torch.cat([torch.from_numpy(a.numpy().copy()).reshape(-1) for a in arrays.values()]), module
        )
        return MetricRecord({"accuracy": score_model(module, federation.test, federation.loss)[1]})

    config = {key: settings[key] for key in ("hostile", "since", "megabytes") if key in settings}
    more = {key: settings[key] for key in ("examples", "trained", "checkpoint") if settings.get(key)}
    make = partial(flower.FedUHB, settings["forget"]) if settings.get("forget") else flower.Train
    strategy = make(
        model=MODEL, seed=SEED, epochs=EPOCHS, local=LOCAL, timeout=settings["timeout"],
        aggregate=parse_rule(settings["rule"]), evaluate_every=settings.get("evaluate_every", 0),
        min_clients=settings["clients"], **more,
    )  # fmt: skip
    outcome = strategy.start(
        grid, num_rounds=settings["rounds"], train_config=ConfigRecord(config), evaluate_fn=measure
    )
    named = {**getattr(outcome, "bounded", {}), **outcome.left_out}
    return {
        "accuracy": [round(float(r.scores["accuracy"]), 4) for r in outcome.rounds],
        "clients_accuracy": [r.scores.get("clients_accuracy") for r in outcome.rounds],
        "clients_loss": [r.scores.get("clients_loss") for r in outcome.rounds],
        "named": {str(t): found for t, found in sorted(named.items())},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run config says, and write the result to its file."""
    settings = json.loads(bytes.fromhex(str(context.run_config["settings"])))
    Path(settings["out"]).write_text(json.dumps(run(grid, settings)))
