"""Put folders out of reach of this process: in a mount namespace of its own, empty folders lie over them.

Linux allows this without privileges, unless an administrator or a container forbids it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

NEW_MOUNTS, NEW_USER, NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
NO_SETUID, NO_DEVICES, BIND, RECURSIVE, PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000


def hide_folders(hidden: Sequence[Path], kept: Sequence[Path]) -> None:
    """Lay an empty folder over each hidden folder, for this process and its children, and cut it off the network.

    Raise OSError if the system does not allow it; the process must then end. It must have one thread, and its working
    directory must not be in a hidden folder.

    Args:
        kept: folders that stay as they are, even inside a hidden one. They must exist.
    """
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no mount namespaces")
    _unshare(NEW_MOUNTS | NEW_NETWORK)
    _mount("none", Path("/"), None, RECURSIVE | PRIVATE)
    handles = {folder: os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in kept}
    for folder in sorted(hidden):  # an outer folder before the inner ones, which it takes away
        if folder.is_dir():
            _mount("tmpfs", folder, "tmpfs", NO_SETUID | NO_DEVICES)
    for folder, handle in handles.items():
        folder.mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{handle}", folder, None, BIND | RECURSIVE)
        os.close(handle)  # it leads to what surrounds the kept folder
    _unshare(NEW_MOUNTS)  # in a namespace inside the first, nobody can take the empty folders away


def _unshare(flags: int) -> None:
    """Enter new namespaces, with a user namespace in which this process may mount and has the user that it had."""
    user, group = os.getuid(), os.getgid()
    _check(_libc().unshare(NEW_USER | flags), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _mount(source: str, target: Path, kind: str | None, flags: int) -> None:
    words = [source.encode(), os.fsencode(target), kind and kind.encode()]
    _check(_libc().mount(*words, ctypes.c_ulong(flags), None), f"mount {target}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
