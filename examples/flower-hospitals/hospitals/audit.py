"""Audits what the federation did, where one machine holds every hospital's file, as in this example."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import feduhb
from feduhb.core.flat import flatten
from feduhb.experiment.settings import TrainSettings
from feduhb.records import RunFolder
from feduhb.run.checkpoint import load_state
from hospitals.data import TEST, model, read, read_all
from hospitals.server import EPOCHS, LOCAL, MOMENTUM, SEED, STOP


def federation(data: Path, ids: Mapping[str, str]) -> feduhb.Federation:
    """Put all hospitals' files together under the client ids (by name) that the server knew them by."""
    files = {client: read(data / f"{name}.npz") for name, client in ids.items()}
    return feduhb.Federation(
        {client: trained_on for client, (trained_on, _) in files.items()},
        read_all(data / f"{TEST}.npz"),
        model,
        seed=SEED,
        held_out={client: held_out for client, (_, held_out) in files.items()},
    )


def opened(folder: Path, whole: feduhb.Federation, rounds: int, forgot: str | None = None) -> feduhb.Run:
    """Open a run that was made on Flower as if it had been made here, by the reference engine."""
    method = feduhb.FedUHB(momentum=MOMENTUM, epochs=EPOCHS) if forgot else feduhb.Retrain(epochs=EPOCHS)
    remaining = whole.without([forgot]) if forgot else whole
    files = RunFolder(folder)
    state, _ = load_state(files.state_path, method.init(flatten(remaining.fresh_model())))
    return feduhb.Run(
        federation=remaining,
        original=whole,
        settings=TrainSettings(
            rounds=rounds, epochs=EPOCHS, batch_size=LOCAL.batch_size, lr=LOCAL.lr, engine="loop"
        ),
        method=method,
        state=state,
        rounds=tuple(files.rounds()),
        forgot=feduhb.Request(clients=(forgot,)) if forgot else None,
        engine="loop",
        scheduled=rounds,
        stop=STOP if forgot else feduhb.never,
    )
