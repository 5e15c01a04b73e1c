"""What runs beside the SuperLink: plain training, or FedUHB when somebody is to be forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from feduhb import Local, dynamic_stop
from feduhb.flower import FedUHB, Train, fresh_arrays
from hospitals.data import HOSPITALS, model

TRAINED = "trained"  # the training's own folder, as in the app's settings
SEED = 1
LOCAL = Local(batch_size=32, lr=0.05)
EPOCHS = 2
MOMENTUM = 0.5  # few rounds are run here; with more, 0.9
STOP = dynamic_stop(0.6, momentum=MOMENTUM)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or forget; resubmitted after a crash, go on after the last finished round."""
    settings = context.run_config
    forget, folder = str(settings["forget"]), Path(str(settings["folder"]))
    common: dict[str, Any] = {
        "checkpoint": folder / str(settings["run"]),
        "epochs": EPOCHS,
        "local": LOCAL,
        "seed": SEED,
        "min_clients": int(settings["min-clients"]),
        "min_replies": int(settings["min-replies"]),
        "timeout": float(settings["timeout"]),
        "partitions": HOSPITALS,
    }
    if forget:
        replaced = folder / str(settings["replaces"])
        strategy = FedUHB(forget, momentum=MOMENTUM, stop=STOP, trained=replaced, **common)
    else:
        strategy = Train(**common)
    strategy.start(grid, fresh_arrays(model, seed=SEED), int(settings["rounds"]))
