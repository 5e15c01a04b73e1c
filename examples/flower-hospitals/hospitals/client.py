"""The app that runs at a hospital."""

from pathlib import Path

from flwr.app import Context

from feduhb.flower import client_app
from hospitals.data import HOSPITALS, model, read


def find_file(context: Context) -> Path:
    """Return this hospital's file: named by its node config or, in a simulation, by its number."""
    node, run = context.node_config, context.run_config
    if "data" in node:
        return Path(str(node["data"]))
    return Path(str(run["data"])) / f"{HOSPITALS[int(node['partition-id'])]}.npz"


app = client_app(
    model,
    lambda context: read(find_file(context))[0],  # the patients that it trains on
    held_out=lambda context: read(find_file(context))[1],  # those that it never trains on
    cache=lambda context: find_file(context).with_suffix(".cache"),  # deleted when the hospital leaves
)
