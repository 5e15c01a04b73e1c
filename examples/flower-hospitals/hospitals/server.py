"""The app that runs beside the SuperLink: plain training, or FedUHB if a request names somebody to forget."""

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from feduhb import Local, dynamic_stop
from feduhb.flower import FedUHB, Train
from hospitals.data import HOSPITALS, model

LOCAL = Local(batch_size=32, lr=0.05)
EPOCHS = 2
MOMENTUM = 0.5  # for few rounds; with more of them, 0.9
STOP = dynamic_stop(0.6, momentum=MOMENTUM)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train or forget; if resubmitted after a crash, continue after the last finished round."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    settings: dict[str, Any] = {
        "checkpoint": folder / str(config["run"]),
        "model": model,  # every run draws its own seed, and its fresh weights from it
        "epochs": EPOCHS, "local": LOCAL, "partitions": HOSPITALS, "timeout": float(config["timeout"]),
        "min_clients": int(config["min-clients"]), "min_replies": int(config["min-replies"]),
    }  # fmt: skip
    if forget := str(config["forget"]):
        replaced = folder / str(config["replaces"])
        strategy = FedUHB(forget, momentum=MOMENTUM, stop=STOP, trained=replaced, **settings)
    else:
        strategy = Train(**settings)
    strategy.start(grid, num_rounds=int(config["rounds"]))
