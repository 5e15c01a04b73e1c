"""`feduhb compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli import options
from feduhb.errors import ConfigError


def compare(
    run: options.RunArgument,
    forget: options.Forget,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas, also your own: package.module:Class or file.py:Class. all stands for every "
            "built-in method that can serve the request; if not given, those of feduhb, retrain, federaser and fedrecover that can. "
            "A line says why a method is left out."
        ),
    ] = None,
    momenta: Annotated[
        str | None,
        typer.Option(
            metavar="0,0.5,0.9",
            help="Run FedUHB with each of these momenta, without its stop rule, as in the paper's figure on beta. "
            "Without --methods, the only other method is Retrain.",
        ),
    ] = None,
    rounds: options.Rounds = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and report; if not given, RUN-compare beside RUN.")
    ] = None,
    resume: options.Resume = False,
    data: options.Data = None,
    data_from: options.DataFrom = None,
    method_from: options.MethodFrom = None,
    tensorboard: options.TensorBoard = None,
    json: options.Json = False,
) -> None:
    """Serve one request with several methods, and compare them in tables, figures and a report.

    Example: feduhb compare runs/first --forget c00,c01

    A comparison erases nothing: the history of RUN stays as it is.
    """
    from feduhb import api
    from feduhb.data.request import Request
    from feduhb.runs.run import adapt_method, open_run
    from feduhb.stopping import never

    with options.answering(json, options.CONTINUE) as answer:
        opened = open_run(run, data=data, data_from=data_from, method_from=method_from or ())
        request = Request.parse(forget)
        betas = () if momenta is None else options.parse_numbers("--momenta", momenta)
        given = "retrain" if methods is None and betas else methods
        names = None if given is None else [name.strip() for name in given.split(",") if name.strip()]
        if names == []:
            raise ConfigError("--methods is empty; write for example --methods feduhb,retrain")
        if rounds == 0:
            raise ConfigError(
                "rounds is 0, and a report cannot show a run of no rounds; give 1 or more, or use feduhb unlearn --rounds 0"
            )
        place = out or options.name_folder(run, "compare")
        show = options.choose_show(json, tensorboard)
        swept = {f"feduhb-{beta:g}": adapt_method("feduhb", opened.settings, momentum=beta) for beta in betas}
        chosen, left_out = api.expand_methods(opened, request, names)
        if left_out:
            answer.update(left_out=left_out)
        done = api.compare(opened, request, chosen, rounds=rounds, out=place, resume=resume, show=show)
        for name, method in swept.items():  # without the stop rule, which a small momentum would trip early
            done[name] = api.unlearn(
                opened, request, method=method, rounds=rounds, stop=never, out=place / name, keep_history=False,
                erase_history=False, resume=resume, show=show,
            )  # fmt: skip
        answer.update(expected={name: one.expected.as_json() for name, one in done.items() if one.expected})
        options.write_pages(answer, [run, *(place / name for name in done)], place, json)
