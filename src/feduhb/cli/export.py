"""`feduhb export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Data, DataFrom, Json, MethodFrom, RunArgument, answering

ALONE = "written from the run folder alone: a parameter that the module has under two names is there once"


def export(
    run: RunArgument,
    out: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="A file that ends in .safetensors, .pt, .onnx or .md (the model card), or a folder for weights and card.",
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(help="safetensors, pt, onnx, card or folder; if not given, the suffix of PATH decides."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    data: Data = None,
    data_from: DataFrom = None,
    method_from: MethodFrom = None,
    json: Json = False,
) -> None:
    """Write the model of a run to a file, or the model card that describes it.

    Example: feduhb export runs/first-feduhb --out model.safetensors

    The weights have the names of the model's state_dict. ONNX needs the extra onnx. If the data of RUN is gone, or comes from code that is neither named by --data-from nor trusted, the weights are written from the folder alone.

    Copies are not deleted with RUN: before you retire a run, delete its exports.
    """
    from feduhb.errors import DataError
    from feduhb.runs.export import can_open, choose_format, export_folder
    from feduhb.runs.folder import RunFolder
    from feduhb.runs.run import open_run

    with answering(json) as answer:
        kind = choose_format(out, format)
        opened, reason = None, None
        if kind != "card" and (data_from is not None or can_open(RunFolder(run))):
            try:
                opened = open_run(run, data=data, data_from=data_from, method_from=method_from or ())
            except DataError as error:  # its data is gone
                if kind == "onnx" or data is not None or data_from is not None:
                    raise
                reason = error
        if alone := opened is None:
            export_folder(run, out, format=format, overwrite=overwrite)
        else:
            opened.export(out, format=format, overwrite=overwrite)
        answer.update(written=str(out), format=kind, from_folder_alone=alone)
        if not json:
            typer.echo(str(out))
            if reason is not None:
                typer.echo(f"feduhb: {reason}", err=True)
            if alone and kind != "card":
                typer.echo(f"feduhb: {ALONE}", err=True)
