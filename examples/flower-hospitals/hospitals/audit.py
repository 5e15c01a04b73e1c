"""Open the runs for an audit, where one machine may read every hospital's file, as in this example."""

from collections.abc import Mapping
from pathlib import Path

import feduhb
from hospitals.data import model, read, read_all


def build_federation(data: Path, ids: Mapping[str, str]) -> feduhb.Federation:
    """Return a federation of all hospitals' files; ``ids`` are the server's client ids by hospital."""
    files = {client: read(data / f"{name}.npz") for name, client in ids.items()}
    training = {client: pair for client, (pair, _) in files.items()}
    held_out = {client: pair for client, (_, pair) in files.items()}
    return feduhb.Federation(training, read_all(data / "test.npz"), model, held_out=held_out)


def open_runs(folder: Path, ids: Mapping[str, str]) -> list[feduhb.Run]:
    """Return the training and the unlearning in FOLDER/runs, each with the seed that it drew."""
    federation = build_federation(folder / "data", ids)
    return [feduhb.open_run(folder / "runs" / name, federation) for name in ("trained", "unlearned")]
