"""Commands that look at runs: audit, report, theorem."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.common import Data, Json, answering, numbers_of, write_pages

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
    from feduhb.experiment.audit import audit_all
    from feduhb.experiment.runs import open_run

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


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Where table, figures and HTML go.")] = Path("report"),
    json: Json = False,
) -> None:
    """Write tables, figures and one self-contained HTML page about finished runs, with their audits."""
    with answering(json) as answer:
        write_pages(answer, runs, out, json)


def theorem(
    data: Annotated[str, typer.Option(help="mnist-5k, digits, mnist or cifar10.")] = "mnist-5k",
    clients: Annotated[int, typer.Option(help="How many share the data.")] = 20,
    partition: Annotated[str, typer.Option(help="iid, dirichlet:A or shards:K.")] = "iid",
    forget: Annotated[
        str, typer.Option(metavar="WHAT", help="Clients, rows or a class, as feduhb unlearn reads them.")
    ] = "c00,c01",
    betas: Annotated[
        str, typer.Option(help="Momenta to measure, at least 0 and below 1, separated by commas.")
    ] = "0,0.3,0.6,0.9",
    regulariser: Annotated[float, typer.Option(help="mu: larger converges in fewer rounds.")] = 0.02,
    rounds: Annotated[int, typer.Option(help="Of Retrain and of FedUHB with every beta.")] = 400,
    seed: Annotated[int, typer.Option(help="Of the partition and the fresh model.")] = 0,
    data_folder: Data = None,
    out: Annotated[Path, typer.Option(help="Where numbers, page and figure go.")] = Path("theorem"),
    json: Json = False,
) -> None:
    """Measure the paper's theorem: how far FedUHB is from Retrain, under both bounds.

    Both run on l2-regularised softmax regression with full gradients, where every constant of the theorem is known.
    About a minute on two cores.
    """
    from feduhb.experiment.theorem import TheoremSettings, run_theorem
    from feduhb.report.theorem import headline, summary, write_theorem

    with answering(json) as answer:
        settings = TheoremSettings(
            data=data, clients=clients, partition=partition, forget=forget, betas=numbers_of("--betas", betas),
            regulariser=regulariser, rounds=rounds, seed=seed,
        )  # fmt: skip
        found = run_theorem(out, settings, folder=data_folder, show="auto" if json else "lines")
        written = [out / "theorem.json", *write_theorem(out)]
        answer.update(summary(found), written=[str(path) for path in written])
        if not json:
            typer.echo("\n".join([headline(found), *map(str, written)]))
