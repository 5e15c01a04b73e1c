"""The files of a published data set: from a folder that somebody names, else from the cache. Never unverified."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from feduhb.data.cache import cached
from feduhb.data.published import PUBLISHED, Published
from feduhb.errors import DataError


def contents(name: str, folder: Path | None = None) -> list[bytes]:
    """Give what is in the files of a data set, in their order, each checked against its SHA-256.

    From ``folder``; else from the one that FEDUHB_DATA names; else from the cache, into which they are
    downloaded. A folder that is named is the only one looked into, and nothing in it is changed.
    """
    published = PUBLISHED[name]
    given = folder or (Path(os.environ["FEDUHB_DATA"]) if os.environ.get("FEDUHB_DATA") else None)
    if given is None:
        found = cached(published)
        return [found[file] for file in published.files]
    place = _place(given, published)
    return [_verified(place / file, digest, published) for file, digest in published.files.items()]


def _place(given: Path, published: Published) -> Path:
    for place in (*(given / name for name in published.folders), given):
        if (place / next(iter(published.files))).exists():
            return place
    raise DataError(
        f"{given} holds no {published.title}; put {published.listed} there, or name another folder with --data or FEDUHB_DATA"
    )


def _verified(path: Path, digest: str, published: Published) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); put the original {published.title} file there"
        ) from None
    if sha256(content).hexdigest() != digest:
        raise DataError(
            f"{path} is damaged or not the original {published.title} file: its SHA-256 is not {digest[:16]}...; get it again"
        )
    return content
