"""`feduhb unlearn`."""

from __future__ import annotations

from dataclasses import replace
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
    parse_settings,
    print_run,
)
from feduhb.errors import ConfigError, RequestError
from feduhb.stopping import DynamicStop, StopRule, dynamic_stop, never


def unlearn(
    run: RunArgument,
    forget: Forget,
    method: Annotated[
        str,
        typer.Option(help="feduhb, retrain, federaser, fedrecover, or one that another package registered."),
    ] = "feduhb",
    rounds: Annotated[
        int, typer.Option(help="Maximum number of rounds; FedEraser and FedRecover have their own.")
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
    from feduhb import api
    from feduhb.data.request import Request
    from feduhb.runs.lineage import explain_revival
    from feduhb.runs.run import method_for, open_run

    with answering(json, CONTINUE) as answer:
        given = {"momentum": momentum, "step_size": step_size, **parse_settings(setting or [])}
        opened, request = open_run(run, data=data), Request.parse(forget)
        if revival := explain_revival(opened.folder, opened.forgot, request):
            raise RequestError(revival)
        settings = {key: value for key, value in given.items() if value is not None}
        chosen = method_for(method, opened.settings, **settings)
        new = api.unlearn(
            opened,
            request,
            method=chosen,
            rounds=rounds,
            stop=parse_stop(stop, window, floor, chosen.default_stop()),
            out=out or folder_beside(run, method),
            resume=resume,
            show="auto" if json else "lines",
        )
        print_run(answer, new.folder, json)


def parse_stop(word: str, window: int | None, floor: float, default: StopRule) -> StopRule:
    """Return the stop rule that was typed: "auto", "never", or lambda; ``default`` is the method's own."""
    is_plain, dynamic = window is None and floor == 0, default if isinstance(default, DynamicStop) else None
    if word in {"auto", "never"} and is_plain:
        return never if word == "never" else default
    if word == "never" or (word == "auto" and dynamic is None):
        raise ConfigError(
            f"--window and --floor belong to the dynamic rule, but --stop is {word}; give its lambda too: --stop 0.6"
        )
    if word == "auto" and dynamic is not None:
        return replace(dynamic, window=window, floor=floor)
    try:
        scale = float(word)
    except ValueError:
        raise ConfigError(
            f"the stop rule {word!r} cannot be read; write auto, never, or lambda, such as 0.6"
        ) from None
    return dynamic_stop(scale, window=window, floor=floor, momentum=dynamic.momentum if dynamic else 0.0)
