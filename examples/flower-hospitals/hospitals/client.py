"""What runs at a hospital."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context

from feduhb.flower import client_app
from hospitals.data import HOSPITALS, Pair, model, read


def own_file(context: Context) -> Path:
    """Find this hospital's file: named by its node config, or by its number in a simulation."""
    node, run = context.node_config, context.run_config
    if "data" in node:
        return Path(str(node["data"]))
    return Path(str(run["data"])) / f"{HOSPITALS[int(node['partition-id'])]}.npz"


def training(context: Context) -> Pair:
    """Give the patients this hospital trains on."""
    return read(own_file(context))[0]


def held_out(context: Context) -> Pair:
    """Give the patients it never trains on."""
    return read(own_file(context))[1]


def cache(context: Context) -> Path:
    """Say where loaded data is kept between rounds; it goes when the hospital leaves."""
    return own_file(context).with_suffix(".cache")


app = client_app(model, training, held_out=held_out, cache=cache)
