"""The demonstration: train a federation with a backdoor, forget the clients that planted it, and audit the results."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rich.console import Console

from feduhb.api import compare, train_from
from feduhb.audit.audit import audit_all
from feduhb.data.backdoor import Backdoor
from feduhb.data.canaries import Canaries
from feduhb.data.load import FederationSettings
from feduhb.errors import RunFolderError
from feduhb.report import read_runs, write_report
from feduhb.report.tables import list_json_rows, make_terminal_tables
from feduhb.runs.config import Config, TrainSettings
from feduhb.runs.files import disk_errors, write_atomically

LEAVERS = ("c09", "c19")  # the two clients with the most examples
ROUNDS = 40  # of the training, and at most of each unlearning
METHODS = ("feduhb", "retrain", "federaser", "fedrecover")
MARKER = ".feduhb-demo"
SETTINGS = Config(
    seed=1,
    federation=FederationSettings(
        data="mnist-5k",
        clients=20,
        partition="dirichlet:0.2",
        model="mlp",
        backdoor=Backdoor(LEAVERS),
        canaries=Canaries(LEAVERS),
    ),
    train=TrainSettings(rounds=ROUNDS, epochs=3, batch_size=16, lr=0.05, keep_history=True),
)


def run_demo(out: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Train, unlearn with every method, audit, and write figures and a report; return the numbers."""
    _clear_folder(out)
    if not quiet:
        _print(format_introduction())
    show = "auto" if quiet else "lines"
    trained = train_from(SETTINGS, out / "original", show=show)
    unlearned = compare(trained, LEAVERS, METHODS, rounds=ROUNDS, out=out, show=show)
    # Relearning would take about as many rounds again; feduhb audit does it.
    audits = audit_all(list(unlearned.values()), trained, retrain=unlearned["retrain"], relearn=0, show=show)
    folders = [out / "original", *(out / method for method in METHODS)]
    written = write_report(folders, out)
    views = read_runs(folders)
    if not quiet:
        _print("")
        Console().print(make_terminal_tables(views))
        verdicts = (f"{found.method}: {found.verdict.word}. {found.verdict.reasons[0]}" for found in audits)
        pages = (f"  {path}" for path in written if path.suffix in {".html", ".png"})
        _print("\n".join(["", *verdicts, "\nOpen these:", *pages]))
    return {"runs": list_json_rows(views), "written": [str(path) for path in written]}


def format_introduction() -> str:
    """Return a description of the settings."""
    federation, how = SETTINGS.federation or FederationSettings(), SETTINGS.train
    return (
        f"Data      {federation.data}: 4,000 real MNIST images over {federation.clients} clients, {federation.partition}, "
        f"seed {SETTINGS.seed}, a quarter of each held out; 1,000 for testing\n"
        f"Model     one hidden layer of 64 units; local SGD: {how.epochs} epochs, batch {how.batch_size}, lr {how.lr}\n"
        f"Backdoor  half of the images of {' and '.join(LEAVERS)}, who hold 690 of the 3,008 for training, carry a 4 x 4 bright square "
        "and the label 0\n"
        "Canaries  a quarter of their images, others than those, have a wrong label, which a model can only memorise\n"
        f"Original  FedAvg, {how.rounds} rounds, everyone, history kept\n"
        f"Forget    {' and '.join(LEAVERS)}, at most {ROUNDS} rounds: FedUHB (momentum 0.9, stop rule with lambda 0.6), Retrain "
        "(FedAvg, all rounds), FedEraser and FedRecover (approximate, from the history)\n"
    )


def _clear_folder(out: Path) -> None:
    """Delete the runs of an earlier demo; raise RunFolderError for a folder that holds anything else."""
    marker = out / MARKER
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out} is a file; choose a folder with --out")
    if out.exists() and any(out.iterdir()) and not marker.exists():
        raise RunFolderError(f"{out} is not empty and not from a demo; choose another folder with --out")
    with disk_errors(out):
        for name in ("original", *METHODS):
            if (out / name).exists():
                shutil.rmtree(out / name)
        out.mkdir(parents=True, exist_ok=True)
    write_atomically(marker, b"feduhb demo clears and writes its runs here\n")


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 (for the user)
