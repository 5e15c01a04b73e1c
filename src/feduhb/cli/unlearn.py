"""`feduhb unlearn`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from feduhb.cli import options
from feduhb.cli.retire import Unaudited, print_retired
from feduhb.errors import ConfigError
from feduhb.stopping import DistanceStop, DynamicStop, Patience, StopRule, dynamic_stop, never

if TYPE_CHECKING:
    from feduhb.runs.run import Run

WATCHED = ("held-out-accuracy", "held-out-loss", "distance")


def unlearn(
    run: options.RunArgument,
    forget: options.Forget,
    method: Annotated[
        str,
        typer.Option(
            help="fast (the recommended method: FedUHB with momentum 0.7 and step size 2), feduhb (with the paper's settings), "
            "retrain, federaser, fedrecover, nesterov, fedadam, fedyogi, fednadam, fedexp, rapidretrain, rollback, finetune, not, "
            "pga, fedaf, fedrecovery, crab, wu, a method of another package, or one of your own: package.module:Class or "
            "file.py:Class."
        ),
    ] = "feduhb",
    rounds: options.Rounds = None,
    momentum: Annotated[
        float | None,
        typer.Option(
            help="The momentum beta of FedUHB and Nesterov, at least 0 and below 1; 0.9 if not given."
        ),
    ] = None,
    step_size: Annotated[
        float | None,
        typer.Option(help="The step size alpha of FedUHB, Nesterov and Retrain; 1.0 if not given."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=NUMBER", help="Any other setting of the method, such as correction=0."
        ),
    ] = None,
    stop: Annotated[
        str,
        typer.Option(
            help="auto (the method's own rule); never; a number such as 0.6 (the lambda of the paper's rule); held-out-accuracy "
            "(the main score on the remaining clients' held-out data); held-out-loss; or distance (to the fresh model, which "
            "needs no data)."
        ),
    ] = "auto",
    window: Annotated[
        int | None, typer.Option(help="The last rounds that the paper's rule uses; all rounds if not given.")
    ] = None,
    floor: Annotated[float, typer.Option(help="The paper's epsilon, its rule's smallest threshold.")] = 0.0,
    patience: Annotated[
        int | None,
        typer.Option(
            help="For held-out-accuracy and held-out-loss: stop after this many rounds without a gain, 10 if not given. For "
            "distance: the rounds over which it must grow, 5 if not given."
        ),
    ] = None,
    gain: Annotated[
        float | None,
        typer.Option(
            help="The smallest gain that counts: in the accuracy (0.005 if not given, which is 0.5 points), as a share of the loss "
            "(0.005) or as a share of the distance (0.03)."
        ),
    ] = None,
    keep: options.Keep = "last",
    record: options.Record = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the new run; RUN-METHOD beside RUN if not given.")
    ] = None,
    resume: options.Resume = False,
    allow_revival: Annotated[
        bool,
        typer.Option(
            "--allow-revival",
            help="Serve the request although a later run has forgotten more than RUN, and the new run would learn that again.",
        ),
    ] = False,
    retire: Annotated[
        bool,
        typer.Option(
            "--retire",
            help="Afterwards audit the new run, with the audit's defaults, and delete RUN if the audit passes: see feduhb retire.",
        ),
    ] = False,
    unaudited: Unaudited = None,
    data: options.Data = None,
    data_from: options.DataFrom = None,
    method_from: options.MethodFrom = None,
    tensorboard: options.TensorBoard = None,
    json: options.Json = False,
) -> None:
    """Forget clients, rows or a class: retrain a fresh model on the data that remains.

    Example: feduhb unlearn runs/first --forget c00,c01

    Serve the next request from the new run, here runs/first-feduhb: it records what has been forgotten.

    The new run has the seed of the old one, so that methods can be compared. This is meant for simulations, where one machine has all data: the difference of the two first sums is the leavers' update. Flower strategies draw a new seed for every run.

    With --method rollback, the training continues from the last model that it kept (feduhb train --keep-models) before it asked a leaver. It gives the same weights as training all rounds again without the leavers, with the training's rounds and stop rule.

    The history and the kept models of the old run, and of the runs it came from, are erased from the leavers' first round on. The old model is deleted only with --retire, or later by feduhb retire RUN, once the new one has replaced it.
    """
    from feduhb import api
    from feduhb.data.request import Request
    from feduhb.runs.run import choose_method, open_run

    with options.answering(json, options.CONTINUE) as answer:
        if unaudited is not None and not (retire and unaudited.strip()):
            raise ConfigError(
                "--unaudited gives a reason to --retire the old run without an audit; give both, or neither"
            )
        given = {"momentum": momentum, "step_size": step_size, **options.parse_settings(setting or [])}
        opened = open_run(run, data=data, data_from=data_from, method_from=method_from or ())
        request = Request.parse(forget)
        settings = {key: value for key, value in given.items() if value is not None}
        chosen = choose_method(method, opened.settings, **settings)
        new = api.unlearn(
            opened,
            request,
            method=chosen,
            rounds=rounds,
            stop=parse_stop(stop, window, floor, chosen.method.default_stop(), patience, gain),
            keep=keep,  # pyright: ignore[reportArgumentType] (checked there)
            record=options.parse_record(record),
            out=out or options.name_folder(run, chosen.method.name),
            resume=resume,
            allow_revival=allow_revival,
            show=options.choose_show(json, tensorboard),
        )
        options.print_run(answer, new.folder, json)
        answer.update(erased=[asdict(one) for one in new.erased])
        if new.expected is not None:
            answer.update(expected=new.expected.as_json())
        if not json:
            typer.echo("".join(f"{one}\n" for one in new.erased), nl=False)
        if retire:
            _retire(answer, opened, new, unaudited, json)


def _retire(answer: dict[str, Any], old: Run, new: Run, unaudited: str | None, json: bool) -> None:
    """Audit the new run, unless there is a reason not to, and retire the old one."""
    from feduhb.audit.audit import audit
    from feduhb.runs.retire import plan_retirement

    if unaudited is None:
        found = audit(new, old, show="auto" if json else "lines")
        answer.update(audits=[found.as_json()])
        if not json:
            typer.echo(f"\n{found}\n")
    plan = plan_retirement(old, new, unaudited)
    print_retired(answer, plan, plan.carry_out(), json)


def parse_stop(
    word: str,
    window: int | None,
    floor: float,
    default: StopRule,
    patience: int | None = None,
    gain: float | None = None,
) -> Literal["auto"] | StopRule:
    """Parse a stop rule: "auto" (the method's own, which is ``default``), "never", the dynamic rule's lambda, or what a rule watches."""
    if word in WATCHED:
        return _make_watching(word, window, floor, patience, gain)
    if patience is not None or gain is not None:
        raise ConfigError(
            f"--patience and --gain belong to {', '.join(WATCHED)}, but --stop is {word}; write for example --stop {WATCHED[0]}"
        )
    dynamic = default if isinstance(default, DynamicStop) else None
    if word in {"auto", "never"}:
        if window is None and floor == 0:
            return "auto" if word == "auto" else never
        if word == "auto" and dynamic is not None:
            return replace(dynamic, window=window, floor=floor)
        raise ConfigError(
            f"--window and --floor need the dynamic stop rule, but --stop {word} does not use it; give its lambda too: --stop 0.6"
        )
    try:
        scale = float(word)
    except ValueError:
        raise ConfigError(
            f"--stop {word!r} is not a stop rule; write auto, never, {', '.join(WATCHED)}, or the paper's lambda, such as 0.6"
        ) from None
    return dynamic_stop(scale, window=window, floor=floor, momentum=dynamic.momentum if dynamic else 0.0)


def _make_watching(
    word: str, window: int | None, floor: float, patience: int | None, gain: float | None
) -> StopRule:
    """Return the rule that watches what ``word`` names."""
    if window is not None or floor:
        raise ConfigError(
            f"--window and --floor belong to the paper's rule, but --stop is {word}; give --patience and --gain instead"
        )
    names = ("window", "share") if word == "distance" else ("rounds", "gain")
    given = dict(zip(names, (patience, gain), strict=True))
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return DistanceStop(**settings) if word == "distance" else Patience(word.replace("-", "_"), **settings)
