"""`feduhb trust`."""

from __future__ import annotations

import typer

from feduhb.cli.options import Json, RunArgument, answering


def trust(run: RunArgument, json: Json = False) -> None:
    """Permit feduhb to run your own code that a run names, and print which code that is.

    Example: feduhb trust runs/first

    A run on your own data or by your own method names code: package.module:name, or file.py:name. A run folder may come from somebody else, so feduhb imports nothing that it names. Runs that you made yourself from code that you named are trusted from the start. For any other, read the code that this command prints before you use the run.

    The code is looked for among the installed modules, then in the working directory. The permission is a file in RUN, trust.json. It holds for you alone and for this config.toml, and moves with the folder. Delete the file to take it back.
    """
    from feduhb.runs.trust import trust_run

    with answering(json) as answer:
        found = trust_run(run)
        answer.update(
            run=str(run),
            trusted=[{"code": one.code, "file": str(one.file), "sha256": one.sha256} for one in found],
        )
        if not json:
            for one in found:
                typer.echo(f"{one.code} will be run from {one.file}\n  SHA-256 {one.sha256}")
            typer.echo(
                f"{run} is trusted: commands and feduhb.open_run import this code, and what it imports"
            )
