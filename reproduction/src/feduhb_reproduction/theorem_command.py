"""`feduhb theorem`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli import Data, Json, answering, parse_numbers


def theorem(
    data: Annotated[
        str, typer.Option(help="mnist-5k, digits, breast-cancer, mnist or cifar10.")
    ] = "mnist-5k",
    clients: Annotated[int, typer.Option(help="The number of clients.")] = 20,
    partition: Annotated[str, typer.Option(help="iid, dirichlet:A or shards:K.")] = "iid",
    forget: Annotated[
        str, typer.Option(metavar="WHAT", help="Clients, rows or a class, as feduhb unlearn reads them.")
    ] = "c00,c01",
    betas: Annotated[
        str, typer.Option(help="Momenta to measure, at least 0 and below 1, separated by commas.")
    ] = "0,0.3,0.6,0.9",
    regulariser: Annotated[
        float, typer.Option(help="The constant mu: a larger one converges in fewer rounds.")
    ] = 0.02,
    rounds: Annotated[int, typer.Option(help="Rounds of Retrain, and of FedUHB with every beta.")] = 400,
    seed: Annotated[int, typer.Option(help="The seed of the partition and the fresh model.")] = 0,
    data_folder: Data = None,
    out: Annotated[Path, typer.Option(help="Folder for numbers, page and figure.")] = Path("theorem"),
    json: Json = False,
) -> None:
    """Measure the paper's theorem: how far FedUHB is from Retrain, compared with both bounds.

    Both methods run on l2-regularised softmax regression with full gradients, for which every constant of the theorem is known.
    This takes about a minute on two cores.
    """
    from feduhb_reproduction.theorem import TheoremSettings, run_theorem
    from feduhb_reproduction.theorem_page import headline, summary, write_theorem

    with answering(json) as answer:
        settings = TheoremSettings(
            data=data, clients=clients, partition=partition, forget=forget, betas=parse_numbers("--betas", betas),
            regulariser=regulariser, rounds=rounds, seed=seed,
        )  # fmt: skip
        found = run_theorem(out, settings, folder=data_folder, show="auto" if json else "lines")
        written = [out / "theorem.json", *write_theorem(out)]
        answer.update(summary(found), written=[str(path) for path in written])
        if not json:
            typer.echo("\n".join([headline(found), *map(str, written)]))
