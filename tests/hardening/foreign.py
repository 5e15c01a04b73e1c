"""Things outside a tree of runs that no command may touch."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

Snapshot = dict[str, tuple[object, ...]]


def plant(folder: Path) -> Path:
    """Make a folder with a file, a folder and a link in it; return it."""
    inner = folder / "folder"
    inner.mkdir(parents=True)
    (folder / "file").write_text("a letter\n")
    (inner / "file").write_text("another letter\n")
    (inner / "00000").mkdir()
    (inner / "00000" / "round.json").write_text("not yours\n")
    (folder / "link").symlink_to("file")
    return folder


def look(folder: Path, without_copy: bool = False) -> Snapshot:
    """Return what is in a folder, but not in a copy there, and its modes, times and contents; not when it was last read."""
    found: Snapshot = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        if without_copy and "copy" in path.relative_to(folder).parts:
            continue
        about = path.lstat()
        kind = stat.S_IFMT(about.st_mode)
        content = b""
        if stat.S_ISREG(kind):
            content = hashlib.sha256(path.read_bytes()).digest()
        elif stat.S_ISLNK(kind):
            content = os.fsencode(path.readlink())
        found[str(path.relative_to(folder))] = (
            about.st_mode,
            about.st_ino,
            about.st_mtime_ns,
            about.st_size,
            content,
        )
    return found


def describe_change(before: Snapshot, after: Snapshot) -> str:
    """Return what changed, in words; empty if nothing did."""
    words = ("mode", "inode", "time", "size", "content")
    said = [f"{name} appeared" for name in sorted(after.keys() - before.keys())]
    said += [f"{name} is gone" for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        if changed := [w for w, a, b in zip(words, before[name], after[name], strict=True) if a != b]:
            said.append(f"{name}: other {', '.join(changed)}")
    return "; ".join(said)
