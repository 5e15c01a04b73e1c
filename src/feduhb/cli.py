"""The command line: `feduhb demo | train | unlearn | compare | report`."""

from __future__ import annotations

import contextlib
import json as json_format
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from feduhb.errors import ConfigError, FeduhbError

app = typer.Typer(
    name="feduhb",
    help="Exact federated unlearning: forget clients, rows or classes by retraining fast with Polyak's heavy ball.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)
]
Forget = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        show_default=False,
        help="Clients (c00,c01), rows of a client (c02:0-9+12) or a class (class:3), separated by commas. "
        "Rows are counted from 0 in the data that the client joined with.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where the files of mnist are; else FEDUHB_DATA.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, for a program to read.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on after a crash: the result is the same, bit for bit.")
]


def main() -> None:
    """Run the command line."""
    app()


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        from feduhb import __version__

        typer.echo(f"feduhb {__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where runs, figures and the report go.")] = Path("demo"),
    json: Json = False,
) -> None:
    """See the whole story on real data, in about a minute on two cores.

    Twenty clients learn handwritten digits; two of them plant a backdoor, then ask to be forgotten.

    FedUHB, Retrain, FedEraser and FedRecover each make a model without them. A table, figures and a page show the outcome.
    """
    from feduhb.demo import run_demo

    with _answering(json) as answer:
        answer.update(run_demo(out, quiet=json))


@app.command()
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

    with _answering(json) as answer:
        settings = read_config(config)
        if engine is not None:
            settings = replace(settings, train=replace(settings.train, engine=engine))
        if keep_history and not settings.train.keep_history:
            settings = replace(settings, train=replace(settings.train, keep_history=True))
        run = train_from(settings, out, data=data, resume=resume, show="auto" if json else "lines")
        _finish(answer, run.folder, json)


@app.command()
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

    The old run's history is erased from the leavers' first round on. Its model stays: delete it once the new one has taken its place.
    """
    from feduhb.experiment.runner import folder_beside, unlearn_from
    from feduhb.experiment.runs import open_run

    with _answering(json) as answer:
        settings = {"momentum": momentum, "step_size": step_size, **_settings(setting or [])}
        opened = open_run(run, data=data)
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
        _finish(answer, new.folder, json)


@app.command()
def compare(
    run: RunArgument,
    forget: Forget,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Which, separated by commas; all that the run can serve if not given.", show_default=False
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
    from feduhb.experiment.runner import folder_beside
    from feduhb.experiment.runs import open_run

    with _answering(json) as answer:
        opened = open_run(run, data=data)
        names = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
        if names == []:
            raise ConfigError("--methods names nobody; write for example feduhb,retrain")
        place = out or folder_beside(run, "compare")
        show = "auto" if json else "lines"
        done = api.compare(opened, forget, names, rounds=rounds, out=place, resume=resume, show=show)
        _report(answer, [run, *(place / name for name in done)], place, json)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Where table, figures and HTML go.")] = Path("report"),
    json: Json = False,
) -> None:
    """Write tables, figures and one self-contained HTML page about finished runs."""
    with _answering(json) as answer:
        _report(answer, runs, out, json)


def _settings(given: list[str]) -> dict[str, float]:
    """Read NAME=NUMBER, whole numbers as such."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = int(value) if value.strip().lstrip("-").isdigit() else float(value)
        except ValueError:
            raise ConfigError(
                f"--set {text!r} is no NAME=NUMBER; write for example --set correction=0"
            ) from None
    return found


def _finish(answer: dict[str, Any], folder: Path | None, json: bool) -> None:
    """Say what a run folder came to."""
    from feduhb.records import RunFolder

    assert folder is not None  # noqa: S101 (these runs always have one)
    result = RunFolder(folder).result()
    answer.update(run=str(folder), **result)
    name = result["method"] if "unlearn" in RunFolder(folder).config() else "train"
    if not json:
        scores = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in result["scores"].items())
        typer.echo(f"{name}: {result['rounds']} rounds, {scores}; {result['stopped']}\n{folder}")


def _report(answer: dict[str, Any], runs: list[Path], out: Path, json: bool) -> None:
    from rich.console import Console

    from feduhb.report import read_runs, write_report
    from feduhb.report.tables import as_json, rich_table

    views = read_runs(runs)
    written = write_report(runs, out)
    answer.update(runs=as_json(views), written=[str(path) for path in written])
    if not json:
        Console().print(rich_table(views))
        typer.echo("\n".join(str(path) for path in written))


@contextlib.contextmanager
def _answering(json: bool) -> Generator[dict[str, Any]]:
    """Collect a command's answer; print it as JSON if wanted; say errors in one line and exit 2."""
    answer: dict[str, Any] = {}
    try:
        yield answer
    except FeduhbError as error:
        if json:
            typer.echo(json_format.dumps({"error": {"kind": type(error).__name__, "message": str(error)}}))
        typer.echo(f"feduhb: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo(
            "feduhb: interrupted; finished rounds are kept, and train, unlearn and compare go on with --resume",
            err=True,
        )
        raise typer.Exit(130) from None
    if json:
        typer.echo(json_format.dumps(answer, indent=2 if sys.stdout.isatty() else None))


if __name__ == "__main__":
    main()
