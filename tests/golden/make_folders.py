"""Make the run folders in ``tests/golden/folders`` with the code that is on the path, and pin what must come of them.

    PYTHONPATH=OLD/src:tests python -m golden.make_folders tests/golden/folders

OLD is a checkout of the commit whose folders later code must still read. ``expected.json`` gets the digests of the weights that
the same runs end with when nobody interrupts them, and the machine that they depend on.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import feduhb
from feduhb import flower
from flower.gridding import Stage, make_grid
from golden.matrix import describe_machine, keep_quiet
from golden.over_flower import stop_in_round
from golden.reading import digest_folder, interrupt_after, interrupted

LOCAL: dict[str, Any] = {"epochs": 1, "batch_size": 16, "lr": 0.05, "show": None}
ROUNDS = 4
LEAVER, SECOND = "c00", "c01"
RECOVER = feduhb.FedRecover(warmup=3, correction=0, final=0, buffer=1, epochs=1)
TOLD: dict[str, Any] = {
    "epochs": 1,
    "seed": 6,
    "local": feduhb.Local(batch_size=16, lr=0.05),
    "timeout": 5.0,
}


def load_federation() -> feduhb.Federation:
    """Return the federation of all these folders: four clients of 40 images, one with a backdoor."""
    planted = feduhb.Backdoor((LEAVER,), size=2)
    return feduhb.load(
        "digits", clients=4, per_client=40, held_out=0.5, model="softmax", backdoor=planted, seed=6
    )


def train_original(folder: Path, **more: Any) -> feduhb.Run:
    """Train with a kept history."""
    how = {"engine": "loop", "keep_history": True, **LOCAL, **more}
    return feduhb.train(load_federation(), ROUNDS, out=folder, **how)


def train_stacked(folder: Path, **more: Any) -> feduhb.Run:
    """Train with the stacked engine, two clients a block."""
    return feduhb.train(
        load_federation(), ROUNDS, out=folder, **{"engine": "stacked", "block": 2, **LOCAL, **more}
    )


def unlearn_again(run: feduhb.Run, folder: Path, **more: Any) -> feduhb.Run:
    """Unlearn the leaver by FedUHB for six rounds and leave the run's history as it is."""
    asked = {"rounds": 6, "erase_history": False, "show": None, **more}
    return feduhb.unlearn(run, [LEAVER], out=folder, **asked)


def train_over_flower(folder: Path, grid: Stage | None = None, **more: Any) -> flower.Outcome:
    """Train over a grid."""
    return flower.Train(checkpoint=folder, **TOLD, **more).start(grid or stage(), draw_start(), ROUNDS)


def recover_over_flower(trained: Path, folder: Path, grid: Stage | None = None) -> flower.Outcome:
    """Unlearn the leaver over a grid by FedRecover."""
    few = {"warmup": 3, "correction": 0, "final": 0, "buffer": 1}
    strategy = flower.FedRecover([LEAVER], trained=trained, checkpoint=folder, **few, **TOLD)
    return strategy.start(grid or stage(), draw_start())


def stage() -> Stage:
    """Return a grid of the federation's clients."""
    return make_grid(load_federation())


def draw_start() -> Any:
    """Return the fresh weights of the runs over a grid."""
    return flower.fresh_arrays(load_federation().model, TOLD["seed"])


def make_folders(place: Path) -> None:
    """Make every folder."""
    trained = train_original(place / "original")
    new = unlearn_again(trained, place / "original-feduhb", rounds=ROUNDS)
    feduhb.audit(new, trained, relearn=2, show=None)
    train_stacked(place / "stacked")
    train_over_flower(place / "flower-trained", keep_history=True)
    cut = [
        interrupted(lambda: unlearn_again(trained, place / "interrupted", show=interrupt_after(2))),
        interrupted(
            lambda: unlearn_again(
                trained, place / "interrupted-fedrecover", method=RECOVER, show=interrupt_after(1)
            )
        ),
        interrupted(lambda: train_stacked(place / "interrupted-stacked", show=interrupt_after(1))),
        interrupted(
            lambda: train_over_flower(place / "flower-interrupted", stop_in_round(2, load_federation()))
        ),
        interrupted(
            lambda: recover_over_flower(
                place / "flower-trained", place / "flower-fedrecover", stop_in_round(2, load_federation())
            )
        ),
    ]
    if not all(cut):
        raise RuntimeError("a run came to its end before it was interrupted")


def compute_expected(place: Path, work: Path) -> dict[str, str | None]:
    """Return the weights that runs made of copies of these folders end with, by the name of what is done."""
    shutil.copytree(place, work, dirs_exist_ok=True)
    opened = feduhb.open_run(work / "original")
    unlearn_again(opened, work / "whole")
    unlearn_again(opened, work / "whole-fedrecover", method=RECOVER)
    unlearn_again(opened, work / "federaser", method="federaser")
    feduhb.unlearn(
        feduhb.open_run(work / "original-feduhb"), [SECOND], rounds=3, out=work / "second", show=None
    )
    unlearn_again(feduhb.open_run(work / "stacked"), work / "stacked-feduhb", block=2)
    strategy = flower.FedEraser([LEAVER], trained=work / "flower-trained", checkpoint=work / "eraser", **TOLD)
    shutil.copytree(work / "flower-trained", work / "other")
    recover_over_flower(work / "other", work / "flower-recovered")
    strategy.start(stage(), draw_start())
    names = {
        "interrupted": "whole",
        "interrupted-fedrecover": "whole-fedrecover",
        "interrupted-stacked": "stacked",
        "flower-interrupted": "flower-trained",
        "flower-fedrecover": "flower-recovered",
        "federaser": "federaser",
        "second": "second",
        "stacked-feduhb": "stacked-feduhb",
        "flower-federaser": "eraser",
    }
    return {name: digest_folder(work / folder) for name, folder in names.items()}


def main() -> None:
    """Replace the folders in the place that is named, and write expected.json beside them."""
    place = Path(sys.argv[1])
    for old in (path for path in place.iterdir() if path.is_dir()):
        shutil.rmtree(old)
    with keep_quiet(), tempfile.TemporaryDirectory() as work:
        make_folders(place)
        expected = {"header": describe_machine(), "weights": compute_expected(place, Path(work))}
    (place / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
