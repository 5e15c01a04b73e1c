"""`feduhb audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Data, Json, answering

WORK_KEPT = "what was trained is kept, start again to go on; or delete RUN/audit-work, whose models know the forgotten data"


def audit(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of unlearning runs that answer one request.", show_default=False
        ),
    ],
    original: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="The run before the request, a control that must be caught: the audit asks about what was forgotten since. Trained again, with everybody, if not given.",
            show_default=False,
        ),
    ] = None,
    retrain: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="A retrain run, a control that must not be caught; made if not given.",
            show_default=False,
        ),
    ] = None,
    exactness: Annotated[
        bool,
        typer.Option(
            help="Train and unlearn again with noise in place of the forgotten data, and without it."
        ),
    ] = True,
    canaries: Annotated[
        float,
        typer.Option(
            help="Where the data holds none, rehearse with this share of the forgotten examples mislabelled; 0: do not."
        ),
    ] = 0.25,
    shadows: Annotated[
        int, typer.Option(help="Shadow federations for the LiRA attack, such as 16; 0: none.")
    ] = 0,
    relearn: Annotated[
        int, typer.Option(help="Rounds at most of training the forgotten data back in; 0: do not.")
    ] = 20,
    margin: Annotated[
        float, typer.Option(help="An AUC within 0.5 plus or minus this counts as none.")
    ] = 0.05,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the runs made on the way. They know the forgotten data.")
    ] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Ask whether a run really forgot: exactness, membership attacks, backdoor, distance, cost, and a verdict.

    For example: feduhb audit runs/first-feduhb --original runs/first

    Every attack is run on two controls too: the original model, which must be caught, and Retrain, which must not.
    The audit needs the forgotten data once more, so run it before that is deleted. It writes audit.json into RUN, which
    feduhb report shows; started again after a crash it goes on where it stood.
    """
    from feduhb.audit.audit import audit_all
    from feduhb.runs.run import open_run

    with answering(json, WORK_KEPT) as answer:
        found = audit_all(
            [open_run(run, data=data) for run in runs],
            None if original is None else open_run(original, data=data),
            retrain=None if retrain is None else open_run(retrain, data=data),
            exactness=exactness, canaries=canaries, shadows=shadows, relearn=relearn, margin=margin, keep=keep,
            show="auto" if json else "lines",
        )  # fmt: skip
        answer.update(audits=[one.as_json() for one in found])
        if not json:
            files = [str(run / "audit.json") for run in runs]
            typer.echo("\n\n".join(str(one) for one in found) + "\n\n" + "\n".join(files))
