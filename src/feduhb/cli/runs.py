"""Commands that make runs: demo, train, unlearn, compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.common import (
    GO_ON,
    Data,
    Forget,
    Json,
    Resume,
    RunArgument,
    answering,
    finish,
    numbers_of,
    settings_of,
    write_pages,
)
from feduhb.errors import ConfigError, RequestError


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
    from feduhb.experiment.config import read_config
    from feduhb.experiment.runner import train_from

    with answering(json, GO_ON) as answer:
        settings = read_config(config)
        if engine is not None:
            settings = replace(settings, train=replace(settings.train, engine=engine))
        if keep_history and not settings.train.keep_history:
            settings = replace(settings, train=replace(settings.train, keep_history=True))
        run = train_from(settings, out, data=data, resume=resume, show="auto" if json else "lines")
        finish(answer, run.folder, json)


def unlearn(
    run: RunArgument,
    forget: Forget,
    method: Annotated[str, typer.Option(help="feduhb, retrain, federaser or fedrecover.")] = "feduhb",
    rounds: Annotated[
        int, typer.Option(help="At most so many; FedEraser and FedRecover have a number of their own.")
    ] = 40,
    momentum: Annotated[
        float | None,
        typer.Option(help="Heavy ball's beta, at least 0 and below 1; 0.9 if not given.", show_default=False),
    ] = None,
    step_size: Annotated[
        float | None, typer.Option(help="The server's step alpha; 1.0 if not given.", show_default=False)
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=NUMBER",
            help="Any other setting of the method, such as correction=0.",
            show_default=False,
        ),
    ] = None,
    stop: Annotated[
        str,
        typer.Option(help="auto (the dynamic rule for FedUHB), never, or the rule's lambda, such as 0.6."),
    ] = "auto",
    window: Annotated[
        int | None,
        typer.Option(help="Rounds the rule looks back on; all so far if not given.", show_default=False),
    ] = None,
    floor: Annotated[float, typer.Option(help="The rule's epsilon.")] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(help="The new run's folder; RUN-METHOD beside RUN if not given.", show_default=False),
    ] = None,
    resume: Resume = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Forget: start a fresh model and retrain it on what remains.

    For example: feduhb unlearn runs/first --forget c00,c01

    Make the next request of the run that came out, here runs/first-feduhb: it remembers who has been forgotten.

    The history of the old run, and of those it came from, is erased from the leavers' first round on. Its model stays: delete it once the new one has taken its place.
    """
    from feduhb.data.request import Request
    from feduhb.experiment.runner import folder_beside, unlearn_from
    from feduhb.experiment.runs import open_run
    from feduhb.experiment.succession import brings_back

    with answering(json, GO_ON) as answer:
        settings = {"momentum": momentum, "step_size": step_size, **settings_of(setting or [])}
        opened = open_run(run, data=data)
        if back := brings_back(opened, Request.parse(forget)):
            raise RequestError(back)
        new = unlearn_from(
            opened,
            forget,
            method,
            settings={key: value for key, value in settings.items() if value is not None},
            rounds=rounds,
            stop=(stop, window, floor),
            out=out or folder_beside(run, method),
            resume=resume,
            show="auto" if json else "lines",
        )
        finish(answer, new.folder, json)


def compare(
    run: RunArgument,
    forget: Forget,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Which, separated by commas; all that the run can serve if not given.", show_default=False
        ),
    ] = None,
    momenta: Annotated[
        str | None,
        typer.Option(
            metavar="0,0.5,0.9",
            help="FedUHB once with each of these momenta, without its stop rule: the paper's figure on beta. "
            "Retrain alone runs beside it if --methods is not given.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="At most so many; FedEraser and FedRecover have a number of their own.")
    ] = 40,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for all of it; RUN-compare beside RUN if not given.", show_default=False),
    ] = None,
    resume: Resume = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Serve one request with several methods and set them side by side, with figures and a report.

    A comparison is no erasure: it leaves the history of RUN as it is.
    """
    from feduhb.experiment import api
    from feduhb.experiment.runner import folder_beside, sweep, sweep_methods
    from feduhb.experiment.runs import open_run

    with answering(json, GO_ON) as answer:
        opened = open_run(run, data=data)
        betas = () if momenta is None else numbers_of("--momenta", momenta)
        given = "retrain" if methods is None and betas else methods
        names = None if given is None else [name.strip() for name in given.split(",") if name.strip()]
        if names == []:
            raise ConfigError("--methods names nobody; write for example feduhb,retrain")
        place = out or folder_beside(run, "compare")
        show = "auto" if json else "lines"
        swept = sweep_methods(opened, betas)
        done = api.compare(opened, forget, names, rounds=rounds, out=place, resume=resume, show=show)
        done |= sweep(opened, forget, swept, rounds=rounds, out=place, resume=resume, show=show)
        write_pages(answer, [run, *(place / name for name in done)], place, json)
