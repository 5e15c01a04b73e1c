"""A finished run, and how its folder is opened again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from feduhb.core.aggregate import rule_named
from feduhb.core.flat import flatten, with_params
from feduhb.core.types import Engine, Local, Method
from feduhb.data.federation import Federation
from feduhb.data.gone import numbered_as_before, still_there
from feduhb.data.request import Request
from feduhb.errors import ConfigError, RunFolderError
from feduhb.experiment.config import parse_config
from feduhb.experiment.federations import build_federation
from feduhb.experiment.settings import Config, TrainSettings
from feduhb.history import DiskHistory, Earlier
from feduhb.history import earlier as chain
from feduhb.methods import method_named, settings_named
from feduhb.methods.replaying import replays
from feduhb.methods.retrain import Plain
from feduhb.records import Round, RunFolder, why_ended
from feduhb.run.checkpoint import load_params, load_state
from feduhb.run.folder import HISTORY
from feduhb.stopping import StopRule, never

EngineMaker = Callable[[Federation, Local], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run: what took part, how, and what came out."""

    federation: Federation  # those who took part
    original: Federation  # before anybody was forgotten
    settings: TrainSettings
    method: Method[Any]
    state: Any
    rounds: tuple[Round, ...]
    forgot: Request | None = None
    earlier: tuple[Earlier, ...] = ()  # the runs it came from that had a folder, nearest first
    folder: Path | None = None
    engine: str | EngineMaker = "auto"
    block: int | None = None  # clients trained at once, where bits depend on that
    scheduled: int  # rounds at most
    stop: StopRule = never

    @property
    def params(self) -> Tensor:
        """The weights, flat [P]."""
        return self.state.params

    @property
    def stopped(self) -> str:
        """Why it ended, in words."""
        return why_ended(self.rounds)

    @property
    def history(self) -> DiskHistory | None:
        """What was kept for methods that replay it; None where nothing was, or an erasure took it."""
        kept = None if self.folder is None else DiskHistory(self.folder / HISTORY)
        return kept if kept and kept.rounds else None

    def model(self) -> nn.Module:
        """Give the module with these weights."""
        return with_params(self.federation.fresh_model(), self.params.cpu())

    def __repr__(self) -> str:
        accuracy = self.rounds[-1].scores.get("test_accuracy") if self.rounds else None
        scored = "" if accuracy is None else f", test accuracy {accuracy:.1%}"
        without = f" without {self.forgot}" if self.forgot else ""
        return f"Run({self.method.name}{without}, {len(self.rounds)} rounds{scored}: {self.stopped})"


def open_run(
    folder: str | Path,
    federation: Federation | None = None,
    *,
    method: Method[Any] | None = None,
    data: str | Path | None = None,
) -> Run:
    """Open a finished run folder.

    Args:
        federation: the clients' data, where a config cannot name it. It must be the very data of the run; what was forgotten may
            be deleted from it, whole clients and rows (not a class), and is then left out of whatever is asked of the run.
        method: the run's, where it is none of ours.
        data: the folder with the files of "mnist" or "cifar10"; else FEDUHB_DATA, else a cache.
    """
    files = RunFolder(Path(folder))
    config = parse_config(files.config(), str(files.config_path))
    files.result()
    earlier = chain.read(files.path)
    original, remaining = _before_and_after(federation or _described(files, config, data), config, earlier)
    _same_data(files, config, remaining)
    chosen = method or _method_of(files, config)
    if replays(chosen):  # its state belongs to a history that may be gone; the model does not
        state, done = Plain(load_params(files.state_path)), len(files.rounds())
    else:
        state, done = load_state(files.state_path, chosen.init(flatten(remaining.fresh_model())))
    return Run(
        federation=remaining,
        original=original,
        settings=config.train,
        method=chosen,
        state=state,
        rounds=tuple(files.rounds()[:done]),
        forgot=Request.parse(config.unlearn.forget) if config.unlearn else None,
        earlier=earlier,
        folder=files.path,
        engine=config.train.engine,
        block=block_of(files),
        scheduled=config.unlearn.rounds if config.unlearn else config.train.rounds,
        stop=(config.unlearn and config.unlearn.stop) or never,
    )


def block_of(folder: RunFolder) -> int | None:
    """Give the block that a run was begun with, whatever memory is free now; None where bits do not depend on it."""
    found = re.search(r", blocks of (\d+),", str(folder.config().get("made_by", "")))
    return int(found[1]) if found else None


def method_for(name: str, settings: TrainSettings, **changes: Any) -> Method[Any]:
    """Make a method by name with the epochs and the aggregation of a run, where it has those."""
    wanted = {"epochs": settings.epochs, "aggregate": rule_named(settings.aggregate)}
    fitting = {key: value for key, value in wanted.items() if key in settings_named(name)}
    return method_named(name, **{**fitting, **changes})


def _method_of(files: RunFolder, config: Config) -> Method[Any]:
    if config.unlearn is None:
        return method_for("retrain", config.train)
    settings: dict[str, Any] = dict(config.unlearn.settings)
    try:
        if "aggregate" in settings:
            settings["aggregate"] = rule_named(settings["aggregate"])
        return method_named(config.unlearn.method, **settings)
    except ConfigError as error:
        raise RunFolderError(
            f"{files.path} was made by a method or rule of your own ({str(error).partition(';')[0]}); "
            f"open it in Python with that method: feduhb.open_run({str(files.path)!r}, method=...)"
        ) from None


def _before_and_after(
    given: Federation, config: Config, earlier: Sequence[Earlier]
) -> tuple[Federation, Federation]:
    """Give a run's federation with whatever is still there of the forgotten data, and without."""
    if config.unlearn is None:
        return given, given
    request = Request.parse(config.unlearn.forget)
    if all(words.startswith("remote") for words in config.clients.values()):  # nothing is here to be deleted
        return given, given.without(request)
    requests = [*(Request.parse(one.forgot) for one in earlier if one.forgot), request]
    original = numbered_as_before(given, requests, config.clients)
    rest = still_there(original, request)
    return original, original if rest is None else original.without(rest)


def _described(files: RunFolder, config: Config, data: str | Path | None) -> Federation:
    if config.federation is None:
        raise RunFolderError(
            f"the clients' data of {files.path} came from Python code; open it there: feduhb.open_run({str(files.path)!r}, federation)"
        )
    return build_federation(config.federation, config.seed, Path(data) if data else None)


def _same_data(files: RunFolder, config: Config, remaining: Federation) -> None:
    """Refuse a federation that is not the one the run was made with."""
    found = remaining.fingerprints()
    if other := [c for c in sorted({*found, *config.clients}) if found.get(c) != config.clients.get(c)]:
        raise RunFolderError(
            f"{files.path} was made with other data of client {other[0]}; open it with the data of its run"
        )
