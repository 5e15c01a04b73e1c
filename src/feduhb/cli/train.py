"""`feduhb train`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import (
    CONTINUE,
    Data,
    Json,
    Keep,
    Record,
    Resume,
    TensorBoard,
    answering,
    choose_show,
    parse_record,
    print_run,
)
from feduhb.errors import ConfigError


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The federation and its training.")],
    out: Annotated[Path, typer.Option(metavar="RUN", help="Folder for the new run.")],
    resume: Resume = False,
    data: Data = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="auto, pool, stacked (also stacked:tf32, stacked:bf16) or loop; if not given, the config's engine."
        ),
    ] = None,
    keep_history: Annotated[
        bool,
        typer.Option(
            "--keep-history",
            help="Keep every model and update, for FedEraser, FedRecover, Crab, FedRecovery and Wu.",
        ),
    ] = False,
    keep_models: Annotated[
        str | None,
        typer.Option(
            "--keep-models",
            metavar="SIZE",
            help="Keep models of up to this size in all, such as 1GiB or 500MB, for feduhb unlearn --method rollback. They "
            "are chosen so that a rollback has the fewest rounds to redo. Needs clients_per_round.",
        ),
    ] = None,
    keep: Keep = "",
    record: Record = "",
    tensorboard: TensorBoard = None,
    json: Json = False,
) -> None:
    """Train a federation by FedAvg and record the run in a folder.

    Example: feduhb train federation.toml --out runs/first

    The config is a TOML file and needs only a few lines:

    \b
    seed = 1
    \\[federation]
    data = "mnist-5k"
    clients = 20
    partition = "dirichlet:0.5"
    \\[train]
    rounds = 40

    Or let a function of yours, without arguments, return the feduhb.Federation: one in a file beside the config, or in an installed module, such as "my_package.my_data:make". Then no other key of \\[federation] applies:

    \b
    \\[federation]
    data = "my_data.py:make"
    """
    from feduhb.api import train_from
    from feduhb.runs.config import read_config

    with answering(json, CONTINUE) as answer:
        settings = read_config(config)
        kept = settings.train.keep_history or keep_history  # the config may ask for float16
        chosen = replace(settings.train, engine=engine or settings.train.engine, keep_history=kept)
        if keep_models is not None:
            chosen = replace(chosen, keep_models=keep_models)
        if keep not in {"", "last", "best"}:
            raise ConfigError(f"--keep is {keep}; write last or best")
        if keep:
            chosen = replace(chosen, keep="best" if keep == "best" else None)
        if record:
            chosen = replace(chosen, record=parse_record(record))
        settings = replace(settings, train=chosen)
        run = train_from(
            settings, out, base=config.parent, data=data, resume=resume, show=choose_show(json, tensorboard)
        )
        print_run(answer, run.folder, json)
