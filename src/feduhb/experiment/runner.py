"""What the command line asks for: runs described by words and config files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from feduhb.core.types import Method
from feduhb.data.federation import Federation
from feduhb.errors import ConfigError
from feduhb.experiment.api import train, unlearn
from feduhb.experiment.federations import build_federation
from feduhb.experiment.runs import Run, method_for
from feduhb.experiment.settings import Config, FederationSettings, TrainSettings
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
    return train_in(federation, config.train, out, resume=resume, show=show)


def train_in(
    federation: Federation,
    how: TrainSettings,
    out: Path,
    *,
    resume: bool = False,
    checkpoint_every: float = 0.0,
    show: Show = "auto",
) -> Run:
    """Train a federation as [train] says."""
    return train(
        federation, how.rounds, epochs=how.epochs, batch_size=how.batch_size, lr=how.lr, l2=how.l2,
        aggregate=how.aggregate, clients_per_round=how.clients_per_round, engine=how.engine, keep_history=how.keep_history,
        out=out, resume=resume, checkpoint_every=checkpoint_every, show=show,
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


def sweep_methods(run: Run, momenta: Sequence[float]) -> dict[str, Method[Any]]:
    """Make FedUHB with each of these momenta, by name."""
    return {f"feduhb-{beta:g}": method_for("feduhb", run.settings, momentum=beta) for beta in momenta}


def sweep(
    run: Run,
    forget: str,
    methods: Mapping[str, Method[Any]],
    *,
    rounds: int = 40,
    out: Path,
    resume: bool = False,
    show: Show = "auto",
) -> dict[str, Run]:
    """Serve one request by several methods without a stop rule: with a small momentum it would stop early."""
    return {
        name: unlearn(
            run, forget, method=method, rounds=rounds, stop=never, out=out / name, keep_history=False,
            erase_history=False, resume=resume, show=show,
        )
        for name, method in methods.items()
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
