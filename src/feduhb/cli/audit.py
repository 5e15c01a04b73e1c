"""`feduhb audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Data, DataFrom, Json, MethodFrom, answering, list_runs

WORK_KEPT = (
    "finished work is kept: start again to continue, or delete {}, whose models know the forgotten data"
)


def audit(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of unlearning runs that served the same request.",
            autocompletion=list_runs,
        ),
    ],
    original: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="The run before the request, the control that attacks must catch. The audit checks what was forgotten since "
            "then. If not given, the audit trains this control again and checks everything that was ever forgotten.",
        ),
    ] = None,
    retrain: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="A Retrain run, which attacks must not catch; the audit makes one if needed."
        ),
    ] = None,
    exactness: Annotated[
        bool,
        typer.Option(
            help="Repeat the run with noise in place of the forgotten data, and without that data; compare the weights."
        ),
    ] = True,
    canaries: Annotated[
        float,
        typer.Option(
            help="If the data holds no canaries, rehearse with this share of the forgotten examples mislabelled; 0: no rehearsal."
        ),
    ] = 0.25,
    shadows: Annotated[
        int, typer.Option(help="Number of shadow federations for the LiRA attack, such as 16; 0: no LiRA.")
    ] = 0,
    relearn: Annotated[
        int, typer.Option(help="Maximum rounds to train the forgotten data back in; 0: no relearning.")
    ] = 20,
    margin: Annotated[
        float, typer.Option(help="An AUC that differs from 0.5 by at most this counts as chance.")
    ] = 0.05,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Keep the audit's own runs, in RUN/audit-work. Their models know the forgotten data.",
        ),
    ] = False,
    data: Data = None,
    data_from: DataFrom = None,
    method_from: MethodFrom = None,
    json: Json = False,
) -> None:
    """Check whether a run forgot: exactness, membership attacks, backdoor, distance, cost, and a verdict.

    Example: feduhb audit runs/first-feduhb --original runs/first

    Every attack also runs on two controls: the original, which it must catch, and Retrain, which it must not catch.

    Before it starts, it prints a forecast: the chance that a model which remembers nothing gets a clear answer from these examples, and how many canaries a chance of 80 % needs.

    The audit needs the forgotten data once more, so run it before you delete that data. It writes audit.json into RUN, which feduhb report shows. After a crash, start it again: it continues where it stopped, with what it finished in a folder of its own, outside RUN.
    """
    from dataclasses import asdict
    from functools import partial

    from feduhb.audit.audit import audit_all
    from feduhb.audit.pooling import pool_seeds
    from feduhb.runs.private import find_work
    from feduhb.runs.run import open_run

    with answering(json, WORK_KEPT.format(find_work(runs[0]))) as answer:
        opened = partial(open_run, data=data, data_from=data_from, method_from=method_from or ())
        found = audit_all(
            [opened(run) for run in runs],
            None if original is None else opened(original),
            retrain=None if retrain is None else opened(retrain),
            exactness=exactness, canaries=canaries, shadows=shadows, relearn=relearn, margin=margin, keep=keep,
            show="auto" if json else "lines",
        )  # fmt: skip
        together = pool_seeds(found)
        answer.update(audits=[one.as_json() for one in found])
        if together:
            answer.update(over_seeds=[asdict(one) for one in together])
        if not json:
            files = [str(run / "audit.json") for run in runs]
            parts = [*map(str, found), "\n".join(one.says for one in together), "\n".join(files)]
            typer.echo("\n\n".join(filter(None, parts)))
