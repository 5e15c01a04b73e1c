"""The kill harness: end a command at an event of the disk, look, and start it again.

The process is killed (-9), killed after the last byte of a write was cut off, or refused by the operating system, which is
what a failed delete and a full disk look like. Afterwards no update of a leaver may lie beside a finished run, and no
model of an audit beside a finished audit; and the command, started again, ends as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardening.damage import check_end
from hardening.running import LIMIT, WORK_OF_AUDIT, How, Watch, make_scratch
from hardening.scenes import (
    AUDIT,
    COMPARE,
    LEAVER,
    TRAIN,
    Stage,
    name_work,
    read_audit,
    unlearn,
)
from hardening.tally import Finding

SAME = ("weights_sha256", "rounds", "client_epochs", "history_bytes_read", "settings")  # in every result.json
DELETIONS = ("shutil.rmtree", "os.remove", "os.rmdir", "os.rename")


@dataclass(frozen=True)
class Scenario:
    """A command to be ended early in a copy of some folders, and the command that continues it."""

    name: str
    folder: Path
    command: tuple[str, ...]
    again: tuple[str, ...]
    events: tuple[str, ...]  # of the command if nobody stops it
    expected: dict[str, Any]  # what the folders hold then
    forbidden: frozenset[str]  # digests of the leaver's updates


@dataclass(frozen=True)
class Stop:
    """A moment at which a command is ended, and how."""

    scenario: Scenario
    number: int  # of the event, from 1
    how: How

    def __str__(self) -> str:
        return f"{self.how} at event {self.number} of {len(self.scenario.events)}: {self.scenario.events[self.number - 1]}"


def set_up(watch: Watch, place: Path, names: Iterable[str] = ()) -> list[Scenario]:
    """Build the folders of these scenarios, or of all, and see what their commands do if nobody stops them."""
    stage = Stage(watch, place)
    stage.make("empty", None)
    stage.make("trained", "empty", TRAIN)
    stage.make("unlearned", "trained", unlearn("feduhb"))
    stage.make("audited", "unlearned", AUDIT)
    stage.make("over-flower", "empty", ("flower", "train", "first"))
    methods = ("feduhb", "retrain", "federaser", "fedrecover")
    replay = ("flower", "federaser", "first", "first-federaser")
    known: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
        "train": ("empty", TRAIN, (*TRAIN, "--resume")),
        **{name: ("trained", unlearn(name), (*unlearn(name), "--resume")) for name in methods},
        "compare": ("trained", COMPARE, (*COMPARE, "--resume")),
        "audit": ("unlearned", AUDIT, AUDIT),
        "retire": ("audited", ("retire", "first"), ("retire", "first")),
        "flower train": ("empty", ("flower", "train", "first"), ("flower", "train", "first")),
        "flower federaser": ("over-flower", replay, replay),
    }
    return [_observe(watch, stage, name, *known[name]) for name in names or known]


def _observe(
    watch: Watch, stage: Stage, name: str, of: str, command: tuple[str, ...], again: tuple[str, ...]
) -> Scenario:
    """Run a command to its end and return the scenario."""
    folder = stage.place / of
    place = stage.make(name, of)
    whole = watch.feduhb(place, command)
    assert whole.returncode == 0, f"{command}: {whole.stderr}"
    forbidden = frozenset() if name == "compare" else list_updates(folder)
    return Scenario(name, folder, command, again, whole.events, describe(place), forbidden)


def list_updates(folder: Path) -> frozenset[str]:
    """Return the digests of the files that hold an update of the leaver."""
    found: list[str] = []
    for marker in folder.rglob("history/*/round.json"):
        if any(LEAVER in block["clients"] for block in json.loads(marker.read_text())["blocks"]):
            found += [digest(path) for path in marker.parent.glob("block-*")]
    return frozenset(found)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def describe(place: Path) -> dict[str, Any]:
    """Return what folders hold, without what depends on the time: names, tensors, weights, rounds, verdicts."""
    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place)).replace(name_work(place), WORK_OF_AUDIT)
        if path.name.endswith(".lock") or re.match(r"audit-\d", path.name) or path.is_dir():
            continue
        found[name] = digest(path) if path.suffix == ".safetensors" else "there"
        if path.name == "result.json":
            result = json.loads(path.read_text())
            found[name] = [result[key] for key in SAME]
        elif path.name == "audit.json":
            found[name] = read_audit(path.parent)
        elif path.name == "rounds.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [(line["round"], line["asked"], line["answered"], line["moved"]) for line in lines]
        elif path.name == "retired.json":
            stone = json.loads(path.read_text())
            found[name] = (
                sorted(one["name"] for one in stone["deleted"]),
                stone["left"],
                bool(stone["finished"]),
            )
    return found


def find_remains(scenario: Scenario, place: Path) -> list[str]:
    """Return what may not be there beside a finished run or audit."""
    said: list[str] = []
    new = [place / part for part in scenario.command if part.startswith("first-")]
    if scenario.forbidden and any((folder / "result.json").exists() for folder in new):
        left = [path for path in place.rglob("*") if path.is_file() and digest(path) in scenario.forbidden]
        if left and scenario.name not in {"audit", "retire"}:
            said.append("result.json stands beside updates of the leaver")
    works = [work for work in place.rglob("audit-work") if any(work.rglob("*.safetensors"))]
    if works and any(place.rglob("audit.json")):
        said.append("audit.json stands beside models in audit-work")
    return said


def list_hows(event: str) -> list[How]:
    """Return the ways to stop at an event: only a sync of a file can be torn, writes find the disk full, the rest is forbidden."""
    is_write = event.startswith(("open", "fsync"))
    is_file = event.startswith("fsync") and "." in event
    return ["kill", "ENOSPC" if is_write else "EACCES", *(["torn"] if is_file else [])]


def list_stops(scenarios: Sequence[Scenario], seed: int, *, more: bool) -> list[Stop]:
    """Return the events to stop at: of those that differ in numbers only, such as those of rounds, one that the seed chooses.

    Each is killed. The other ways are tried once for every kind of event of every kind of file, by commands and over Flower.

    Args:
        more: every event in every way.
    """
    found: list[Stop] = []
    seen: set[tuple[object, ...]] = set()
    for scenario in scenarios:
        alike: dict[str, list[int]] = {}
        for number, event in enumerate(scenario.events, 1):
            alike.setdefault(str(number) if more else re.sub(r"\d+", "N", event), []).append(number)
        draw, is_flower = random.Random(f"{seed} {scenario.name}"), "flower" in scenario.command
        for number in map(draw.choice, alike.values()):
            event = scenario.events[number - 1]
            kind = (is_flower, event.split()[0], re.sub(r"\d+", "N", Path(event).name))
            hows: list[How] = list_hows(event) if more or kind not in seen else ["kill"]
            seen.add(kind)
            found += [Stop(scenario, number, how) for how in hows]
    return found


def choose_stops(scenario: Scenario, count: int, seed: int = 0) -> list[Stop]:
    """Return some events of a scenario, half of them deletions and renames, in ways that take turns."""
    draw = random.Random(f"{seed} {scenario.name}")
    numbers = range(1, len(scenario.events) + 1)
    deleting = [n for n in numbers if scenario.events[n - 1].startswith(DELETIONS)] or numbers
    chosen = [draw.choice(deleting if turn % 2 == 0 else numbers) for turn in range(count)]
    ways = [list_hows(scenario.events[number - 1]) for number in chosen]
    return [Stop(scenario, number, ways[turn][turn // 2 % 2]) for turn, number in enumerate(chosen)]


def try_stop(watch: Watch, stop: Stop, limit: float = LIMIT) -> list[Finding]:
    """End a command at a moment, start it again, and return what should not have happened."""
    scenario, command = stop.scenario, " ".join(stop.scenario.command)
    found: list[Finding] = []

    def add(kind: Any, detail: str) -> None:
        found.append(Finding(kind, command, str(stop), detail))

    with make_scratch() as scratch:
        place = Stage.copy(scenario.folder, scratch / "runs")
        ended = watch.feduhb(place, scenario.command, stop_at=stop.number, how=stop.how, limit=limit)
        if stop.how in {"kill", "torn"}:
            if ended.returncode not in (-9, 0):  # 0: another thread was faster, and there was no such event
                add("exit code", f"{ended.returncode}: {ended.last_line}")
        else:
            found += check_end(ended, command, str(stop))
        for said in find_remains(scenario, place):
            add("history", said)
        again = watch.feduhb(place, scenario.again, limit=limit)
        found += check_end(again, command, f"{stop}, again")
        if again.returncode != 0:
            add("not resumed", again.last_line)
            return found
        for said in find_remains(scenario, place):
            add("history", f"after another start: {said}")
        got = describe(place)
        for name in sorted({*got, *scenario.expected}):
            a, b = got.get(name), scenario.expected.get(name)
            if a != b:
                what = "is missing" if a is None else "is left" if b is None else "has another content"
                add("weights", f"{re.sub('[0-9]{5,}', 'N', name)} {what}")
    return found
