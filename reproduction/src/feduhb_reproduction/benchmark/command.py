"""`feduhb benchmark`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli import Data, Json, answering
from feduhb_reproduction.command_options import (
    CELLS_KEPT,
    Engine,
    Minutes,
    Only,
    Seeds,
    Workers,
    parse_seeds,
)


def benchmark(
    what: Annotated[
        str,
        typer.Argument(
            metavar="BENCHMARK",
            help="breast-cancer, mnist-5k, mnist, cifar10, or the path of a benchmark of your own.",
        ),
    ] = "breast-cancer",
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD",
            help="Add a method of your own: file.py:Class, module:Class, or a registered name; can be repeated.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for cells, page and figure; default: benchmark-BENCHMARK.",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
    engine: Engine = "auto",
    workers: Workers = None,
    seeds: Seeds = None,
    only: Only = None,
    minutes: Minutes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what is missing, and exit.")] = False,
    json: Json = False,
) -> None:
    """Compare every method on the same requests, with audits and costs.

    Example: feduhb benchmark breast-cancer --method my_method.py:Mine --out results/benchmark/breast-cancer

    A cell is one federation with one seed. It is trained once; every registered method serves the same request, and so does yours; and
    all of their models are audited. The methods that refused the request are listed under the table. The table is printed at the end, your row
    marked by *, and FOLDER/README.md holds it with a figure of accuracy against client work.

    A run that fails, because memory ran out, say, does not stop the others: it stays missing, and the command names it at the end.
    If the command ends, start it again: what is in the cells' files is kept, and an interrupted cell continues. After --minutes no run
    begins, and running ones are interrupted; what was made is audited and written, which takes a few minutes more on a GPU. A method of
    your own runs again after its file has changed. To add cells from other machines, copy their files into FOLDER/cells.

    breast-cancer and mnist-5k take minutes on two cores. mnist and cifar10 are for a GPU.
    """
    from feduhb_reproduction.benchmark.design import find_benchmark, name_runs, read_benchmark
    from feduhb_reproduction.benchmark.make import check_benchmark, run_benchmark
    from feduhb_reproduction.benchmark.page import print_rows, write_benchmark
    from feduhb_reproduction.reproduce import CellsError

    with answering(json, CELLS_KEPT) as answer:
        path = find_benchmark(what)
        bench, own = read_benchmark(path), name_runs(method or [])
        folder = out or Path(f"benchmark-{path.stem}")
        chosen = {"own": own, "seeds": parse_seeds(seeds), "only": only or ()}
        failed: CellsError | None = None
        try:
            found = check_benchmark(bench, folder, **chosen) if dry_run else run_benchmark(
                bench, folder, data=data, engine=engine, workers=workers, minutes=minutes, **chosen,
                command=f"feduhb benchmark {path.name if what.endswith('.toml') else what} --engine {engine}",
                show="auto" if json else "lines",
            )  # fmt: skip
        except CellsError as error:
            failed, found = error, check_benchmark(bench, folder, **chosen)
        written = [] if dry_run or not any(folder.glob("cells/*.json")) else write_benchmark(bench, folder)
        answer.update(
            done=found.done, missing=sum(len(one.runs) for one in found.missing), written=[str(file) for file in written]
        )  # fmt: skip
        if not json:
            rows = print_rows(folder, list(own)) if written else []
            typer.echo("\n".join([*rows, str(found), *map(str, written)]))
        if failed:
            raise failed
