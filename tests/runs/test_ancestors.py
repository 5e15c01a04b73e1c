"""Where a run came from: written beside it by relative paths, and known again by its config."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from feduhb.errors import RunFolderError
from feduhb.runs.folder import RunFolder
from feduhb.runs.lineage import (
    Ancestor,
    Erasure,
    read_ancestors,
    read_successors,
    supersede,
    write_ancestors,
)


def made(place: Path, text: str = "seed = 1\n") -> Path:
    RunFolder(place).create(f"{text}[train]\n")
    return place


def test_what_is_written_is_read_nearest_first(tmp_path):
    a, b, c = (made(tmp_path / name, f"seed = {i}\n") for i, name in enumerate(("a", "deep/b", "c")))
    chain = (Ancestor.at(b), Ancestor.at(a))
    write_ancestors(c, chain)
    assert read_ancestors(c) == chain
    assert [one.path for one in read_ancestors(c)] == [b.resolve(), a.resolve()]
    assert all(one.is_there for one in read_ancestors(c))
    assert '"../deep/b"' in (c / "lineage.json").read_text()
    assert str(tmp_path) not in (c / "lineage.json").read_text()


def test_a_run_that_came_from_none_says_so(tmp_path):
    write_ancestors(made(tmp_path), ())
    assert read_ancestors(tmp_path) == ()
    assert json.loads((tmp_path / "lineage.json").read_text())["earlier"] == []


def test_all_moved_together_are_found_again(tmp_path):
    write_ancestors(made(tmp_path / "old" / "b"), [Ancestor.at(made(tmp_path / "old" / "a"))])
    shutil.move(tmp_path / "old", tmp_path / "new")
    (found,) = read_ancestors(tmp_path / "new" / "b")
    assert found.is_there
    assert found.path == (tmp_path / "new" / "a").resolve()


def test_through_a_link_it_is_the_folder_itself(tmp_path):
    a, b = made(tmp_path / "runs" / "a"), made(tmp_path / "runs" / "b")
    (tmp_path / "link").symlink_to(b)
    write_ancestors(tmp_path / "link", [Ancestor.at(a)])
    assert read_ancestors(b)[0].is_there
    assert read_ancestors((tmp_path / "link").resolve())[0].is_there


@pytest.mark.parametrize("then", ["gone", "another", "empty"])
def test_one_that_is_gone_or_another_is_not_there(tmp_path, then):
    a, b = made(tmp_path / "a"), made(tmp_path / "b")
    write_ancestors(b, [Ancestor.at(a)])
    shutil.rmtree(a)
    if then == "another":
        made(a, "seed = 2\n")
    if then == "empty":
        a.mkdir()
    (found,) = read_ancestors(b)
    assert not found.is_there
    what = {"gone": f"{a.resolve()}, a run that this one came from, no longer exists; if you moved it, "}.get(
        then,
        f"{a.resolve()} does not hold the run that this one came from: its config is another one, or damaged; find that run and ",
    )
    assert Erasure((), (found,)).warnings() == [
        f"{what}delete its history and its kept models yourself: they contain the leavers' updates"
    ]


def test_a_folder_without_a_run_is_never_there(tmp_path):
    assert not Ancestor.at(tmp_path / "nowhere").is_there
    (tmp_path / "nowhere").mkdir()
    assert not Ancestor.at(tmp_path / "nowhere").is_there


def test_it_is_written_once(tmp_path):
    a, b = made(tmp_path / "a"), made(tmp_path / "b")
    write_ancestors(b, [Ancestor.at(a)])
    before = (b / "lineage.json").stat().st_mtime_ns
    write_ancestors(b, [Ancestor.at(a)])
    assert (b / "lineage.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"run": "../a"}]', "[null]", "3", '{"run": 1}'])
def test_damage_is_told(tmp_path, text):
    for name in ("earlier.json", "lineage.json"):  # an earlier version's, and this one's
        (tmp_path / name).write_text(text)
        with pytest.raises(
            RunFolderError,
            match=rf"{name} is damaged; restore it from a backup: without it an erasure misses",
        ):
            read_ancestors(tmp_path)


def test_a_changed_lineage_is_noticed_by_its_checksum(tmp_path):
    a, b = made(tmp_path / "a"), made(tmp_path / "b")
    write_ancestors(b, [Ancestor.at(a)])
    path = b / "lineage.json"
    path.write_text(path.read_text().replace("../a", "../x"))
    with pytest.raises(RunFolderError, match=r"lineage.json is damaged; .* \(its checksum does not match\)"):
        read_ancestors(b)


def test_the_files_of_an_earlier_version_become_one(tmp_path):
    a, b = made(tmp_path / "a"), made(tmp_path / "b")
    entry = {"run": "../a", "config": Ancestor.at(a).digest, "forgot": ""}
    (b / "earlier.json").write_text(json.dumps([entry]))
    (b / "later.json").write_text('["../c"]')
    assert read_ancestors(b) == (Ancestor.at(a),)
    with supersede([b], tmp_path / "d", None, print):
        pass
    assert read_successors(b) == [tmp_path / "c", tmp_path / "d"]
    assert read_ancestors(b) == (Ancestor.at(a),)
    assert not {"earlier.json", "later.json"} & {path.name for path in b.iterdir()}
