"""When the disk refuses, the old file stays whole, nothing half-written is left, and the words say why."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from feduhb.errors import StorageError
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import LEFTOVERS, load_state, save_state
from feduhb.runs.files import write_atomically
from feduhb.runs.folder import Round, RunFolder
from killing import Commands

OLD, NEW = Plain(torch.zeros(3)), Plain(torch.ones(3))
SAFE = "and resume: what was finished is kept"


def refusal(number: int):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


REFUSALS = [
    pytest.param(errno.ENOSPC, "the disk is full", "free some space", id="full"),
    pytest.param(errno.EDQUOT, "the disk is full", "free some space", id="quota"),
    pytest.param(errno.EROFS, "Read-only file system", "fix that", id="read-only"),
    pytest.param(errno.EIO, "Input/output error", "fix that", id="broken"),
]


@pytest.mark.parametrize(("number", "what", "remedy"), REFUSALS)
@pytest.mark.parametrize("where", ["os.fsync", "pathlib.Path.replace", "os.open"])
def test_a_refused_checkpoint_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int, what: str, remedy: str
):
    path = tmp_path / "state.safetensors"
    save_state(path, OLD, 4)
    with monkeypatch.context() as patch:
        patch.setattr(where, refusal(number))
        with pytest.raises(StorageError) as error:
            save_state(path, NEW, 5)
    assert str(error.value) == f"cannot write {path}: {what}; {remedy} {SAFE}"
    assert isinstance(error.value.__cause__, OSError)
    state, rounds_done = load_state(path, OLD)
    assert torch.equal(state.params, OLD.params)
    assert rounds_done == 4
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_temporary_file_left_by_a_crash_is_no_obstacle(tmp_path: Path):
    (tmp_path / ".state.safetensors.tmp").write_bytes(b"half a checkpo")
    save_state(tmp_path / "state.safetensors", NEW, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_the_folder_is_synced_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Data, then rename, then folder: any other order may lose the file in a power cut."""
    order: list[str] = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(handle: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")  # noqa: PTH112
        sync(handle)

    def noted_replace(self: Path, target: Path) -> Path:
        order.append("rename")
        return replace(self, target)

    monkeypatch.setattr("os.fsync", noted_sync)
    monkeypatch.setattr("pathlib.Path.replace", noted_replace)
    write_atomically(tmp_path / "x", b"data")
    assert order == ["file", "rename", "folder"]


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from feduhb.errors import StorageError
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import save_state

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_state(Path(sys.argv[1]), Plain(torch.ones(100_000)), 5)
except StorageError as error:
    print(error)
"""


def test_a_real_refusal_of_the_operating_system(commands: Commands, tmp_path: Path, tmp_path_factory):
    """A limit of 4096 bytes a file and a checkpoint of 400 kB: the kernel itself says no."""
    path = tmp_path / "state.safetensors"
    save_state(path, OLD, 4)
    script = tmp_path_factory.mktemp("limited") / "script.py"
    script.write_text(LIMITED)
    done = commands.run_script(script, path)
    assert done.stdout.strip() == f"cannot write {path}: the disk is full; free some space {SAFE}"
    assert load_state(path, OLD)[1] == 4
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    folder = RunFolder(tmp_path / "file" / "run")
    with pytest.raises(StorageError, match=r"cannot write .*run: (Not a directory|File exists)"):
        folder.create("seed = 0\n")
    with pytest.raises(StorageError, match=r"Not a directory|File exists"):
        folder.claim().__enter__()


def test_a_round_that_cannot_be_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = RunFolder(tmp_path)
    folder.append(Round(0, ("a",), ("a",), 1.0))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refusal(errno.ENOSPC))
        with pytest.raises(StorageError) as error:
            folder.append(Round(1, ("a",), ("a",), 1.0))
    assert str(error.value).startswith(
        f"cannot write {tmp_path / 'rounds.jsonl'}: the disk is full; free some space {SAFE}"
    )
    assert folder.rounds()[0].round == 0


def test_what_a_kill_left_of_safetensors_own_file_is_cleared_away(tmp_path: Path):
    (tmp_path / ".tmpAb3xYz").write_bytes(b"a model")
    save_state(tmp_path / "state.safetensors", NEW, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_what_safetensors_leaves_is_what_is_cleared_away(
    commands: Commands, tmp_path: Path, tmp_path_factory
):
    """A limit on file sizes breaks its writing off, with nobody to catch it: whatever is left has the name that is looked for."""
    told = (
        LIMITED.replace("except StorageError as error", "finally")[: -len("    print(error)\n")]
        + "    os._exit(1)\n"
    )
    script = tmp_path_factory.mktemp("limited") / "script.py"
    script.write_text("import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n" + told)
    done = commands.run_script(script, tmp_path / "state.safetensors")
    assert done.returncode
    assert all(p.match(LEFTOVERS) or p.name == ".state.safetensors.tmp" for p in tmp_path.iterdir())
    save_state(tmp_path / "state.safetensors", NEW, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_what_holds_weights_or_updates_is_for_the_user_alone(tmp_path: Path):
    folder = RunFolder(tmp_path / "run")
    folder.create("seed = 0\n")
    folder.append(Round(0, ("a",), ("a",), 1.0))
    save_state(folder.state_path, NEW, 1)
    with folder.claim():
        pass
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    assert modes == dict.fromkeys([".lock", "config.toml", "rounds.jsonl", "state.safetensors"], 0o600)
    assert folder.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", [".lock", ".state.safetensors.tmp", ".config.toml.tmp", "rounds.jsonl"])
def test_a_link_is_never_written_through(tmp_path: Path, name: str):
    foreign = tmp_path / "foreign"
    foreign.write_text("somebody's")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / name).symlink_to(foreign)
    with contextlib.suppress(StorageError), folder.claim():
        folder.create("seed = 0\n")
        save_state(folder.state_path, NEW, 1)
        folder.append(Round(0, ("a",), ("a",), 1.0))
    assert foreign.read_text() == "somebody's"
    (folder.path / name).unlink(missing_ok=True)


def test_a_folder_that_is_a_link_is_refused_in_words(tmp_path: Path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "foreign")
    with pytest.raises(StorageError, match=r"cannot write .*run: .*run is a link"):
        RunFolder(tmp_path / "run").claim().__enter__()
    assert not [*(tmp_path / "foreign").iterdir()]


WRITER = """
import json, sys
from pathlib import Path
from feduhb.runs.files import write_atomically

path = Path(sys.argv[1])
for _ in range(60):
    write_atomically(path, json.dumps([sys.argv[2]] * 20_000).encode())
    assert len(set(json.loads(path.read_text()))) == 1
"""


@pytest.mark.slow
def test_two_who_replace_one_file_wait_for_each_other(tmp_path: Path):
    path = tmp_path / "shared.json"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen([*command, word], stderr=subprocess.PIPE, text=True) for word in ("one", "two")
    ]
    told = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], told
    assert [p.name for p in tmp_path.iterdir()] == ["shared.json"]


def test_a_lock_file_that_cannot_be_deleted_does_no_harm(tmp_path, monkeypatch):
    """As in a folder that became read-only: the file stays, and the next process can lock it."""
    unlink = Path.unlink

    def refuse(path, **options):
        if path.suffix == ".lock":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", refuse)
    for content in (b"first", b"second"):
        write_atomically(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == b"second"
