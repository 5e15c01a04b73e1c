"""`feduhb demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Json, answering


def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, figures and report.")] = Path("demo"),
    json: Json = False,
) -> None:
    """Train, unlearn, audit and report on real data, in about two minutes on two cores.

    Example: feduhb demo --out demo

    Twenty clients learn handwritten digits. Two of them plant a backdoor, then ask to be forgotten. FedUHB, Retrain, FedEraser and FedRecover each make a model without them, and an audit checks whether each model forgot. A table, figures and a page show the results.
    """
    from feduhb.demo import run_demo

    with answering(json, "start again; the demo starts over") as answer:
        answer.update(run_demo(out, quiet=json))
