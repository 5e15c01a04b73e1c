"""`feduhb compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import (
    CONTINUE,
    Data,
    Forget,
    Json,
    Resume,
    RunArgument,
    answering,
    folder_beside,
    parse_numbers,
    write_pages,
)
from feduhb.errors import ConfigError


def compare(
    run: RunArgument,
    forget: Forget,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Which, separated by commas; all built-in ones that the run can serve if not given.",
            show_default=False,
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
        int, typer.Option(help="Maximum number of rounds; FedEraser and FedRecover have their own.")
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

    A comparison erases nothing: it leaves the history of RUN as it is.
    """
    from feduhb import api
    from feduhb.data.request import Request
    from feduhb.runs.run import method_for, open_run
    from feduhb.stopping import never

    with answering(json, CONTINUE) as answer:
        opened, request = open_run(run, data=data), Request.parse(forget)
        betas = () if momenta is None else parse_numbers("--momenta", momenta)
        given = "retrain" if methods is None and betas else methods
        names = None if given is None else [name.strip() for name in given.split(",") if name.strip()]
        if names == []:
            raise ConfigError("--methods names nobody; write for example feduhb,retrain")
        place = out or folder_beside(run, "compare")
        show = "auto" if json else "lines"
        swept = {f"feduhb-{beta:g}": method_for("feduhb", opened.settings, momentum=beta) for beta in betas}
        done = api.compare(opened, request, names, rounds=rounds, out=place, resume=resume, show=show)
        for name, method in swept.items():  # without the stop rule, which a small momentum would trip early
            done[name] = api.unlearn(
                opened, request, method=method, rounds=rounds, stop=never, out=place / name, keep_history=False,
                erase_history=False, resume=resume, show=show,
            )  # fmt: skip
        write_pages(answer, [run, *(place / name for name in done)], place, json)
