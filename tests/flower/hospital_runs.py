"""Read the runs of the example's hospitals, and repeat them in one process."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

import feduhb
from feduhb.runs.folder import RunFolder
from hospitals import audit, data
from hospitals.server import EPOCHS, LOCAL, MOMENTUM, STOP
from loopback import LocalFederation

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-hospitals"


def client_ids(hospitals: LocalFederation) -> dict[str, str]:
    """Return the hospitals' client ids by name."""
    return {name: hospitals.client_id(name) for name in data.HOSPITALS}


def build_federation(hospitals: LocalFederation, run: str) -> feduhb.Federation:
    """Return a federation in this process, of all hospitals' files and with the seed of a run."""
    seed = RunFolder(hospitals.folder / "runs" / run).config()["seed"]
    return audit.build_federation(hospitals.folder / "data", client_ids(hospitals)).reseed(seed)


def read_lines(hospitals: LocalFederation, run: str) -> list[str]:
    """Return the records of a run's finished rounds as they are written; the last may be half written."""
    file = hospitals.folder / "runs" / run / "rounds.jsonl"
    return file.read_text().split("\n")[:-1] if file.exists() else []


def read_rounds(hospitals: LocalFederation, run: str) -> list[feduhb.Round]:
    """Return the finished rounds of a run."""
    return [feduhb.Round.from_json(line) for line in read_lines(hospitals, run)]


def state_path(hospitals: LocalFederation, run: str) -> Path:
    """Return the path of a run's checkpoint."""
    return hospitals.folder / "runs" / run / "state.safetensors"


def read_weights(hospitals: LocalFederation, run: str) -> Tensor:
    """Return the weights of a run's checkpoint, flat."""
    return load_file(state_path(hospitals, run))["params"]


def unlearn_in_process(hospitals: LocalFederation, run: str, forget: feduhb.Request, rounds: int) -> Tensor:
    """Return the weights of the same unlearning by the reference engine in this process, with the seed of a run."""
    settings = {"epochs": EPOCHS, "batch_size": LOCAL.batch_size, "lr": LOCAL.lr, "engine": "loop"}
    trained = feduhb.train(build_federation(hospitals, run), 1, **settings, show=None)
    method = feduhb.FedUHB(momentum=MOMENTUM, epochs=EPOCHS)
    return feduhb.unlearn(trained, forget, method=method, stop=STOP, rounds=rounds, show=None).params
