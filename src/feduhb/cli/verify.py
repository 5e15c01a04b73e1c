"""`feduhb verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Json, answering, list_runs


def verify(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A run's state.safetensors, a safetensors file of a module's state_dict, or a file of torch.save with one.",
        ),
    ],
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a run that has ended, or was retired.", autocompletion=list_runs
        ),
    ],
    json: Json = False,
) -> None:
    """Check whether a file holds the weights that a run ended with, and whether its audit judged these.

    Example: feduhb verify model.safetensors runs/first-feduhb

    Compare the SHA-256 of the weights with the one in result.json, or in retired.json. The exit status is 0 if they are the same, 1 if they are not, and 2 if that cannot be judged. Code in a file of torch.save is never run.
    """
    from dataclasses import asdict

    from feduhb.runs.verify import verify_weights

    with answering(json) as answer:
        found = verify_weights(model, run)
        answer.update(asdict(found))
        if found.audit is not None:
            answer["audit"]["path"] = str(found.audit.path)
        if not json:
            typer.echo(found.says)
            if found.audit is None:
                typer.echo(f"{run} has no audit")
            elif found.audit.problem:
                typer.echo(found.audit.problem)
            else:
                about = "judged these weights" if found.judged else "judged other weights"
                said = f"{found.audit.verdict} (about {found.audit.forgot})"
                typer.echo(f"the audit of {found.audit.finished[:10]} {about}: {said}")
    if not found.same:
        raise typer.Exit(1)
