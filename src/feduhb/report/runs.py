"""Run folders as a report sees them: read once, checked, and labelled so that no two look alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feduhb.audit.result import Audit, read_audit
from feduhb.errors import RunFolderError
from feduhb.runs.files import read_text, resolve
from feduhb.runs.folder import Result, Round, RunFolder, make_series
from feduhb.runs.scores import PREFIX
from feduhb.stopping import Series as RecordedSeries

ORIGINAL, RETRAIN = "original", "retrain"
STORED = "stored updates"  # as `feduhb.methods.list_needs` says it
LABEL_LENGTH = 36  # characters; a longer label is replaced by the folder's name
NAMES = {
    "feduhb": "FedUHB", "retrain": "Retrain", "federaser": "FedEraser", "fedrecover": "FedRecover", "nesterov": "Nesterov",
    "fedadam": "FedAdam", "fedyogi": "FedYogi", "fednadam": "FedNadam", "fedexp": "FedExP",
    "rollback": "Rollback", "rapidretrain": "RapidRetrain", "finetune": "FineTune", "not": "NoT", "pga": "PGA", "fedaf": "FedAF",
    "fedrecovery": "FedRecovery", "crab": "Crab", "wu": "WuDistillation",
}  # fmt: skip
Series = list[float | None]


@dataclass(frozen=True, slots=True)
class RunView:
    """One finished run, as its folder describes it."""

    path: Path
    label: str  # unique within a report
    role: str  # "original" for training, else the unlearning method's name
    rounds: list[Round]
    result: Result
    config: dict[str, Any]
    config_text: str
    audit: Audit | None = None  # where the run was audited

    def scored(self, name: str) -> Series:
        """Return a score after each round; None if a round was not scored."""
        return [record.scores.get(name) for record in self.rounds]

    @property
    def accuracy(self) -> Series:
        """Test accuracy after each round."""
        return self.scored("test_accuracy")

    @property
    def directions(self) -> dict[str, str]:
        """Whether "high" or "low" is best, by the scores that the run was given, or for the accuracy; the main score first."""
        given = self.config.get("scores")
        if not isinstance(given, Mapping) or not given:
            return {"test_accuracy": "high"}
        return {f"{PREFIX}{name}": "low" if best == "low" else "high" for name, best in given.items()}

    @property
    def data(self) -> Any:
        """The [federation] table without the scores, which do not change the data."""
        about = self.config.get("federation")
        return {k: v for k, v in about.items() if k != "scores"} if isinstance(about, Mapping) else about

    @property
    def moved(self) -> list[float]:
        """‖w[t+1] - w[t]‖ of each round."""
        return [record.moved for record in self.rounds]

    @property
    def held_out_score(self) -> str | None:
        """The name of the score that the rounds recorded on held-out data; None if they did not."""
        names = (name for record in self.rounds for name in record.held_out if name != "loss")
        return next(names, None)

    @property
    def series(self) -> RecordedSeries:
        """What the rounds recorded for stop rules."""
        is_low = self.directions.get(f"{PREFIX}{self.held_out_score}") == "low"
        return make_series(self.rounds, "low" if is_low else "high")

    @property
    def threshold(self) -> Series:
        """The movement below which the stop rule ends the run; None while the rule does not apply."""
        return [record.threshold for record in self.rounds]

    @property
    def judged(self) -> bool:
        """Whether a stop rule watched this run."""
        own = self.config["unlearn" if self.unlearned else "train"]
        return any(value is not None for value in self.threshold) or "stop" in own

    @property
    def fired(self) -> int | None:
        """After how many rounds the stop rule ended the run; None if it did not."""
        return next((number for number, record in enumerate(self.rounds, 1) if record.stopped), None)

    @property
    def seconds(self) -> float:
        """Wall clock of clients and server together, without evaluation."""
        return self.result["client_seconds"] + self.result["server_seconds"]

    @property
    def megabytes(self) -> float:
        """Payload down and up, in 10^6 bytes."""
        return (self.result["bytes_down"] + self.result["bytes_up"]) / 1e6

    @property
    def history_megabytes(self) -> float:
        """The history that an unlearning replayed, or that the training kept, in 10^6 bytes."""
        return self.result["history_bytes_read" if self.unlearned else "history_bytes_kept"] / 1e6

    @property
    def stored_megabytes(self) -> float:
        """The history, the kept models and the old model that a method began at, in 10^6 bytes."""
        others = self.result.get("kept_models_bytes", 0) + self.result.get("old_model_bytes", 0)
        return self.history_megabytes + others / 1e6

    @property
    def requires(self) -> list[str]:
        """What the method needs beyond sums of updates; earlier versions recorded it in part or not at all."""
        result = self.result
        seen = {
            "each update": result["needs"] == "each",
            STORED: result["history_bytes_read"] > 0,
            "kept models": "restart_round" in result,
        }
        inferred = [words for words, is_needed in seen.items() if is_needed]
        return list(dict.fromkeys([*inferred, *result.get("requires", [])]))

    @property
    def saved(self) -> float:
        """The share of client work that stored or estimated updates replaced; exact methods use none."""
        return 0.0 if self.exact else self.result["client_rounds_saved"]

    @property
    def exact(self) -> bool:
        """Whether the method never saw the forgotten data or anything made from it."""
        return self.result["exact"]

    @property
    def unlearned(self) -> bool:
        """Whether the run answers a request to forget."""
        return self.role != ORIGINAL

    @property
    def forget(self) -> str | None:
        """The request, as the config writes it."""
        return str(self.config["unlearn"].get("forget", "")) if self.unlearned else None

    @property
    def audited(self) -> bool:
        """Whether there is an audit, and it is of the weights that this run ended with."""
        return self.audit is not None and self.audit.weights_sha256 == self.result["weights_sha256"]

    @property
    def world(self) -> tuple[Any, ...]:
        """Seed, data and request: runs are compared only if these agree."""
        return self.config.get("seed", 0), self.data, self.forget

    def final(self, score: str) -> float | None:
        """Return a score of the last round."""
        return self.result["scores"].get(score)


def retrain_of(view: RunView, views: Sequence[RunView]) -> RunView | None:
    """Return the Retrain run on the same request, data and seed."""
    return next((v for v in views if v.role == RETRAIN and v.world == view.world), None)


def group_seeds(views: Sequence[RunView]) -> list[tuple[str, list[RunView]]]:
    """Return runs that differ only in their seed together, with a name; every other run is alone, with its label.

    Several runs are named after their method, or after the label of the first if another group has that method too.
    """
    found: dict[str, list[RunView]] = {}
    for view in views:
        # A replay has as many rounds as its history gives, which can depend on the seed.
        rounds = None if STORED in view.requires else view.result["scheduled_rounds"]
        same = (view.role, view.result["settings"], view.world[1:], view.config.get("train"), rounds)
        found.setdefault(json.dumps(same, sort_keys=True, default=str), []).append(view)
    groups: list[list[RunView]] = []
    for runs in found.values():
        is_repeated = len({view.world[0] for view in runs}) < len(runs)
        groups += [[view] for view in runs] if is_repeated else [runs]
    roles = Counter(runs[0].role for runs in groups)
    return [
        (name_role(runs[0].role) if len(runs) > 1 and roles[runs[0].role] == 1 else runs[0].label, runs)
        for runs in groups
    ]


def name_role(role: str) -> str:
    """Return the name of a method in reports."""
    return NAMES.get(role, printable(role))


def read_runs(paths: Sequence[Path | str]) -> list[RunView]:
    """Read finished run folders, each once, in the order given; raise RunFolderError if one is not finished."""
    folders = list({resolve(Path(path)): Path(path) for path in paths}.values())
    if not folders:
        raise RunFolderError(
            "there is no run to report on; give at least one folder that feduhb train or feduhb unlearn made"
        )
    return _label([_read(RunFolder(folder)) for folder in folders])


def _read(folder: RunFolder) -> RunView:
    try:
        config, result, rounds = folder.config(), folder.result(), folder.rounds()
        folder.check_weights()
        text = read_text(folder.config_path, "restore a backup")
    except OSError as error:
        raise RunFolderError(
            f"{folder.path} cannot be read: {error.strerror}; give a run folder you may read"
        ) from None
    unlearn = config.get("unlearn")
    _check(folder, result, rounds)
    role = ORIGINAL if unlearn is None else result["method"]
    return RunView(folder.path, name_role(role), role, rounds, result, config, text, read_audit(folder.path))


def _check(folder: RunFolder, result: Result, rounds: Sequence[Round]) -> None:
    """Raise RunFolderError if the result does not belong to the rounds."""
    if not rounds and not result["rounds"]:
        raise RunFolderError(
            f"{folder.path} is the model that it started from, after no rounds, which a report cannot show; leave it out"
        )
    if not rounds or len(rounds) != result["rounds"]:
        raise RunFolderError(
            f"{folder.rounds_path} holds {len(rounds)} rounds, but result.json counts {result['rounds']}; "
            f"delete {folder.path} and run again"
        )


def _label(views: Sequence[RunView]) -> list[RunView]:
    """Label runs of one method differently: by the settings that differ, else by folder, else by number."""
    labels = [view.label for view in views]
    for extend in (_label_by_settings, _label_by_folder, _label_by_number):
        clashes = {label for label, count in Counter(labels).items() if count > 1}
        for label in clashes:
            places = [i for i, other in enumerate(labels) if other == label]
            for i, longer in zip(places, extend([views[i] for i in places]), strict=True):
                labels[i] = longer
    return [replace(view, label=label) for view, label in zip(views, labels, strict=True)]


def _label_by_settings(views: Sequence[RunView]) -> list[str]:
    """Add the settings that differ; keep the labels if that is too long or does not distinguish the runs."""
    # Digests of the clients' data name no setting.
    flat = [dict(_flatten({k: v for k, v in view.config.items() if k != "clients"})) for view in views]
    keys = [
        key
        for key in dict.fromkeys(k for one in flat for k in one)
        if len({one.get(key) for one in flat}) > 1
    ]
    labels = [f"{view.label} ({_join_settings(one, keys)})" for view, one in zip(views, flat, strict=True)]
    fits = keys and len(set(labels)) == len(labels) and max(map(len, labels)) <= LABEL_LENGTH
    return [printable(label) for label in labels] if fits else [view.label for view in views]


def _join_settings(settings: Mapping[tuple[str, ...], str], keys: Sequence[tuple[str, ...]]) -> str:
    return ", ".join(dict.fromkeys(f"{key[-1]} {settings.get(key, 'none')}" for key in keys))


def _label_by_folder(views: Sequence[RunView]) -> list[str]:
    """Add the shortest part of the path that distinguishes the folders."""
    parts = [resolve(view.path).parts for view in views]
    depths = range(1, max(map(len, parts)) + 1)
    depth = next(d for d in depths if len({path[-d:] for path in parts}) == len(parts))
    alone = [path[-depth:][:1] for path in parts]
    names = alone if len(set(alone)) == len(alone) else [path[-depth:] for path in parts]
    return [printable(f"{view.label} ({'/'.join(name)})") for view, name in zip(views, names, strict=True)]


def _label_by_number(views: Sequence[RunView]) -> list[str]:
    return [f"{view.label} #{number}" for number, view in enumerate(views, 1)]


def _flatten(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield a config's settings as ((table, name), value)."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, (*above, key))
        else:
            yield (*above, key), str(value)


def printable(text: str) -> str:
    """Replace characters that no terminal, figure or page can show."""
    return "".join(c if c.isprintable() else "?" for c in text)
