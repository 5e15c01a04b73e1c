"""Finished runs, and opening them from their folders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import TypedDict

from feduhb.core.aggregate import parse_rule
from feduhb.core.describe import describe_as_recorded, digest_layers, name_function
from feduhb.core.flat import count_statistics, flatten, with_params
from feduhb.core.modules import list_carried
from feduhb.core.own_code import Code, find_code, is_code
from feduhb.core.scores import Best
from feduhb.core.types import BlockSize, ClientId, Engine, Method
from feduhb.data.deleted import restore_keys, select_held
from feduhb.data.federation import Federation
from feduhb.data.load import build_federation
from feduhb.data.own import make_federation
from feduhb.data.request import Request
from feduhb.engines import EngineMaker, make_engine
from feduhb.errors import ConfigError, RunFolderError
from feduhb.methods import (
    FAST,
    RECOMMENDED,
    change_method,
    check_method,
    list_settings,
    load_method,
    make_method,
    restore_method,
)
from feduhb.methods.binding import uses_old_run
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import load_params, load_state
from feduhb.runs.config import OTHER_LAYERS, Config, TrainSettings, parse_config, validate
from feduhb.runs.expected import Expected
from feduhb.runs.folder import HISTORY, Round, RunFolder, explain_end, make_series
from feduhb.runs.held_out import Keep, find_kept
from feduhb.runs.history import DiskHistory
from feduhb.runs.lineage import Ancestor, Erased, check_chain, read_ancestors
from feduhb.runs.scores import format_score, list_scores, name_score
from feduhb.runs.start import check_start, describe_start
from feduhb.runs.statistics import WithStatistics
from feduhb.runs.trust import require_code
from feduhb.stopping import RecordedRule, Series, StopRule, never

# The settings of [train] that every run writes, also one of 0.1.0.
WRITTEN = ("rounds", "epochs", "batch_size", "lr", "l2", "aggregate", "engine", "keep_history")
CLIENT_ENGINE = "loop"  # the engine of Flower's clients, each of which trains alone


class FlowerTable(TypedDict, total=False):
    """[flower] in config.toml: what a Flower strategy records of a run."""

    start: str  # SHA-256 of the fresh model
    forget: str  # what a training left out because of earlier requests
    settings: dict[str, Any]  # of the method of a training
    train_config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run, with its federation, settings, method and final state."""

    federation: Federation  # the clients that took part
    original: Federation  # the federation before any client was forgotten
    settings: TrainSettings
    method: Method[Any]
    state: Any
    rounds: tuple[Round, ...]
    forgot: Request | None = None
    earlier: tuple[Ancestor, ...] = ()  # the runs with folders that it came from, nearest first
    folder: Path | None = None
    engine: str | EngineMaker = "auto"
    # How many clients were computed together, or "recorded", if bits depend on it.
    block: BlockSize | None = None
    scheduled: int  # the largest number of rounds
    stop: StopRule = never
    keep: Keep = "last"
    erased: tuple[Erased, ...] = ()  # what was deleted of histories and kept models when this run was made
    # The first round that this run itself ran: above 0 for a rollback from a kept model.
    restart_round: int = 0
    machine: Mapping[str, Any] = field(default_factory=dict)  # its engine, as result.json records it
    # Its cost, expected before it began; None for a training, and for a run that was opened or resumed.
    expected: Expected | None = None
    # Clients whose row numbers rest on a lineage that no run confirms any more.
    unconfirmed: tuple[ClientId, ...] = ()

    @property
    def params(self) -> Tensor:
        """The weights, flat [P]."""
        return self.state.params

    @property
    def seed(self) -> int:
        """The seed of the fresh model and of every draw in the run."""
        return self.federation.seed

    @property
    def stopped(self) -> str:
        """The reason why the run ended."""
        return explain_end(self.rounds)

    @property
    def series(self) -> Series:
        """What the rounds recorded, for `feduhb.replay`."""
        return make_series(self.rounds, self._best)

    @property
    def kept_round(self) -> int:
        """After how many rounds the model was the one that the run kept: all of them, unless it keeps the best model."""
        return find_kept(self.rounds, self.keep, self._best)

    @property
    def _best(self) -> Best:
        return self.federation.scores[0].best if self.federation.scores else "high"

    @property
    def history(self) -> DiskHistory | None:
        """The history of the run; None if none was kept or it was erased."""
        kept = None if self.folder is None else DiskHistory(self.folder / HISTORY)
        return kept if kept and kept.rounds else None

    def model(self) -> nn.Module:
        """Return a module with the weights and statistics of this run, in evaluation mode."""
        return with_params(self.federation.fresh_model(), self.params.cpu()).eval()

    def export(self, path: str | Path, *, format: str | None = None, overwrite: bool = False) -> Path:
        """Write the model to a file, readable by this user alone, and return the path.

        Args:
            path: its suffix decides: .safetensors or .pt (the state_dict under the model's own names), .onnx, .md (the model
                card), or none: a folder with model.safetensors and the card as README.md.
            format: "safetensors", "pt", "onnx", "card" or "folder", whatever the suffix.
            overwrite: replace an existing file.
        """
        from feduhb.runs.export import export_run  # needs this module for its types

        return export_run(self, path, format=format, overwrite=overwrite)

    def card(self) -> str:
        """Return the model card in Markdown: method, clients, request, scores, verdict and limits, from the run's folder."""
        from feduhb.report.card import make_card

        if self.folder is None:
            raise RunFolderError(
                "a model card is made from a run's folder, but this run has none; run it with out='runs/first'"
            )
        return make_card(self.folder)

    def reseed(self, seed: int) -> Run:
        """Return the run with another seed for the runs that follow it. Its weights and records stay."""
        if seed == self.seed:
            return self
        return replace(self, federation=self.federation.reseed(seed), original=self.original.reseed(seed))

    def make_engine(self) -> Engine:
        """Return an engine like the one of this run."""
        local = self.settings.local(self.federation)
        return make_engine(self.engine, self.federation, local, block=self.block)

    def __repr__(self) -> str:
        scores = self.rounds[self.kept_round - 1].scores if self.rounds else {}
        names = list_scores(scores)[:1]
        scored = "".join(f", {name_score(name)} {format_score(name, scores[name])}" for name in names)
        without = f" without {self.forgot}" if self.forgot else ""
        return f"Run({self.method.name}{without}, {len(self.rounds)} rounds{scored}: {self.stopped})"


def open_run(
    folder: str | Path,
    federation: Federation | None = None,
    *,
    method: Method[Any] | None = None,
    data: str | Path | None = None,
    data_from: str | None = None,
    method_from: str | Sequence[str] = (),
) -> Run:
    """Return the finished run in a folder, with the seed that the folder records.

    A folder may name code of the user's own, and may come from somebody else. That code is imported only if you name it
    again here, or trusted the folder: `feduhb trust FOLDER`. Runs that you made from such code are trusted from the start.

    Args:
        federation: the clients' data, if it came from Python code. It must be the data of the run. Forgotten clients and
            rows (but not a class) may have been deleted from it. For a run of a Flower strategy, whose server never saw
            the data, give the data of all clients by the server's client ids.
        method: the run's method, if it has no registered name.
        data: the folder with the files of "mnist" or "cifar10"; None takes FEDUHB_DATA, or else a cache.
        data_from: a function that returns the federation, "package.module:function" or "file.py:function", in place of
            ``federation``.
        method_from: the run's method, "package.module:Class" or "file.py:Class", in place of ``method``; of several, the
            one with the name of the run's method.
    """
    if federation is not None and data_from is not None:
        raise ConfigError("federation and data_from both give the data; give one of them")
    files = RunFolder(Path(folder))
    values = files.config()
    strategy = validate(FlowerTable, values.pop("flower", {}), f"{files.config_path} [flower]")
    config = parse_config(values, str(files.config_path))
    _check_complete(files, values)
    result, rounds = files.result(), files.rounds()
    forgot = Request.parse(config.unlearn.forget) if config.unlearn else None
    ancestors = read_ancestors(files.path)
    check_chain(files.path, ancestors, forgot)
    given = (federation or _load_federation(files, config, data, data_from)).reseed(config.seed)
    if strategy:
        given = _without_earlier(given, strategy.get("forget"))
    original, remaining = _split_federation(given, config, ancestors)
    if strategy:
        _check_clients(files, rounds, remaining)
    else:
        _check_fingerprints(files, remaining, config)
        _check_functions(files, remaining, config, result["engine"])
    module = remaining.fresh_model()
    _check_layers(files, module, config)
    given_start = remaining.start == "given"
    start = describe_start(module, given=given_start) if given_start or list_carried(module) else None
    if config.start is not None or (start is not None and not strategy):
        check_start(files.path, config.start, start)
    named = (method_from,) if isinstance(method_from, str) else method_from
    chosen = _find_method(files, config, strategy, named) if method is None else check_method(method)
    if uses_old_run(chosen):
        params = load_params(files.state_path)
    else:  # earlier versions kept the whole state
        fresh = flatten(module)
        count = count_statistics(module)
        whole = (WithStatistics(chosen, count) if count else chosen).init(fresh)
        params = load_state(files.state_path, Plain(fresh), whole)[0].params
    files.check_weights()
    if len(rounds) != result["rounds"]:
        raise RunFolderError(
            f"{files.rounds_path} holds {len(rounds)} rounds, but result.json counts {result['rounds']}; "
            f"restore a backup, or delete {files.path} and run again"
        )
    return Run(
        federation=remaining,
        original=original,
        settings=_read_training(config, ancestors) if strategy else config.train,
        method=chosen,
        state=Plain(params),
        rounds=tuple(rounds),
        forgot=forgot,
        earlier=ancestors,
        folder=files.path,
        engine=CLIENT_ENGINE if strategy else config.train.engine,
        block=config.block,
        scheduled=config.unlearn.rounds if config.unlearn else config.train.rounds,
        stop=_find_stop(config, chosen),
        keep=(config.unlearn or config.train).keep or "last",
        restart_round=(config.unlearn.restart_round if config.unlearn else None) or 0,
        machine=result["engine"],
        unconfirmed=_list_unconfirmed(given, original, ancestors),
    )


class Chosen(NamedTuple):
    """A method to run."""

    method: Method[Any]
    code: Code | None = None  # what names it, if it is the user's own


def choose_method(given: str | Method[Any] | Chosen, settings: TrainSettings, **changes: Any) -> Chosen:
    """Return the method that a name, "fast", or "module:Class" or "file.py:Class", stands for; anything else as it is.

    Args:
        settings: those of the run that is to forget.
        changes: settings of the method.
    """
    if isinstance(given, Chosen):
        return given
    if not isinstance(given, str):
        return Chosen(check_method(given))
    if given == FAST:
        name, recommended = RECOMMENDED
        return Chosen(adapt_method(name, settings, **recommended | changes))
    if not is_code(given):
        return Chosen(adapt_method(given, settings, **changes))
    code = find_code(given, Path.cwd())
    found = load_method(code)
    is_class = isinstance(found, type)
    made = adapt_method(found, settings, **changes) if is_class else change_method(found, **changes)
    if not re.fullmatch(r"\w[\w.+-]*", made.name):
        raise ConfigError(
            f"the method {code.text} has the name {made.name!r}, which cannot name a folder; use letters, digits and dashes"
        )
    return Chosen(made, code)


def adapt_method(name: str | type[Method[Any]], settings: TrainSettings, **changes: Any) -> Method[Any]:
    """Return a method by name, with the epochs and the aggregation rule of a run if it has these settings."""
    shared = {"epochs": settings.epochs, "aggregate": parse_rule(settings.aggregate)}
    known = list_settings(name)
    return make_method(name, **{key: value for key, value in shared.items() if key in known} | changes)


def _check_fingerprints(files: RunFolder, remaining: Federation, config: Config) -> None:
    """Raise RunFolderError unless the clients have the data of the run."""
    found = remaining.fingerprints()
    if other := [c for c in sorted({*found, *config.clients}) if found.get(c) != config.clients.get(c)]:
        raise RunFolderError(
            f"{files.path} was made with other data of client {other[0]}; give that data, in the same order"
        )


def _check_complete(files: RunFolder, values: Mapping[str, Any]) -> None:
    """Raise RunFolderError if a setting that every run writes is missing: it would be read as the default."""
    settings = {"seed": values, **dict.fromkeys(WRITTEN, values["train"])}
    if missing := [name for name, table in settings.items() if name not in table]:
        where = missing[0] if missing[0] == "seed" else f"train.{missing[0]}"
        raise RunFolderError(f"{files.config_path} is damaged: {where} is missing; restore a backup")


def _check_functions(
    files: RunFolder, remaining: Federation, config: Config, machine: Mapping[str, Any]
) -> None:
    """Raise RunFolderError unless a federation has the loss and the augmentation of the run.

    Args:
        machine: the record of the engine. If the config has no description, it has the name: of the default, or of any
            function if an earlier version made the run.
    """
    for name, recorded, new in (
        ("loss", config.loss, remaining.loss),
        ("augment", config.augment, remaining.augment),
    ):
        if recorded is not None:
            same = new is not None and describe_as_recorded(new, recorded) == recorded
        elif "loss" not in machine:
            continue
        elif config.layers is not None and name == "loss":  # this version made the run, with the default
            same = new is cross_entropy
        else:
            same = machine.get(name) == (None if new is None else name_function(new))
        if not same:
            old = recorded or machine.get(name)
            how = f"without {name}" if old is None else f"with {name}={old}"
            raise RunFolderError(f"{files.path} was made {how}; give the federation the same")


def _check_layers(files: RunFolder, module: nn.Module, config: Config) -> None:
    """Raise RunFolderError if a model has other layers than that of the run. Another torch may describe the same layers otherwise."""
    same_torch = torch.__version__ == files.result()["versions"].get("torch")
    if config.layers is not None and same_torch and config.layers != digest_layers(module):
        raise RunFolderError(f"{files.path} {OTHER_LAYERS}")


def _check_clients(files: RunFolder, rounds: Sequence[Round], remaining: Federation) -> None:
    """Raise RunFolderError if a client that a Flower strategy asked is missing. The server knows no fingerprints."""
    asked = {client for record in rounds for client in record.asked if client not in record.leavers}
    if missing := sorted(asked - {*remaining.clients}):
        raise RunFolderError(
            f"client {missing[0]} took part in {files.path}, but the federation does not have it; give its data by this id"
        )


def _read_training(config: Config, ancestors: Sequence[Ancestor]) -> TrainSettings:
    """Return how a run of a Flower strategy was trained, with the rounds of the first training that it came from.

    The folder of an unlearning records its own rounds. They stay if the folder of the training is gone.
    """
    if not ancestors:
        return config.train
    first = RunFolder(ancestors[-1].path)
    if ancestors[-1].is_there:
        return replace(config.train, rounds=first.config()["train"]["rounds"])
    found = first.tombstone() if ancestors[-1].is_retired else None
    return config.train if found is None else replace(config.train, rounds=found["scheduled_rounds"])


def _without_earlier(given: Federation, forget: str | None) -> Federation:
    """Return a federation without the data that a training over Flower left out because of earlier requests."""
    rest = None if forget is None else select_held(given, Request.parse(forget))
    return given if rest is None else given.without(rest)


def _find_method(
    files: RunFolder, config: Config, strategy: FlowerTable, named: Sequence[str]
) -> Method[Any]:
    """Return the recorded method; a training by a Flower strategy has its settings in the strategy's table.

    Args:
        named: code of the user's own, of which the method with the recorded name is taken.
    """
    written = config.unlearn.settings if config.unlearn else strategy.get("settings")
    if written is None:
        return adapt_method("retrain", config.train)
    name = config.unlearn.method if config.unlearn else "retrain"
    own = [load_method(find_code(text, Path.cwd())) for text in named if config.unlearn]
    found = next((one for one in own if one.name == name), None)
    if found is None and config.unlearn and config.unlearn.code is not None:
        found = load_method(require_code(files, "method"))
    try:
        made = restore_method(name if found is None else found, written)
    except ConfigError as error:
        if found is not None:
            raise RunFolderError(
                f"{files.path} was made by another version of its method: {error}"
            ) from error
        rule = written.get("aggregate")
        named = f"{name} with {rule}" if rule else name
        raise RunFolderError(
            f"{files.path} was made by a method or rule of your own ({named}); "
            f"open it in Python with that method: feduhb.open_run({str(files.path)!r}, method=...), "
            "or name its class: --method-from my_methods.py:Mine (in Python method_from=)"
        ) from error
    if made.name != name:
        raise RunFolderError(
            f"{files.path} was made by the method {name!r}, but its code defines {made.name!r} now; name that method with --method-from"
        )
    return made


def _find_stop(config: Config, method: Method[Any]) -> StopRule:
    """Return the recorded stop rule of a run, or the method's own rule if that is code."""
    if config.unlearn is None or config.unlearn.own_stop is None:
        return (config.unlearn or config.train).stop or never
    rule = method.default_stop()
    return never if isinstance(rule, RecordedRule) else rule


def _split_federation(
    given: Federation, config: Config, ancestors: Sequence[Ancestor]
) -> tuple[Federation, Federation]:
    """Return a federation with the forgotten data, as far as it is still there, and without it."""
    if config.unlearn is None:
        return given, given
    request = Request.parse(config.unlearn.forget)
    if config.remote:  # the clients hold the data
        return given, given.without(request)
    requests = [*(Request.parse(one.forgot) for one in ancestors if one.forgot), request]
    original = restore_keys(given, requests, config.clients)
    rest = select_held(original, request)
    return original, original if rest is None else original.without(rest)


def _list_unconfirmed(
    given: Federation, original: Federation, ancestors: Sequence[Ancestor]
) -> tuple[ClientId, ...]:
    """Return the clients whose rows were numbered anew, by requests that no run or tombstone confirms.

    Rows are numbered anew if forgotten rows were deleted from the data. Who can forge the lineage could otherwise make
    an audit look at other rows than those that were to be forgotten.
    """
    moved = [c for c, e in original.clients.items() if not torch.equal(e.keys, given.clients[c].keys)]
    if not ancestors or not moved:
        return ()
    is_known = all(one.read_forgot() is not None for one in ancestors)
    first = ancestors[-1]
    recorded = RunFolder(first.path).config().get("clients", {}) if first.is_there else {}
    sizes = {client: _read_size(str(text)) for client, text in recorded.items()}
    last = {client: int(original.clients[client].keys.max()) for client in moved}
    return tuple(c for c in moved if not is_known or last[c] >= sizes.get(c, last[c] + 1))


def _read_size(fingerprint: str) -> int:
    """Return how many rows of a client have numbers: all, if held-out and test rows are numbered too, or the training rows."""
    size, _, *all_rows = fingerprint.split()
    return int(all_rows[0] if all_rows else size)


def _load_federation(
    files: RunFolder, config: Config, data: str | Path | None, data_from: str | None
) -> Federation:
    if data_from is not None:
        return make_federation(find_code(data_from, Path.cwd()))
    if config.federation is None:
        raise RunFolderError(
            f"the data of {files.path} came from Python code; open it in Python: feduhb.open_run({str(files.path)!r}, federation), "
            "or name a function that returns the federation: --data-from my_data.py:make (in Python data_from=)"
        )
    if is_code(config.federation.data):
        return make_federation(require_code(files, "data"))
    return build_federation(config.federation, config.seed, Path(data) if data else None)
