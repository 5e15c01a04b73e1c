"""`feduhb demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Json, answering


def demo(
    out: Annotated[Path, typer.Option(help="Where runs, figures and the report go.")] = Path("demo"),
    json: Json = False,
) -> None:
    """See the whole story on real data, in about a minute and a half on two cores.

    Twenty clients learn handwritten digits; two of them plant a backdoor, then ask to be forgotten.

    FedUHB, Retrain, FedEraser and FedRecover each make a model without them, and an audit asks each whether it forgot. A table, figures and a page show the outcome.
    """
    from feduhb.demo import run_demo

    with answering(json, "start again: the demo begins anew") as answer:
        answer.update(run_demo(out, quiet=json))
