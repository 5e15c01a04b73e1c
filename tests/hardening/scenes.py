"""Scenes: folders of runs as commands leave them, whole or killed half-way, each with the commands that read it.

A scene can be copied anywhere: commands run inside the copy and name folders relative to it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from feduhb.runs.private import find_work
from hardening.running import STATE, WORK_OF_AUDIT, Watch, Watched

LEAVER, SECOND = "c00", "c02"  # the leaver joins in round 1, the second has joined in round 0
CONFIG = """
seed = 6
[federation]
data = "digits"
clients = 4
per_client = 40
held_out = 0.5
model = "softmax"
[train]
rounds = 3
epochs = 1
batch_size = 16
lr = 0.05
clients_per_round = 3
"""
FEDERATION = "federation.toml"
FLOWER = ("flower-trained", "flower-interrupted", "flower-fedrecover")
METHODS = {
    "feduhb": (),
    "retrain": (),
    "federaser": ("--set", "interval=1"),
    "fedrecover": ("--set", "warmup=2", "--set", "buffer=1", "--set", "correction=0", "--set", "final=0"),
}
TRAIN = ("train", FEDERATION, "--out", "first", "--keep-history")
QUICK = ("--canaries", "0", "--relearn", "0")  # of an audit
AUDIT = ("audit", "first-feduhb", "--original", "first", *QUICK)


def unlearn(method: str, out: str = "", run: str = "first", forget: str = LEAVER) -> tuple[str, ...]:
    """Return the command that serves a request."""
    words = ("unlearn", run, "--forget", forget, "--method", method, *METHODS.get(method, ()))
    return (*words, "--rounds", "3", "--out", out or f"{run}-{method}")


COMPARE = (
    "compare",
    "first",
    "--forget",
    LEAVER,
    "--methods",
    ",".join(METHODS),
    "--rounds",
    "2",
    "--out",
    "compared",
)


def name_work(place: Path) -> str:
    """Return the name of the folder in which the audit of first-feduhb works."""
    return find_work(place / "first-feduhb").parent.name


@dataclass(frozen=True)
class Command:
    """A command that reads a scene.

    Args:
        outputs: the folders of runs that it writes, whose weights must be the right ones if it exits with 0.
        is_slow: takes about a second of a core.
    """

    arguments: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    is_slow: bool = False

    def __str__(self) -> str:
        return " ".join(self.arguments)


@dataclass(frozen=True)
class Scene:
    """Folders of runs, and the commands to try on them.

    Args:
        only: the paths to damage, with everything in them; the other scenes have the rest too.
        skip: the names of folders in them that are left alone.
    """

    name: str
    folder: Path
    commands: tuple[Command, ...]
    only: tuple[str, ...] = ("",)
    skip: tuple[str, ...] = ()

    def copy(self, place: Path) -> Path:
        """Copy the folders to a new place."""
        return Stage.copy(self.folder, place)


class Stage:
    """Builds scenes in a folder, each of an earlier one."""

    def __init__(self, watch: Watch, place: Path) -> None:
        self.watch, self.place = watch, place
        self.known = list_commands(watch, place)

    @staticmethod
    def copy(folder: Path, place: Path) -> Path:
        """Copy folders of runs to a new place, with the work of an audit, whose folder is named by the place."""
        shutil.copytree(folder, place, symlinks=True)
        for name in (WORK_OF_AUDIT, name_work(folder)):
            if (place / STATE / "audits" / name).exists():
                (place / STATE / "audits" / name).rename(place / STATE / "audits" / name_work(place))
        return place

    def make(self, name: str, of: str | None, *steps: Sequence[str]) -> Path:
        """Copy a scene's folders and run commands in the copy, all of which must succeed."""
        folder = self.place / name
        if of is None:
            folder.mkdir(parents=True)
            (folder / FEDERATION).write_text(CONFIG)
        else:
            self.copy(self.place / of, folder)
        for step in steps:
            ended = self.watch.feduhb(folder, step)
            assert ended.returncode == 0, f"{step}: {ended.stderr}"
        return folder

    def kill(self, name: str, step: Sequence[str], choose: Callable[[Sequence[str]], int]) -> None:
        """Run a command in a scene's folders and kill it at the event that ``choose`` picks."""
        folder = self.place / name
        trial = self.copy(folder, self.place / f".{name}-trial")
        whole = self.watch.feduhb(trial, step)
        assert whole.returncode == 0, f"{step}: {whole.stderr}"
        killed = self.watch.feduhb(folder, step, stop_at=choose(whole.events))
        assert killed.returncode == -9, f"{step}: {killed.stderr}"
        shutil.rmtree(trial)


def list_commands(watch: Watch, place: Path) -> set[str]:
    """Return the names of those optional commands that this version has."""
    place.mkdir(parents=True, exist_ok=True)
    return {word for word in ("status", "verify") if watch.feduhb(place, (word, "--help")).returncode == 0}


def find_event(events: Sequence[str], *texts: str, nth: int = 0) -> int:
    """Return the number, from 1, of the nth event that contains all these texts."""
    return [number for number, event in enumerate(events, 1) if all(text in event for text in texts)][nth]


def find_audit_done(events: Sequence[str]) -> int:
    """Return the number of the event at which an audit's own runs are done and still there."""
    ends = (
        n
        for n, event in enumerate(events, 1)
        if "/audit.json" in event
        or "/.audit.json" in event
        or (event.startswith("shutil.rmtree") and event.endswith("audit-work"))
    )
    return next(ends)


def build(watch: Watch, place: Path, names: Iterable[str] = ()) -> dict[str, Scene]:
    """Build the scenes of these names, or all."""
    stage = Stage(watch, place)
    wanted = set(names) or {"chain", "replay", "prepared", "working", "retired", "flower"}
    stage.make("trained", None, TRAIN)
    stage.make("unlearned", "trained", unlearn("feduhb"))
    scenes: list[Scene] = []
    if wanted & {"chain", "retired"}:
        stage.make("audited", "unlearned", AUDIT)
    if "chain" in wanted:
        scenes.append(Scene("chain", stage.place / "audited", _list_chain(stage)))
    if "replay" in wanted:
        stage.make("replay", "trained")
        stage.kill("replay", unlearn("federaser"), lambda events: find_event(events, "rounds.jsonl", nth=-1))
        stage.kill("replay", COMPARE, lambda events: find_event(events, "result.json", nth=-1))
        scenes.append(
            Scene(
                "replay",
                stage.place / "replay",
                _list_replay(stage),
                ("first", "compared"),
                ("feduhb", "retrain"),
            )
        )
    if "prepared" in wanted:
        stage.make("prepared", "trained")
        stage.kill(
            "prepared",
            unlearn("federaser"),
            lambda events: find_event(events, "os.rename", "result.json", nth=-1),
        )
        scenes.append(Scene("prepared", stage.place / "prepared", _list_prepared(stage), skip=("history",)))
    if "working" in wanted:
        stage.make("working", "unlearned")
        stage.kill("working", AUDIT, find_audit_done)
        working = stage.place / "working"
        shutil.copytree(
            working / "first", working / "first-feduhb" / "audit-work" / "noise"
        )  # of an earlier version
        work = working / STATE / "audits"
        (work / name_work(working)).rename(work / WORK_OF_AUDIT)
        scenes.append(
            Scene(
                "working", stage.place / "working", _list_working(stage), (STATE, "first-feduhb/audit-work")
            )
        )
    if "retired" in wanted:
        stage.make("retired", "audited", ("retire", "first"))
        scenes.append(Scene("retired", stage.place / "retired", _list_retired(stage), skip=("history",)))
    if "flower" in wanted:
        trained, cut, replayed = FLOWER
        folder = stage.make(
            "flower", None, ("flower", "train", trained), ("flower", "cut-train", cut),
            ("flower", "cut-fedrecover", trained, replayed),
        )  # fmt: skip
        scenes.append(Scene("flower", folder, _list_flower(stage)))
    return {scene.name: scene for scene in scenes}


def _list_new(stage: Stage, *runs: str) -> list[Command]:
    """Return the commands that later versions have, for some runs."""
    found = [Command(("status", ".", "--check"))] if "status" in stage.known else []
    if "verify" in stage.known:
        found += [Command(("verify", f"{run}/state.safetensors", run)) for run in runs]
    return found


def _list_chain(stage: Stage) -> tuple[Command, ...]:
    return (
        Command((*TRAIN, "--resume"), ("first",)),
        Command((*unlearn("feduhb"), "--resume"), ("first-feduhb",)),
        Command(unlearn("feduhb", "next", "first-feduhb", SECOND), ("next",)),
        Command(
            (
                "compare",
                "first-feduhb",
                "--forget",
                SECOND,
                "--methods",
                "retrain",
                "--rounds",
                "2",
                "--out",
                "compared",
            ),
            ("compared/retrain",),
            is_slow=True,
        ),
        Command((*AUDIT, "--no-exactness"), is_slow=True),
        Command(("report", "first", "first-feduhb", "--out", "page"), is_slow=True),
        Command(("retire", "first")),
        Command(("open_run", "first")),
        Command(("open_run", "first-feduhb")),
        *_list_new(stage, "first", "first-feduhb"),
    )


def _list_replay(stage: Stage) -> tuple[Command, ...]:
    return (
        Command((*unlearn("federaser"), "--resume"), ("first-federaser",)),
        Command(unlearn("fedrecover"), ("first-fedrecover",)),
        Command((*COMPARE, "--resume"), tuple(f"compared/{name}" for name in METHODS), is_slow=True),
        Command((*TRAIN, "--resume"), ("first",)),
        Command(("report", "first", "compared/feduhb", "--out", "page"), is_slow=True),
        Command(("open_run", "first")),
        *_list_new(stage, "first", "first-federaser"),
    )


def _list_prepared(stage: Stage) -> tuple[Command, ...]:
    return (
        Command((*unlearn("federaser"), "--resume"), ("first-federaser",)),
        Command(unlearn("retrain", forget=SECOND), ("first-retrain",)),
        Command(("report", "first", "first-federaser", "--out", "page")),
        Command(("retire", "first", "--unaudited", "a test")),
        Command(("open_run", "first-federaser")),
        *_list_new(stage, "first-federaser"),
    )


def _list_working(stage: Stage) -> tuple[Command, ...]:
    return (
        Command(AUDIT, is_slow=True),
        Command(("retire", "first", "--unaudited", "a test", "--siblings", "--yes")),
        Command(unlearn("retrain", "next", "first-feduhb", SECOND), ("next",)),
        Command(("report", "first", "first-feduhb", "--out", "page"), is_slow=True),
        *_list_new(stage, "first-feduhb"),
    )


def _list_retired(stage: Stage) -> tuple[Command, ...]:
    return (
        Command(("retire", "first")),
        Command(("open_run", "first")),
        Command(("open_run", "first-feduhb")),
        Command((*TRAIN, "--resume")),
        Command(unlearn("feduhb", "next", "first-feduhb", SECOND), ("next",)),
        Command(("report", "first-feduhb", "--out", "page"), is_slow=True),
        Command(("audit", "first-feduhb", *QUICK, "--no-exactness"), is_slow=True),
        *_list_new(stage, "first", "first-feduhb"),
    )


def _list_flower(stage: Stage) -> tuple[Command, ...]:
    return (
        Command(("report", "flower-trained", "--out", "page"), is_slow=True),
        Command(("open_run", "flower-trained", "flower")),
        Command(("flower", "train", "flower-interrupted"), ("flower-interrupted",)),
        Command(("flower", "fedrecover", "flower-trained", "flower-fedrecover"), ("flower-fedrecover",)),
        Command(("flower", "federaser", "flower-trained", "new"), ("new",)),
        *_list_new(stage, *FLOWER),
    )


def read_weights(folder: Path) -> str | None:
    """Return the digest of the weights in a finished run's folder, as its result and its checkpoint have them; None if it has none."""
    if not (folder / "result.json").is_file():
        return None
    try:
        said = json.loads((folder / "result.json").read_text())["weights_sha256"]
    except Exception as error:  # whatever the damage does
        return f"unreadable: {type(error).__name__}"
    found = digest_params(folder / "state.safetensors")
    return said if said == found else f"result and checkpoint disagree: {found}"


def digest_params(path: Path) -> str:
    """Return the SHA-256 of the weights in a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            return hashlib.sha256(file.get_tensor("params").contiguous().numpy().tobytes()).hexdigest()
    except Exception as error:  # whatever the damage does
        return f"unreadable: {type(error).__name__}"


def list_gone(before: Path, after: Path) -> list[str]:
    """Return the files of histories that a command deleted."""
    return [
        str(path.relative_to(before))
        for path in sorted(before.rglob("history/*/*"))
        if not (after / path.relative_to(before)).exists()
    ]


def list_files(folder: Path) -> list[Path]:
    """Return every file, folder and link below a folder, but locks of processes that have ended."""
    found = (path for path in sorted(folder.rglob("*")) if not path.name.endswith(".lock"))
    return [path.relative_to(folder) for path in found]


@dataclass(frozen=True)
class Outcome:
    """What a command does in an undamaged scene."""

    ended: Watched
    weights: dict[str, str | None]  # by output folder
    gone: list[str]  # files of histories that it deletes
    audit: object  # what the audit says, if it made one
    verified: str  # the digest of the weights that it verified


def observe(watch: Watch, scene: Scene, command: Command, place: Path) -> Outcome:
    """Run a command in a copy of the undamaged scene and return what it does."""
    scene.copy(place)
    ended = watch.feduhb(place, command.arguments, reads=True)
    weights = {name: read_weights(place / name) for name in command.outputs}
    verified = digest_params(place / command.arguments[1]) if command.arguments[0] == "verify" else ""
    gone, audit = list_gone(scene.folder, place), read_audit(place / "first-feduhb")
    shutil.rmtree(place)
    return Outcome(ended, weights, gone, audit, verified)


def read_audit(folder: Path) -> object:
    """Return the weights and the verdict of an audit; None if there is none."""
    try:
        found = json.loads((folder / "audit.json").read_text())
        return found["weights_sha256"], found["verdict"]["word"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
