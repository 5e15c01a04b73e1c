"""The whole story on real data: learn, plant a backdoor, leave, retrain, look."""

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
from feduhb.report.tables import as_json, rich_table
from feduhb.runs.config import Config, TrainSettings
from feduhb.runs.folder import disk_errors, write_atomically

LEAVERS = ("c09", "c19")  # the two that hold most
ROUNDS = 40  # of the training, and the most of any unlearning
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
    """Train, forget with every method, write table, figures and report; give the numbers."""
    _make_room(out)
    if not quiet:
        _say(introduction())
    show = "auto" if quiet else "lines"
    trained = train_from(SETTINGS, out / "original", show=show)
    unlearned = compare(trained, LEAVERS, METHODS, rounds=ROUNDS, out=out, show=show)
    # Relearning takes about as many rounds again as all of this, and is left to feduhb audit.
    audits = audit_all(list(unlearned.values()), trained, retrain=unlearned["retrain"], relearn=0, show=show)
    folders = [out / "original", *(out / method for method in METHODS)]
    written = write_report(folders, out)
    views = read_runs(folders)
    if not quiet:
        _say("")
        Console().print(rich_table(views))
        _say(
            "\n"
            + "\n".join(
                f"{found.method}: {found.verdict.word}. {found.verdict.reasons[0]}" for found in audits
            )
        )
        _say(
            "\nOpen these:\n" + "\n".join(f"  {path}" for path in written if path.suffix in {".html", ".png"})
        )
    return {"runs": as_json(views), "written": [str(path) for path in written]}


def introduction() -> str:
    """State the settings, all of them fixed."""
    federation, how = SETTINGS.federation, SETTINGS.train
    assert federation is not None  # noqa: S101 (it stands above)
    return (
        f"Data      {federation.data}: 4,000 real MNIST images over {federation.clients} clients, {federation.partition}, "
        f"seed {SETTINGS.seed}, a quarter of each held out; 1,000 for testing\n"
        f"Model     one hidden layer of 64 units; local SGD: {how.epochs} epochs, batch {how.batch_size}, lr {how.lr}\n"
        f"Backdoor  half of the images of {' and '.join(LEAVERS)}, who hold 690 of the 3,008 for training, carry a 4 x 4 bright square "
        "and the label 0\n"
        "Canaries  a quarter of their images, others than those, have a wrong label: only memory can tell it\n"
        f"Original  FedAvg, {how.rounds} rounds, everyone, history kept\n"
        f"Forget    {' and '.join(LEAVERS)}, at most {ROUNDS} rounds: FedUHB (momentum 0.9, stop rule with lambda 0.6), Retrain "
        "(FedAvg, all rounds), FedEraser and FedRecover (approximate, from the history)\n"
    )


def _make_room(out: Path) -> None:
    """Clear the runs of an earlier demo, and nothing else; refuse a folder that is not a demo's."""
    marker = out / MARKER
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out} is a file; choose a folder with --out")
    if out.exists() and any(out.iterdir()) and not marker.exists():
        raise RunFolderError(
            f"{out} is not empty and no earlier demo; choose another folder with --out, or empty it"
        )
    with disk_errors(out):
        for name in ("original", *METHODS):
            if (out / name).exists():
                shutil.rmtree(out / name)
        out.mkdir(parents=True, exist_ok=True)
    write_atomically(marker, b"feduhb demo clears and writes its runs here\n")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 (a demo talks)
