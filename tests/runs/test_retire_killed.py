"""kill -9 while runs are retired: a repeated call finishes, and the run that replaces them is never touched."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import pytest

from killing import Commands
from runs.retiring import LEAVER, read_files, train, unlearn

KILLS = 10
OLD = ("again", "old")  # both hold the leaver; the named run is retired last
STAY = {"retired.json", "lineage.json", "erased.json", ".lock"}
WORK = "audit-work"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("killed")
    unlearn(train(place / "old"), LEAVER, place / "new", audited=False)
    train(place / "again")
    for name in (*OLD, "new"):  # what an audit that was killed leaves
        shutil.copytree(place / "again" / "history", place / name / WORK / "history")
    return place


def retire(commands: Commands, place: Path, kill_at: int = 0):
    return commands.feduhb(
        "retire", place / "old", "--siblings", "--yes", "--unaudited", "a test", kill_at=kill_at
    )


def read_new(place: Path) -> dict[str, bytes]:
    """Return the files of the new run without audit work, which goes with the siblings."""
    files = read_files(place / "new")
    return {name: content for name, content in files.items() if not name.startswith(f"{WORK}/")}


def check(place: Path, made: Path) -> None:
    """Assert that everything is retired as by a call that was never killed."""
    before = {name: read_files(made / name) for name in OLD}
    assert read_new(place) == read_new(made)
    assert not (place / "new" / WORK).exists()
    for name in OLD:
        left = {path.name for path in (place / name).iterdir()}
        assert left <= STAY, left
        tombstone = json.loads((place / name / "retired.json").read_text())
        assert tombstone["finished"] is not None
        assert tombstone["left"] == []
        sizes = {entry["name"]: entry["bytes"] for entry in tombstone["deleted"]}
        expected: dict[str, int] = {}
        if name == "old":
            expected[f"../new/{WORK}"] = sum(map(len, read_files(made / "new" / WORK).values()))
        for file, content in before[name].items():
            if file not in STAY:
                top = file.partition("/")[0]
                expected[top] = expected.get(top, 0) + len(content)
        assert sizes == expected


def test_killed_at_ten_random_moments_a_repeated_call_finishes(commands, made, tmp_path):
    whole = retire(commands, shutil.copytree(made, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    check(tmp_path / "whole", made)
    reached: list[str] = []
    for number in range(KILLS):
        place = shutil.copytree(made, tmp_path / str(number))
        killed = retire(commands, place, random.Random(number).randrange(1, whole.moments))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert read_new(place) == read_new(made)
        stones = [json.loads(path.read_text()) for path in place.glob("*/retired.json")]
        reached.append(f"{len(stones)} begun, {sum(stone['finished'] is not None for stone in stones)} done")
        again = retire(commands, place)
        assert again.returncode == 0, again.stderr
        check(place, made)
    assert len({*reached}) >= 3, f"the kills fell at {reached}"


def test_killed_again_and_again_it_still_finishes(commands, made, tmp_path):
    place = shutil.copytree(made, tmp_path / "runs")
    draw = random.Random(1)
    kills = 0
    while kills < 3 * KILLS:
        ended = retire(commands, place, draw.randrange(100, 1200))
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        kills += 1
    assert kills >= 3
    assert retire(commands, place).returncode == 0
    check(place, made)
