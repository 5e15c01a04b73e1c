"""`feduhb forecast`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feduhb.cli.options import Json, answering, list_runs
from feduhb.errors import ConfigError

if TYPE_CHECKING:
    from feduhb.batching import Simulation


def forecast(
    rate: Annotated[
        str,
        typer.Option(
            metavar="N/UNIT", help="Requests that arrive per hour, day, week, month or year, such as 2/week."
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="Folder of a training, or of an unlearning by an exact method, whose records say what one batch costs.",
            autocompletion=list_runs,
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Hours that a batch takes, with everything that has to happen before the new model is in service, such as the "
            "audit. If not given: the expected seconds of one unlearning from RUN."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Rounds of an unlearning. If not given: those of RUN if it is an unlearning; else 40, as for feduhb unlearn."
        ),
    ] = None,
    deadline: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long a request may wait: a number with min, h, d, w or month."
        ),
    ] = "30d",
    margin: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long before the deadline the policy by deadline plans to finish; a tenth of the deadline if not given.",
        ),
    ] = None,
    years: Annotated[int, typer.Option(help="Years to simulate, each with its own requests.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for a figure, a table and one HTML page; nothing is written if not given."),
    ] = None,
    json: Json = False,
) -> None:
    """Forecast what a stream of erasure requests costs, and how long requests wait, under four policies.

    Example: feduhb forecast runs/first --rate 2/week --deadline 30d

    One unlearning forgets a whole batch of requests and costs about the same as forgetting one. Four policies are simulated: at once (whenever the worker is free), nightly, weekly, and by deadline (as late as the oldest request permits). A request that arrives during a batch waits for the next one.

    Without RUN, say how long a batch takes: feduhb forecast --rate 2/week --hours 3
    """
    from feduhb.batching import Service, parse_hours, parse_rate, read_service, simulate

    with answering(json) as answer:
        arriving, limit = parse_rate(rate), parse_hours(deadline)
        if run is not None:
            service = read_service(run, rounds=rounds, hours=hours)
        elif hours is None:
            raise ConfigError("nothing says how long a batch takes; name a run, or give --hours 3")
        elif rounds is not None:
            raise ConfigError(
                "--rounds says how much of RUN a batch takes; name a run too, or leave --rounds out"
            )
        else:
            service = Service(hours)
        found = simulate(
            arriving, service, deadline=limit,
            margin=None if margin is None else parse_hours(margin), years=years, seed=seed,
        )  # fmt: skip
        answer.update(found.as_json())
        if not json:
            print_forecast(found)
        if out is not None:
            from feduhb.report.batching import write_forecast

            written = [str(path) for path in write_forecast(found, out)]
            answer.update(written=written)
            if not json:
                typer.echo("\n".join(written))


def print_forecast(found: Simulation) -> None:
    """Print the table of policies, what was simulated, and the result in one sentence."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from feduhb.report.batching import NOTE, describe, make_grid

    grid = make_grid(found)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for place, header in enumerate(grid.headers):
        table.add_column(Text(header), justify="right" if place else "left", no_wrap=True)
    for row in grid.rows:
        table.add_row(*map(Text, row))
    Console().print(table)
    typer.echo("\n".join(["", *describe(found), NOTE, "", found.headline]))
