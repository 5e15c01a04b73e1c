"""`feduhb train`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import CONTINUE, Data, Json, Resume, answering, print_run


def train(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG.toml", help="The federation and how it trains.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option(metavar="RUN", help="The folder to record the run in.", show_default=False)
    ],
    resume: Resume = False,
    data: Data = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="auto, pool, stacked (also stacked:tf32, stacked:bf16) or loop; else the config's.",
            show_default=False,
        ),
    ] = None,
    keep_history: Annotated[
        bool,
        typer.Option(
            "--keep-history",
            help="Keep every model and update, for FedEraser and FedRecover; else the config's.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Train a federation by FedAvg into a run folder.

    A config is a TOML file and needs little:

    \b
    seed = 1
    \\[federation]
    data = "mnist-5k"
    clients = 20
    partition = "dirichlet:0.5"
    \\[train]
    rounds = 40
    """
    from feduhb.api import train_from
    from feduhb.runs.config import read_config

    with answering(json, CONTINUE) as answer:
        settings = read_config(config)
        if engine is not None:
            settings = replace(settings, train=replace(settings.train, engine=engine))
        if keep_history and not settings.train.keep_history:
            settings = replace(settings, train=replace(settings.train, keep_history=True))
        run = train_from(settings, out, data=data, resume=resume, show="auto" if json else "lines")
        print_run(answer, run.folder, json)
