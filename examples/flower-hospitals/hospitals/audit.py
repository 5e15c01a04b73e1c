"""Open the runs for an audit, where one machine may read every hospital's file, as in this example."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

import feduhb
from hospitals.data import model, read, read_all
from hospitals.server import EPOCHS, LOCAL, MOMENTUM, SEED, STOP


def build_federation(data: Path, ids: Mapping[str, str]) -> feduhb.Federation:
    """Return a federation of all hospitals' files; ``ids`` are the server's client ids by hospital."""
    files = {client: read(data / f"{name}.npz") for name, client in ids.items()}
    training = {client: pair for client, (pair, _) in files.items()}
    held_out = {client: pair for client, (_, pair) in files.items()}
    return feduhb.Federation(training, read_all(data / "test.npz"), model, seed=SEED, held_out=held_out)


def open_runs(folder: Path, ids: Mapping[str, str], leaver: str, rounds: int) -> list[feduhb.Run]:
    """Return the training and the unlearning that Flower left in FOLDER/runs."""
    # The audit must know how both were made: repeat them here, then put in the weights and records of Flower's runs.
    federation = build_federation(folder / "data", ids)
    local = {"epochs": EPOCHS, "batch_size": LOCAL.batch_size, "lr": LOCAL.lr}
    trained = feduhb.train(federation, rounds, **local, engine="loop", show=None)
    method = feduhb.FedUHB(momentum=MOMENTUM, epochs=EPOCHS)
    unlearned = feduhb.unlearn(trained, [ids[leaver]], method=method, stop=STOP, rounds=rounds, show=None)
    repeated = {"trained": trained, "unlearned": unlearned}
    return [_replace_results(run, folder / "runs" / name) for name, run in repeated.items()]


def _replace_results(run: feduhb.Run, folder: Path) -> feduhb.Run:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    state = run.state._replace(**load_file(folder / "state.safetensors"))
    return replace(run, state=state, rounds=tuple(map(feduhb.Round.from_json, lines)))
