"""What the command line asks for: runs described by words and config files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from feduhb.errors import ConfigError
from feduhb.experiment.api import train, unlearn
from feduhb.experiment.federations import build_federation
from feduhb.experiment.runs import Run, method_for
from feduhb.experiment.settings import Config, FederationSettings
from feduhb.run.progress import Show
from feduhb.stopping import StopRule, dynamic_stop, never


def train_from(
    config: Config, out: Path, *, data: Path | None = None, resume: bool = False, show: Show = "auto"
) -> Run:
    """Train as a config file says."""
    if config.unlearn is not None:
        raise ConfigError(
            "this config has an [unlearn] table, so it describes an unlearning; train without it, then feduhb unlearn"
        )
    federation = build_federation(config.federation or FederationSettings(), config.seed, data)
    how = config.train
    return train(
        federation, how.rounds, epochs=how.epochs, batch_size=how.batch_size, lr=how.lr, l2=how.l2,
        aggregate=how.aggregate, clients_per_round=how.clients_per_round, engine=how.engine, keep_history=how.keep_history,
        out=out, resume=resume, show=show,
    )  # fmt: skip


def unlearn_from(
    run: Run,
    forget: str,
    method: str,
    *,
    settings: Mapping[str, float] | None = None,
    rounds: int = 40,
    stop: tuple[str, int | None, float] = ("auto", None, 0.0),
    out: Path,
    resume: bool = False,
    show: Show = "auto",
) -> Run:
    """Unlearn with a method and a stop rule given in words."""
    chosen = method_for(method, run.settings, **(settings or {}))
    rule = stop_named(*stop, momentum=getattr(chosen, "momentum", None))
    return unlearn(run, forget, method=chosen, rounds=rounds, stop=rule, out=out, resume=resume, show=show)


def sweep(
    run: Run,
    forget: str,
    momenta: Sequence[float],
    *,
    rounds: int = 40,
    out: Path,
    resume: bool = False,
    show: Show = "auto",
) -> dict[str, Run]:
    """Serve one request by FedUHB with several momenta, all rounds of each: a small one would make the rule stop early."""
    chosen = {f"feduhb-{beta:g}": method_for("feduhb", run.settings, momentum=beta) for beta in momenta}
    return {
        name: unlearn(
            run, forget, method=method, rounds=rounds, stop=never, out=out / name, keep_history=False,
            erase_history=False, resume=resume, show=show,
        )
        for name, method in chosen.items()
    }  # fmt: skip


def stop_named(
    word: str, window: int | None, floor: float, *, momentum: float | None
) -> Literal["auto"] | StopRule:
    """Read a stop rule: "auto", "never", or lambda; ``momentum`` is the method's, if it has one."""
    plain = window is None and floor == 0
    if word in {"auto", "never"} and plain:
        return never if word == "never" else "auto"
    if word == "never" or (word == "auto" and momentum is None):
        raise ConfigError(
            f"--window and --floor belong to the dynamic rule, but --stop is {word}; give its lambda too: --stop 0.6"
        )
    try:
        scale = 0.6 if word == "auto" else float(word)
    except ValueError:
        raise ConfigError(
            f"the stop rule {word!r} cannot be read; write auto, never, or lambda, such as 0.6"
        ) from None
    return dynamic_stop(scale, window=window, floor=floor, momentum=momentum or 0.0)


def folder_beside(run: Path, word: str) -> Path:
    """Name a folder after a run, beside it."""
    place = run.resolve()
    return place.with_name(f"{place.name}-{word}")
